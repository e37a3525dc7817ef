//! Several edges that share a store: a session begun at one resumes at the others.
//! Must not know the engine; the store is a folder, or a real redis-server.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::HandshakeKind::{self, Full, Resumed};

use crate::support::client::{Offer, TLS12, TLS13, echo, handshake};
use crate::support::edge::{self, LISTENER, eyelet};
use crate::support::upstream::vacant;
use crate::support::{Edge, Folder, Pki, Upstream, need, output, until};

/// The time for which a key seals in these tests.
const LIFETIME: Duration = Duration::from_secs(6);
const SECRET: &str = "c2VjcmV0IG9mIGEgZmxlZXQgaW4gYSB0ZXN0Li4uLi4=";
const OTHER_SECRET: &str = "YW5vdGhlciBzZWNyZXQgb2YgYSBmbGVldCBpbiBhIHRl";

struct Fleet {
    pki: Pki,
    upstream: Upstream,
    /// The `store`, and keys behind it.
    store: String,
    edges: Vec<Edge>,
}

impl Fleet {
    /// Three edges with this store.
    fn new(store: &str) -> Self {
        Self::with(Pki::new(), &format!("\"{store}\""))
    }

    fn with(pki: Pki, store: &str) -> Self {
        let upstream = Upstream::echo();
        pki.folder.write("fleet.secret", SECRET);
        pki.folder.write("other.secret", OTHER_SECRET);
        let mut fleet = Self { pki, upstream, store: store.to_owned(), edges: Vec::new() };
        for _ in 0..3 {
            let edge = fleet.start("fleet.secret");
            fleet.edges.push(edge);
        }
        fleet
    }

    fn start(&self, secret: &str) -> Edge {
        self.start_for(secret, LIFETIME)
    }

    fn start_for(&self, secret: &str, lifetime: Duration) -> Edge {
        let rule = self.pki.terminate(&format!("tcp://{}", self.upstream.address), "");
        let lifetime = lifetime.as_secs();
        let text = format!(
            "{LISTENER}{rule}[tickets]\nlifetime = \"{lifetime}s\"\n\
             [fleet]\nstore = {}\nsecret_file = \"{secret}\"\n",
            self.store
        );
        Edge::start_whole(&self.pki.folder, &text, |_| ())
    }

    /// Clients without tickets, once all edges have the same keys.
    fn clients(&self) -> Clients {
        let offer = |versions| Offer { versions, ..Offer::new(&self.pki) }.config();
        until("the keys at all edges", || {
            let (config, edges) = (offer(TLS13), &self.edges);
            // Back to the first: each has the key of the one before.
            let kinds = edges.iter().chain(edges.first()).map(|edge| kind(&config, edge.address()));
            kinds.skip(1).all(|kind| kind == Resumed).then_some(())
        });
        Clients { configs: [offer(TLS13), offer(TLS12)], last: None, edge: 0 }
    }

    /// True if the log of one edge has this.
    fn has_logged(&self, text: &str) -> bool {
        self.edges.iter().any(|edge| edge.log().contains(text))
    }
}

/// Clients that go from edge to edge, each with the ticket of the edge before.
struct Clients {
    configs: [Arc<ClientConfig>; 2],
    last: Option<Instant>,
    edge: usize,
}

impl Clients {
    /// Connects to the next edge. All must resume, but for those who have no ticket yet.
    fn connect(&mut self, fleet: &Fleet) {
        self.edge = (self.edge + 1) % fleet.edges.len();
        let began = Instant::now();
        for config in &self.configs {
            let kind = kind(config, fleet.edges[self.edge].address());
            // A ticket is good for one lifetime at least. This machine may be slower than that.
            let is_good = self.last.is_some_and(|last| last.elapsed() < LIFETIME);
            assert!(!is_good || kind == Resumed, "at edge {}: {:?}", self.edge, self.last);
        }
        // The tickets are younger than this.
        self.last = Some(began);
    }

    /// Goes on connecting until there is an answer.
    fn until(&mut self, fleet: &Fleet, what: &str, mut is_done: impl FnMut() -> bool) {
        until(what, || {
            self.connect(fleet);
            is_done().then_some(())
        });
    }

