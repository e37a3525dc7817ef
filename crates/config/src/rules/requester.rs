//! Reads the matchers on who asks a proxy, and checks that their listeners can know it.

use eyelet_policy::{RequesterMatchers, RequesterPattern};

use crate::model::{Listener, ListenerKind};
use crate::settings::listeners::Listeners;
use eyelet_document::reader::Section;
use eyelet_files::users::check_name;

/// The matchers `proxy_user`, `client_cert`, `peer_uid` and `peer_cgroup` of a rule for these
/// listeners.
pub(crate) fn matchers(
    section: &Section<'_>,
    listeners: &Listeners,
    known: &[u16],
) -> RequesterMatchers {
    let users = section.texts("proxy_user").unwrap_or_default();
    check_users(section, listeners, known);
    check_certificates(section, listeners, known);
    for key in ["peer_uid", "peer_cgroup"] {
        check_local(section, key, listeners, known);
    }
    let users = users.into_iter().filter_map(|text| {
        if text.text == "*" {
            return Some(RequesterPattern::AnyUser);
        }
        text.at.keep(check_name(text.text))?;
        let mut reached = listeners.of_rule(known).filter_map(|listener| listener.users.as_ref());
        if !reached.all(|users| users.has(text.text)) {
            let user = text.text;
            text.at.warning(format!(
                "\"{user}\" is not among the users of every listener of this rule"
            ));
        }
        Some(RequesterPattern::User(text.text.into()))
    });
    let uids = section.numbers("peer_uid").into_iter().map(RequesterPattern::Uid);
    let cgroups = section.each_parsed("peer_cgroup", |text| match text.starts_with('/') {
        true => Ok(RequesterPattern::Cgroup(text.into())),
        false => Err("a cgroup is a path from the root, as in \"/system.slice/build.service\""),
    });
    let names = section.each_parsed("client_cert", |text| match text.is_empty() {
        true => Err("a certificate has a common name, as in \"build-1\""),
        false => Ok(RequesterPattern::Certificate(text.into())),
    });
    users.chain(uids).chain(cgroups).chain(names).collect()
}

/// A rule that asks for users where nobody has one would never match, and a refuse rule always.
fn check_users(section: &Section<'_>, listeners: &Listeners, known: &[u16]) {
    let at = (known, section.key_at("proxy_user"));
    listeners.check(
        at,
        |listener| listener.users.is_none(),
        |called| {
            format!(
                "`proxy_user` needs a listener with users, and {called} has none; give it `users = \
             \"users.txt\"`, whose lines `eyelet passwd NAME` writes, or give this rule a \
             `listener` with users"
            )
        },
    );
}

/// The name comes with the PROXY header of the rule that has ended the client's TLS.
fn check_certificates(section: &Section<'_>, listeners: &Listeners, known: &[u16]) {
    let is_other = |listener: &Listener| {
        listener.kind != ListenerKind::Connect || listener.proxy_protocol_from.is_empty()
    };
    listeners.check((known, section.key_at("client_cert")), is_other, |called| {
        format!(
            "`client_cert` needs a listener of kind \"connect\" with `proxy_protocol_from`, to \
             which a terminate rule with `client_ca` and `proxy_protocol` leads, and {called} is \
             none; see \"A proxy behind TLS\" in docs/gateway.md"
        )
    });
}

fn check_local(section: &Section<'_>, key: &str, listeners: &Listeners, known: &[u16]) {
    let at = (known, section.key_at(key));
    listeners.check(at, |listener| !listener.address.is_unix(), |called| {
        format!(
            "`{key}` asks about the process at a Unix socket, and {called} is none; give this rule \
             a `listener` with `address = \"unix:PATH\"`"
        )
    });
}
