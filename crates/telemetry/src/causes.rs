//! Counts what connections were refused or failed for, what evidence says about names, and how
//! responses were coded.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::counters::{Counters, each_worker};
use crate::evidence::Evidence;
use crate::reason::{Class, Party, Reason};
use crate::request::Coded;
use crate::text_counts::TextCounts;

impl Counters {
    /// Counts the reason of a connection that did not end as connections do.
    pub fn fault(&self, reason: &Reason) {
        let class = reason.class();
        let is_usual = matches!(class, Class::Closed | Class::Drained | Class::Ended | Class::Left);
        // Nobody is to blame for the end of an idle connection.
        if !is_usual && reason.whose() != Party::Nobody {
            self.reasons.up(reason.summary());
        }
    }

    /// Counts what evidence says about a name.
    pub fn name_evidence(&self, evidence: &Evidence) {
        let by_certificate = evidence.certificate().map(|shown| shown.fault.is_none());
        let says = [evidence.dns_agrees(), by_certificate];
        let cell = if says.contains(&Some(true)) {
            &self.names_proved
        } else if says.contains(&Some(false)) {
            &self.names_false
        } else {
            &self.names_unknown
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
    use crate::reason::Limit;

    #[test]
    fn usual_ends_are_no_faults_and_details_make_no_text_of_their_own() {
        let counters = Counters::default();
        for reason in [
            Reason::Complete,
            Reason::ClientClosed(None),
            Reason::Timeout(Limit::Idle, None),
            Reason::Refused("refused by name"),
            Reason::Misdirected("a.example".into()),
            Reason::Misdirected("b.example".into()),
        ] {
            counters.fault(&reason);
        }
        let mut seen = Vec::new();
        counters.reasons.each(|text, count| seen.push((text, count)));
        assert_eq!(seen, [("refused by name", 1), ("the host does not lead to this rule", 2)]);
    }

    #[test]
    fn one_proof_of_a_name_is_enough() {
        let counters = Counters::default();
        for says in [&[Some(false)][..], &[Some(true)], &[None]] {
            let mut evidence = Evidence::default();
            says.iter().for_each(|agrees| evidence.note_dns(None, *agrees, None));
            counters.name_evidence(&evidence);
        }
        let cells = [&counters.names_proved, &counters.names_false, &counters.names_unknown];
        assert_eq!(cells.map(|cell| cell.value()), [1, 1, 1]);
    }
}
