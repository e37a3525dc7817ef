//! HTTP end to end, by both versions, towards clients and upstreams. Each file is a module. Knows
//! the program only by its sockets and logs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod balance;
mod bodies;
mod by_request;
mod client_cert;
mod coded;
mod compress;
mod early;
mod ends;
mod far;
mod flushes;
mod held_requests;
mod kept;
mod left;
mod loops;
mod originate;
mod originate_bytes;
mod originate_certificate;
mod originate_coded;
mod originate_dictionaries;
mod originate_early;
mod originate_pipelined;
mod originate_restarts;
mod originate_svn;
mod originate_unix;
mod pair_requests;
mod rebinding;
mod requests;
mod resting;
mod resting_clear;
mod resting_groups;
mod resting_https;
mod resting_shared;
mod run;
mod run_ends;
mod run_memory;
mod run_ports;
mod run_scheme;
mod run_share;
mod run_shared;
mod run_trust;
mod run_upstreams;
mod spellings;
mod strict;
mod svn;
mod trace;
mod two;
mod two_bodies;
mod two_clients;
mod two_faults;
mod two_floods;
mod two_held;
mod two_parked;
mod two_resting;
mod two_resting_frames;
mod two_waiting;
mod two_websocket;
mod unread;
mod upstream_faults;
mod upstreams;
mod versions;
mod waiting;
