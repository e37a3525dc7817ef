//! One DNS server, and what all workers remember of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsHandle, FirstAnswer};
use hickory_resolver::proto::op::{DnsRequestOptions, DnsResponse, Query, ResponseCode};
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{ConnectionProvider, PoolContext, TlsConfig};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::cache;
use crate::dns::answer::{Answer, Question};
use crate::dns::secure::SecureServer;

/// The time for which a server is left out for names that it did not answer. Each question that it
/// misses extends this, and any answer ends it.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// Different names in a row that a server misses before it is left out for all names. One or two
/// may be lost on the way, or the servers of their zone are slow.
const MISSED_NAMES_MAX: usize = 3;
/// Questions with EDNS in a row that may be answered only without it. The next ones have none:
/// a box on the way drops it, or the server's FORMERR has no question and cannot be told from a
/// forgery.
const EDNS_MISSES_MAX: u8 = 3;
/// A query is sent again after this part of the timeout, and once more after as long.
const SENT_AGAIN: u32 = 4;
/// Most servers of which something is remembered: more than any configuration has. Of others it is
/// forgotten by the next reload.
const REMEMBERED_MAX: usize = 256;

/// Memory of servers that are silent or know no EDNS. All workers share it.
#[derive(Default)]
pub struct ServerMemory(Mutex<HashMap<SocketAddr, Remembered>>);

#[derive(Default)]
struct Remembered {
    /// The number of its answers so far.
    answers: u64,
    /// The names that it has missed since its last answer, at most [`MISSED_NAMES_MAX`].
    missed: Vec<Name>,
    /// The time until which it is left out for these names, or for all if it has missed so many.
    silent_until: Option<Instant>,
    /// The time until which it has a probe, and needs no other.
    probed_until: Option<Instant>,
    edns_misses: u8,
}

impl ServerMemory {
    fn read<T>(&self, server: SocketAddr, read: impl FnOnce(&Remembered) -> T) -> T {
        match self.0.lock().get(&server) {
            Some(known) => read(known),
            None => read(&Remembered::default()),
        }
    }

    fn change<T>(&self, server: SocketAddr, change: impl FnOnce(&mut Remembered) -> T) -> T {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED_MAX && !known.contains_key(&server) {
            known.clear();
        }
        change(known.entry(server).or_default())
    }
}

/// A server that is to be asked.
pub enum AskedServer {
    /// In clear.
    Clear(NameServerConfig),
    /// Over TLS.
    Secure(SecureServer),
}

/// The way in which a server is asked.
enum Transport {
    /// UDP, and TCP for an answer that was truncated.
    Clear(Vec<ConnectionConfig>),
    Secure(SecureServer),
}

/// A server, as one worker asks it.
pub struct DnsServer {
    address: SocketAddr,
    transport: Transport,
    context: PoolContext,
    memory: Arc<ServerMemory>,
    /// Names that it misses are remembered.
    notes_misses: bool,
}

impl DnsServer {
    /// Sets a server up. Nothing is sent yet. It has the timeout of `options` for each query.
    /// `notes_misses` is for a timeout that is long enough to tell a silent server from a slow one.
    ///
    /// # Errors
    /// Only hickory's own TLS can fail here, and it is not built in.
    pub fn new(
        endpoint: AskedServer,
        options: &ResolverOpts,
        memory: &Arc<ServerMemory>,
        notes_misses: bool,
    ) -> Result<Self, String> {
        let tls = TlsConfig::new().map_err(|error| error.to_string())?;
        let (address, transport) = match endpoint {
            AskedServer::Clear(config) => {
                let port = config.connections.first().map_or(0, |connection| connection.port);
                (SocketAddr::new(config.ip, port), Transport::Clear(config.connections))
            }
            AskedServer::Secure(server) => (server.address, Transport::Secure(server)),
        };
        Ok(Self {
            address,
            transport,
            context: PoolContext::new(options.clone(), tls),
            memory: memory.clone(),
            notes_misses,
        })
    }

    /// The addresses of a name, of one family.
    ///
    /// # Errors
    /// Why the server does not know them. That says nothing about the name.
    pub async fn look_up(&self, name: &Name, v6: bool) -> Result<Answer, String> {
        let mut question = Question::new(name.clone(), v6);
        loop {
            let query = match question.query() {
                Ok(query) => query,
                Err(answer) => return Ok(answer),
            };
            let answers = self.answers();
            let response = self.ask(&query).await.map_err(|error| {
                if matches!(error, NetError::Timeout) {
                    self.missed(name, answers);
                }
                fault(&error)
            })?;
            if let Some(answer) = question.read(&response)? {
                return Ok(answer);
            }
        }
    }

