//! Exchanges at rest that share an upstream connection move with it at an upgrade: their clients'
//! connections, by either version of HTTP, are one group. It moves whole or stays whole.

use std::io::Write;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use h2::{RecvStream, SendStream};
use http::Request;

use crate::originate::{Later, upgrade};
use crate::resting::ADMIN;
use crate::resting_https::upgrade_whole;
use crate::resting_shared::{Act, App, EVENTS, Grpc, ON, lines, scene};
use crate::support::client::Tls;
use crate::support::edge;
use crate::support::pki::Kind;
use crate::support::two::{self, Two, beside, get, hears, run};
use crate::support::web::{Web, chunks, head};
use crate::support::{Pki, expect, until};
use crate::two_resting::Scene;

/// The number of exchanges of a group.
const EXCHANGES: usize = 4;

/// Clients of both versions on one upstream connection.
struct Group {
    two: Two,
    events: RecvStream,
    poll: h2::client::ResponseFuture,
    up: (SendStream<bytes::Bytes>, RecvStream),
    one: Tls,
}

impl Group {
    /// Events, a request that waits, bytes both ways, and events for a client of HTTP/1.1.
    async fn new(scene: &Scene, app: &App) -> Self {
        let mut two = scene.web.connect_two().await;
        let mut begun = Vec::new();
        for (path, is_last) in [(EVENTS, true), ("/poll", true), ("/up", false)] {
            two.send = two.send.clone().ready().await.unwrap();
            let request = Request::post(format!("https://app.test{path}")).body(()).unwrap();
            begun.push(two.send.send_request(request, is_last).unwrap());
        }
        let (up, send) = begun.pop().unwrap();
        let (poll, _) = begun.pop().unwrap();
        let mut events = begun.pop().unwrap().0.await.unwrap().into_body();
        let up = up.await.unwrap().into_body();
        hears(&mut events, "first").await;
        let mut one = scene.web.connect();
        one.write_all(b"GET /events/one HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        assert!(head(&mut one).contains("transfer-encoding: chunked"));
        expect(&mut one, b"5\r\nfirst\r\n");
        app.begun(EXCHANGES).await;
        Self { two, events, poll, up: (send, up), one }
    }

    /// Bytes of each exchange arrive, in both directions.
    async fn goes_on(&mut self, app: &App, text: &'static str) {
        app.act(EVENTS, Act::Say(text));
        hears(&mut self.events, text).await;
        self.up.0.send_data(text.into(), false).unwrap();
        hears(&mut self.up.1, text).await;
        app.act("/events/one", Act::Say(text));
        expect(&mut self.one, format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
    }

    /// All exchanges end as they should.
    async fn ends(mut self, app: &App) {
        app.act("/poll", Act::Say("late"));
        let mut poll = self.poll.await.unwrap().into_body();
        hears(&mut poll, "late").await;
        for path in [EVENTS, "/poll", "/events/one"] {
            app.act(path, Act::End);
        }
        for receive in [&mut self.events, &mut poll] {
            assert!(receive.data().await.is_none());
            assert_eq!(receive.trailers().await.unwrap().unwrap()["x-sum"], "1");
        }
        self.up.0.send_data("end".into(), true).unwrap();
        hears(&mut self.up.1, "end").await;
        assert!(self.up.1.data().await.is_none());
        assert_eq!(chunks(&mut self.one), b"");
        drop(self.two);
    }
}

/// An edge to such an upstream by TLS.
fn secure() -> (Scene, App) {
    let (pki, app) = (Pki::new(), App::new());
    let (leaf, of) = (pki.server("app", &["127.0.0.1"], Kind::P256), app.clone());
    let upstream = two::app(100, Some(leaf), move |asked| Box::pin(of.clone().answer(asked)));
    let rule = format!("{ON}\nupstream_ca = \"ca.pem\"");
    let web = Web::at(pki, "https", upstream, &rule, ADMIN);
    (Scene { web: Arc::new(web) }, app)
}

/// The next upgrade, of a process that is no child of the test.
fn upgrade_again(scene: &Scene) -> Later {
    let folder = std::fs::read_dir(scene.web.pki.folder.path()).unwrap();
    let mut files = folder.map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
    upgrade(edge::eyelet(&scene.web.pki.folder).arg("upgrade").arg(file))
}

/// Streams of two clients and an exchange of HTTP/1.1, all on one upstream connection, plain and by
/// TLS: two upgrades lose nothing, each old process ends, and the upstream notices nothing.
#[test]
fn a_group_moves_at_each_upgrade() {
    for (mut scene, app) in [scene(""), secure()] {
        let (mut first, mut second) = (None, None);
        run(async {
            let mut group = Group::new(&scene, &app).await;
            scene.rest(2).await;
            first = Some(upgrade_whole(Arc::get_mut(&mut scene.web).unwrap()));
            group.goes_on(&app, "one").await;
            scene.rest(2).await;
            second = Some(upgrade_again(&scene));
            group.goes_on(&app, "two").await;
            group.ends(&app).await;
        });
        for path in [EVENTS, "/poll", "/up", "/events/one"] {
            let line = scene.web.request_line(path);
            assert_eq!(line["reason"], "complete", "{line}");
            assert_eq!(line["upstream"], scene.web.app.address.to_string());
        }
        assert_eq!(scene.web.app.accepted(), 1, "they share a connection");
        drop((first, second));
    }
}

/// The clients of a group that no message carries.
const MANY: usize = 300;
/// Streams of an upstream connection, two of which are of the client that joins it to others.
const STREAMS: usize = 100;
const LINKS: usize = 4;

/// Events of 300 clients on four upstream connections, which a client of HTTP/2 joins: more sockets
/// than one message carries. All of them move, with bytes both ways, and the old process ends.
#[test]
fn a_group_of_several_messages_moves_whole() {
    let (mut scene, app) = scene("");
    let mut later = None;
    run(async {
        let mut two = scene.web.connect_two().await;
        let up = Request::post("https://app.test/up").body(()).unwrap();
        let (response, mut send) = two.send.send_request(up, false).unwrap();
        let mut receive = response.await.unwrap().into_body();
        let (mut ones, mut joined) = (Vec::new(), Vec::new());
        while ones.len() < MANY {
            let mut one = scene.web.connect();
            one.write_all(b"GET /events/many HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
            assert!(head(&mut one).contains("transfer-encoding: chunked"));
            expect(&mut one, b"5\r\nfirst\r\n");
            ones.push(one);
            // The last stream of a connection, and the first of the next.
            let joins = if ones.len() % (STREAMS - 2) == 0 { 2 } else { 0 };
            for _ in 0..joins {
                two.send = two.send.clone().ready().await.unwrap();
                let (response, _) = two.send.send_request(get(EVENTS), true).unwrap();
                let mut events = response.await.unwrap().into_body();
                hears(&mut events, "first").await;
                joined.push(events);
            }
        }
        scene.rest(1 + MANY).await;
        assert_eq!(scene.web.app.accepted(), LINKS);
        for text in ["one", "two"] {
            match &later {
                None => later = Some(vec![upgrade_whole(Arc::get_mut(&mut scene.web).unwrap())]),
                Some(_) => later.iter_mut().for_each(|all| all.push(upgrade_again(&scene))),
            }
            app.act("/events/many", Act::Say(text));
            ones.iter_mut().for_each(|one| expect(one, format!("3\r\n{text}\r\n").as_bytes()));
            app.act(EVENTS, Act::Say(text));
            for events in &mut joined {
                hears(events, text).await;
            }
            send.send_data(text.into(), false).unwrap();
            hears(&mut receive, text).await;
            scene.rest(1 + MANY).await;
        }
        app.act("/events/many", Act::End);
        ones.iter_mut().for_each(|one| assert_eq!(chunks(one), b""));
        app.act(EVENTS, Act::End);
        send.send_data("end".into(), true).unwrap();
        hears(&mut receive, "end").await;
    });
    let all = MANY + 2 * (LINKS - 1) + 1;
    let lines = lines(&scene, all);
    assert!(lines.iter().all(|line| line["reason"] == "complete"));
    assert_eq!(scene.web.app.accepted(), LINKS, "no upstream connection is lost");
    drop(later);
}

/// Bytes come on one stream after another, so that one of them is always about to rest. The group
/// moves all the same.
#[test]
fn a_group_moves_while_bytes_come_on_its_streams() {
    const PATHS: [&str; 5] = ["/events/a", "/events/b", "/events/c", "/events/d", "/events/e"];
    /// Between two events, so that each stream has one in a second and a half.
    const GAP: Duration = Duration::from_millis(300);
    let (mut scene, app) = scene("");
    let mut later = None;
    run(async {
        let mut two = scene.web.connect_two().await;
        let mut streams = Vec::new();
        for path in PATHS {
            let (response, _) = two.send.send_request(get(path), true).unwrap();
            let mut events = response.await.unwrap().into_body();
            hears(&mut events, "first").await;
            streams.push(events);
        }
        let (stop, stopped) = mpsc::channel::<()>();
        let speaker = app.clone();
        let rounds = thread::spawn(move || {
            let mut rounds = 0;
            loop {
                for path in PATHS {
                    speaker.act(path, Act::Say("again"));
                    thread::sleep(GAP);
                }
                rounds += 1;
                if stopped.try_recv() != Err(mpsc::TryRecvError::Empty) {
                    return rounds;
                }
            }
        });
        hears(&mut streams[PATHS.len() - 1], "again").await;
        later = Some(upgrade_whole(Arc::get_mut(&mut scene.web).unwrap()));
        drop(stop);
        let rounds = beside(move || rounds.join().unwrap()).await;
        for (nth, events) in streams.iter_mut().enumerate() {
            let last = usize::from(nth + 1 == PATHS.len());
            hears(events, &"again".repeat(rounds - last)).await;
            app.act(PATHS[nth], Act::End);
            assert!(events.data().await.is_none());
        }
    });
    assert_eq!(scene.web.app.accepted(), 1, "they share a connection");
    drop(later);
}

/// The bytes of one stream wait for its client: all of its group stay, and move once they arrive.
#[test]
fn a_group_with_bytes_on_their_way_stays_until_they_arrive() {
    let (mut scene, app) = scene("");
    let text: &'static str = "0123456789".repeat(20_000).leak();
    let mut later = None;
    run(async {
        let mut group = Group::new(&scene, &app).await;
        let mut slow = scene.web.connect_two().await;
        let (response, _) = slow.send.send_request(get("/events/slow"), true).unwrap();
        let mut late = response.await.unwrap().into_body();
        hears(&mut late, "first").await;
        scene.rest(3).await;
        app.act("/events/slow", Act::Say(text));
        let (web, used) = (scene.clone(), "eyelet_memory_budget_used_bytes");
        let held = move || (web.metric(used) > text.len() / 4).then_some(());
        beside(move || until("bytes that wait", held)).await;
        later = Some(upgrade_again(&scene));
        scene.web.edge.wait_log("goes on with 3 connections until they end or can move");
        group.goes_on(&app, "one").await;
        hears(&mut late, text).await;
        let web = Arc::get_mut(&mut scene.web).unwrap();
        assert!(web.edge.wait_exit_alone().success(), "it has nothing left");
        group.goes_on(&app, "two").await;
        app.act("/events/slow", Act::End);
        assert!(late.data().await.is_none());
        group.ends(&app).await;
    });
    assert_eq!(scene.web.request_line("/events/slow")["reason"], "complete");
    assert_eq!(scene.web.app.accepted(), 1, "they share a connection");
    drop(later);
}

/// Server streams and a bidirectional one of grpcio, through two upgrades.
#[test]
fn grpc_streams_move_at_each_upgrade() {
    let Some(mut grpc) = Grpc::new(8) else { return };
    grpc.rest();
    let mut laters = vec![upgrade_whole(Arc::get_mut(&mut grpc.scene.web).unwrap())];
    for text in ["one", "two"] {
        grpc.service.say(&format!("say {text}\n"));
        grpc.client.say(&format!("hear {text}\n"));
        grpc.client.hear("hear done\n");
        grpc.client.say(&format!("chat {text}\n"));
        grpc.client.hear("chat done\n");
        grpc.rest();
        laters.push(upgrade_again(&grpc.scene));
    }
    let scene = grpc.end(9);
    drop(laters);
    drop(scene);
}
