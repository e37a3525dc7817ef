//! Files that change while the edge runs: certificates, keys, client_ca and the configuration.
//! Must not know how they are watched; it writes files as operators and their tools do.

use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustls::HandshakeKind;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::support::client::{Offer, TLS13, alert_in, echo, handshake};
use crate::support::edge::{self, LISTENER};
use crate::support::pki::{Kind, NAMES};
use crate::support::program::{need, skip};
use crate::support::web::get;
use crate::support::{Edge, Pki, Tls, Upstream, output, until};

/// The certificate in a file.
fn leaf_in(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).unwrap()
}

fn shown(tls: &Tls) -> CertificateDer<'static> {
    tls.conn.peer_certificates().unwrap()[0].clone()
}

/// Waits until new connections get the certificate in this file.
fn until_shown(pki: &Pki, edge: &Edge, file: &Path) {
    let expected = leaf_in(file);
    until("the new certificate", || {
        let tls = Offer::new(pki).connect(edge.address(), "app.test");
        (shown(&tls) == expected).then_some(())
    });
}

fn count(edge: &Edge, text: &str) -> usize {
    edge.log().matches(text).count()
}

fn pair(folder: &Path, name: &str) -> [Vec<u8>; 2] {
    ["pem", "key"].map(|kind| fs::read(folder.join(format!("{name}.{kind}"))).unwrap())
}

/// Each file is truncated and written in place, the key long after its certificate.
#[test]
fn a_renewed_pair_is_shown_once_it_is_whole_and_nothing_else_changes() {
    let (pki, app) = (Pki::new(), Upstream::echo());
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("tcp://{}", app.address), ""));
    let config = Offer { versions: TLS13, ..Offer::new(&pki) }.config();
    let connect = || handshake(config.clone(), edge::connect(edge.address()), "app.test").unwrap();
    let mut held = connect();
    echo(&mut held, b"before");
    let old = shown(&held);
    let new = pki.server("new", &NAMES, Kind::P384).certificate;
    let [certificate, key] = pair(pki.folder.path(), "new");
    let fault = "edge.key does not fit the certificate in";
    fs::write(pki.file("edge.pem"), &certificate[..certificate.len() / 2]).unwrap();
    edge.wait_log("edge.pem: broken PEM");
    fs::write(pki.file("edge.pem"), &certificate).unwrap();
    edge.wait_log(fault);
    // It is tried again at each event, and the same fault is logged once.
    fs::write(pki.file("edge.key"), "").unwrap();
    edge.wait_log("edge.key has no private key");
    assert_eq!(shown(&Offer::new(&pki).connect(edge.address(), "app.test")), old);
    fs::write(pki.file("edge.key"), &key).unwrap();
    until_shown(&pki, &edge, &pki.file("new.pem"));
    assert_eq!(shown(&Offer::new(&pki).connect(edge.address(), "app.test")), new);
    assert_eq!(count(&edge, fault), 1, "{}", edge.log());
    edge.wait_log("edge.pem: its new contents are in use");
    echo(&mut held, b"goes on");
    let mut resumed = connect();
    echo(&mut resumed, b"again");
    assert_eq!(resumed.conn.handshake_kind(), Some(HandshakeKind::Resumed));
}

/// An editor, and certbot: new files beside the old ones, which are then renamed.
#[test]
fn files_that_are_renamed_over_others_are_read() {
    let (pki, app) = (Pki::new(), Upstream::echo());
    let edge = Edge::start(&pki.folder, &pki.terminate(&format!("tcp://{}", app.address), ""));
    for kind in [Kind::P384, Kind::Rsa, Kind::P256] {
        pki.server("new", &NAMES, kind);
        fs::copy(pki.file("new.pem"), pki.file("copy.pem")).unwrap();
        fs::rename(pki.file("new.key"), pki.file("edge.key")).unwrap();
        fs::rename(pki.file("new.pem"), pki.file("edge.pem")).unwrap();
        until_shown(&pki, &edge, &pki.file("copy.pem"));
    }
}

