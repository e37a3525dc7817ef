//! One ACME server: one order at a time and name, from the order to the certificate.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eyelet_config::{AcmeSettings, Dns, FleetSettings};
use eyelet_pki::certificate::{Pair, load_text, signing_key};
use eyelet_sys::file::Stamp;
use eyelet_telemetry::counters::Counters;
use eyelet_tls::certificates::{CertificateMaker, Certificates};
use eyelet_tls::client::roots_config;
use eyelet_tls::tickets::SourceId;
use http::Method;
use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, CertificateIdentifier, ChallengeHandle,
    Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use crate::account::{AccountKeeper, AcmeServer, CHANGE_TIMEOUT};
use crate::challenge::Challenge;
use crate::client::Client;
use crate::error::{AcmeError, described};
use crate::hook::{HOOK_TIMEOUT, HookRecord};
use crate::key_change;
use crate::misses;
use crate::persist::{PersistentRecord, PersistentRecordFault, is_issuer, printable};
use crate::store::{AcmeStore, Kind, LOCK_LIFETIME, SharedStore};
use crate::table::Acme;

/// For all that an order needs. Shorter than a lock lasts.
pub const ORDER_TIMEOUT: Duration = Duration::from_mins(4);
const _: () = assert!(ORDER_TIMEOUT.as_secs() < LOCK_LIFETIME.as_secs());
/// Orders at a time: a public server limits requests a second.
const ORDERS_MAX: u32 = 4;
/// The time that the server may take for a validation, and again for a certificate. Both together
/// end in time, also after a hook that has used all of its time.
const STEP_TIMEOUT: Duration = Duration::from_mins(1);
const _: () = assert!(
    HOOK_TIMEOUT.as_secs() + 2 * STEP_TIMEOUT.as_secs() < ORDER_TIMEOUT.as_secs(),
    "an order has time for all of it"
);
/// The first pause between two looks at an order; without a Retry-After each is half as long again.
const POLL: Duration = Duration::from_millis(500);
const POLL_FACTOR: f32 = 1.5;

/// Most names of a CA. The draft lets a server send ten.
const ISSUERS_MAX: usize = 10;
/// Time for a look at the DNS, in which several servers may be asked.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the looks for all records that an operator asks for.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(30);

/// Looks up the TXT records of a name by the DNS servers of the configuration. An error says
/// nothing about the name.
pub type TextLookup = fn(Dns, String) -> Pin<Box<dyn Future<Output = Result<Vec<String>, String>>>>;

/// The DNS, as an issuer looks into it.
#[derive(Clone)]
pub struct TextDns {
    pub servers: Dns,
    pub look_up: TextLookup,
}

/// One ACME server, as one configuration describes it.
pub struct Issuer {
    pub settings: AcmeSettings,
    pub store: SharedStore,
    pub client: Client,
    pub orders: Semaphore,
    pub counters: Arc<Counters>,
    pub table: Arc<Acme>,
    dns: TextDns,
    maker: CertificateMaker,
    accounts: AccountKeeper,
    /// The names of the CA in DNS records, once they were asked for.
    issuers: RefCell<Vec<String>>,
    /// True if the clock was reported to be wrong.
    is_clock_wrong: Cell<bool>,
}

/// An answer to a challenge. Dropping it withdraws the answer.
enum Answered<'a> {
    Published {
        _published: Published<'a>,
    },
    Record {
        _record: HookRecord,
    },
    /// The record was there before.
    Persistent,
}

/// A published answer to a challenge. Dropping it withdraws the answer.
struct Published<'a> {
    issuer: &'a Issuer,
    name: Box<str>,
    token: String,
    kind: Kind,
}

