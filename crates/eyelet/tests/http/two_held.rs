//! Streams of HTTP/2 that are held until somebody decides: they rest with their connection, which
//! is parked meanwhile and may move to another process.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::Request;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::held_requests::Scene;
use super::resting::{ADMIN, admin, listed};
use crate::support::client::Offer;
use crate::support::two::{Two, body, run};
use crate::support::until;

/// A request whose answer is waited for.
type Waiting = (ResponseFuture, SendStream<Bytes>);

/// Begins a request to app.test. `sent`: the body, and whether it ends there.
async fn begin(
    two: &mut Two,
    method: &str,
    path: &str,
    sent: Option<(&'static str, bool)>,
) -> Waiting {
    let uri = format!("https://app.test{path}");
    let mut request = Request::builder().method(method).uri(uri);
    if method == "POST" {
        let whole = sent.filter(|(_, is_last)| *is_last);
        request = request.header("content-length", whole.map_or(LONG, |(text, _)| text.len()));
    }
    two.send = two.send.clone().ready().await.unwrap();
    let is_last = method != "POST";
    let (answer, mut send) = two.send.send_request(request.body(()).unwrap(), is_last).unwrap();
    if let Some((text, is_last)) = sent {
        send.send_data(text.into(), is_last).unwrap();
    }
    (answer, send)
}

/// Bytes of a body that is sent later.
const LONG: usize = 100_000;

async fn heard(answer: ResponseFuture) -> (u16, String) {
    let response = answer.await.unwrap();
    let status = response.status().as_u16();
    (status, String::from_utf8(body(response).await.unwrap().to_vec()).unwrap())
}

/// Lets the client's connection write and read for a while.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

/// Waits until so many held streams rest on the only connection.
fn rests(scene: &Scene, count: u64) -> Value {
    until("its streams to rest", || {
        let one = listed(&scene.pki.folder.path().join("admin.sock"))?.into_iter().next()?;
        let is_it = one["state"] == "parked" && one["resting"] == json!({ "held": count });
        is_it.then_some(one)
    })
}

#[test]
fn held_streams_rest_and_each_goes_on_by_its_verdict() {
    let scene = Scene::new(ADMIN);
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        let one = begin(&mut two, "POST", "/api/one?x=1", Some(("hello", true))).await;
        let other = begin(&mut two, "DELETE", "/api/two", None).await;
        let (late, mut more) = begin(&mut two, "POST", "/api/late", None).await;
        assert_eq!(two.get("/read").await.unwrap().1, "GET /read with 0");
        scene.waiting("POST /api/one", 1);
        let shown = rests(&scene, 3);
        let requests: Vec<_> = [("POST", "/api/one"), ("DELETE", "/api/two"), ("POST", "/api/late")]
            .map(|(method, path)| {
                json!({"kind": "held", "method": method, "path": path, "upstream": null})
            })
            .into();
        assert_eq!(shown["requests"], json!(requests), "{shown}");
        let socket = scene.pki.folder.path().join("admin.sock");
        let metrics = admin(&socket, "GET /metrics").unwrap();
        assert!(metrics.contains("\neyelet_streams{state=\"serving\",kind=\"held\"} 0\n"));
        assert!(metrics.contains("\neyelet_streams{state=\"resting\",kind=\"held\"} 3\n"));
        scene.allow(&["--path", "/api/one"]);
        assert_eq!(heard(one.0).await, (200, "POST /api/one?x=1 with 5".into()));
        // The others rest on.
        rests(&scene, 2);
        let said = scene.held(&["refuse", "app.test", "--path", "/api/two"]);
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        let (status, page) = heard(other.0).await;
        assert!(status == 403 && page.contains("held, and refused"), "{status}: {page}");
        rests(&scene, 1);
        // What came of a body meanwhile waits, too.
        more.send_data(Bytes::from(vec![b'x'; LONG / 2]), false).unwrap();
        settle().await;
        scene.waiting("POST /api/late", 1);
        scene.allow(&["--path", "/api/late"]);
        more.send_data(Bytes::from(vec![b'x'; LONG - LONG / 2]), true).unwrap();
        assert_eq!(heard(late).await, (200, format!("POST /api/late with {LONG}")));
    });
    let line = scene.edge.line("one", |line| line["http"]["path"] == "/api/one?x=1");
    assert_eq!((&line["rule"], &line["outcome"]), (&"ask".into(), &"terminated".into()), "{line}");
    assert_eq!(line["held"]["by"], "terminal", "{line}");
    let times = (line["duration_ms"].as_u64().unwrap(), line["held"]["ms"].as_u64().unwrap());
    assert!(times.0 >= times.1 && times.1 >= 1_000, "{line}");
    let line = scene.edge.line("two", |line| line["http"]["path"] == "/api/two");
    assert_eq!(
        (&line["reason"], &line["outcome"]),
        (&"held, and refused".into(), &"refused".into())
    );
    assert_eq!(scene.held(&[]).text, "nothing is held\n");
    // However often they woke.
    let metrics = admin(&scene.pki.folder.path().join("admin.sock"), "GET /metrics").unwrap();
    assert!(metrics.contains("\neyelet_rule_hits_total{rule=\"ask\"} 3\n"), "{metrics}");
}

