//! Random runs against a plain model: datagrams, answers, moves, refusals and ends in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// A step: who (of few clients and ids, so that they collide), and what.
#[derive(Clone, Copy, Debug)]
enum Step {
    FromClient { port: u8, id: u8 },
    FromServer { nth: u8, id: Option<u8> },
    Pass(u8),
    Refuse(u8),
    Shed,
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u8, 0..6_u8).prop_map(|(port, id)| Step::FromClient { port, id }),
        4 => (any::<u8>(), proptest::option::of(0..6_u8))
            .prop_map(|(nth, id)| Step::FromServer { nth, id }),
        3 => any::<u8>().prop_map(Step::Pass),
        1 => any::<u8>().prop_map(Step::Refuse),
        1 => Just(Step::Shed),
        1 => (0..5_000_u16).prop_map(Step::Wait),
    ]
}

struct Run {
    flows: Flows<()>,
    /// Datagrams that each family of flows has moved, summed over all: none may be lost.
    passed: u64,
    logged: u64,
    now: u64,
}

impl Run {
    fn nth(&self, nth: u8) -> Option<Key> {
        let keys = self.flows.keys();
        keys.get(usize::from(nth) % keys.len().max(1)).copied()
    }

    fn end(&mut self, key: Key) {
        let Some((flow, goes_on)) = self.flows.remove(key) else { return };
        match goes_on {
            Some(other) => assert!(self.flows.flow(other).is_some()),
            None => {
                self.logged += flow.moved.datagrams_to_upstream + flow.moved.datagrams_to_client;
            }
        }
    }

    fn client_sends(&mut self, port: u8, id: u8) {
        let peer = peer(&format!("198.51.100.7:{}", 1000 + u16::from(port)));
        // An even id is in a long header.
        let dcid = [id; 8];
        let header = if id.is_multiple_of(2) { first(&dcid) } else { Header::Short(&dcid) };
        match self.flows.find(&peer, &header) {
            FoundFlow::Flow(key) => {
                let flow = self.flows.flow(key).unwrap();
                assert_eq!(flow.peer, peer);
                match flow.state {
                    State::Passing { .. } => {
                        self.flows.note_client(key, 1200, 1, self.now);
                        self.passed += 1;
                    }
                    State::Undecided(_) => _ = self.flows.hold(key, &[0; 1200], 0),
                    State::Refused { .. } => _ = flow.take_answer(1200),
                }
            }
            FoundFlow::Moved(key) => {
                assert_ne!(self.flows.flow(key).unwrap().peer, peer);
                if !self.flows.flow(key).unwrap().is_answered() {
                    return;
                }
                let added = self.flows.add_address(key, peer, self.now, ());
                if let Ok((_, Some(least))) = added {
                    self.end(least);
                }
            }
            FoundFlow::New => {
                if let Ok(key) = self.flows.begin(peer, &dcid, self.now, ()) {
                    assert!(self.flows.hold(key, &[0; 1200], 0));
                }
            }
            FoundFlow::Unknown => {}
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::FromClient { port, id } => self.client_sends(port, id),
            Step::FromServer { nth, id } => {
                let Some(key) = self.nth(nth) else { return };
                if !matches!(self.flows.flow(key).unwrap().state, State::Passing { .. }) {
                    return;
                }
                if let Some(id) = id {
                    self.flows.note_server_id(key, &[id; 8]);
                }
                self.flows.note_server(key, 1200, 1, self.now);
                self.passed += 1;
            }
            Step::Pass(nth) => {
                let Some(key) = self.nth(nth) else { return };
                let waiting = self.flows.pass(key, self.now).into_datagrams();
                self.flows.note_client(key, 0, waiting.len(), self.now);
                self.passed += waiting.len() as u64;
            }
            Step::Refuse(nth) => {
                let Some(key) = self.nth(nth) else { return };
                self.flows.refuse(key, vec![0; 40].into(), self.now);
            }
            Step::Shed => {
                if let Some(key) = self.flows.next_to_shed() {
                    self.end(key);
                }
            }
            Step::Wait(ms) => {
                self.now += u64::from(ms);
                while let Some((key, _)) = self.flows.next_due(self.now, 10_000) {
                    self.end(key);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_or_found_twice(steps in prop::collection::vec(step(), 1..200)) {
        let (flows, budget) = flows();
        let mut run = Run { flows, passed: 0, logged: 0, now: 0 };
        for taken in steps {
            run.step(taken);
            let mut states = HashMap::<&str, usize>::new();
            for key in run.flows.keys() {
                let state = match run.flows.flow(key).unwrap().state {
                    State::Undecided(_) | State::Passing { is_answered: false } => "unanswered",
                    State::Passing { is_answered: true } => "answered",
                    State::Refused { .. } => "refused",
                };
                *states.entry(state).or_default() += 1;
            }
            let of = |state| states.get(state).copied().unwrap_or(0);
            prop_assert_eq!(run.flows.unanswered(), of("unanswered"));
            prop_assert_eq!(run.flows.open(), of("unanswered") + of("answered"));
        }
        for key in run.flows.keys() {
            run.end(key);
        }
        prop_assert!(run.flows.is_empty());
        prop_assert_eq!(run.logged, run.passed);
        drop(run);
        prop_assert_eq!(budget.used(), 0);
    }
}
