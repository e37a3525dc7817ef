//! Requests that rest before their responses, by HTTP/2: their connection is parked with their
//! upstreams once nothing of any stream moves.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use serde_json::Value;

use super::two_resting::Scene;
use crate::support::two::{Two, beside, body, get, run};
use crate::support::web::head;
use crate::support::{expect, until};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A request at its upstream.
struct Asked {
    response: ResponseFuture,
    send: SendStream<Bytes>,
    app: TcpStream,
}

impl Asked {
    async fn new(scene: &Scene, two: &mut Two, request: http::Request<()>) -> Self {
        two.send = two.send.clone().ready().await.unwrap();
        let is_last = request.method() == "GET";
        let (response, send) = two.send.send_request(request, is_last).unwrap();
        let web = scene.web.clone();
        let taken = beside(move || {
            let mut app = web.app.take();
            head(&mut app);
            app
        });
        Self { response, send, app: taken.await }
    }

    /// The client says a part of the body, which the upstream gets in a chunk.
    async fn say(&mut self, text: &'static str) {
        self.send.send_data(text.into(), false).unwrap();
        let mut app = self.app.try_clone().unwrap();
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        beside(move || expect(&mut app, chunk.as_bytes())).await;
    }

    async fn answered(self) {
        let mut app = self.app;
        app.write_all(OK).unwrap();
        let response = self.response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(body(response).await.unwrap(), "hello");
    }
}

fn post() -> http::Request<()> {
    http::Request::post("https://app.test/wait").body(()).unwrap()
}

/// Beside a WebSocket: a long poll, and an upload that pauses.
#[test]
fn requests_that_wait_rest_and_are_answered() {
    let scene = Scene::new("");
    run(async {
        let mut two = scene.web.connect_two().await;
        let poll = Asked::new(&scene, &mut two, get("/wait")).await;
        scene.rest(1).await;
        let bytes = scene.metric("eyelet_parked_memory_bytes");
        assert!(bytes <= 900, "{bytes} bytes with the first");
        let _chat = scene.chat(&mut two).await;
        let mut upload = Asked::new(&scene, &mut two, post()).await;
        for part in ["one", "two", "three"] {
            scene.rest(1).await;
            upload.say(part).await;
        }
        scene.rest(1).await;
        upload.send.send_data(Bytes::new(), true).unwrap();
        let mut app = upload.app.try_clone().unwrap();
        beside(move || expect(&mut app, b"0\r\n\r\n")).await;
        scene.rest(1).await;
        let mut app = &poll.app;
        app.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").unwrap();
        scene.rest(1).await;
        poll.answered().await;
        scene.rest(1).await;
        upload.answered().await;
        scene.rest(1).await;
    });
    let is_line = |line: &Value| line["http"]["path"] == "/wait" && line["reason"] == "complete";
    until("both lines", || (scene.web.edge.count(is_line) == 2).then_some(()));
}

/// The deadline, the client's reset, and an upstream that closes.
#[test]
fn what_ends_a_request_at_rest_is_passed_on() {
    let scene = Scene::new("[http]\nupstream_timeout = \"5s\"\n");
    run(async {
        let mut two = scene.web.connect_two().await;
        let late = Asked::new(&scene, &mut two, get("/late")).await;
        scene.rest(1).await;
        assert_eq!(late.response.await.unwrap().status(), 504);
        let mut gone = Asked::new(&scene, &mut two, get("/gone")).await;
        let dead = Asked::new(&scene, &mut two, post()).await;
        scene.rest(1).await;
        gone.send.send_reset(Reason::CANCEL);
        assert_eq!(beside(move || gone.app.read(&mut [0]).unwrap_or(0)).await, 0);
        drop(dead.app);
        assert_eq!(dead.response.await.unwrap().status(), 502);
    });
    let said = scene.web.request_line("/late");
    assert_eq!(said["reason"], "upstream: upstream_timeout", "{said}");
    let ms = said["duration_ms"].as_u64().unwrap();
    assert!((5_000..30_000).contains(&ms), "{said}");
    assert_eq!(scene.web.request_line("/gone")["outcome"], "left");
    assert_eq!(scene.web.request_line("/wait")["outcome"], "failed");
}
