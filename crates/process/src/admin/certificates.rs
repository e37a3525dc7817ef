//! The certificates that are served, and those of them that expire first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_acme::Known;
use eyelet_admin::metrics::{Metrics, Number};
use eyelet_admin::{Objects, SOONEST_MAX};
use eyelet_pki::certificate::Description;
use eyelet_tls::certificates::Described;
use serde_json::{Value, json};

use eyelet_edge::snapshot::Snapshot;

/// The time for which the soonest expiries are remembered: finding them looks at every certificate.
const EXPIRY_TIME: Duration = Duration::from_mins(1);

/// A certificate: its source, where it is from, and what it says.
type Origin = (&'static str, String, Result<Description, String>);

/// The place of a certificate among those that expire first: in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// It cannot be used.
    Unusable,
    /// It expires then, in seconds since 1970.
    Expires(i64),
    /// There is none, and only a client has asked for the name. Strangers choose such names, so
    /// they must not hide others, and an operator is not told of them by a metric.
    AskedInVain,
}

/// The certificates that expire first, as they were found.
pub struct Soonest {
    at: Instant,
    /// The configuration that they are of.
    generation: u64,
    /// The number of all certificates.
    count: usize,
    /// The number of those that cannot be used.
    unusable: usize,
    /// Those of [`first`].
    certificates: Vec<(Place, Origin)>,
}

impl Soonest {
    /// Looks at every certificate.
    pub fn find(snapshot: &Snapshot) -> Self {
        let (mut count, mut unusable) = (0, 0);
        let all = expiries(snapshot).inspect(|(place, _)| {
            count += 1;
            unusable += usize::from(*place == Place::Unusable);
        });
        let found = first(all).into_iter();
        let certificates = found.filter_map(|(place, of)| Some((place, describe(snapshot, of)?)));
        let (certificates, generation) = (certificates.collect(), snapshot.generation);
        Self { at: Instant::now(), generation, count, unusable, certificates }
    }

    /// True if they are of this configuration, and were found a moment ago.
    pub fn is_new(&self, generation: u64) -> bool {
        self.generation == generation && self.at.elapsed() < EXPIRY_TIME
    }

    /// For Prometheus.
    pub fn write(&self, metrics: &mut Metrics) {
        let expiry = |(place, _): &_| match *place {
            Place::Expires(expiry) => Some(expiry),
            Place::Unusable | Place::AskedInVain => None,
        };
        if let Some(expiry) = self.certificates.iter().find_map(expiry) {
            let help = "When the first certificate that is served expires.";
            let name = "certificate_soonest_expiry_timestamp_seconds";
            metrics.gauge(name, help, Number::Seconds(expiry as f64));
        }
        let help = "Certificates that cannot be used.";
        metrics.gauge("unusable_certificates", help, self.unusable);
    }
}

/// All certificates.
pub fn all(snapshot: Arc<Snapshot>) -> Objects {
    certificates(None, described(snapshot))
}

/// Returns so many of those that expire first.
pub fn soonest(soonest: Arc<Soonest>, limit: usize) -> Objects {
    let all = Some(("all", json!(soonest.count)));
    let few = few_of(&soonest.certificates, limit);
    certificates(all, few.filter_map(move |at| Some(soonest.certificates.get(at)?.1.clone())))
}

/// The first [`SOONEST_MAX`] of each kind of [`Place`], in order: no kind hides another. Four times
/// [`SOONEST_MAX`] are held at a time.
fn first<T>(all: impl Iterator<Item = (Place, T)>) -> Vec<(Place, T)> {
    let (mut unusable, mut expiring, mut in_vain) = (Vec::new(), Vec::new(), Vec::new());
    let trim = |expiring: &mut Vec<(Place, T)>| {
        expiring.sort_by_key(|(place, _)| *place);
        expiring.truncate(SOONEST_MAX);
    };
    for one in all {
        match one.0 {
            Place::Unusable if unusable.len() < SOONEST_MAX => unusable.push(one),
            Place::AskedInVain if in_vain.len() < SOONEST_MAX => in_vain.push(one),
            Place::Unusable | Place::AskedInVain => {}
            Place::Expires(_) => expiring.push(one),
        }
        if expiring.len() == 2 * SOONEST_MAX {
            trim(&mut expiring);
        }
    }
    trim(&mut expiring);
    unusable.append(&mut expiring);
    unusable.append(&mut in_vain);
    unusable
}

