//! All questions of a process, the verdicts that are remembered, and who is woken by a verdict.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use eyelet_telemetry::held::{HeldBy, HeldInfo, HeldVerdict};
use parking_lot::{Mutex, MutexGuard};

use crate::filter::Which;
use crate::question::{DecidedQuestions, HoldKey, HoldQuestion, Who};
use crate::verdict::{HoldDecision, KEPT_MAX, Keep, NobodyWaits};

mod handed;
mod kept;

pub use handed::HandedVerdict;
use kept::KeptVerdicts;

/// Questions that are open at a time: more than a person can read, and about 300 KiB.
pub const QUESTIONS_MAX: usize = 1_000;
/// Those of one host: it takes eight to leave no place for others.
pub const HOST_QUESTIONS_MAX: usize = QUESTIONS_MAX / 8;
/// Connections that are held at a time. With hellos of 2 KiB they take 24 MiB, which `memory_max`
/// counts.
pub const HELD_MAX: usize = 10_000;
/// Those of one host, whatever they wait on.
pub const HOST_HELD_MAX: usize = HELD_MAX / 8;

/// Takes a question, and waits for nothing: the lock of all questions is held.
pub type Sink = Box<dyn Fn(Arc<HoldQuestion>) + Send>;

/// The questions of a process, and the verdicts.
#[derive(Default)]
pub struct Holds {
    state: Mutex<State>,
    /// Verdicts so far. A worker that has seen fewer looks at its held connections.
    verdicts: AtomicU64,
    counts: [[AtomicU64; HeldBy::ALL.len()]; HeldVerdict::ALL.len()],
    full: AtomicU64,
}

#[derive(Default)]
struct State {
    last_id: u64,
    /// The number of the last place.
    last_place: u64,
    open: HashMap<HoldKey, Arc<HoldQuestion>>,
    /// The share of each host in them, and in the places. At most [`HELD_MAX`] hosts have some.
    by_host: HashMap<IpAddr, HostCount>,
    kept: KeptVerdicts,
    /// Connections that are held, and the bytes of them.
    held: (usize, usize),
    /// Workers that wait for a verdict.
    wakers: Vec<Waker>,
    /// Verdicts since connections began to move to another process: at most [`KEPT_MAX`].
    given: Option<Vec<(HoldKey, HoldDecision)>>,
    /// The one who is asked each new question.
    webhook: Option<Sink>,
    /// The one who tells of new questions.
    teller: Option<Sink>,
}

/// The places and questions of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HostCount {
    /// Open questions that it was the first to ask.
    questions: usize,
    /// Connections that are held.
    places: usize,
}

impl Holds {
    /// A place for a connection that holds so many bytes. It has its verdict already if one is
    /// remembered. Returns `None` if [`HELD_MAX`] connections wait, or [`HOST_HELD_MAX`] of its
    /// host, or if the question is new and [`QUESTIONS_MAX`] are open, or [`HOST_QUESTIONS_MAX`] of
    /// its host.
    pub fn ask(
        self: &Arc<Self>,
        key: HoldKey,
        who: Who,
        bytes: usize,
        now_unix_ms: u64,
    ) -> Option<HoldPlace> {
        let mut state = self.state.lock();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let kept = state.kept.remembered(&key, now_unix_ms);
        let known = if kept.is_none() { state.open.get(&key).cloned() } else { None };
        let is_new = known.is_none() && kept.is_none();
        let host = who.host();
        if state.is_full_for(host, is_new) {
            drop(state);
            self.full.fetch_add(1, Relaxed);
            return None;
        }
        let question = known.unwrap_or_else(|| {
            state.last_id += 1;
            Arc::new(HoldQuestion {
                id: state.last_id,
                key: key.clone(),
                who,
                since_unix_ms: now_unix_ms,
                waiting: AtomicUsize::new(0),
                tasks: Mutex::default(),
                decision: kept.map_or_else(OnceLock::new, OnceLock::from),
                earlier: OnceLock::new(),
            })
        });
        if is_new {
            state.open(&question);
        }
        question.waiting.fetch_add(1, Relaxed);
        state.held.0 += 1;
        state.held.1 += bytes as usize;
        state.by_host.entry(host).or_default().places += 1;
        state.last_place += 1;
        let number = state.last_place;
        drop(state);
        let (holds, is_moved) = (self.clone(), false);
        Some(HoldPlace { holds, question, host, bytes, number, is_first: is_new, is_moved })
    }

