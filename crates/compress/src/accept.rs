//! Accept-Encoding (RFC 9110 section 12.5.3): which codings a client accepts, and which one it
//! gets.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

/// A content coding that we can produce and undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
    /// RFC 9842 section 5: zstd with a dictionary.
    Dcz,
    /// RFC 9842 section 4: brotli with a dictionary.
    Dcb,
}

impl Coding {
    /// Returns its name in Content-Encoding.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Br => "br",
            Self::Gzip => "gzip",
            Self::Dcz => "dcz",
            Self::Dcb => "dcb",
        }
    }

    /// The coding of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        let all = [Self::Zstd, Self::Br, Self::Gzip, Self::Dcz, Self::Dcb];
        all.into_iter().find(|coding| coding.name().eq_ignore_ascii_case(name))
    }

    /// True if it needs a dictionary.
    pub const fn is_of_dictionary(self) -> bool {
        matches!(self, Self::Dcz | Self::Dcb)
    }
}

/// The client's weight for each coding, in thousandths. 0 is "not acceptable".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedCodings {
    zstd: Weight,
    br: Weight,
    gzip: Weight,
    dcz: Weight,
    dcb: Weight,
    identity: Weight,
    any: Weight,
    /// True if the field was present, even if empty.
    given: bool,
}

impl AcceptedCodings {
    /// Reads the field; several lines are one list. An element that breaks the grammar is ignored.
    pub fn read(headers: &HeaderMap) -> Self {
        let mut accepted = Self::default();
        for line in headers.get_all(ACCEPT_ENCODING) {
            accepted.given = true;
            let Ok(line) = line.to_str() else { continue };
            for element in line.split(',') {
                accepted.element(element);
            }
        }
        accepted
    }

    /// The coding of `wanted` with the highest weight; among equals the first in `wanted`. `None`
    /// is identity: the client accepts none of `wanted`, or prefers identity.
    pub fn choose(&self, wanted: &[Coding]) -> Option<Coding> {
        let mut best: Option<(Coding, u16)> = None;
        for coding in wanted {
            let weight = self.weight(*coding);
            if weight > best.map_or(0, |(_, weight)| weight) {
                best = Some((*coding, weight));
            }
        }
        // Identity is acceptable without being named. But only a client that names it, or `*`, with
        // a higher weight prefers it to a coding.
        let identity = self.identity.or(self.any).unwrap_or(0);
        best.filter(|(_, weight)| *weight >= identity).map(|(coding, _)| coding)
    }

    /// True if the client accepts it at all.
    pub fn takes(&self, coding: Coding) -> bool {
        self.weight(coding) > 0
    }

    /// The weight in thousandths.
    pub fn weight(&self, coding: Coding) -> u16 {
        if !self.given {
            return 0;
        }
        match coding {
            Coding::Zstd => self.zstd.or(self.any),
            Coding::Br => self.br.or(self.any),
            Coding::Gzip => self.gzip.or(self.any),
            // `*` does not include dictionaries: the client may not know them.
            Coding::Dcz => self.dcz,
            Coding::Dcb => self.dcb,
        }
        .unwrap_or(0)
    }

    /// True if the client takes no response that is uncoded.
    pub fn refuses_identity(&self) -> bool {
        self.identity.or(self.any) == Some(0)
    }

    /// The weights as numbers: 0 for a coding that is not named, else one more than its
    /// thousandths. `None`: the field is missing.
    pub fn export(&self) -> Option<[u16; 7]> {
        let Self { zstd, br, gzip, dcz, dcb, identity, any, given } = *self;
        let number = |weight: Weight| weight.map_or(0, |thousandths| thousandths + 1);
        given.then(|| [zstd, br, gzip, dcz, dcb, identity, any].map(number))
    }

    /// Reads what [`AcceptedCodings::export`] has written. `None`: a weight is above 1.
    pub fn import(numbers: Option<[u16; 7]>) -> Option<Self> {
        let Some(numbers) = numbers else { return Some(Self::default()) };
        let [zstd, br, gzip, dcz, dcb, identity, any] = numbers.map(|number| number.checked_sub(1));
        let is_read = numbers.iter().all(|number| *number <= 1001);
        is_read.then_some(Self { zstd, br, gzip, dcz, dcb, identity, any, given: true })
    }

