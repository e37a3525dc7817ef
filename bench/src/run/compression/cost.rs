//! CPU a MB of responses, and their size after coding: Eyelet by coding and effort, and nginx's
//! gzip at level 6, over the same files, in turn.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::edge::EdgeProcess;
use super::options::Options;
use super::web::{self, WebClient};
use super::{checkout, material};
use crate::board::{Board, Column, Sample, median};
use crate::child::Child;
use crate::lab::{CERTIFICATE, KEY, Lab, Server};
use crate::peers;
use crate::run::Meter;
use crate::run::order;

/// A row: a server, and the codings that its client accepts.
struct Entry {
    label: String,
    accept: &'static str,
    /// The server whose identity row is the baseline of its coding.
    server: usize,
}

pub async fn run(lab: &Lab, options: &Options) -> io::Result<(Board, Vec<String>)> {
    let mut files = material::tree(&checkout::tree(lab, options)?)?;
    // No server codes shorter files.
    files.retain(|_, body| body.len() >= 512);
    let paths: Vec<String> = files.keys().cloned().collect();
    let megabytes = files.values().map(Vec::len).sum::<usize>() as f64 / 1e6;
    let origin = web::serve(Arc::new(files)).await?;
    let edges: Vec<EdgeProcess> = EFFORTS
        .iter()
        .map(|effort| EdgeProcess::start(lab, origin, &format!("compress_effort = \"{effort}\"\n")))
        .collect::<io::Result<_>>()?;
    let nginx = nginx(lab, origin).inspect_err(|e| eprintln!("nginx is left out: {e}")).ok();
    let mut servers: Vec<(&Child, SocketAddr)> =
        edges.iter().map(|edge| (&edge.server.child, edge.address)).collect();
    servers.extend(nginx.as_ref().map(|server| (&server.child, server.address)));
    let entries = entries(nginx.is_some());
    let title = format!("{} files, {megabytes:.1} MB, HTTP/1.1 over TLS", paths.len());
    let mut board = Board::new(title, &COLUMNS);
    for round in 0..options.rounds {
        let mut measured: Vec<Option<(f64, usize)>> = vec![None; entries.len()];
        for at in order(entries.len(), round) {
            let entry = &entries[at];
            let (child, address) = servers[entry.server];
            let mut client = WebClient::open(address).await?;
            let (meter, mut bytes) = (Meter::start(child), 0);
            for path in &paths {
                bytes += client.get(path, entry.accept, None).await?.bytes;
            }
            measured[at] = Some((meter.read().0 / 1e3 / megabytes, bytes));
        }
        let cpu = |at: usize| measured[at].map_or(0.0, |(cpu, _)| cpu);
        for (at, entry) in entries.iter().enumerate() {
            let own = entries
                .iter()
                .position(|other| other.server == entry.server && other.accept == "identity");
            let coding = cpu(at) - own.map_or(0.0, cpu);
            let bytes = measured[at].map_or(0, |(_, bytes)| bytes);
            let figures = vec![("coding", coding), ("cpu", cpu(at)), ("bytes", bytes as f64)];
            board.add(&entry.label, Sample { figures, ..Sample::default() });
        }
        eprintln!("round {}", round + 1);
    }
    let notes = against(&board, &entries);
    Ok((board, notes))
}

fn entries(with_nginx: bool) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (server, effort) in EFFORTS.iter().enumerate() {
        for accept in ["identity", "zstd", "br", "gzip"] {
            let label = format!("eyelet, {effort}, {accept}");
            entries.push(Entry { label, accept, server });
        }
    }
    if with_nginx {
        let server = EFFORTS.len();
        for (label, accept) in [("nginx, identity", "identity"), (YARDSTICK, "gzip")] {
            entries.push(Entry { label: label.into(), accept, server });
        }
    }
    entries
}

/// Each coding's cost and size relative to nginx's.
fn against(board: &Board, entries: &[Entry]) -> Vec<String> {
    let middle = |label: &str, key: &str| median(&board.figures(label, key));
    let ratio = |label: &str, key: &str| {
        let (own, yardstick) = (board.figures(label, key), board.figures(YARDSTICK, key));
        // Compared within a round, as a shared machine changes its speed between rounds.
        median(&own.iter().zip(&yardstick).map(|(own, theirs)| own / theirs).collect::<Vec<_>>())
    };
    let mut notes = Vec::new();
    for entry in entries.iter().filter(|entry| entry.accept != "identity") {
        let label = &*entry.label;
        if middle(YARDSTICK, "coding").is_none() || label == YARDSTICK {
            continue;
        }
        if let (Some(coding), Some(cpu), Some(bytes)) =
            (ratio(label, "coding"), ratio(label, "cpu"), ratio(label, "bytes"))
        {
            notes.push(format!(
                "{label}: {coding:.2} of nginx gzip-6's CPU for the coding, {cpu:.2} in all, \
                 {bytes:.3} of its bytes"
            ));
        }
    }
    notes
}

fn nginx(lab: &Lab, upstream: SocketAddr) -> io::Result<Server> {
    let program =
        peers::find_program("nginx").ok_or_else(|| io::Error::other("nginx is not installed"))?;
    let (address, folder) = (lab.free_address()?, lab.folder().display());
    let user = if rustix::process::geteuid().is_root() { "user root root;\n" } else { "" };
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let places = places.map(|place| format!("{place}_temp_path nginx-temporary;\n")).concat();
    let text = format!(
        "{user}daemon off;\nworker_processes 1;\npid nginx-{0}.pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 1000; }}\nhttp {{\naccess_log off;\n{places}\
         ssl_certificate {folder}/{CERTIFICATE};\nssl_certificate_key {folder}/{KEY};\n\
         ssl_protocols TLSv1.2 TLSv1.3;\nkeepalive_requests 100000000;\n\
         gzip on;\ngzip_comp_level 6;\ngzip_min_length 512;\ngzip_types *;\ngzip_proxied any;\n\
         upstream origin {{ server {upstream}; keepalive 4; keepalive_requests 100000000; }}\n\
         server {{\nlisten {address} ssl;\nlocation / {{ proxy_pass http://origin; \
         proxy_http_version 1.1; proxy_set_header Connection \"\"; \
         proxy_max_temp_file_size 0; }}\n}}\n}}\n",
        address.port()
    );
    let file = lab.folder().join(format!("nginx-{}.conf", address.port()));
    fs::write(&file, text)?;
    let command: Vec<OsString> = vec![
        program.into(),
        "-p".into(),
        lab.folder().into(),
        "-e".into(),
        "stderr".into(),
        "-c".into(),
        file.into(),
    ];
    lab.start_server("nginx-gzip", &command, address)
}

const EFFORTS: [&str; 3] = ["fast", "even", "small"];
const YARDSTICK: &str = "nginx, gzip-6";

const COLUMNS: [Column; 3] = [
    Column { key: "coding", heading: "CPU-ms a MB for the coding", decimals: 2 },
    Column { key: "cpu", heading: "in all", decimals: 2 },
    Column { key: "bytes", heading: "bytes", decimals: 0 },
];