    /// A connection waits no more.
    pub(crate) fn leave(&self, waiting: &HoldPlace) {
        let mut state = self.state.lock();
        state.held.0 -= 1;
        state.held.1 -= waiting.bytes as usize;
        state.uncount(waiting.host, |count| count.places -= 1);
        let question = &waiting.question;
        question.tasks.lock().remove(&waiting.number);
        let is_last = question.waiting.fetch_sub(1, Relaxed) == 1;
        if is_last && question.decision.get().is_none() {
            state.close(question);
        }
    }

    /// Gives a verdict on questions, and wakes who waits on them.
    ///
    /// # Errors
    /// [`NobodyWaits`]. Nothing has changed then.
    pub fn decide(
        &self,
        which: Which<'_>,
        decision: HoldDecision,
        keep: Keep,
        now_unix_ms: u64,
    ) -> Result<DecidedQuestions, NobodyWaits> {
        let mut state = self.state.lock();
        let mut found: Vec<Arc<HoldQuestion>> = state.found(which).collect();
        found.sort_unstable_by_key(|question| question.id);
        if found.is_empty() {
            return Err(NobodyWaits);
        }
        if let Keep::For(ms) = keep {
            state.kept.make_room(found.len(), now_unix_ms);
            let until_unix_ms = now_unix_ms.saturating_add(ms);
            for question in &found {
                let host = Some(question.who.host());
                state.kept.keep(question.key.clone(), host, (decision, until_unix_ms));
            }
        }
        let (mut connections, mut wakers) = (0, Vec::new());
        for question in &found {
            connections += state.settle(question, decision, &mut wakers);
            if let Some(given) = state.given.as_mut().filter(|given| given.len() < KEPT_MAX) {
                given.push((question.key.clone(), decision));
            }
        }
        self.wake(state, wakers);
        Ok(DecidedQuestions { questions: found, connections })
    }

    /// Wakes the workers and these tasks, because there are verdicts.
    fn wake(&self, mut state: MutexGuard<'_, State>, mut wakers: Vec<Waker>) {
        self.verdicts.fetch_add(1, Release);
        wakers.append(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for a verdict after `seen`, which it updates.
    pub fn poll_verdict(&self, seen: &mut u64, task: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let verdicts = self.verdicts.load(Acquire);
        if std::mem::replace(seen, verdicts) != verdicts {
            return Poll::Ready(());
        }
        // One for each worker.
        if !state.wakers.iter().any(|waker| waker.will_wake(task.waker())) {
            state.wakers.push(task.waker().clone());
        }
        Poll::Pending
    }

    /// The open questions for which `which` holds, oldest first.
    pub fn found(&self, which: Which<'_>) -> Vec<Arc<HoldQuestion>> {
        let mut found: Vec<Arc<HoldQuestion>> = self.state.lock().found(which).collect();
        found.sort_unstable_by_key(|question| question.id);
        found
    }

    /// The open questions with the number of connections that wait on each, oldest first.
    pub fn open(&self) -> Vec<(Arc<HoldQuestion>, usize)> {
        let state = self.state.lock();
        let mut open: Vec<_> = state
            .open
            .values()
            .map(|question| (question.clone(), question.waiting.load(Relaxed)))
            .collect();
        drop(state);
        open.sort_unstable_by_key(|(question, _)| question.id);
        open
    }

    /// Connections that are held now, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        self.state.lock().held
    }

    /// Counts a connection that is held no more.
    pub fn count(&self, info: HeldInfo) {
        self.counts[info.verdict as usize][info.by as usize].fetch_add(1, Relaxed);
    }

    /// Connections so far, by verdict and by who gave it.
    pub fn counted(&self) -> impl Iterator<Item = (HeldVerdict, HeldBy, u64)> + '_ {
        HeldVerdict::ALL.iter().flat_map(move |verdict| {
            HeldBy::ALL.iter().map(move |by| {
                let count = self.counts[*verdict as usize][*by as usize].load(Relaxed);
                (*verdict, *by, count)
            })
        })
    }

    /// Connections that were refused because too many were held.
    pub fn refused_full(&self) -> u64 {
        self.full.load(Relaxed)
    }

    /// From now on `teller` gets each new question.
    pub fn tell(&self, teller: Sink) {
        self.state.lock().teller = Some(teller);
    }

    /// From now on `webhook` gets each new question, and those that are open.
    pub fn send_to(&self, webhook: Option<Sink>) {
        let mut state = self.state.lock();
        state.webhook = webhook;
        let open: Vec<_> = state.open.values().cloned().collect();
        open.iter().for_each(|question| state.send(question));
    }
}

