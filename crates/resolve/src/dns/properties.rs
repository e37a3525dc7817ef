//! Properties of reading DNS responses and of what is kept of them, for any bytes. A fuzz target
//! and the property tests assert them.

// A broken property is a finding of the test or the fuzz target that asked for it.
#![allow(clippy::panic)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use hickory_resolver::proto::op::{DnsResponse, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData};

use crate::dns::answer::{Answer, Question, TTL_SECS_MAX};
use crate::dns::resolved::{Resolved, merge};

/// Most responses in a row to one question: one for each alias, the first, and the last.
const ROUNDS_MAX: usize = 18;
/// Most addresses that are kept of a name.
const KEPT_MAX: usize = 512;
/// Most bytes that a name may take: addresses with their times, and some texts.
const BYTES_MAX: usize = KEPT_MAX * size_of::<(IpAddr, u64)>() + 1024;
const HISTORY: Duration = Duration::from_secs(60);
const HISTORY_MS: u64 = 60_000;

/// Reads messages as responses to a question for the name in the first one. Each message is
/// preceded by its length (two bytes) and the seconds since the last one (one byte). Every address
/// that is read must be in its message, and what is kept must be what the messages said within the
/// history.
///
/// # Panics
///
/// If one of these does not hold.
pub fn answers_are_what_was_said(mut data: &[u8]) {
    let (mut now_ms, mut name) = (1_000_000, None);
    let mut model = HashMap::new();
    let mut kept: Option<Resolved> = None;
    while let [high, low, secs, rest @ ..] = data {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (message, others) = rest.split_at(length);
        data = others;
        now_ms += u64::from(*secs) * 1000;
        let Some(response) = response(message) else { continue };
        let name = name.get_or_insert_with(|| {
            response.queries.first().map_or_else(Name::root, |query| query.name().clone())
        });
        let v6 = *secs % 2 == 1;
        let answer = read(name, v6, &response);
        if let Ok(answer) = &answer {
            model.extend(answer.addresses.iter().map(|address| (*address, now_ms)));
        }
        let complete = *secs % 3 > 0;
        let fault = answer.is_err();
        let merged = merge(kept.as_ref(), answer, complete, now_ms, HISTORY);
        holds(&merged, &model, now_ms);
        assert_eq!(merged.is_complete(), complete);
        assert!(!fault || merged.fault().is_some(), "a fault is not reported");
        kept = Some(merged);
    }
}

/// A message as hickory parses it, which accepts responses only (RFC 1035 4.1.1).
fn response(message: &[u8]) -> Option<DnsResponse> {
    let mut message = message.to_vec();
    *message.get_mut(2)? |= 0x80;
    DnsResponse::from_buffer(message).ok()
}

/// One response answers every query.
fn read(name: &Name, v6: bool, response: &DnsResponse) -> Result<Answer, String> {
    let mut question = Question::new(name.clone(), v6);
    for _ in 0..ROUNDS_MAX {
        let query = match question.query() {
            Ok(query) => query,
            Err(answer) => return Ok(answer),
        };
        let before = query.name().clone();
        match question.read(response) {
            Err(why) => {
                let sound = [ResponseCode::NoError, ResponseCode::NXDomain];
                let is_sound = sound.contains(&response.response_code);
                let is_said = |fault: &str| why.contains(fault);
                let faults = ["more than 16 aliases", "lame answer", "malformed answer"];
                assert!(!is_sound || faults.into_iter().any(is_said), "{why}");
                return Err(why);
            }
            Ok(Some(answer)) => {
                is_in(&answer, &before, v6, response);
                return Ok(answer);
            }
            Ok(None) => {}
        }
    }
    panic!("{name} is queried for ever: {response:?}");
}