impl Issuer {
    /// Opens the store and reads the roots. The server is not asked yet.
    pub fn new(
        settings: &AcmeSettings,
        fleet: Option<&FleetSettings>,
        dns: TextDns,
        table: &Arc<Acme>,
        counters: &Arc<Counters>,
    ) -> Result<Self, AcmeError> {
        let tls = roots_config(settings.ca.as_deref());
        let (tls, _) = tls.map_err(|error| AcmeError::Server(error.to_string()))?;
        Ok(Self {
            settings: settings.clone(),
            store: RefCell::new(AcmeStore::open(settings, fleet)?),
            client: Client::new(tls),
            orders: Semaphore::new(ORDERS_MAX as usize),
            counters: counters.clone(),
            table: table.clone(),
            dns,
            maker: CertificateMaker::new(),
            accounts: AccountKeeper::default(),
            issuers: RefCell::default(),
            is_clock_wrong: Cell::new(false),
        })
    }

    /// The account: the one in the store, or a new one.
    pub async fn account(&self) -> Result<Account, AcmeError> {
        let account = self.accounts.account(self.server()).await?;
        self.check_clock();
        Ok(account)
    }

    /// Forgets an account that the server did not know when it was asked at this time.
    pub async fn forget_account(&self, asked: Instant) {
        self.accounts.forget(self.server(), asked).await;
    }

    /// Gives the account another key. Returns the account's URL. It waits for the orders that are
    /// under way, because what answers a challenge depends on the key.
    pub async fn change_key(&self) -> Result<String, AcmeError> {
        let deadline = tokio::time::Instant::now() + CHANGE_TIMEOUT;
        let all = tokio::time::timeout_at(deadline, self.orders.acquire_many(ORDERS_MAX));
        let _turns = all.await.map_err(|_| AcmeError::Slow)?;
        self.accounts.change_key(self.server(), deadline).await
    }

