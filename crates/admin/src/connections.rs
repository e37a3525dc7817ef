//! `/connections`: a list of the open connections as a stream, and the request to end some.

pub(crate) mod held;

use std::cmp::Reverse;
use std::net::IpAddr;

use bytes::Bytes;
use eyelet_telemetry::listing::{ConnectionId, Filter, Listed, Slice, State};
use futures_util::stream;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode};
use ipnet::{IpNet, Ipv4Net};
use tokio::sync::mpsc::Receiver;

use crate::query::{QueryFault, repeated_key, unknown_key};
use crate::routes::{Answers, Content, of_parts, text, whole};

/// The beginning of all paths of this file.
pub(crate) const PATH: &str = "/connections";

/// Connections of a sorted list, which is held as a whole: 1,000 are about 300 KiB.
const SORTED_MAX: usize = 1_000;
/// Connections of a sorted list where the request names no limit.
const SORTED: usize = 100;
/// The keys that a query may have.
const KEYS: &str = "rule, state, sni, client, age_min, bytes_min, limit or sort";
/// Bits that all addresses of IPv4 begin with where they are written as ones of IPv6 (RFC 4291
/// section 2.5.5.2).
const MAPPED_BITS: u8 = 96;
/// While a list is sorted, what is at hand grows to so many times its length before the rest of it
/// is dropped. Twice costs each connection a logarithmic share of one sort.
const SORTED_TIMES: usize = 2;

/// The text before the first connection of a list.
const FIRST: &str = "[\n";
/// The text before each other one.
const NEXT: &str = ",\n";

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Oldest first.
    Age,
    /// Most bytes first.
    Bytes,
}

/// The query of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    filter: Filter,
    order: Option<Order>,
    limit: Option<usize>,
}

/// Answers a permitted request. `of` is what follows [`PATH`].
pub(crate) async fn answer(
    answers: &dyn Answers,
    method: &Method,
    of: &str,
    query: Option<&str>,
) -> Response<Content> {
    let asked = match (asked(query.unwrap_or("")), of.strip_prefix('/')) {
        (Ok(asked), None) if of.is_empty() => asked,
        (Ok(_), Some(id)) if query.is_none() => match ConnectionId::parse(id) {
            Some(id) => {
                Asked { filter: Filter { id: Some(id), ..Filter::default() }, ..Asked::default() }
            }
            None => return text(StatusCode::NOT_FOUND, "no such connection\n"),
        },
        (Err(why), _) if of.is_empty() => return text(StatusCode::BAD_REQUEST, why),
        _ => return text(StatusCode::NOT_FOUND, "no such page\n"),
    };
    match *method {
        Method::GET | Method::HEAD => list(answers, asked),
        Method::DELETE => end(answers, asked).await,
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD or DELETE\n");
            let allowed = HeaderValue::from_static("GET, HEAD, DELETE");
            response.headers_mut().insert(header::ALLOW, allowed);
            response
        }
    }
}

/// Reads a query. Each key may occur once.
fn asked(query: &str) -> Result<Asked, QueryFault> {
    let mut asked = Asked::default();
    let mut seen = Vec::new();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if seen.contains(&key) {
            return Err(repeated_key(&key));
        }
        let filter = &mut asked.filter;
        match &*key {
            "rule" => filter.rule = Some(value.into_owned()),
            "sni" => filter.sni = Some(value.to_ascii_lowercase()),
            "client" => filter.client = Some(net(&value)?),
            "state" => {
                filter.state =
                    Some(State::called(&value).ok_or("state: there is no such state\n")?);
            }
            "age_min" => {
                let age = humantime::parse_duration(&value);
                let age = age.map_err(|_| "age_min: a time, such as 5m or 1h\n")?;
                filter.age_min_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            }
            "bytes_min" => {
                filter.bytes_min = value.parse().map_err(|_| "bytes_min: a number of bytes\n")?;
            }
            "sort" => {
                asked.order = Some(match &*value {
                    "age" => Order::Age,
                    "bytes" => Order::Bytes,
                    _ => return Err("sort: age or bytes\n".into()),
                });
            }
            "limit" => asked.limit = Some(value.parse().map_err(|_| "limit: a number\n")?),
            other => return Err(unknown_key(other, KEYS)),
        }
        seen.push(key);
    }
    if asked.order.is_some() && asked.limit.is_some_and(|limit| limit > SORTED_MAX) {
        return Err("limit: a sorted list has at most 1000 connections\n".into());
    }
    Ok(asked)
}

/// A network, or one address. An IPv4 address in IPv6 form becomes IPv4: filters compare addresses
/// in that form.
fn net(text: &str) -> Result<IpNet, &'static str> {
    let address = || Some(text.parse::<IpAddr>().ok()?.into());
    let net: IpNet = text
        .parse()
        .ok()
        .or_else(address)
        .ok_or("client: an address or a network, such as 192.0.2.0/24\n")?;
    let mapped = || match (net.addr().to_canonical(), net.prefix_len().checked_sub(MAPPED_BITS)?) {
        (IpAddr::V4(address), bits) if net.addr().is_ipv6() => Ipv4Net::new(address, bits).ok(),
        _ => None,
    };
    Ok(mapped().map_or(net, IpNet::V4))
}

