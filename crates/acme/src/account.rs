//! The account at one ACME server: from the store or a new one. Its key can be changed: the new key
//! is stored before the server is told, and the server is asked which key it knows after a crash.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use eyelet_config::{AcmeSettings, external_account_key};
use instant_acme::{
    Account, AccountBuilder, AccountCredentials, ExternalAccountKey, Key, NewAccount,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout_at;
use zeroize::Zeroizing;

use crate::client::Client;
use crate::error::AcmeError;
use crate::key_change;
use crate::store::{Kind, LOCK_LIFETIME, SharedStore};

/// For a change of the key, from the command to its answer. Shorter than a lock lasts, and than the
/// command waits.
pub const CHANGE_TIMEOUT: Duration = Duration::from_mins(4);
const _: () = assert!(CHANGE_TIMEOUT.as_secs() < LOCK_LIFETIME.as_secs());
/// Between two attempts to finish a change that was interrupted, each of which asks the server six
/// times. It is shorter than any order's own pause: orders that fail together share one attempt.
const FINISH_PAUSE: Duration = Duration::from_mins(1);
/// The pause after the server refused the key: the earlier one serves most likely.
const REFUSED_PAUSE: Duration = Duration::from_mins(10);
/// The number of times that a server refuses a key that another process may have told it, before
/// the key is forgotten. That takes four hours at least. All parts of the server agree by then.
const REFUSALS_MAX: u32 = 24;
/// The lock under which the stored account is replaced. It is no name: names have no colon.
const LOCK: &str = "account:";

/// The store of the account, and the server that it is at.
#[derive(Clone, Copy)]
pub struct AcmeServer<'a> {
    pub settings: &'a AcmeSettings,
    pub store: &'a SharedStore,
    pub client: &'a Client,
}

/// The account at the server, once it is needed.
#[derive(Default)]
pub struct AccountKeeper(Mutex<State>);

#[derive(Default)]
struct State {
    known: Option<KnownAccount>,
    /// The last attempt to finish a change of the key that was interrupted.
    tried: Option<Tried>,
    /// The number of times that the server has refused that key.
    refusals: u32,
}

/// An attempt to finish a change of the key, which failed.
struct Tried {
    at: Instant,
    /// The reason why nobody knows which key is the account's, if the server did not refuse the new
    /// one.
    unknown: Option<String>,
}

struct KnownAccount {
    account: Account,
    since: Instant,
    /// The credentials that are stored, or are to be stored.
    credentials: Zeroizing<Vec<u8>>,
    is_stored: bool,
    /// True if the log says that it cannot be stored.
    is_reported: bool,
}

impl AccountKeeper {
    /// The account: the one in the store, or a new one.
    pub async fn account(&self, server: AcmeServer<'_>) -> Result<Account, AcmeError> {
        // Held over the creation, so that one account is made.
        let mut state = self.0.lock().await;
        state.finish_later(server).await?;
        state.account(server).await
    }

    /// Forgets an account that the server did not know when it was asked at this time. Another name
    /// may have made a new one meanwhile.
    pub async fn forget(&self, server: AcmeServer<'_>, asked: Instant) {
        let mut state = self.0.lock().await;
        if state.known.as_ref().is_some_and(|known| known.since < asked) {
            state.known = None;
            // A store that fails is reported with the next attempt.
            let _ = server.store.borrow_mut().remove(Kind::Account, server.id());
        }
    }

