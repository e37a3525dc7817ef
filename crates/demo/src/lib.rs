//! The demo behind `eyelet demo`: a page that shows what the edge does with its own connection, and
//! an application, an origin and clients around that edge. The edge itself is the program's. It
//! does not know that it is a demo.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod app;
mod client;
mod codings;
mod content;
mod crowd;
mod feed;
mod gauge;
mod hellos;
mod identity;
mod lie;
mod manual;
mod origin;
mod park;
mod permits;
mod status;
mod text;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::feed::Feed;
use crate::identity::{APP_NAME, TemporaryFolder};
use crate::park::Park;
use crate::status::EndSignals;
use eyelet_local_ca::{Authority, LocalCaError};

pub use crate::crowd::crowd;
pub use crate::hellos::Hellos;

/// The reason why the demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Its authority, or a certificate.
    #[error("cannot make the certificates: {0}")]
    Certificates(#[from] LocalCaError),
    /// Its folder, or a file in it.
    #[error("cannot write to the temporary folder: {0}")]
    Folder(io::Error),
    /// The servers behind the edge.
    #[error("cannot start the servers behind the edge: {0}")]
    Behind(io::Error),
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

/// The edge that serves the page.
pub struct PageEdge {
    /// A listener for the page, and the one for CONNECT.
    pub page: SocketAddr,
    /// The listener for CONNECT.
    pub gateway: SocketAddr,
    /// This program, which the crowd's clients run in.
    pub program: PathBuf,
    /// Descriptors that connections may hold.
    pub descriptors_max: usize,
    /// Returns the text of `eyelet explain --log-line` about a line.
    pub explain: Box<dyn Fn(&str) -> String + Send + Sync>,
}

/// A demo whose edge does not run yet.
pub struct Demo {
    /// Caught before the folder is made, which a signal must not leave behind.
    signals: EndSignals,
    folder: TemporaryFolder,
    authority: Authority,
    /// The edge's configuration file.
    pub configuration: PathBuf,
    /// The hellos that the edge notes.
    pub hellos: Arc<Hellos>,
    runtime: Runtime,
    acceptor: TlsAcceptor,
    origin: TcpListener,
    origin_address: SocketAddr,
    app: UnixListener,
}

/// A demo whose page is served.
pub struct ServedPage {
    signals: EndSignals,
    /// Removed when the demo ends.
    _folder: TemporaryFolder,
    app: Arc<App>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Demo {
    /// Makes the folder, the certificates, the sockets behind the edge, and its configuration.
    /// `listen` are the addresses for the page; a port may be 0.
    pub fn prepare(listen: &[SocketAddr]) -> Result<Self, DemoError> {
        let signals = EndSignals::catch().map_err(DemoError::Signals)?;
        let folder = TemporaryFolder::create().map_err(DemoError::Folder)?;
        let (authority, identity) = identity::make(&folder)?;
        let acceptor = origin::acceptor(identity).map_err(DemoError::Behind)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(DemoError::Behind)?;
        let socket = text::app_socket(&folder);
        let bind = async || {
            let origin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            Ok((origin.local_addr()?, origin, UnixListener::bind(socket)?))
        };
        let (origin_address, origin, app) = runtime.block_on(bind()).map_err(DemoError::Behind)?;
        let text = text::configuration(listen, origin_address, &authority, &folder);
        let configuration = folder.write("eyelet.toml", &text).map_err(DemoError::Folder)?;
        let hellos = Arc::default();
        Ok(Self {
            signals,
            folder,
            authority,
            configuration,
            hellos,
            runtime,
            acceptor,
            origin,
            origin_address,
            app,
        })
    }

    /// Serves the page by this edge, and prints how to get there.
    pub fn serve(self, edge: PageEdge) -> Result<ServedPage, DemoError> {
        let Self { signals, folder, authority, configuration, hellos, runtime, .. } = self;
        let host = text::authority_of(APP_NAME, edge.page.port());
        let field = |text| {
            let value = HeaderValue::try_from(text);
            value.map_err(|error| DemoError::Behind(io::Error::other(error)))
        };
        let page = field(format!("https://{host}"))?;
        let (html, policy) = content::page(&edge.page.port().to_string());
        let ca = authority.certificate_path();
        let connector = client::connector(&ca).map_err(DemoError::Behind)?;
        let app = Arc::new(App {
            authority: host,
            html,
            policy: field(policy)?,
            feed: Feed::open(&text::access_log(&folder)).map_err(DemoError::Folder)?,
            hellos,
            park: Park::new(edge.page, edge.program, ca.clone(), edge.descriptors_max),
            connector,
            page: edge.page,
            gateway: edge.gateway,
            origin: self.origin_address,
            explain: edge.explain,
        });
        let (stop, stopped) = oneshot::channel();
        let (served, acceptor, origin, socket) =
            (app.clone(), self.acceptor, self.origin, self.app);
        let behind = std::thread::Builder::new().name("demo-behind".into());
        let thread = behind.spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = origin::serve(origin, acceptor, page) => {}
                    () = app::serve(socket, served.clone()) => {}
                    () = app::follow(served) => {}
                    _ = stopped => {}
                }
            });
        });
        let thread = thread.map_err(DemoError::Behind)?;
        let invitation = text::invitation(edge.page.port(), &ca, &configuration);
        let mut out = io::stdout().lock();
        // A closed output has no reader. The page is there all the same.
        let _ = out.write_all(invitation.as_bytes()).and_then(|()| out.flush());
        Ok(ServedPage { signals, _folder: folder, app, stop, thread })
    }
}

impl ServedPage {
    /// Shows the counters until a signal, or for this time.
    pub fn wait(&mut self, exit_after: Option<Duration>) {
        self.signals.print_status(exit_after);
    }

    /// Ends the crowd and the servers behind the edge, and removes the folder. `drain` ends the
    /// edge in between, which lets open pages go.
    pub fn end(self, drain: impl FnOnce()) {
        self.app.park.empty();
        drain();
        // This fails only if the thread has ended already. A panic was logged then.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        status::summary();
    }
}