/// Each address belongs to a name that the response leads to.
fn is_in(answer: &Answer, name: &Name, v6: bool, response: &DnsResponse) {
    let mut reached = vec![name.clone()];
    let mut at = 0;
    while let Some(from) = reached.get(at).cloned() {
        at += 1;
        for record in response.answers.iter().filter(|record| record.name == from) {
            if let RData::CNAME(target) = &record.data
                && !reached.contains(&target.0)
            {
                reached.push(target.0.clone());
            }
        }
    }
    let ttl = |address: &IpAddr| {
        let of_it = response.answers.iter().filter(|record| match &record.data {
            RData::A(found) => !v6 && IpAddr::V4(found.0) == *address,
            RData::AAAA(found) => v6 && IpAddr::V6(found.0).to_canonical() == *address,
            _ => false,
        });
        of_it.filter(|record| reached.contains(&record.name)).map(|record| record.ttl).max()
    };
    assert!(answer.fresh_ms <= u64::from(TTL_SECS_MAX) * 1000);
    for address in &answer.addresses {
        let Some(ttl) = ttl(address) else { panic!("{address} is not in {response:?}") };
        assert!(answer.fresh_ms <= u64::from(ttl) * 1000, "longer than its TTL");
    }
    if response.response_code != ResponseCode::NoError {
        assert_eq!(answer.addresses, [] as [IpAddr; 0], "an error has addresses");
    }
}

/// Checks that what is kept was said within the history, and is within the limits.
fn holds(kept: &Resolved, model: &HashMap<IpAddr, u64>, now_ms: u64) {
    assert!(kept.bytes() <= BYTES_MAX, "{} bytes", kept.bytes());
    let counts = |seen: u64| now_ms - seen <= HISTORY_MS;
    let all = model.values().filter(|seen| counts(**seen)).count();
    for (address, seen) in model {
        match kept.has(*address, now_ms, HISTORY) {
            Some(true) => assert!(counts(*seen), "{address} is kept too long"),
            _ => assert!(!counts(*seen) || all > KEPT_MAX, "{address} is forgotten"),
        }
    }
    let stranger = IpAddr::from([255; 16]);
    assert!(model.contains_key(&stranger) || kept.has(stranger, now_ms, HISTORY) != Some(true));
    assert!(!kept.is_fresh(now_ms + HISTORY_MS), "fresh for longer than the history");
    let logged = &kept.logged.addresses;
    assert!(logged.len() <= 8, "{logged:?}");
    for (at, address) in logged.iter().enumerate() {
        assert!(model.contains_key(address), "{address} was never said");
        assert!(!logged[..at].contains(address), "{address} is shown twice");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use hickory_resolver::proto::op::{Message, Query};
    use hickory_resolver::proto::rr::rdata::CNAME;
    use hickory_resolver::proto::rr::{Record, RecordType};
    use proptest::prelude::*;

    use super::*;

    fn name(n: u8) -> Name {
        Name::from_ascii(
            ["a.example.", "A.example.", "b.example.", "c.example."][usize::from(n % 4)],
        )
        .unwrap()
    }

    fn record((owner, kind, value, ttl): (u8, u8, u8, u32)) -> Record {
        let data = match kind % 3 {
            0 => RData::CNAME(CNAME(name(value))),
            1 => RData::A(Ipv4Addr::new(192, 0, 2, value).into()),
            _ => RData::AAAA(Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(value)).into()),
        };
        Record::from_rdata(name(owner), ttl, data)
    }

    fn message() -> impl Strategy<Value = Vec<u8>> {
        let records = prop::collection::vec((any::<u8>(), 0..3_u8, 0..4_u8, any::<u32>()), 0..9);
        (records, prop::sample::select(vec![0_u16, 0, 0, 2, 3]), any::<u8>()).prop_map(
            |(records, code, secs)| {
                let mut message = Message::query();
                message.add_query(Query::query(name(0), RecordType::A));
                message.metadata.response_code = ResponseCode::from(0, code as u8);
                records.into_iter().for_each(|said| {
                    message.add_answer(record(said));
                });
                let bytes = message.into_response().to_vec().unwrap();
                let mut data = (bytes.len() as u16).to_be_bytes().to_vec();
                data.push(secs);
                data.extend(bytes);
                data
            },
        )
    }

    proptest! {
        #[test]
        fn messages(all in prop::collection::vec(message(), 1..6)) {
            answers_are_what_was_said(&all.concat());
        }

        #[test]
        fn bytes(data in prop::collection::vec(any::<u8>(), 0..300)) {
            answers_are_what_was_said(&data);
        }
    }
}
