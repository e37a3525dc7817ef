//! Counts what connections were refused or failed for, what evidence says about names, and how
//! responses were coded.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::counters::{Counters, each_worker};
use crate::evidence::Evidence;
use crate::info::{End, Outcome};
use crate::reason::{Class, Party, Reason};
use crate::request::Coded;
use crate::text_counts::TextCounts;

impl Counters {
    /// Counts the reason of a connection that was refused or failed.
    pub fn fault(&self, end: &End) {
        if matches!(end.outcome, Outcome::Failed | Outcome::Refused) {
            self.reasons.up(end.reason.summary());
        }
    }

    /// Counts a request that is over. It failed if it has no whole response, and neither the rules
    /// nor its client are the cause. Returns whether it failed.
    pub fn request(&self, is_whole: bool, reason: &Reason) -> bool {
        self.requests.up();
        if is_whole {
            return false;
        }
        let is_expected = matches!(reason.class(), Class::Left | Class::Refused);
        let is_clients =
            reason.whose() == Party::Client || matches!(reason, Reason::ClientClosed(_));
        let has_failed = !is_expected && !is_clients;
        if has_failed {
            self.requests_failed.up();
        }
        has_failed
    }

    /// Counts a connection by what evidence says about its name.
    pub fn name_evidence(&self, evidence: &Evidence) {
        let by_certificate = evidence.certificate().map(|shown| shown.fault.is_none());
        let says = [evidence.dns_agrees(), by_certificate];
        let cell = if says.contains(&Some(true)) {
            &self.evidence_agrees
        } else if says.contains(&Some(false)) {
            &self.evidence_disagrees
        } else {
            &self.evidence_unknown
        };
        cell.up();
    }

    /// Counts a response by how its body was coded.
    pub fn response(&self, coded: &Coded) {
        if coded.coding.is_some() {
            self.coded.up();
            self.coded_bytes_identity.add(coded.bytes_identity);
            self.coded_bytes_sent.add(coded.bytes_sent);
        } else if let Some(why_not) = coded.why_not {
            self.not_coded.up(why_not);
        }
    }
}

/// Adds up texts of all workers, those that occurred most first.
pub fn texts(of: impl Fn(&Counters) -> &TextCounts) -> Vec<(&'static str, u64)> {
    let mut sums = BTreeMap::new();
    each_worker(|cells| of(cells).each(|text, count| *sums.entry(text).or_default() += count));
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| Reverse(*count));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Cell;
    use crate::reason::{Limit, Shed};

    #[test]
    fn only_what_was_refused_or_failed_is_a_fault_and_details_make_no_text_of_their_own() {
        let counters = Counters::default();
        for (outcome, reason) in [
            (Outcome::Spliced, Reason::Complete),
            (Outcome::Spliced, Reason::UpstreamReset),
            (Outcome::Terminated, Reason::Shed(Shed::Excess)),
            (Outcome::Terminated, Reason::Timeout(Limit::Idle, None)),
            (Outcome::Left, Reason::ClientClosed(None)),
            (Outcome::Refused, Reason::Refused("refused by name")),
            (Outcome::Failed, Reason::Misdirected("a.example".into())),
            (Outcome::Failed, Reason::Misdirected("b.example".into())),
        ] {
            counters.fault(&End { outcome, reason });
        }
        let mut seen = Vec::new();
        counters.reasons.each(|text, count| seen.push((text, count)));
        assert_eq!(seen, [("refused by name", 1), ("the host does not lead to this rule", 2)]);
    }

    #[test]
    fn a_request_fails_if_neither_its_client_nor_a_rule_ended_it() {
        for (is_whole, reason, wants) in [
            (true, Reason::Answered, 0),
            (true, Reason::UpstreamReset, 0),
            (false, Reason::UpstreamReset, 1),
            (false, Reason::NoAddress, 1),
            (false, Reason::Timeout(Limit::Connect, None), 1),
            (false, Reason::ClientClosed(None), 0),
            (false, Reason::Refused("refused by name"), 0),
            (false, Reason::Misdirected("a.example".into()), 0),
            (false, Reason::Trace, 0),
        ] {
            let counters = Counters::default();
            let has_failed = counters.request(is_whole, &reason);
            let counted = [&counters.requests, &counters.requests_failed].map(Cell::value);
            assert_eq!((counted, has_failed), ([1, wants], wants == 1), "{reason}");
        }
    }

    #[test]
    fn one_proof_of_a_name_is_enough() {
        let counters = Counters::default();
        for says in [&[Some(false)][..], &[Some(true)], &[None]] {
            let mut evidence = Evidence::default();
            says.iter().for_each(|agrees| evidence.note_dns(None, *agrees, None));
            counters.name_evidence(&evidence);
        }
        let cells =
            [&counters.evidence_agrees, &counters.evidence_disagrees, &counters.evidence_unknown];
        assert_eq!(cells.map(|cell| cell.value()), [1, 1, 1]);
    }
}