    fn element(&mut self, element: &str) {
        let (name, weight) = match element.split_once(';') {
            None => (element.trim_matches(BLANKS), Some(1000)),
            Some((name, parameter)) => (name.trim_matches(BLANKS), weight(parameter)),
        };
        let Some(weight) = weight else { return };
        let slot = match name.to_ascii_lowercase().as_str() {
            "zstd" => &mut self.zstd,
            "br" => &mut self.br,
            "gzip" | "x-gzip" => &mut self.gzip,
            "dcz" => &mut self.dcz,
            "dcb" => &mut self.dcb,
            "identity" => &mut self.identity,
            "*" => &mut self.any,
            _ => return,
        };
        // Named twice: the lower weight satisfies both.
        *slot = Some(slot.map_or(weight, |known| known.min(weight)));
    }
}

type Weight = Option<u16>;

const BLANKS: [char; 2] = [' ', '\t'];

/// `q=0.5`: at most three decimals, and at most 1 (RFC 9110 section 12.4.2).
fn weight(parameter: &str) -> Option<u16> {
    let parameter = parameter.trim_matches(BLANKS);
    let value = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="))?;
    let (whole, decimals) = value.split_once('.').unwrap_or((value, ""));
    let digits = decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !["0", "1"].contains(&whole) || decimals.len() > 3 || !digits {
        return None;
    }
    let thousandths: u16 = format!("{whole}{decimals:0<3}").parse().ok()?;
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ALL: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];

    fn read(lines: &[&str]) -> AcceptedCodings {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT_ENCODING, line.parse().unwrap());
        }
        AcceptedCodings::read(&headers)
    }

    #[test]
    fn the_highest_weight_wins_and_among_equals_the_cheapest() {
        use Coding::{Br, Gzip, Zstd};
        for (lines, chosen) in [
            (&[][..], None),
            (&[""], None),
            (&["gzip"], Some(Gzip)),
            (&["x-gzip"], Some(Gzip)),
            (&["GZIP"], Some(Gzip)),
            (&["gzip, deflate, br, zstd"], Some(Zstd)),
            (&["gzip, deflate, br"], Some(Br)),
            (&["gzip", "br"], Some(Br)),
            (&["gzip;q=1.0, zstd;q=0.9"], Some(Gzip)),
            (&["gzip;q=0.001, br;q=0.002"], Some(Br)),
            (&["zstd;q=0, br;q=0.000, gzip"], Some(Gzip)),
            (&["*"], Some(Zstd)),
            (&["*;q=0.5, gzip"], Some(Gzip)),
            (&["*, zstd;q=0"], Some(Br)),
            (&["identity, *;q=0"], None),
            (&["identity;q=0"], None),
            (&["gzip;q=0.5, identity"], None),
            (&["gzip;q=0.5, identity;q=0.5"], Some(Gzip)),
            (&["identity;q=0.5, gzip"], Some(Gzip)),
            (&["deflate, compress"], None),
            (&["gzip;q=2"], None),
            (&["gzip;q=0.1234"], None),
            (&["gzip;q=1.001"], None),
            (&["gzip;q=-1"], None),
            (&["gzip;q="], None),
            (&["gzip;level=9"], None),
            (&["gzip ; q=0.7"], Some(Gzip)),
            (&["gzip;q=0, gzip"], None),
            (&["gzip, gzip;q=0"], None),
            (&["zstdx, brr, gzipp"], None),
            (&[",,gzip,,"], Some(Gzip)),
            (&["dcz, dcb"], None),
        ] {
            assert_eq!(read(lines).choose(&ALL), chosen, "{lines:?}");
        }
    }

    #[test]
    fn dictionary_codings_are_accepted_only_if_named() {
        let with = [Coding::Dcz, Coding::Dcb, Coding::Zstd];
        assert_eq!(read(&["*"]).choose(&with), Some(Coding::Zstd));
        assert_eq!(read(&["zstd, dcb, dcz"]).choose(&with), Some(Coding::Dcz));
        assert_eq!(read(&["zstd, dcb"]).choose(&with), Some(Coding::Dcb));
        assert_eq!(read(&["zstd, dcz;q=0.5"]).choose(&with), Some(Coding::Zstd));
    }
}
