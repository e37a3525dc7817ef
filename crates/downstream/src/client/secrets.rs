//! Puts secrets in the places of their placeholders in requests, and refuses requests that have
//! placeholders elsewhere, and responses that show a secret.

use eyelet_http1::head::split_port;
use eyelet_http1::head_lines::ReceivedHead;
use eyelet_secrets::{Destination, Filled, Misuse, Reflection, SecretRefusal, Secrets};
use eyelet_telemetry::reason::{Detail, Reason};
use http::{HeaderMap, request};

use super::exchange_error::ExchangeError;
use super::failure::Failure;
use crate::connection::route::Route;
use crate::connection::served_connection::ServedConnection;
use crate::connection::worker::Http;

/// Puts secrets in the places of their placeholders in a request to this host by this route.
/// Returns true if the request has one now.
///
/// # Errors
/// A placeholder stands where no secret may.
pub fn fill(
    served: &ServedConnection,
    route: &Route,
    host: &str,
    request: &mut request::Parts,
) -> Result<bool, Failure> {
    let Some(secrets) = &served.http.shared.secrets else { return Ok(false) };
    let to = || Destination { host: split_port(host).0, verified: verified(route) };
    let counters = &served.http.engine.counters;
    match secrets.fill(request, to) {
        Ok(Filled::Nothing) => Ok(false),
        Ok(Filled::Values) => {
            counters.secrets_filled.up();
            Ok(true)
        }
        Err(refusal) => Err(Failure::Answer(refused(&served.http, &refusal))),
    }
}

/// True if a request has a placeholder anywhere.
pub fn has_placeholder(http: &Http, request: &request::Parts) -> bool {
    http.shared.secrets.as_ref().is_some_and(|secrets| secrets.is_in(request))
}

/// Checks fields behind a request's body: they have no secret.
///
/// # Errors
/// One has a placeholder.
pub fn check_trailers(http: &Http, trailers: Option<&HeaderMap>) -> Result<(), ExchangeError> {
    let (Some(secrets), Some(trailers)) = (&http.shared.secrets, trailers) else { return Ok(()) };
    let Some(placeholder) = secrets.find(trailers) else { return Ok(()) };
    let refusal = SecretRefusal { placeholder: placeholder.clone(), misuse: Misuse::Trailer };
    Err(ExchangeError::Refused(refused(http, &refusal)))
}

/// Checks credentials for a proxy: they have no secret. Returns why they are refused.
pub fn check_credentials(http: &Http, credentials: &[u8]) -> Option<Reason> {
    let placeholder = http.shared.secrets.as_ref()?.find_in(credentials)?.clone();
    Some(refused(http, &SecretRefusal { placeholder, misuse: Misuse::Proxy }))
}

/// Checks that the head of a response shows no secret.
///
/// # Errors
/// It does.
pub fn check_response(http: &Http, head: &ReceivedHead) -> Result<(), Failure> {
    match head {
        ReceivedHead::Fields(response) => check_fields(http, &response.parts.headers),
        ReceivedHead::Lines(lines) => {
            check_reflected(http, |secrets| secrets.reflected_in(lines.fields()))
        }
    }
}

/// Checks that fields of a response show no secret.
///
/// # Errors
/// They do.
pub fn check_fields(http: &Http, fields: &HeaderMap) -> Result<(), Failure> {
    check_reflected(http, |secrets| secrets.reflected(fields))
}

fn check_reflected(
    http: &Http,
    found: impl FnOnce(&Secrets) -> Option<Reflection>,
) -> Result<(), Failure> {
    let Some(secrets) = &http.shared.secrets else { return Ok(()) };
    let Some(reflection) = found(secrets) else { return Ok(()) };
    http.engine.counters.secrets_reflected.up();
    Err(Failure::Answer(Reason::Reflected(Detail::of(reflection))))
}

fn refused(http: &Http, refusal: &SecretRefusal) -> Reason {
    http.engine.counters.placeholders_refused.up();
    Reason::Placeholder(Detail::of(refusal))
}

/// The names that the upstreams of a route prove by their certificates. `None`: one has no TLS.
fn verified(route: &Route) -> Option<Vec<&str>> {
    let name = |index| Some(&*route.target(index)?.to.tls.as_ref()?.name);
    (0..route.upstreams()).map(name).collect()
}
