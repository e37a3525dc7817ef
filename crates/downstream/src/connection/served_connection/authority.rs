//! The hosts that a connection may be asked for.

use std::net::IpAddr;

use eyelet_http1::head::split_port;
use eyelet_policy::{Facts, RuleId};
use eyelet_telemetry::info::Decided;
use eyelet_wire::connect::Target;
use http::uri::Authority;

use super::ServedConnection;
use crate::connection::inspected::Respondent;
use crate::connection::intermediary::Intermediary;
use crate::connection::originate;
use crate::connection::route::{connect_target, requester_facts};

impl ServedConnection {
    /// True if a request for this host belongs on this connection: a new connection for the host
    /// would match the same rule (RFC 9110 7.4).
    pub fn is_for(&self, authority: &Authority) -> bool {
        let Some(route) = &self.rule.route else { return false };
        if let Some(rule) = self.rule.intermediary.originate() {
            return originate::is_own(rule, authority);
        }
        match self.rule.intermediary {
            // The rules were asked about this very host.
            Intermediary::Proxy { .. } => return true,
            Intermediary::Interceptor(Respondent::Inspector) => {
                return is_decided(&self.info.decided, authority);
            }
            _ => {}
        }
        let sni = self.info.decided.sni.as_deref();
        // Most hosts are the name as it was in the hello. Behind a name that ends it is no port.
        if is_name(authority.as_str()) && sni == Some(authority.as_str()) {
            return true;
        }
        let (host, _) = split_port(authority.as_str());
        let host = host.strip_suffix('.').unwrap_or(host);
        let is_name = is_name(host);
        // Clients mostly write both alike, and a comparison without case reads byte by byte.
        if is_name && sni.is_some_and(|sni| sni == host || sni.eq_ignore_ascii_case(host)) {
            return true;
        }
        let bare = || host.trim_start_matches('[').trim_end_matches(']');
        // Clients send no SNI for an address (RFC 6066 section 3).
        let is_address = !is_name && bare().parse::<IpAddr>().is_ok();
        let name = if is_address { String::new() } else { host.to_ascii_lowercase() };
        if sni == Some(&*name) {
            return true;
        }
        if route.is_held() && !(is_address && sni.is_none()) {
            // The verdict was about the connection's own name, if it has one.
            return false;
        }
        if let Some(last) = route.by_request.last() {
            // Rules for the connection's own name decide its requests.
            let policy = &self.http.shared.config.policy;
            return policy.are_alike(sni.unwrap_or_default(), &name, *last);
        }
        let serves = |connect: Option<&Target>| {
            let facts = Facts {
                connect,
                requester: requester_facts(&self.info.decided),
                destination: self.info.decided.destination,
                ..Facts::new(self.info.decided.listener, self.info.client.ip())
            };
            self.http.shared.config.policy.would_take(RuleId(route.rule), &name, &facts)
        };
        let Some(target) = connect_target(&self.info.decided) else { return serves(None) };
        // By the CONNECT that was made, and by the one that a client would make for this host.
        let own = Target::new(format!("{host}:{}", target.port).as_bytes());
        serves(Some(&target)) && own.is_ok_and(|own| serves(Some(&own)))
    }
}

/// True if this is the very host that the rules were asked about: the name in the hello, or without
/// one the destination. An inspector would go wherever else a request says.
fn is_decided(decided: &Decided, authority: &Authority) -> bool {
    let to = decided.destination;
    // The default port is not written.
    if authority.port_u16().is_some_and(|port| to.is_none_or(|to| to.port() != port)) {
        return false;
    }
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    if let Some(sni) = decided.sni.as_deref() {
        return sni.eq_ignore_ascii_case(host);
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return to.is_some_and(|to| to.ip().to_canonical() == ip.to_canonical());
    }
    let target = decided.connect.as_deref().and_then(|target| target.rsplit_once(':'));
    target.is_some_and(|(name, _)| name.eq_ignore_ascii_case(host))
}

/// True if a host is certainly a name: addresses end in a digit or a bracket.
fn is_name(host: &str) -> bool {
    host.ends_with(|last: char| last.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_inspector_gets_requests_for_what_the_rules_decided_alone() {
        let named = Decided {
            sni: Some("shop.example".into()),
            destination: Some("192.0.2.1:443".parse().unwrap()),
            connect: Some("shop.example:443".into()),
            ..Decided::default()
        };
        let nameless = Decided { sni: None, ..named.clone() };
        let of_address = Decided { connect: Some("192.0.2.1:443".into()), ..nameless.clone() };
        for (decided, host, is_own) in [
            (&named, "shop.example", true),
            (&named, "SHOP.example.:443", true),
            (&named, "shop.example:22", false),
            (&named, "evil.example", false),
            (&named, "192.0.2.1", false),
            (&nameless, "shop.example", true),
            (&nameless, "evil.example", false),
            (&nameless, "192.0.2.1", true),
            (&of_address, "192.0.2.1:443", true),
            (&of_address, "10.0.0.1", false),
            (&of_address, "[::1]", false),
        ] {
            assert_eq!(is_decided(decided, &host.parse().unwrap()), is_own, "{host}");
        }
    }
}
