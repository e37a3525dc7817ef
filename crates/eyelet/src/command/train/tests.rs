//! Training from a log, against an upstream in a thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::*;

/// Answers each path with a record of its number. Some responses are private, some are truncated.
fn upstream(tls: Option<Arc<rustls::ServerConfig>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            match &tls {
                None => answer(stream),
                Some(tls) => {
                    let server = rustls::ServerConnection::new(tls.clone()).unwrap();
                    answer(rustls::StreamOwned::new(server, stream));
                }
            }
        }
    });
    port
}

/// Ends without close_notify, as many servers do.
fn answer(stream: impl Read + Write) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).unwrap() > 2 {}
    assert!(!head.to_lowercase().contains("cookie"), "{head}");
    let path = head.split(' ').nth(1).unwrap();
    let n: u32 = path.trim_start_matches("/api/readings/").parse().unwrap_or(0);
    let more = if n % 10 == 9 { "Set-Cookie: secret=1\r\n" } else { "" };
    let secret = if n % 10 == 9 { "SECRET-SECRET-SECRET-SECRET" } else { "" };
    let name = n.wrapping_mul(2_654_435_761);
    let body = format!(
        "{{\"id\":\"{name:08x}\",\"self\":\"{path}\",\"place\":\"hall {}\",\
         \"x\":\"{secret}\",\
         \"words\":\"the same words are in each of these records, which is what a \
         dictionary is for: {}\"}}",
        n % 13,
        "field names and phrases that come again; ".repeat(12)
    );
    let length = if n % 10 == 8 { body.len() + 1 } else { body.len() };
    let answer = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         {more}\r\n{body}"
    );
    reader.get_mut().write_all(answer.as_bytes()).unwrap();
}

#[test]
fn a_log_becomes_a_dictionary_without_secrets() {
    let scratch = tempfile::tempdir().unwrap();
    train_from_log(&scratch, None);
}

#[test]
fn samples_are_asked_over_tls_where_requests_are() {
    let scratch = tempfile::tempdir().unwrap();
    train_from_log(&scratch, Some("app.example"));
}

/// The certificate and key of the scratch configuration's rule.
fn identity(folder: &Path) -> Arc<rustls::ServerConfig> {
    use rustls_pki_types::pem::PemObject;
    let chain = rustls_pki_types::CertificateDer::from_pem_file(folder.join("app.pem")).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::from_pem_file(folder.join("app.key")).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(eyelet_tls::provider::PROVIDER.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key);
    Arc::new(config.unwrap())
}

fn train_from_log(scratch: &TempDir, name: Option<&str>) {
    let terms = "[dictionary]\npath = \"store\"";
    let mut config = config(terms, scratch.path());
    let action = config.rules.action_mut(0);
    let Action::Terminate(terminate) = action else { panic!("a terminate rule") };
    let TerminateUpstream::Http(http) = &mut terminate.upstream else { panic!("http") };
    let host = eyelet_config::Host::Ip("127.0.0.1".parse().unwrap());
    let port = upstream(name.map(|_| identity(scratch.path())));
    http.address = eyelet_config::HttpAddress::Tcp(eyelet_config::HostPort { host, port });
    http.tls = name.map(|name| eyelet_config::UpstreamTls {
        name: name.into(),
        files: eyelet_config::UpstreamFiles {
            ca: Some(scratch.path().join("app.pem")),
            ..Default::default()
        },
    });
    let line = |rule: &str, method: &str, path: &str, status: u16| {
        format!(
            "{{\"time\":\"x\",\"rule\":\"{rule}\",\"sni\":\"app.example\",\"http\":{{\"method\":\
             \"{method}\",\"path\":\"{path}\",\"status\":{status},\"upstream_ms\":1}}}}\n"
        )
    };
    let mut log = String::from("not a line\n{}\n");
    for n in 0..300 {
        log += &line("app", "GET", &format!("/api/readings/{n}"), 200);
    }
    for (rule, method, path, status) in [
        ("other", "GET", "/other", 200),
        ("app", "POST", "/post", 200),
        ("app", "GET", "/gone", 404),
        ("app", "GET", "/api/x?token=1", 200),
    ] {
        log += &line(rule, method, path, status);
    }
    let from = scratch.path().join("access.log");
    std::fs::write(&from, log).unwrap();
    let args = TrainArgs {
        file: scratch.path().join("edge.toml"),
        rule: "app".into(),
        from: Some(from),
        live: None,
        pattern: None,
        queries: false,
        bytes_max: DICTIONARY_BYTES,
    };
    let mut out = Vec::new();
    train_rule(&args, &config, &mut out).unwrap();
    let said = String::from_utf8(out).unwrap();
    assert!(said.starts_with("240 samples of 300 paths, "), "{said}");
    assert!(said.contains(" bytes for /api/readings/*: "), "{said}");
    let folder = DictionaryFolder::open(&scratch.path().join("store")).unwrap();
    let trained = folder.load_trained().unwrap();
    assert_eq!(trained.len(), 1);
    let text = String::from_utf8_lossy(&trained[0].content);
    assert!(text.contains("phrases that come again") && !text.contains("SECRET"));
    let unknown = TrainArgs { rule: "nobody".into(), ..args };
    assert_eq!(
        train_rule(&unknown, &config, &mut Vec::new()),
        Err("no rule has the name \"nobody\"".into())
    );
}

