//! A Subversion checkout over a long line: with Apache alone, with Eyelet at the server, and with a
//! pair of edges, in bytes, seconds and CPU.

mod pair;
mod relay;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::compression::apache::{self, Apache};
use super::compression::edge::{EVERY_CODING, column, eyelet};
use super::compression::material;
use super::compression::replay::{self, Browser, RecordedRequest};
use super::compression::tap::Tap;
use super::{Findings, Meter, settle};
use crate::board::{Board, Column, Sample};
use crate::child::of;
use crate::lab::{LOCALHOST, Lab, Server};
use relay::{LineCounts, Rate};

/// Options of the scenario.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The tree's newer revision [default: npm's three 0.170.0]
    #[arg(long, value_name = "DIR", requires = "older")]
    tree: Option<PathBuf>,
    /// Its older revision [default: npm's three 0.169.0]
    #[arg(long, value_name = "DIR", requires = "tree")]
    older: Option<PathBuf>,
    /// Round trips of the line in milliseconds: a column of seconds for each
    #[arg(long, value_delimiter = ',', default_value = "0,20,50", value_name = "MS,...")]
    delay_ms: Vec<u64>,
    /// Rate of the line, each way, as in 4mbit; left out: unlimited
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Files of the tree that are used, the first ones by name; left out: all
    #[arg(long, value_name = "N")]
    files: Option<usize>,
    /// Rounds
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// `compress_effort` of the edge at the server
    #[arg(long, default_value = "small")]
    effort: String,
    /// Another eyelet binary for the near edge
    #[arg(long, value_name = "FILE")]
    near: Option<PathBuf>,
}

/// Runs the scenario.
pub async fn run(lab: &Lab, options: &Options) -> io::Result<Findings> {
    let (older, newer) = trees(lab, options)?;
    let (files, bytes) = extent(&newer)?;
    eprintln!("a repository of {files} files, {bytes} bytes");
    let apache = apache::start_revisions(lab, TRUNK, [&older, &newer]).await?;
    let near = options.near.as_deref().map_or_else(|| eyelet(lab), Ok)?;
    let scene = Scene { lab, apache, near, effort: &options.effort, rate: options.rate };
    let title = format!("A checkout of {files} files, {bytes} bytes");
    let mut board = Board::new(title, &columns(&options.delay_ms));
    let mut notes = Vec::new();
    for round in 0..options.rounds {
        for row in ROWS {
            match scene.row(row, &options.delay_ms).await {
                Ok((sample, note)) => {
                    eprintln!("round {} | {}: {note}", round + 1, row.label());
                    board.add(row.label(), sample);
                }
                Err(why) => notes.push(format!("{} is left out: {why}", row.label())),
            }
        }
    }
    Ok(Findings { boards: vec![board], notes })
}

/// The parts between svn and the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    /// TLS compression is computed from the records of a real checkout.
    TlsCompression {
        gzip: bool,
    },
    Apache {
        gzip: bool,
    },
    Far,
    /// The requests of a checkout, by an HTTP/2 client in the place of the near edge.
    Client,
    /// `Client` after a checkout of the older revision, with its files as dictionaries.
    ClientAgain,
    /// Both edges, with nothing learned.
    Pair,
    /// `Pair` after a checkout of revision 2, the older one.
    PairAgain,
    /// `Pair` after a checkout of the same revision.
    PairSame,
}

const ROWS: [Row; 10] = [
    Row::TlsCompression { gzip: true },
    Row::Apache { gzip: true },
    Row::Apache { gzip: false },
    Row::TlsCompression { gzip: false },
    Row::Far,
    Row::Client,
    Row::ClientAgain,
    Row::Pair,
    Row::PairAgain,
    Row::PairSame,
];

impl Row {
    const fn label(self) -> &'static str {
        match self {
            Self::TlsCompression { gzip: true } => "1 TLS compression and gzip (computed)",
            Self::Apache { gzip: true } => "2 svn alone over TLS, gzip",
            Self::Apache { gzip: false } => "3 svn alone over TLS",
            Self::TlsCompression { gzip: false } => "4 TLS compression (computed)",
            Self::Far => "5 Eyelet at the server",
            Self::Client => "6 the same requests, HTTP/2",
            Self::ClientAgain => "7 HTTP/2, the next revision",
            Self::Pair => "8 a pair, first checkout",
            Self::PairAgain => "9 a pair, the next revision",
            Self::PairSame => "10 a pair, the same revision",
        }
    }
}

struct Scene<'a> {
    lab: &'a Lab,
    apache: Apache,
    /// The near edge's program.
    near: &'a Path,
    /// The effort of the far edge.
    effort: &'a str,
    /// The rate of the line.
    rate: Option<Rate>,
}

