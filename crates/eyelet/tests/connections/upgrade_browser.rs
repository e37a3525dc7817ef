//! A page stays open in a browser over reloads and upgrades, with a WebSocket to its own host, an
//! event stream and a request that waits.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::upgrade::Scene;
use crate::support::browser::{self, Browser};
use crate::support::program::need;
use crate::support::web::{head, switched};
use crate::support::{Upstream, output};

/// Time between two events of the stream, and how long a request waits.
const EVENT_EVERY: Duration = Duration::from_millis(200);
const POLL_WAIT: Duration = Duration::from_millis(1500);
/// A busy machine needs it to start a browser.
const REPORT_WAIT: Duration = Duration::from_secs(60);
/// Events, and echoes, that the page must see after each change.
const MORE: usize = 10;

/// Counts what came in order, and what was lost. After a change it hears on, or reports a loss.
const PAGE: &str = "<script>
const seen = { echoes: 0, events: 0, polls: 0, lost: '' };
const lose = (what) => { seen.lost += what + '; '; };
const chat = new WebSocket(`wss://${location.host}/chat`);
const say = () => setTimeout(() => chat.send(String(seen.echoes)), 100);
chat.onopen = say;
chat.onmessage = (message) => {
  if (message.data !== String(seen.echoes)) lose(`echo ${message.data} for ${seen.echoes}`);
  seen.echoes += 1;
  say();
};
chat.onclose = (event) => lose(`the WebSocket, ${event.code}`);
const events = new EventSource('/events');
events.onmessage = (event) => {
  if (event.data !== String(seen.events)) lose(`event ${event.data} for ${seen.events}`);
  seen.events += 1;
};
events.onerror = () => lose('the event stream');
(async () => {
  for (;;) {
    const answer = await fetch('/poll').then((got) => got.text()).catch(String);
    if (answer !== 'waited') lose(`a request that waited: ${answer}`);
    seen.polls += 1;
    if (seen.lost) return;
  }
})();
setInterval(() => fetch('/said/' + encodeURIComponent(JSON.stringify(seen))), 300);
</script>";

/// Counts and faults that the page has seen.
#[derive(serde::Deserialize, Debug)]
struct Seen {
    echoes: usize,
    events: usize,
    polls: usize,
    lost: String,
}

fn answer(stream: &mut TcpStream, kind: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Says each text of at most 125 bytes again (RFC 6455 section 5.2).
fn chat(stream: &mut TcpStream, asked: &str) -> std::io::Result<()> {
    assert!(asked.to_lowercase().contains("via: 2.0 "), "not by HTTP/2: {asked}");
    stream.write_all(switched(asked).as_bytes())?;
    loop {
        let mut start = [0; 6];
        stream.read_exact(&mut start)?;
        let mut text = vec![0; usize::from(start[1] & 0x7f)];
        stream.read_exact(&mut text)?;
        for (at, byte) in text.iter_mut().enumerate() {
            *byte ^= start[2 + at % 4];
        }
        let mut frame = vec![start[0], u8::try_from(text.len()).unwrap()];
        frame.extend(text);
        stream.write_all(&frame)?;
    }
}

fn events(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    for count in 0.. {
        let event = format!("data: {count}\n\n");
        write!(stream, "{:x}\r\n{event}\r\n", event.len())?;
        thread::sleep(EVENT_EVERY);
    }
    Ok(())
}

/// The application. It passes on what the page says that it has seen.
fn serve(mut stream: TcpStream, said: &Mutex<Sender<Seen>>) -> std::io::Result<()> {
    while stream.peek(&mut [0])? > 0 {
        let asked = head(&mut stream);
        match asked.split(' ').nth(1).unwrap() {
            "/" => answer(&mut stream, "text/html", PAGE)?,
            "/chat" => chat(&mut stream, &asked)?,
            "/events" => events(&mut stream)?,
            "/poll" => {
                thread::sleep(POLL_WAIT);
                answer(&mut stream, "text/plain", "waited")?;
            }
            path => {
                if let Some(seen) = path.strip_prefix("/said/") {
                    let seen = seen.replace("%22", "\"").replace("%20", " ");
                    let seen = seen.replace("%7B", "{").replace("%7D", "}").replace("%2C", ",");
                    let seen = serde_json::from_str(&seen.replace("%3A", ":").replace("%3B", ";"));
                    let _ = said.lock().unwrap().send(seen.expect(path));
                }
                answer(&mut stream, "text/plain", "")?;
            }
        }
    }
    Ok(())
}

/// Waits until the page has seen more than before, and has lost nothing.
fn sees_more(said: &Receiver<Seen>, before: &Seen) -> Seen {
    loop {
        let seen = said.recv_timeout(REPORT_WAIT).expect("the page says what it sees");
        assert_eq!(seen.lost, "", "{seen:?}");
        if seen.echoes >= before.echoes + MORE
            && seen.events >= before.events + MORE
            && seen.polls > before.polls
        {
            return seen;
        }
    }
}

#[test]
fn an_open_page_of_chromium_goes_on_over_upgrades_and_a_reload() {
    if !(need("chromium") && need("certutil")) {
        return;
    }
    let (said, heard) = channel();
    let said = Arc::new(Mutex::new(said));
    let app = Upstream::serve(move |stream| {
        // A client that has gone is the end of its connection.
        let _ = serve(stream, &said);
    });
    let mut scene = Scene::to(app, "workers = 2\n");
    browser::trust(&scene.pki.folder, &scene.pki.file("ca.pem"));
    let url = format!("https://app.test:{}/", scene.edge.port());
    let name = "--host-resolver-rules=MAP app.test 127.0.0.1";
    let _browser = Browser::open_with(&scene.pki.folder, &[name, &url]);
    let begun = Seen { echoes: 0, events: 0, polls: 0, lost: String::new() };
    let seen = sees_more(&heard, &begun);
    scene.upgrade();
    let seen = sees_more(&heard, &seen);
    assert!(output(&mut scene.command("reload")).status.success());
    let seen = sees_more(&heard, &seen);
    scene.upgrade();
    sees_more(&heard, &seen);
}