/// Thousands of certificates may be held. A change of the rules costs a look at their times.
#[test]
fn a_reload_opens_no_certificate_that_has_not_changed() {
    const SETS: usize = 70;
    let (pki, app) = (Pki::new(), Upstream::echo());
    let rules: String = (0..SETS)
        .map(|n| {
            let name = format!("n{n}");
            pki.server(&name, &[&format!("{name}.app.test")], Kind::P256);
            let rule = pki.terminate(&format!("tcp://{}", app.address), "");
            let rule = rule.replace("edge.", &format!("{name}."));
            let rule = rule.replace("app.test", &format!("{name}.app.test"));
            rule.replace("\"app\"", &format!("\"{name}\""))
        })
        .collect();
    let file = pki.folder.write("edge.toml", format!("{LISTENER}{rules}"));
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&events, pki.folder.path(), WatchFlags::OPEN).unwrap();
    let opened = || {
        let mut bytes = [MaybeUninit::uninit(); 64 << 10];
        let mut reader = inotify::Reader::new(&events, &mut bytes);
        let mut names = Vec::new();
        while let Ok(event) = reader.next() {
            names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        names.retain(|name| name.ends_with(".pem") || name.ends_with(".key"));
        names
    };
    // A file that has changed a moment ago may change again without a new time.
    until("a reload that opens nothing", || {
        opened();
        let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
        assert_eq!(said.status.code(), Some(0), "{}", said.text);
        opened().is_empty().then_some(())
    });
    // The watching thread may read it before the reload does, which then opens nothing.
    pki.server("n7", &["n7.app.test"], Kind::P384);
    let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    let read = opened();
    assert!(!read.is_empty() && read.iter().all(|name| name.starts_with("n7.")), "{read:?}");
    let tls = Offer::new(&pki).connect(edge.address(), "n7.app.test");
    assert_eq!(shown(&tls), leaf_in(&pki.file("n7.pem")));
}

/// A user namespace in which nobody gets an inotify instance.
#[test]
fn files_are_read_again_where_the_system_watches_nothing() {
    if !need("unshare") {
        return;
    }
    let (pki, app) = (Pki::new(), Upstream::echo());
    let rule = pki.terminate(&format!("tcp://{}", app.address), "");
    pki.folder.write("edge.toml", format!("workers = 1\n{LISTENER}{rule}"));
    let none = "echo 0 > /proc/sys/user/max_inotify_instances";
    let in_namespace = |command: &str| {
        let mut program = std::process::Command::new("unshare");
        program.args(["--user", "--map-root-user", "sh", "-c", &format!("{none} && {command}")]);
        program.env("XDG_RUNTIME_DIR", pki.folder.path()).current_dir(pki.folder.path());
        program
    };
    if !output(&mut in_namespace("true")).status.success() {
        return skip("this system has no user namespaces");
    }
    let mut command = in_namespace("exec \"$0\" serve edge.toml");
    command.arg(env!("CARGO_BIN_EXE_eyelet"));
    let edge = Edge::spawn(command, 1);
    edge.wait_log("no folder can be watched");
    pki.server("new", &NAMES, Kind::P256);
    fs::copy(pki.file("new.pem"), pki.file("edge.pem")).unwrap();
    fs::copy(pki.file("new.key"), pki.file("edge.key")).unwrap();
    until_shown(&pki, &edge, &pki.file("new.pem"));
    assert_eq!(count(&edge, "can be watched"), 1, "{}", edge.log());
}

/// A mounted secret: tls.crt -> ..data/tls.crt, ..data -> ..2026_1, and ..data is replaced.
#[test]
fn a_secret_whose_link_is_swapped_is_read() {
    let (pki, app) = (Pki::new(), Upstream::echo());
    let secret = pki.file("secret");
    fs::create_dir(&secret).unwrap();
    let version = |name: &str, [certificate, key]: [Vec<u8>; 2]| {
        fs::create_dir(secret.join(name)).unwrap();
        fs::write(secret.join(name).join("tls.crt"), certificate).unwrap();
        pki.folder.write(&format!("secret/{name}/tls.key"), key);
        let _ = fs::remove_file(secret.join("..new"));
        symlink(name, secret.join("..new")).unwrap();
        fs::rename(secret.join("..new"), secret.join("..data")).unwrap();
    };
    version("..1", pair(pki.folder.path(), "edge"));
    symlink("..data/tls.crt", secret.join("tls.crt")).unwrap();
    symlink("..data/tls.key", secret.join("tls.key")).unwrap();
    let rule = pki.terminate(&format!("tcp://{}", app.address), "");
    let rule = rule.replace("edge.pem", "secret/tls.crt").replace("edge.key", "secret/tls.key");
    let edge = Edge::start(&pki.folder, &rule);
    let mut errors = 0;
    for number in 2..7 {
        pki.server("new", &NAMES, Kind::P256);
        version(&format!("..{number}"), pair(pki.folder.path(), "new"));
        fs::remove_dir_all(secret.join(format!("..{}", number - 1))).unwrap();
        until_shown(&pki, &edge, &pki.file("new.pem"));
        // The edge reads the files again just after its start. If this look meets the first swap
        // halfway, it logs errors. From the third swap on, only events cause a look.
        if number == 3 {
            let used = || count(&edge, "tls.crt: its new contents are in use");
            until("both changes in the log", || (used() == 2).then_some(()));
            errors = count(&edge, "ERROR");
        }
    }
    assert_eq!(count(&edge, "ERROR"), errors, "{}", edge.log());
}

