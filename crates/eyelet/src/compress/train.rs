//! `eyelet dictionary train`: samples from what an access log names, asked of the upstream again.
