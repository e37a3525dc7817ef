//! Rules with `certificate = "acme"`, and the table [acme].

use super::*;

const RULE: &str =
    "[[rule]]\naction = \"terminate\"\ncertificate = \"acme\"\nupstream = \"tcp://10.0.0.1:1\"\n";
const SERVER: &str = "[acme]\ndirectory = \"https://acme.test/directory\"\nterms_agreed = true\n";

/// The messages for a rule with more keys, and [acme].
fn said_of(rule: &str, server: &str) -> Vec<String> {
    said_below_listener(&format!("{RULE}{rule}{server}"))
}

#[test]
fn names_are_collected_once_and_in_order() {
    let rule = |more: &str| format!("{RULE}{more}\n");
    let text = format!(
        "{LISTENER}name = \"a\"\n[[listener]]\naddress = \"0.0.0.0:80\"\nkind = \"http_redirect\"\n\
         {}{}{}{SERVER}contact = \"mailto:ops@app.example\"\nprofile = \"short\"\n",
        rule("sni = \"b.example\"\nalpn = \"h2\"\nlistener = \"a\""),
        rule("sni = [\"B.example\", \"a.example\"]\nlistener = \"a\""),
        rule("sni = [\"*.c.example\", \"c.example\"]\nacme_on_demand = true\nlistener = \"a\""),
    );
    let loaded = read(&text).unwrap();
    assert_eq!(said(&loaded.warnings), [""; 0]);
    let acme = loaded.config.acme.as_ref().unwrap();
    assert_eq!(acme.wanted.names, ["a.example", "b.example", "c.example"].map(Box::from));
    assert_eq!(acme.wanted.listeners, [0]);
    assert!(acme.wanted.has_http && !acme.wanted.prefers_http);
    assert_eq!(acme.contact, ["mailto:ops@app.example"]);
    assert!(loaded.config.has_acme_on_demand());
    let away = read(&text.replace("0.0.0.0:443", "0.0.0.0:8443")).unwrap();
    assert!(away.config.acme.unwrap().wanted.prefers_http);
}

/// A wildcard is ordered itself, unless each name below it is. A DNS record validates it wherever
/// the listeners are.
#[test]
fn a_wildcard_is_ordered_by_a_dns_record() {
    let read = |rule: &str, more: &str| {
        let listener = "[[listener]]\naddress = \"0.0.0.0:8443\"\n";
        let loaded = read(&format!("{listener}{RULE}{rule}\n{SERVER}{more}\n")).unwrap();
        (loaded.config.acme.unwrap(), said(&loaded.warnings).len())
    };
    let both = "sni = [\"*.App.example\", \"app.example\"]";
    let (acme, _) = read(both, "");
    assert_eq!(acme.wanted.names, ["*.app.example", "app.example"].map(Box::from));
    assert_eq!(acme.wildcards().collect::<Vec<_>>(), ["*.app.example"]);
    assert!(acme.dns_hook.is_empty());
    let (acme, _) = read("sni = \"*.app.example\"\nacme_on_demand = true", "");
    assert_eq!(acme.wildcards().count(), 0);
    let hook = "dns_hook = [\"/bin/true\", \"app\"]";
    assert_eq!(read(both, hook).0.dns_hook, ["/bin/true", "app"]);
    for (rule, more, warnings) in [
        (both, "", 1),
        (both, hook, 0),
        ("sni = \"*.app.example\"", "", 0),
        ("sni = \"*.app.example\"\nacme_on_demand = true", "", 1),
    ] {
        assert_eq!(read(rule, more).1, warnings, "{rule} {more}");
    }
}

/// Tests which listeners a server can reach to validate a name.
#[test]
fn a_server_reaches_a_listener() {
    let said_of = |listeners: &str, rule: &str| {
        let text = format!("{listeners}{RULE}sni = \"app.example\"\n{rule}{SERVER}");
        said(&read(&text).unwrap().warnings)
    };
    let https = |port: u16| format!("[[listener]]\naddress = \"0.0.0.0:{port}\"\n");
    let http = |port: u16| format!("{}kind = \"http_redirect\"\n", https(port));
    let named = |port: u16| format!("{}name = \"n{port}\"\n", https(port));
    let behind = format!("{}proxy_protocol_from = \"10.0.0.0/8\"\n", https(8443));
    let nat = format!("{}kind = \"redirect\"\n", https(8443));
    for listeners in [https(443), https(8443) + &http(80), https(8443) + &https(443), behind, nat] {
        assert_eq!(said_of(&listeners, ""), [""; 0], "{listeners}");
    }
    for (listeners, rule) in [
        (https(8443), ""),
        (https(8443) + &http(8080), ""),
        // Port 443 is another rule's, and what is at port 80 speaks TLS.
        (named(443) + &named(8443), "listener = \"n8443\"\n"),
        (named(443) + &named(80) + "kind = \"direct\"\n", "listener = \"n80\"\n"),
        (https(8443) + &http(443), ""),
    ] {
        let found = said_of(&listeners, rule);
        let expected = "warning: an ACME server connects to port 443 or 80 of a name";
        assert!(found.len() == 1 && found[0].contains(expected), "{listeners}: {found:#?}");
    }
}