impl Scene<'_> {
    /// A checkout for each delay. Bytes and CPU are those of the first.
    async fn row(&self, row: Row, delays_ms: &[u64]) -> io::Result<(Sample, String)> {
        if let Row::TlsCompression { gzip } = row {
            return self.computed(gzip, delays_ms.len()).await;
        }
        let mut figures = Vec::new();
        for (at, ms) in delays_ms.iter().enumerate() {
            let measured = self.measure(row, Duration::from_millis(*ms)).await?;
            if at == 0 {
                figures.extend(measured.figures());
            }
            figures.push((seconds_key(at), measured.seconds));
            settle().await;
        }
        let note = format!("{figures:.2?}");
        Ok((Sample { figures, ..Sample::default() }, note))
    }

    /// The bytes of TLS compression. Its seconds are those in which the line carries what is read,
    /// and nothing else.
    async fn computed(&self, gzip: bool, delays: usize) -> io::Result<(Sample, String)> {
        let target = if gzip { self.apache.gzip } else { self.apache.identity };
        let tap = Tap::open(self.lab, target).await?;
        apache::checkout(self.lab, TRUNK, tap.address.port(), gzip).await?;
        settle().await;
        let (sizes, _) = tap.end();
        let mut figures =
            vec![("read", megabytes(sizes.read)), ("written", megabytes(sizes.written))];
        if let Some(rate) = self.rate {
            let seconds = rate.time(sizes.read).as_secs_f64();
            figures.extend((0..delays).map(|at| (seconds_key(at), seconds)));
        }
        let note = format!("{figures:.2?}");
        Ok((Sample { figures, ..Sample::default() }, note))
    }

    async fn measure(&self, row: Row, round_trip: Duration) -> io::Result<Measured> {
        let Apache { plain, identity, gzip, .. } = self.apache;
        let mut edges = Vec::new();
        let target = match row {
            Row::Apache { gzip: true } => gzip,
            Row::Apache { gzip: false } => identity,
            _ => {
                edges.push(pair::far(self.lab, plain, self.effort)?);
                edges[0].address
            }
        };
        let (line, counts) = relay::open(target, round_trip, self.rate).await?;
        let near = match row {
            Row::Client | Row::ClientAgain => {
                return self.replayed(row == Row::ClientAgain, line, &counts, &edges[0]).await;
            }
            Row::Apache { .. } | Row::Far | Row::TlsCompression { .. } => None,
            Row::Pair | Row::PairAgain | Row::PairSame => {
                Some(pair::near(self.lab, self.near, line.port())?)
            }
        };
        let url = match &near {
            Some(near) => format!("http://{}/svn/{TRUNK}", near.address),
            None => format!("https://{LOCALHOST}:{}/svn/{TRUNK}", line.port()),
        };
        let learned = match row {
            Row::PairAgain => Some("2"),
            Row::PairSame => Some("3"),
            _ => None,
        };
        let accepts_gzip = row != (Row::Apache { gzip: false });
        if let Some(revision) = learned {
            let words = ["--revision", revision];
            apache::checkout_of(self.lab, &url, &words, accepts_gzip).await?;
            tokio::time::sleep(LEARN_TIME).await;
        }
        self.checkout(&url, accepts_gzip, &counts, edges.first(), near.as_ref()).await
    }

    /// Fetches the files that svn asks for, by one HTTP/2 connection.
    async fn replayed(
        &self,
        again: bool,
        line: SocketAddr,
        counts: &LineCounts,
        far: &Server,
    ) -> io::Result<Measured> {
        let mut known = HashMap::new();
        if again {
            let requests = self.recorded("2").await?;
            let browser = Browser::open(line).await?;
            known = browser.replay(&requests, "identity", |_| None).await?.dictionaries;
            tokio::time::sleep(LEARN_TIME).await;
        }
        let requests = self.recorded("3").await?;
        let before = counts.now();
        let meters = [&self.apache.server, far].map(|server| Meter::start(&server.child));
        let browser = Browser::open(line).await?;
        let has = |path: &str| known.get(&pattern(path)?).cloned();
        let done = browser.replay(&requests, EVERY_CODING, has).await?;
        eprintln!("{:?}", done.codings);
        settle().await;
        let [apache, far] = meters.map(|meter| Some(meter.read().0 / 1e6));
        Ok(Measured::since(before, counts, done.seconds, [apache, far, None]))
    }

    /// The requests of a checkout of that revision.
    async fn recorded(&self, revision: &str) -> io::Result<Vec<RecordedRequest>> {
        let tap = Tap::open(self.lab, self.apache.identity).await?;
        let url = format!("https://{LOCALHOST}:{}/svn/{TRUNK}", tap.address.port());
        apache::checkout_of(self.lab, &url, &["--revision", revision], false).await?;
        settle().await;
        replay::requests(&tap.end().1)
    }

    async fn checkout(
        &self,
        url: &str,
        gzip: bool,
        counts: &LineCounts,
        far: Option<&Server>,
        near: Option<&Server>,
    ) -> io::Result<Measured> {
        settle().await;
        let before = counts.now();
        let meters = [Some(&self.apache.server), far, near]
            .map(|server| server.map(|server| Meter::start(&server.child)));
        let seconds = apache::checkout_of(self.lab, url, &[], gzip).await?;
        settle().await;
        let cpu = meters.map(|meter| meter.map(|meter| meter.read().0 / 1e6));
        Ok(Measured::since(before, counts, seconds, cpu))
    }
}