    /// The response to a query, whatever it says.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask_once(&self, query: &Query) -> Result<DnsResponse, String> {
        self.ask(query).await.map_err(|error| fault(&error))
    }

    /// The number of its answers until now.
    pub fn answers(&self) -> u64 {
        self.memory.read(self.address, |known| known.answers)
    }

    /// Notes that a question for this name has waited long enough. It counts if the server has
    /// answered none since there were so many `answers`: some servers drop one type, or one name.
    pub fn missed(&self, name: &Name, answers: u64) {
        if !self.notes_misses {
            return;
        }
        self.memory.change(self.address, |known| {
            if known.answers != answers {
                return;
            }
            if known.missed.len() < MISSED_NAMES_MAX && !known.missed.contains(name) {
                known.missed.push(name.clone());
            }
            known.silent_until = Some(Instant::now() + SILENT_FOR);
        });
    }

    /// True if it has not answered lately: for this name, or for several others.
    pub fn is_silent(&self, name: &Name) -> bool {
        self.memory.read(self.address, |known| {
            known.silent_until.is_some_and(|until| Instant::now() < until)
                && (known.missed.len() >= MISSED_NAMES_MAX || known.missed.contains(name))
        })
    }

    /// Asks a silent server, in a task of its own, unless it is being asked.
    pub fn probe(self: &Rc<Self>, name: &Name, v6: bool) {
        let now = Instant::now();
        let end = now + self.context.options.timeout;
        let is_first = self.memory.change(self.address, |known| {
            let is_first = known.probed_until.is_none_or(|until| until <= now);
            if is_first {
                known.probed_until = Some(end);
            }
            is_first
        });
        if is_first {
            let (server, name) = (self.clone(), name.clone());
            // Its answer, whatever it is, ends the silence.
            cache::spawn(async move { drop(server.look_up(&name, v6).await) });
        }
    }

    /// Sends a query. It takes up to twice the timeout: once for a place, and once for the answer.
    async fn ask(&self, query: &Query) -> Result<DnsResponse, NetError> {
        let options = &self.context.options;
        let edns_misses = self.memory.read(self.address, |known| known.edns_misses);
        let with_edns = options.edns0 && edns_misses < EDNS_MISSES_MAX;
        // A queue here is not the server's silence.
        let _place = match &self.transport {
            Transport::Secure(server) => Some(server.place(options.timeout).await?),
            Transport::Clear(_) => None,
        };
        let asked = async {
            match &self.transport {
                // No box on the way drops a part of it.
                Transport::Secure(server) => Ok(server.ask(query).await?),
                Transport::Clear(_) if with_edns => self.ask_with_edns(query).await,
                Transport::Clear(_) => self.exchange(query, false).await,
            }
        };
        let response = timeout(options.timeout, asked).await.unwrap_or(Err(NetError::Timeout))?;
        self.memory.change(self.address, |known| {
            known.answers += 1;
            known.missed.clear();
            known.silent_until = None;
        });
        Ok(response)
    }

    /// Sends a query with EDNS, and without it if the server refuses that (RFC 6891 section 7) or
    /// does not answer soon.
    async fn ask_with_edns(&self, query: &Query) -> Result<DnsResponse, NetError> {
        let mut with = pin!(self.exchange(query, true));
        // Nothing is sent before it is awaited.
        let mut without = pin!(self.exchange(query, false));
        let soon = timeout(self.context.options.timeout / SENT_AGAIN, &mut with).await;
        let (said, failed) = match soon {
            Ok(said) => (said, None),
            Err(_) => tokio::select! {
                biased;
                said = &mut with => (said, None),
                answer = &mut without => match answer {
                    Ok(answer) => return Ok(self.lacks_edns(answer, 1)),
                    Err(error) => (with.await, Some(error)),
                },
            },
        };
        match (said, failed) {
            (Ok(said), None) if refuses_edns(&said) => {
                Ok(self.lacks_edns(without.await?, EDNS_MISSES_MAX))
            }
            (Ok(said), Some(error)) if refuses_edns(&said) => Err(error),
            (said, _) => {
                if said.is_ok() {
                    self.memory.change(self.address, |known| known.edns_misses = 0);
                }
                said
            }
        }
    }

    /// Notes an answer to a query without EDNS, beside one with it that missed.
    fn lacks_edns(&self, answer: DnsResponse, misses: u8) -> DnsResponse {
        if !refuses_edns(&answer) {
            self.memory.change(self.address, |known| {
                known.edns_misses = known.edns_misses.saturating_add(misses);
            });
        }
        answer
    }

    /// Sends a query by UDP, and by TCP if the answer was truncated.
    async fn exchange(&self, query: &Query, edns: bool) -> Result<DnsResponse, NetError> {
        let mut options = DnsRequestOptions::default();
        options.use_edns = edns;
        options.edns_payload_len = self.context.options.edns_payload_len;
        options.retry_interval = self.context.options.timeout / SENT_AGAIN;
        let provider = TokioRuntimeProvider::default();
        let Transport::Clear(connections) = &self.transport else {
            return Err(NetError::NoConnections);
        };
        for connection in connections {
            let connecting =
                provider.new_connection(self.address.ip(), connection, &self.context)?;
            let handle = connecting.await?;
            let response = handle.lookup(query.clone(), options).first_answer().await?;
            if !response.truncation {
                return Ok(response);
            }
        }
        Err(NetError::Truncated)
    }
}