/// Returns so many of [`first`]: those that cannot be used leave half of the places to those that
/// expire.
fn few_of(soonest: &[(Place, Origin)], limit: usize) -> impl Iterator<Item = usize> + use<> {
    let unusable = soonest.partition_point(|(place, _)| *place == Place::Unusable);
    let usable = soonest.partition_point(|(place, _)| *place < Place::AskedInVain) - unusable;
    let kept = unusable.min(limit - usable.min(limit / 2));
    (0..kept).chain((unusable..soonest.len()).take(limit - kept))
}

/// Each certificate that is served. It is read when it is asked for. Those that the local authority
/// signs are not among them: each is signed anew before its end, so that the end of the authority
/// is the only one to look out for.
fn described(snapshot: Arc<Snapshot>) -> impl Iterator<Item = Origin> + Send {
    let acme = snapshot.acme.all().into_iter().map(issued);
    let local = authority(&snapshot).into_iter().chain(svid(&snapshot));
    let sets = 0..snapshot.config.rules.certificates_len() as u32;
    let files = sets.flat_map(move |set| snapshot.tls.describe_set(&snapshot.config.rules, set));
    local.chain(files.map(from_file)).chain(acme)
}

fn authority(snapshot: &Snapshot) -> Option<Origin> {
    let (file, described) = snapshot.tls.describe_local()?;
    Some(("local", file.display().to_string(), described.ok_or("unreadable".into())))
}

fn svid(snapshot: &Snapshot) -> Option<Origin> {
    let settings = snapshot.config.spiffe.as_ref()?;
    Some(match snapshot.tls.workload().describe() {
        Some((id, described)) => ("spiffe", id.to_string(), described.ok_or("unreadable".into())),
        None => ("spiffe", settings.socket.display().to_string(), Err("none was sent".into())),
    })
}

fn from_file((files, described): Described) -> Origin {
    ("file", files.certificate.display().to_string(), described.map_err(|why| why.to_string()))
}

fn issued(known: Known) -> Origin {
    let described = match known.served {
        Ok(served) => served.first().and_then(|leaf| leaf.describe()).ok_or("unreadable".into()),
        Err(lack) => Err(lack.to_string()),
    };
    ("acme", known.name.into(), described)
}

/// A certificate that is not described yet.
enum Undescribed {
    Authority,
    Svid,
    File { set: u32, index: usize },
    Issued(Known),
}

/// Those of [`described`], each with its place.
fn expiries(snapshot: &Snapshot) -> impl Iterator<Item = (Place, Undescribed)> + '_ {
    let place = |expiry: Option<i64>| expiry.map_or(Place::Unusable, Place::Expires);
    let acme = snapshot.acme.all().into_iter().map(move |known| {
        let place = match &known.served {
            Ok(served) => place(served.first().and_then(|leaf| leaf.expiry())),
            Err(_) if known.is_asked => Place::AskedInVain,
            Err(_) => Place::Unusable,
        };
        (place, Undescribed::Issued(known))
    });
    let local = authority(snapshot).map(|(_, _, described)| {
        (place(described.ok().map(|described| described.not_after)), Undescribed::Authority)
    });
    let svid = svid(snapshot).map(|(_, _, described)| {
        (place(described.ok().map(|described| described.not_after)), Undescribed::Svid)
    });
    let rules = &snapshot.config.rules;
    let files = (0..rules.certificates_len() as u32).flat_map(move |set| {
        let all = snapshot.tls.expiries(rules, set).into_iter().enumerate();
        all.map(move |(index, expiry)| (place(expiry), Undescribed::File { set, index }))
    });
    local.into_iter().chain(svid).chain(files).chain(acme)
}

