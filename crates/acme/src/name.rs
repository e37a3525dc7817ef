//! The life of one name: its certificate is looked up, ordered, served, renewed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use eyelet_config::AcmeSettings;
use eyelet_pki::certificate::describe;
use eyelet_pki::pem::Pem;
use eyelet_telemetry::reason::CertificateLack;
use eyelet_tls::certificates::Certificates;
use instant_acme::{CertificateIdentifier, Error};

use crate::challenge::Challenge;
use crate::client::RETRY_AT;
use crate::error::AcmeError;
use crate::issuer::{Issuer, ORDER_TIMEOUT};
use crate::rate::OrderPermit;
use crate::schedule;
use crate::store::Kind;
use crate::table::Entry;

/// The time until a server that did not say when to renew is asked again.
const ASK_FAILED: Duration = Duration::from_hours(1);
/// The longest sleep: the wall clock may jump.
const SLEEP_MAX: Duration = Duration::from_hours(1);
/// Pauses between two looks for what another process orders; each is twice as long.
const LOOK_MIN: Duration = Duration::from_millis(500);
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Accounts that are made one after the other when the server knows none of them.
const RENEWED_ACCOUNTS_MAX: u32 = 2;
/// The longest pause before the DNS is looked into again for a record that an operator is to make.
const RECORD_PAUSE_MAX: Duration = Duration::from_mins(5);
/// The time for which a name that a client asked for is tried.
const TRIED: Duration = Duration::from_hours(1);
/// The time for which such a name is refused if too many were ordered. Then a client may ask again.
const BUSY_KEPT: Duration = Duration::from_mins(1);

/// The state of a name's task.
pub struct NameKeeper {
    issuer: Rc<Issuer>,
    name: Box<str>,
    held: Option<Held>,
    failures: u32,
    /// Accounts in a row that the server did not know.
    accounts: u32,
    /// The time at which the last attempt began.
    began: Instant,
    /// The text of the last failure that was logged.
    logged: String,
    /// Challenges that have failed so far: the next one uses another kind.
    tried: usize,
    looks: u32,
    /// The time until which the newest certificate serves, even if it looks due.
    rests_until: Instant,
    /// A client asked for it. Such names are ordered at a bounded rate.
    permit: Option<OrderPermit>,
}

/// A certificate that serves.
struct Held {
    not_before: SystemTime,
    not_after: SystemTime,
    identifier: Option<CertificateIdentifier<'static>>,
    /// From 0 to 1: where in the time for renewals.
    chance: f64,
    renew_at: SystemTime,
    /// The time at which the server is asked when to renew.
    ask_at: Instant,
}

/// The next step.
enum Next {
    Sleep(Duration),
    Order,
}

impl NameKeeper {
    pub fn new(issuer: Rc<Issuer>, name: Box<str>, permit: Option<OrderPermit>) -> Self {
        Self {
            issuer,
            name,
            held: None,
            failures: 0,
            accounts: 0,
            began: Instant::now(),
            logged: String::new(),
            tried: 0,
            looks: 0,
            rests_until: Instant::now(),
            permit,
        }
    }

    /// Keeps the name's certificate. It ends only for a name that a client asked for, and that
    /// cannot be had.
    pub async fn keep(self) {
        RETRY_AT.scope(Cell::default(), self.run()).await;
    }

    async fn run(mut self) {
        let began = Instant::now();
        loop {
            match self.step().await {
                Ok(sleep) => tokio::time::sleep(sleep.min(SLEEP_MAX)).await,
                Err(AcmeError::Rate) => {
                    self.note_lack(CertificateLack::Busy);
                    tokio::time::sleep(BUSY_KEPT).await;
                    if self.failures == 0 {
                        return self.give_up();
                    }
                }
                Err(error) => {
                    let pause = self.note_failure(&error).await;
                    self.rest(pause).await;
                }
            }
            // The pause is over, so a client that asks again causes no order too soon.
            if self.permit.is_some() && self.held.is_none() && began.elapsed() > TRIED {
                return self.give_up();
            }
        }
    }

    /// Forgets the name. The next client that asks for it begins anew.
    pub fn give_up(self) {
        self.issuer.table.remove(&self.name);
    }

    /// Waits for the next attempt, which may be days away. Another process may be faster.
    async fn rest(&mut self, pause: Duration) {
        let clock = (Instant::now, tokio::time::sleep);
        schedule::rest(pause, SLEEP_MAX, clock, || self.look().unwrap_or(false)).await;
    }

