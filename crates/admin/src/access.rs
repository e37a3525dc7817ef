//! Decides who may ask: the file's mode at a Unix socket, a token at an address with a port. Pages
//! of other origins may ask at neither.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{StatusCode, Uri};
use zeroize::Zeroizing;

use crate::page;

/// The credentials that a request must show.
pub(crate) enum Access {
    /// Nothing: the client could open the socket.
    File,
    /// This bearer token (RFC 6750 section 2.1), at this port.
    Token(Zeroizing<Vec<u8>>, u16),
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) StatusCode, pub(crate) &'static str);

impl Access {
    /// Checks a request by its target and its header fields. The page itself is the same for
    /// everyone, and asks for the token.
    pub(crate) fn check(&self, uri: &Uri, fields: &HeaderMap) -> Result<(), Refused> {
        let host = only(fields, &header::HOST)?;
        // RFC 9112 section 3.2.2: a target in absolute form overrides the field.
        let host = uri.authority().map(|authority| authority.as_str()).or(host);
        // A page whose name was rebound to this address says its own name. It may also reach a Unix
        // socket, by a port that ssh listens at for it.
        let is_ours = match self {
            Self::File => host.is_none_or(|host| is_loopback(host, None)),
            Self::Token(_, port) => host.is_some_and(|host| is_loopback(host, Some(*port))),
        };
        if !is_ours {
            return Err(Refused(
                StatusCode::MISDIRECTED_REQUEST,
                "another host: ask for localhost, as in http://localhost/status\n",
            ));
        }
        let is_page = uri.path() == page::PATH;
        // A foreign page may ask without an `Origin`, and hold a connection. A link to the page is
        // all that it needs (W3C Fetch Metadata).
        let site = only(fields, &SEC_FETCH_SITE)?;
        if !is_page && site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
            return Err(Refused(StatusCode::FORBIDDEN, "another site\n"));
        }
        // A browser names the page that asks. Only a page of this server may.
        let own = |origin: &str| match self {
            Self::File => false,
            Self::Token(_, port) => {
                let rest = origin.strip_prefix("http://");
                rest.is_some_and(|rest| is_loopback(rest, Some(*port)) && Some(rest) == host)
            }
        };
        if only(fields, &header::ORIGIN)?.is_some_and(|origin| !own(origin)) {
            return Err(Refused(StatusCode::FORBIDDEN, "another origin\n"));
        }
        match self {
            Self::File => Ok(()),
            Self::Token(..) if is_page => Ok(()),
            Self::Token(token, _) => {
                let shown = only(fields, &header::AUTHORIZATION)?.and_then(bearer).unwrap_or("");
                // In constant time, so that a client cannot find the token byte by byte.
                verify_slices_are_equal(shown.as_bytes(), token)
                    .map_err(|_| Refused(StatusCode::UNAUTHORIZED, "no token, or a wrong one\n"))
            }
        }
    }
}

/// The value of a field that occurs once at most.
fn only<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let bad = Refused(StatusCode::BAD_REQUEST, "a header field cannot be read\n");
    let mut values = fields.get_all(name).iter();
    let value = values.next().map(|value| value.to_str()).transpose().map_err(|_| bad)?;
    if values.next().is_some() { Err(bad) } else { Ok(value) }
}

/// RFC 9110 section 11.1: the scheme's name has no case.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_start_matches(' '))
}

/// True if `host:port` names this machine itself. No DNS server answers for these names.
/// `None`: any port.
fn is_loopback(authority: &str, port: Option<u16>) -> bool {
    let (host, said) = match authority.rsplit_once(':') {
        Some((host, said)) if !said.ends_with(']') => (host, said.parse().ok()),
        _ => (authority, Some(HTTP_PORT)),
    };
    let is_name = host.eq_ignore_ascii_case("localhost") || host == "[::1]";
    let is_address = host.parse().is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback());
    said.is_some() && port.is_none_or(|port| said == Some(port)) && (is_name || is_address)
}

/// Says if the page that asks is of the same site (W3C Fetch Metadata). Only browsers send it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The port of a URL without one.
const HTTP_PORT: u16 = 80;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(access: &Access, fields: &[(&str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        access
            .check(&Uri::from_static("/status"), &map)
            .map_or_else(|Refused(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_foreign_host_or_origin_and_a_wrong_token_are_refused() {
        let token = Access::Token(Zeroizing::new(b"secret".to_vec()), 9443);
        let right = ("authorization", "Bearer secret");
        let host = ("host", "localhost:9443");
        for (fields, status) in [
            (vec![host, right], 200),
            (vec![host, ("authorization", "bearer  secret")], 200),
            (vec![("host", "127.0.0.1:9443"), right], 200),
            (vec![("host", "[::1]:9443"), right], 200),
            (vec![host, right, ("origin", "http://localhost:9443")], 200),
            (vec![host, right, ("origin", "http://127.0.0.1:9443")], 403),
            (vec![host, right, ("origin", "https://localhost:9443")], 403),
            (vec![host, right, ("origin", "null")], 403),
            (vec![host, right, ("origin", "http://attacker.example:9443")], 403),
            (vec![("host", "attacker.example:9443"), right], 421),
            (vec![("host", "localhost"), right], 421),
            (vec![("host", "localhost:9444"), right], 421),
            (vec![("host", "192.0.2.1:9443"), right], 421),
            (vec![right], 421),
            (vec![host, host, right], 400),
            (vec![host], 401),
            (vec![host, ("authorization", "Bearer secre")], 401),
            (vec![host, ("authorization", "Bearer secrets")], 401),
            (vec![host, ("authorization", "Basic secret")], 401),
            (vec![host, right, right], 400),
        ] {
            assert_eq!(asked(&token, &fields), status, "{fields:?}");
        }
        for (fields, status) in [
            (vec![], 200),
            (vec![("host", "localhost")], 200),
            (vec![("host", "localhost:9000")], 200),
            (vec![("host", "[::1]:9000"), ("sec-fetch-site", "same-origin")], 200),
            (vec![("host", "localhost:9000"), ("sec-fetch-site", "cross-site")], 403),
            (vec![("host", "localhost:9000"), ("sec-fetch-site", "same-site")], 403),
            (vec![("host", "localhost:x")], 421),
            (vec![("host", "anything.example")], 421),
            (vec![("host", "attacker.example:9000")], 421),
            (vec![("origin", "http://localhost")], 403),
            (vec![("origin", "http://attacker.example")], 403),
        ] {
            assert_eq!(asked(&Access::File, &fields), status, "{fields:?}");
        }
        let page = |fields: &[(HeaderName, &'static str)]| {
            let pairs = fields.iter().map(|(name, said)| (name.clone(), said.parse().unwrap()));
            token.check(&Uri::from_static("/"), &pairs.collect()).is_ok()
        };
        let link = (SEC_FETCH_SITE, "cross-site");
        assert!(page(&[(header::HOST, "localhost:9443"), link.clone()]));
        assert!(!page(&[(header::HOST, "attacker.example:9443"), link]));
        let absolute = Uri::from_static("http://attacker.example:9443/metrics");
        let fields = [(header::HOST, "localhost:9443".parse().unwrap())].into_iter().collect();
        assert_eq!(token.check(&absolute, &fields).unwrap_err().0.as_u16(), 421);
    }
}
