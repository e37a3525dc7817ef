//! One DNS server, and what all workers remember of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsHandle, FirstAnswer};
use hickory_resolver::proto::op::{DnsRequestOptions, DnsResponse, Query, ResponseCode};
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{ConnectionProvider, PoolContext, TlsConfig};
use tokio::time::timeout;

use crate::answer::{Answer, Question};
use crate::cache;

/// How long a server that did not answer is left out. Each question that it misses extends this,
/// and any answer ends it.
const SILENT_FOR: Duration = Duration::from_secs(30);
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

#[derive(Clone, Copy, Default)]
struct Remembered {
    /// The number of its answers so far.
    answers: u64,
    silent_until: Option<Instant>,
    /// Until when it has a probe, and needs no other.
    probed_until: Option<Instant>,
    edns_misses: u8,
}

impl ServerMemory {
    fn known(&self) -> MutexGuard<'_, HashMap<SocketAddr, Remembered>> {
        // A change under the lock leaves a whole value at each step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, server: SocketAddr) -> Remembered {
        self.known().get(&server).copied().unwrap_or_default()
    }

    fn change<T>(&self, server: SocketAddr, change: impl FnOnce(&mut Remembered) -> T) -> T {
        let mut known = self.known();
        if known.len() >= REMEMBERED_MAX && !known.contains_key(&server) {
            known.clear();
        }
        change(known.entry(server).or_default())
    }
}

/// A server, as one worker asks it.
pub struct DnsServer {
    address: SocketAddr,
    /// UDP, and TCP for an answer that was truncated.
    connections: Vec<ConnectionConfig>,
    context: PoolContext,
    memory: Arc<ServerMemory>,
}

impl DnsServer {
    /// Sets a server up. Nothing is sent yet. It has the timeout of `options` for each query.
    ///
    /// # Errors
    /// Only resolvers over TLS can fail here, and there are none.
    pub fn new(
        config: NameServerConfig,
        options: &ResolverOpts,
        memory: &Arc<ServerMemory>,
    ) -> Result<Self, String> {
        let tls = TlsConfig::new().map_err(|error| error.to_string())?;
        let port = config.connections.first().map_or(0, |connection| connection.port);
        Ok(Self {
            address: SocketAddr::new(config.ip, port),
            connections: config.connections,
            context: PoolContext::new(options.clone(), tls),
            memory: memory.clone(),
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
            if let Some(answer) = question.read(&self.ask(&query).await?)? {
                return Ok(answer);
            }
        }
    }

    /// The number of its answers until now.
    pub fn answers(&self) -> u64 {
        self.memory.of(self.address).answers
    }

    /// Notes that a question has waited long enough. The server is silent if it has answered none
    /// since there were so many `answers`: some servers drop one type, or one name.
    pub fn missed(&self, answers: u64) {
        self.memory.change(self.address, |known| {
            if known.answers == answers {
                known.silent_until = Some(Instant::now() + SILENT_FOR);
            }
        });
    }

    /// Says if it has not answered lately.
    pub fn is_silent(&self) -> bool {
        self.memory.of(self.address).silent_until.is_some_and(|until| Instant::now() < until)
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

    /// Sends a query.
    async fn ask(&self, query: &Query) -> Result<DnsResponse, String> {
        let known = self.memory.of(self.address);
        let options = &self.context.options;
        let with_edns = options.edns0 && known.edns_misses < EDNS_MISSES_MAX;
        let asked = async {
            match with_edns {
                true => self.ask_with_edns(query).await,
                false => self.exchange(query, false).await,
            }
        };
        match timeout(options.timeout, asked).await {
            Ok(Ok(response)) => {
                self.memory.change(self.address, |known| {
                    known.answers += 1;
                    known.silent_until = None;
                });
                Ok(response)
            }
            Ok(Err(error)) if !matches!(error, NetError::Timeout) => Err(fault(&error)),
            Err(_) | Ok(Err(_)) => {
                self.missed(known.answers);
                Err(fault(&NetError::Timeout))
            }
        }
    }

    /// Sends a query with EDNS, and without it if the server refuses that (RFC 6891 section 7) or
    /// does not answer soon.
    async fn ask_with_edns(&self, query: &Query) -> Result<DnsResponse, NetError> {
        let mut with = pin!(self.exchange(query, true));
        let soon = timeout(self.context.options.timeout / SENT_AGAIN, &mut with).await;
        let (without, misses) = match soon {
            Ok(Ok(response)) if refuses_edns(&response) => {
                (self.exchange(query, false).await?, EDNS_MISSES_MAX)
            }
            Ok(said) => return self.has_edns(said),
            Err(_) => tokio::select! {
                said = &mut with => return self.has_edns(said),
                Ok(without) = self.exchange(query, false) => (without, 1),
            },
        };
        if !refuses_edns(&without) {
            self.memory.change(self.address, |known| {
                known.edns_misses = known.edns_misses.saturating_add(misses);
            });
        }
        Ok(without)
    }

    /// Notes that a query with EDNS was answered.
    fn has_edns(&self, said: Result<DnsResponse, NetError>) -> Result<DnsResponse, NetError> {
        if said.is_ok() {
            self.memory.change(self.address, |known| known.edns_misses = 0);
        }
        said
    }

    /// Sends a query by UDP, and by TCP if the answer was truncated.
    async fn exchange(&self, query: &Query, edns: bool) -> Result<DnsResponse, NetError> {
        let mut options = DnsRequestOptions::default();
        options.use_edns = edns;
        options.edns_payload_len = self.context.options.edns_payload_len;
        options.retry_interval = self.context.options.timeout / SENT_AGAIN;
        let provider = TokioRuntimeProvider::default();
        for connection in &self.connections {
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

/// Says if a response may mean that EDNS is unknown: FORMERR (RFC 6891 section 7), or NOTIMP (RFC
/// 2671 section 5.3).
fn refuses_edns(response: &DnsResponse) -> bool {
    matches!(response.response_code, ResponseCode::FormErr | ResponseCode::NotImp)
}

/// Why a question has no answer, for the log.
fn fault(error: &NetError) -> String {
    match error {
        NetError::NoConnections | NetError::Timeout => "no resolver answered".into(),
        NetError::Io(error) => format!("no resolver answered: {error}"),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_that_is_not_reached_is_said_in_plain_words() {
        assert_eq!(fault(&NetError::NoConnections), "no resolver answered");
        assert_eq!(fault(&NetError::Timeout), "no resolver answered");
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(fault(&refused.into()), "no resolver answered: connection refused");
    }
}