/// Without a verdict each ends in its time; one whose client resets it, and those of a client that
/// leaves, end at once, with a line each.
#[test]
fn held_streams_that_rest_end_late_or_with_their_client() {
    let scene = Scene::new(&format!("{ADMIN}[hold]\ntimeout = \"8s\"\n"));
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        let (late, _) = begin(&mut two, "DELETE", "/api/late", None).await;
        settle().await;
        rests(&scene, 1);
        let (status, page) = heard(late).await;
        assert!(status == 403 && page.contains("held, and nobody decided"), "{status}: {page}");
    });
    let line = scene.edge.line("late", |line| line["http"]["path"] == "/api/late");
    assert_eq!(line["held"]["by"], "timeout", "{line}");
    let scene = Scene::new(ADMIN);
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        let (reset, mut send) = begin(&mut two, "POST", "/api/reset", Some(("x", true))).await;
        let (gone, _) = begin(&mut two, "DELETE", "/api/gone", None).await;
        settle().await;
        rests(&scene, 2);
        send.send_reset(h2::Reason::CANCEL);
        drop(reset);
        settle().await;
        until("one is left", || {
            scene.held(&[]).text.starts_with("app.test:443 DELETE /api/gone").then_some(())
        });
        rests(&scene, 1);
        drop((gone, two));
    });
    until("none is left", || (scene.held(&[]).text == "nothing is held\n").then_some(()));
    has_left(&scene, "/api/reset");
    has_left(&scene, "/api/gone");
}

/// The line of a held request whose client has left says so by its rule, and since when it waited.
fn has_left(scene: &Scene, path: &str) {
    let line = scene.edge.line(path, |line| line["http"]["path"] == path);
    let said = (&line["outcome"], &line["upstream"], &line["rule"]);
    assert_eq!(said, (&"left".into(), &Value::Null, &"ask".into()), "{line}");
    assert!(line["duration_ms"].as_u64().unwrap() >= 1_000, "{line}");
}

/// One that ends its stream has left, although it may still read.
#[test]
fn a_held_stream_ends_with_the_stream_of_its_client() {
    let scene = Scene::new(ADMIN);
    run(async {
        let socket = std::net::TcpStream::connect(scene.edge.address()).unwrap();
        let same = socket.try_clone().unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = tokio::net::TcpStream::from_std(socket).unwrap();
        let offer = Offer { alpn: &["h2"], ..Offer::new(&scene.pki) };
        let mut two = Two::over(socket, &offer).await;
        let _held = begin(&mut two, "DELETE", "/api/half", None).await;
        settle().await;
        rests(&scene, 1);
        same.shutdown(std::net::Shutdown::Write).unwrap();
        until("none is left", || (scene.held(&[]).text == "nothing is held\n").then_some(()));
    });
    has_left(&scene, "/api/half");
}