struct Measured {
    read: u64,
    written: u64,
    connections: u64,
    seconds: f64,
    /// The CPU time of Apache, of the far edge and of the near one.
    cpu: [Option<f64>; 3],
}

impl Measured {
    fn since(before: [u64; 3], counts: &LineCounts, seconds: f64, cpu: [Option<f64>; 3]) -> Self {
        let after = counts.now();
        let [read, written, connections] = std::array::from_fn(|at| after[at] - before[at]);
        Self { read, written, connections, seconds, cpu }
    }

    fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = vec![
            ("read", megabytes(self.read)),
            ("written", megabytes(self.written)),
            ("connections", self.connections as f64),
        ];
        let keys = ["cpu_apache", "cpu_far", "cpu_near"].into_iter();
        figures.extend(keys.zip(self.cpu).filter_map(|(key, cpu)| Some((key, cpu?))));
        figures
    }
}

/// The `match` of the file that a request is for, as the edge gives it.
fn pattern(path: &str) -> Option<String> {
    let (_, file) = path.strip_prefix("/svn/!svn/rvr/")?.split_once('/')?;
    let mut plain = String::new();
    for c in file.chars().map(|c| if "(){}:?+\\\"#[".contains(c) { '*' } else { c }) {
        if c != '*' || !plain.ends_with('*') {
            plain.push(c);
        }
    }
    Some(format!("/svn/!svn/rvr/*/{plain}"))
}

fn columns(delays_ms: &[u64]) -> Vec<Column> {
    let mut columns = vec![
        Column { key: "read", heading: "MB read", decimals: 2 },
        Column { key: "written", heading: "MB written", decimals: 3 },
        Column { key: "connections", heading: "connections", decimals: 0 },
        Column { key: "cpu_apache", heading: "CPU-s Apache", decimals: 2 },
        Column { key: "cpu_far", heading: "CPU-s far", decimals: 2 },
        Column { key: "cpu_near", heading: "CPU-s near", decimals: 2 },
    ];
    let seconds = delays_ms.iter().enumerate();
    columns.extend(seconds.map(|(at, ms)| column(seconds_key(at), &format!("s at {ms} ms"), 1)));
    columns
}

/// Leaked: a few keys, in a program that ends soon after its table.
fn seconds_key(at: usize) -> &'static str {
    String::leak(format!("seconds_{at}"))
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Both revisions, the older one first.
fn trees(lab: &Lab, options: &Options) -> io::Result<(PathBuf, PathBuf)> {
    let (older, newer) = match (&options.older, &options.tree) {
        (Some(older), Some(newer)) => (whole(older)?, whole(newer)?),
        _ => {
            let [older, newer] = VERSIONS.map(|v| material::fetch(lab.folder(), PACKAGE, v));
            (older?, newer?)
        }
    };
    match options.files {
        None => Ok((older, newer)),
        Some(count) => Ok((
            first(&older, &lab.folder().join("older"), count)?,
            first(&newer, &lab.folder().join("newer"), count)?,
        )),
    }
}

fn whole(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize().map_err(of(path))
}

/// Copies the first files of a tree.
fn first(tree: &Path, into: &Path, count: usize) -> io::Result<PathBuf> {
    for path in material::files_in(tree)?.into_iter().take(count) {
        let place = into.join(path.strip_prefix(tree).map_err(io::Error::other)?);
        std::fs::create_dir_all(place.parent().unwrap_or(into))?;
        std::fs::copy(path, place)?;
    }
    Ok(into.to_owned())
}

fn extent(tree: &Path) -> io::Result<(usize, usize)> {
    let files = material::tree(tree)?;
    Ok((files.len(), files.values().map(Vec::len).sum()))
}

/// The folder of the repository that is checked out.
const TRUNK: &str = "trunk";
/// Two real versions of one package: sources, with some binary files among them.
const PACKAGE: &str = "three";
const VERSIONS: [&str; 2] = ["0.169.0", "0.170.0"];
/// The time that the edges may take to store what has passed.
const LEARN_TIME: Duration = Duration::from_secs(3);