#[test]
fn an_upstream_of_http2_alone_is_not_asked() {
    let scratch = tempfile::tempdir().unwrap();
    let mut config = config("[dictionary]\npath = \"store\"", scratch.path());
    let Action::Terminate(terminate) = config.rules.action_mut(0) else { panic!("terminates") };
    let TerminateUpstream::Http(http) = &mut terminate.upstream else { panic!("http") };
    http.http2 = eyelet_config::UpstreamHttp2::On;
    let args = TrainArgs {
        file: scratch.path().join("edge.toml"),
        rule: "app".into(),
        from: Some(scratch.path().join("access.log")),
        live: None,
        pattern: None,
        queries: false,
        bytes_max: DICTIONARY_BYTES,
    };
    let why = train_rule(&args, &config, &mut Vec::new()).unwrap_err();
    assert!(why.starts_with("samples are asked by HTTP/1 only; "), "{why}");
}

#[test]
fn a_live_log_is_followed() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("access.log");
    let line = |path: &str| {
        let http = format!("{{\"method\":\"GET\",\"path\":\"{path}\",\"status\":200}}");
        format!("{{\"rule\":\"app\",\"http\":{http}}}\n")
    };
    std::fs::write(&path, line("/before").repeat(3)).unwrap();
    let is_over = AtomicBool::new(false);
    let visits = std::thread::scope(|scope| {
        // It writes on until the log was read: nobody knows when that begins.
        scope.spawn(|| {
            let line = line("/a");
            while !is_over.load(Ordering::Relaxed) {
                for half in [&line[..20], &line[20..]] {
                    let file = std::fs::OpenOptions::new().append(true).open(&path);
                    file.unwrap().write_all(half.as_bytes()).unwrap();
                    std::thread::park_timeout(Duration::from_millis(100));
                }
            }
        });
        // On a busy machine the writer may stand still for as long as the log is followed.
        let follow = |_| log::follow(&path, "app", Duration::from_secs(2));
        let has_news =
            |visits: &io::Result<Vec<Visit>>| !matches!(visits, Ok(none) if none.is_empty());
        let visits = (0..30).map(follow).find(has_news);
        is_over.store(true, Ordering::Relaxed);
        visits.expect("no visit in a minute").unwrap()
    });
    let visit = Visit { host: "localhost".into(), path: "/a".into() };
    assert!(!visits.is_empty() && visits.iter().all(|one| *one == visit), "{visits:?}");
}

#[test]
fn paths_have_a_folder_in_common() {
    for (paths, common) in [
        (&["/api/1", "/api/2"][..], "/api/*"),
        (&["/api/10", "/api/11"], "/api/*"),
        (&["/a/x", "/b/x"], "/*"),
        (&["/"], "/*"),
        (&["/api/x?y=/1"], "/api/*"),
        (&[], "/*"),
    ] {
        assert_eq!(in_common(paths), common);
    }
}

fn config(terms: &str, folder: &Path) -> Config {
    let identity = rcgen::generate_simple_self_signed(["app.example".to_owned()]).unwrap();
    std::fs::write(folder.join("app.pem"), identity.cert.pem()).unwrap();
    std::fs::write(folder.join("app.key"), identity.signing_key.serialize_pem()).unwrap();
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[[rule]]\nname = \"app\"\nsni = \"app.example\"\n\
         action = \"terminate\"\ncertificate = \"app.pem\"\nkey = \"app.key\"\n\
         upstream = \"http://127.0.0.1:9\"\n{terms}\n"
    );
    std::fs::write(folder.join("edge.toml"), text).unwrap();
    eyelet_config::load(&folder.join("edge.toml"), Depth::Files).unwrap().config
}