/// They wait on in the new process, with their bodies, and after a reload.
#[test]
fn an_upgrade_and_a_reload_keep_held_streams() {
    let (mut scene, file) = Scene::replaced(ADMIN);
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        let one = begin(&mut two, "POST", "/api/one", Some(("hello", true))).await;
        let other = begin(&mut two, "DELETE", "/api/two", None).await;
        settle().await;
        rests(&scene, 2);
        let again = scene.reload(&file);
        assert!(again.status.success(), "{again:?}");
        scene.waiting("POST /api/one", 1);
        rests(&scene, 2);
        let successor = scene.upgrade(&file);
        scene.waiting("POST /api/one", 1);
        scene.waiting("DELETE /api/two", 1);
        rests(&scene, 2);
        scene.allow(&["--path", "/api/one"]);
        assert_eq!(heard(one.0).await, (200, "POST /api/one with 5".into()));
        rests(&scene, 1);
        scene.allow(&[]);
        assert_eq!(heard(other.0).await, (200, "DELETE /api/two with 0".into()));
        assert_eq!(two.get("/after").await.unwrap().1, "GET /after with 0");
        kill_process(successor, Signal::KILL).unwrap();
    });
}

/// Reloads the configuration without its rule that holds.
fn take_rule_away(scene: &Scene, file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.replace("action = \"hold\"", "action = \"terminate\"")).unwrap();
    let again = scene.reload(file);
    assert!(again.status.success(), "{again:?}");
}

/// A reload without their rule has the newest rules decide them.
#[test]
fn held_streams_whose_rule_is_gone_are_decided_anew() {
    let (scene, file) = Scene::replaced(ADMIN);
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        let (answer, _) = begin(&mut two, "DELETE", "/api/two", None).await;
        settle().await;
        rests(&scene, 1);
        take_rule_away(&scene, &file);
        assert_eq!(heard(answer).await, (200, "DELETE /api/two with 0".into()));
    });
}

/// One that waits in its task has a verdict for the rule that asked, and for no other that has its
/// name.
#[test]
fn a_verdict_lets_nothing_pass_that_a_reload_forbids() {
    for name in ["ask", "forbid"] {
        let (scene, file) = Scene::replaced(ADMIN);
        run(async {
            let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
            // A part of a body has come, so that it does not rest.
            let (answer, _open) = begin(&mut two, "POST", "/api/part", Some(("x", false))).await;
            settle().await;
            scene.waiting("POST /api/part", 1);
            let text = std::fs::read_to_string(&file).unwrap();
            let (reads, asks) = text.split_once("name = \"ask\"").unwrap();
            let (_, methods) = asks.split_once("method = ").unwrap();
            let refuse = "sni = \"app.test\"\naction = \"refuse\"\nmessage = \"Ask Ann.\"";
            let rules = format!("{reads}name = \"{name}\"\n{refuse}\nmethod = {methods}");
            std::fs::write(&file, rules).unwrap();
            let again = scene.reload(&file);
            assert!(again.status.success(), "{again:?}");
            scene.allow(&["--path", "/api/part"]);
            let (status, text) = heard(answer).await;
            assert!(status == 403 && text.contains("Ask Ann."), "{status}: {text}");
            assert!(text.contains(&format!("Rule: {name}\n")), "{text}");
        });
        assert_eq!(*scene.seen.lock().unwrap(), [""; 0]);
        let line = scene.edge.line("its line", |line| line["http"]["path"] == "/api/part");
        assert_eq!(line["rule"], name, "{line}");
        let metrics = admin(&scene.pki.folder.path().join("admin.sock"), "GET /metrics").unwrap();
        let refused = metrics.lines().filter(|line| {
            line.starts_with("eyelet_rule_refused_requests_total{") && !line.ends_with(" 0")
        });
        let sample = format!("eyelet_rule_refused_requests_total{{rule=\"{name}\"}} 1");
        assert_eq!(refused.collect::<Vec<_>>(), [sample]);
    }
}

