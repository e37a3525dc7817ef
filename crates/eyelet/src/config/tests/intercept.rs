//! Listeners that intercept, and rules that are for some of them: destinations, CONNECT, sources.
//! Mistakes are matched exactly, as in the tables beside.

use super::{read, said};

#[test]
fn intercepting_listeners_and_their_rules() {
    let listeners = "[[listener]]\naddress = \"0.0.0.0:443\"\n\
        [[listener]]\nname = \"lb\"\naddress = \"0.0.0.0:444\"\n\
        proxy_protocol_from = \"10.0.0.0/8\"\n\
        [[listener]]\nname = \"nat\"\naddress = \"0.0.0.0:8443\"\nkind = \"redirect\"\n\
        [[listener]]\nname = \"tp\"\naddress = \"0.0.0.0:8444\"\nkind = \"tproxy\"\n\
        [[listener]]\nname = \"http\"\naddress = \"0.0.0.0:3128\"\nkind = \"connect\"\n";
    let rule = |keys: &str| format!("{listeners}[[rule]]\naction = \"splice\"\n{keys}\n");
    for keys in [
        "listener = [\"lb\", \"nat\", \"tp\", \"http\"]\nupstream = \"destination\"",
        "listener = \"tp\"\nupstream = \"destination\"\nsource = \"client\"",
        "listener = \"http\"\nupstream = \"destination\"\nconnect = [\"*.a.b:443\", \"*:22\"]",
        "upstream = \"a:1\"\nconnect = \"[::1]:*\"\ndestination = \"*:443\"",
    ] {
        let loaded = read(&rule(keys)).unwrap_or_else(|found| panic!("{keys}: {:?}", said(&found)));
        assert_eq!(said(&loaded.warnings), [""; 0], "{keys}");
    }
    for (keys, expected) in [
        (
            "listener = [\"nat\", \"0.0.0.0:443\"]\nupstream = \"destination\"",
            "22:12: on the direct listener \"0.0.0.0:443\" the destination is the listener itself, \
             so this would loop; expected host:port or \"{sni}:443\", or a `listener` that \
             intercepts",
        ),
        (
            "listener = [\"tp\", \"nat\"]\nupstream = \"destination\"\nsource = \"client\"",
            "23:10: answers to the client's address come back only where the routing of a \
             \"tproxy\" listener is, which \"nat\" is not; give this rule a `listener`",
        ),
        (
            "listener = \"nat\"\nupstream = \"destination\"\nconnect = \"a.b:443\"",
            "23:1: no listener of this rule is of kind \"connect\", so it never matches",
        ),
        (
            "upstream = \"a:1\"\nconnect = \"a.b\"",
            "22:11: \"a.b\": there is no port; expected it as in \"*.example.com:443\", or \":*\" \
             for any",
        ),
    ] {
        let found = read(&rule(keys)).unwrap_err();
        assert_eq!(said(&found), [expected], "{keys}");
    }
}