fn list(answers: &dyn Answers, asked: Asked) -> Response<Content> {
    let Some(slices) = answers.connections(asked.filter, None) else { return busy() };
    let limit = match asked.order {
        Some(_) => asked.limit.unwrap_or(SORTED),
        None => asked.limit.unwrap_or(usize::MAX),
    };
    let list = List {
        slices: Some(slices),
        order: asked.order,
        left: limit,
        sorted: Vec::new(),
        before: FIRST,
    };
    of_parts("application/json", stream::unfold(list, List::part))
}

async fn end(answers: &dyn Answers, asked: Asked) -> Response<Content> {
    if asked.order.is_some() {
        return text(StatusCode::BAD_REQUEST, "sort is for lists\n");
    }
    if asked.filter.is_all() {
        return text(StatusCode::BAD_REQUEST, "to end connections needs a filter\n");
    }
    let is_one = asked.filter.id.is_some();
    let most = asked.limit.unwrap_or(usize::MAX);
    let Some(mut slices) = answers.connections(asked.filter, Some(most)) else { return busy() };
    let mut ended = 0;
    while let Some(slice) = slices.recv().await {
        ended += slice.ended;
    }
    match (is_one, ended) {
        (true, 0) => text(StatusCode::NOT_FOUND, "no such connection\n"),
        _ => whole("application/json", format!("{{\"ended\":{ended}}}\n")),
    }
}

fn busy() -> Response<Content> {
    text(StatusCode::SERVICE_UNAVAILABLE, "other lists are being made: ask again later\n")
}

/// A list. It reads the workers' slices as fast as the client reads it.
struct List {
    /// `None`: all is written.
    slices: Option<Receiver<Slice>>,
    order: Option<Order>,
    /// The number of further connections that may be written.
    left: usize,
    /// The connections found, where the list is sorted.
    sorted: Vec<Listed>,
    /// The text before the next connection.
    before: &'static str,
}

impl List {
    /// Keeps the first of what was found.
    fn sort(&mut self, order: Order) {
        match order {
            Order::Age => self.sorted.sort_unstable_by_key(|listed| Reverse(listed.age_ms)),
            Order::Bytes => self.sorted.sort_unstable_by_key(|listed| Reverse(listed.bytes())),
        }
        self.sorted.truncate(self.left);
    }

    fn write(&mut self, listed: &[Listed], out: &mut Vec<u8>) {
        let few = listed.len().min(self.left);
        for listed in &listed[..few] {
            out.extend_from_slice(std::mem::replace(&mut self.before, NEXT).as_bytes());
            // Writing into a Vec cannot fail.
            let _ = serde_json::to_writer(&mut *out, listed);
        }
        self.left -= few;
    }

    /// The next part of its text.
    async fn part(mut self) -> Option<(Bytes, Self)> {
        let mut out = Vec::new();
        while out.is_empty() {
            let slices = self.slices.as_mut()?;
            let slice = if self.left == 0 { None } else { slices.recv().await };
            match (slice, self.order) {
                (Some(slice), None) => self.write(&slice.listed, &mut out),
                (Some(slice), Some(order)) => {
                    self.sorted.extend(slice.listed);
                    if self.sorted.len() >= SORTED_TIMES * self.left {
                        self.sort(order);
                    }
                }
                (None, order) => {
                    order.into_iter().for_each(|order| self.sort(order));
                    let sorted = std::mem::take(&mut self.sorted);
                    self.write(&sorted, &mut out);
                    out.extend_from_slice(if self.before == FIRST { b"[\n]\n" } else { b"\n]\n" });
                    // The workers need not look on.
                    self.slices = None;
                }
            }
        }
        Some((out.into(), self))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_mistaken_query_is_named() {
        let keys = "expected rule, state, sni, client, age_min, bytes_min, limit or sort";
        for (query, why) in [
            ("sate=parked", format!("\"sate\" is not a key; {keys}\n")),
            ("%1b%5b=1", format!("\"\\u{{1b}}[\" is not a key; {keys}\n")),
            ("sni=a&sni=b", "\"sni\" occurs twice\n".into()),
            ("sort=rule", "sort: age or bytes\n".into()),
            ("sort=age&limit=1001", "limit: a sorted list has at most 1000 connections\n".into()),
        ] {
            assert_eq!(asked(query), Err(why.into()), "{query}");
        }
    }

    #[test]
    fn a_network_of_ipv4_is_one_however_it_is_written() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("::1", "::1/128"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            assert_eq!(net(text), Ok(expected.parse().unwrap()), "{text}");
        }
        assert!(net("192.0.2.0/33").is_err() && net("a").is_err());
    }
}