    fn server(&self) -> AcmeServer<'_> {
        AcmeServer { settings: &self.settings, store: &self.store, client: &self.client }
    }

    /// Orders a certificate. Returns its chain and its key, both PEM.
    pub async fn order(
        &self,
        name: &str,
        replaces: Option<CertificateIdentifier<'static>>,
        challenge: Challenge,
    ) -> Result<Zeroizing<Vec<u8>>, AcmeError> {
        let account = self.account().await?;
        let identifiers = [Identifier::Dns(name.to_owned())];
        let new = || {
            let new = NewOrder::new(&identifiers);
            match &self.settings.profile {
                Some(profile) => new.profile(profile),
                None => new,
            }
        };
        let better = match replaces {
            // It only gives the order a better place. Servers refuse it for many reasons.
            Some(replaced) => account.new_order(&new().replaces(replaced)).await.ok(),
            None => None,
        };
        let mut order = match better {
            Some(order) => order,
            None => account.new_order(&new()).await?,
        };
        self.validate(name, &mut order, challenge).await?;
        let key = KeyPair::generate().map_err(library)?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(library)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(library)?;
        order.finalize_csr(request.der()).await?;
        let chain = order.poll_certificate(&retries()).await?;
        self.check_clock();
        Ok(Zeroizing::new([key.serialize_pem().as_bytes(), chain.as_bytes()].concat()))
    }

    /// Has the server validate the name.
    async fn validate(
        &self,
        name: &str,
        order: &mut Order,
        wanted: Challenge,
    ) -> Result<(), AcmeError> {
        let mut answered = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Pending => {}
                AuthorizationStatus::Valid => continue,
                _ => return Err(invalid(wanted, &mut authorization).await),
            }
            let mut challenge =
                authorization.challenge(wanted.kind()).ok_or(AcmeError::NoChallenge)?;
            answered.push(self.answer(name, &challenge, wanted).await?);
            challenge.set_ready().await?;
        }
        if order.state().status == OrderStatus::Ready {
            return Ok(());
        }
        match order.poll_ready(&retries()).await {
            Ok(OrderStatus::Ready) => Ok(()),
            Err(instant_acme::Error::Timeout(_)) => Err(AcmeError::Slow),
            Ok(_) | Err(instant_acme::Error::Api(_)) => {
                let mut authorizations = order.authorizations();
                match authorizations.next().await {
                    Some(Ok(mut authorization)) => Err(invalid(wanted, &mut authorization).await),
                    _ => Err(AcmeError::Invalid { challenge: wanted, why: "no reason".into() }),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Prepares the answer to a challenge, so that the server may ask.
    async fn answer(
        &self,
        name: &str,
        challenge: &ChallengeHandle<'_>,
        wanted: Challenge,
    ) -> Result<Answered<'_>, AcmeError> {
        let kind = match wanted {
            Challenge::DnsPersist => return Ok(Answered::Persistent),
            Challenge::Dns => {
                let owner = format!("_acme-challenge.{}", domain(name));
                let value = challenge.key_authorization().dns_value();
                let record = HookRecord::make(&self.settings.dns_hook, &owner, &value).await?;
                return Ok(Answered::Record { _record: record });
            }
            Challenge::Http => Kind::Http,
            Challenge::TlsAlpn => Kind::TlsAlpn,
        };
        let token = challenge.token.clone();
        let answer = challenge.key_authorization();
        let published = Published { issuer: self, name: name.into(), token, kind };
        self.publish(&published, answer.as_str())?;
        if self.is_shared() {
            tokio::time::sleep(misses::KEPT).await;
        }
        Ok(Answered::Published { _published: published })
    }

    /// Looks if the DNS has a record with which the server validates this wildcard. One that cannot
    /// be looked up may be there: the server decides.
    pub async fn check_record(&self, name: &str) -> Result<(), AcmeError> {
        let record = self.record(name).await?;
        match self.find(&record, LOOKUP_TIMEOUT).await {
            Ok(Err(fault)) => Err(AcmeError::NoRecord { record: record.line(), fault }),
            Ok(Ok(())) => Ok(()),
            Err(why) => {
                tracing::warn!("[acme] {}: not looked up before the order: {why}", record.name);
                Ok(())
            }
        }
    }

    /// The records for these wildcards, as lines of a zone file. A comment says what the DNS has.
    pub async fn records(&self, names: &[Box<str>]) -> Result<String, AcmeError> {
        let mut records = Vec::with_capacity(names.len());
        for name in names {
            records.push(self.record(name).await?);
        }
        Ok(self.looked_up(&records, RECORDS_TIMEOUT).await)
    }

    /// The lines of these records. All looks at the DNS together end in time.
    async fn looked_up(&self, records: &[PersistentRecord], time: Duration) -> String {
        let mut lines = String::new();
        let ends = Instant::now() + time;
        for record in records {
            let left = ends.saturating_duration_since(Instant::now());
            let seen = match self.find(record, left.min(LOOKUP_TIMEOUT)).await {
                Ok(Ok(())) => "it is there".into(),
                Ok(Err(fault)) => fault.to_string(),
                Err(why) => format!("it cannot be looked up: {}", printable(&why)),
            };
            lines.push_str(&format!("{} ; {seen}\n", record.line()));
        }
        lines
    }

    async fn record(&self, name: &str) -> Result<PersistentRecord, AcmeError> {
        let account = self.account().await?;
        if self.issuers.borrow().is_empty() {
            let named = issuers(&self.client, &self.settings.directory).await?;
            *self.issuers.borrow_mut() = named;
        }
        let record = PersistentRecord::new(domain(name), &self.issuers.borrow(), account.id());
        record.map_err(AcmeError::Server)
    }

    /// Looks for the record in the DNS.
    async fn find(
        &self,
        record: &PersistentRecord,
        time: Duration,
    ) -> Result<Result<(), PersistentRecordFault>, String> {
        let found = (self.dns.look_up)(self.dns.servers.clone(), record.name.clone());
        let found = tokio::time::timeout(time, found).await;
        let found = found.unwrap_or_else(|_| Err("no resolver answered in time".into()))?;
        Ok(record.find(&found, self.client.server_time()))
    }

    /// True if other edges answer, too.
    pub fn is_shared(&self) -> bool {
        self.store.borrow().is_shared()
    }

    /// Makes the answer to a challenge known: to this process, and to those that share the store.
    fn publish(&self, published: &Published<'_>, answer: &str) -> Result<(), AcmeError> {
        let Published { name, token, kind, .. } = published;
        match kind {
            Kind::Http => self.table.set_answer(token, Some(answer)),
            _ => self.table.set_validation(name, Some(self.validation(name, answer)?)),
        }
        self.store.borrow_mut().put(*kind, published.id(), answer.as_bytes())
    }

    /// Puts an answer that another process has published into the table. The caller withdraws it.
    /// Returns whether there is one.
    ///
    /// # Errors
    /// If the store cannot be used.
    pub fn fetch(&self, kind: Kind, id: &str) -> Result<bool, AcmeError> {
        let stored = self.store.borrow_mut().get(kind, id)?;
        let Some(stored) = stored else { return Ok(false) };
        let Ok(answer) = std::str::from_utf8(&stored) else { return Ok(false) };
        match kind {
            Kind::Http => self.table.set_answer(id, Some(answer)),
            _ => match self.validation(id, answer) {
                Ok(certificates) => self.table.set_validation(id, Some(certificates)),
                Err(_) => return Ok(false),
            },
        }
        Ok(true)
    }

    /// The certificate for TLS-ALPN-01 (RFC 8737 section 3): the name, and a digest of the key
    /// authorization in a critical extension.
    fn validation(&self, name: &str, answer: &str) -> Result<Arc<Certificates>, AcmeError> {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, answer.as_bytes());
        let key = KeyPair::generate().map_err(library)?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(library)?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
        let certificate = params.self_signed(&key).map_err(library)?;
        // Not compared with its key: the library that does that refuses the critical extension.
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let key = Zeroizing::new(PrivateKeyDer::from(key));
        let signing = signing_key(&key);
        let signing =
            signing.ok_or_else(|| AcmeError::Library("a new key does not sign".into()))?;
        let certified = CertifiedKey::new(vec![certificate.der().clone()], signing);
        let pair = Pair { certified, key, stamps: [Stamp::default(); 2] };
        Ok(self.maker.make(pair, SourceId::NONE))
    }

    /// A chain and its key in the form that serves.
    pub fn certificates(&self, name: &str, text: &[u8]) -> Result<Arc<Certificates>, AcmeError> {
        let pair = load_text(Path::new(name), text);
        let pair = pair.map_err(|error| {
            AcmeError::Library(format!("the certificate cannot be used: {error}"))
        })?;
        // A path of the configuration does not begin like this.
        let source = SourceId::new(format!("\0acme {name}").as_bytes());
        Ok(self.maker.make(pair, source))
    }

    /// Reports once that this machine's clock and the server's differ.
    fn check_clock(&self) {
        /// Certificates are valid from an hour before they are issued (Let's Encrypt).
        const AHEAD_SECS_MAX: u64 = 3600;
        let ahead = self.client.ahead_secs();
        let is_wrong = ahead.unsigned_abs() > AHEAD_SECS_MAX;
        if is_wrong && !self.is_clock_wrong.replace(is_wrong) {
            let hours = ahead.unsigned_abs() / 3600;
            let which = if ahead > 0 { "behind" } else { "ahead of" };
            tracing::error!(
                "[acme] the clock of this machine is {hours} hours {which} the server's: \
                 certificates will look expired or not yet valid; set the clock"
            );
        }
        self.is_clock_wrong.set(is_wrong);
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        match self.kind {
            Kind::Http => self.issuer.table.set_answer(&self.token, None),
            _ => self.issuer.table.set_validation(&self.name, None),
        }
        // An answer that stays is of no use to anybody.
        let _ = self.issuer.store.borrow_mut().remove(self.kind, self.id());
    }
}

