//! HTTP/2 at an upgrade: streams that are open, and how long a connection has been idle.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use bytes::Bytes;
use serde_json::Value;

use super::upgrade::Scene;
use crate::support::two::{self, Two};
use crate::support::web::head;
use crate::support::{Upstream, noise, until};

const BODY_BYTES: usize = 200_000;

/// An application whose responses to `/slow` and `/late` stop in the middle until something is
/// sent, for each of them. Others are answered at once.
fn app_of_two() -> (Upstream, [Sender<()>; 2]) {
    let ((go_on, wait), (late_goes_on, late)) = (channel(), channel());
    let (wait, late) = (Mutex::new(wait), Mutex::new(late));
    let app = Upstream::serve(move |mut stream| {
        while stream.peek(&mut [0]).is_ok_and(|length| length > 0) {
            let body = noise(BODY_BYTES, 1);
            let asked = head(&mut stream);
            let (first, second) = body.split_at(BODY_BYTES / 2);
            let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
            let mut sent = stream.write_all(said.as_bytes()).and_then(|()| stream.write_all(first));
            if asked.starts_with("GET /slow") {
                let _ = wait.lock().unwrap().recv();
            } else if asked.starts_with("GET /late") {
                let _ = late.lock().unwrap().recv();
            }
            sent = sent.and_then(|()| stream.write_all(second));
            if sent.is_err() {
                return;
            }
        }
    });
    (app, [go_on, late_goes_on])
}

fn app() -> (Upstream, Sender<()>) {
    let (app, [go_on, _]) = app_of_two();
    (app, go_on)
}

/// Makes the rule of HTTP decode what requests send, which is in the task of a request alone.
fn decode_requests(scene: &Scene) {
    // The last rule is that of HTTP.
    let text = std::fs::read_to_string(&scene.file).unwrap();
    scene.pki.folder.write("edge.toml", text + "decode_requests = true\n");
    let said = crate::support::output(&mut scene.command("reload"));
    assert!(said.status.success(), "{}", said.text);
}

/// Asks for `/slow`, and reads the part that comes at once. The request's body is decoded and does
/// not end, so the stream cannot move.
async fn begin(client: &mut Two) -> (h2::RecvStream, Vec<u8>, h2::SendStream<Bytes>) {
    client.send = client.send.clone().ready().await.unwrap();
    let mut request = two::get("/slow");
    request.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    let (response, upload) = client.send.send_request(request, false).unwrap();
    let (body, got) = first_half(response).await;
    (body, got, upload)
}

async fn first_half(response: h2::client::ResponseFuture) -> (h2::RecvStream, Vec<u8>) {
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut body, mut got) = (response.into_body(), Vec::new());
    while got.len() < BODY_BYTES / 2 {
        let piece: Bytes = body.data().await.unwrap().unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        got.extend_from_slice(&piece);
    }
    (body, got)
}

/// The stream ends in the old process, which also serves the next one of this connection until
/// then. The connection then moves.
#[test]
fn an_open_stream_ends_and_its_connection_moves() {
    let (app, go_on) = app();
    let mut scene = Scene::to(app, "workers = 1\n[limits]\ndrain_timeout = \"10m\"\n");
    decode_requests(&scene);
    two::run(async {
        let mut client = Two::connect(&scene.pki, scene.address()).await;
        let (mut body, mut got, upload) = begin(&mut client).await;
        assert_eq!(scene.upgrade(), 0, "it has an open stream");
        assert!(client.get("/beside").await.unwrap().1 == noise(BODY_BYTES, 1));
        go_on.send(()).unwrap();
        got.extend_from_slice(&two::read(&mut body).await.unwrap());
        assert!(got == noise(BODY_BYTES, 1), "{} bytes", got.len());
        drop((body, upload));
        // Long before the drain's time is over: nothing was left there.
        assert!(scene.edge.wait_exit_alone().success());
        assert!(client.get("/after").await.unwrap().1 == noise(BODY_BYTES, 1));
        scene.upgrade_whole();
        assert!(client.get("/again").await.unwrap().1 == noise(BODY_BYTES, 1));
        drop(client.send);
        assert!(client.driven.await.unwrap().is_ok(), "no GOAWAY came");
    });
}