/// True if a response may mean that EDNS is unknown: FORMERR (RFC 6891 section 7), or NOTIMP (RFC
/// 2671 section 5.3).
fn refuses_edns(response: &DnsResponse) -> bool {
    matches!(response.response_code, ResponseCode::FormErr | ResponseCode::NotImp)
}

/// Returns the reason why a question has no answer, for the log.
fn fault(error: &NetError) -> String {
    match error {
        NetError::NoConnections | NetError::Timeout => "no resolver answered".into(),
        NetError::Io(error) => format!("no resolver answered: {error}"),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dns::scripted;

    const ADDRESS: [u8; 4] = [192, 0, 2, 1];

    fn server(
        address: SocketAddr,
        memory: &Arc<ServerMemory>,
        wait_ms: u64,
        notes_misses: bool,
    ) -> DnsServer {
        let mut config = NameServerConfig::udp(address.ip());
        config.connections.iter_mut().for_each(|udp| udp.port = address.port());
        let mut options = ResolverOpts::default();
        options.timeout = Duration::from_millis(wait_ms);
        DnsServer::new(AskedServer::Clear(config), &options, memory, notes_misses).unwrap()
    }

    #[tokio::test]
    async fn a_server_is_left_out_for_a_name_that_it_misses_and_after_some_for_all() {
        let address = scripted::serve(|query| match query.name() == "up.test" {
            true => vec![query.response(0, &[ADDRESS])],
            false => vec![],
        });
        let address = address.await;
        let [one, two, three, other, up] =
            ["one.test.", "two.test.", "three.test.", "other.test.", "up.test."]
                .map(|name| Name::from_ascii(name).unwrap());
        let memory = Arc::default();
        let dialling = server(address, &memory, 100, true);
        for name in [&one, &one, &two] {
            assert!(dialling.look_up(name, false).await.is_err());
            assert!(dialling.is_silent(name));
            assert!(!dialling.is_silent(&three), "lost names are no silent server");
        }
        assert!(dialling.look_up(&three, false).await.is_err());
        assert!(dialling.is_silent(&other));
        // Any answer is enough, also a late one to another question.
        let answers = dialling.answers();
        assert!(server(address, &memory, 10_000, true).look_up(&up, false).await.is_ok());
        assert!([&one, &two, &three, &other].iter().all(|name| !dialling.is_silent(name)));
        dialling.missed(&one, answers);
        assert!(!dialling.is_silent(&one), "it has answered meanwhile");
        // Evidence may wait for less time than a sound answer takes.
        let evidence = server(address, &Arc::default(), 100, false);
        for name in [&one, &two, &three] {
            assert!(evidence.look_up(name, false).await.is_err());
            assert!(!evidence.is_silent(name));
        }
        assert!(!evidence.is_silent(&other));
    }

    #[tokio::test]
    async fn a_late_refusal_of_edns_is_no_answer() {
        let (mut with, mut without) = (None, 0);
        let address = scripted::serve(move |query| {
            if query.has_edns() {
                with.get_or_insert(query);
                return vec![];
            }
            without += 1;
            // It is sent without EDNS after a part of the timeout, and again after as long.
            match (without, &with) {
                (1, Some(with)) => vec![with.response(1, &[])],
                _ => vec![query.response(0, &[ADDRESS])],
            }
        });
        let server = server(address.await, &Arc::default(), 4_000, true);
        let name = Name::from_ascii("late.test.").unwrap();
        let answer = server.look_up(&name, false).await;
        assert_eq!(answer.map(|answer| answer.addresses), Ok(vec![ADDRESS.into()]));
        let misses = server.memory.read(server.address, |known| known.edns_misses);
        assert_eq!(misses, EDNS_MISSES_MAX, "the next query has none");
    }

    #[test]
    fn a_resolver_that_is_not_reached_is_said_in_plain_words() {
        assert_eq!(fault(&NetError::NoConnections), "no resolver answered");
        assert_eq!(fault(&NetError::Timeout), "no resolver answered");
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(fault(&refused.into()), "no resolver answered: connection refused");
    }
}
