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
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use crate::client::Client;
use crate::error::AcmeError;
use crate::key_change;
use crate::store::{Kind, LOCK_LIFETIME, SharedStore};

/// For a change of the key. Shorter than a lock lasts.
pub const CHANGE_TIMEOUT: Duration = Duration::from_mins(4);
const _: () = assert!(CHANGE_TIMEOUT.as_secs() < LOCK_LIFETIME.as_secs());
/// Between two attempts to finish a change that was interrupted: each asks the server six times.
const FINISH_PAUSE: Duration = Duration::from_mins(10);
/// The lock under which the stored account is replaced. It is no name: names have no colon.
const LOCK: &str = "account:";

/// Where the account is stored, and the server that it is at.
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
    /// When it was last tried to finish a change of the key that another process began.
    finished: Option<Instant>,
}

struct KnownAccount {
    account: Account,
    since: Instant,
    /// What is stored, or is to be stored.
    credentials: Zeroizing<Vec<u8>>,
    is_stored: bool,
    /// Whether the log says that it cannot be stored.
    is_reported: bool,
}

impl AccountKeeper {
    /// The account: the one in the store, or a new one.
    pub async fn account(&self, server: AcmeServer<'_>) -> Result<Account, AcmeError> {
        // Held over the creation, so that one account is made.
        let mut state = self.0.lock().await;
        if let Err(error) = state.finish_later(server).await {
            tracing::error!("[acme] a change of the account's key is not finished: {error}");
        }
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

    /// Gives the account another key. Orders must not be under way: they use the earlier one.
    pub async fn change_key(&self, server: AcmeServer<'_>) -> Result<String, AcmeError> {
        let mut state = self.0.lock().await;
        state.account(server).await?;
        let known = state.known.as_ref().filter(|known| known.is_stored);
        known.ok_or_else(|| AcmeError::Store("the account is not stored".into()))?;
        let lock = server.store.borrow_mut().lock(LOCK)?.ok_or_else(|| {
            AcmeError::Store("another process orders certificates for this account".into())
        })?;
        let changed = tokio::time::timeout(CHANGE_TIMEOUT, async {
            if server.get(Kind::NextKey)?.is_none() {
                let (_, key) = Key::generate_pkcs8()?;
                server.put(Kind::NextKey, key.secret_pkcs8_der())?;
            }
            finish(server).await
        });
        let changed = changed.await.unwrap_or(Err(AcmeError::Slow));
        server.store.borrow_mut().unlock(LOCK, lock);
        changed?;
        state.account(server).await.map(|account| account.id().to_owned())
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

    /// Finishes a change of the key that was interrupted.
    async fn finish_later(&mut self, server: AcmeServer<'_>) -> Result<(), AcmeError> {
        let rests = self.finished.is_some_and(|tried| tried.elapsed() < FINISH_PAUSE);
        if rests || server.get(Kind::NextKey).ok().flatten().is_none() {
            return Ok(());
        }
        let Some(lock) = server.store.borrow_mut().lock(LOCK)? else { return Ok(()) };
        self.finished = Some(Instant::now());
        let finished = tokio::time::timeout(CHANGE_TIMEOUT, finish(server)).await;
        server.store.borrow_mut().unlock(LOCK, lock);
        finished.unwrap_or(Err(AcmeError::Slow))
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

/// Finishes the change to the stored new key. Call it under the lock. If the server refuses, the
/// earlier key stays. After any other failure both keys stay stored, and this can be called again.
async fn finish(server: AcmeServer<'_>) -> Result<(), AcmeError> {
    let Some(next) = server.get(Kind::NextKey)? else { return Ok(()) };
    // A process may have ended after the server had taken the key.
    let next_key = PrivatePkcs8KeyDer::from(next.to_vec());
    let key = (Key::from_pkcs8_der(next_key.clone_key())?, PrivateKeyDer::Pkcs8(next_key));
    let (builder, directory) = (server.builder(), server.id());
    let found = builder.from_key(key, directory.to_owned()).await;
    let changed = match found.map_err(AcmeError::from) {
        Ok((_, credentials)) => text(&credentials)?,
        Err(error) if error.problem() == "accountDoesNotExist" => {
            let stored = server.get(Kind::Account)?;
            let Some(stored) = stored else { return give_up(server) };
            let told =
                key_change::tell(server.client, directory, &credentials(&stored)?, &stored, &next)
                    .await;
            if told.as_ref().is_err_and(is_final) {
                give_up(server)?;
            }
            told?
        }
        Err(error) => return Err(error),
    };
    server.put(Kind::Account, &changed)?;
    tracing::info!("[acme] the account at {} has a new key", server.settings.directory);
    give_up(server)
}

/// Whether the server has certainly not taken the key, and will not.
fn is_final(error: &AcmeError) -> bool {
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

fn text(credentials: &AccountCredentials) -> Result<Zeroizing<Vec<u8>>, AcmeError> {
    let text = serde_json::to_vec(credentials).map(Zeroizing::new);
    text.map_err(|error| AcmeError::Library(error.to_string()))
}