#[test]
fn a_public_server_issues_no_private_names() {
    let said_of = |sni: &str, directory: &str| {
        said_of(&format!("sni = {sni}\n"), &SERVER.replace("acme.test", directory))
    };
    let names = "[\"app.corp.internal\", \"app.test\", \"printer\", \"app.example.com\"]";
    for private in ["acme.test", "ca.internal:9000", "letsencrypt.org.ca.test", "notssl.com"] {
        assert_eq!(said_of(names, private), [""; 0], "{private}");
    }
    for public in ["acme-v02.api.letsencrypt.org", "acme.ssl.com:443"] {
        let found = said_of(names, public);
        assert_eq!(found.len(), 3, "{found:#?}");
        let first = "7:8: warning: a public ACME server issues nothing for \"app.corp.internal\"";
        assert!(found[0].starts_with(first), "{found:#?}");
        let signed = "has it signed by a local authority";
        // The local authority signs `printer` only if [local] permits it.
        let label = "one such as `printer.lan` with `certificate = \"local\"`";
        for (said, instead) in found.iter().zip([signed, signed, label]) {
            assert!(said.contains(instead), "{said}");
        }
    }
    let found = said_of("\"*.app.local\"\nacme_on_demand = true", "acme.zerossl.com");
    assert!(found.len() == 1 && found[0].contains("\"*.app.local\""), "{found:#?}");
}

#[test]
fn a_word_stands_for_the_server_that_most_people_use() {
    let directory_of = |word: &str| {
        let server = SERVER.replace("https://acme.test/directory", word);
        let loaded = read(&format!("{LISTENER}{RULE}sni = \"app.test\"\n{server}")).unwrap();
        (loaded.config.acme.unwrap().directory, said(&loaded.warnings))
    };
    let (url, warned) = directory_of("letsencrypt");
    assert_eq!(url, "https://acme-v02.api.letsencrypt.org/directory");
    // It is a public server, with what that means for names.
    assert!(warned[0].contains("issues nothing for \"app.test\""), "{warned:#?}");
    let (url, _) = directory_of("letsencrypt-staging");
    assert_eq!(url, "https://acme-staging-v02.api.letsencrypt.org/directory");
    let (_, warned) = directory_of("https://acme.example:14000/directory");
    assert_eq!(warned.len(), 1, "{warned:#?}");
    assert!(warned[0].contains("this name is reserved for documentation"), "{warned:#?}");
}

#[test]
fn names_that_cannot_be_ordered_are_mistakes() {
    let names = "sni = \"app.example\"\n";
    let wildcard = "sni = \"*.app.example\"\n";
    assert_eq!(said_of(names, SERVER), [""; 0]);
    assert_eq!(said_of(&format!("{wildcard}acme_on_demand = true\n"), SERVER), [""; 0]);
    let cases: [(String, &str, &[&str]); 10] = [
        (
            wildcard.into(),
            &format!("{SERVER}dns_hook = [\"dns-hook\", \"set\"]\n"),
            &["11:13: expected the whole path of a program"],
        ),
        (
            wildcard.into(),
            &format!("{SERVER}dns_hook = \"/nowhere/dns-hook\"\n"),
            &["11:12: no program that can be run is there"],
        ),
        (
            wildcard.into(),
            &format!("{SERVER}dns_hook = []\n"),
            &["11:12: `dns_hook` is an empty list"],
        ),
        (String::new(), SERVER, &["5:15: this rule takes every name, and so would order"]),
        (
            "sni = \"\"\n".into(),
            SERVER,
            &["7:7: a hello without a name has no certificate by ACME"],
        ),
        (format!("{names}key = \"a.key\"\n"), SERVER, &["8:1: with `certificate = \"acme\"` keys"]),
        (names.into(), "", &["5:15: `certificate = \"acme\"` needs a table [acme]"]),
        (
            names.into(),
            "[acme]\ndirectory = \"http://acme.example\"\n",
            &[
                "8:1: set `terms_agreed = true` once",
                "9:13: expected \"letsencrypt\", \"letsencrypt-staging\"",
            ],
        ),
        (
            names.into(),
            &format!("{SERVER}contact = \"ops@app.example\"\nexternal_account_id = \"kid\"\n"),
            &["11:11: a contact is a URL; expected", "12:23: `external_account_id` and"],
        ),
        (names.into(), &format!("{SERVER}order = 1\n"), &["11:1: unknown key `order` in [acme]"]),
    ];
    for (rule, server, expected) in cases {
        let said = said_of(&rule, server);
        assert_eq!(said.len(), expected.len(), "{rule}{server}: {said:#?}");
        for (said, expected) in said.iter().zip(expected) {
            assert!(said.starts_with(expected), "{said}\n{expected}");
        }
    }
    assert_eq!(said_of(wildcard, SERVER), [""; 0]);
    let files = "[[rule]]\naction = \"refuse\"\nacme_on_demand = true\n";
    assert_eq!(
        said_below_listener(files),
        ["5:1: `acme_on_demand` means nothing in a refuse rule; it belongs to terminate rules"]
    );
    let unused = format!("[[rule]]\naction = \"refuse\"\n{SERVER}");
    assert_eq!(
        said_below_listener(&unused),
        ["5:1: warning: no rule has `certificate = \"acme\"`: nothing is ordered"]
    );
}