    /// Gives the account another key until the deadline. Returns the account's URL. Orders must not
    /// be under way: they use the earlier key.
    pub async fn change_key(
        &self,
        server: AcmeServer<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<String, AcmeError> {
        let state = timeout_at(deadline, async {
            let mut state = self.0.lock().await;
            state.account(server).await.map(|_| state)
        });
        let mut state = state.await.unwrap_or(Err(AcmeError::Slow))?;
        let known = state.known.as_ref().filter(|known| known.is_stored);
        known.ok_or_else(|| AcmeError::Store("the account is not stored".into()))?;
        let lock = server.store.borrow_mut().lock(LOCK)?.ok_or_else(|| {
            AcmeError::Store("another process orders certificates for this account".into())
        })?;
        let changed = timeout_at(deadline, async {
            let is_new = server.get(Kind::NextKey)?.is_none();
            if is_new {
                let (_, key) = Key::generate_pkcs8()?;
                server.put(Kind::NextKey, key.secret_pkcs8_der())?;
            }
            let finished = finish(server, is_new).await;
            // Nobody told the server this key before: its answer is the whole truth.
            if is_new && finished.as_ref().is_err_and(is_refusal) {
                give_up(server)?;
            }
            finished
        });
        let changed = changed.await.unwrap_or(Err(AcmeError::Slow));
        server.store.borrow_mut().unlock(LOCK, lock);
        changed?;
        // The next order reads it from the store. The server may be gone by now.
        (state.known, state.tried) = (None, None);
        let stored = server.get(Kind::Account)?;
        account_url(&stored.unwrap_or_default())
    }
}

impl State {
    async fn account(&mut self, server: AcmeServer<'_>) -> Result<Account, AcmeError> {
        let stored = match (server.get(Kind::Account), &self.known) {
            // An account that is known is used while the store is down.
            (Err(_), Some(_)) => None,
            (stored, _) => stored?,
        };
        if let Some(known) = &mut self.known
            && stored.as_ref().is_none_or(|stored| *stored == known.credentials)
        {
            known.store(server, stored.is_some());
            return Ok(known.account.clone());
        }
        // Another process may have changed the key, and then has stored it.
        let builder = server.builder();
        let is_stored = stored.is_some();
        let (account, credentials) = match stored {
            Some(stored) => {
                let account = builder.from_credentials(credentials(&stored)?).await?;
                (account, refreshed(server, stored))
            }
            None => new_account(server).await?,
        };
        // Known before it is stored: otherwise each attempt would make another one.
        let since = Instant::now();
        let known = KnownAccount {
            account: account.clone(),
            since,
            credentials,
            is_stored,
            is_reported: false,
        };
        self.known.insert(known).store(server, is_stored);
        Ok(account)
    }

    /// Finishes a change of the key that was interrupted. An error: nobody knows which key the
    /// account has.
    async fn finish_later(&mut self, server: AcmeServer<'_>) -> Result<(), AcmeError> {
        if server.get(Kind::NextKey).ok().flatten().is_none() {
            return Ok(());
        }
        match &self.tried {
            Some(Tried { at, unknown: Some(why) }) if at.elapsed() < FINISH_PAUSE => {
                return Err(AcmeError::Unfinished(why.clone()));
            }
            Some(Tried { at, unknown: None }) if at.elapsed() < REFUSED_PAUSE => return Ok(()),
            _ => {}
        }
        let Some(lock) = server.store.borrow_mut().lock(LOCK)? else { return Ok(()) };
        let finished = tokio::time::timeout(CHANGE_TIMEOUT, finish(server, false)).await;
        let finished = finished.unwrap_or(Err(AcmeError::Slow));
        let noted = self.note_finished(server, finished);
        server.store.borrow_mut().unlock(LOCK, lock);
        noted
    }

    /// Notes how an attempt to finish a change ended. If the server refuses a key that it may have
    /// been told already, the key stays for a while. The server may have taken it, and this is the
    /// only copy.
    fn note_finished(
        &mut self,
        server: AcmeServer<'_>,
        finished: Result<(), AcmeError>,
    ) -> Result<(), AcmeError> {
        let Err(error) = finished else {
            (self.tried, self.refusals) = (None, 0);
            return Ok(());
        };
        let at = Instant::now();
        if !is_refusal(&error) {
            let why = match error {
                AcmeError::Unfinished(why) => why,
                other => other.to_string(),
            };
            self.tried = Some(Tried { at, unknown: Some(why.clone()) });
            return Err(AcmeError::Unfinished(why));
        }
        self.tried = Some(Tried { at, unknown: None });
        self.refusals += 1;
        tracing::error!("[acme] {}", AcmeError::Unfinished(error.to_string()));
        if self.refusals < REFUSALS_MAX {
            return Ok(());
        }
        tracing::error!("[acme] the account keeps its earlier key");
        self.refusals = 0;
        give_up(server)
    }
}

impl KnownAccount {
    /// Stores the account if that is still to be done. Each use of the account tries it.
    fn store(&mut self, server: AcmeServer<'_>, is_stored: bool) {
        self.is_stored |= is_stored;
        if self.is_stored {
            return;
        }
        match server.put(Kind::Account, &self.credentials) {
            Ok(()) => self.is_stored = true,
            Err(error) if !self.is_reported => {
                self.is_reported = true;
                tracing::error!(
                    "[acme] the account is not stored, a restart makes another: {error}"
                );
            }
            Err(_) => {}
        }
    }
}

impl AcmeServer<'_> {
    /// The server's directory, and so the account's name in the store.
    fn id(&self) -> &str {
        &self.settings.directory
    }

    fn builder(&self) -> AccountBuilder {
        Account::builder_with_http(Box::new(self.client.clone()))
    }

    fn get(&self, kind: Kind) -> Result<Option<Zeroizing<Vec<u8>>>, AcmeError> {
        self.store.borrow_mut().get(kind, self.id())
    }

    fn put(&self, kind: Kind, value: &[u8]) -> Result<(), AcmeError> {
        self.store.borrow_mut().put(kind, self.id(), value)
    }
}

