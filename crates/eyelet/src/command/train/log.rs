//! Reads from an access log which requests the clients of a rule made.

use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use eyelet_sys::file::open_regular;
use serde::Deserialize;

/// A request that can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Visit {
    pub(super) host: Box<str>,
    pub(super) path: Box<str>,
}

#[derive(Deserialize)]
struct Line<'a> {
    rule: Option<&'a str>,
    sni: Option<&'a str>,
    #[serde(borrow)]
    http: Option<Http<'a>>,
}

#[derive(Deserialize)]
struct Http<'a> {
    method: &'a str,
    #[serde(borrow)]
    path: std::borrow::Cow<'a, str>,
    status: Option<u16>,
}

/// All requests of a rule in a log.
pub(super) fn read(path: &Path, rule: &str) -> io::Result<Vec<Visit>> {
    let mut visits = Vec::new();
    for line in BufReader::new(open_regular(path)?).lines() {
        visits.extend(visit(&line?, rule));
        if visits.len() >= VISITS_MAX {
            break;
        }
    }
    Ok(visits)
}

/// The requests that a log gets from now on, for some time.
pub(super) fn follow(path: &Path, rule: &str, time: Duration) -> io::Result<Vec<Visit>> {
    let end = Instant::now() + time;
    let mut file = open_regular(path)?;
    file.seek(SeekFrom::End(0))?;
    let mut reader = BufReader::new(file);
    let (mut visits, mut line) = (Vec::new(), String::new());
    while visits.len() < VISITS_MAX {
        let is_whole = reader.read_line(&mut line)? > 0 && line.ends_with('\n');
        if is_whole {
            visits.extend(visit(&line, rule));
            line.clear();
        } else if Instant::now() >= end {
            break;
        } else {
            std::thread::park_timeout(LOOK_INTERVAL);
        }
    }
    Ok(visits)
}

fn visit(line: &str, wanted: &str) -> Option<Visit> {
    let line: Line<'_> = serde_json::from_str(line).ok()?;
    let http = line.http.filter(|http| http.method == "GET" && http.status == Some(200))?;
    let host = line.sni.unwrap_or("localhost").into();
    let plain = http.path.starts_with('/') && http.path.bytes().all(|byte| byte.is_ascii_graphic());
    (line.rule == Some(wanted) && plain).then(|| Visit { host, path: (*http.path).into() })
}

const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Most requests that are read: some hundred megabytes of log.
const VISITS_MAX: usize = 1_000_000;
