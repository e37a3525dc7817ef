//! A Subversion checkout over HTTPS: as it was while TLS compression existed, and as it is behind
//! Eyelet.

use std::io;
use std::path::{Path, PathBuf};

use super::apache::{self, Apache};
use super::edge::{EVERY_CODING, EdgeProcess, SMALL, available};
use super::material;
use super::options::Options;
use super::replay::{self, Browser, Checkout, RecordedRequest};
use super::tap::{self, Squeezed, Tap};
use super::web::WebClient;
use crate::board::{Board, Column, Sample};
use crate::lab::Lab;
use crate::run::settle;

pub async fn run(lab: &Lab, options: &Options) -> io::Result<(Board, Vec<String>)> {
    let tree = tree(lab, options)?;
    let mut trees = vec![(TRUNK, &*tree)];
    trees.extend(options.older.as_deref().map(|older| (OLDER, older)));
    eprintln!("a repository of {}", tree.display());
    let apache = apache::start(lab, &trees).await?;
    let (files, bytes) = extent(&tree)?;
    let title = format!("A checkout of {files} files, {bytes} bytes, of {}", tree.display());
    let mut board = Board::new(title, &COLUMNS);
    let (squeezed, _) = tapped(lab, &apache, true).await?;
    board.add("1 TLS compression + gzip (computed)", computed(squeezed));
    for (label, target, gzip) in [("2 gzip", apache.gzip, true), ("3 none", apache.identity, false)]
    {
        let (address, traffic) = tap::count(target).await?;
        let seconds = apache::checkout(lab, TRUNK, address.port(), gzip).await?;
        settle().await;
        board.add(label, sample(traffic.read(), traffic.written(), Some(seconds)));
    }
    let (squeezed, sent) = tapped(lab, &apache, false).await?;
    board.add("4 TLS compression alone (computed)", computed(squeezed));
    let requests = replay::requests(&sent)?;
    let mut notes = vec![through_svn(lab, &apache, &mut board).await?];
    for (label, terms) in [("5 Eyelet, h2, br", SMALL), ("5 the same, effort auto", "")] {
        let edge = EdgeProcess::start(lab, apache.plain, terms)?;
        let browser = Browser::open(edge.address).await?;
        let done = browser.replay(&requests, "gzip, deflate, br, zstd", |_| None).await?;
        notes.push(note(label, &done));
        board.add(label, sample(done.read, done.written, Some(done.seconds)));
    }
    notes.extend(trained(lab, options, &apache, &requests, &mut board).await?);
    Ok((board, notes))
}

/// The given tree, or a generated one.
pub fn tree(lab: &Lab, options: &Options) -> io::Result<PathBuf> {
    match &options.tree {
        Some(tree) => tree.canonicalize(),
        None => material::made_up(lab.folder()),
    }
}

fn extent(tree: &Path) -> io::Result<(usize, usize)> {
    let files = material::tree(tree)?;
    Ok((files.len(), files.values().map(Vec::len).sum()))
}

/// A checkout through the tap. Returns its sizes and what the client sent.
async fn tapped(lab: &Lab, apache: &Apache, gzip: bool) -> io::Result<(Squeezed, Vec<Vec<u8>>)> {
    let tap = Tap::open(lab, if gzip { apache.gzip } else { apache.identity }).await?;
    apache::checkout(lab, TRUNK, tap.address.port(), gzip).await?;
    settle().await;
    Ok(tap.end())
}

/// The real client uses HTTP/1.1 and gzip with any server.
async fn through_svn(lab: &Lab, apache: &Apache, board: &mut Board) -> io::Result<String> {
    let edge = EdgeProcess::start(lab, apache.plain, SMALL)?;
    let (address, traffic) = tap::count(edge.address).await?;
    let seconds = apache::checkout(lab, TRUNK, address.port(), true).await?;
    settle().await;
    board.add("2 by Eyelet: svn, gzip", sample(traffic.read(), traffic.written(), Some(seconds)));
    Ok("rows 1 and 4 are computed over the records of a real checkout: one zlib-6 stream a \
        connection and direction, flushed at each record; rows 5 and 6 are the recorded requests \
        again, over one HTTP/2 connection"
        .into())
}

/// Trains a dictionary from an earlier checkout's access log, by the real command.
async fn trained(
    lab: &Lab,
    options: &Options,
    apache: &Apache,
    requests: &[RecordedRequest],
    board: &mut Board,
) -> io::Result<Vec<String>> {
    let edge = EdgeProcess::start(lab, apache.plain, SMALL)?;
    let earlier = if options.older.is_some() { OLDER } else { TRUNK };
    apache::checkout(lab, earlier, edge.address.port(), true).await?;
    let said = edge.train(lab, &["--match", "/svn/*"]).await?;
    let mut browser = Browser::open(edge.address).await?;
    let any = requests.iter().find(|request| request.is_get());
    let any = any.ok_or_else(|| io::Error::other("the checkout has no GET"))?;
    let path = replay::offered(&browser.get(any.path()).await?.headers)
        .ok_or_else(|| io::Error::other("no dictionary is offered"))?;
    let plain = WebClient::open(edge.address).await?.get(&path, "identity", None).await?;
    let has = available(&plain.body);
    // The row includes the download of the dictionary.
    let mut browser = Browser::open(edge.address).await?;
    let download = browser.get(&path).await?.body.len();
    let done = browser.replay(requests, EVERY_CODING, |_| Some(has.clone())).await?;
    let label = "6 Eyelet, h2, trained dictionary";
    board.add(label, sample(done.read, done.written, Some(done.seconds)));
    let dictionary = format!(
        "the dictionary, of the {} checkout: {} bytes, {download} to download, which is in the \
         row; {said}",
        if options.older.is_some() { "older tree's" } else { "same tree's" },
        plain.bytes
    );
    Ok(vec![note(label, &done), dictionary])
}

fn note(label: &str, done: &Checkout) -> String {
    let codings: Vec<String> =
        done.codings.iter().map(|(coding, count)| format!("{count} {coding}")).collect();
    format!("{label}: {} responses", codings.join(", "))
}

fn computed(squeezed: Squeezed) -> Sample {
    sample(squeezed.read, squeezed.written, None)
}

fn sample(read: u64, written: u64, seconds: Option<f64>) -> Sample {
    let mut figures = vec![
        ("total", (read + written) as f64 / 1e6),
        ("read", read as f64 / 1e6),
        ("written", written as f64 / 1e6),
    ];
    figures.extend(seconds.map(|seconds| ("seconds", seconds)));
    Sample { figures, ..Sample::default() }
}

const COLUMNS: [Column; 4] = [
    Column { key: "total", heading: "MB in all", decimals: 3 },
    Column { key: "read", heading: "MB read", decimals: 3 },
    Column { key: "written", heading: "MB written", decimals: 3 },
    Column { key: "seconds", heading: "seconds", decimals: 1 },
];

const TRUNK: &str = "trunk";
const OLDER: &str = "older";
