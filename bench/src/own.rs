//! The servers of this program: a backend and an origin for other servers, and the simplest
//! tokio-rustls servers as a yardstick.

mod backend;
mod crowd;
mod dns;
mod floor;
mod frames;
pub mod listen;
mod origin;
mod proxies;
mod sites;
mod storm;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::child;
use clap::Subcommand;

/// The subcommands of `peer`. The measuring process starts them.
#[derive(Debug, Subcommand)]
pub enum Own {
    /// Become COMMAND, pinned to CORE
    Launch {
        core: usize,
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Plain TCP: echo, or HTTP when the first bytes are "GET "
    Backend { address: SocketAddr },
    /// Canned TLS origin on each address: waits for a hello, answers REPLY bytes, and keeps still
    Origin {
        #[arg(long)]
        reply: usize,
        /// Shake hands with clients that are no robots
        #[arg(long, requires = "key")]
        certificate: Option<PathBuf>,
        #[arg(long)]
        key: Option<PathBuf>,
        /// Speak TLS 1.2 only
        #[arg(long)]
        tls12: bool,
        addresses: Vec<SocketAddr>,
    },
    /// HTTPS origins: each name has a certificate that this authority signs
    Sites { address: SocketAddr, certificate: PathBuf, key: PathBuf },
    /// A resolver: every name has these addresses
    Dns { address: SocketAddr, addresses: Vec<Ipv4Addr> },
    /// The backend behind tokio-rustls
    RustTls { address: SocketAddr, certificate: PathBuf, key: PathBuf },
    /// tokio-rustls and copy_bidirectional to an upstream
    RustProxy { address: SocketAddr, certificate: PathBuf, key: PathBuf, upstream: SocketAddr },
    /// copy_bidirectional between two sockets, without a look at the bytes
    RustSplice { address: SocketAddr, upstreams: Vec<SocketAddr> },
    /// One epoll loop that reads a hello's record, and moves bytes by splice(2)
    FloorSplice { address: SocketAddr, upstreams: Vec<SocketAddr> },
    /// One of the client processes of `million`
    Crowd(crowd::Crowd),
    /// One of the client processes of `storm`
    StormClients(storm::StormClients),
}

/// Runs one of them until it is killed.
///
/// # Errors
/// A port in use, or a certificate that cannot be read.
pub fn serve(own: Own) -> io::Result<()> {
    let own = match own {
        Own::Launch { core, command } => return Err(child::launch(core, &command)),
        Own::FloorSplice { address, upstreams } => return floor::serve(address, upstreams),
        Own::Crowd(crowd) => return crowd::serve(&crowd),
        own => own,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match own {
            Own::Backend { address } => backend::plain(address).await,
            Own::Origin { reply, certificate, key, tls12, addresses } => {
                let acceptor = certificate.zip(key).map(|(certificate, key)| {
                    let versions = if tls12 { &TLS12[..] } else { &TLS13[..] };
                    proxies::acceptor_of(&certificate, &key, versions)
                });
                origin::serve(reply, tls12, acceptor.transpose()?, &addresses).await
            }
            Own::Dns { address, addresses } => dns::serve(address, &addresses).await,
            Own::Sites { address, certificate, key } => {
                sites::serve(address, &certificate, &key).await
            }
            Own::RustTls { address, certificate, key } => {
                backend::tls(address, proxies::acceptor(&certificate, &key)?).await
            }
            Own::RustProxy { address, certificate, key, upstream } => {
                proxies::terminate(address, proxies::acceptor(&certificate, &key)?, upstream).await
            }
            Own::RustSplice { address, upstreams } => proxies::splice(address, &upstreams).await,
            Own::StormClients(clients) => storm::serve(&clients).await,
            Own::Launch { .. } | Own::FloorSplice { .. } | Own::Crowd(_) => Ok(()),
        }
    })
}

const TLS12: [&rustls::SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
const TLS13: [&rustls::SupportedProtocolVersion; 1] = [&rustls::version::TLS13];