impl State {
    fn found<'a>(&'a self, which: Which<'a>) -> impl Iterator<Item = Arc<HoldQuestion>> + 'a {
        let takes = move |question: &&Arc<HoldQuestion>| match which {
            Which::Id(wanted) => wanted == question.id,
            Which::Like(filter) => filter.takes(&question.key),
        };
        self.open.values().filter(takes).cloned()
    }

    /// True if a host gets no place, or none for a new question.
    fn is_full_for(&self, host: IpAddr, is_new: bool) -> bool {
        let of_host = self.by_host.get(&host).copied().unwrap_or_default();
        let has_no_question =
            self.open.len() >= QUESTIONS_MAX || of_host.questions >= HOST_QUESTIONS_MAX;
        self.held.0 >= HELD_MAX || of_host.places >= HOST_HELD_MAX || is_new && has_no_question
    }

    fn open(&mut self, question: &Arc<HoldQuestion>) {
        self.by_host.entry(question.who.host()).or_default().questions += 1;
        self.open.insert(question.key.clone(), question.clone());
        self.send(question);
    }

    fn close(&mut self, question: &HoldQuestion) {
        // A verdict that comes twice finds it closed.
        if self.open.remove(&question.key).is_none() {
            return;
        }
        self.uncount(question.who.host(), |count| count.questions -= 1);
    }

    fn uncount(&mut self, host: IpAddr, less: impl FnOnce(&mut HostCount)) {
        if let Entry::Occupied(mut count) = self.by_host.entry(host) {
            less(count.get_mut());
            if *count.get() == HostCount::default() {
                count.remove();
            }
        }
    }

    /// Decides an open question. Returns how many wait on it, and adds the tasks among them.
    fn settle(
        &mut self,
        question: &HoldQuestion,
        decision: HoldDecision,
        wakers: &mut Vec<Waker>,
    ) -> usize {
        self.close(question);
        // It was open, and is decided under the lock.
        let _ = question.decision.set(decision);
        wakers.extend(question.tasks.lock().drain().map(|(_, task)| task));
        question.waiting.load(Relaxed)
    }

    fn send(&self, question: &Arc<HoldQuestion>) {
        for sink in self.webhook.iter().chain(&self.teller) {
            sink(question.clone());
        }
    }
}

/// The place of one connection that waits on a question. Dropping it gives the place back, and the
/// question ends with the last one.
pub struct HoldPlace {
    holds: Arc<Holds>,
    pub(crate) question: Arc<HoldQuestion>,
    /// The host of its client.
    host: IpAddr,
    /// Bytes that are held of the connection.
    pub(crate) bytes: u32,
    /// Its number in this process.
    pub(crate) number: u64,
    /// True if nobody waited on the question before.
    is_first: bool,
    /// True if its connection waited in another process before.
    is_moved: bool,
}

impl HoldPlace {
    /// True if nobody waited on the question before.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Marks it as the place of a connection that waited in another process before. Verdicts of
    /// that process on those who waited are for it, too.
    #[must_use]
    pub fn moved(mut self) -> Self {
        self.is_moved = true;
        self
    }

    /// The verdict, once there is one.
    pub fn decision(&self) -> Option<HoldDecision> {
        self.earlier().or_else(|| self.question.decision.get().copied())
    }

    /// The verdict of the process where it waited before.
    fn earlier(&self) -> Option<HoldDecision> {
        let (last, decision) = self.question.earlier.get().filter(|_| self.is_moved)?;
        (self.number <= *last).then_some(*decision)
    }

