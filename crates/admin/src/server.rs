//! The server's thread: accepts, and answers one request after the other on each connection.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use eyelet_config::{AdminSettings, admin_token};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, sleep};

use crate::access::{Access, Refused};
use crate::connections::{self, held};
use crate::history::History;
use crate::listen::{Identity, Listening, bind_tcp, bind_unix, is_there};
use crate::live::{self, Live};
use crate::routes::{Answers, Content, answer, text};
use crate::stalled::Stalled;

/// Connections served at a time: some scrapers, some pages, some people. More wait in the kernel.
pub const CONNECTIONS_MAX: usize = 32;
const _: () = assert!(live::READERS_MAX * 4 <= CONNECTIONS_MAX);
/// The time that a client may take to send the head of a request, and rest between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head, and of what is read ahead. A browser's has 2 KiB.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The time for which accepting pauses after an error, such as no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time for which the process that is being replaced may hold the port. It lets go when this
/// one serves.
const PORT_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two tries.
const PORT_STEP: Duration = Duration::from_millis(20);
/// The shortest interval between two restarts of a thread that has ended: one that ends at once
/// each time must not fill the log.
const RESTART_STEP: Duration = Duration::from_mins(1);

/// The reason why there is no admin server.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address cannot be bound.
    #[error("[admin] cannot listen on {address}: {error}{}", hint(error))]
    Listen {
        /// The address, as the configuration has it.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// The token cannot be read.
    #[error("[admin] {0}")]
    Token(String),
    /// The thread or its runtime cannot be started.
    #[error("[admin] cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Returns advice about an address that cannot be bound.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another process holds it; `ss -lxtnp` shows which)",
        _ => "",
    }
}

/// The ways in which a server begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The address must be free.
    Alone,
    /// Another process has the address and will let go of it.
    InPlaceOfAnother,
}

/// A running server. Dropping it closes its socket and its connections.
pub struct AdminServer {
    settings: AdminSettings,
    /// The file of its Unix socket, if it has one.
    file: Option<Identity>,
    access: watch::Sender<Arc<Access>>,
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    answers: Arc<dyn Answers>,
    history: Arc<History>,
    /// The time at which the thread was last started again.
    restarted: Option<Instant>,
    /// The reason of that failure, as the log says already.
    failure: Option<String>,
}

