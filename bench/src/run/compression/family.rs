//! Families of small responses: half of each trains a dictionary by the real command, and the other
//! half is measured.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::edge::{CODINGS, EVERY_CODING, EdgeProcess, SMALL, available, column};
use super::material::{self, ServedFiles};
use super::web::{self, WebClient};
use crate::board::{Board, Sample};
use crate::lab::Lab;
use crate::run::Meter;

/// Measures `count` JSON responses that did not train the dictionary.
pub async fn answers(lab: &Lab, count: usize) -> io::Result<(Board, Vec<String>)> {
    let served = material::answers(lab.folder(), count)?;
    family(lab, &format!("{count} JSON answers"), "/api/", served).await
}

/// Measures half of the pages of a folder.
pub async fn pages(lab: &Lab, folder: &Path) -> io::Result<(Board, Vec<String>)> {
    let served = material::pages(folder)?;
    let count = served.len() / 2;
    family(lab, &format!("{count} pages of {}", folder.display()), "/pages/", served).await
}

/// The bodies are served at `prefix` and 0 to n. Even ones train, odd ones are measured.
async fn family(
    lab: &Lab,
    what: &str,
    prefix: &str,
    served: ServedFiles,
) -> io::Result<(Board, Vec<String>)> {
    let served = Arc::new(served);
    let edge = EdgeProcess::start(lab, web::serve(Arc::clone(&served)).await?, SMALL)?;
    let mut client = edge.client().await?;
    for n in (0..served.len()).step_by(2) {
        client.get(&format!("{prefix}{n}"), "identity", None).await?;
    }
    // Trained before the others are requested: the log would name them too.
    let said = edge.train(lab, &[]).await?;
    let columns = [column("bytes", "bytes", 0), column("cpu", "CPU-ms a MB", 1)];
    let mut board =
        Board::new(format!("{what}, bytes of bodies by coding, effort small"), &columns);
    let measured: Vec<String> =
        (1..served.len()).step_by(2).map(|n| format!("{prefix}{n}")).collect();
    let identity: usize = measured.iter().filter_map(|path| served.get(path)).map(Vec::len).sum();
    let run = Run { edge: &edge, paths: &measured, identity };
    for (label, accept) in CODINGS {
        board.add(label, run.measure(&mut client, accept, None).await?);
    }
    let got = client.get(&measured[0], "gzip", None).await?;
    let path = got.link.ok_or_else(|| io::Error::other("no dictionary is offered"))?;
    let dictionary = client.get(&path, "identity", None).await?;
    let download = client.get(&path, "br", None).await?.bytes;
    let has = available(&dictionary.body);
    board.add("dcz, trained", run.measure(&mut client, EVERY_CODING, Some(&has)).await?);
    let note = format!(
        "{what}: the dictionary has {} bytes, {download} to download; {said}",
        dictionary.bytes
    );
    Ok((board, vec![note]))
}

struct Run<'a> {
    edge: &'a EdgeProcess,
    paths: &'a [String],
    identity: usize,
}

impl Run<'_> {
    async fn measure(
        &self,
        client: &mut WebClient,
        accept: &str,
        has: Option<&str>,
    ) -> io::Result<Sample> {
        let meter = Meter::start(&self.edge.server.child);
        let mut bytes = 0;
        for path in self.paths {
            bytes += client.get(path, accept, has).await?.bytes;
        }
        let cpu = meter.read().0 / 1e3 / (self.identity as f64 / 1e6);
        let figures = vec![("bytes", bytes as f64), ("cpu", cpu)];
        Ok(Sample { figures, ..Sample::default() })
    }
}