impl Published<'_> {
    fn id(&self) -> &str {
        if self.kind == Kind::Http { &self.token } else { &self.name }
    }
}

/// A certificate that nobody trusts, for handshakes of this process with itself.
///
/// # Errors
/// If no key can be made.
pub fn stand_in() -> Result<Arc<Certificates>, String> {
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let certificate = CertificateParams::default().self_signed(&key);
    let certificate = certificate.map_err(|error| error.to_string())?;
    let text = Zeroizing::new(key.serialize_pem() + &certificate.pem());
    let pair = load_text(Path::new("stand-in"), text.as_bytes());
    let pair = pair.map_err(|error| error.to_string())?;
    Ok(CertificateMaker::new().make(pair, SourceId::NONE))
}

/// Returns the reason why the server could not validate.
async fn invalid(challenge: Challenge, authorization: &mut AuthorizationHandle<'_>) -> AcmeError {
    let why = match authorization.refresh().await {
        Ok(state) => state.challenges.iter().find_map(|challenge| challenge.error.as_ref()),
        Err(_) => None,
    };
    let why = why.map_or_else(|| "it does not say why".into(), described);
    AcmeError::Invalid { challenge, why }
}

/// The names by which the CA goes in records, as the server's directory says (RFC 8555 section
/// 9.7.6). The draft names this as their source, and only an order says them otherwise.
async fn issuers(client: &Client, directory: &str) -> Result<Vec<String>, AcmeError> {
    let answer = key_change::request(client, Method::GET, directory, None).await?;
    let read: Value = serde_json::from_slice(answer.body())
        .map_err(|error| AcmeError::Server(format!("its directory is not JSON: {error}")))?;
    let listed = read.get("meta").and_then(|meta| meta.get("caaIdentities"));
    let listed = listed.and_then(Value::as_array).into_iter().flatten();
    let names = listed.filter_map(Value::as_str).filter(|name| is_issuer(name));
    Ok(names.take(ISSUERS_MAX).map(str::to_owned).collect())
}

