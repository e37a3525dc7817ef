//! Bytes by coding, through the real program: versions of bundles from the npm registry, small
//! JSON answers with a trained dictionary, the files of a source tree. Must not code anything.

mod material;
mod web;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Meter, Outcome};
use crate::board::{Board, Column, Sample};
use crate::lab::{Lab, Server, host_name};
use material::Files;
use web::{Client, Got};

/// What is compressed.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Also the files of a source tree, each a response
    pub tree: Option<PathBuf>,
    /// Leave out what `npm pack` fetches: bundles and JSON
    #[arg(long)]
    pub no_npm: bool,
    /// Answers of the JSON family, as many again teach the dictionary
    #[arg(long, default_value_t = 1_500)]
    pub answers: usize,
}

pub async fn run(lab: &Lab, options: &Options) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    if !options.no_npm {
        outcome.boards.push(bundles(lab).await?);
        let (board, note) = answers(lab, options.answers).await?;
        outcome.boards.push(board);
        outcome.notes.push(note);
    }
    if let Some(tree) = &options.tree {
        outcome.boards.push(files(lab, tree).await?);
    }
    outcome.notes.push("bytes are of bodies, without fields, frames and TLS".into());
    Ok(outcome)
}

/// A returning browser's bytes of the next version.
async fn bundles(lab: &Lab) -> io::Result<Board> {
    let pairs = material::bundles(lab.folder())?;
    let edge = Edge::start(lab, &pairs.served, "dictionary = \"/bundles/*\"\n").await?;
    let mut client = edge.client().await?;
    let columns: Vec<Column> =
        pairs.names.iter().map(|name| column(name, &format!("{name} bytes"))).collect();
    let mut board = Board::new("version 2 of bundles, by coding", &columns);
    let mut rows: Vec<(&str, Vec<(&'static str, f64)>)> = Vec::new();
    for (label, accept) in CODINGS {
        let mut figures = Vec::new();
        for name in &pairs.names {
            let got = client.get(&format!("/plain/{name}.2"), accept, None).await?;
            figures.push((*name, got.bytes as f64));
        }
        rows.push((label, figures));
    }
    let mut figures = Vec::new();
    for name in &pairs.names {
        let (one, two) = (format!("/bundles/{name}.1"), format!("/bundles/{name}.2"));
        client.get(&one, "gzip", None).await?;
        client.get(&two, "gzip", None).await?;
        tokio::time::sleep(READY).await;
        let has = pairs.served.get(&one).map(available);
        let got = client.get(&two, "gzip, br, zstd, dcb, dcz", has.as_deref()).await?;
        expect(&got, "dcz")?;
        figures.push((*name, got.bytes as f64));
    }
    rows.push(("dcz, 2 s later", figures));
    for (label, figures) in rows {
        board.add(label, Sample { figures, ..Sample::default() });
    }
    Ok(board)
}

/// Many small answers, half of which were never seen by the dictionary.
async fn answers(lab: &Lab, count: usize) -> io::Result<(Board, String)> {
    let served = material::answers(lab.folder(), count)?;
    let edge = Edge::start(lab, &served, "").await?;
    let mut client = edge.client().await?;
    // The even ones are asked for, so that the log names them; the odd ones are measured.
    for n in (0..2 * count).step_by(2) {
        client.get(&format!("/api/{n}"), "identity", None).await?;
    }
    // The log is written in batches.
    tokio::time::sleep(READY).await;
    let said = edge.train(lab).await?;
    let columns = [column("bytes", "bytes"), column("cpu", "CPU-ms a MB")];
    let mut board = Board::new(format!("{count} JSON answers, by coding"), &columns);
    for (label, accept) in CODINGS {
        let sample = measure(&edge, &mut client, count, accept, None).await?;
        board.add(label, sample);
    }
    // A new start finds the dictionary at once.
    drop(client);
    let edge = edge.again(lab)?;
    let mut client = edge.client().await?;
    let got = client.get("/api/1", "gzip", None).await?;
    let path = got.link.ok_or_else(|| io::Error::other("no dictionary is offered"))?;
    let dictionary = client.get(&path, "identity", None).await?;
    let download = client.get(&path, "br", None).await?.bytes;
    let has = available(&dictionary.body);
    let accept = "gzip, br, zstd, dcb, dcz";
    let sample = measure(&edge, &mut client, count, accept, Some(&has)).await?;
    board.add("dcz, trained", sample);
    let note = format!(
        "the dictionary: {} bytes, {download} to download; {}",
        dictionary.bytes,
        said.replace('\n', "; ")
    );
    Ok((board, note))
}

async fn measure(
    edge: &Edge,
    client: &mut Client,
    count: usize,
    accept: &str,
    has: Option<&str>,
) -> io::Result<Sample> {
    let meter = Meter::start(&edge.server.child);
    let (mut bytes, mut identity) = (0, 0);
    for n in (1..2 * count).step_by(2) {
        let path = format!("/api/{n}");
        identity += edge.served.get(&path).map_or(0, |body| body.len());
        bytes += client.get(&path, accept, has).await?.bytes;
    }
    let megabytes = identity as f64 / 1e6;
    let figures = vec![("bytes", bytes as f64), ("cpu", meter.read().0 / 1e3 / megabytes)];
    Ok(Sample { figures, ..Sample::default() })
}

/// The files of a tree, each asked for once.
async fn files(lab: &Lab, tree: &Path) -> io::Result<Board> {
    let served = material::tree(tree)?;
    let identity: usize = served.values().map(|body| body.len()).sum();
    let columns = [column("bytes", "bytes"), column("cpu", "CPU-ms a MB")];
    let title = format!("{} files of {}, {identity} bytes", served.len(), tree.display());
    let mut board = Board::new(title, &columns);
    for effort in ["auto", "fast", "even", "small"] {
        let terms = format!("compress_effort = \"{effort}\"\n");
        let edge = Edge::start(lab, &served, &terms).await?;
        let mut client = edge.client().await?;
        for (label, accept) in CODINGS.into_iter().chain([("zstd or br", "gzip, br, zstd")]) {
            let meter = Meter::start(&edge.server.child);
            let mut bytes = 0;
            for path in served.keys() {
                bytes += client.get(path, accept, None).await?.bytes;
            }
            let cpu = meter.read().0 / 1e3 / (identity as f64 / 1e6);
            let figures = vec![("bytes", bytes as f64), ("cpu", cpu)];
            let sample = Sample { figures, ..Sample::default() };
            board.add(&format!("{label}, {effort}"), sample);
        }
    }
    Ok(board)
}

/// An edge in front of an origin with some files.
struct Edge {
    server: Server,
    served: Arc<Files>,
    address: SocketAddr,
    file: PathBuf,
}

impl Edge {
    async fn start(lab: &Lab, served: &Files, terms: &str) -> io::Result<Self> {
        let served = Arc::new(served.clone());
        let origin = web::serve(served.clone()).await?;
        let address = lab.free_address()?;
        let file = lab.folder().join(format!("compression-{}.toml", address.port()));
        let name = format!("store-{}", address.port());
        let text = format!(
            "[[listener]]\naddress = \"{address}\"\n[[rule]]\nname = \"app\"\n\
             sni = \"{}\"\naction = \"terminate\"\ncertificate = \"{}\"\nkey = \"{}\"\n\
             upstream = \"http://{origin}\"\n{terms}[dictionary]\npath = \"{name}\"\n\
             [log]\naccess = \"access-{}.log\"\n",
            host_name(0),
            crate::lab::CERTIFICATE,
            crate::lab::KEY,
            address.port()
        );
        std::fs::write(&file, text)?;
        let server = start(lab, &file, address)?;
        Ok(Self { server, served, address, file })
    }

    async fn client(&self) -> io::Result<Client> {
        Client::open(self.address).await
    }

    /// On a thread of its own: the samples are asked of the origin in this one.
    async fn train(&self, lab: &Lab) -> io::Result<String> {
        let log = lab.folder().join(format!("access-{}.log", self.address.port()));
        let mut command = std::process::Command::new(eyelet(lab)?);
        command.args(["dictionary", "train"]).arg(&self.file).args(["--rule", "app", "--from"]);
        command.arg(log);
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || tell.send(command.output()));
        let done = told.await.map_err(io::Error::other)??;
        if !done.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()));
        }
        Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
    }

    fn again(self, lab: &Lab) -> io::Result<Self> {
        let Self { server, served, address, file } = self;
        drop(server);
        let server = start(lab, &file, address)?;
        Ok(Self { server, served, address, file })
    }
}

fn start(lab: &Lab, file: &Path, address: SocketAddr) -> io::Result<Server> {
    let command: Vec<OsString> = vec![eyelet(lab)?.into(), "serve".into(), file.into()];
    lab.start_server("eyelet-compression", &command, address)
}

fn eyelet(lab: &Lab) -> io::Result<&Path> {
    lab.eyelet().ok_or_else(|| io::Error::other("there is no eyelet to measure"))
}

fn available(body: impl AsRef<[u8]>) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body.as_ref());
    format!(":{}:", STANDARD.encode(hash))
}

fn expect(got: &Got, coding: &str) -> io::Result<()> {
    match &got.coding {
        Some(found) if found == coding => Ok(()),
        other => Err(io::Error::other(format!("expected {coding}, got {other:?}"))),
    }
}

fn column(key: &'static str, heading: &str) -> Column {
    // Headings live as long as the program, which ends after its table.
    Column { key, heading: String::leak(heading.to_owned()), decimals: 0 }
}

const CODINGS: [(&str, &str); 4] =
    [("identity", "identity"), ("gzip", "gzip"), ("br", "br"), ("zstd", "zstd")];

/// What the program promises for a version's delta.
const READY: Duration = Duration::from_secs(2);
