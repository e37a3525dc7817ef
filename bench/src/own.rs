//! The servers that this program brings along: backend and origin for the others to reach, and
//! the plainest tokio-rustls servers as a yardstick. Must not know what is measured.

mod backend;
mod floor;
mod origin;
mod proxies;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::{child, run};

/// What `peer` runs. Not for people: the measuring process starts these.
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
        addresses: Vec<SocketAddr>,
    },
    /// The backend behind tokio-rustls
    RustTls { address: SocketAddr, certificate: PathBuf, key: PathBuf },
    /// tokio-rustls and copy_bidirectional to an upstream
    RustProxy { address: SocketAddr, certificate: PathBuf, key: PathBuf, upstream: SocketAddr },
    /// copy_bidirectional between two sockets, without a look at the bytes
    RustSplice { address: SocketAddr, upstreams: Vec<SocketAddr> },
    /// One epoll loop that reads a hello's record, and moves bytes by splice(2)
    FloorSplice { address: SocketAddr, upstreams: Vec<SocketAddr> },
    /// One of the client processes of `million`
    Crowd(run::crowd::Crowd),
}

/// Runs one of them until it is killed.
///
/// # Errors
/// A port that is taken, a certificate that cannot be read.
pub fn serve(own: Own) -> io::Result<()> {
    let own = match own {
        Own::Launch { core, command } => return Err(child::launch(core, &command)),
        Own::FloorSplice { address, upstreams } => return floor::serve(address, upstreams),
        Own::Crowd(crowd) => return run::crowd::serve(&crowd),
        own => own,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match own {
            Own::Backend { address } => backend::plain(address).await,
            Own::Origin { reply, addresses } => origin::serve(reply, &addresses).await,
            Own::RustTls { address, certificate, key } => {
                backend::tls(address, proxies::acceptor(&certificate, &key)?).await
            }
            Own::RustProxy { address, certificate, key, upstream } => {
                proxies::terminate(address, proxies::acceptor(&certificate, &key)?, upstream).await
            }
            Own::RustSplice { address, upstreams } => proxies::splice(address, &upstreams).await,
            Own::Launch { .. } | Own::FloorSplice { .. } | Own::Crowd(_) => Ok(()),
        }
    })
}

/// A listener with room for the bursts that the load tools make.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The next connection, small writes not held back.
async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// As every peer is configured; the kernel's somaxconn may allow less.
pub const BACKLOG: u32 = 4096;