impl AdminServer {
    /// Binds and begins to answer.
    ///
    /// # Errors
    /// [`AdminError`]. Nothing listens then.
    pub fn start(
        settings: &AdminSettings,
        answers: Arc<dyn Answers>,
        history: Arc<History>,
        start: Start,
    ) -> Result<Self, AdminError> {
        let (access, seen) = watch::channel(Arc::new(access(settings)?));
        let (stop, stopped) = oneshot::channel();
        let (began, begun) = sync_channel(1);
        let live = Arc::new(Live::new(history.clone()));
        let served =
            Served { settings: settings.clone(), access: seen, answers: answers.clone(), live };
        let body = move || {
            // Here, because a runtime may not be dropped where another one runs.
            let bound = served.begin_to_listen(start);
            let bound = bound.map_err(|error| began.send(Err(error)));
            if let Ok((runtime, bound)) = bound {
                // The other end waits for this.
                let _ = began.send(Ok(bound.as_ref().and_then(Listening::file)));
                served.run(&runtime, bound, stopped);
            }
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(body);
        let thread = thread.map_err(AdminError::Thread)?;
        // The thread sends one answer, or it has panicked.
        let internal = || AdminError::Thread(io::Error::other("internal error"));
        let file = begun.recv().map_err(|_| internal())??;
        let (settings, stop, thread) = (settings.clone(), Some(stop), Some(thread));
        let (restarted, failure) = (None, None);
        Ok(Self { settings, file, access, stop, thread, answers, history, restarted, failure })
    }

    /// Starts the thread again if it has ended, which only a failure causes.
    pub fn tend(&mut self) {
        let is_soon = |restarted: Instant| restarted.elapsed() < RESTART_STEP;
        if self.lives() || self.restarted.is_some_and(is_soon) {
            return;
        }
        self.restarted = Some(Instant::now());
        let (answers, history) = (self.answers.clone(), self.history.clone());
        match Self::start(&self.settings, answers, history, Start::Alone) {
            Ok(mut next) => {
                tracing::error!("the thread `admin` has ended by itself: it is started again");
                next.restarted = self.restarted;
                *self = next;
            }
            Err(error) => {
                let failure = Some(error.to_string());
                if self.failure != failure {
                    tracing::error!(
                        "the thread `admin` has ended by itself and cannot be started again: \
                         {error}; Eyelet tries again each minute"
                    );
                    self.failure = failure;
                }
            }
        }
    }

    /// Goes on by new settings, if they leave the socket as it is, and it is still served. Reads
    /// the token again.
    ///
    /// # Errors
    /// [`AdminError::Token`]. Nothing has changed then.
    pub fn keeps(&mut self, settings: &AdminSettings) -> Result<bool, AdminError> {
        let is_same = match (&self.settings, settings) {
            (AdminSettings::Tcp { address, .. }, AdminSettings::Tcp { address: new, .. }) => {
                address == new
            }
            (served, new) => served == new,
        };
        let keeps = is_same && self.is_served();
        if keeps {
            let access = access(settings)?;
            self.settings = settings.clone();
            self.access.send_replace(Arc::new(access));
        }
        Ok(keeps)
    }

    fn lives(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// True if the thread lives, and who connects reaches it.
    fn is_served(&self) -> bool {
        self.lives()
            && match (&self.settings, self.file) {
                (AdminSettings::Unix { path, .. }, Some(file)) => is_there(path, file),
                _ => true,
            }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has logged it.
            let _ = thread.join();
        }
    }
}

fn access(settings: &AdminSettings) -> Result<Access, AdminError> {
    match settings {
        AdminSettings::Unix { .. } => Ok(Access::File),
        AdminSettings::Tcp { address, token_file } => admin_token(token_file)
            .map(|token| Access::Token(token, address.port()))
            .map_err(AdminError::Token),
    }
}

fn bind(settings: &AdminSettings) -> io::Result<Listening> {
    match settings {
        AdminSettings::Unix { path, mode } => bind_unix(path, *mode),
        AdminSettings::Tcp { address, .. } => bind_tcp(*address),
    }
}

/// The state of the thread.
struct Served {
    settings: AdminSettings,
    access: watch::Receiver<Arc<Access>>,
    answers: Arc<dyn Answers>,
    live: Arc<Live>,
}

impl Served {
    /// A runtime, and the socket. `None`: another process still has the port.
    fn begin_to_listen(&self, start: Start) -> Result<(Runtime, Option<Listening>), AdminError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(AdminError::Thread)?;
        let bound = {
            let _entered = runtime.enter();
            bind(&self.settings)
        };
        let may_wait = start == Start::InPlaceOfAnother;
        match bound {
            Ok(listening) => Ok((runtime, Some(listening))),
            Err(error) if may_wait && error.kind() == io::ErrorKind::AddrInUse => {
                Ok((runtime, None))
            }
            Err(error) => Err(AdminError::Listen { address: self.settings.to_string(), error }),
        }
    }

    fn run(self, runtime: &Runtime, bound: Option<Listening>, stopped: oneshot::Receiver<()>) {
        runtime.block_on(async {
            let serve = async {
                let bound = match bound {
                    Some(bound) => Ok(bound),
                    None => self.bind_late().await,
                };
                match bound {
                    Ok(listening) => self.serve(&listening).await,
                    Err(error) => {
                        let address = self.settings.to_string();
                        tracing::error!("{}", AdminError::Listen { address, error });
                    }
                }
            };
            tokio::select! {
                () = serve => {}
                () = self.live.run(&*self.answers, self.access.clone()) => {}
                // It fails when the server is dropped, which means the same.
                _ = stopped => {}
            }
        });
    }

    /// Binds as soon as the other process lets go.
    async fn bind_late(&self) -> io::Result<Listening> {
        let end = Instant::now() + PORT_TIMEOUT;
        loop {
            match bind(&self.settings) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                    sleep(PORT_STEP).await;
                }
                bound => return bound,
            }
        }
    }

    async fn serve(&self, listening: &Listening) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // The semaphore is never closed.
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let accepted = match listening {
                Listening::Unix(unix) => {
                    unix.listener.accept().await.map(|(socket, _)| self.begin(socket, permit))
                }
                Listening::Tcp(listener) => {
                    listener.accept().await.map(|(socket, _)| self.begin(socket, permit))
                }
            };
            if let Err(error) = accepted {
                tracing::warn!("[admin] cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    fn begin<S>(&self, socket: S, permit: OwnedSemaphorePermit)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (access, answers, live) =
            (self.access.clone(), self.answers.clone(), self.live.clone());
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| {
                let (access, answers, live) =
                    (access.borrow().clone(), answers.clone(), live.clone());
                // The body is not read.
                let (asked, _) = request.into_parts();
                async move { Ok::<_, Infallible>(respond(&access, &*answers, &live, &asked).await) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(Stalled::new(socket)), service);
            // A client that leaves or breaks the protocol is no error of the edge.
            let _ = served.await;
            drop(permit);
        });
    }
}

