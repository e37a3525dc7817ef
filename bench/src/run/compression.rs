//! Bytes by coding, through the real program: a Subversion checkout, versions of bundles, families
//! of small responses, and what the CPU of it is beside nginx. Must not code anything itself.

mod apache;
mod bundles;
mod checkout;
mod cost;
mod family;
mod material;
mod replay;
mod tap;
mod web;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::ValueEnum;

use super::{Meter, Outcome};
use crate::board::Column;
use crate::lab::{LOCALHOST, Lab, Server, host_name};
use web::Client;

/// What is compressed.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The source tree that is checked out [default: one that is made up]
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// An earlier state of it, which teaches the checkout's dictionary [default: the tree itself]
    #[arg(long, value_name = "DIR")]
    pub older: Option<PathBuf>,
    /// Pages, as HTML files
    #[arg(long, value_name = "DIR", default_value = PAGES)]
    pub pages: PathBuf,
    /// Parts to measure; left out: all
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    pub only: Vec<Part>,
    /// Answers of the JSON family, as many again teach the dictionary
    #[arg(long, default_value_t = 1_500)]
    pub answers: usize,
    /// Rounds of the CPU's measurement
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
}

/// A table of its own each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// A Subversion checkout, with and without Eyelet
    Checkout,
    /// The next version of bundles from npm
    Bundles,
    /// JSON answers, half of which teach a dictionary
    Answers,
    /// Pages, half of which teach a dictionary
    Pages,
    /// CPU a MB, beside nginx
    Cost,
}

pub async fn run(lab: &Lab, options: &Options) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    for part in Part::value_variants() {
        if !options.only.is_empty() && !options.only.contains(part) {
            continue;
        }
        eprintln!("{part:?}");
        let done = match part {
            Part::Checkout => checkout::run(lab, options).await,
            Part::Bundles => bundles::run(lab).await,
            Part::Answers => family::answers(lab, options.answers).await,
            Part::Pages => family::pages(lab, &options.pages).await,
            Part::Cost => cost::run(lab, options).await,
        };
        match done {
            Ok((board, notes)) => {
                outcome.boards.push(board);
                outcome.notes.extend(notes);
            }
            // A registry that cannot be reached, a program that is not installed: the rest goes on.
            Err(why) => outcome.notes.push(format!("{part:?} is left out: {why}")),
        }
    }
    Ok(outcome)
}

/// An edge in front of one upstream.
struct Edge {
    server: Server,
    address: SocketAddr,
    file: PathBuf,
}

impl Edge {
    fn start(lab: &Lab, upstream: SocketAddr, terms: &str) -> io::Result<Self> {
        let address = lab.free_address()?;
        let file = lab.folder().join(format!("compression-{}.toml", address.port()));
        let name = format!("store-{}", address.port());
        // Where a dictionary comes to lie while the edge runs.
        std::fs::create_dir(lab.folder().join(&name))?;
        let text = format!(
            "workers = 1\n[[listener]]\naddress = \"{address}\"\n[[rule]]\nname = \"app\"\n\
             sni = [\"{}\", \"{LOCALHOST}\"]\naction = \"terminate\"\ncertificate = \"{}\"\n\
             key = \"{}\"\nupstream = \"http://{upstream}\"\n{terms}[dictionary]\n\
             path = \"{name}\"\n[log]\naccess = \"access-{}.log\"\n",
            host_name(0),
            crate::lab::CERTIFICATE,
            crate::lab::KEY,
            address.port()
        );
        std::fs::write(&file, text)?;
        let command: Vec<OsString> = vec![eyelet(lab)?.into(), "serve".into(), file.clone().into()];
        let server = lab.start_server("eyelet-compression", &command, address)?;
        Ok(Self { server, address, file })
    }

    async fn client(&self) -> io::Result<Client> {
        Client::open(self.address).await
    }

    /// Trains from the edge's own log; gives what is said. A running edge offers it 2 s later.
    async fn train(&self, lab: &Lab, more: &[&str]) -> io::Result<String> {
        // The log is written in batches, and the folder is looked at from time to time.
        tokio::time::sleep(READY).await;
        let log = lab.folder().join(format!("access-{}.log", self.address.port()));
        let mut command = Command::new(eyelet(lab)?);
        command.args(["dictionary", "train"]).arg(&self.file).args(["--rule", "app"]).args(more);
        command.arg("--from").arg(log);
        let done = finished(command).await?;
        tokio::time::sleep(READY + READY).await;
        Ok(String::from_utf8_lossy(&done.stdout).trim().replace('\n', "; "))
    }
}

/// Runs a program to its end in a thread of its own: what it talks to may be in this one.
async fn finished(mut command: Command) -> io::Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || tell.send(command.output()));
    let done = told.await.map_err(io::Error::other)??;
    match done.status.success() {
        true => Ok(done),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(io::Error::other(format!("{name}: {}: {}", done.status, said.trim())))
        }
    }
}

fn eyelet(lab: &Lab) -> io::Result<&Path> {
    lab.eyelet().ok_or_else(|| io::Error::other("there is no eyelet to measure"))
}

/// The field of a client that has this dictionary.
fn available(body: impl AsRef<[u8]>) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body.as_ref());
    format!(":{}:", STANDARD.encode(hash))
}

fn column(key: &'static str, heading: &str, decimals: usize) -> Column {
    // Headings live as long as the program, which ends after its table.
    Column { key, heading: String::leak(heading.to_owned()), decimals }
}

const CODINGS: [(&str, &str); 4] =
    [("identity", "identity"), ("gzip", "gzip"), ("br", "br"), ("zstd", "zstd")];
/// What a browser sends that has a dictionary.
const EVERY_CODING: &str = "gzip, deflate, br, zstd, dcb, dcz";

/// Whatever the load is while it is measured.
const SMALL: &str = "compress_effort = \"small\"\n";

/// What the program promises for a version's delta, and for a trained dictionary's offer.
const READY: Duration = Duration::from_secs(2);

/// Debian's apache2-doc.
const PAGES: &str = "/usr/share/doc/apache2-doc/manual/en";
