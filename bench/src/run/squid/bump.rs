//! Bumped connections beside Squid: each origin has a certificate of its own, and robots see one
//! that was made after it. CPU of each connection, and memory of those that rest after a request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::super::{CONNECTIONS, Findings, in_time, order};
use super::scene::{Place, Program, Row, Scene, Span, Step, Visit};
use crate::board::{Board, Column, Sample, median, range};
use crate::lab::{Lab, LabAuthority, NAMES, Server};
use crate::procfs;

/// Runs the scenario.
pub async fn run(
    lab: &Lab,
    robots: usize,
    rounds: usize,
    conns: usize,
    span: Span,
) -> io::Result<Findings> {
    lab.write_authority(LabAuthority::Mint)?;
    let origins = lab.start_sites()?;
    let (scene, places) = Scene::new(lab, origins.address.port(), robots, &ROWS)?;
    let mut boards = Vec::new();
    for visit in VISITS {
        boards.push(warm(&scene, &places, visit, rounds, span).await?);
    }
    for visit in VISITS {
        boards.push(cold(&scene, &places, visit, rounds).await?);
    }
    let notes = boards.iter().flat_map(ratios).collect();
    boards.push(rest(&scene, &places, rounds, conns).await?);
    Ok(Findings { boards, notes })
}

/// Connections to origins that were visited before.
async fn warm(
    scene: &Scene<'_>,
    places: &[Place],
    visit: Visit,
    rounds: usize,
    span: Span,
) -> io::Result<Board> {
    let title = format!("Bumped, warm, {NAMES} origins, {}", visit.name());
    let mut board = Board::new(title, &CONNECTIONS);
    let mut servers = Vec::new();
    for place in places {
        servers.push(scene.start(place)?);
        scene.work(place, visit, Span::Connections(NAMES)).await;
    }
    for round in 0..rounds {
        for at in order(places.len(), round) {
            let sample = scene.measure(&places[at], &servers[at], visit, span).await;
            add(&mut board, &places[at], sample);
        }
    }
    Ok(board)
}

/// The first connection to each origin, by servers that were just started.
async fn cold(
    scene: &Scene<'_>,
    places: &[Place],
    visit: Visit,
    rounds: usize,
) -> io::Result<Board> {
    let title = format!("Bumped, cold, {NAMES} origins, {}", visit.name());
    let mut board = Board::new(title, &CONNECTIONS);
    for _ in 0..rounds.min(COLD_ROUNDS_MAX) {
        for place in places {
            let server = scene.start(place)?;
            let span = Span::Connections(NAMES);
            add(&mut board, place, scene.measure(place, &server, visit, span).await);
        }
    }
    Ok(board)
}

fn add(board: &mut Board, place: &Place, sample: Sample) {
    let (title, label) = (board.title(), place.row.label);
    eprintln!("{title} | {label}: {:.1} CPU-us", sample.figures[0].1);
    board.add(label, sample);
}

/// Eyelet's CPU over Squid's, round by round.
fn ratios(board: &Board) -> Vec<String> {
    let (squids, eyelets): (Vec<_>, Vec<_>) =
        ROWS.iter().partition(|row| row.program == Program::Squid);
    let pairs = eyelets.iter().flat_map(|eyelet| squids.iter().map(move |squid| (eyelet, squid)));
    let ratio = |(eyelet, squid): (&&Row, &&Row)| {
        let figures = [eyelet, squid].map(|row| board.figures(row.label, "cpu_us"));
        let [own, other] = &figures;
        let ratios: Vec<f64> = own.iter().zip(other).map(|(own, other)| own / other).collect();
        let (least, most) = range(&ratios).unwrap_or_default();
        let middle = median(&ratios).unwrap_or_default();
        let (title, eyelet, squid) = (board.title(), eyelet.label, squid.label);
        format!("{title}: {eyelet} / {squid}: {middle:.2} ({least:.2}-{most:.2}) by CPU")
    };
    pairs.map(ratio).collect()
}

/// Memory of connections that rest after a GET.
async fn rest(
    scene: &Scene<'_>,
    places: &[Place],
    rounds: usize,
    conns: usize,
) -> io::Result<Board> {
    let title = format!("Bumped, {NAMES} and {conns} connections that rest after a GET");
    let mut board = Board::new(title, &COLUMNS);
    for _ in 0..rounds.min(REST_ROUNDS_MAX) {
        for place in places {
            let server = scene.start(place)?;
            // Every certificate is there before the first reading.
            scene.work(place, Visit::Get, Span::Connections(NAMES)).await;
            let sample = hold(scene, place, &server, conns).await;
            eprintln!("{} | {}: {:.0} B", board.title(), place.row.label, sample.figures[0].1);
            board.add(place.row.label, sample);
        }
    }
    Ok(board)
}

/// Holds a connection to each origin, and then so many more to the same. The server's memory is
/// read when half of the origins have one, when all have, and at the end.
async fn hold(scene: &Scene<'_>, place: &Place, server: &Server, conns: usize) -> Sample {
    let robot = Arc::new(scene.robot(place, Visit::Get));
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let (mut held, mut sample) = (Vec::new(), Sample::default());
    let mut readings = [(0.0, procfs::Memory::default()); 3];
    for (to, reading) in [NAMES / 2, NAMES, NAMES + conns].into_iter().zip(&mut readings) {
        let mut tasks = JoinSet::new();
        for i in held.len()..to {
            let (gate, robot) = (Arc::clone(&gate), Arc::clone(&robot));
            tasks.spawn(async move {
                let _permit = gate.acquire_owned().await;
                in_time(robot.open(i)).await
            });
        }
        while let Some(opened) = tasks.join_next().await {
            match opened.expect("tasks do not panic") {
                Ok(stream) => held.push(stream),
                Err(e) => {
                    sample.errors += 1;
                    sample.first_error.get_or_insert_with(|| e.to_string());
                }
            }
        }
        tokio::time::sleep(REST).await;
        *reading = (held.len() as f64, procfs::memory(&server.child.family()));
    }
    let slope = |from: usize| {
        let [(before_n, before), (n, after)] = [readings[from], readings[from + 1]];
        (after.anon - before.anon) / (n - before_n).max(1.0)
    };
    let [_, _, (n, last)] = readings;
    sample.figures = vec![
        ("anon_slope_bytes", slope(1)),
        ("first_slope_bytes", slope(0)),
        ("rss_mib", last.rss / MIB),
        ("held", n),
    ];
    sample
}

const VISITS: [Visit; 2] = [Visit::Tls, Visit::Get];

const ROWS: [Row; 3] = [
    Row { label: "squid-stare", program: Program::Squid, step: Step::Stare },
    Row { label: "squid-bump", program: Program::Squid, step: Step::Bump },
    Row { label: "eyelet-mint", program: Program::Eyelet, step: Step::Stare },
];

const COLUMNS: [Column; 4] = [
    Column { key: "anon_slope_bytes", heading: "anon slope B", decimals: 0 },
    Column { key: "first_slope_bytes", heading: "first of its origin B", decimals: 0 },
    Column { key: "rss_mib", heading: "RSS MiB", decimals: 1 },
    Column { key: "held", heading: "held", decimals: 0 },
];

const MIB: f64 = 1024.0 * 1024.0;
const COLD_ROUNDS_MAX: usize = 3;
const REST_ROUNDS_MAX: usize = 3;
/// Concurrent handshakes. Of a greater burst heaps keep so much that it hides the slope.
const AT_ONCE: usize = 8;
/// Connections to origins end, and what a burst has left goes back to the system.
const REST: Duration = Duration::from_secs(3);
