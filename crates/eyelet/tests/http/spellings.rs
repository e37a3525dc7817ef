//! One table of spellings of a path, against servers that read them in different ways. A rule takes
//! `/public/*`, or refuses `/secret/*`: no spelling gets the secret.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use crate::support::client::Offer;
use crate::support::edge::connect;
use crate::support::program::{long_output, need};
use crate::support::streams::Streams;
use crate::support::upstream::vacant;
use crate::support::{Edge, Folder, Pki, SOON, Talk, ending, until};

const SECRET: &str = "the secret page";
const PUBLIC: &str = "the public page";

/// Targets of a request, as they stand in its first line.
const SPELLINGS: &[&str] = &[
    "/secret/s.txt",
    // Segments of dots.
    "/public/../secret/s.txt",
    "/public/./../secret/s.txt",
    "/public/x/../../secret/s.txt",
    "/public/../public/../secret/s.txt",
    "/./secret/s.txt",
    "/secret/./s.txt",
    "/../secret/s.txt",
    "/public/%2e%2e/secret/s.txt",
    "/public/%2E%2E/secret/s.txt",
    "/public/.%2e/secret/s.txt",
    "/public/%2e./secret/s.txt",
    "/public/%2e/%2e%2e/secret/s.txt",
    "/%2e/secret/s.txt",
    "/public/.../secret/s.txt",
    "/public/..%20/secret/s.txt",
    "/public/..%09/secret/s.txt",
    // Slashes that are encoded, doubled, or turned round.
    "/public/..%2fsecret/s.txt",
    "/public/..%2Fsecret%2Fs.txt",
    "/public%2f..%2fsecret%2fs.txt",
    "/public/%2e%2e%2fsecret/s.txt",
    "/secret%2fs.txt",
    "/%2fsecret/s.txt",
    "%2fsecret/s.txt",
    "//secret/s.txt",
    "///secret///s.txt",
    "/secret//s.txt",
    "/public//../secret/s.txt",
    "/public/..//secret/s.txt",
    "/public/..\\secret\\s.txt",
    "/public\\..\\secret\\s.txt",
    "/secret\\s.txt",
    "\\secret\\s.txt",
    "/public/..%5csecret%5cs.txt",
    "/secret%5Cs.txt",
    // Parameters of segments.
    "/public/..;/secret/s.txt",
    "/public/..;x=y/secret/s.txt",
    "/public/..%3b/secret/s.txt",
    "/secret;x/s.txt",
    "/secret/s.txt;/public/x",
    "/secret/s.txt%3b.txt",
    "/;x/secret/s.txt",
    // Letters that are encoded, once or twice.
    "/%73ecret/s.txt",
    "/%73%65%63%72%65%74/%73%2e%74%78%74",
    "/secret/s%2etxt",
    "/%2573ecret/s.txt",
    "/%25%37%33ecret/s.txt",
    "/public/%252e%252e/secret/s.txt",
    "/public/%25%32%65%25%32%65/secret/s.txt",
    "/public/%2%65%2%65/secret/s.txt",
    "/public/..%252fsecret/s.txt",
    "/public/..%25%32%66secret/s.txt",
    "/public/%25252e%25252e/secret/s.txt",
    "/public/..%255csecret/s.txt",
    "/%u0073ecret/s.txt",
    "/public/%u002e%u002e/secret/s.txt",
    "/public/%25u002e%25u002e/secret/s.txt",
    // Ends that are cut off.
    "/secret/s.txt%00",
    "/secret/s.txt%00.html",
    "/secret/s.txt%00/../../public/ok.txt",
    "/public/..%00/secret/s.txt",
    "/secret/s.txt%0a",
    "/secret/s.txt%0d%0a",
    "/secret/s.txt/",
    "/secret/s.txt.",
    "/secret/s.txt%20",
    // Bytes that are no UTF-8, too long for their character, or look like another one.
    "/public/%c0%ae%c0%ae/secret/s.txt",
    "/public/..%c0%afsecret/s.txt",
    "/public/..%e0%80%afsecret/s.txt",
    "/public/..%c1%9csecret/s.txt",
    "/public/..%ef%bc%8fsecret/s.txt",
    "/public/%ef%bc%8e%ef%bc%8e/secret/s.txt",
    "/public/..%ff/secret/s.txt",
    "/public/..\u{2215}secret/s.txt",
    // Percent signs that encode nothing.
    "/public/%/../secret/s.txt",
    "/public/%zz/../secret/s.txt",
    "/public/%2/../secret/s.txt",
    // Queries and fragments.
    "/secret/s.txt?/public/",
    "/secret/s.txt?x=/public/ok.txt",
    "/public/?/../../secret/s.txt",
    "/public/ok.txt?/../../secret/s.txt",
    "/public/%3f/../../secret/s.txt",
    "/public/%3f/%2e%2e/%2e%2e/secret/s.txt",
    "/public/%23/../../secret/s.txt",
    "/secret/s.txt#/public/",
    "/public/#/../../secret/s.txt",
    "/secret/s.txt%3f/public/",
    "/secret/s.txt%23/public/",
    // URLs, and what looks like one.
    "http://app.test/secret/s.txt",
    "https://app.test/secret/s.txt",
    "HTTPS://APP.TEST/secret/s.txt",
    "https://app.test/public/../secret/s.txt",
    "https://app.test//secret/s.txt",
    "https://app.test/public/%2e%2e/secret/s.txt",
    "https://app.test\\secret\\s.txt",
    "https://app.test?/../secret/s.txt",
    "https://app.test/public/@app.test/../../secret/s.txt",
    "https://public@app.test/secret/s.txt",
    "https:/secret/s.txt",
    "https:///secret/s.txt",
    "//app.test/secret/s.txt",
    "/https://app.test/secret/s.txt",
    // What is no path.
    "secret/s.txt",
    "?/secret/s.txt",
    "./secret/s.txt",
    "*",
    "/SECRET/s.txt",
    "/Secret/S.TXT",
    "/public/ok.txt HTTP/1.1 /../../secret/s.txt",
    " /secret/s.txt",
    "/public/ok.txt\t/../../secret/s.txt",
    "/public/\x0b../../secret/s.txt",
    "/public/ok.txt HTTP/1.1\nGET /secret/s.txt",
    "/public/ok.txt HTTP/1.1\rGET /secret/s.txt",
];

