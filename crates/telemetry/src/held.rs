//! The fate of a connection that was held: who decided, how, and how long it waited.

use serde::Serialize;

use crate::reason::named::named;

named! {
    /// The verdict on a held connection.
    HeldVerdict {
        /// It goes on as its rule says.
        Allow = "allow",
        /// It is refused.
        Refuse = "refuse",
    }
}

named! {
    /// The one who decides held connections.
    HeldBy {
        /// A person, at the admin server.
        Page = "page",
        /// A person, by `eyelet held`.
        Terminal = "terminal",
        /// Nobody: the time was over.
        Timeout = "timeout",
        /// The program behind `[hold] webhook`.
        Webhook = "webhook",
    }
}

/// The facts of a connection that was held, for its access line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HeldInfo {
    /// Milliseconds for which it was held. 0: the verdict was there before it came.
    pub ms: u32,
    /// The verdict.
    pub verdict: HeldVerdict,
    /// The one who gave it.
    pub by: HeldBy,
}