    /// Looks, asks and orders as far as it is due. Returns how long to sleep.
    async fn step(&mut self) -> Result<Duration, AcmeError> {
        self.began = Instant::now();
        // What the server said in an earlier attempt is over.
        let _ = RETRY_AT.try_with(Cell::take);
        if self.held.is_none() {
            self.look()?;
        }
        if let Next::Sleep(sleep) = self.due().await {
            self.note_success();
            return Ok(sleep);
        }
        // Asked for at each attempt for the first certificate. A renewal is always permitted.
        let permit = self.permit.clone().filter(|_| self.held.is_none());
        if permit.as_ref().is_some_and(|permit| !permit.is_free()) {
            return Err(AcmeError::Rate);
        }
        let issuer = self.issuer.clone();
        let Ok(_turn) = issuer.orders.acquire().await else { return Ok(SLEEP_MAX) };
        let lock = issuer.store.borrow_mut().lock(&self.name)?;
        let Some(lock) = lock else { return self.look_later() };
        let ordered = match permit.is_none_or(|permit| permit.take()) {
            true => tokio::time::timeout(ORDER_TIMEOUT, self.order()).await,
            false => Ok(Err(AcmeError::Rate)),
        };
        issuer.store.borrow_mut().unlock(&self.name, lock);
        ordered.unwrap_or(Err(AcmeError::Slow))?;
        self.note_success();
        Ok(Duration::ZERO)
    }

    /// Another process orders the name: looks for its certificate.
    fn look_later(&mut self) -> Result<Duration, AcmeError> {
        self.look()?;
        let pause = LOOK_MIN.saturating_mul(1 << self.looks.min(8)).min(LOOK_MAX);
        self.looks = self.looks.saturating_add(1);
        Ok(pause)
    }

    /// Serves the stored certificate if it is newer than what serves.
    pub fn look(&mut self) -> Result<bool, AcmeError> {
        let stored = self.issuer.store.borrow_mut().get(Kind::Certificate, &self.name)?;
        let Some(stored) = stored else { return Ok(false) };
        let certificates = match self.issuer.certificates(&self.name, &stored) {
            Ok(certificates) => certificates,
            Err(error) => {
                tracing::warn!("[acme] {}: stored: {error}; it is ordered anew", self.name);
                return Ok(false);
            }
        };
        let Some(held) = Held::read(&stored) else { return Ok(false) };
        if self.held.as_ref().is_some_and(|known| known.not_before >= held.not_before) {
            return Ok(false);
        }
        self.serve(held, certificates);
        Ok(true)
    }

    fn serve(&mut self, held: Held, certificates: Arc<Certificates>) {
        self.looks = 0;
        self.held = Some(held);
        let (certificates, is_asked) = (Some(certificates), self.permit.is_some());
        let entry = Entry { certificates, lack: CertificateLack::Ordered, is_asked };
        self.issuer.table.set(&self.name, entry);
    }

    /// Says whether a certificate is to be ordered now. Asks the server if that is due.
    async fn due(&mut self) -> Next {
        let Some(held) = &mut self.held else { return Next::Order };
        if held.ask_at <= Instant::now() {
            held.ask_at = Instant::now() + ask(&self.issuer, held).await;
        }
        // The server dates certificates. Its clock is known from the first answer on.
        let now = self.issuer.client.server_time();
        let until = held.renew_at.duration_since(now).unwrap_or_default();
        let rest = self.rests_until.saturating_duration_since(Instant::now());
        match until {
            Duration::ZERO if !rest.is_zero() => Next::Sleep(rest),
            Duration::ZERO => Next::Order,
            until => Next::Sleep(until.min(held.ask_at.saturating_duration_since(Instant::now()))),
        }
    }

