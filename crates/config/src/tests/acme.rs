//! Rules with `certificate = "acme"`, and the table [acme].

use super::*;

const RULE: &str =
    "[[rule]]\naction = \"terminate\"\ncertificate = \"acme\"\nupstream = \"tcp://10.0.0.1:1\"\n";
const SERVER: &str =
    "[acme]\ndirectory = \"https://acme.example/directory\"\nterms_agreed = true\n";

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

#[test]
fn names_that_cannot_be_ordered_are_mistakes() {
    let names = "sni = \"app.example\"\n";
    let wildcard = "sni = \"*.app.example\"\n";
    assert_eq!(said_of(names, SERVER), [""; 0]);
    assert_eq!(said_of(&format!("{wildcard}acme_on_demand = true\n"), SERVER), [""; 0]);
    let cases: [(String, &str, &[&str]); 8] = [
        (
            wildcard.into(),
            SERVER,
            &["7:7: a certificate for a wildcard needs the challenge DNS-01"],
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
            &["8:1: set `terms_agreed = true` once", "9:13: expected the https:// URL of an ACME"],
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