/// The domain that an order for this name validates.
fn domain(name: &str) -> &str {
    name.strip_prefix("*.").unwrap_or(name)
}

/// The identifier of a certificate for its renewal (RFC 9773 section 4.1).
pub fn identifier(leaf: &CertificateDer<'_>) -> Option<CertificateIdentifier<'static>> {
    CertificateIdentifier::try_from(leaf).ok().map(CertificateIdentifier::into_owned)
}

fn retries() -> RetryPolicy {
    RetryPolicy::new().initial_delay(POLL).backoff(POLL_FACTOR).timeout(STEP_TIMEOUT)
}

fn library(error: rcgen::Error) -> AcmeError {
    AcmeError::Library(format!("a key or a request cannot be made: {error}"))
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used)]

    use std::rc::Rc;

    use eyelet_config::AcmeNames;
    use eyelet_telemetry::counters;

    use super::*;
    use crate::store::tests::settings;

    /// An issuer whose server nobody asks, and who looks into the DNS so.
    pub fn issuer(folder: &Path, dns_hook: Vec<String>, look_up: TextLookup) -> Rc<Issuer> {
        let wanted = AcmeNames { has_http: true, ..AcmeNames::default() };
        let settings = settings(folder, "https://127.0.0.1:1/directory");
        let settings = AcmeSettings { dns_hook, wanted, ..settings };
        let table = Arc::new(Acme::new().unwrap().0);
        let dns = TextDns { servers: Dns::default(), look_up };
        let issuer = Issuer::new(&settings, None, dns, &table, &counters::register()).unwrap();
        Rc::new(issuer)
    }

    /// A thousand names of an operator do not wait for a silent resolver one by one.
    #[test]
    fn all_looks_for_records_together_end_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = issuer(folder.path(), Vec::new(), |_, _| Box::pin(std::future::pending()));
        let ca = ["ca.test".to_owned()];
        let record = |n| PersistentRecord::new(&format!("n{n}.test"), &ca, "https://ca.test/1");
        let records: Vec<_> = (0..1_000).map(|n| record(n).unwrap()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let time = Duration::from_millis(200);
        let began = Instant::now();
        let lines = runtime.block_on(issuer.looked_up(&records, time));
        let took = began.elapsed();
        assert!(took >= time && took < RECORDS_TIMEOUT / 2, "{took:?}");
        let said = "; it cannot be looked up: no resolver answered in time\n";
        assert_eq!(lines.matches(said).count(), records.len());
    }
}
