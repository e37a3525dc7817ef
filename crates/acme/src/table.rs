//! The view of workers: the certificates by name, and the answers to challenges that are pending.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;

use eyelet_telemetry::reason::CertificateLack;
use eyelet_tls::certificates::Certificates;
use eyelet_tls::server::{Handshake, TlsError, for_validation};
use rustls::ServerConfig;
use tokio::sync::{mpsc, oneshot, watch};

/// Questions of workers that wait for the thread.
const ASKS_MAX: usize = 256;
/// The time for which a worker waits for the answer to a challenge. Servers wait for about ten
/// seconds.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The state that workers and the thread share. It outlives reloads.
pub struct Acme {
    names: RwLock<HashMap<Box<str>, Entry>>,
    /// Certificates for TLS-ALPN-01, by name.
    validations: RwLock<HashMap<Box<str>, Arc<Certificates>>>,
    /// Key authorizations for HTTP-01, by token.
    answers: RwLock<HashMap<Box<str>, Arc<str>>>,
    /// Changes with each entry of `names`.
    changed: watch::Sender<()>,
    asks: mpsc::Sender<Ask>,
    validation: Arc<ServerConfig>,
    /// True if the newest configuration orders certificates.
    pub(crate) is_on: AtomicBool,
}

/// The certificates that are served for a name, or the reason why there are none.
pub type CertificatesOrLack = Result<Arc<Certificates>, CertificateLack>;

/// A name of the table.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// The reason why there are none.
    pub(crate) lack: CertificateLack,
    /// A client asked for it. The configuration does not name it.
    pub(crate) is_asked: bool,
}

/// A name that certificates are ordered for.
pub struct Known {
    pub name: Box<str>,
    /// The certificates that are served for it now, or their lack.
    pub served: CertificatesOrLack,
    /// A client asked for it. The configuration does not name it.
    pub is_asked: bool,
}

/// A question of a worker.
pub(crate) enum Ask {
    /// A client asks for a name that may be ordered for it. The answer: whether it is.
    Certificate(Box<str>, oneshot::Sender<Result<(), CertificateLack>>),
    /// A server asks to validate a name that no order of this process is for.
    Validation(Box<str>, oneshot::Sender<()>),
    /// It asks so by a token of HTTP-01.
    Answer(Box<str>, oneshot::Sender<()>),
    /// The operator wants another key for the account. The answer: the account's URL, or what is
    /// wrong.
    ChangeKey(oneshot::Sender<Result<String, String>>),
    /// The operator asks for the DNS records of the wildcards. The answer: their lines, or what is
    /// wrong.
    Records(oneshot::Sender<Result<String, String>>),
}

impl Acme {
    /// An empty table, and the questions that it will be asked.
    pub(crate) fn new() -> Result<(Self, mpsc::Receiver<Ask>), TlsError> {
        let (asks, asked) = mpsc::channel(ASKS_MAX);
        let acme = Self {
            names: RwLock::default(),
            validations: RwLock::default(),
            answers: RwLock::default(),
            changed: watch::Sender::default(),
            asks,
            validation: for_validation()?,
            is_on: AtomicBool::new(false),
        };
        Ok((acme, asked))
    }

    /// The certificates of a name, or of the wildcard above it, or why there are none yet.
    ///
    /// # Errors
    /// [`CertificateLack`]; [`CertificateLack::Ordered`] also for a name that nobody has asked for.
    pub fn certificates(&self, name: &str) -> Result<Arc<Certificates>, CertificateLack> {
        let names = self.names.read();
        let (exact, wildcard) = (names.get(name), wildcard(&names, name));
        served(exact, wildcard).ok_or_else(|| match exact.or(wildcard) {
            Some(entry) => entry.lack,
            None if is_deep(&names, name) => CertificateLack::Deep,
            None => CertificateLack::Ordered,
        })
    }

    /// The certificates of a name that is ordered once a client asks for it. A wildcard above it
    /// that is ordered for another rule, and has no certificate, does not stand in its way.
    ///
    /// # Errors
    /// [`CertificateLack`], of the name itself; [`CertificateLack::Ordered`] if nobody has asked.
    pub fn certificates_on_demand(&self, name: &str) -> Result<Arc<Certificates>, CertificateLack> {
        let names = self.names.read();
        let exact = names.get(name);
        let lack = exact.map_or(CertificateLack::Ordered, |entry| entry.lack);
        served(exact, wildcard(&names, name)).ok_or(lack)
    }

    /// Each name with the certificates that are served for it now, or why there are none.
    pub fn all(&self) -> Vec<Known> {
        let names = self.names.read();
        let entries = names.iter().map(|(name, entry)| Known {
            name: name.clone(),
            served: entry.certificates.clone().ok_or(entry.lack),
            is_asked: entry.is_asked,
        });
        entries.collect()
    }