    /// Orders the certificate, unless another process has done so, or the server has told its time
    /// to another name meanwhile.
    async fn order(&mut self) -> Result<(), AcmeError> {
        self.look()?;
        let now = self.issuer.client.server_time();
        if self.held.as_ref().is_some_and(|held| held.renew_at > now) {
            return Ok(());
        }
        let replaced = self.held.as_ref().and_then(|held| held.identifier.clone());
        let challenges = self.challenges();
        let challenge = challenges[self.tried % challenges.len()];
        if challenge == Challenge::DnsPersist {
            self.check_record().await?;
        }
        let text = self.issuer.order(&self.name, replaced, challenge).await;
        let text = text.inspect_err(|error| {
            if matches!(error, AcmeError::Invalid { .. } | AcmeError::NoChallenge) {
                self.tried += 1;
            }
        })?;
        let certificates = self.issuer.certificates(&self.name, &text)?;
        let held = Held::read(&text);
        let held = held.ok_or_else(|| AcmeError::Server("its certificate is not X.509".into()))?;
        self.issuer.counters.acme_issued.up();
        self.note_issued(&held);
        let stored = self.issuer.store.borrow_mut().put(Kind::Certificate, &self.name, &text);
        // It serves also if it cannot be stored: then a restart orders it again.
        self.serve(held, certificates);
        stored
    }

    /// Looks for the wildcard's record. The resolvers of this machine may see another zone than the
    /// server does, so what they say does not stop a renewal.
    async fn check_record(&self) -> Result<(), AcmeError> {
        match self.issuer.check_record(&self.name).await {
            Err(error @ AcmeError::NoRecord { .. }) if self.held.is_some() => {
                tracing::warn!("[acme] {}: {error}; it is renewed anyway", self.name);
                Ok(())
            }
            checked => checked,
        }
    }

    /// Logs a new certificate, and decides how long nothing more is ordered.
    fn note_issued(&mut self, held: &Held) {
        let now = self.issuer.client.server_time();
        let rest = schedule::after_issue((held.not_before, held.not_after), now);
        self.rests_until = Instant::now() + rest;
        tracing::info!("[acme] {}: the certificate is issued{}", self.name, held.lasts(now));
    }

    /// The challenges that can be answered, the better one first. Only a DNS record validates a
    /// wildcard.
    fn challenges(&self) -> Vec<Challenge> {
        let AcmeSettings { wanted, dns_hook, .. } = &self.issuer.settings;
        if self.name.starts_with("*.") {
            return vec![if dns_hook.is_empty() { Challenge::DnsPersist } else { Challenge::Dns }];
        }
        let mut challenges = vec![Challenge::TlsAlpn];
        if wanted.has_http {
            challenges.insert(usize::from(!wanted.prefers_http), Challenge::Http);
        }
        // For a client's name the server must see that the name leads here: a record that the
        // operator's zone gets shows nothing about a name that a stranger made up.
        if !dns_hook.is_empty() && self.permit.is_none() {
            challenges.push(Challenge::Dns);
        }
        challenges
    }

    fn note_success(&mut self) {
        (self.failures, self.accounts) = (0, 0);
        self.logged.clear();
    }

    /// Logs a failure once, and says how long to wait.
    async fn note_failure(&mut self, error: &AcmeError) -> Duration {
        let issuer = self.issuer.clone();
        self.failures = self.failures.saturating_add(1);
        if error.problem() == "accountDoesNotExist" {
            issuer.forget_account(self.began).await;
            self.accounts += 1;
            if self.accounts <= RENEWED_ACCOUNTS_MAX {
                tracing::warn!("[acme] {}: {error}; another account is made", self.name);
                return Duration::ZERO;
            }
        }
        let is_other_challenge =
            matches!(error, AcmeError::Invalid { .. } | AcmeError::NoChallenge)
                && self.failures < self.challenges().len() as u32;
        if is_other_challenge {
            tracing::info!("[acme] {}: {error}; the other challenge is tried", self.name);
            return Duration::ZERO;
        }
        let mut pause = schedule::pause(self.failures, error.is_verdict(), chance());
        if matches!(error, AcmeError::NoRecord { .. }) {
            pause = pause.min(RECORD_PAUSE_MAX);
        }
        if let Ok(Some(at)) = RETRY_AT.try_with(Cell::get) {
            pause = pause.max(at.duration_since(SystemTime::now()).unwrap_or_default());
        }
        issuer.counters.acme_failures.up();
        let text = error.to_string();
        if self.logged != text {
            let goes_on = match &self.held {
                Some(held) => {
                    let now = issuer.client.server_time();
                    format!("the certificate{} stays in use", held.lasts(now))
                }
                None => "clients that ask for it are refused".into(),
            };
            tracing::error!(
                "[acme] {}: {text}: {}. Until then {goes_on}; the next attempt is in {} s",
                self.name,
                error.advice(&self.name),
                pause.as_secs()
            );
            self.logged = text;
        }
        self.note_lack(CertificateLack::Failed);
        pause
    }

