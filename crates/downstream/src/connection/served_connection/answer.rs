//! The pages with which Eyelet itself answers the requests of a connection, by the way in which
//! they came here.

use bytes::Bytes;
use eyelet_http1::head::Length;
use eyelet_telemetry::info::{End, Outcome};
use eyelet_telemetry::reason::{Class, Reason, Shed, Stage, When};
use http::{Method, StatusCode, response};

use super::ServedConnection;
use crate::connection::inspected::Unanswered;
use crate::connection::intermediary::Intermediary;
use crate::connection::originate;
use crate::connection::page::{failure_page, secret_page};
use crate::connection::refusal::ProxyRefusal;

impl ServedConnection {
    /// The page for a request that has no response of an upstream.
    pub fn page(
        &self,
        status: StatusCode,
        method: &Method,
        reason: &Reason,
    ) -> (response::Parts, Length, Bytes) {
        let verdict = When::During(Stage::Verdict);
        let has_waited = match reason {
            Reason::Drained(when) => *when == Some(verdict),
            Reason::Shed(Shed::Unfinished(when)) => *when == verdict,
            _ => false,
        };
        if has_waited || matches!(reason, Reason::Held(_) | Reason::RefusedRequest(_)) {
            return self.refused_request(reason).page(status, method);
        }
        let is_proxy = matches!(self.rule.intermediary, Intermediary::Proxy { .. });
        if !is_proxy && matches!(reason, Reason::Placeholder(_) | Reason::Reflected(_)) {
            return secret_page(status, method, reason);
        }
        if let Some(rule) = self.rule.intermediary.originate() {
            return originate::page(rule, (status, method), reason);
        }
        match &self.rule.intermediary {
            Intermediary::Gateway | Intermediary::Originator(_) => {
                failure_page(status, method, reason)
            }
            Intermediary::Interceptor(by) => {
                Unanswered { by: *by, reason, id: self.info.id }.page(status, method)
            }
            Intermediary::Proxy { message } => {
                let outcome = end_of_failure(reason.clone()).outcome;
                let message = message.as_deref();
                ProxyRefusal::new(&self.info, outcome, reason, message).page(status, method)
            }
        }
    }
}

/// A proxy has refused a request, or has failed to pass it on.
pub(super) fn end_of_failure(reason: Reason) -> End {
    match reason.class() {
        Class::Refused => End { outcome: Outcome::Refused, reason },
        _ => End::failed(reason),
    }
}