#[test]
fn a_folder_that_is_removed_and_made_again_is_watched_again() {
    let (pki, app) = (Pki::new(), Upstream::echo());
    let folder = pki.file("live/app");
    let put = |name: &str| {
        fs::create_dir_all(&folder).unwrap();
        let [certificate, key] = pair(pki.folder.path(), name);
        fs::write(folder.join("app.pem"), certificate).unwrap();
        pki.folder.write("live/app/app.key", key);
    };
    put("edge");
    let rule = pki.terminate(&format!("tcp://{}", app.address), "");
    let rule = rule.replace("edge.pem", "live/app/app.pem");
    let edge = Edge::start(&pki.folder, &rule.replace("edge.key", "live/app/app.key"));
    for _ in 0..2 {
        let logged = count(&edge, "app.pem: No such file");
        fs::remove_dir_all(pki.file("live")).unwrap();
        until("the fault", || (count(&edge, "app.pem: No such file") > logged).then_some(()));
        Offer::new(&pki).connect(edge.address(), "app.test");
        pki.server("new", &NAMES, Kind::P256);
        put("new");
        until_shown(&pki, &edge, &pki.file("new.pem"));
    }
}

#[test]
fn new_authorities_verify_new_clients_and_held_connections_go_on() {
    let (pki, next, app) = (Pki::new(), Pki::new(), Upstream::echo());
    fs::copy(pki.file("ca.pem"), pki.file("clients.pem")).unwrap();
    let rule = pki.terminate(&format!("tcp://{}", app.address), "client_ca = \"clients.pem\"\n");
    let edge = Edge::start(&pki.folder, &rule);
    let (old, new) = (pki.client("old"), next.client("new"));
    let connect = |leaf| {
        let offer = Offer { certificate: Some(leaf), versions: TLS13, ..Offer::new(&pki) };
        // In TLS 1.3 the refusal comes after the client's handshake.
        let mut tls = offer.try_connect(edge.address(), "app.test")?;
        std::io::Write::write_all(&mut tls, b"x")?;
        std::io::Read::read_exact(&mut tls, &mut [0])?;
        Ok::<_, std::io::Error>(tls)
    };
    let mut held = connect(&old).unwrap();
    // Both authorities have the same name, so the signature is what does not fit.
    assert_eq!(alert_in(&connect(&new).unwrap_err()), Some(51), "decrypt_error");
    // A broken file keeps the last good one.
    fs::write(pki.file("clients.pem"), "-----BEGIN CERTIFICATE-----\n").unwrap();
    edge.wait_log("client_ca");
    drop(connect(&old).unwrap());
    fs::copy(next.file("ca.pem"), pki.file("clients.pem")).unwrap();
    let accepted = until("the new authorities", || connect(&new).ok());
    assert_eq!(alert_in(&connect(&old).unwrap_err()), Some(51), "decrypt_error");
    drop(accepted);
    echo(&mut held, b"goes on");
}

/// Rules with the same `client_ca` ask for the same clients, whatever else they say.
#[test]
fn a_client_that_was_verified_serves_for_another_rule_with_the_same_authorities() {
    let (pki, app) = (Pki::new(), Upstream::http());
    let rule = |more: &str| {
        let more = format!("client_ca = \"ca.pem\"\n{more}");
        pki.terminate(&format!("http://{}", app.address), &more)
    };
    let file = pki.folder.write("edge.toml", format!("{LISTENER}{}", rule("")));
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let leaf = pki.client("client");
    let offer = Offer { certificate: Some(&leaf), alpn: &["http/1.1"], ..Offer::new(&pki) };
    let mut held = offer.connect(edge.address(), "app.test");
    assert_eq!(get(&mut held, "/").status, 200);
    let changed = rule("alpn_select = [\"http/1.1\"]\n");
    pki.folder.write("edge.toml", format!("{LISTENER}{changed}"));
    let said = output(edge::eyelet(&pki.folder).arg("reload").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    assert_eq!(get(&mut held, "/").status, 200);
}

/// A mount namespace in which the test's folder is /etc.
#[test]
fn a_name_that_appears_in_the_systems_hosts_is_dialled() {
    if !rustix::process::geteuid().is_root() {
        return skip("needs root");
    }
    if !need("unshare") {
        return;
    }
    let (pki, app) = (Pki::new(), Upstream::echo());
    pki.folder.write("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
    pki.folder.write("hosts", "127.0.0.1 localhost\n");
    let upstream = format!("tcp://app.example:{}", app.address.port());
    let rule = pki.terminate(&upstream, "");
    pki.folder.write("edge.toml", format!("workers = 1\n{LISTENER}{rule}"));
    let mut command = edge::eyelet(&pki.folder);
    let program = command.get_program().to_owned();
    command = std::process::Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "mount --bind \"$1\" /etc && exec \"$2\" serve /etc/edge.toml",
    ]);
    command.arg("sh").arg(pki.folder.path()).arg(program);
    command.env("XDG_RUNTIME_DIR", pki.folder.path());
    let edge = Edge::spawn(command, 1);
    let connect = || {
        let mut tls = Offer::new(&pki).connect(edge.address(), "app.test");
        std::io::Write::write_all(&mut tls, b"x").ok()?;
        std::io::Read::read_exact(&mut tls, &mut [0]).ok()
    };
    assert_eq!(connect(), None, "no such name");
    pki.folder.write("hosts.new", "127.0.0.1 localhost app.example\n");
    fs::rename(pki.file("hosts.new"), pki.file("hosts")).unwrap();
    until("the new hosts", connect);
}

