//! Reads the `action` of a [[rule]]: its kind, and the kind that a mistyped one seems to mean.

use eyelet_document::reader::{Section, listed, nearest};

/// The kind of a rule, by its action.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hold,
    Originate,
    Splice,
    Terminate,
    Refuse,
}

/// Reads `action`.
pub(crate) fn read_kind(section: &Section<'_>) -> Option<Kind> {
    let names = Kind::ALL.map(|kind| format!("\"{}\"", kind.name()));
    let names = listed(&names, "or");
    let action = section.required("action", format!("a rule needs an `action`: {names}"))?;
    action.parse(|text| {
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let meant = SYNONYMS.iter().find(|(words, _)| words.contains(&text));
            let guess = meant.map_or("", |(_, guess)| *guess);
            format!("\"{text}\" is not an action; expected {names}{guess}")
        })
    })
}

/// The action that a mistake seems to mean, so that mistakes in the other keys are found, too.
pub(crate) fn guessed_kind(section: &Section<'_>) -> Option<Kind> {
    let written = section.value("action").and_then(|action| action.get_ref().as_str());
    let near = written.and_then(|text| nearest(text, Kind::ALL.iter().map(|kind| kind.name())));
    match near {
        Some(near) => Kind::ALL.into_iter().find(|kind| kind.name() == near),
        None => section.value("certificate").map(|_| Kind::Terminate),
    }
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Splice, Self::Terminate, Self::Originate, Self::Hold, Self::Refuse];

    /// The kind of action that is taken in the end: a hold rule with a certificate ends TLS.
    pub(crate) fn then(self, section: &Section<'_>) -> Self {
        match self {
            Self::Hold if section.value("certificate").is_some() => Self::Terminate,
            Self::Hold => Self::Splice,
            other => other,
        }
    }

    /// Says if the action is for clients without TLS. `None`: for both.
    pub(crate) const fn asks_of_plain(self) -> Option<bool> {
        match self {
            Self::Originate => Some(true),
            Self::Refuse => None,
            Self::Hold | Self::Splice | Self::Terminate => Some(false),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Originate => "originate",
            Self::Splice => "splice",
            Self::Terminate => "terminate",
            Self::Refuse => "refuse",
        }
    }
}

/// The names of actions in other programs.
const SYNONYMS: [(&[&str], &str); 6] = [
    (&["ask", "pause", "prompt", "wait"], "; \"hold\" waits until somebody decides"),
    (&["passthrough", "tunnel", "forward", "allow", "proxy"], "; \"splice\" passes bytes on"),
    (&["offload"], "; \"terminate\" ends TLS here"),
    (
        &["bump", "intercept"],
        "; \"terminate\" ends TLS here, with `certificate = \"mint\"` for servers that are not \
         yours: docs/bump.md",
    ),
    (
        &["peek", "stare"],
        "; matchers peek: one such as `sni` at the hello, one such as `certificate_issuer` at the \
         server's certificate",
    ),
    (&["reject", "deny", "block", "drop", "close"], "; \"refuse\" sends an alert"),
];
