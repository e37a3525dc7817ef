//! The way in which the requests of a connection came here, and what that changes in requests to
//! upstreams and responses to clients (RFC 9110 section 3.7).

use std::sync::Arc;
use std::time::Duration;

use eyelet_config::{Action, CertificateSource, Originate};
use eyelet_telemetry::info::{Decided, Outcome};
use eyelet_telemetry::reason::Reason;
use http::request;
use http::uri::Authority;

use super::inspected::Respondent;
use super::originate::{self, Translation};

/// The time for which the task waits for the next request before the connection is parked. A page's
/// next request arrives within a round trip or two. Parking and waking cost about as much as a
/// request's AEAD.
pub const AWAKE: Duration = Duration::from_millis(200);
/// The time for which it waits where the client has a connection to the upstream of its own. That
/// ends when the client's is parked: making another one takes three round trips, often of a long
/// line. svn rests while it stores what came.
const AWAKE_ORIGINATE: Duration = Duration::from_secs(2);

/// The part that this edge takes between a client and those who answer it.
pub enum Intermediary {
    /// The client's TLS ends here, for an application of the operator's. A connection whose rule is
    /// gone is served so, too.
    Gateway,
    /// The client's TLS ends here under a certificate that was minted after the origin's.
    Interceptor(Respondent),
    /// TLS begins here, for a client of this machine. The rule's action is [`Action::Originate`].
    Originator(Arc<Action>),
    /// The client has asked a proxy for one `http://` URL.
    Proxy {
        /// A line for a client that is refused.
        message: Option<Box<str>>,
    },
}

impl Intermediary {
    /// The part that a rule with this action has.
    pub fn of(action: &Arc<Action>) -> Self {
        match &**action {
            Action::Originate(_) => Self::Originator(action.clone()),
            Action::Terminate(rule) if rule.certificates == CertificateSource::Mint => {
                let has_tls = rule.upstream.as_http().is_some_and(|http| http.tls.is_some());
                // An inspector is asked in the clear, and goes on by the request's `Host`.
                Self::Interceptor(if has_tls { Respondent::Origin } else { Respondent::Inspector })
            }
            Action::Terminate(_) | Action::Refuse(_) | Action::Splice(_) => Self::Gateway,
        }
    }

    /// The rule of an originator.
    pub fn originate(&self) -> Option<&Originate> {
        match self {
            Self::Originator(action) => action.as_originate(),
            Self::Gateway | Self::Interceptor(_) | Self::Proxy { .. } => None,
        }
    }

    /// True if a client without TLS is served, and no other.
    pub fn serves_cleartext(&self) -> bool {
        matches!(self, Self::Originator(_) | Self::Proxy { .. })
    }

    /// The outcome of a connection where nothing is wrong.
    pub fn outcome(&self, decided: &Decided) -> Outcome {
        match (self, decided.tls_version) {
            (Self::Proxy { .. }, _) => Outcome::Spliced,
            (_, None) => Outcome::Originated,
            (_, Some(_)) => Outcome::Terminated,
        }
    }

    /// True if connections to upstreams serve all clients. An origin may know a client by its
    /// connection, as with NTLM.
    pub fn shares_upstreams(&self) -> bool {
        matches!(self, Self::Gateway)
    }

    /// True if the upstream is told of the client and of the trace: it is the operator's, and no
    /// stranger's.
    pub fn tells_upstream(&self) -> bool {
        matches!(self, Self::Gateway | Self::Interceptor(Respondent::Inspector))
    }

    /// True if responses get the fields of the rule. Those of a stranger pass as they are, also
    /// where an inspector passes them on.
    pub fn sets_fields(&self) -> bool {
        matches!(self, Self::Gateway)
    }

    /// True if the edge is near the client, and asks the origin over a long way: requests leave as
    /// early as they may, and codings are those of a client.
    pub fn is_near_client(&self) -> bool {
        matches!(self, Self::Originator(_))
    }

    /// True if bodies of requests may be coded for the upstream.
    pub fn codes_requests(&self) -> bool {
        self.originate().is_some_and(|rule| rule.requests.compression.code_requests)
    }

    /// Returns how long a task waits for the next request.
    pub fn awake(&self) -> Duration {
        if self.is_near_client() { AWAKE_ORIGINATE } else { AWAKE }
    }

    /// The authority of the one upstream that URLs are translated for, if they are.
    pub fn authority(&self) -> Option<&str> {
        self.originate().map(|rule| &*rule.authority)
    }

    /// Checks a request, and turns its URLs into the upstream's. `None`: they stay.
    ///
    /// # Errors
    /// A web page of another site has sent it.
    pub fn translate<'a>(
        &'a self,
        asked: &'a Authority,
        request: &mut request::Parts,
    ) -> Result<Option<Translation<'a>>, Reason> {
        self.originate().map(|rule| originate::begin(rule, asked, request)).transpose()
    }
}

/// The outcome of what this action takes.
pub const fn outcome_of(action: &Action) -> Outcome {
    match action {
        Action::Originate(_) => Outcome::Originated,
        Action::Splice(_) => Outcome::Spliced,
        Action::Terminate(_) => Outcome::Terminated,
        Action::Refuse(_) => Outcome::Refused,
    }
}
