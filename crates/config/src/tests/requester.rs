//! Matchers on who asks, and the listeners that know it. Messages are compared exactly.

use super::{read, said};

const LISTENERS: &str = "[[listener]]\nname = \"open\"\naddress = \"0.0.0.0:3128\"\n\
    kind = \"connect\"\n[[listener]]\nname = \"local\"\naddress = \"unix:/tmp/p.sock\"\n\
    mode = \"0660\"\nkind = \"connect\"\n";

#[test]
fn a_rule_asks_only_where_it_is_known() {
    let rule = |keys: &str| format!("{LISTENERS}[[rule]]\naction = \"refuse\"\n{keys}\n");
    let keys = "listener = \"local\"\npeer_uid = [0, 1000]\npeer_cgroup = \"/a\"";
    let loaded = read(&rule(keys)).unwrap_or_else(|found| panic!("{:?}", said(&found)));
    assert_eq!(said(&loaded.warnings), [""; 0]);
    for (keys, expected) in [
        (
            "proxy_user = \"alice\"",
            "12:1: `proxy_user` needs a listener with users, and \"open\" has none; give it \
             `users = \"users.txt\"`, whose lines `eyelet passwd NAME` writes, or give this rule a \
             `listener` with users",
        ),
        (
            "peer_uid = 7",
            "12:1: `peer_uid` asks about the process at a Unix socket, and \"open\" is none; give \
             this rule a `listener` with `address = \"unix:PATH\"`",
        ),
        (
            "listener = \"local\"\npeer_uid = \"alice\"",
            "13:12: `peer_uid` takes whole numbers from 0 to 4294967295",
        ),
        (
            "listener = \"local\"\npeer_uid = [-1]",
            "13:13: `peer_uid` takes whole numbers from 0 to 4294967295",
        ),
        (
            "listener = \"local\"\npeer_cgroup = \"a\"",
            "13:15: a cgroup is a path from the root, as in \"/system.slice/build.service\"",
        ),
    ] {
        let found = read(&rule(keys)).unwrap_err();
        assert_eq!(said(&found), [expected], "{keys}");
    }
    let led = |more: &str| {
        format!(
            "{LISTENERS}[[listener]]\nname = \"proxy\"\naddress = \"127.0.0.1:3129\"\n\
             kind = \"connect\"\nproxy_protocol_from = \"127.0.0.1\"\n\
             [[rule]]\nlistener = \"proxy\"\nclient_cert = \"build-1\"\n\
             action = \"refuse\"\n\
             [[rule]]\nlistener = \"open\"\naction = \"splice\"\n\
             upstream = \"127.0.0.1:3129\"\n{more}"
        )
    };
    let expected = "22:12: rules of the listener \"proxy\" ask for `client_cert`, and this rule \
                    lets its clients write the PROXY header in which the name comes; give it \
                    `proxy_protocol = \"v2\"`";
    assert_eq!(said(&read(&led("")).unwrap_err()), [expected]);
    assert!(read(&led("proxy_protocol = \"v2\"\n")).is_ok());
    let direct = "[[listener]]\naddress = \"0.0.0.0:443\"\nusers = \"users.txt\"\n\
                  [[rule]]\naction = \"refuse\"\n";
    let expected = "3:9: `users` is for listeners of kind \"connect\"";
    assert_eq!(said(&read(direct).unwrap_err()), [expected]);
}
