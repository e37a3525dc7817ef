//! Reads the matcher `transport`, and checks that a rule which QUIC may meet can serve it.

use eyelet_wire::hello::Transport;

use crate::model::Listener;
use crate::settings::listeners::Listeners;
use eyelet_document::reader::Section;

/// The matcher `transport`.
pub(crate) fn transport(section: &Section<'_>) -> Option<Transport> {
    let words = [("quic", Transport::Quic), ("tcp", Transport::Tcp)];
    section.word("transport", " is not a transport;", &words)
}

/// Reports a rule for QUIC that no listener leads to, and keys that QUIC cannot have. A rule that
/// says nothing of the transport meets QUIC where one of its listeners reads it.
pub(crate) fn check(
    section: &Section<'_>,
    listeners: &Listeners,
    (listed, transport): (&[u16], Option<Transport>),
) {
    let mut reached = listeners.of_rule(listed);
    match (reached.find(|listener| listener.quic), transport) {
        (None, Some(Transport::Quic)) => {
            let at = section.key_at("transport").unwrap_or(section.at);
            at.error("no listener of this rule has `quic = true`, so it never matches");
        }
        (None, _) | (_, Some(Transport::Tcp)) => {}
        (Some(listener), transport) => check_fit(section, listener, transport),
    }
}

fn check_fit(section: &Section<'_>, listener: &Listener, transport: Option<Transport>) {
    let advice = match transport {
        Some(_) => "expected a splice or a refuse rule",
        None => "expected `transport = \"tcp\"` here, and a splice or a refuse rule for QUIC",
    };
    let name = listener.called();
    let action = section.text("action");
    let unfit = action.and_then(|action| {
        let (_, done) = NOT_FOR_QUIC.iter().find(|(word, _)| *word == action.text)?;
        Some((action.at, done))
    });
    if let Some((at, done)) = unfit {
        at.error(format!("QUIC comes to the listener {name}, and is not {done} here; {advice}"));
    } else if let Some(at) = section.key_at("proxy_protocol") {
        at.error(format!(
            "QUIC comes to the listener {name}, and a datagram has no PROXY header; {advice}"
        ));
    } else if let Some(at) = section.key_at("source_addresses") {
        at.error(format!(
            "QUIC comes to the listener {name}, and is sent from the address that the kernel \
             chooses; {advice} without `source_addresses`"
        ));
    }
}

/// Actions that a flow of QUIC cannot have, and how they are said to be done.
const NOT_FOR_QUIC: [(&str, &str); 3] =
    [("hold", "held"), ("originate", "originated"), ("terminate", "terminated")];
