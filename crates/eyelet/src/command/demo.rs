//! `eyelet demo`: an edge on loopback that serves the demo's page.

use std::error::Error;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::command::explain::{self, ExplainArgs};
use crate::command::run::ports;
use eyelet_demo::{Demo, PageEdge};
use eyelet_edge::path::peek;
use eyelet_process::{serve, upgrade};

/// The port that the page is at if it is free.
const PORT: u16 = 8443;
/// The addresses that browsers know as localhost.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Arguments of `eyelet demo`.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct DemoArgs {
    /// End after this time with a summary, for scripts: 5s, 1m
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub exit_after: Option<Duration>,
    /// The page's port on 127.0.0.1; by default 8443 or the next free one; 0: any
    #[arg(long)]
    pub port: Option<u16>,
    /// Be the clients that the page parks
    #[arg(long, hide = true, num_args = 3, value_names = ["ADDRESS", "COUNT", "CA"])]
    crowd: Vec<String>,
}

/// Runs the demo until a signal or `--exit-after`. An error is one line on stderr.
#[must_use]
pub fn run(args: &DemoArgs) -> ExitCode {
    let done = match &args.crowd[..] {
        [target, count, authority] => crowd(target, count, authority),
        _ => play(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed, the error cannot be reported.
            let _ = writeln!(io::stderr(), "eyelet demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn crowd(target: &str, count: &str, authority: &str) -> Result<(), Box<dyn Error>> {
    Ok(eyelet_demo::crowd(target.parse()?, count.parse()?, authority)?)
}

fn play(args: &DemoArgs) -> Result<(), Box<dyn Error>> {
    let program = upgrade::own_program();
    let demo = Demo::prepare(&listen(args.port)?)?;
    let file = demo.configuration.clone();
    let loaded = eyelet_config::load(&file, eyelet_config::Depth::Files).map_err(|found| {
        // Only a temporary folder with an unusual name can cause this.
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    let hellos = demo.hellos.clone();
    peek::observe(Box::new(move |client, hello| hellos.note(client, hello)));
    let edge = serve::start(loaded.config)?;
    let addresses = edge.addresses();
    let (Some(&page), Some(&gateway)) = (addresses.first(), addresses.last()) else {
        return Err("no listener".into());
    };
    let descriptors_max = edge.descriptors_max();
    let explain = Box::new(move |line: &str| explained(&file, line));
    let mut serving = demo.serve(PageEdge { page, gateway, program, descriptors_max, explain })?;
    serving.wait(args.exit_after);
    serving.end(|| edge.drain());
    Ok(())
}

/// The addresses of the page.
fn listen(port: Option<u16>) -> Result<Vec<SocketAddr>, Box<dyn Error>> {
    let said = |text: &str| {
        // If stderr is closed, the page's address still says it.
        let _ = writeln!(io::stderr(), "eyelet demo: {text}");
    };
    Ok(match port {
        // The kernel would choose another port for each address.
        Some(0) => vec![SocketAddr::new(LOOPBACK[0], 0)],
        Some(port) => ports::bound(&LOOPBACK, port).map_err(|error| {
            format!("cannot listen at port {port}: {error}. Without --port a free one is taken")
        })?,
        None => ports::first_free(&LOOPBACK, &[PORT], &[], &mut |taken| said(&taken.to_string()))?,
    })
}

/// Returns the output of `eyelet explain --log-line`.
fn explained(file: &Path, line: &str) -> String {
    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        explain: ExplainArgs,
    }
    let file = PathBuf::from(file);
    let words = ["explain".into(), file.into_os_string(), "--log-line".into(), line.into()];
    let mut out = Vec::new();
    match Command::try_parse_from(words) {
        Ok(command) => _ = explain::explain(&command.explain, &[], &mut out),
        Err(error) => return error.to_string(),
    }
    String::from_utf8_lossy(&out).into_owned()
}
