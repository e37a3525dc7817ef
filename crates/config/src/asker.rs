//! Reads the matchers on who asks a proxy, and the users of a listener.

use eyelet_policy::{AskerMatchers, AskerPattern};

use crate::files::Files;
use crate::listeners::Listeners;
use crate::model::{Listener, ListenerKind};
use crate::reader::Section;
use crate::users::{Users, UsersFault, check_name};

/// The matchers `proxy_user`, `peer_uid` and `peer_cgroup` of a rule for these listeners.
pub(super) fn matchers(
    section: &Section<'_>,
    listeners: &Listeners,
    known: &[u16],
) -> AskerMatchers {
    let users = section.texts("proxy_user").unwrap_or_default();
    check_users(section, listeners, known);
    for key in ["peer_uid", "peer_cgroup"] {
        check_local(section, key, listeners, known);
    }
    let users = users.into_iter().filter_map(|text| {
        if text.text == "*" {
            return Some(AskerPattern::AnyUser);
        }
        text.at.keep(check_name(text.text))?;
        let mut reached = listeners.of_rule(known).filter_map(|listener| listener.users.as_ref());
        if !reached.all(|users| users.has(text.text)) {
            let message = format!("\"{}\" is no user of each listener of this rule", text.text);
            text.at.warning(message);
        }
        Some(AskerPattern::User(text.text.into()))
    });
    let uids = section.numbers("peer_uid").into_iter().map(AskerPattern::Uid);
    let cgroups = section.each_parsed("peer_cgroup", |text| match text.starts_with('/') {
        true => Ok(AskerPattern::Cgroup(text.into())),
        false => Err("a cgroup is a path from the root, as in \"/system.slice/build.service\""),
    });
    users.chain(uids).chain(cgroups).collect()
}

/// A rule that asks for users where nobody has one would never match, and a refuse rule always.
fn check_users(section: &Section<'_>, listeners: &Listeners, known: &[u16]) {
    let Some(at) = section.key_at("proxy_user") else { return };
    if let Some(listener) = listeners.of_rule(known).find(|listener| listener.users.is_none()) {
        let message = format!(
            "`proxy_user` needs a listener with users, and {} has none; give it `users = \
             \"users.txt\"`, whose lines `eyelet passwd NAME` writes, or give this rule a \
             `listener` with users",
            listener.called()
        );
        at.error(message);
    }
}

fn check_local(section: &Section<'_>, key: &str, listeners: &Listeners, known: &[u16]) {
    let Some(at) = section.key_at(key) else { return };
    let is_other = |listener: &&Listener| !listener.address.is_unix();
    if let Some(listener) = listeners.of_rule(known).find(is_other) {
        let message = format!(
            "`{key}` asks about the process at a Unix socket, and {} is none; give this rule a \
             `listener` with `address = \"unix:PATH\"`",
            listener.called()
        );
        at.error(message);
    }
}

/// The users of a listener.
pub(super) fn users(section: &Section<'_>, kind: ListenerKind, files: &mut Files) -> Option<Users> {
    let text = section.text("users")?;
    if kind != ListenerKind::Connect {
        text.at.error("`users` is for listeners of kind \"connect\"");
        return None;
    }
    let mut users = None;
    files.check_secret(text, |path| match Users::read(path) {
        Ok(read) => {
            users = Some(read);
            Ok(())
        }
        Err(UsersFault::File(message)) => Err(message),
        Err(UsersFault::Text(mistakes)) => {
            text.at.report.of_other_file(mistakes);
            Ok(())
        }
    });
    users
}
