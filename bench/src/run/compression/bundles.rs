//! Bytes of a bundle's next version for a returning browser.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::edge::{CODINGS, EVERY_CODING, EdgeProcess, READY, SMALL, available, column};
use super::material;
use super::web::{self, WebResponse};
use crate::board::{Board, Column, Sample};
use crate::lab::Lab;

pub async fn run(lab: &Lab) -> io::Result<(Board, Vec<String>)> {
    let pairs = material::bundles(lab.folder())?;
    let served = Arc::new(pairs.served);
    let origin = web::serve(Arc::clone(&served)).await?;
    let edge = EdgeProcess::start(lab, origin, &format!("{SMALL}dictionary = \"/bundles/*\"\n"))?;
    let mut client = edge.client().await?;
    let columns: Vec<Column> =
        pairs.names.iter().map(|name| column(name, &format!("{name} bytes"), 0)).collect();
    let mut board =
        Board::new("version 2 of bundles, bytes of bodies by coding, effort small", &columns);
    for (label, accept) in CODINGS {
        let mut figures = Vec::new();
        for name in &pairs.names {
            let got = client.get(&format!("/plain/{name}.2"), accept, None).await?;
            figures.push((*name, got.bytes as f64));
        }
        board.add(label, Sample { figures, ..Sample::default() });
    }
    let (mut figures, mut notes) = (Vec::new(), Vec::new());
    for name in &pairs.names {
        let (one, two) = (format!("/bundles/{name}.1"), format!("/bundles/{name}.2"));
        client.get(&one, "gzip", None).await?;
        client.get(&two, "gzip", None).await?;
        let seen = Instant::now();
        let has = served.get(&one).map(available);
        // Small deltas are made while the client waits. For a large one this asks again until it is
        // ready.
        while !is_delta(&client.get(&two, EVERY_CODING, has.as_deref()).await?) {
            if seen.elapsed() > WAIT_MAX {
                return Err(io::Error::other(format!("{name}: no delta in {WAIT_MAX:?}")));
            }
            tokio::time::sleep(STEP).await;
        }
        let ready = seen.elapsed();
        tokio::time::sleep(READY.saturating_sub(ready)).await;
        let got = client.get(&two, EVERY_CODING, has.as_deref()).await?;
        notes.push(format!("{name}: dcz {:.2} s after version 2 was seen", ready.as_secs_f64()));
        figures.push((*name, got.bytes as f64));
    }
    board.add("dcz, 2 s later", Sample { figures, ..Sample::default() });
    Ok((board, notes))
}

fn is_delta(got: &WebResponse) -> bool {
    got.coding.as_deref() == Some("dcz")
}

const STEP: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(20);
