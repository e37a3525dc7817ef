//! The addresses of a name that is dialled, and those that it had.

use std::net::IpAddr;

use crate::dns::answer::Answer;

/// Most addresses kept of a dialled name. An answer of 512 bytes by UDP has about 30, and balancing
/// one name over more than 64 hosts is done by several names.
pub const ADDRESSES_MAX: usize = 64;
/// The time for which connections to an address that has left its name are used. A deployment that
/// changes the name and then stops the old host mostly waits longer.
const USED_ON_MS: u64 = 5_000;
/// The time for a name that gives another part of its addresses each time: the others are not
/// gone. Within ten minutes a TTL of 60 s brings ten parts.
const ROTATING_MS: u64 = 10 * 60 * 1000;

/// The result of a look-up.
#[derive(Clone, Debug)]
pub struct Found {
    /// The addresses, at most [`ADDRESSES_MAX`], IPv6 and IPv4 alternating (RFC 8305 section 4); or
    /// why there is none.
    addresses: Result<Box<[IpAddr]>, Box<str>>,
    /// The time at which DNS has answered, by the steady clock.
    pub asked_ms: u64,
    /// The time until which it is valid, by the steady clock.
    pub fresh_until_ms: u64,
    /// The other family's answer is under way.
    pub is_partial: bool,
    /// Both families were answered.
    is_whole: bool,
    /// Addresses of earlier answers that this one lacks, and when the first answer lacked them. At
    /// most [`ADDRESSES_MAX`].
    left: Box<[(IpAddr, u64)]>,
    /// One of these has come back before.
    rotates: bool,
}

impl Found {
    /// The addresses of an answer that has arrived now.
    pub fn new(answer: Result<Answer, String>, now_ms: u64) -> Self {
        let (fresh_ms, is_whole) =
            answer.as_ref().map_or((0, false), |answer| (answer.fresh_ms, answer.is_whole));
        let addresses = answer.and_then(|answer| match answer.addresses.is_empty() {
            true => Err("the name has no address".into()),
            false => Ok(answer.addresses.into()),
        });
        Self {
            addresses: addresses.map_err(Into::into),
            asked_ms: now_ms,
            fresh_until_ms: now_ms + fresh_ms,
            is_partial: false,
            is_whole,
            left: Box::default(),
            rotates: false,
        }
    }

    /// Marks that the other family's answer is under way.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { is_partial: true, ..self }
    }

    /// Names known under another configuration: DNS is asked again before an address is dialled.
    #[must_use]
    pub fn stale(&self) -> Self {
        Self { asked_ms: 0, fresh_until_ms: 0, ..self.clone() }
    }

    /// Adds the addresses that the answer before this one is remembered for.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        let (now_ms, current) = (self.asked_ms, self.current());
        let has = |ip: &IpAddr| current.contains(ip);
        // The addresses of a family that failed have not left the name.
        let is_answered =
            |ip: &IpAddr| self.is_whole || current.iter().any(|its| its.is_ipv6() == ip.is_ipv6());
        let leaving = before.current().iter().map(|ip| (*ip, now_ms));
        let earlier = before.left.iter().map(|(ip, since)| match is_answered(ip) {
            true => (*ip, *since),
            false => (*ip, now_ms),
        });
        let left = leaving.chain(earlier);
        let left =
            left.filter(|(ip, since)| !has(ip) && now_ms.saturating_sub(*since) <= ROTATING_MS);
        let left = left.take(ADDRESSES_MAX).collect();
        // What comes back after there was no address at all tells nothing.
        let has_come_back = before.addresses.is_ok() && before.left.iter().any(|(ip, _)| has(ip));
        let rotates = before.rotates || has_come_back;
        Self { left, rotates, ..self }
    }

    /// True if DNS has answered the question, and the answer may be kept.
    pub fn is_answered(&self) -> bool {
        self.is_whole || self.addresses.is_ok()
    }

    /// The addresses, or why there is none.
    ///
    /// # Errors
    /// The reason, as text for the log.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        self.addresses.as_deref().map(<[IpAddr]>::to_vec).map_err(ToString::to_string)
    }

    /// The addresses whose connections may be used: its own, and those that have left lately.
    /// `None`: it has none, and all may be used.
    pub fn usable(&self, now_ms: u64) -> Option<Vec<IpAddr>> {
        let current = self.addresses.as_deref().ok()?;
        let used_on = if self.rotates { ROTATING_MS } else { USED_ON_MS };
        let lately = self.left.iter().filter(|(_, since)| now_ms.saturating_sub(*since) <= used_on);
        Some(current.iter().copied().chain(lately.map(|(ip, _)| *ip)).collect())
    }

    fn current(&self) -> &[IpAddr] {
        self.addresses.as_deref().unwrap_or_default()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let addresses = self.addresses.as_ref();
        size_of::<Self>()
            + size_of_val(&*self.left)
            + addresses.map_or_else(|why| why.len(), |all| size_of_val(&**all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(last: &[u8], at_ms: u64) -> Found {
        let addresses = last.iter().map(|last| IpAddr::from([192, 0, 2, *last])).collect();
        Found::new(Ok(Answer::new(addresses, 1)), at_ms)
    }

    fn usable(found: &Found, at_ms: u64) -> Vec<u8> {
        let last = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 66,
        };
        found.usable(at_ms).map_or(vec![], |all| all.iter().map(last).collect())
    }

    #[test]
    fn an_address_that_has_left_is_used_for_a_while() {
        let moved = found(&[2], 10_000).after(&found(&[1], 9_000));
        assert_eq!(usable(&moved, 10_000), [2, 1]);
        assert_eq!(usable(&moved, 10_000 + USED_ON_MS), [2, 1]);
        assert_eq!(usable(&moved, 10_001 + USED_ON_MS), [2]);
        // Later answers do not begin its time anew.
        let later = found(&[2], 14_000).after(&moved);
        assert_eq!(usable(&later, 10_001 + USED_ON_MS), [2]);
    }

    #[test]
    fn a_name_that_gives_another_part_each_time_keeps_the_others() {
        let second = found(&[3, 4], 60_000).after(&found(&[1, 2], 0));
        let third = found(&[1, 4], 120_000).after(&second);
        assert_eq!(usable(&third, 180_000), [1, 4, 3, 2]);
        let fourth = found(&[1, 4], 120_001 + ROTATING_MS).after(&third);
        assert_eq!(usable(&fourth, 120_001 + ROTATING_MS), [1, 4], "not seen for so long");
    }

    #[test]
    fn a_family_that_failed_has_not_left() {
        let six = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
        let four = |last| IpAddr::from([192, 0, 2, last]);
        let both = Found::new(Ok(Answer::new(vec![six, four(1)], 1)), 0);
        let partly = |at_ms| {
            let answer = Answer { addresses: vec![four(2)], fresh_ms: 2_000, is_whole: false };
            Found::new(Ok(answer), at_ms)
        };
        let mut failing = both;
        for at_ms in (2_000..60_000).step_by(2_000) {
            failing = partly(at_ms).after(&failing);
        }
        assert_eq!(usable(&failing, 60_000), [2, 66], "the other family was answered");
        // A name that has no address at the moment ends no connection.
        let none = found(&[], 61_000).after(&failing);
        assert_eq!(none.usable(99_000), None);
        assert_eq!(usable(&found(&[2], 62_000).after(&none), 99_000), [2]);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut last = found(&[0], 0);
        for n in 1..200 {
            last = found(&[n], u64::from(n)).after(&last);
        }
        assert_eq!(last.left.len(), ADDRESSES_MAX);
    }
}
