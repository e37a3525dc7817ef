//! `eyelet demo`: an edge on loopback with its own authority, and a TLS origin and a web
//! application behind it.

pub mod app;
pub mod certificates;
pub mod origin;
mod permits;
mod status;
mod text;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

use self::certificates::{Identity, TemporaryFolder};
use crate::serve;
use eyelet_local_ca::Authority;

/// Arguments of `eyelet demo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct DemoArgs {
    /// End after this time with a summary, for scripts: 5s, 1m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub exit_after: Option<Duration>,
    /// The edge's port on 127.0.0.1; with 0 the kernel chooses
    #[arg(long, default_value_t = 0)]
    pub port: u16,
}

/// Runs the demo until a signal or `--exit-after`. An error is one line on stderr.
#[must_use]
pub fn run(args: DemoArgs) -> ExitCode {
    match play(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stopped { at, why }) => {
            // If stderr is closed, the error cannot be reported.
            let _ = writeln!(io::stderr(), "eyelet demo: {at}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The demo: a folder, certificates, two servers, an edge in front of them, and a status line.
fn play(args: &DemoArgs) -> Result<(), Stopped> {
    let folder = TemporaryFolder::create().map_err(at("cannot make a temporary folder"))?;
    let (authority, origin) =
        certificates::make(&folder).map_err(at("cannot make the certificates"))?;
    let behind = Behind::start(origin).map_err(at("cannot start the servers behind"))?;

    let written = text::configuration(args.port, &behind.addresses, &authority, &folder);
    let file = folder.write("eyelet.toml", &written).map_err(at("cannot write eyelet.toml"))?;
    let loaded = eyelet_config::load(&file, eyelet_config::Depth::Files).map_err(mistakes)?;
    let edge = serve::start(loaded.config).map_err(at("cannot start the edge"))?;

    let printed = match edge.addresses().first() {
        Some(address) => print_tour(&file, &written, *address, &authority, &folder)
            .and_then(|()| status::print_status(args.exit_after)),
        None => Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    edge.drain();
    behind.stop();
    printed.map_err(at("cannot tell about it"))?;
    status::summary();
    Ok(())
}

fn print_tour(
    file: &Path,
    written: &str,
    edge: SocketAddr,
    authority: &Authority,
    folder: &TemporaryFolder,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let invitation =
        text::invitation(edge, &authority.certificate_path(), &text::access_log(folder));
    write!(out, "{}:\n\n{written}\n{invitation}", file.display())?;
    out.flush()
}

/// Why the demo could not go on.
#[derive(Debug)]
struct Stopped {
    at: &'static str,
    why: String,
}

/// Only a temporary folder with an unusual name can cause this.
fn mistakes(found: Vec<eyelet_config::Diagnostic>) -> Stopped {
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    Stopped { at: "the demo's own configuration is wrong", why: lines.join("\n") }
}

fn at<E: std::fmt::Display>(at: &'static str) -> impl FnOnce(E) -> Stopped {
    move |why| Stopped { at, why: why.to_string() }
}

/// The servers behind the edge, on a thread and a runtime of their own.
#[derive(Debug)]
struct Behind {
    addresses: text::Addresses,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Behind {
    fn start(identity: Identity) -> io::Result<Self> {
        let acceptor = origin::acceptor(identity)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let loopback = (std::net::Ipv4Addr::LOCALHOST, 0);
        let bind = async || {
            let origin = TcpListener::bind(loopback).await?;
            let app = TcpListener::bind(loopback).await?;
            let addresses =
                text::Addresses { origin: origin.local_addr()?, app: app.local_addr()? };
            Ok::<_, io::Error>((origin, app, addresses))
        };
        let (origin, app, addresses) = runtime.block_on(bind())?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("demo-behind".into()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = origin::serve(origin, acceptor) => {}
                    () = app::serve(app) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { addresses, stop, thread })
    }

    fn stop(self) {
        // This fails only if the thread has ended already. A panic was logged then.
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}
