//! A Subversion repository behind an edge that learns dictionaries. svn asks by GET, for
//! differences, and for all in one response; only some of these become dictionaries.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use crate::originate_svn::{Apache, done, is_installed, svn};
use crate::support::client::Offer;
use crate::support::edge::LISTENER;
use crate::support::web::{Heard, ask, hear};
use crate::support::{Edge, Pki};

const FILES: usize = 30;

struct Repository {
    pki: Pki,
    apache: Apache,
    far: Edge,
    near: Edge,
}

impl Repository {
    /// Revision 1 has files, revision 2 another line in each of them.
    fn start() -> Self {
        let pki = Pki::new();
        let apache = Apache::plain(&pki);
        let dictionaries = "dictionary = \"/svn/!svn/rvr/*/{file}\"";
        let rule = pki.terminate(&format!("http://{}", apache.address), dictionaries);
        let far = Edge::start_whole(&pki.folder, &format!("{LISTENER}\n{rule}"), |_| ());
        let near = format!(
            "[[listener]]\nkind = \"plain\"\naddress = \"127.0.0.1:0\"\n[[rule]]\n\
             action = \"originate\"\nupstream = \"https://{}\"\nupstream_name = \"app.test\"\n\
             upstream_ca = \"ca.pem\"\n",
            far.address()
        );
        let near = Edge::start_whole(&pki.folder, &near, |_| ());
        let made = Self { pki, apache, far, near };
        let url = format!("http://{}/svn/trunk", made.apache.address);
        for revision in [1, 2] {
            let tree = made.pki.file(&format!("tree{revision}"));
            std::fs::create_dir_all(tree.join("c++")).unwrap();
            for (name, text) in Self::files(revision) {
                std::fs::write(tree.join(name), text).unwrap();
            }
        }
        let (one, copy) = (made.pki.text("tree1"), made.pki.text("source"));
        made.svn(&["import", "-q", "-m", "one", &one, &url]);
        made.svn(&["checkout", "-q", &url, &copy]);
        for (name, text) in Self::files(2) {
            std::fs::write(Path::new(&copy).join(name), text).unwrap();
        }
        made.svn(&["commit", "-q", "-m", "two", &copy]);
        made
    }

    fn files(revision: usize) -> impl Iterator<Item = (String, String)> {
        (0..FILES).map(move |file| {
            let name = if file % 10 == 0 { format!("c++/{file}.h") } else { format!("{file}.c") };
            let line = |n: usize| format!("int f{}(void); /* {n} of {file} */\n", n * 7919 % 997);
            let mut text: String = (0..40 + file).map(line).collect();
            text += if revision == 2 { "/* changed */\n" } else { "" };
            (name, text)
        })
    }

    fn svn(&self, words: &[&str]) -> String {
        done(svn(&self.pki.folder).args(words)).text
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/svn/trunk", self.near.port())
    }

    fn has(&self, copy: &str, revision: usize) {
        for (name, text) in Self::files(revision) {
            let got = std::fs::read_to_string(self.pki.file(copy).join(&name)).unwrap();
            assert_eq!(got, text, "{name} of {copy}");
        }
    }
}

/// svn decodes what it gets: full texts, differences to what it has, and one response for all.
#[test]
fn svn_gets_a_repository_through_a_pair_of_edges() {
    if !is_installed() {
        return;
    }
    let repository = Repository::start();
    let (url, copy) = (repository.url(), |name: &str| repository.pki.text(name));
    repository.svn(&["checkout", "-q", "-r", "1", &url, &copy("a")]);
    repository.has("a", 1);
    repository.svn(&["update", "-q", &copy("a")]);
    repository.has("a", 2);
    repository.svn(&["checkout", "-q", &url, &copy("b")]);
    repository.has("b", 2);
    for compression in ["no", "auto", "yes"] {
        let name = format!("bulk-{compression}");
        let bulk = [
            "--config-option=servers:global:http-bulk-updates=yes",
            &format!("--config-option=servers:global:http-compression={compression}"),
        ];
        repository.svn(&[bulk[0], bulk[1], "checkout", "-q", "-r", "1", &url, &copy(&name)]);
        repository.has(&name, 1);
        repository.svn(&[bulk[0], bulk[1], "update", "-q", &copy(&name)]);
        repository.has(&name, 2);
    }
    for edge in [&repository.near, &repository.far] {
        assert_eq!(edge.count(|line| line["outcome"] == "failed"), 0, "{:#?}", edge.lines());
    }
}