/// A file server of an application's own: it decodes, and then normalizes. With `lenient` it reads
/// each spelling in the worst way that a server is known for.
const NODE: &str = r#"
const [http, path, fs] = ["http", "path", "fs"].map(require);
const [root, lenient] = process.argv.slice(1);
http.createServer((request, response) => {
  let asked = request.url.replace(/^https?:\/\/[^\/?#]*/i, "").split(/[?#]/)[0];
  try {
    if (!lenient) asked = decodeURIComponent(asked);
    for (let round = 0; lenient && round < 3; round++) {
      asked = unescape(asked.replace(/%c0%ae/gi, ".").replace(/%c0%af|%e0%80%af|%c1%9c/gi, "/"));
    }
    if (lenient) {
      asked = asked.split(/[\0\r\n]/)[0].replace(/\\/g, "/").replace(/;[^\/]*/g, "");
    }
    response.end(fs.readFileSync(path.join(root, path.normalize("/" + asked))));
  } catch (error) {
    response.statusCode = 404;
    response.end("not here\n");
  }
}).listen(0, "127.0.0.1", function () { console.log("port", this.address().port); });
"#;

const GO: &str = "package main
import (\"fmt\"; \"net\"; \"net/http\"; \"os\")
func main() {
    listener, err := net.Listen(\"tcp\", \"127.0.0.1:0\")
    if err != nil { panic(err) }
    fmt.Println(\"port\", listener.Addr().(*net.TCPAddr).Port)
    panic(http.Serve(listener, http.FileServer(http.Dir(os.Args[1]))))
}";

/// A server of the two pages.
struct Origin {
    address: SocketAddr,
    _server: Talk,
}

impl Origin {
    /// One that says its port behind the word `port`.
    fn saying(command: &mut Command) -> Self {
        let server = Talk::start(command);
        Self { address: ([127, 0, 0, 1], server.port()).into(), _server: server }
    }

    /// One that is told its port.
    fn at(address: SocketAddr, command: &mut Command) -> Self {
        let server = Talk::start(command);
        until("the server to listen", || TcpStream::connect(address).ok());
        Self { address, _server: server }
    }

    fn node(root: &Path, more: &[&str]) -> Option<Self> {
        need("node").then(|| {
            Self::saying(Command::new("node").args(["-e", NODE, "--"]).arg(root).args(more))
        })
    }

    fn go(folder: &Folder, root: &Path) -> Option<Self> {
        if !need("go") {
            return None;
        }
        folder.write("files.go", GO);
        let mut build = Command::new("go");
        build.args(["build", "-o", "files", "files.go"]).current_dir(folder.path());
        let built = long_output(build.env("CGO_ENABLED", "0"));
        assert!(built.status.success(), "{}", built.text);
        Some(Self::saying(Command::new(folder.path().join("files")).arg(root)))
    }

    fn python(root: &Path) -> Option<Self> {
        need("python3").then(|| {
            let mut python = Command::new("python3");
            python.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]);
            Self::saying(python.arg(root))
        })
    }

    /// It decodes slashes, too.
    fn apache(folder: &Folder, root: &Path) -> Option<Self> {
        const PROGRAM: &str = "/usr/sbin/apache2";
        if !Path::new(PROGRAM).is_file() {
            crate::support::program::skip("Apache not found");
            return None;
        }
        let [address] = vacant();
        let at = folder.path().display();
        let modules = ["mpm_event", "authz_core"].map(|name| {
            format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n")
        });
        let user = match rustix::process::geteuid().is_root() {
            true => "User www-data\nGroup www-data\n",
            false => "",
        };
        let config = format!(
            "ServerRoot {at}\nPidFile {at}/apache.pid\nErrorLog {at}/apache.log\n\
             DefaultRuntimeDir {at}\nMutex pthread\n{}{user}Listen {address}\n\
             ServerName app.test\nAllowEncodedSlashes On\nKeepAlive Off\nDocumentRoot {}\n",
            modules.concat(),
            root.display()
        );
        let config = folder.write("apache.conf", config);
        // One process, which ends if it is killed.
        Some(Self::at(address, Command::new(PROGRAM).arg("-f").arg(config).arg("-X")))
    }

    fn nginx(folder: &Folder, root: &Path) -> Option<Self> {
        if !need("nginx") {
            return None;
        }
        let [address] = vacant();
        let at = folder.path().display();
        let config = format!(
            "daemon off; master_process off; pid {at}/nginx.pid; error_log {at}/nginx.log;\n\
             events {{}}\nhttp {{ access_log off; client_body_temp_path {at}/a; \
             proxy_temp_path {at}/b; fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d; \
             scgi_temp_path {at}/e;\nserver {{ listen {address}; root {}; }} }}\n",
            root.display()
        );
        let config = folder.write("nginx.conf", config);
        Some(Self::at(address, Command::new("nginx").arg("-c").arg(config)))
    }
}

fn request(spelling: &str) -> String {
    format!("GET {spelling} HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n")
}

/// Returns an origin's whole answer, without an edge.
fn direct(origin: &Origin, spelling: &str) -> String {
    let mut client = connect(origin.address);
    client.write_all(request(spelling).as_bytes()).unwrap();
    String::from_utf8_lossy(&ending(&mut client, SOON).0).into_owned()
}

/// Returns the whole answer through an edge.
fn through(edge: &Edge, pki: &Pki, spelling: &str) -> String {
    let mut client = Offer::new(pki).connect(edge.address(), "app.test");
    client.write_all(request(spelling).as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A refused request may end without close_notify.
    let _ = client.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns the spellings that get the secret by HTTP/2, all on one connection, which lives.
fn got_by_two(edge: &Edge, pki: &Pki) -> Vec<&'static &'static str> {
    if !need("node") {
        return Vec::new();
    }
    let mut client = Streams::new(edge.port(), None, &pki.text("ca.pem"));
    let (mut got, mut refused) = (Vec::new(), 0);
    for some in SPELLINGS.chunks(40) {
        let requests: Vec<_> = some.iter().map(|path| ("GET", (*path).to_owned())).collect();
        let answers = client.ask(&requests);
        refused += answers.iter().filter(|(status, _)| *status == 403).count();
        let both = some.iter().zip(answers);
        got.extend(both.filter(|(_, (_, body))| body.contains(SECRET)).map(|(path, _)| path));
    }
    let last = client.ask(&[("GET", "/public/ok.txt".to_owned())]);
    assert_eq!(last, [(200, PUBLIC.to_owned())]);
    // Most are requests that the rules see. Others are malformed.
    assert!(refused > SPELLINGS.len() / 2, "{refused} of {}", SPELLINGS.len());
    got
}

/// No spelling gets the secret from this origin, by a list of what is allowed or of what is
/// refused.
fn test_origin(name: &str, start: impl FnOnce(&Folder, &Path) -> Option<Origin>) {
    let pki = Pki::new();
    let root = pki.folder.path().join("root");
    // With the usual mode: an origin may be another user.
    for (folder, file, text) in [("public", "ok.txt", PUBLIC), ("secret", "s.txt", SECRET)] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
        std::fs::write(root.join(folder).join(file), text).unwrap();
    }
    let Some(origin) = start(&pki.folder, &root) else { return };
    let serves = |spelling: &&&str| direct(&origin, spelling).contains(SECRET);
    let tricks: Vec<_> = SPELLINGS.iter().filter(serves).collect();
    eprintln!("{name}: {} of {} get the secret: {tricks:?}", tricks.len(), SPELLINGS.len());
    // The plain one, and tricks: the table is of use against this origin.
    assert!(tricks.len() >= 4, "{name}");

    let upstream = format!("http://{}", origin.address);
    let allow = pki.terminate(&upstream, "method = \"GET\"\npath = \"/public/*\"");
    let refuse = "[[rule]]\naction = \"refuse\"\npath = \"/secret/*\"\n".to_owned();
    for rules in [allow, refuse + &pki.terminate(&upstream, "")] {
        let edge = Edge::start(&pki.folder, &rules);
        let answer = through(&edge, &pki, "/public/%6fk.txt");
        assert!(answer.ends_with(PUBLIC), "{name}: {answer}");
        let got: Vec<_> = SPELLINGS
            .iter()
            .filter(|spelling| through(&edge, &pki, spelling).contains(SECRET))
            .collect();
        let got = [got, got_by_two(&edge, &pki)].concat();
        assert!(got.is_empty(), "{name} serves the secret for {got:?} behind {rules}");
    }
}

#[test]
fn the_table_has_sixty_spellings() {
    let different: std::collections::BTreeSet<_> = SPELLINGS.iter().collect();
    assert!(different.len() == SPELLINGS.len() && SPELLINGS.len() >= 60, "{}", SPELLINGS.len());
}

#[test]
fn no_spelling_gets_the_secret_from_node() {
    test_origin("Node", |_, root| Origin::node(root, &[]));
}

#[test]
fn no_spelling_gets_the_secret_from_a_lenient_server() {
    test_origin("lenient", |_, root| Origin::node(root, &["lenient"]));
}

#[test]
fn no_spelling_gets_the_secret_from_go() {
    test_origin("Go", Origin::go);
}

#[test]
fn no_spelling_gets_the_secret_from_python() {
    test_origin("Python", |_, root| Origin::python(root));
}

#[test]
fn no_spelling_gets_the_secret_from_apache() {
    test_origin("Apache", Origin::apache);
}

#[test]
fn no_spelling_gets_the_secret_from_nginx() {
    test_origin("nginx", Origin::nginx);
}
