//! A browser closes a tab, and the edge sees that in several forms. The client left in each of
//! them, and nothing failed.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::support::client::close;
use crate::support::two::get;
use crate::support::web::{Web, answer, head};
use crate::support::{SOON, Upstream, reset};

/// An application whose responses have no end that a client could wait for.
fn endless() -> Upstream {
    Upstream::serve(|mut stream| {
        answer(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
        while stream.write_all(&[7; 64 << 10]).is_ok() {}
    })
}

#[test]
fn a_closed_tab_has_left() {
    let web = Web::new(endless());
    for (path, is_reset) in [("/reset", true), ("/closed", false)] {
        let mut client = web.connect();
        write!(client, "GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n").unwrap();
        head(&mut client);
        client.conn.send_close_notify();
        client.flush().unwrap();
        if is_reset {
            reset(client.sock);
        } else {
            drop(client);
        }
        let line = web.request_line(path);
        assert_eq!(
            (&line["outcome"], &line["event"]),
            (&"left".into(), &"request".into()),
            "{line}"
        );
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // One stream is cancelled, the others go on.
        let mut client = web.connect_two().await;
        let (response, _) = client.send.send_request(get("/cancelled"), true).unwrap();
        drop(response.await.unwrap());
        // The client's own task sends the reset, so this must not block its thread.
        let is_it = |line: &serde_json::Value| line["http"]["path"] == "/cancelled";
        let deadline = tokio::time::Instant::now() + SOON;
        while web.edge.count(is_it) == 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        // The whole connection ends while a response is under way.
        let (response, _) = client.send.send_request(get("/gone"), true).unwrap();
        let response = response.await.unwrap();
        client.driven.abort();
        let _ = client.driven.await;
        drop(response);
    });
    drop(runtime);
    for path in ["/cancelled", "/gone"] {
        let line = web.request_line(path);
        assert_eq!(line["outcome"], "left", "{line}");
    }
    // A browser opens connections in advance, and closes those that it does not need.
    let spare = TcpStream::connect(web.edge.address()).unwrap();
    let own = spare.local_addr().unwrap();
    close(spare);
    let line = web.edge.line_of(own);
    assert_eq!((&line["outcome"], &line["event"]), (&"left".into(), &"end".into()), "{line}");
}
