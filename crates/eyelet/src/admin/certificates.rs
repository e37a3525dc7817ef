//! Which certificates are served, and those of them that expire first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_acme::Known;
use eyelet_admin::metrics::{Metrics, Number};
use eyelet_admin::{Objects, SOONEST_MAX};
use eyelet_config::certificate::Description;
use eyelet_tls::certificates::Described;
use serde_json::{Value, json};

use crate::snapshot::Snapshot;

/// How long the soonest expiries are remembered: finding them looks at every certificate.
const EXPIRY_TIME: Duration = Duration::from_mins(1);

/// A certificate: its source, where it is from, and what it says.
type Origin = (&'static str, String, Result<Description, String>);

/// When a certificate expires, in seconds since 1970, and the certificate. `None`: it cannot be
/// read.
type Expiring = (Option<i64>, Origin);

/// The certificates that expire first, as they were found.
pub struct Soonest {
    at: Instant,
    /// The configuration that they are of.
    generation: u64,
    /// How many certificates there are in all.
    count: usize,
    /// How many of them cannot be used.
    unusable: usize,
    /// Those of [`first`].
    certificates: Vec<Expiring>,
}

impl Soonest {
    /// Looks at every certificate.
    pub fn find(snapshot: &Snapshot) -> Self {
        let (mut count, mut unusable) = (0, 0);
        let all = expiries(snapshot).inspect(|(expiry, of)| {
            count += 1;
            unusable += usize::from(expiry.is_none() && !of.is_asked_in_vain());
        });
        let found = first(all).into_iter();
        let certificates = found.filter_map(|(expiry, of)| Some((expiry, describe(snapshot, of)?)));
        let (certificates, generation) = (certificates.collect(), snapshot.generation);
        Self { at: Instant::now(), generation, count, unusable, certificates }
    }

    /// Whether they are of this configuration, and were found a moment ago.
    pub fn is_new(&self, generation: u64) -> bool {
        self.generation == generation && self.at.elapsed() < EXPIRY_TIME
    }

    /// For Prometheus.
    pub fn write(&self, metrics: &mut Metrics) {
        if let Some(expiry) = self.certificates.iter().find_map(|(expiry, _)| *expiry) {
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

/// So many of those that expire first.
pub fn soonest(soonest: Arc<Soonest>, limit: usize) -> Objects {
    let all = Some(("all", json!(soonest.count)));
    let few = few_of(&soonest.certificates, limit);
    certificates(all, few.filter_map(move |at| Some(soonest.certificates.get(at)?.1.clone())))
}

/// [`SOONEST_MAX`] that cannot be read, and behind them as many that expire first, in order: those
/// do not hide these from `/metrics`. Three times [`SOONEST_MAX`] are held at a time.
fn first<T>(all: impl Iterator<Item = (Option<i64>, T)>) -> Vec<(Option<i64>, T)> {
    let (mut kept, mut readable) = (Vec::new(), Vec::new());
    let trim = |readable: &mut Vec<(Option<i64>, T)>| {
        readable.sort_by_key(|(expiry, _)| *expiry);
        readable.truncate(SOONEST_MAX);
    };
    for one in all {
        match one.0 {
            None if kept.len() < SOONEST_MAX => kept.push(one),
            None => {}
            Some(_) => readable.push(one),
        }
        if readable.len() == 2 * SOONEST_MAX {
            trim(&mut readable);
        }
    }
    trim(&mut readable);
    kept.append(&mut readable);
    kept
}

/// So many of [`first`]: those that cannot be read leave half of the places to those that expire.
fn few_of(soonest: &[Expiring], limit: usize) -> impl Iterator<Item = usize> + use<> {
    let unreadable = soonest.partition_point(|(expiry, _)| expiry.is_none());
    let readable = (soonest.len() - unreadable).min(limit / 2);
    let kept = unreadable.min(limit - readable);
    (0..kept).chain((unreadable..soonest.len()).take(limit - kept))
}

/// Each certificate that is served. It is read when it is asked for. Those that the local authority
/// signs are not among them: each is signed anew before its end, so that the end of the authority
/// is the only one to look out for.
fn described(snapshot: Arc<Snapshot>) -> impl Iterator<Item = Origin> + Send {
    let acme = snapshot.acme.all().into_iter().map(issued);
    let local = authority(&snapshot);
    let sets = 0..snapshot.config.rules.certificates_len() as u32;
    let files = sets.flat_map(move |set| snapshot.tls.describe_set(&snapshot.config.rules, set));
    local.into_iter().chain(files.map(from_file)).chain(acme)
}

fn authority(snapshot: &Snapshot) -> Option<Origin> {
    let (file, described) = snapshot.tls.describe_local()?;
    Some(("local", file.display().to_string(), described.ok_or("unreadable".into())))
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
    File { set: u32, index: usize },
    Issued(Known),
}

impl Undescribed {
    /// Strangers choose such names, so an operator is not told of them by a metric.
    fn is_asked_in_vain(&self) -> bool {
        matches!(self, Self::Issued(Known { served: Err(_), is_asked: true, .. }))
    }
}

/// Those of [`described`], with the time when each expires. `None`: it cannot be used.
fn expiries(snapshot: &Snapshot) -> impl Iterator<Item = (Option<i64>, Undescribed)> + '_ {
    let acme = snapshot.acme.all().into_iter().map(|known| {
        let leaf = known.served.as_ref().ok().and_then(|served| served.first());
        (leaf.and_then(|leaf| leaf.expiry()), Undescribed::Issued(known))
    });
    let local = authority(snapshot).map(|(_, _, described)| {
        (described.ok().map(|described| described.not_after), Undescribed::Authority)
    });
    let rules = &snapshot.config.rules;
    let files = (0..rules.certificates_len() as u32).flat_map(move |set| {
        let all = snapshot.tls.expiries(rules, set).into_iter().enumerate();
        all.map(move |(index, expiry)| (expiry, Undescribed::File { set, index }))
    });
    local.into_iter().chain(files).chain(acme)
}

fn describe(snapshot: &Snapshot, of: Undescribed) -> Option<Origin> {
    match of {
        Undescribed::Authority => authority(snapshot),
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
        let one =
            |expiry: Option<i64>| (expiry, ("file", format!("{expiry:?}.pem"), Err(String::new())));
        // 1,000 different ones, in no order.
        let all = (0..1_000).map(|n| one(Some(n * 617 % 1_009)));
        let mut expected: Vec<Option<i64>> = all.clone().map(|(expiry, _)| expiry).collect();
        expected.sort_unstable();
        expected.truncate(SOONEST_MAX);
        let expiries = |kept: Vec<Expiring>| -> Vec<Option<i64>> {
            kept.into_iter().map(|(expiry, _)| expiry).collect()
        };
        assert_eq!(expiries(first(all.clone())), expected);
        assert_eq!(first([one(Some(7))].into_iter()).len(), 1);
        // Those that cannot be read are before them, and hide none of them.
        let unreadable = vec![None; SOONEST_MAX];
        let both = all.chain((0..=SOONEST_MAX).map(|_| one(None)));
        assert_eq!(expiries(first(both)), [unreadable, expected].concat());
    }

    #[test]
    fn those_that_cannot_be_read_hide_none_that_expires() {
        let one = |expiry: Option<i64>| (expiry, ("file", String::new(), Err(String::new())));
        for (unreadable, readable, limit, expected) in [
            (100, 100, 50, (25, 25)),
            (100, 1, 50, (49, 1)),
            (2, 100, 50, (2, 48)),
            (0, 100, 50, (0, 50)),
            (100, 0, 50, (50, 0)),
            (2, 3, 50, (2, 3)),
            (1, 1, 1, (1, 0)),
            (1, 1, 0, (0, 0)),
        ] {
            let broken = (0..unreadable).map(|_| one(None));
            let all: Vec<Expiring> = broken.chain((0..readable).map(|at| one(Some(at)))).collect();
            let kept: Vec<Option<i64>> = few_of(&all, limit).map(|at| all[at].0).collect();
            let count = |is_read| kept.iter().filter(|one| one.is_some() == is_read).count();
            assert_eq!((count(false), count(true)), expected, "{unreadable} {readable} {limit}");
            // The first of them, in order.
            let first = (0..expected.1 as i64).map(Some);
            assert!(kept.into_iter().filter(Option::is_some).eq(first));
        }
    }
}
