//! The demo: its page in Chromium, what its terminal shows, and who is refused by it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::edge::eyelet;
use crate::support::{Folder, Talk, long_output, need, output};

/// Bytes of the page on the wire, with its style, its script and its fields.
const PAGE_BYTES_MAX: u64 = 60_000;

/// A running demo.
struct Demo {
    talk: Talk,
    folder: Folder,
}

impl Demo {
    fn start() -> Self {
        let folder = Folder::new();
        let mut command = eyelet(&folder);
        // One that is killed leaves its own folder there.
        command.env("TMPDIR", folder.path());
        let mut talk = Talk::start(command.args(["demo", "--port", "0", "--exit-after", "10m"]));
        talk.hear("Ctrl-C ends");
        Self { talk, folder }
    }

    /// Returns the output between these texts.
    fn printed(&self, before: &str, after: char) -> String {
        let said = self.talk.said();
        let (_, rest) = said.split_once(before).unwrap();
        rest.split(after).next().unwrap().trim().to_owned()
    }

    fn url(&self) -> String {
        self.printed("on this machine:\n\n", '\n')
    }

    /// The folder of its authority.
    fn authority(&self) -> PathBuf {
        PathBuf::from(self.printed("--cacert ", ' ')).parent().unwrap().to_owned()
    }

    /// The status of a request to the page.
    fn asked(&self, path: &str, options: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}"]);
        curl.arg("--cacert").arg(self.authority().join("ca.pem")).args(options);
        output(curl.arg(format!("{}{path}", self.url()))).text
    }
}

#[test]
fn it_ends_by_itself_and_takes_the_next_port_where_8443_is_taken() {
    // Perhaps somebody else has it already.
    let _taken = TcpListener::bind(("127.0.0.1", 8443));
    let folder = Folder::new();
    let said = output(eyelet(&folder).args(["demo", "--exit-after", "2s"]));
    assert!(said.status.success(), "{}", said.text);
    assert!(said.text.contains("port 8443 is taken; listening on 84"), "{}", said.text);
    assert!(said.text.contains("https://app.localhost:84"), "{}", said.text);
    assert!(said.text.contains("ended: "), "{}", said.text);
    let file = said.text.split_once("The configuration is ").unwrap().1;
    let file = file.split_once("eyelet.toml").unwrap().0;
    assert!(!std::path::Path::new(file).exists(), "{file} is left");
}

#[test]
fn what_it_prints_can_be_tried() {
    if !need("curl") {
        return;
    }
    let demo = Demo::start();
    let said = demo.talk.said();
    let tried: Vec<String> = said
        .lines()
        .filter(|line| line.starts_with("  curl"))
        .map(|line| output(Command::new("sh").args(["-c", line])).text)
        .collect();
    assert!(!said.contains(" INFO "), "diagnostics between its lines:\n{said}");
    let [hello, origin, nobody] = &tried[..] else { panic!("{said}") };
    assert!(hello.contains("\"name\":\"app.localhost\""), "{hello}");
    assert!(hello.contains("action:  terminate"), "{hello}");
    assert!(origin.contains("I am origin.localhost"), "{origin}");
    assert!(nobody.contains("curl: (35)"), "{nobody}");
    demo.talk.signal(Signal::INT);
    let said = demo.talk.finish();
    assert!(said.status.success(), "{}", said.text);
    assert!(said.text.contains("1 refused"), "{}", said.text);
}

/// Its terminal was closed.
#[test]
fn a_hangup_ends_it_and_leaves_no_authority_behind() {
    let demo = Demo::start();
    let authority = demo.authority();
    assert!(authority.exists());
    demo.talk.signal(Signal::HUP);
    let said = demo.talk.finish();
    assert!(said.status.success(), "{}", said.text);
    assert!(!authority.parent().unwrap().exists(), "{} is left", authority.display());
}