    fn note_lack(&self, lack: CertificateLack) {
        let is_asked = self.permit.is_some();
        self.issuer.table.set(&self.name, Entry { certificates: None, lack, is_asked });
    }
}

/// Asks the server when to renew (RFC 9773). Returns how long to wait before it is asked again.
async fn ask(issuer: &Issuer, held: &mut Held) -> Duration {
    let Some(identifier) = &held.identifier else { return schedule::ASK_MAX };
    // Thousands of names may ask at once.
    let Ok(_turn) = issuer.orders.acquire().await else { return ASK_FAILED };
    let asked = match issuer.account().await {
        Ok(account) => account.renewal_info(identifier).await,
        // An order that becomes due reports this.
        Err(_) => return ASK_FAILED,
    };
    match asked {
        Ok((info, retry_after)) => {
            let window = info.suggested_window;
            let window = (window.start.into(), window.end.into());
            let lives = (held.not_before, held.not_after);
            held.renew_at = schedule::by_window(window, lives, held.chance);
            schedule::until_asked(retry_after)
        }
        Err(Error::Unsupported(_)) => schedule::ASK_MAX,
        Err(error) => {
            tracing::debug!("[acme] the server does not say when to renew: {error}");
            ASK_FAILED
        }
    }
}

impl Held {
    fn read(text: &[u8]) -> Option<Self> {
        let leaf = Pem::new(text).certificate().ok()?;
        let description = describe(&leaf)?;
        let time = |secs: i64| {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs.try_into().ok()?))
        };
        let (not_before, not_after) = (time(description.not_before)?, time(description.not_after)?);
        let chance = chance();
        Some(Self {
            not_before,
            not_after,
            identifier: crate::issuer::identifier(&leaf),
            chance,
            renew_at: schedule::by_lifetime(not_before, not_after, chance),
            ask_at: Instant::now(),
        })
    }

    fn lasts(&self, now: SystemTime) -> String {
        let left = self.not_after.duration_since(now).unwrap_or_default();
        format!(" for {} hours", left.as_secs() / 3600)
    }
}

/// A random number from 0 to 1.
pub fn chance() -> f64 {
    let random = eyelet_sys::process::random().map_or(0, u32::from_be_bytes);
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::issuer::tests::issuer as issuer_with;

    fn issuer(folder: &std::path::Path, dns_hook: Vec<String>) -> Rc<Issuer> {
        issuer_with(folder, dns_hook, |_, _| Box::pin(async { Ok(Vec::new()) }))
    }

    /// A stranger may ask for any name below a wildcard. It must lead here, whatever has failed.
    #[test]
    fn no_hook_runs_for_a_name_that_a_client_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = issuer(folder.path(), vec!["/bin/false".into()]);
        let challenges =
            |name: &str, permit| NameKeeper::new(issuer.clone(), name.into(), permit).challenges();
        let by_port = [Challenge::TlsAlpn, Challenge::Http];
        let permit = OrderPermit::new(Instant::now());
        assert_eq!(challenges("made-up.app.test", Some(permit)), by_port);
        let listed = challenges("app.test", None);
        assert_eq!(listed, [&by_port[..], &[Challenge::Dns]].concat());
        assert_eq!(challenges("*.app.test", None), [Challenge::Dns]);
    }

    /// A limit of one name is neither used up by another name that fails at the same time, nor
    /// kept to by it.
    #[test]
    fn a_retry_after_is_for_the_name_that_got_it() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = issuer(folder.path(), Vec::new());
        let pause = async |name: &str, told_secs: Option<u64>| {
            let mut keeper = NameKeeper::new(issuer.clone(), name.into(), None);
            let told = told_secs.map(|secs| SystemTime::now() + Duration::from_secs(secs));
            RETRY_AT.with(|at| at.set(told));
            // The others are told, too, before any of them fails.
            tokio::task::yield_now().await;
            keeper.note_failure(&AcmeError::Slow).await.as_secs()
        };
        let in_task = async |name, told| RETRY_AT.scope(Cell::default(), pause(name, told)).await;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (first, second, other) = runtime.block_on(async {
            tokio::join!(
                in_task("a.test", Some(7_200)),
                in_task("b.test", Some(3_600)),
                in_task("c.test", None)
            )
        });
        assert!((7_100..=7_200).contains(&first), "{first}");
        assert!((3_500..=3_600).contains(&second), "{second}");
        assert!(other <= 5, "{other}");
    }
}
