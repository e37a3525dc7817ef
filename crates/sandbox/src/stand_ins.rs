//! Addresses that stand for names inside: each name has one of its own for the run, of each
//! version, which says nothing about where the name leads outside.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first of IPv4: networks for benchmarks, which nobody routes (RFC 2544, 198.18.0.0/15).
const FIRST_V4: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// The names of a run at most. A command that looks up more has made them up.
const NAMES_MAX: u32 = 1 << 14;
/// The prefix of IPv6, a unique local one (RFC 4193). The address of IPv4 follows.
const PREFIX_V6: u128 = 0xfd65_7965_6c65_7400 << 64;

/// The names of a run.
#[derive(Debug, Default)]
pub struct StandIns {
    names: Vec<Placed>,
    by_name: HashMap<Box<str>, u32>,
}

#[derive(Debug)]
struct Placed {
    name: Box<str>,
    is_asked: bool,
    is_dialled: bool,
}

impl StandIns {
    /// The addresses of a name. `None`: there are no more.
    pub fn of(&mut self, name: &str) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let at = match self.by_name.get(name) {
            Some(at) => *at,
            None => {
                let at = u32::try_from(self.names.len()).ok().filter(|at| *at < NAMES_MAX)?;
                self.names.push(Placed { name: name.into(), is_asked: false, is_dialled: false });
                self.by_name.insert(name.into(), at);
                at
            }
        };
        let v4 = FIRST_V4 + at;
        Some((Ipv4Addr::from(v4), Ipv6Addr::from(PREFIX_V6 | u128::from(v4))))
    }

    /// The addresses of a name that the command has asked for.
    pub fn ask(&mut self, name: &str) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let addresses = self.of(name)?;
        let at = self.by_name.get(name).and_then(|at| usize::try_from(*at).ok());
        if let Some(placed) = at.and_then(|at| self.names.get_mut(at)) {
            placed.is_asked = true;
        }
        Some(addresses)
    }

    /// The name that an address stands for, which was dialled.
    pub fn dialled(&mut self, ip: IpAddr) -> Option<&str> {
        let v4 = match ip {
            IpAddr::V4(ip) => u32::from(ip),
            IpAddr::V6(ip) => u32::try_from(u128::from(ip).checked_sub(PREFIX_V6)?).ok()?,
        };
        let at = usize::try_from(v4.checked_sub(FIRST_V4)?).ok()?;
        let placed = self.names.get_mut(at)?;
        placed.is_dialled = true;
        Some(&placed.name)
    }

    /// Notes that a name was dialled.
    pub fn note_dialled(&mut self, name: &str) {
        let at = self.by_name.get(name).and_then(|at| usize::try_from(*at).ok());
        if let Some(placed) = at.and_then(|at| self.names.get_mut(at)) {
            placed.is_dialled = true;
        }
    }

    /// Names that were asked for, and never dialled.
    pub fn undialled(&self) -> impl Iterator<Item = &str> {
        self.names
            .iter()
            .filter(|placed| placed.is_asked && !placed.is_dialled)
            .map(|placed| &*placed.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back() {
        let mut stand_ins = StandIns::default();
        let first = stand_ins.of("a.example").expect("room");
        let second = stand_ins.of("b.example").expect("room");
        assert_eq!(first.0, Ipv4Addr::new(198, 18, 0, 0));
        assert_eq!(second.1.to_string(), "fd65:7965:6c65:7400::c612:1");
        assert_eq!(stand_ins.of("a.example"), Some(first));
        assert_eq!(stand_ins.dialled(second.1.into()), Some("b.example"));
        assert_eq!(stand_ins.undialled().count(), 0, "nobody has asked");
        assert_eq!(stand_ins.ask("a.example"), Some(first));
        assert_eq!(stand_ins.ask("b.example"), Some(second));
        assert_eq!(stand_ins.undialled().collect::<Vec<_>>(), ["a.example"]);
        for ip in ["198.18.0.2", "198.17.255.255", "::", "fd65:7965:6c65:7401::c612:0"] {
            assert_eq!(stand_ins.dialled(ip.parse().expect(ip)), None, "{ip}");
        }
    }

    #[test]
    fn there_is_a_last_one() {
        let mut stand_ins = StandIns::default();
        let placed = (0..=NAMES_MAX).filter(|n| stand_ins.of(&format!("n{n}")).is_some());
        assert_eq!(placed.count(), NAMES_MAX as usize);
    }
}