/// A page whose name leads to loopback by DNS rebinding, and a page that sends a form.
#[test]
fn foreign_pages_are_refused_and_it_is_on_loopback_only() {
    if !need("curl") {
        return;
    }
    let demo = Demo::start();
    let page = demo.url().trim_end_matches('/').to_owned();
    let host = page.trim_start_matches("https://").to_owned();
    let post = |fields: &[&str]| {
        let fields = fields.iter().flat_map(|field| ["-H", field]);
        let options: Vec<&str> = ["-X", "POST"].into_iter().chain(fields).collect();
        demo.asked("api/release", &options)
    };
    assert_eq!(demo.asked("", &[]), "200");
    assert_eq!(demo.asked("", &["-H", "Host: evil.example"]), "421");
    assert_eq!(demo.asked("", &["-H", "Host: app.localhost:1"]), "421");
    // It may lead here by a link, and hold none of the streams.
    let site =
        |path: &str, site: &str| demo.asked(path, &["-H", &format!("Sec-Fetch-Site: {site}")]);
    assert_eq!(site("", "cross-site"), "200");
    assert_eq!(site("api/hello", "cross-site"), "403");
    assert_eq!(site("events", "same-site"), "403");
    assert_eq!(site("api/hello", "same-origin"), "200");
    assert_eq!(post(&[&format!("Origin: {page}")]), "200");
    assert_eq!(post(&[]), "403");
    assert_eq!(post(&["Origin: https://evil.example"]), "403");
    assert_eq!(post(&["Origin: null"]), "403");
    // The edge lets only hosts of the rule through. The application looks for itself.
    let socket = demo.authority().parent().unwrap().join("app.sock");
    let asked = |host: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // What an edge says first: version 2, PROXY, TCP over IPv4, 12 bytes of addresses.
        stream.write_all(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c").unwrap();
        stream.write_all(&[127, 0, 0, 1, 127, 0, 0, 1, 0, 9, 0, 9]).unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(asked("evil.example"), "HTTP/1.1 421 Misdirected Request");
    assert_eq!(asked(&host), "HTTP/1.1 200 OK");
    let file =
        std::fs::read_to_string(demo.printed("configuration is ", ' ').trim_end_matches('.'));
    for address in file.unwrap().lines().filter(|line| line.starts_with("address")) {
        assert!(address.starts_with("address = \"127.0.0.1:"), "{address}");
    }
}

#[test]
fn its_page_works_in_chromium() {
    if !(need("chromium") && need("certutil") && need("python3")) {
        return;
    }
    let demo = Demo::start();
    let home = demo.folder.path();
    let trust = ["trust", "--install", "--user", "--folder"];
    output(eyelet(&demo.folder).env("HOME", home).args(trust).arg(demo.authority()));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/demo_page.py");
    let count = "200";
    let said =
        long_output(Command::new("python3").args([program, &demo.url()]).arg(home).arg(count));
    let shown: Value = serde_json::from_str(said.text.trim()).expect(&said.text);
    let text = |part: &str| shown[part].as_str().unwrap_or_else(|| panic!("{part}: {shown}"));
    assert_eq!(text("name"), "app.localhost");
    assert_eq!(text("alpn"), "h2, http/1.1");
    assert!(text("versions").contains("TLS 1.3"), "{shown}");
    assert!(text("shares").contains("X25519"), "{shown}");
    assert!(text("ja4").starts_with("t13d"), "{shown}");
    for part in ["\"app\"", "action:  terminate", "\"lies\": listener", "\"origin\": sni"] {
        assert!(text("explained").contains(part), "no {part} in {shown}");
    }
    // Its policy lets its own style through.
    assert_eq!(text("style"), "12px");
    assert!(shown["paint_ms"].as_u64().is_some_and(|paint_ms| paint_ms > 0), "{shown}");
    assert_eq!(text("focus"), "park-some");
    assert!(text("park").starts_with("200 connections take too little"), "{shown}");
    assert!(text("splice").contains("I am origin.localhost"), "{shown}");
    assert!(text("refuse").contains("unrecognized_name"), "{shown}");
    assert!(text("log").contains("no rule for this name"), "{shown}");
    let lie = text("lie");
    assert!(lie.contains("bank.example") && lie.contains("access_denied"), "{shown}");
    assert!(lie.contains("spliced: the destination proved"), "{shown}");
    for coding in ["gzip", "br", "zstd", "with the edition before (dcz)"] {
        assert!(text("codings").contains(coding), "no {coding} in {shown}");
    }
    let wire_bytes = shown["wire_bytes"].as_u64().unwrap();
    assert!((1_000..PAGE_BYTES_MAX).contains(&wire_bytes), "{shown}");
    assert_eq!((&shown["overflow_wide"], &shown["overflow_narrow"]), (&0.into(), &0.into()));
}