    /// Goes on connecting for so many rotations.
    fn over(&mut self, fleet: &Fleet, rotations: usize) {
        let mut periods = HashSet::new();
        self.until(fleet, "rotations", || {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            periods.insert(now.as_secs() / LIFETIME.as_secs());
            periods.len() > rotations
        });
    }
}

fn kind(config: &Arc<ClientConfig>, address: SocketAddr) -> HandshakeKind {
    let mut client = handshake(config.clone(), edge::connect(address), "app.test").unwrap();
    echo(&mut client, b"hello");
    client.conn.handshake_kind().unwrap()
}

/// A server of the package.
struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    fn start(address: SocketAddr, folder: &Path) -> Self {
        let port = address.port().to_string();
        Self::with(address, folder, &["--port", &port, "--requirepass", "pass word"])
    }

    fn with(address: SocketAddr, folder: &Path, options: &[&str]) -> Self {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(folder).args(options);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let redis = Self { child, address };
        until("redis-server", || TcpStream::connect(address).ok());
        redis
    }

    /// The names of the ticket keys with this lifetime.
    fn keys(&self, lifetime: Duration) -> Vec<String> {
        let (port, pattern) = (self.address.port(), lifetime.as_secs());
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port.to_string(), "-a", "pass word", "-n", "3", "--raw", "keys"]);
        let said = output(command.arg(format!("eyelet:tickets-{pattern}-*")));
        let mut names: Vec<_> = said.text.lines().map(str::to_owned).collect();
        names.retain(|name| name.starts_with("eyelet:"));
        names.sort_unstable();
        names
    }

    fn url(&self) -> String {
        format!("redis://:pass%20word@{}/3", self.address)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_session_goes_on_at_every_edge_and_while_redis_is_down() {
    if !need("redis-server") {
        return;
    }
    let (folder, [address]) = (Folder::new(), vacant());
    let redis = Redis::start(address, folder.path());
    let mut fleet = Fleet::new(&redis.url());
    let mut clients = fleet.clients();
    clients.over(&fleet, 2);
    assert!(!fleet.has_logged("WARN"), "{}", fleet.edges[0].log());
    drop(redis);
    let is_warned = || fleet.edges.iter().all(|edge| edge.log().contains("cannot be used"));
    clients.until(&fleet, "warnings", is_warned);
    clients.over(&fleet, 2);
    // Nothing is left of its data.
    let redis = Redis::start(address, folder.path());
    let is_back = || fleet.edges.iter().all(|edge| edge.log().contains("answers again"));
    clients.until(&fleet, "the store again", is_back);
    clients.over(&fleet, 1);
    for edge in &fleet.edges {
        let warnings = edge.log().matches("cannot be used").count();
        assert_eq!(warnings, 1, "one for the outage: {}", edge.log());
        assert!(!edge.log().contains("pass"), "{}", edge.log());
    }
    drop(redis);
    // The counter.
    fleet.edges[0].signal(rustix::process::Signal::TERM);
    fleet.edges[0].wait_exit();
    fleet.edges[0].wait_log("the store of the fleet failed ");
}

/// An edge never makes a key for the current period while it has one, so only a key that is put
/// again brings back the name.
#[test]
fn an_edge_that_starts_after_redis_lost_its_data_has_the_keys_of_the_others() {
    const PERIOD: Duration = Duration::from_secs(60);
    if !(need("redis-server") && need("redis-cli")) {
        return;
    }
    let (folder, [address]) = (Folder::new(), vacant());
    let redis = Redis::start(address, folder.path());
    let mut fleet = Fleet::new(&redis.url());
    fleet.edges = vec![fleet.start_for("fleet.secret", PERIOD)];
    let config = Offer::new(&fleet.pki).config();
    until("a ticket of the current key", || {
        let kinds = [(); 2].map(|()| kind(&config, fleet.edges[0].address()));
        (kinds[1] == Resumed && redis.keys(PERIOD).len() >= 2).then_some(())
    });
    let before = redis.keys(PERIOD);
    drop(redis);
    let redis = Redis::start(address, folder.path());
    until("the keys again", || {
        let now = redis.keys(PERIOD);
        before.iter().all(|name| now.contains(name)).then_some(())
    });
    fleet.edges.push(fleet.start_for("fleet.secret", PERIOD));
    assert_eq!(kind(&config, fleet.edges[1].address()), Resumed);
}

#[test]
fn an_edge_with_another_secret_says_so_and_serves() {
    if !need("redis-server") {
        return;
    }
    let (folder, [address]) = (Folder::new(), vacant());
    let redis = Redis::start(address, folder.path());
    let mut fleet = Fleet::new(&redis.url());
    let stranger = fleet.start("other.secret");
    stranger.wait_log("it was sealed with another secret");
    stranger.wait_log("the same `secret_file`");
    let config = Offer::new(&fleet.pki).config();
    assert_eq!(kind(&config, fleet.edges[0].address()), Full);
    assert_eq!(kind(&config, stranger.address()), Full);
    // This machine may be slower than a ticket is good for.
    until("a session of the stranger's own", || {
        (kind(&config, stranger.address()) == Resumed).then_some(())
    });
    assert_eq!(kind(&config, fleet.edges[1].address()), Full);
    // The others are not disturbed.
    fleet.clients().over(&fleet, 1);
    // The secret is put right.
    fleet.pki.folder.write("other.secret", SECRET);
    stranger.signal(rustix::process::Signal::HUP);
    stranger.wait_log("configuration 2 serves");
    fleet.edges.push(stranger);
    fleet.clients().over(&fleet, 1);
}

#[test]
fn redis_is_reached_by_tls() {
    if !need("redis-server") {
        return;
    }
    let (pki, [address]) = (Pki::new(), vacant());
    let [port, certificate, key, ca] = [
        address.port().to_string(),
        pki.text("edge.pem"),
        pki.text("edge.key"),
        pki.text("ca.pem"),
    ];
    let mut options = vec!["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"];
    options.extend(["--tls-cert-file", &certificate, "--tls-key-file", &key]);
    options.extend(["--tls-ca-cert-file", &ca]);
    let _redis = Redis::with(address, pki.folder.path(), &options);
    let fleet = Fleet::with(pki, &format!("\"rediss://{address}\"\nca = \"ca.pem\""));
    fleet.clients().over(&fleet, 1);
}

/// A cluster of two nodes. Eyelet knows one, which has half of the names.
#[test]
fn the_other_node_of_a_cluster_is_found() {
    if !(need("redis-server") && need("redis-cli")) {
        return;
    }
    let (folder, [one, two, bus_one, bus_two]) = (Folder::new(), vacant());
    let start = |address: SocketAddr, bus: SocketAddr| {
        let [port, bus] = [address, bus].map(|address| address.port().to_string());
        let nodes = format!("nodes-{port}.conf");
        let options = ["--port", &port, "--cluster-enabled", "yes", "--cluster-port", &bus];
        let options = [&options[..], &["--cluster-config-file", &nodes]].concat();
        Redis::with(address, folder.path(), &options)
    };
    let _nodes = [start(one, bus_one), start(two, bus_two)];
    let cluster = |address: SocketAddr, command: &[&str]| {
        let port = address.port().to_string();
        output(Command::new("redis-cli").args(["-p", &port, "cluster"]).args(command)).text
    };
    let [port, bus] = [two, bus_two].map(|address| address.port().to_string());
    cluster(one, &["addslotsrange", "0", "8191"]);
    cluster(two, &["addslotsrange", "8192", "16383"]);
    cluster(one, &["meet", "127.0.0.1", &port, &bus]);
    until("the cluster", || {
        let is_whole = |node| cluster(node, &["info"]).contains("cluster_state:ok");
        (is_whole(one) && is_whole(two)).then_some(())
    });
    let fleet = Fleet::new(&format!("redis://{one}"));
    // Each period has a name of its own, and so perhaps another node.
    fleet.clients().over(&fleet, 3);
    assert!(!fleet.has_logged("WARN"), "{}", fleet.edges[0].log());
}

#[test]
fn processes_of_one_machine_share_a_folder() {
    let folder = Folder::new();
    let fleet = Fleet::new(&format!("file:{}", folder.path().join("store").display()));
    fleet.clients().over(&fleet, 2);
    let files = std::fs::read_dir(folder.path().join("store")).unwrap().count();
    assert!(files <= 8, "{files} files: old ones are removed");
    assert!(!fleet.has_logged("WARN"), "{}", fleet.edges[0].log());
}

#[test]
fn a_store_that_is_down_at_the_start_stops_nobody() {
    // A store that accepts, and never answers.
    let silent = Upstream::by_hand();
    let fleet = Fleet::new(&format!("redis://{}", silent.address));
    let config = Offer::new(&fleet.pki).config();
    until("keys of its own", || {
        let address = fleet.edges[0].address();
        kind(&config, address);
        (kind(&config, address) == Resumed).then_some(())
    });
    fleet.edges[0].wait_log("get full handshakes");
}

#[test]
fn check_finds_mistakes_of_the_fleet() {
    let pki = Pki::new();
    pki.folder.write("fleet.secret", SECRET);
    pki.folder.write("short.secret", "short");
    let open = pki.folder.write("open.secret", SECRET);
    std::fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let rule = pki.terminate("tcp://127.0.0.1:1", "");
    for (fleet, expected) in [
        ("store = \"file:here\"\nsecret_file = \"fleet.secret\"", "ok, 1 listener, 1 rule\n"),
        ("store = \"file:here\"\nsecret_file = \"open.secret\"", "others may read or write the"),
        ("store = \"file:here\"", "[fleet] has no `secret_file`"),
        ("secret_file = \"fleet.secret\"", "[fleet] has no `store`"),
        ("store = \"file:here\"\nsecret_file = \"gone\"", "No such file"),
        ("store = \"file:here\"\nsecret_file = \"short.secret\"", "has 5 bytes; expected at least"),
        ("store = \"file:\"\nsecret_file = \"fleet.secret\"", "no folder; expected"),
        ("store = \"http://a\"\nsecret_file = \"fleet.secret\"", "not a store; expected"),
        ("store = \"redis://a:1/x\"\nsecret_file = \"fleet.secret\"", "not the number of a data"),
        ("store = \"redis://u@a\"\nsecret_file = \"fleet.secret\"", "without a password"),
        ("store = \"redis://:%z@a\"\nsecret_file = \"fleet.secret\"", "not part of a %XX"),
        ("store = \"redis://:%+5@a\"\nsecret_file = \"fleet.secret\"", "not part of a %XX"),
        ("store = \"redis://[::1]/1\"\nsecret_file = \"fleet.secret\"", "ok, 1 listener"),
        ("store = \"redis://a\"\nca = \"ca.pem\"\nsecret_file = \"fleet.secret\"", "`ca` is for a"),
        ("store = \"rediss://a\"\nca = \"ca.pem\"\nsecret_file = \"fleet.secret\"", "ok, 1 list"),
    ] {
        let text = format!("{LISTENER}{rule}[fleet]\n{fleet}\n");
        let file = pki.folder.write("edge.toml", text);
        let said = output(eyelet(&pki.folder).arg("check").arg(file));
        assert!(said.text.contains(expected), "{fleet}: {}", said.text);
    }
    for (tickets, expected) in [
        ("lifetime = \"500ms\"", "out of bounds"),
        ("lifetime = \"1500ms\"", "expected whole seconds"),
        ("lifetime = \"8days\"", "out of bounds"),
        ("enabled = 1", "expected true or false"),
    ] {
        let file = pki.folder.write("edge.toml", format!("{LISTENER}{rule}[tickets]\n{tickets}\n"));
        let said = output(eyelet(&pki.folder).arg("check").arg(file));
        assert!(said.text.contains(expected), "{tickets}: {}", said.text);
        assert_eq!(said.status.code(), Some(2));
    }
}