    /// Waits for the order of a name that a client asks for.
    pub async fn order(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Arc<Certificates>, CertificateLack> {
        let mut changed = self.changed.subscribe();
        if self.certificates_on_demand(name).is_err() {
            let (answer, answered) = oneshot::channel();
            let ask = Ask::Certificate(name.into(), answer);
            self.asks.try_send(ask).map_err(|_| CertificateLack::Busy)?;
            answered.await.unwrap_or(Err(CertificateLack::Failed))?;
        }
        let issued = async {
            loop {
                match self.certificates_on_demand(name) {
                    Err(CertificateLack::Ordered) => {}
                    known => return known,
                }
                if changed.changed().await.is_err() {
                    return Err(CertificateLack::Failed);
                }
            }
        };
        tokio::time::timeout(wait, issued).await.unwrap_or(Err(CertificateLack::Slow))
    }

    /// The handshake that validates this name by TLS-ALPN-01. `None`: nobody here ordered it.
    pub async fn validation(&self, name: &str) -> Option<Handshake> {
        if !self.is_on.load(Relaxed) {
            return None;
        }
        let known = || self.validations.read().get(name).cloned();
        let certificates = self.known_or_asked(known, |told| Ask::Validation(name.into(), told));
        let certificates = certificates.await?;
        Some(Handshake { config: self.validation.clone(), certificates, client_roots: 0 })
    }

    /// The key authorization for this token of HTTP-01. `None`: nobody here ordered it.
    pub async fn answer(&self, token: &str) -> Option<Arc<str>> {
        if !self.is_on.load(Relaxed) || !is_token(token) {
            return None;
        }
        let known = || self.answers.read().get(token).cloned();
        self.known_or_asked(known, |told| Ask::Answer(token.into(), told)).await
    }

    /// Looks into a table, and again when the thread has looked into the store.
    async fn known_or_asked<T>(
        &self,
        known: impl Fn() -> Option<T>,
        ask: impl FnOnce(oneshot::Sender<()>) -> Ask,
    ) -> Option<T> {
        if let Some(known) = known() {
            return Some(known);
        }
        let (told, is_told) = oneshot::channel();
        self.asks.try_send(ask(told)).ok()?;
        // The answer is in the table, or there is none.
        let _ = tokio::time::timeout(ANSWER_WAIT, is_told).await;
        known()
    }

    /// The DNS records that the wildcards of the configuration need, as lines of a zone file.
    ///
    /// # Errors
    /// What is wrong, for the operator.
    pub async fn records(&self) -> Result<String, String> {
        self.asked_by_operator(Ask::Records).await
    }

    /// Gives the account at the server another key. Returns the account's URL.
    ///
    /// # Errors
    /// What is wrong, for the operator.
    pub async fn change_key(&self) -> Result<String, String> {
        self.asked_by_operator(Ask::ChangeKey).await
    }

    async fn asked_by_operator(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<String, String>>) -> Ask,
    ) -> Result<String, String> {
        if !self.is_on.load(Relaxed) {
            return Err("no rule has `certificate = \"acme\"`".into());
        }
        let (answer, answered) = oneshot::channel();
        let asked = self.asks.try_send(ask(answer));
        asked.map_err(|_| "too many clients ask for certificates: try again")?;
        answered.await.unwrap_or_else(|_| Err("there is no account yet: see the log".into()))
    }

    /// Adds a name whose order begins. One that is there keeps what it has.
    pub(crate) fn begin(&self, name: &str, is_asked: bool) {
        let lack = CertificateLack::Ordered;
        let new = Entry { certificates: None, lack, is_asked };
        self.names.write().entry(name.into()).or_insert(new).is_asked = is_asked;
        self.changed.send_replace(());
    }

    pub(crate) fn set(&self, name: &str, entry: Entry) {
        let mut names = self.names.write();
        match names.get_mut(name) {
            // A certificate is served on while its renewal fails.
            Some(known) if entry.certificates.is_none() => {
                (known.lack, known.is_asked) = (entry.lack, entry.is_asked);
            }
            _ => _ = names.insert(name.into(), entry),
        }
        drop(names);
        self.changed.send_replace(());
    }

    /// Removes the names that are not wanted any more.
    pub(crate) fn retain(&self, is_wanted: impl Fn(&str) -> bool) {
        self.names.write().retain(|name, _| is_wanted(name));
        self.changed.send_replace(());
    }

    /// Removes a name that is not tried any more.
    pub(crate) fn remove(&self, name: &str) {
        self.names.write().remove(name);
        self.changed.send_replace(());
    }

    pub(crate) fn set_validation(&self, name: &str, certificates: Option<Arc<Certificates>>) {
        let mut validations = self.validations.write();
        match certificates {
            Some(certificates) => _ = validations.insert(name.into(), certificates),
            None => _ = validations.remove(name),
        }
    }

    pub(crate) fn set_answer(&self, token: &str, answer: Option<&str>) {
        let mut answers = self.answers.write();
        match answer {
            Some(answer) => _ = answers.insert(token.into(), answer.into()),
            None => _ = answers.remove(token),
        }
    }
}

/// The wildcard that covers a name.
fn wildcard<'n>(names: &'n HashMap<Box<str>, Entry>, name: &str) -> Option<&'n Entry> {
    let (_, above) = name.split_once('.')?;
    names.get(&*format!("*.{above}"))
}

/// The certificates of the name itself, or else of the wildcard.
fn served(exact: Option<&Entry>, wildcard: Option<&Entry>) -> Option<Arc<Certificates>> {
    let mut entries = [exact, wildcard].into_iter().flatten();
    entries.find_map(|entry| entry.certificates.clone())
}

/// True if a wildcard is ordered further above a name. Its certificate covers one label only (RFC
/// 9525 section 6.3).
fn is_deep(names: &HashMap<Box<str>, Entry>, name: &str) -> bool {
    let mut parents = name.match_indices('.').skip(1).map(|(at, _)| &name[at + 1..]);
    parents.any(|parent| names.contains_key(&*format!("*.{parent}")))
}

/// RFC 8555 section 8.3: a token has only characters of base64url. 128 bits have 22 of them.
fn is_token(token: &str) -> bool {
    /// Characters: far more than any server uses.
    const TOKEN_MAX: usize = 128;
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(is_safe)
}