/// The client is sent away, so that it asks the new process. Its open stream is not cut, and the
/// old process ends with it.
#[test]
fn a_stream_that_lasts_goes_on_behind_a_goaway() {
    let (app, go_on) = app();
    let mut scene = Scene::to(app, "workers = 1\n[limits]\ndrain_timeout = \"1s\"\n");
    decode_requests(&scene);
    two::run(async {
        let mut client = Two::connect(&scene.pki, scene.address()).await;
        let (mut body, mut got, upload) = begin(&mut client).await;
        assert_eq!(scene.upgrade(), 0);
        let refused = loop {
            match client.get("/beside").await {
                Ok(answer) => assert!(answer.1 == noise(BODY_BYTES, 1)),
                Err(refused) => break refused,
            }
        };
        assert!(refused.is_go_away() && refused.is_remote(), "{refused}");
        let mut next = Two::connect(&scene.pki, scene.address()).await;
        assert_eq!(next.get("/next").await.unwrap().0, 200);
        // Far longer than `drain_timeout`.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        assert!(scene.edge.is_running());
        go_on.send(()).unwrap();
        got.extend_from_slice(&two::read(&mut body).await.unwrap());
        assert!(got == noise(BODY_BYTES, 1), "{} bytes", got.len());
        drop(upload);
        assert!(scene.edge.wait_exit_alone().success());
    });
}

/// A stream that rests after the GOAWAY moves with its connection, which ends with that stream.
#[test]
fn a_stream_that_rests_behind_a_goaway_moves() {
    let (app, [go_on, late_goes_on]) = app_of_two();
    let mut scene = Scene::to(app, "workers = 1\n[limits]\ndrain_timeout = \"1s\"\n");
    decode_requests(&scene);
    two::run(async {
        let mut client = Two::connect(&scene.pki, scene.address()).await;
        let (mut body, _, upload) = begin(&mut client).await;
        client.send = client.send.clone().ready().await.unwrap();
        let (late, _) = client.send.send_request(two::get("/late"), true).unwrap();
        let (mut late, mut got) = first_half(late).await;
        assert_eq!(scene.upgrade(), 0, "a stream of it cannot move");
        let refused = loop {
            match client.get("/beside").await {
                Ok(answer) => assert!(answer.1 == noise(BODY_BYTES, 1)),
                Err(refused) => break refused,
            }
        };
        assert!(refused.is_go_away() && refused.is_remote(), "{refused}");
        go_on.send(()).unwrap();
        two::read(&mut body).await.unwrap();
        drop((body, upload));
        assert!(scene.edge.wait_exit_alone().success(), "the other stream moves");
        scene.upgrade_whole();
        late_goes_on.send(()).unwrap();
        got.extend_from_slice(&two::read(&mut late).await.unwrap());
        assert!(got == noise(BODY_BYTES, 1), "{} bytes", got.len());
        drop(late);
        // The connection ends by itself: it takes no other stream.
        assert!(client.driven.await.unwrap().is_ok());
    });
}

/// The idle times of all connections, as `[admin]` lists them.
fn idle_ms(socket: &Path) -> Option<Vec<u64>> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(b"GET /connections HTTP/1.0\r\n\r\n").ok()?;
    let mut said = String::new();
    stream.read_to_string(&mut said).ok()?;
    let (_, body) = said.split_once("\r\n\r\n")?;
    let listed: Vec<Value> = serde_json::from_str(body).ok()?;
    let parked = listed.iter().filter(|one| one["state"] == "parked");
    parked.map(|one| one["idle_ms"].as_u64()).collect()
}

/// A connection that was just parked has not been idle for half an hour, whether the new process
/// has a longer `idle_timeout` or a shorter one.
#[test]
fn another_idle_timeout_makes_no_connection_older() {
    const HALF_AN_HOUR_MS: u64 = 30 * 60 * 1000;
    let file = |hours: u32| {
        format!(
            "workers = 1\n[admin]\naddress = \"unix:admin.sock\"\n\
             [limits]\nidle_timeout = \"{hours}h\"\n"
        )
    };
    let mut scene = Scene::with(&file(2));
    let socket = scene.pki.folder.path().join("admin.sock");
    two::run(async {
        let _spliced = scene.spliced();
        let mut client = Two::connect(&scene.pki, scene.address()).await;
        assert_eq!(client.get("/").await.unwrap().0, 200);
        for hours in [5, 1] {
            scene.write(&file(hours));
            scene.upgrade_whole();
            let idle =
                until("both connections", || idle_ms(&socket).filter(|idle| idle.len() == 2));
            assert!(idle.iter().all(|ms| *ms < HALF_AN_HOUR_MS), "{hours} hours: {idle:?}");
        }
        assert_eq!(client.get("/").await.unwrap().0, 200);
    });
}
