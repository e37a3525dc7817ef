//! The choice among upstreams: power of two choices by load, or rendezvous hashing of the client's
//! address.

use std::net::IpAddr;

use crate::health::{Health, mix};

/// The terms of a choice.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    /// Whoever asks stays with one upstream; otherwise the load decides.
    pub(crate) client: Option<IpAddr>,
    /// The time.
    pub(crate) now_ms: u64,
    /// Bits that differ at each choice.
    pub(crate) random: u64,
}

/// Chooses one of those that are left, by its index. If all of them are down, one of these is
/// tried: a wrong guess about health must not refuse anybody. `None`: none is left.
pub(crate) fn choose(left: &[(usize, &Health)], choice: Choice) -> Option<usize> {
    match choice.client {
        Some(client) => by_client(left, client, choice.now_ms),
        None => by_load(left, choice),
    }
}

/// Rendezvous hashing: each client has an order of upstreams of its own, and gets the first one
/// that is up. One that goes down moves only its own clients, and they come back with it.
fn by_client(left: &[(usize, &Health)], client: IpAddr, now_ms: u64) -> Option<usize> {
    let client = match client.to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            mix((bits >> 64) as u64) ^ bits as u64
        }
    };
    let mut ranked: Vec<(usize, &Health)> = left.to_vec();
    ranked.sort_by_key(|(_, health)| std::cmp::Reverse(mix(health.hash ^ mix(client))));
    let usable = ranked.iter().find(|(_, health)| health.is_up() || health.take_try(now_ms));
    if let Some((index, _)) = usable {
        return Some(*index);
    }
    let (index, health) = ranked.first()?;
    health.take_early_try();
    Some(*index)
}

/// Two at random, and the less loaded of them. It spreads almost as well as asking all of them, and
/// many edges that see the same loads do not all run to the same upstream.
fn by_load(left: &[(usize, &Health)], choice: Choice) -> Option<usize> {
    let Choice { now_ms, random, .. } = choice;
    let due = left.iter().find(|(_, health)| health.is_due(now_ms) && health.take_try(now_ms));
    if let Some((index, _)) = due {
        return Some(*index);
    }
    let up = || left.iter().copied().filter(|(_, health)| health.is_up());
    // One in its slow start takes part as often as its share says.
    let takes_part = |health: &Health| {
        health.share(now_ms).is_none_or(|share| mix(random ^ health.hash) & 0xffff < share)
    };
    let mut of: Vec<(usize, &Health)> = up().filter(|(_, health)| takes_part(health)).collect();
    if of.is_empty() {
        of = up().collect();
    }
    let all_down = of.is_empty();
    let of = if all_down { left } else { &of };
    let count = of.len() as u64;
    let one = of.get((random % count.max(1)) as usize)?;
    let after = 1 + (random >> 32) % count.saturating_sub(1).max(1);
    let other = of.get(((random % count + after) % count) as usize)?;
    let open = |health: &Health| health.counters.open.load(std::sync::atomic::Ordering::Relaxed);
    let (index, health) = if open(other.1) < open(one.1) { other } else { one };
    if all_down {
        health.take_early_try();
    }
    Some(*index)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::health::SLOW_START_MS;

    const CLIENTS: u32 = 2_000;

    fn healths(count: usize) -> Vec<Health> {
        (0..count).map(|number| Health::new(format!("10.0.0.{number}:80"), false)).collect()
    }

    fn left(healths: &[Health]) -> Vec<(usize, &Health)> {
        healths.iter().enumerate().collect()
    }

    /// Counts how often each is chosen of so many times.
    fn chosen(healths: &[Health], now_ms: u64, times: u64) -> Vec<u64> {
        let mut counts = vec![0; healths.len()];
        for number in 0..times {
            let choice = Choice { client: None, now_ms, random: mix(number) };
            counts[choose(&left(healths), choice).unwrap_or(usize::MAX)] += 1;
        }
        counts
    }

    #[test]
    fn the_less_loaded_of_two_is_chosen() {
        let healths = healths(4);
        for count in chosen(&healths, 1, 4_000) {
            assert!((800..1_200).contains(&count), "{count}: equal loads, equal shares");
        }
        healths[2].counters.open.store(10, Relaxed);
        assert_eq!(chosen(&healths, 1, 1_000)[2], 0);
        healths.iter().for_each(|health| health.counters.open.store(11, Relaxed));
        healths[2].counters.open.store(10, Relaxed);
        let shares = chosen(&healths, 1, 4_000);
        assert!((1_700..2_300).contains(&shares[2]), "it wins each of its pairs: {shares:?}");
    }

    #[test]
    fn what_is_down_gets_one_try_and_then_a_growing_share() {
        let healths = healths(2);
        healths[0].failed(1_000, &"refused");
        assert_eq!(chosen(&healths, 1_000, 100), [0, 100]);
        assert_eq!(chosen(&healths, 3_000, 100), [1, 99], "one try");
        healths[0].answered(3_000);
        assert_eq!(chosen(&healths, 3_000, 100), [0, 100]);
        let half = chosen(&healths, 3_000 + SLOW_START_MS / 2, 4_000);
        assert!((800..1_200).contains(&half[0]), "half of its half: {half:?}");
        let whole = chosen(&healths, 3_000 + SLOW_START_MS, 4_000);
        assert!((1_800..2_200).contains(&whole[0]), "{whole:?}");
    }

    #[test]
    fn all_down_are_all_tried() {
        let healths = healths(3);
        healths.iter().for_each(|health| health.failed(1_000, &"refused"));
        assert!(chosen(&healths, 1_001, 300).iter().all(|count| *count > 50));
        assert_eq!(choose(&[], Choice { client: None, now_ms: 1, random: 1 }), None);
        let client = Some(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(choose(&[], Choice { client, now_ms: 1, random: 1 }), None);
        assert!(choose(&left(&healths), Choice { client, now_ms: 1, random: 1 }).is_some());
    }

    /// The one that each client gets.
    fn of_clients(healths: &[Health], now_ms: u64) -> Vec<usize> {
        let client = |number| IpAddr::from(0x0a00_0000_u32.wrapping_add(number).to_be_bytes());
        (0..CLIENTS)
            .map(|number| Choice {
                client: Some(client(number)),
                now_ms,
                random: u64::from(number),
            })
            .map(|choice| choose(&left(healths), choice).unwrap_or(usize::MAX))
            .collect()
    }

    #[test]
    fn one_that_goes_down_moves_only_its_own_clients() {
        let healths = healths(4);
        let before = of_clients(&healths, 1_000);
        for index in 0..4 {
            let share = before.iter().filter(|one| **one == index).count();
            assert!((400..600).contains(&share), "{share}");
        }
        healths[1].failed(1_000, &"refused");
        let after = of_clients(&healths, 1_000);
        let mut moved_to = [0; 4];
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(*before == 1, before != after);
            moved_to[*after] += usize::from(*before == 1);
        }
        assert!(moved_to.iter().filter(|count| **count > 100).count() == 3, "{moved_to:?}");
        assert!(healths[1].take_try(3_000));
        healths[1].answered(3_000);
        assert_eq!(of_clients(&healths, 3_000), before);
    }
}
