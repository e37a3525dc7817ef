//! The thread that orders and renews. It has a task for each name, so that a slow one delays no
//! other.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eyelet_config::{AcmeNames, AcmeSettings, Config, Dns, FleetSettings};
use eyelet_telemetry::counters::{self, Counters};
use eyelet_telemetry::reason::CertificateLack;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, LocalSet, spawn_local};

use crate::error::AcmeError;
use crate::issuer::{Issuer, TextDns, TextLookup};
use crate::misses::Misses;
use crate::name::NameKeeper;
use crate::rate::OrderPermit;
use crate::schedule;
use crate::store::Kind;
use crate::table::{Acme, Ask};

/// Names that are served because a client asked for them. Each costs about 4 KB.
const ON_DEMAND_MAX: usize = 10_000;
const MINUTE: Duration = Duration::from_mins(1);
/// The time for which the start waits for stored certificates, so that the first clients have them.
const START_WAIT: Duration = Duration::from_secs(2);
/// The time for which an answer that another process published is used without another look.
const FETCHED: Duration = Duration::from_secs(10);
/// The time for which clients' questions are not looked up in a store that has failed. The thread
/// waits for each look-up, and orders nothing meanwhile.
const STORE_REST: Duration = Duration::from_secs(10);

/// The table of certificates, and the thread that fills it. It ends when this is dropped.
pub struct AcmeKeeper {
    /// The orders and challenges that workers look into.
    pub table: Arc<Acme>,
    configured: watch::Sender<Option<Configured>>,
    look_up: TextLookup,
    /// The questions, until the thread is needed.
    asked: Option<mpsc::Receiver<Ask>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, PartialEq)]
struct Configured {
    acme: AcmeSettings,
    fleet: Option<FleetSettings>,
    dns: Dns,
    has_on_demand: bool,
}

impl AcmeKeeper {
    /// A keeper without names. `look_up` is for records in the DNS.
    ///
    /// # Errors
    /// If rustls refuses the configuration for validations.
    pub fn new(look_up: TextLookup) -> io::Result<Self> {
        let (table, asked) = Acme::new().map_err(io::Error::other)?;
        let configured = watch::Sender::default();
        Ok(Self { table: Arc::new(table), configured, look_up, asked: Some(asked), thread: None })
    }

    /// True if the thread has ended, which only a failure causes.
    pub fn has_died(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Keeps the certificates of this configuration from now on. The first call waits until those
    /// that are stored serve.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn configure(&mut self, config: &Config) -> io::Result<()> {
        let configured = config.acme.clone().map(|acme| Configured {
            acme,
            fleet: config.fleet.clone(),
            dns: config.dns.clone(),
            has_on_demand: config.has_acme_on_demand(),
        });
        let is_on = configured.is_some();
        self.table.is_on.store(is_on, Relaxed);
        self.configured.send_if_modified(|known| {
            let differs = *known != configured;
            *known = configured;
            differs
        });
        if !is_on || self.asked.is_none() {
            return Ok(());
        }
        let (table, look_up) = (self.table.clone(), self.look_up);
        let configured = self.configured.subscribe();
        let thread = std::thread::Builder::new().name("acme".into());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (has_begun, begun) = sync_channel(1);
        let (hand, handed) = sync_channel(1);
        let body = move || {
            let Ok(asked) = handed.recv() else { return };
            let thread = Thread::new(table, look_up);
            LocalSet::new().block_on(&runtime, thread.run(configured, asked, has_begun));
        };
        self.thread = Some(thread.spawn(body)?);
        // Only now: a thread that could not be started is started by a later reload.
        let _ = self.asked.take().map(|asked| hand.send(asked));
        // If the store does not answer in time, certificates serve once it does.
        let _ = begun.recv_timeout(START_WAIT);
        Ok(())
    }
}

/// The state of the thread.
struct Thread {
    table: Arc<Acme>,
    look_up: TextLookup,
    counters: Arc<Counters>,
    configured: Option<Configured>,
    issuer: Option<Rc<Issuer>>,
    /// The tasks, and whether a client asked for the name.
    tasks: HashMap<Box<str>, (AbortHandle, bool)>,
    permit: OrderPermit,
    /// The time at which an issuer that could not be made is tried again, and after how many
    /// failures.
    retry: Option<(Instant, u32)>,
    /// The time until which the store is not looked into for questions of clients.
    store_rests: Option<Instant>,
    misses: Misses,
}