/// A hold rule without `method` and `path`, behind one on requests: a reload that changes nothing
/// leaves its question as it was.
#[test]
fn a_reload_of_the_same_rules_keeps_a_question_about_all_other_requests() {
    let (scene, file) = Scene::replaced(ADMIN);
    let text = std::fs::read_to_string(&file).unwrap();
    let (reads, asks) = text.split_once("name = \"ask\"").unwrap();
    let (before, after) = asks.split_once("method = ").unwrap();
    let (_, after) = after.split_once("path = \"/api/*\"").unwrap();
    std::fs::write(&file, format!("{reads}name = \"ask\"{before}{after}")).unwrap();
    let reload = || {
        let again = scene.reload(&file);
        assert!(again.status.success(), "{again:?}");
    };
    reload();
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        // A part of a body has come, so that it does not rest.
        let (answer, mut send) = begin(&mut two, "POST", "/api/part", Some(("x", false))).await;
        settle().await;
        scene.waiting("POST /api/part", 1);
        reload();
        scene.allow(&["--path", "/api/part"]);
        send.send_data(Bytes::from(vec![b'x'; LONG - 1]), true).unwrap();
        assert_eq!(heard(answer).await, (200, format!("POST /api/part with {LONG}")));
        assert_eq!(two.get("/after").await.unwrap().1, "GET /after with 0");
    });
}

/// One that rests beside a stream that goes on is decided by the newest rules, too.
#[test]
fn a_reload_beside_a_download_decides_held_streams_anew() {
    let (scene, file) = Scene::replaced(ADMIN);
    run(async {
        let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
        let (answer, _) = begin(&mut two, "DELETE", "/api/two", None).await;
        settle().await;
        rests(&scene, 1);
        let (slow, _) = begin(&mut two, "GET", "/slow", None).await;
        let slow = slow.await.unwrap();
        assert_eq!(slow.status(), 200);
        let slow = tokio::spawn(body(slow));
        take_rule_away(&scene, &file);
        assert_eq!(heard(answer).await, (200, "DELETE /api/two with 0".into()));
        slow.abort();
    });
}

/// Those whose connection an operator ends where it rests, and those that a drain wakes, are
/// answered: with the status that their lines have.
#[test]
fn held_streams_that_are_ended_are_answered() {
    let scene = Scene::new(ADMIN);
    run(async {
        for is_drain in [false, true] {
            let mut two = Two::connect(&scene.pki, scene.edge.address()).await;
            let whole = begin(&mut two, "POST", "/api/whole", Some(("x", true))).await;
            let part = begin(&mut two, "POST", "/api/part", None).await;
            settle().await;
            let id = rests(&scene, 2)["id"].as_str().unwrap().to_owned();
            let expected = if is_drain {
                scene.edge.signal(Signal::TERM);
                "drained during the wait for a verdict"
            } else {
                let socket = scene.pki.folder.path().join("admin.sock");
                admin(&socket, &format!("DELETE /connections/{id}")).unwrap();
                "nobody decided"
            };
            for (answer, _open) in [whole, part] {
                let (status, text) = heard(answer).await;
                assert!(status == 503 && text.contains(expected), "{status}: {text}");
            }
        }
    });
    for reason in ["ended by an operator", "drained during the wait for a verdict"] {
        for path in ["/api/whole", "/api/part"] {
            let is_it = |line: &Value| line["reason"] == reason && line["http"]["path"] == path;
            let line = scene.edge.line(reason, is_it);
            assert_eq!((&line["http"]["status"], &line["rule"]), (&503.into(), &"ask".into()));
        }
    }
}