fn describe(snapshot: &Snapshot, of: Undescribed) -> Option<Origin> {
    match of {
        Undescribed::Authority => authority(snapshot),
        Undescribed::Svid => svid(snapshot),
        Undescribed::File { set, index } => {
            let all = snapshot.tls.describe_set(&snapshot.config.rules, set);
            all.into_iter().nth(index).map(from_file)
        }
        Undescribed::Issued(known) => Some(issued(known)),
    }
}

fn certificates(
    first: Option<(&'static str, Value)>,
    all: impl Iterator<Item = Origin> + Send + 'static,
) -> Objects {
    let objects = all.map(|(source, from, described)| match described {
        Ok(description) => json!({
            "source": source,
            "from": from,
            "names": description.names,
            "not_before_unix_seconds": description.not_before,
            "not_after_unix_seconds": description.not_after,
        }),
        Err(why) => json!({ "source": source, "from": from, "error": why }),
    });
    Objects { first, name: "certificates", objects: Box::new(objects) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_expire_first_are_kept() {
        // 1,000 different ones, in no order.
        let all = (0..1_000).map(|n| (Place::Expires(n * 617 % 1_009), ()));
        let places = |kept: Vec<(Place, ())>| -> Vec<Place> {
            kept.into_iter().map(|(place, ())| place).collect()
        };
        let mut expected = places(all.clone().collect());
        expected.sort_unstable();
        expected.truncate(SOONEST_MAX);
        assert_eq!(places(first(all.clone())), expected);
        assert_eq!(first([(Place::Expires(7), ())].into_iter()).len(), 1);
        // Those of other kinds are around them, and hide none of them.
        let [unusable, in_vain] =
            [Place::Unusable, Place::AskedInVain].map(|place| vec![place; SOONEST_MAX]);
        let more = |place| (0..=SOONEST_MAX).map(move |_| (place, ()));
        let three = more(Place::AskedInVain).chain(all).chain(more(Place::Unusable));
        assert_eq!(places(first(three)), [unusable, expected, in_vain].concat());
    }

    #[test]
    fn those_that_cannot_be_used_hide_none_that_expires() {
        let one = |place| (place, ("file", String::new(), Err(String::new())));
        for (there, limit, expected) in [
            ([100, 100, 0], 50, [25, 25, 0]),
            ([100, 1, 0], 50, [49, 1, 0]),
            ([2, 100, 0], 50, [2, 48, 0]),
            ([0, 100, 0], 50, [0, 50, 0]),
            ([100, 0, 0], 50, [50, 0, 0]),
            ([2, 3, 0], 50, [2, 3, 0]),
            ([1, 1, 0], 1, [1, 0, 0]),
            ([1, 1, 0], 0, [0, 0, 0]),
            // Names that clients choose get what is left.
            ([100, 100, 100], 50, [25, 25, 0]),
            ([2, 3, 100], 50, [2, 3, 45]),
            ([0, 1, 100], 1, [0, 1, 0]),
            ([1, 0, 100], 1, [1, 0, 0]),
            ([0, 0, 100], 50, [0, 0, 50]),
            ([100, 0, 100], 50, [50, 0, 0]),
        ] {
            let [unusable, expiring, in_vain] = there;
            let all: Vec<(Place, Origin)> = (0..unusable)
                .map(|_| one(Place::Unusable))
                .chain((0..expiring).map(|at| one(Place::Expires(at))))
                .chain((0..in_vain).map(|_| one(Place::AskedInVain)))
                .collect();
            let kept: Vec<Place> = few_of(&all, limit).map(|at| all[at].0).collect();
            let expiring = kept.iter().filter(|place| matches!(place, Place::Expires(_)));
            let count = |of| kept.iter().filter(|place| **place == of).count();
            let counts =
                [count(Place::Unusable), expiring.clone().count(), count(Place::AskedInVain)];
            assert_eq!(counts, expected, "{there:?} {limit}");
            // The first of them, in order.
            assert!(expiring.copied().eq((0..expected[1] as i64).map(Place::Expires)));
        }
    }
}