impl Thread {
    fn new(table: Arc<Acme>, look_up: TextLookup) -> Self {
        Self {
            table,
            look_up,
            counters: counters::register(),
            configured: None,
            issuer: None,
            tasks: HashMap::new(),
            permit: OrderPermit::new(Instant::now()),
            retry: None,
            store_rests: None,
            misses: Misses::default(),
        }
    }

    async fn run(
        mut self,
        mut configured: watch::Receiver<Option<Configured>>,
        mut asked: mpsc::Receiver<Ask>,
        has_begun: SyncSender<()>,
    ) {
        configured.mark_changed();
        loop {
            let retry =
                self.retry.map_or(MINUTE, |(at, _)| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                // A question may be older than the configuration that answers it.
                biased;
                changed = configured.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let newest = configured.borrow_and_update().clone();
                    self.configure(newest);
                    // Only the start waits for this.
                    let _ = has_begun.try_send(());
                }
                Some(ask) = asked.recv() => self.answer(ask),
                () = tokio::time::sleep(retry), if self.retry.is_some() => self.open(),
            }
        }
    }

    fn configure(&mut self, newest: Option<Configured>) {
        let before = std::mem::replace(&mut self.configured, newest);
        let server = |configured: &Configured| {
            let wanted = &configured.acme.wanted;
            // What can be answered decides which challenges are asked for.
            let (has_http, prefers_http) = (wanted.has_http, wanted.prefers_http);
            let wanted = AcmeNames { has_http, prefers_http, ..AcmeNames::default() };
            let acme = AcmeSettings { wanted, ..configured.acme.clone() };
            (acme, configured.fleet.clone(), configured.dns.clone())
        };
        let same = before.as_ref().map(server) == self.configured.as_ref().map(server);
        if !same || self.issuer.is_none() {
            self.end_tasks(|_, _| false);
            (self.issuer, self.retry) = (None, None);
            self.open();
        } else {
            self.follow();
        }
    }

    /// Opens the store, and begins with the names.
    fn open(&mut self) {
        let Some(Configured { acme, fleet, dns, .. }) = &self.configured else {
            return self.follow();
        };
        let dns = TextDns { servers: dns.clone(), look_up: self.look_up };
        match Issuer::new(acme, fleet.as_ref(), dns, &self.table, &self.counters) {
            Ok(issuer) => {
                self.issuer = Some(Rc::new(issuer));
                self.retry = None;
            }
            Err(error) => self.note_failure(&error),
        }
        self.follow();
    }

    fn note_failure(&mut self, error: &AcmeError) {
        let failures = self.retry.map_or(1, |(_, failures)| failures + 1);
        if failures == 1 {
            let advice = error.advice("the server");
            tracing::error!("[acme] {error}: {advice}. Until then nothing is ordered");
        }
        self.counters.acme_failures.up();
        let pause = schedule::pause(failures, false, crate::name::chance());
        self.retry = Some((Instant::now() + pause, failures));
    }

    /// Begins and ends tasks so that they are those of the newest configuration.
    fn follow(&mut self) {
        let configured = self.configured.clone();
        let names = configured.as_ref().map_or(&[][..], |configured| &configured.acme.wanted.names);
        let has_on_demand = configured.as_ref().is_some_and(|configured| configured.has_on_demand);
        let is_listed = |name: &str| names.binary_search_by(|known| (**known).cmp(name)).is_ok();
        // A name that is listed now gives up no more, and needs no permit: its task begins anew.
        self.end_tasks(|name, is_asked| match is_asked {
            true => has_on_demand && !is_listed(name),
            false => is_listed(name),
        });
        let tasks = &self.tasks;
        self.table.retain(|name| is_listed(name) || tasks.contains_key(name));
        let mut store_answers = true;
        for name in names {
            store_answers = self.begin(name, false, store_answers);
        }
    }

    fn end_tasks(&mut self, stays: impl Fn(&str, bool) -> bool) {
        self.tasks.retain(|name, (task, is_asked)| {
            // A task that has ended by itself has given up.
            let stays = !task.is_finished() && stays(name, *is_asked);
            if !stays {
                task.abort();
            }
            stays
        });
    }

    /// Begins with a name. With `looks` its stored certificate serves at once. Returns `false` if
    /// the store does not answer.
    fn begin(&mut self, name: &str, is_asked: bool, looks: bool) -> bool {
        self.table.begin(name, is_asked);
        let Some(issuer) = &self.issuer else { return looks };
        let Slot::Vacant(vacant) = self.tasks.entry(name.into()) else { return looks };
        let permit = is_asked.then(|| self.permit.clone());
        let mut kept = NameKeeper::new(issuer.clone(), name.into(), permit);
        let answers = looks && kept.look().is_ok();
        let task = spawn_local(kept.keep());
        vacant.insert((task.abort_handle(), is_asked));
        answers
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            // The client may be gone.
            Ask::Certificate(name, answer) => _ = answer.send(self.order(&name)),
            Ask::Validation(name, answer) => self.fetch(Kind::TlsAlpn, name, answer),
            Ask::Answer(token, answer) => self.fetch(Kind::Http, token, answer),
            Ask::ChangeKey(answer) => self.change_key(answer),
            Ask::Records(answer) => self.records(answer),
        }
    }

    /// Has the account's key changed. It may take minutes, and nothing else waits for it.
    fn change_key(&self, answer: oneshot::Sender<Result<String, String>>) {
        // Without the store there is no account.
        let Some(issuer) = self.issuer.clone() else { return };
        spawn_local(async move {
            let changed = issuer.change_key().await.map_err(|error| error.to_string());
            // The operator may be gone.
            let _ = answer.send(changed);
        });
    }

    /// Has the records for the wildcards of the configuration looked up.
    fn records(&self, answer: oneshot::Sender<Result<String, String>>) {
        // Without the store there is no account.
        let Some(issuer) = self.issuer.clone() else { return };
        let listed = self.configured.as_ref().map(|configured| &configured.acme.wanted.names);
        let names = listed.into_iter().flatten().filter(|name| name.starts_with("*."));
        let names: Vec<Box<str>> = names.cloned().collect();
        spawn_local(async move {
            let records = issuer.records(&names).await.map_err(|error| error.to_string());
            // The operator may be gone.
            let _ = answer.send(records);
        });
    }

    /// Begins to order a name that a client asks for.
    fn order(&mut self, name: &str) -> Result<(), CertificateLack> {
        // A task that has ended has given up, and its failure is forgotten.
        if self.tasks.get(name).is_some_and(|(task, _)| task.is_finished()) {
            self.tasks.remove(name);
        }
        if self.tasks.contains_key(name) {
            return Ok(());
        }
        if self.issuer.is_none() {
            return Err(CertificateLack::Failed);
        }
        if self.tasks.len() >= self.tasks_max() {
            return Err(CertificateLack::TooMany);
        }
        self.table.retain(|known| known != name);
        self.begin(name, true, false);
        Ok(())
    }

    fn tasks_max(&mut self) -> usize {
        self.tasks.retain(|_, (task, _)| !task.is_finished());
        let listed = self.configured.as_ref().map_or(0, |c| c.acme.wanted.names.len());
        listed + ON_DEMAND_MAX
    }

    /// Has the answer to a challenge that another process published in the table for a while.
    fn fetch(&mut self, kind: Kind, id: Box<str>, answer: oneshot::Sender<()>) {
        let Some(issuer) = self.issuer.clone() else { return };
        let now = Instant::now();
        if self.store_rests.is_some_and(|end| now < end) || self.misses.has(kind, &id, now) {
            return;
        }
        let fetched = issuer.fetch(kind, &id);
        if matches!(fetched, Ok(false)) && issuer.is_shared() {
            self.misses.note(kind, id.clone(), now);
        }
        self.store_rests = fetched.is_err().then(|| Instant::now() + STORE_REST);
        if fetched.unwrap_or(false) {
            spawn_local(async move {
                tokio::time::sleep(FETCHED).await;
                match kind {
                    Kind::Http => issuer.table.set_answer(&id, None),
                    _ => issuer.table.set_validation(&id, None),
                }
            });
        }
        // The client may be gone.
        let _ = answer.send(());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::store::tests::settings;
    use crate::table::Entry;

    fn configured(folder: &std::path::Path, names: &[&str], has_http: bool) -> Configured {
        let names = names.iter().map(|name| (*name).into()).collect();
        let wanted = AcmeNames { names, has_http, ..AcmeNames::default() };
        // Nobody listens there.
        let settings = settings(folder, "https://127.0.0.1:1/directory");
        let acme = AcmeSettings { wanted, ..settings };
        Configured { acme, fleet: None, dns: Dns::default(), has_on_demand: true }
    }

    fn with_thread(test: impl AsyncFnOnce(Thread, &std::path::Path)) {
        let folder = tempfile::tempdir().unwrap();
        let (table, _asked) = Acme::new().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let thread = Thread::new(Arc::new(table), |_, _| Box::pin(async { Ok(Vec::new()) }));
        LocalSet::new().block_on(&runtime, test(thread, folder.path()));
    }

    #[test]
    fn tasks_follow_the_configuration() {
        with_thread(async |mut thread, folder| {
            thread.configure(Some(configured(folder, &[], false)));
            let issuer = thread.issuer.clone().unwrap();
            thread.order("a.test").unwrap();
            assert!(thread.tasks["a.test"].1, "a client asked for it");
            thread.configure(Some(configured(folder, &["a.test"], false)));
            assert!(!thread.tasks["a.test"].1, "it is listed");
            assert!(Rc::ptr_eq(&issuer, thread.issuer.as_ref().unwrap()));
            // A task that has ended is begun anew.
            thread.tasks["a.test"].0.abort();
            while !thread.tasks["a.test"].0.is_finished() {
                tokio::task::yield_now().await;
            }
            thread.configure(Some(configured(folder, &["a.test"], false)));
            assert!(!thread.tasks["a.test"].0.is_finished());
            // Orders ask for other challenges from now on.
            thread.configure(Some(configured(folder, &["a.test"], true)));
            assert!(thread.issuer.as_ref().unwrap().settings.wanted.has_http);
        });
    }

    /// Another rule may order a wildcard above a name that clients have ordered.
    #[test]
    fn a_wildcard_above_does_not_refuse_what_is_ordered_on_demand() {
        with_thread(async |mut thread, folder| {
            let listed = ["*.app.test", "a.b.app.test"];
            thread.configure(Some(configured(folder, &listed, false)));
            let table = thread.table.clone();
            let lack = CertificateLack::Failed;
            table.set("*.app.test", Entry { certificates: None, lack, is_asked: false });
            for name in ["x.app.test", "x.y.app.test"] {
                let asked = table.certificates_on_demand(name);
                assert!(matches!(asked, Err(CertificateLack::Ordered)), "{name}");
            }
            let deep = table.certificates("x.y.app.test");
            assert!(matches!(deep, Err(CertificateLack::Deep)), "no rule orders it");
            let below = table.certificates("x.app.test");
            assert!(matches!(below, Err(CertificateLack::Failed)), "by the wildcard's");
            let own = table.certificates("a.b.app.test");
            assert!(matches!(own, Err(CertificateLack::Ordered)), "it is listed itself");
            thread.order("x.y.app.test").unwrap();
            assert!(table.all().iter().any(|known| &*known.name == "x.y.app.test"));
        });
    }

    #[test]
    fn a_name_that_is_given_up_is_forgotten() {
        with_thread(async |mut thread, folder| {
            thread.configure(Some(configured(folder, &[], false)));
            let issuer = thread.issuer.clone().unwrap();
            let table = thread.table.clone();
            let lack = CertificateLack::Failed;
            table.set("a.test", Entry { certificates: None, lack, is_asked: true });
            let kept = NameKeeper::new(issuer, "a.test".into(), Some(thread.permit.clone()));
            assert!(matches!(table.certificates("a.test"), Err(CertificateLack::Failed)));
            kept.give_up();
            assert!(matches!(table.certificates("a.test"), Err(CertificateLack::Ordered)));
        });
    }
}