    /// Waits in a task for the verdict. A parked connection is woken by its worker instead.
    pub fn poll_decision(&self, task: &Context<'_>) -> Poll<HoldDecision> {
        // Under the lock: a verdict that comes meanwhile finds the waker.
        let mut tasks = self.question.tasks.lock();
        match self.decision() {
            Some(decision) => Poll::Ready(decision),
            None => {
                tasks.insert(self.number, task.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The task that waited waits no more: its connection is parked.
    pub fn forget_task(&self) {
        self.question.tasks.lock().remove(&self.number);
    }

    /// The question.
    pub fn question(&self) -> &Arc<HoldQuestion> {
        &self.question
    }
}

/// The places of the held streams of one parked connection of HTTP/2, in their order. `None`: that
/// stream has to ask anew.
pub type HeldStreams = Vec<Option<HoldPlace>>;

impl Drop for HoldPlace {
    fn drop(&mut self) {
        self.holds.leave(self);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::filter::QuestionFilter;
    use crate::question::{REQUEST_BYTES_MAX, RequestKey};

    const ALLOW: HoldDecision = HoldDecision { verdict: HeldVerdict::Allow, by: HeldBy::Page };
    const REFUSE: HoldDecision =
        HoldDecision { verdict: HeldVerdict::Refuse, by: HeldBy::Terminal };

    fn key(name: &str, port: u16) -> HoldKey {
        HoldKey { rule: "ask".into(), name: name.into(), port, request: None }
    }

    fn who(client: impl Into<IpAddr>) -> Who {
        Who { client: client.into(), program: None, file: None }
    }

    fn ask(holds: &Arc<Holds>, name: &str, port: u16, now: u64) -> Option<HoldPlace> {
        holds.ask(key(name, port), who([127, 0, 0, 1]), 100, now)
    }

    #[test]
    fn one_verdict_frees_all_who_wait_on_a_question_and_nobody_else() {
        let holds = Arc::new(Holds::default());
        let a: Vec<_> = (0..3).map(|_| ask(&holds, "a.example", 443, 5).unwrap()).collect();
        let b = ask(&holds, "a.example", 8443, 5).unwrap();
        assert_eq!((holds.held(), holds.open().len()), ((4, 400), 2));
        let (mut seen, task) = (0, &Context::from_waker(Waker::noop()));
        assert!(holds.poll_verdict(&mut seen, task).is_pending());
        let which = Which::Like(QuestionFilter::named("A.example", Some(443)));
        let decided = holds.decide(which, ALLOW, Keep::Once, 6).unwrap();
        assert_eq!((decided.questions.len(), decided.connections), (1, 3));
        assert!(holds.poll_verdict(&mut seen, task).is_ready());
        assert!(holds.poll_verdict(&mut seen, task).is_pending());
        assert!(a.iter().all(|waiting| waiting.decision() == Some(ALLOW)));
        assert_eq!(b.decision(), None);
        // A second verdict on the same question is one for nobody.
        let again = holds.decide(which, REFUSE, Keep::Once, 6);
        assert_eq!(again.err(), Some(NobodyWaits));
        assert_eq!(a[0].decision(), Some(ALLOW));
        let id = b.question().id;
        drop((a, b));
        let gone = holds.decide(Which::Id(id), ALLOW, Keep::Once, 6);
        assert_eq!(gone.err(), Some(NobodyWaits));
        assert_eq!((holds.held(), holds.open().len()), ((0, 0), 0));
    }

    #[test]
    fn a_verdict_for_a_time_is_remembered_so_long() {
        let holds = Arc::new(Holds::default());
        let first = ask(&holds, "a.example", 443, 0).unwrap();
        holds.decide(Which::Id(first.question().id), REFUSE, Keep::For(1_000), 10).unwrap();
        assert_eq!(ask(&holds, "a.example", 443, 1_009).unwrap().decision(), Some(REFUSE));
        assert_eq!(ask(&holds, "b.example", 443, 1_009).unwrap().decision(), None);
        let later = ask(&holds, "a.example", 443, 1_010).unwrap();
        assert_eq!(later.decision(), None);
        // The first, which is decided, does not end the question that others wait on.
        drop(first);
        assert_eq!(holds.open().len(), 1);
    }

    #[test]
    fn questions_and_connections_are_bounded() {
        let holds = Arc::new(Holds::default());
        let questions = (0..QUESTIONS_MAX).map(|n| {
            let host = (n / HOST_QUESTIONS_MAX) as u8;
            holds.ask(key(&format!("{n}.example"), 443), who([10, 0, 0, host]), 100, 0).unwrap()
        });
        let mut kept: Vec<_> = questions.collect();
        assert!(ask(&holds, "one.more.example", 443, 0).is_none());
        let waits =
            |host: usize| holds.ask(key("1.example", 443), who([10, 0, 1, host as u8]), 100, 0);
        kept.extend((QUESTIONS_MAX..HELD_MAX).map(|n| waits(n / HOST_HELD_MAX).unwrap()));
        assert!(ask(&holds, "1.example", 443, 0).is_none());
        assert_eq!((holds.refused_full(), holds.held().0), (2, HELD_MAX));
        kept.pop();
        assert!(ask(&holds, "1.example", 443, 0).is_some());
        drop(kept);
        assert_eq!((holds.held(), holds.open().len()), ((0, 0), 0));
    }

    #[test]
    fn one_host_has_an_eighth_of_the_questions() {
        // Each address of a /64 is one of the host's.
        let own = |n: u128| IpAddr::V6(((0x2001_0db8 << 96) + n).into());
        let other = IpAddr::V6(((0x2001_0db8 << 96) + (1_u128 << 64)).into());
        let holds = Arc::new(Holds::default());
        let ask = |name: &str, client: IpAddr| holds.ask(key(name, 443), who(client), 100, 0);
        let all = (0..HOST_QUESTIONS_MAX).map(|n| ask(&n.to_string(), own(n as u128)).unwrap());
        let mut all: Vec<_> = all.collect();
        assert!(ask("more", own(1)).is_none());
        assert_eq!(holds.refused_full(), 1);
        // Others may ask, and it may wait on what is asked already.
        let others = ask("more", other).unwrap();
        all.extend([ask("more", own(1)).unwrap(), ask("0", own(1)).unwrap()]);
        // A verdict makes room, and so does the end of the last who waits.
        holds.decide(Which::Like(QuestionFilter::named("0", None)), ALLOW, Keep::Once, 0).unwrap();
        drop(all.remove(1));
        let two = ["a", "b"].map(|name| ask(name, own(1)).unwrap());
        assert!(ask("c", own(1)).is_none());
        drop((all, two, others));
        assert!(holds.state.lock().by_host.is_empty());
    }

    #[test]
    fn one_host_has_an_eighth_of_the_places_also_on_one_question() {
        let holds = Arc::new(Holds::default());
        let wait = |client| holds.ask(key("a", 443), who([10, 0, 0, client]), 100, 0);
        let mut all: Vec<_> = (0..HOST_HELD_MAX).map(|_| wait(1).unwrap()).collect();
        assert!(wait(1).is_none());
        let other = wait(2).unwrap();
        all.pop();
        assert!(wait(1).is_some());
        drop(all);
        // The question is its own, though another waits on it.
        assert_eq!(holds.open().len(), 1);
        assert_eq!(holds.state.lock().by_host.len(), 2);
        drop(other);
        assert!(holds.state.lock().by_host.is_empty());
    }

    #[test]
    fn a_request_has_a_question_of_its_own_and_a_task_is_woken() {
        let holds = Arc::new(Holds::default());
        let asked = |method: &str, path: &str| {
            let request = RequestKey::new(method, path).map(Box::new);
            let key = HoldKey { request, ..key("a.example", 443) };
            holds.ask(key, who([127, 0, 0, 1]), 100, 0).unwrap()
        };
        let (get, post, other) =
            (asked("GET", "/a"), asked("POST", "/a"), asked("GET", "/b\u{202e}"));
        assert_eq!(other.question().key.to_string(), "a.example:443 GET /b\\u{202e}");
        let waker = Arc::new(CountedWaker::default());
        let own = waker.clone().into();
        let task = Context::from_waker(&own);
        for _ in 0..2 {
            assert!([&get, &post].iter().all(|place| place.poll_decision(&task).is_pending()));
        }
        let filter = QuestionFilter::named("a.example", None);
        let which = QuestionFilter { method: Some("GET"), path: Some("/a"), ..filter };
        holds.decide(Which::Like(which), ALLOW, Keep::Once, 0).unwrap();
        assert_eq!((waker.0.load(Relaxed), get.poll_decision(&task)), (1, Poll::Ready(ALLOW)));
        assert_eq!((post.decision(), other.decision()), (None, None));
        let of_rule = |rule| Which::Like(QuestionFilter { rule: Some(rule), ..filter });
        assert_eq!((holds.found(of_rule("ask")).len(), holds.found(of_rule("x")).len()), (2, 0));
        drop(post);
        holds.decide(of_rule("ask"), REFUSE, Keep::Once, 0).unwrap();
        assert_eq!(waker.0.load(Relaxed), 1, "who has gone is not woken");
        assert!(RequestKey::new("GET", &"a".repeat(REQUEST_BYTES_MAX - 2)).is_none());
    }

    #[derive(Default)]
    struct CountedWaker(AtomicUsize);

    impl std::task::Wake for CountedWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_webhook_that_takes_no_question_leaves_it_to_people() {
        let holds = Arc::new(Holds::default());
        let early = ask(&holds, "early.example", 443, 0).unwrap();
        let (webhook, asked) = sync_channel(2);
        // One that finds the queue full is for people only.
        holds.send_to(Some(Box::new(move |question| _ = webhook.try_send(question))));
        let all: Vec<_> =
            ["a", "b", "a"].map(|name| ask(&holds, name, 443, 0).unwrap()).into_iter().collect();
        let names: Vec<_> = asked.try_iter().map(|question| question.key.name.clone()).collect();
        assert_eq!(names, ["early.example".into(), Box::<str>::from("a")]);
        assert_eq!(holds.open().len(), 3);
        drop((asked, early, all));
        assert!(ask(&holds, "c", 443, 0).is_some());
    }
}
