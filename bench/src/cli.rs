//! The command line: what to measure, and with which servers.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};

use crate::own::Own;
use crate::peers::NAMES;
use crate::run::{
    bulk, changes, chat, churn, compression, handshakes, idle, million, requests, sandbox, splice,
    squid, storm, svn,
};

/// Measures Eyelet and its peers side by side, in one run, in turn.
///
/// Every peer that is installed (nginx, haproxy, hitch, stunnel) is started with a configuration
/// written for it, on one core; clients and backends run on another. Rounds are interleaved, the
/// table shows medians, the range in brackets, and the ratio to the best server. Progress goes
/// to stderr, the table to stdout.
///
/// Start with `idle` (bytes of a parked connection) and `splice` (CPU-us of a spliced one).
#[derive(Debug, Parser)]
#[command(name = "eyelet-bench", version, after_help = AFTER_HELP)]
pub struct Cli {
    /// Servers to measure: programs (nginx) or rows of a table (nginx-blind); default: all usual
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAME,...")]
    #[arg(value_parser = PossibleValuesParser::new(NAMES))]
    pub against: Vec<String>,
    /// Also write every sample to FILE
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The eyelet binary [default: beside this program, else built]
    #[arg(long, global = true, value_name = "FILE")]
    pub eyelet: Option<PathBuf>,
    /// An older eyelet binary: each row of Eyelet gets a second one with it, in the same rounds
    #[arg(long, global = true, value_name = "FILE")]
    pub before: Option<PathBuf>,
    /// Give each edge, but for those of squid, compression and svn, an admin server, and print what
    /// it accounts for of its memory when it ends
    #[arg(long, global = true)]
    pub accounts: bool,
    /// Core of the server under test
    #[arg(long, global = true, default_value_t = 0, value_name = "N")]
    pub server_core: usize,
    /// Core of clients and backends
    #[arg(long, global = true, default_value_t = 1, value_name = "N")]
    pub client_core: usize,
    /// The scenario to measure.
    #[command(subcommand)]
    pub scenario: Scenario,
}

/// The scenarios that can be measured.
#[derive(Debug, Subcommand)]
pub enum Scenario {
    /// Memory of idle connections: terminated, terminated TCP pairs, spliced pairs
    Idle(idle::Options),
    /// CPU of a spliced connection, blind and with a look at the hello, in pairs
    Splice(splice::Options),
    /// Peeking beside Squid, through redirection, as shares of splicing all
    Squid(squid::Options),
    /// A command in a sandbox, beside one that is let out freely, by Squid and by mitmproxy
    Sandbox(sandbox::Options),
    /// Memory over passes of 20,000 short connections
    Churn(churn::Options),
    /// A reconnect storm: clients that come again until they are in
    Storm(storm::Options),
    /// Resident memory in front of 200 clients that say a word every 5 seconds
    Chat(chat::Options),
    /// CPU of full and resumed TLS handshakes
    Handshakes(handshakes::Options),
    /// CPU of a gigabyte, spliced and terminated
    Bulk(bulk::Options),
    /// Bytes by content coding: bundles, JSON answers, the files of a tree (Eyelet only)
    Compression(compression::Options),
    /// A Subversion checkout over a delaying line: Apache, one edge, a pair of edges
    Svn(svn::Options),
    /// CPU of small keep-alive GETs
    Requests(requests::GetOptions),
    /// CPU of waking a parked connection: a 100-byte echo over a terminated TCP pair
    Wake(requests::Options),
    /// A million idle connections on this machine, a sample of them answering (Eyelet only)
    Million(million::Options),
    /// Reloads, upgrades and new certificates under load: what is lost (Eyelet only)
    Changes(changes::Options),
    /// The servers and clients that this program brings along
    #[command(subcommand, hide = true)]
    Peer(Own),
}

const AFTER_HELP: &str = "\
Examples:
  eyelet-bench idle --svg memory.svg --after handshake
  eyelet-bench idle --conns 9000 --after echo --against eyelet,haproxy,hitch
  eyelet-bench splice --rounds 9 --strace --against eyelet,nginx,haproxy
  eyelet-bench handshakes --json handshakes.json
  eyelet-bench million --conns 20000
  eyelet-bench changes --change reload --seconds 60
  eyelet-bench changes --change reload,upgrade,certificate --every 5 --seconds 1200

A machine that others use makes CPU figures drift by tens of percent: compare within a table, and
prefer more rounds to longer ones. Memory figures hold still. bench/README.md says more.";