/// A kept connection that the old roots have verified is not for new requests.
#[test]
fn an_upstream_is_verified_by_new_roots_without_a_reload() {
    let (pki, other) = (Pki::new(), Pki::new());
    let [own, other] = [&pki, &other].map(|pki| fs::read_to_string(pki.file("ca.pem")).unwrap());
    let app = Upstream::https(pki.server("up", &["127.0.0.1"], Kind::P256));
    pki.folder.write("roots.pem", &own);
    let url = format!("https://{}", app.address);
    let edge = Edge::start(&pki.folder, &pki.terminate(&url, "upstream_ca = \"roots.pem\"\n"));
    let mut client = Offer::new(&pki).connect(edge.address(), "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    // In one step each time, for each fault that the edge sees is logged.
    pki.folder.write("roots.pem", &own[..own.len() / 2]);
    edge.wait_log("upstream_ca ");
    assert_eq!(get(&mut client, "/").status, 200, "a broken file changes nothing");
    pki.folder.write("roots.pem", other);
    // Each request before the change keeps the connection to the upstream from getting too old.
    until("the new roots", || (get(&mut client, "/").status == 503).then_some(()));
    edge.wait_log("roots.pem: its new contents are in use");
    pki.folder.write("roots.pem", own);
    until("the old roots", || (get(&mut client, "/").status == 200).then_some(()));
    assert_eq!(count(&edge, "stays in use"), 1, "{}", edge.log());
}

#[test]
fn the_configuration_is_read_again_when_it_changes_if_it_says_so() {
    let (pki, app) = (Pki::new(), Upstream::echo());
    let rules = |more: &str| {
        let rule = pki.terminate(&format!("tcp://{}", app.address), "");
        format!("workers = 1\nwatch = true\n{more}{LISTENER}{rule}")
    };
    let text = rules("");
    let file = pki.folder.write("edge.toml", &text);
    let mut command = edge::eyelet(&pki.folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let mut held = Offer::new(&pki).connect(edge.address(), "app.test");
    echo(&mut held, b"before");
    let listen = "[[listener]]\naddress = \"127.0.0.2:0\"\n";
    // As editors write: a new file, renamed over the old one.
    let put = |text: &str| {
        pki.folder.write("edge.toml.new", text);
        fs::rename(pki.file("edge.toml.new"), &file).unwrap();
    };
    put(&rules(listen));
    edge.wait_log("configuration 2 serves");
    edge.wait_log("listening on 127.0.0.2");
    put("[[listener]]\naddress = \"nowhere\"\n");
    edge.wait_log("edge.toml:2:11: error");
    edge.wait_log("reload: nothing has changed");
    echo(&mut held, b"goes on");
    Offer::new(&pki).connect(edge.address(), "app.test");
    // In place, and cut off in the middle: whoever wrote it has died, or the disk is full.
    let cut = text.rfind("upstream = ").unwrap() + "upstream = \"tcp".len();
    fs::write(&file, &text[..cut]).unwrap();
    let refused = || edge.log().matches("reload: nothing has changed").count();
    until("the second refusal", || (refused() >= 2).then_some(()));
    Offer::new(&pki).connect(edge.address(), "app.test");
    // In place, in two steps.
    fs::write(&file, "").unwrap();
    fs::write(&file, text.replace("watch = true", "watch = false")).unwrap();
    edge.wait_log("configuration 3 serves");
    put(&rules(listen));
    // Nobody looks now: a reload is the next that reads it.
    edge.signal(rustix::process::Signal::HUP);
    edge.wait_log("configuration 4 serves");
    echo(&mut held, b"to the end");
}
