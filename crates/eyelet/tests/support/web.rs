//! An HTTP/1.1 client and an upstream that are played byte by byte, so that a test sends and sees
//! each byte.

use std::io::{Read, Write};
use std::net::TcpStream;

use base64::Engine;
use rustix::process::Signal;

use super::client::Offer;
use super::edge::LISTENER;
use super::two::Two;
use super::{Edge, Pki, SOON, Tls, Upstream, ending};

/// An edge that terminates app.test for one HTTP upstream. It has one worker, and so one pool.
pub struct Web {
    pub edge: Edge,
    pub app: Upstream,
    pub pki: Pki,
}

impl Web {
    pub fn new(app: Upstream) -> Self {
        Self::with(app, "", "")
    }

    /// With `rule` in its rule and `whole` beside it.
    pub fn with(app: Upstream, rule: &str, whole: &str) -> Self {
        Self::at(Pki::new(), "http", app, rule, whole)
    }

    pub fn at(pki: Pki, scheme: &str, app: Upstream, rule: &str, whole: &str) -> Self {
        let rule = pki.terminate(&format!("{scheme}://{}", app.address), rule);
        let config = format!("workers = 1\n{LISTENER}{whole}\n{rule}");
        let edge = Edge::start_whole(&pki.folder, &config, |_| ());
        Self { edge, app, pki }
    }

    /// The first reload: a part of the configuration is another one.
    pub fn reload(&self, from: &str, to: &str) {
        let folder = std::fs::read_dir(self.pki.folder.path()).unwrap();
        let mut files = folder.map(|file| file.unwrap().path());
        let path = files.find(|path| path.extension().is_some_and(|end| end == "toml")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace(from, to)).unwrap();
        self.edge.signal(Signal::HUP);
        self.edge.wait_log("configuration 2 serves");
    }

    /// A client of HTTP/1.1.
    pub fn connect(&self) -> Tls {
        Offer::new(&self.pki).connect(self.edge.address(), "app.test")
    }

    /// A client of HTTP/2.
    pub async fn connect_two(&self) -> Two {
        Two::connect(&self.pki, self.edge.address()).await
    }

    /// The access line of the only request with that path.
    pub fn request_line(&self, path: &str) -> serde_json::Value {
        self.edge.line(path, |line| line["http"]["path"] == path)
    }
}

/// A response as it came.
#[derive(Debug)]
pub struct Heard {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Heard {
    /// A field's value, the first of that name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads up to and with the empty line.
pub fn head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            end => panic!("{end:?} in a head: {}", head.escape_ascii()),
        }
    }
    String::from_utf8(head).unwrap()
}

/// The head of a 101 to this request for a WebSocket (RFC 6455 4.2.2).
pub fn switched(asked: &str) -> String {
    let key = asked.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.to_owned())
    });
    let text = key.unwrap() + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let hash = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
    let hash = aws_lc_rs::digest::digest(hash, text.as_bytes());
    let accept = base64::engine::general_purpose::STANDARD.encode(hash);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Reads a response; its body by Content-Length or chunks, else to the end.
pub fn hear(stream: &mut impl Read, method: &str) -> Heard {
    let head = head(stream);
    let status = head[9..12].parse().unwrap();
    let mut heard = Heard { status, head, body: Vec::new() };
    let length = heard.field("content-length").map(|length| length.parse::<usize>().unwrap());
    let bodiless = method == "HEAD" || status < 200 || status == 204 || status == 304;
    if bodiless {
        return heard;
    }
    if heard.field("transfer-encoding").is_some() {
        heard.body = chunks(stream);
    } else if let Some(length) = length {
        heard.body = vec![0; length];
        stream.read_exact(&mut heard.body).unwrap();
    } else {
        stream.read_to_end(&mut heard.body).unwrap();
    }
    heard
}

/// The chunks of a body, trailers dropped.
pub fn chunks(stream: &mut impl Read) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(line(stream).trim(), 16).unwrap();
        let at = body.len();
        body.resize(at + size, 0);
        stream.read_exact(&mut body[at..]).unwrap();
        if size == 0 {
            while !line(stream).trim().is_empty() {}
            return body;
        }
        assert_eq!(line(stream), "\r\n");
    }
}

/// One line, with its end.
pub fn line(stream: &mut impl Read) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

/// Says a request on an open connection and hears the response.
pub fn ask(client: &mut Tls, request: &str) -> Heard {
    client.write_all(request.as_bytes()).unwrap();
    hear(client, request.split(' ').next().unwrap())
}

/// GET on app.test.
pub fn get(client: &mut Tls, path: &str) -> Heard {
    ask(client, &format!("GET {path} HTTP/1.1\r\nHost: app.test\r\n\r\n"))
}

/// Reads to the end of the connection, and returns the bytes before it.
pub fn rest(client: &mut Tls) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest);
    let _ = ending(&mut client.sock, SOON);
    rest
}

/// An upstream's whole answer to one request.
pub fn answer(stream: &mut TcpStream, response: &str) -> String {
    let asked = head(stream);
    stream.write_all(response.as_bytes()).unwrap();
    asked
}