/// COPY, MOVE and redirects have whole URLs. Apache has no TLS, and is told by `ServerName` that
/// its clients have.
#[test]
fn svn_copies_and_moves_through_a_pair_of_edges() {
    if !is_installed() {
        return;
    }
    let repository = Repository::start();
    let url = repository.url();
    let base = url.strip_suffix("/trunk").unwrap();
    let run = |words: &[&str]| repository.svn(words);
    run(&["copy", "-q", "-m", "three", &url, &format!("{base}/branch")]);
    run(&["move", "-q", "-m", "four", &format!("{base}/branch"), &format!("{base}/tag")]);
    assert_eq!(run(&["list", base]), "tag/\ntrunk/\n");
    let mut client = Offer::new(&repository.pki).connect(repository.far.address(), "app.test");
    let heard = ask(&mut client, "GET /svn/trunk HTTP/1.1\r\nHost: app.test\r\n\r\n");
    let location = heard.field("location");
    assert_eq!((heard.status, location), (301, Some("https://app.test/svn/trunk/")));
}

/// mod_dav_svn chooses the version of svndiff by Accept-Encoding. An edge that learns asks for
/// identity, which is svndiff0: text without its own compression, which the edge codes.
#[test]
fn a_difference_of_svn_is_coded_once_and_never_becomes_a_dictionary() {
    if !is_installed() {
        return;
    }
    let repository = Repository::start();
    let request = |accept: &str, base: &str| {
        format!(
            "GET /svn/!svn/rvr/2/trunk/7.c HTTP/1.1\r\nHost: app.test\r\n\
             Accept-Encoding: {accept}\r\n{base}\r\n"
        )
    };
    let base = "X-SVN-VR-Base: /svn/!svn/rvr/1/trunk/7.c\r\n";
    let without_edge = |accept: &str| -> Heard {
        let mut stream = TcpStream::connect(repository.apache.address).unwrap();
        stream.write_all(request(accept, base).as_bytes()).unwrap();
        hear(&mut stream, "GET")
    };
    for (accept, starts) in [
        ("gzip,svndiff2;q=0.9,svndiff1;q=0.8,svndiff;q=0.7", b"SVN\x02"),
        ("svndiff1;q=0.9,svndiff;q=0.8", b"SVN\x01"),
        ("identity", b"SVN\x00"),
    ] {
        let heard = without_edge(accept);
        assert_eq!(heard.body.get(..4), Some(&starts[..]), "{accept}");
        assert_eq!(heard.field("content-type"), Some("application/vnd.svn-svndiff"));
        assert_eq!(heard.field("content-encoding"), None, "svndiff is no content coding");
    }
    let mut client = Offer::new(&repository.pki).connect(repository.far.address(), "app.test");
    let accept = "gzip,svndiff2;q=0.9,svndiff1;q=0.8,svndiff;q=0.7";
    let heard = ask(&mut client, &request(accept, base));
    assert_eq!((heard.status, heard.body.get(..4)), (200, Some(&b"SVN\x00"[..])));
    assert_eq!(heard.field("use-as-dictionary"), None);
    let vary = heard.head.to_ascii_lowercase();
    assert!(vary.contains("vary: x-svn-vr-base"), "{vary}");
    let heard = ask(&mut client, &request("gzip", ""));
    let offered = heard.field("use-as-dictionary");
    assert_eq!(offered, Some("match=\"/svn/!svn/rvr/*/trunk/7.c\""));
    assert_eq!(heard.field("content-encoding"), Some("gzip"));
}