/// Stores the account of a fleet again, because the store forgets what is old. Returns what is
/// stored. Under the lock, or the earlier key could replace a new one.
fn refreshed(server: AcmeServer<'_>, stored: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    let mut store = server.store.borrow_mut();
    if store.is_shared()
        && let Ok(Some(lock)) = store.lock(LOCK)
    {
        let id = server.id();
        if store.get(Kind::Account, id).is_ok_and(|now| now.is_some_and(|now| now == stored)) {
            // The next start tries it again.
            let _ = store.put(Kind::Account, id, &stored);
        }
        store.unlock(LOCK, lock);
    }
    stored
}

/// Makes an account. Returns what is to be stored, too.
async fn new_account(server: AcmeServer<'_>) -> Result<(Account, Zeroizing<Vec<u8>>), AcmeError> {
    let settings = server.settings;
    let contact: Vec<&str> = settings.contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let external = match &settings.external_account {
        None => None,
        Some(external) => {
            let key = external_account_key(external).map_err(AcmeError::Library)?;
            let key = BASE64_URL_SAFE_NO_PAD.decode(&*key).map(Zeroizing::new);
            let key = key.map_err(|error| {
                let shown = external.key_file.display();
                AcmeError::Library(format!("{shown} is not base64url: {error}"))
            })?;
            Some(ExternalAccountKey::new(external.id.clone(), &key))
        }
    };
    let made = server.builder().create(&new, settings.directory.clone(), external.as_ref()).await;
    let (account, credentials) = made?;
    tracing::info!("[acme] a new account at {}: {}", settings.directory, account.id());
    Ok((account, text(&credentials)?))
}

/// Finishes the change to the stored new key. Call it under the lock. After a failure both keys
/// stay stored, and this can be called again. `is_new`: the server was never told this key.
async fn finish(server: AcmeServer<'_>, is_new: bool) -> Result<(), AcmeError> {
    let Some(next) = server.get(Kind::NextKey)? else { return Ok(()) };
    let known = if is_new { None } else { known_by(server, &next).await? };
    let changed = match known {
        Some(credentials) => text(&credentials)?,
        None => {
            let stored = server.get(Kind::Account)?;
            let Some(stored) = stored else { return give_up(server) };
            let directory = server.id();
            key_change::tell(server.client, directory, &credentials(&stored)?, &stored, &next)
                .await?
        }
    };
    server.put(Kind::Account, &changed)?;
    tracing::info!("[acme] the account at {} has a new key", server.settings.directory);
    give_up(server)
}

/// The account that the server knows by this key, if it does: a process may have ended after the
/// server had taken the key.
async fn known_by(
    server: AcmeServer<'_>,
    key: &[u8],
) -> Result<Option<AccountCredentials>, AcmeError> {
    let der = PrivatePkcs8KeyDer::from(key.to_vec());
    let key = (Key::from_pkcs8_der(der.clone_key())?, PrivateKeyDer::Pkcs8(der));
    let found = server.builder().from_key(key, server.id().to_owned()).await;
    match found.map_err(AcmeError::from) {
        Ok((_, credentials)) => Ok(Some(credentials)),
        Err(error) if error.problem() == "accountDoesNotExist" => Ok(None),
        // It does not refuse the key, but to say whether it knows it.
        Err(error @ AcmeError::Refused(_)) => Err(AcmeError::Unfinished(error.to_string())),
        Err(error) => Err(error),
    }
}

/// True if the server refuses to take the key.
fn is_refusal(error: &AcmeError) -> bool {
    match error {
        AcmeError::Refused(problem) => {
            problem.status.is_some_and(|status| (400..500).contains(&status))
        }
        AcmeError::NoKeyChange => true,
        _ => false,
    }
}

/// Forgets the new key: the server refuses it, or it is the account's by now.
fn give_up(server: AcmeServer<'_>) -> Result<(), AcmeError> {
    server.store.borrow_mut().remove(Kind::NextKey, server.id())
}

fn credentials(stored: &[u8]) -> Result<AccountCredentials, AcmeError> {
    serde_json::from_slice(stored)
        .map_err(|error| AcmeError::Store(format!("the stored account cannot be read: {error}")))
}

/// The URL of a stored account.
fn account_url(stored: &[u8]) -> Result<String, AcmeError> {
    let stored: Value = serde_json::from_slice(stored)
        .map_err(|error| AcmeError::Store(format!("the stored account cannot be read: {error}")))?;
    Ok(stored["id"].as_str().unwrap_or_default().to_owned())
}

fn text(credentials: &AccountCredentials) -> Result<Zeroizing<Vec<u8>>, AcmeError> {
    let text = serde_json::to_vec(credentials).map(Zeroizing::new);
    text.map_err(|error| AcmeError::Library(error.to_string()))
}
