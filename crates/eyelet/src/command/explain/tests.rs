//! The exact output of `eyelet explain` for the examples, through the command line's parser.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use clap::Parser;

use super::*;

/// Somebody who lets a connection pass has let its requests pass.
#[test]
fn a_request_is_held_by_a_rule_on_requests_or_by_another_rule_than_its_connections() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edge.toml");
    let http = "certificate = \"local\"\nupstream = \"http://127.0.0.1:3000\"\n";
    let listener = "[[listener]]\naddress = \"127.0.0.1:8443\"\n";
    let of = |name: &str, more: &str| format!("[[rule]]\nname = \"{name}\"\n{more}\n{http}");
    let (hold, reads) = ("action = \"hold\"", "action = \"terminate\"\nmethod = \"GET\"");
    for (rules, said) in [
        (of("ask", hold), "request: PUT / passes by rule 1 \"ask\""),
        (of("ask", &format!("{hold}\npath = \"/*\"")), "request: PUT / is held by rule 1 \"ask\""),
        (of("reads", reads) + &of("ask", hold), "request: PUT / is held by rule 2 \"ask\""),
    ] {
        std::fs::write(&file, listener.to_owned() + &rules).unwrap();
        let (out, code) = run(&file, "--sni app.localhost --method PUT");
        assert!(out.contains(said), "{rules}: {out}");
        assert_eq!(code, ExitCode::SUCCESS);
    }
}

#[derive(Parser)]
struct Typed {
    #[command(flatten)]
    args: ExplainArgs,
}

fn run(file: &Path, flags: &str) -> (String, ExitCode) {
    // `""` is how a shell writes an empty word.
    let words = flags.split_whitespace().map(|word| if word == "\"\"" { "" } else { word });
    let typed = ["explain", file.to_str().unwrap()].into_iter().chain(words);
    let mut out = Vec::new();
    let code = explain(&Typed::try_parse_from(typed).unwrap().args, &[], &mut out);
    (String::from_utf8(out).unwrap(), code)
}

#[track_caller]
fn check(example: &str, flags: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(example);
    let (out, code) = run(&file, flags);
    assert_eq!(out, expected, "{flags}");
    assert_eq!(code, ExitCode::SUCCESS);
}

#[test]
fn an_egress_gateway() {
    check(
        "egress.toml",
        "--sni ftp.MIRROR.example --client 10.20.0.5",
        "rule:    rule 1 \"packages\"\n\
         action:  splice to ftp.mirror.example:443\n\
         asked:   the hello was read\n\
         No rule comes before it.\n",
    );
    check(
        "egress.toml",
        "--sni evil.example --client 10.20.0.5",
        "rule:    rule 3 \"everything else\"\n\
         action:  refuse\n\
         reason:  no rule for this name\n\
         alert:   access_denied (49)\n\
         asked:   the hello was read\n\
         Rules before it that did not match:\n  \
           rule 1 \"packages\": sni = \"files.packages.example\", \"index.registry.example\", \
             \"packages.example\", \"registry.scripts.example\", \"static.registry.example\" and \
             1 more does not hold for \"evil.example\"\n  \
           rule 2 \"mirror\": sni = \"mirror.corp.example\" does not hold for \"evil.example\"\n",
    );
    check(
        "egress.toml",
        "--sni packages.example --client 10.21.0.5",
        "rule:    rule 3 \"everything else\"\n\
         action:  refuse\n\
         reason:  no rule for this connection\n\
         alert:   access_denied (49)\n\
         asked:   the hello was not read\n\
         Rules before it that did not match:\n  \
           rule 1 \"packages\": client = \"10.20.0.0/16\" does not hold for 10.21.0.5\n  \
           rule 2 \"mirror\": client = \"10.20.0.0/16\" does not hold for 10.21.0.5\n",
    );
}

const BUILDS: &str = "rule:    rule 1 \"builds\"\n\
     action:  splice to a.packages.example:443\n\
     listed:  client by \"10.20.0.0/16\" in builders.txt\n\
     listed:  connect by \".packages.example\" in allow.txt\n\
     listed:  sni by \".packages.example\" in allow.txt\n\
     asked:   the hello was read\n\
     No rule comes before it.\n";

