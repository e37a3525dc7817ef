//! Lists of names and networks from files, in a running edge: what a reload reads again, and what
//! becomes of connections when a list is replaced.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;

use crate::support::client::Offer;
use crate::support::edge::{self, LISTENER, connect};
use crate::support::web::get;
use crate::support::{
    Edge, End, Folder, Hello, Pki, SOON, Upstream, alert_of, ending, expect, output, until,
};

/// A connection that sent a hello with this name.
fn hello(to: SocketAddr, name: &str) -> TcpStream {
    let mut client = connect(to);
    client.write_all(&Hello::named(name).bytes()).unwrap();
    client
}

fn is_refused(to: SocketAddr, name: &str) {
    let (bytes, end) = ending(&mut hello(to, name), SOON);
    assert!(alert_of(&bytes).is_some(), "{name}: {end:?}");
    assert_ne!(end, End::Open);
}

/// A connection that the upstream echoes.
fn is_spliced(to: SocketAddr, name: &str) -> TcpStream {
    let mut client = hello(to, name);
    expect(&mut client, &Hello::named(name).bytes());
    client
}

#[test]
fn a_reload_reads_the_files_again() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let rule = format!(
        "[[rule]]\nsni = {{ file = \"allow.txt\" }}\nclient = {{ file = \"nets.txt\" }}\n\
         action = \"splice\"\nupstream = \"{}\"\n",
        upstream.address
    );
    folder.write("allow.txt", "host.test\n.squid.test\n");
    folder.write("nets.txt", "127.0.0.0/8 # loopback\n");
    let file = folder.write("edge.toml", format!("{LISTENER}{rule}"));
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(&file);
    let running = Edge::spawn(command, 1);
    let to = running.address();
    let reload = || output(edge::eyelet(&folder).arg("reload").arg(&file));
    let mut held = is_spliced(to, "host.test");
    is_spliced(to, "squid.test");
    is_spliced(to, "below.squid.test");
    is_refused(to, "other.test");

    folder.write("allow.txt", "other.test\r\n");
    let said = reload();
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    is_spliced(to, "other.test");
    is_refused(to, "host.test");
    held.write_all(b"goes on").unwrap();
    expect(&mut held, b"goes on");

    folder.write("allow.txt", "host.test\nhost test\n");
    let said = reload();
    assert_eq!(said.status.code(), Some(2), "{}", said.text);
    assert!(said.text.contains("allow.txt:2:5: error: a line has one entry"), "{}", said.text);
    is_spliced(to, "other.test");

    folder.write("allow.txt", "other.test\n");
    folder.write("nets.txt", "192.0.2.0/24\n");
    let said = reload();
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    is_refused(to, "other.test");
    let said = output(edge::eyelet(&folder).arg("check").arg(&file));
    assert!(said.text.starts_with("allow.txt: 1 name\nnets.txt: 1 network\n"), "{}", said.text);
}

/// No reload: the files are watched. The next request of a kept connection is decided by the newest
/// list.
#[test]
fn a_list_is_replaced_while_connections_are_kept() {
    let (pki, upstream) = (Pki::new(), Upstream::http());
    let rule = pki.terminate(&format!("http://{}", upstream.address), "");
    let rule = rule.replace("\"app.test\"", "{ file = \"allow.txt\" }");
    pki.folder.write("allow.txt", "app.test\n");
    let edge = Edge::start(&pki.folder, &format!("{rule}[log]\naccess = \"off\"\n"));
    let to = edge.address();
    let mut client = Offer::new(&pki).connect(to, "app.test");
    assert_eq!(get(&mut client, "/").status, 200);
    pki.folder.write("allow.txt", "other.test\n");
    let refused = until("the new list", || {
        let status = get(&mut client, "/").status;
        (status != 200).then_some(status)
    });
    assert_eq!(refused, 421);
    is_refused(to, "app.test");
    edge.wait_log("allow.txt: its new contents are in use");
    // A mistake keeps the last good list.
    pki.folder.write("allow.txt", "app.test\n*\n");
    edge.wait_log("allow.txt:2:1: error");
    is_refused(to, "app.test");
    pki.folder.write("allow.txt", "app.test\n");
    let mut client = until("the mended list", || Offer::new(&pki).try_connect(to, "app.test").ok());
    assert_eq!(get(&mut client, "/").status, 200);
    assert_eq!(edge.log().matches("allow.txt:2:1: error").count(), 1, "{}", edge.log());
    // Each change has made a configuration, and only the last one is kept.
    drop(client);
    until("one configuration", || {
        edge.signal(Signal::USR1);
        let log = edge.log();
        let accounts = log.lines().rev().find(|line| line.contains("configurations: "))?;
        accounts.contains("configurations: 1 held").then_some(())
    });
}