async fn respond(
    access: &Access,
    answers: &dyn Answers,
    live: &Live,
    asked: &Parts,
) -> Response<Content> {
    if let Err(Refused(status, why)) = access.check(&asked.uri, &asked.headers) {
        let mut response = text(status, why);
        if status == hyper::StatusCode::UNAUTHORIZED {
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        return response;
    }
    if let Some(of) = asked.uri.path().strip_prefix(connections::PATH) {
        return connections::answer(answers, &asked.method, of, asked.uri.query()).await;
    }
    if let Some(of) = asked.uri.path().strip_prefix(held::PATH) {
        return held::answer(answers, &asked.method, of, asked.uri.query());
    }
    if let Some(response) = live.answer(answers, asked) {
        return response;
    }
    let target = (asked.uri.path(), asked.uri.query().unwrap_or_default());
    answer(answers, &asked.method, target, &asked.headers)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::routes::stand_in::Edge;

    #[test]
    fn a_server_whose_thread_has_ended_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let settings = AdminSettings::Unix { path: path.clone(), mode: 0o600 };
        let start = || {
            let history = Arc::default();
            AdminServer::start(&settings, Arc::new(Edge(|| ())), history, Start::Alone).unwrap()
        };
        let mut server = start();
        assert!(server.keeps(&settings).unwrap());
        // The thread ends. Then a server that was started next has a file at the same path.
        drop(server.stop.take());
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.keeps(&settings).unwrap() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        server.thread.take().unwrap().join().unwrap();
        let mut next = start();
        assert!(next.keeps(&settings).unwrap());
        server.file = next.file;
        assert!(!server.keeps(&settings).unwrap(), "the file is there, and no thread");
    }

    /// Counts the lines of the log.
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let is_own = event.metadata().target().starts_with("eyelet_admin");
            self.0.fetch_add(usize::from(is_own), Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_thread_that_cannot_be_started_again_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let settings = AdminSettings::Unix { path: home.join("admin.sock"), mode: 0o600 };
        let mut server =
            AdminServer::start(&settings, Arc::new(Edge(|| ())), Arc::default(), Start::Alone)
                .unwrap();
        drop(server.stop.take());
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.lives() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let lines = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Lines(lines.clone()), || {
            let mut tend = || {
                server.restarted = server.restarted.and_then(|at| at.checked_sub(RESTART_STEP));
                server.tend();
                (server.lives(), lines.load(Relaxed))
            };
            std::fs::remove_dir(&home).unwrap();
            assert_eq!([tend(), tend(), tend()], [(false, 1); 3], "no folder");
            std::fs::write(&home, "").unwrap();
            assert_eq!([tend(), tend(), tend()], [(false, 2); 3], "a file in its place");
            std::fs::remove_file(&home).unwrap();
            std::fs::create_dir(&home).unwrap();
            assert_eq!(tend(), (true, 3));
        });
    }

    #[test]
    fn a_thread_that_panicked_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let settings = AdminSettings::Unix { path: folder.path().join("admin.sock"), mode: 0o600 };
        let failures = Arc::new(AtomicUsize::new(2));
        let left = failures.clone();
        let fail = move || {
            let failing = left.load(Relaxed);
            left.store(failing.saturating_sub(1), Relaxed);
            assert_eq!(failing, 0, "as the test wants");
        };
        let mut server =
            AdminServer::start(&settings, Arc::new(Edge(fail)), Arc::default(), Start::Alone)
                .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let wait_for_end = |server: &AdminServer| {
            while server.lives() {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
        };
        wait_for_end(&server);
        server.tend();
        assert!(server.restarted.is_some());
        wait_for_end(&server);
        assert_eq!(failures.load(Relaxed), 0);
        server.tend();
        assert!(!server.lives(), "not so soon again");
        server.restarted = server.restarted.and_then(|at| at.checked_sub(RESTART_STEP));
        server.tend();
        assert!(server.keeps(&settings).unwrap());
        let began = server.restarted;
        server.tend();
        assert!(server.restarted == began && server.lives(), "one that lives is left alone");
    }
}