/// The name has a rule, for others.
#[test]
fn a_name_with_a_rule_for_other_clients() {
    let file = std::env::temp_dir().join(format!("eyelet-others-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"[::]:8443\"\n\
        [[rule]]\nname = \"staging\"\nsni = \"staging.example\"\nclient = \"10.0.0.0/8\"\n\
        action = \"splice\"\nupstream = \"192.0.2.1:443\"\n\
        [[rule]]\nname = \"app\"\nsni = \"app.example\"\n\
        action = \"splice\"\nupstream = \"192.0.2.1:443\"\n";
    std::fs::write(&file, text).unwrap();
    let reason = |flags: &str| {
        let (out, _) = run(&file, flags);
        out.lines().find(|line| line.starts_with("reason:")).map(str::to_owned)
    };
    let of_client = reason("--sni staging.example --client 192.0.2.7");
    let of_name = reason("--sni other.example --client 192.0.2.7");
    let of_both = reason("--sni staging.example --client 10.0.0.7");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(of_client.unwrap(), "reason:  no rule for this name from this client");
    assert_eq!(of_name.unwrap(), "reason:  no rule for this name");
    assert_eq!(of_both, None);
}

#[test]
fn lists_from_files() {
    check(
        "ci.toml",
        "--connect A.packages.example:443 --sni a.packages.example --client 10.20.3.4",
        BUILDS,
    );
    for (flags, miss) in [
        (
            "--connect registry.example:80 --client 10.20.3.4",
            "connect = file \"allow.txt\" with port 443 does not hold for registry.example:80",
        ),
        (
            "--connect x.cdn.example:443 --sni cdn.example --client 10.20.3.4",
            "sni = file \"allow.txt\" does not hold for \"cdn.example\"",
        ),
        (
            "--connect x.cdn.example:443 --client 10.21.3.4",
            "client = file \"builders.txt\" does not hold for 10.21.3.4",
        ),
    ] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ci.toml");
        let (out, _) = run(&file, flags);
        assert!(out.ends_with(&format!("  rule 1 \"builds\": {miss}\n")), "{out}");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ci.toml");
    let (out, _) = run(&file, "--connect x.cdn.example:443");
    assert!(out.contains("does not hold for 127.0.0.1, which is assumed (--client)\n"), "{out}");
}

#[test]
fn an_intercepting_gateway() {
    check(
        "gateway.toml",
        "--connect git.EXAMPLE:22",
        "rule:    rule 1 \"git\"\n\
         action:  splice to the destination, git.example:22\n\
         asked:   the hello was not read\n\
         No rule comes before it.\n",
    );
    check(
        "gateway.toml",
        "--connect 10.0.0.1:22 --sni packages.example",
        "rule:    rule 3 \"packages\"\n\
         action:  splice to packages.example:443\n\
         asked:   the hello was read\n\
         Rules before it that did not match:\n  \
           rule 1 \"git\": connect = \"git.example:22\" does not hold for 10.0.0.1:22\n  \
           rule 2 \"appliance\": listener = \"lan\", \"lan6\" does not hold for \"proxy\"\n",
    );
    check(
        "gateway.toml",
        "--listener lan6 --destination 198.51.100.7:443",
        "rule:    rule 2 \"appliance\"\n\
         action:  splice to the destination, 198.51.100.7:443\n\
         asked:   the hello was not read\n\
         Rules before it that did not match:\n  \
           rule 1 \"git\": connect = \"git.example:22\" does not hold for a connection without \
         CONNECT\n",
    );
}

#[test]
fn every_matcher_has_a_flag() {
    check(
        "many-names.toml",
        "--sni a.staging.example --listener office",
        "rule:    rule 1 \"staging is for the office\"\n\
         action:  splice to 10.0.1.1:443\n\
         asked:   the hello was read\n\
         No rule comes before it.\n",
    );
    check(
        "many-names.toml",
        "--sni a.staging.example --listener 0.0.0.0:8443 --tls-version-max 1.2",
        "rule:    rule 2\n\
         action:  refuse\n\
         reason:  refused by name\n\
         alert:   unrecognized_name (112)\n\
         asked:   the hello was read\n\
         Rules before it that did not match:\n  \
           rule 1 \"staging is for the office\": listener = \"office\" does not hold for \
             \"public\"\n",
    );
    let staging = "  rule 1 \"staging is for the office\": listener = \"office\" does not hold \
        for \"public\"\n  rule 2: sni = \"*.staging.example\" does not hold for a hello without a \
        name\n";
    check(
        "many-names.toml",
        "--sni \"\" --alpn h2,acme-tls/1",
        &format!(
            "rule:    rule 3 \"acme\"\n\
             action:  splice to 10.0.0.80:443\n\
             asked:   the hello was read\n\
             Rules before it that did not match:\n{staging}"
        ),
    );
    let (out, _) = run(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/many-names.toml"),
        "--no-sni --client 172.16.0.1 --tls-version-max 1.2",
    );
    assert!(out.contains("alert:   handshake_failure (40)"), "{out}");
    assert!(out.contains("rule 7 \"no name\": client = \"192.168.0.0/16\""), "{out}");
    let (out, _) = run(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/many-names.toml"),
        "--sni-malformed --alpn acme-tls/1",
    );
    assert!(out.contains("reason:  malformed name: NUL in the host name"), "{out}");
    assert!(out.contains("rule 3 \"acme\": sni_malformed = false does not hold for"), "{out}");
    let (out, code) = run(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/many-names.toml"),
        "--no-sni --alpn h2,,http/1.1",
    );
    assert_eq!(out, "--alpn: a protocol has 1 to 255 bytes\n");
    assert_eq!(code, ExitCode::from(2));
}

#[test]
fn evidence_that_would_be_asked_for() {
    let file = std::env::temp_dir().join(format!("eyelet-evidence-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"[::]:8443\"\nkind = \"redirect\"\n\
        [[rule]]\nname = \"trial\"\nshadow = true\nsni_verified = false\n\
        evidence = [\"certificate\", \"dns\"]\naction = \"refuse\"\n\
        [[rule]]\nname = \"bank\"\ncertificate_names = \"*.bank.test\"\naction = \"splice\"\n\
        upstream = \"destination\"\n\
        [[rule]]\ntls_compression = \"offered\"\naction = \"refuse\"\n";
    std::fs::write(&file, text).unwrap();
    let to = "--sni www.bank.test --destination 192.0.2.1:443";
    let (nothing, _) = run(&file, to);
    let (lie, _) = run(&file, &format!("{to} --false-by dns,certificate"));
    let (evidence, _) = run(&file, &format!("{to} --true-by dns --certificate-names a.BANK.test"));
    let (other, _) = run(&file, "--sni a.test --true-by certificate --tls-compression");
    std::fs::remove_file(&file).unwrap();
    let shadow = "shadow:  rule 1 \"trial\" would refuse\n";
    // Facts that only the shadow rule asks for do not fail closed, and no connection waits for
    // them.
    let unknown = "asks:    192.0.2.1:443 for its certificate for www.bank.test, by a handshake: \
        not known here (--true-by certificate or --false-by certificate); that fails closed\n\
        shadow:  rule 1 \"trial\" asks for what DNS says (--true-by dns or --false-by dns); it \
        waits for nothing\n";
    assert!(nothing.contains(unknown), "{nothing}");
    assert!(nothing.contains("rule:    none matches\n"), "{nothing}");
    assert!(lie.contains("by a handshake: it speaks against the name\n"), "{lie}");
    assert!(lie.contains(shadow) && lie.contains("does not hold for none\n"), "{lie}");
    assert!(evidence.contains("rule:    rule 2 \"bank\"\n"), "{evidence}");
    assert!(
        evidence.contains("rule 1 \"trial\": sni_verified = false by \"dns\", \"certificate\" ")
    );
    assert!(!evidence.contains("shadow:"), "{evidence}");
    assert!(other.contains("reason:  refused by TLS compression\n"), "{other}");
    assert!(other.contains("alert:   handshake_failure (40)\n"), "{other}");
}

#[test]
fn compression_that_is_forbidden_has_the_hello_read() {
    let file = std::env::temp_dir().join(format!("eyelet-forbid-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"[::]:8443\"\nkind = \"redirect\"\n\
        [[rule]]\naction = \"splice\"\nupstream = \"destination\"\n";
    let asks = [("", "not read"), ("forbid_tls_compression = true\n", "read")];
    for (option, asked) in asks {
        std::fs::write(&file, format!("{text}{option}")).unwrap();
        let (out, _) = run(&file, "--sni a.test --destination 192.0.2.1:443");
        assert!(out.contains(&format!("asked:   the hello was {asked}\n")), "{out}");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn facts_that_no_flag_gives_fail_closed() {
    let file = std::env::temp_dir().join(format!("eyelet-explain-{}.toml", std::process::id()));
    let mut text = "[[listener]]\naddress = \"[::]:8443\"\n".to_owned();
    for n in 0..40 {
        text += &format!("[[rule]]\nsni = \"h{n}.example\"\naction = \"refuse\"\n");
    }
    text += "[[rule]]\ndestination = \"203.0.113.0/24:443\"\naction = \"splice\"\n\
        upstream = \"a.example:443\"\n\
        [[rule]]\nja4 = \"t13d1516h2_8daaf6152771_02713d6af862\"\nech = true\n\
        action = \"refuse\"\n";
    std::fs::write(&file, text).unwrap();
    let (unknown, _) = run(&file, "--sni x.example --ech");
    let (known, _) = run(&file, "--sni x.example --ech --destination 203.0.113.7:443 --ja4 unlike");
    let (nowhere, code) = run(&file, "--listener nowhere");
    std::fs::remove_file(&file).unwrap();
    assert!(unknown.contains("rule:    rule 42\n"), "{unknown}");
    assert!(unknown.contains("reason:  refused by fingerprint\n"), "{unknown}");
    assert!(unknown.contains("destination and fingerprint are unknown"), "{unknown}");
    assert!(unknown.ends_with("  and 21 more\n"), "{unknown}");
    assert!(known.contains("action:  splice to a.example:443\n"), "{known}");
    assert_eq!(nowhere, "no listener is called \"nowhere\"; expected one of \"[::]:8443\"\n");
    assert_eq!(code, ExitCode::from(2));
}

/// The kernel's destination is not guarded, and neither is one of the public Internet.
#[test]
fn a_destination_that_is_guarded_is_said() {
    let file = std::env::temp_dir().join(format!("eyelet-guard-{}.toml", std::process::id()));
    let listener = |name: &str, port: u16, key: &str| {
        format!("[[listener]]\nname = \"{name}\"\naddress = \"[::1]:{port}\"\n{key}\n")
    };
    let rule = "[[rule]]\naction = \"splice\"\nupstream = \"destination\"\n\
        upstream_allow = \"10.1.0.0/16\"\n";
    let text = [
        listener("proxy", 1, "kind = \"connect\""),
        listener("header", 2, "proxy_protocol_from = \"192.0.2.1\""),
        listener("redirect", 3, "kind = \"redirect\""),
        rule.to_owned(),
    ];
    std::fs::write(&file, text.concat()).unwrap();
    let fault = "10.0.0.1 is an internal address that upstream_allow does not list\n";
    let by_header = "--listener header --destination";
    for (flags, expected) in [
        (
            "--connect 10.0.0.1:443".to_owned(),
            "action:  refuse, instead of splice\n\
             reason:  upstream: 10.0.0.1, which upstream_allow does not list\n\
             answer:  403, before the hello\n"
                .to_owned(),
        ),
        ("--connect 10.1.0.1:443".to_owned(), String::new()),
        (
            format!("{by_header} 10.0.0.1:443"),
            format!("guard:   refused if a PROXY header names it: {fault}"),
        ),
        (format!("{by_header} 10.1.0.1:443"), String::new()),
        (format!("{by_header} 8.8.8.8:443"), String::new()),
        ("--listener redirect --destination 10.0.0.1:443".to_owned(), String::new()),
    ] {
        let (out, code) = run(&file, &flags);
        let told = ["guard", "reason", "answer", "action:  refuse"];
        let is_told = |line: &&str| told.iter().any(|told| line.starts_with(told));
        let said: String = out.split_inclusive('\n').filter(is_told).collect();
        assert_eq!(out.contains("action:  splice to the"), !said.contains("action"), "{out}");
        assert_eq!((said, code), (expected, ExitCode::SUCCESS), "{flags}: {out}");
    }
    std::fs::remove_file(&file).unwrap();
}

/// A CONNECT has a name of its own, and a client that asks for one that no rule lists hears so at
/// once.
#[test]
fn a_connect_names_its_hello() {
    check("ci.toml", "--connect a.packages.example:443 --client 10.20.3.4", BUILDS);
    let file = std::env::temp_dir().join(format!("eyelet-early-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"[::]:3128\"\nkind = \"connect\"\n\
        [[rule]]\nname = \"web\"\nconnect = \"*:443\"\nsni = \"a.example\"\naction = \"splice\"\n\
        upstream = \"destination\"\n\
        [[rule]]\nname = \"rest\"\naction = \"refuse\"\n";
    std::fs::write(&file, text).unwrap();
    let (early, _) = run(&file, "--connect b.example:443");
    let (word, _) = run(&file, "--connect 8.8.8.8:443 --sni a.example");
    let (confirmed, _) = run(&file, "--connect 8.8.8.8:443 --sni a.example --true-by dns");
    let (ech, _) = run(&file, "--connect 8.8.8.8:443 --sni a.example --ech");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        early,
        "rule:    rule 2 \"rest\"\n\
         action:  refuse\n\
         reason:  no rule for this name\n\
         answer:  403, before the hello\n\
         asked:   the hello was not read\n\
         Rules before it that did not match:\n  \
           rule 1 \"web\": sni = \"a.example\" does not hold for \"b.example\"\n"
    );
    let said = "name:    a.example is the client's word: nothing here confirms it\n";
    assert!(word.contains(said), "{word}");
    let outer = "ech:     a.example is the outer name: another one may be hidden\n";
    assert!(ech.contains(outer) && !word.contains("ech:"), "{ech}");
    assert!(confirmed.contains(said), "no rule asks DNS: {confirmed}");
}

/// A log line of a connection is enough to ask the rules about it again.
#[test]
fn a_log_line_is_explained() {
    let file = std::env::temp_dir().join(format!("eyelet-line-{}.toml", std::process::id()));
    let text = "[[listener]]\nname = \"nat\"\naddress = \"[::]:8443\"\nkind = \"redirect\"\n\
        [[rule]]\nname = \"lies\"\nsni_verified = false\nevidence = [\"dns\", \"certificate\"]\n\
        action = \"refuse\"\n\
        [[rule]]\nname = \"web\"\nsni = \"*.a.example\"\naction = \"splice\"\n\
        upstream = \"{sni}:443\"\n";
    std::fs::write(&file, text).unwrap();
    let line = "{\"time\":\"2026-11-21T09:30:00.123Z\",\"id\":\"0-17\",\"listener\":\"nat\",\
        \"client\":\"192.0.2.7:50314\",\"destination\":\"198.51.100.1:443\",\
        \"outcome\":\"refused\",\"rule\":\"lies\",\"reason\":\"the name is not verified\",\
        \"sni\":\"www.a.example\",\"alpn\":[\"h2\"],\"tls_version\":\"1.3\",\
        \"ja4\":\"t13d1516h2_8daaf6152771_b0da82dd1658\",\"connect\":null,\
        \"tls_compression\":\"none\",\"evidence\":{\"dns\":[\"192.0.2.9\"],\
        \"dns_agrees\":false,\"certificate\":{\"names\":[\"other.example\"],\
        \"issuer\":\"CN=x\",\"valid\":false}}}";
    for flag in [
        "--client=192.0.2.1",
        "--tls-version-max=1.2",
        "--tls-compression",
        "--ja4=x",
        "--transport=quic",
    ] {
        let typed = ["explain", "x.toml", "--log-line", line, flag];
        assert!(Typed::try_parse_from(typed).is_err(), "{flag}: the line says it");
    }
    let with_flags = |line: &str, flags: &[&str]| {
        let typed = ["explain", file.to_str().unwrap(), "--log-line", line];
        let typed = typed.iter().chain(flags);
        let mut out = Vec::new();
        let code = explain(&Typed::try_parse_from(typed).unwrap().args, &[], &mut out);
        (String::from_utf8(out).unwrap(), code)
    };
    let asked = |line: &str| with_flags(line, &[]);
    let (flag, _) = with_flags(line, &["--true-by", "dns"]);
    let (against, _) = with_flags(
        &line.replace("\"dns_agrees\":false", "\"dns_agrees\":true"),
        &["--false-by", "dns"],
    );
    let (lie, _) = asked(line);
    let (truth, _) = asked(&line.replace("\"dns_agrees\":false", "\"dns_agrees\":true"));
    let (bad, code) = asked("not a line");
    let (cut, _) = asked(&line[..40]);
    let (several, _) = asked(&format!("{line}\n{line}\n"));
    let (log, _) = asked(file.to_str().unwrap());
    let (gone, _) = asked(&line.replace("\"nat\"", "\"lan\""));
    std::fs::remove_file(&file).unwrap();
    assert!(
        lie.starts_with(
            "logged:  2026-11-21T09:30:00.123Z refused by lies: the name is not verified\n\
             rule:    rule 1 \"lies\"\naction:  refuse\n"
        ),
        "{lie}"
    );
    assert!(flag.contains("rule:    rule 2 \"web\"\n"), "{flag}");
    assert!(against.contains("rule:    rule 1 \"lies\"\n"), "a flag counts more: {against}");
    assert!(truth.contains("rule:    rule 2 \"web\"\n"), "{truth}");
    assert!(bad.starts_with("--log-line: expected a line of an access log in JSON, such"), "{bad}");
    assert!(cut.starts_with("--log-line: expected a line of an access log in JSON: EOF"), "{cut}");
    assert_eq!(several, "--log-line: expected one line of an access log, found several\n");
    assert!(log.contains("is a file: `tail -n 1 /"), "{log}");
    assert_eq!(code, ExitCode::from(2));
    assert!(gone.ends_with("no listener is called \"lan\"; expected one of \"nat\"\n"), "{gone}");
}

#[test]
fn several_upstreams() {
    let file =
        std::env::temp_dir().join(format!("eyelet-explain-several-{}.toml", std::process::id()));
    let text = "[[listener]]\naddress = \"127.0.0.1:443\"\n[[rule]]\naction = \"splice\"\n\
        upstream = [\"a.example:1\", \"192.0.2.1:1\"]\nupstream_check = \"connect\"\n";
    std::fs::write(&file, text).unwrap();
    let (out, _) = run(&file, "--sni app.example");
    std::fs::remove_file(&file).unwrap();
    let expected = "rule:    rule 1\n\
        action:  splice to one of 2 upstreams\n\
        one of:  a.example:1\n\
        one of:  192.0.2.1:1\n\
        chosen:  two at random, and the one with less open of these\n\
        checked: by a connection\n\
        asked:   the hello was not read\n\
        No rule comes before it.\n";
    assert_eq!(out, expected);
}

/// A capture of the pcap format whose frames have this link type.
fn capture(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link].map(u32::to_le_bytes).concat();
    for frame in frames {
        let len = frame.len() as u32;
        file.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        file.extend(frame);
    }
    file
}

/// An IP packet of this version with a UDP datagram.
fn udp(version: u8, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len() as u16).to_be_bytes();
    let header = match version {
        4 => [&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17][..], &[0; 10]].concat(),
        _ => [&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &[0; 32]].concat(),
    };
    [&*header, &[0xc3, 0x50, 1, 0xbb], &len, &[0, 0], payload].concat()
}

/// A line of a flow is asked about as QUIC: rule 1 is for TCP.
fn a_line_of_a_flow(config: &Path) {
    let line = "{\"time\":\"2026-11-28T09:30:00.123Z\",\"listener\":\"both\",\
        \"client\":\"192.0.2.7:50314\",\"outcome\":\"refused\",\"sni\":\"example.com\",\
        \"tls_version\":\"1.3\",\"transport\":\"quic\",\
        \"ja4\":\"q13d0310h3_55b375c5d22e_a5d9a6d2b4c5\"}";
    for (line, rule) in [(line.into(), 3), (line.replace("\"quic\"", "\"tcp\""), 1)] {
        let file = config.to_str().unwrap();
        let typed = Typed::try_parse_from(["explain", file, "--log-line", &line]).unwrap();
        let mut out = Vec::new();
        explain(&typed.args, &[], &mut out);
        let out = String::from_utf8(out).unwrap();
        assert!(out.contains(&format!("rule:    rule {rule}\n")), "{out}");
    }
}

#[test]
fn datagrams_of_quic() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let config = "[[listener]]\naddress = \"127.0.0.1:443\"\n\
        [[listener]]\nname = \"both\"\naddress = \"127.0.0.1:8443\"\nquic = true\n\
        [[rule]]\ntransport = \"tcp\"\naction = \"splice\"\nupstream = \"a:1\"\n\
        [[rule]]\nja4 = \"q13d0310al_55b375c5d22e_a5d9a6d2b4c5\"\naction = \"refuse\"\n\
        [[rule]]\nlistener = \"both\"\nsni = \"example.com\"\naction = \"refuse\"\n";
    let config = write("edge.toml", config.as_bytes());
    let config = Path::new(&config);
    // The example of RFC 9001 A.2, and other packets behind it.
    let hex = include_str!("../../../../quic/src/tests/bytes/rfc9001.hex");
    let digits: String = hex.lines().skip(1).take_while(|line| !line.starts_with('#')).collect();
    let pairs = digits.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    let initial: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();

    let vlan = [&[0; 12][..], &[0x81, 0, 0, 1, 0x08, 0], &udp(4, &initial)].concat();
    let tcp = [&[0; 12][..], &[0x08, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6], &[0; 40]].concat();
    let files = [
        write("a.hex", hex.as_bytes()),
        write("ip.pcap", &capture(101, &[udp(6, &[0x40; 30]), udp(6, &initial)])),
        write("lan.pcap", &capture(1, &[tcp, vlan])),
    ];
    for file in files {
        let (out, code) = run(config, &format!("--quic {file}"));
        assert!(out.starts_with("hello:   from 1 datagram, ja4 q13d0"), "{out}");
        assert!(
            out.contains("rule:    rule 3\naction:  refuse\nreason:  refused by name\n"),
            "{out}"
        );
        assert!(out.contains("answer:  CONNECTION_CLOSE with code 0x170\n"), "{out}");
        assert!(out.contains("rule 1: transport = \"tcp\" does not hold for \"quic\"\n"), "{out}");
        assert_eq!(code, ExitCode::SUCCESS);
    }
    a_line_of_a_flow(config);
    let mut cut = initial.clone();
    cut.truncate(1199);
    let mut forged = initial.clone();
    forged[600] ^= 1;
    let mut other = initial.clone();
    other[4] = 9;
    let cooked = capture(1, &[vec![0; 60]]);
    for (file, why) in [
        (capture(101, &[udp(4, &cut)]), "no hello: QUIC packet is cut short"),
        (capture(101, &[udp(4, &forged)]), "no hello: Initial packet does not authenticate"),
        (
            capture(101, &[udp(4, &other)]),
            "no hello: QUIC version 0x00000009; an edge decides it by rules that ask for no hello",
        ),
        (cooked.clone(), "no datagram"),
        (cooked[..cooked.len() - 1].to_vec(), "a capture whose end is missing"),
        (capture(147, &[]), "a capture of link type 147, which is not read"),
        (
            vec![0x0a, 0x0d, 0x0d, 0x0a],
            "a capture in the pcapng format; `editcap -F pcap IN OUT` makes it pcap",
        ),
        (b"c0ff0".to_vec(), NEITHER),
        (vec![0xff; 9], NEITHER),
    ] {
        let file = write("bad", &file);
        let (out, code) = run(config, &format!("--quic {file}"));
        assert_eq!(out, format!("--quic: {file}: {why}\n"));
        assert_eq!(code, ExitCode::from(check::MISTAKES));
    }
}

/// The message about a file that has no datagrams.
const NEITHER: &str = "neither a capture (pcap) nor datagrams in hex, with an empty line between";

/// A command in a sandbox is explained by the very rules that would serve it.
#[test]
fn a_profile_of_a_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    let profile = "[sandbox.agent]\nallow = [\"forge.example\", \".mirror.example:8443\", \
        \"tcp db.example:5432\"]\n\
        [[sandbox.agent.rule]]\nname = \"look\"\nsni = \"forge.example\"\naction = \"terminate\"\n\
        certificate = \"mint\"\nmethod = \"GET\"\npath = \"/org/*\"\n\
        [sandbox.dry]\ndry_run = true\nallow = \"a.example\"\n\
        [sandbox.asks]\nask = true\nallow = \"a.example\"\n[[sandbox.asks.rule]]\n\
        action = \"terminate\"\ncertificate = \"mint\"\nmethod = \"GET\"\n";
    std::fs::write(&file, profile).unwrap();
    let ask = "--profile agent --sni forge.example";
    for (flags, parts) in [
        (&*format!("{ask} --path /org/a"), &["request: GET /org/a passes by rule"][..]),
        (
            &*format!("{ask} --method POST --path /org/a"),
            &[
                "action:  terminate for destination",
                "request: POST /org/a gets 403 by no rule: no rule for this request",
                "\"allowed at 443: look\": method = \"GET\" does not hold",
            ],
        ),
        ("--profile agent --connect a.mirror.example:8443", &["splice to a.mirror.example:8443"]),
        // A false name in the hello gains nothing.
        (
            "--profile agent --connect a.mirror.example:8443 --sni evil.example",
            &["rule:    none matches", "action:  refuse"],
        ),
        ("--profile agent --connect db.example:5432", &["tcp db.example:5432", "splice to db."]),
        ("--profile agent --connect db.example:22", &["the kernel refuses 22: no entry"]),
        (
            "--profile agent --sni evil.example",
            &["dns:     evil.example does not exist inside", "action:  refuse"],
        ),
        ("--profile agent --connect 192.0.2.1:443", &["rule:    none matches"]),
        (&*format!("{ask} --transport quic"), &["the kernel refuses QUIC at 443"]),
        (
            "--profile asks --sni a.example --method PUT",
            &["request: PUT / is held by rule", "method = \"GET\" does not hold"],
        ),
        ("--profile dry --sni evil.example", &["\"not on the list at 443\"", "splice to evil."]),
    ] {
        let (out, code) = run(&file, flags);
        let missing = parts.iter().find(|part| !out.contains(**part));
        assert_eq!((missing, code), (None, ExitCode::SUCCESS), "{flags}: {out}");
    }
    for (flags, mistake) in [
        ("--profile agent", "--profile needs what the command dials"),
        ("--profile other --sni a.example", "no profile [sandbox.other] here; the file has: agent"),
    ] {
        let (out, code) = run(&file, flags);
        assert!(out.contains(mistake), "{flags}: {out}");
        assert_eq!(code, ExitCode::from(check::MISTAKES));
    }
    for flag in ["--ask", "--true-by=dns", "--false-by=dns", "--certificate-names=a.example"] {
        let typed = ["explain", "x.toml", "--profile", "agent", "--sni", "a.example", flag];
        assert!(Typed::try_parse_from(typed).is_err(), "{flag}: no rule of a profile asks for it");
    }
    std::fs::write(&file, "[sandbox.agent]\nallow = \"https://a.example/\"\n").unwrap();
    let (out, code) = run(&file, "--profile agent --sni a.example");
    assert!(out.contains("this is a URL; expected the name alone: `a.example`"), "{out}");
    assert_eq!(code, ExitCode::from(check::MISTAKES));
}