/// Names by regular expressions: from the configuration, and from a file that is watched.
#[test]
fn names_are_taken_by_regular_expressions() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    folder.write("ads.txt", "# one a line\n^ads[0-9]+\\.\n(a+)+$\n");
    let rules = format!(
        "[[rule]]\nsni = {{ regex_file = \"ads.txt\" }}\naction = \"refuse\"\n\
         [[rule]]\nsni = {{ regex = ['(^|\\.)Bank[0-9]*\\.test$', '^.*pay'] }}\n\
         action = \"splice\"\nupstream = \"{}\"\n",
        upstream.address
    );
    let edge = Edge::start(&folder, &rules);
    let to = edge.address();
    for name in ["bank.test", "www.BANK7.test", "xpay.test"] {
        is_spliced(to, name);
    }
    for name in ["notbank.test", "bank.test.evil", "ads12.bank.test", "bank.a"] {
        is_refused(to, name);
    }
    // Back-tracking would never come to an end of these.
    let label = "a".repeat(60);
    is_refused(to, &[&*label, &label, &label, "b"].join("."));

    folder.write("ads.txt", "^bank7\\.\n");
    edge.wait_log("ads.txt: its new contents are in use");
    is_refused(to, "bank7.test");
    is_spliced(to, "ads12.bank.test");
    // Mistakes keep the last good list.
    folder.write("ads.txt", "^ads\n(bank\n");
    edge.wait_log("ads.txt:2:1: error: unclosed group");
    is_refused(to, "bank7.test");
    is_spliced(to, "ads12.bank.test");
    let many: String = (0..10_000).map(|n| format!("^ads{n}-\n")).collect();
    folder.write("ads.txt", many);
    edge.wait_log("ads.txt:513:1: error: more than 512 entries");
    is_refused(to, "bank7.test");
    folder.write("ads.txt", "^www\\.\n");
    let replaced = || edge.log().matches("ads.txt: its new contents").count();
    until("the mended list", || (replaced() == 2).then_some(()));
    is_refused(to, "www.bank.test");
    is_spliced(to, "bank7.test");
}

/// `check` counts what a file has, and `explain` shows the expression that matched.
#[test]
fn check_and_explain_show_regular_expressions() {
    let folder = Folder::new();
    folder.write("ads.txt", "^ads\n^track\n");
    let rules = "[[rule]]\nsni = [{ regex = '^x[0-9]' }, { regex_file = \"ads.txt\" }]\n\
                 action = \"refuse\"\n";
    let file = folder.write("edge.toml", format!("{LISTENER}{rules}"));
    let said = output(edge::eyelet(&folder).arg("check").arg(&file));
    assert_eq!(said.status.code(), Some(0), "{}", said.text);
    assert!(said.text.starts_with("ads.txt: 2 regular expressions\n"), "{}", said.text);
    for (name, by) in [
        ("tracker.test", "listed:  sni by \"^track\" in ads.txt\n"),
        ("x7.test", "listed:  sni by \"^x[0-9]\"\n"),
        ("y.test", "sni = regex \"^x[0-9]\", regex_file \"ads.txt\" does not hold for"),
    ] {
        let said = output(edge::eyelet(&folder).arg("explain").arg(&file).args(["--sni", name]));
        assert!(said.text.contains(by), "{name}: {}", said.text);
    }
}

/// Half a list refuses too little, and half a configuration here splices all names. Another list
/// that changes meanwhile is read, and they are not.
#[test]
fn what_is_being_written_is_read_when_its_writer_closes_it() {
    let (folder, upstream) = (Folder::new(), Upstream::echo());
    let rules = |more: &str| {
        let refuse = ["deny", "other"].map(|list| {
            format!("[[rule]]\nsni = {{ file = \"{list}.txt\" }}\naction = \"refuse\"\n")
        });
        let splice =
            format!("[[rule]]\naction = \"splice\"\nupstream = \"{}\"\n", upstream.address);
        let refuse = refuse.concat();
        format!("workers = 1\nwatch = true\n{more}{LISTENER}{refuse}{splice}")
    };
    let last = "sni = [\"app.test\", \"denied.test\"]\n";
    let deny = folder.write("deny.txt", "denied.test\n");
    folder.write("other.txt", "one.test\n");
    let file = folder.write("edge.toml", rules("") + last);
    let mut command = edge::eyelet(&folder);
    command.arg("serve").arg(&file);
    let edge = Edge::spawn(command, 1);
    let to = edge.address();
    let other = |name: &str, times: usize| {
        folder.write("other.txt.new", format!("{name}\n"));
        fs::rename(folder.path().join("other.txt.new"), folder.path().join("other.txt")).unwrap();
        let read = || edge.log().matches("other.txt: its new contents").count();
        until("the other list", || (read() == times).then_some(()));
    };

    // At its start the edge looks once more at what it has read, and only then waits for events.
    // The first change may be seen by that look, and the second one is not.
    other("two.test", 1);
    other("three.test", 2);
    let mut writer = File::create(&deny).unwrap();
    writer.write_all(b"new.test\n").unwrap();
    other("four.test", 3);
    is_refused(to, "denied.test");
    assert!(!edge.log().contains("deny.txt: "), "{}", edge.log());
    writer.write_all(b"denied.test\n").unwrap();
    drop(writer);
    edge.wait_log("deny.txt: its new contents");
    is_refused(to, "denied.test");

    let listen = "[[listener]]\naddress = \"127.0.0.2:0\"\n";
    let mut writer = File::create(&file).unwrap();
    writer.write_all(rules(listen).as_bytes()).unwrap();
    for (times, name) in [(4, "five.test"), (5, "six.test")] {
        other(name, times);
        is_refused(to, "evil.test");
    }
    writer.write_all(last.as_bytes()).unwrap();
    drop(writer);
    edge.wait_log("listening on 127.0.0.2");
    drop(is_spliced(to, "app.test"));
    is_refused(to, "evil.test");
    // The half had this listener already.
    until("the new rules", || (count_serves(&edge) > 0).then_some(()));
    assert_eq!(count_serves(&edge), 1, "{}", edge.log());
}

fn count_serves(edge: &Edge) -> usize {
    let log = edge.log();
    log.lines().filter(|line| line.contains("configuration ") && line.contains(" serves")).count()
}
