//! The configured DNS servers, in their order: the first one that answers decides.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolverOpts};
use hickory_resolver::proto::rr::Name;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dns::answer::Answer;
use crate::dns::secure::SecureDns;
use crate::dns::server::{AskedServer, DnsServer, ServerMemory};
use eyelet_config::{Dns, DnsTransport, NameServer};

/// The time for which a server is waited for before the next one is asked, too. A server nearby
/// answers from its cache in a few milliseconds, and asks others in about 100.
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// The time for which an earlier server is preferred to a later one that has addresses. Then it is
/// silent.
const ADDRESSES_AFTER: Duration = Duration::from_secs(1);
/// The time for which an earlier server is preferred to a later one that knows no address. It is
/// longer, because the first of two often knows internal names that the second, a public one, does
/// not.
const NOTHING_AFTER: Duration = Duration::from_secs(2);

/// Servers in the order in which they count, as in resolv.conf(5).
pub struct Servers {
    all: Vec<Rc<DnsServer>>,
    attempts: usize,
}

type Asked<'a> = Pin<Box<dyn Future<Output = Result<Answer, String>> + 'a>>;

impl Servers {
    /// Sets `servers` up. Nothing is sent yet.
    ///
    /// # Errors
    /// See [`DnsServer::new`].
    pub fn new(
        servers: Vec<AskedServer>,
        options: &ResolverOpts,
        memory: &Arc<ServerMemory>,
    ) -> Result<Self, String> {
        let server = |endpoint| DnsServer::new(endpoint, options, memory, true).map(Rc::new);
        let all = servers.into_iter().map(server).collect::<Result<_, _>>()?;
        Ok(Self { all, attempts: options.attempts })
    }

    /// The addresses of a name, of one family. If no server knows them, all are asked again.
    ///
    /// # Errors
    /// Why they are unknown, by the first server.
    pub async fn look_up(&self, name: &Name, v6: bool) -> Result<Answer, String> {
        for _ in 1..self.attempts {
            if let Ok(answer) = self.ask(name, v6).await {
                return Ok(answer);
            }
            sleep(NEXT_AFTER).await;
        }
        self.ask(name, v6).await
    }

    /// Asks all that have answered lately, in their order. Of the silent ones each is probed by one
    /// question at a time. Nobody waits for them, except shortly for a name that the others do not
    /// know: a server may have been silent about other names only.
    async fn ask(&self, name: &Name, v6: bool) -> Result<Answer, String> {
        let (silent, others): (Vec<_>, Vec<_>) =
            self.all.iter().cloned().partition(|server| server.is_silent(name));
        if silent.is_empty() || others.is_empty() {
            return in_order(&self.all, (name, v6)).await;
        }
        silent.iter().for_each(|server| server.probe(name, v6));
        let answer = in_order(&others, (name, v6)).await;
        if answer.as_ref().is_ok_and(|answer| !answer.addresses.is_empty()) {
            return answer;
        }
        sleep(NEXT_AFTER).await;
        match silent.iter().all(|server| server.is_silent(name)) {
            true => answer,
            false => in_order(&self.all, (name, v6)).await,
        }
    }
}

/// Asks the first of `servers`, and the others if it fails or is late. An answer of theirs counts
/// once the first has failed, or has had its time.
fn in_order<'a>(servers: &'a [Rc<DnsServer>], question: (&'a Name, bool)) -> Asked<'a> {
    Box::pin(async move {
        let Some((first, others)) = servers.split_first() else {
            return Err("no resolver".to_owned());
        };
        let (began, answers) = (Instant::now(), first.answers());
        let mut asked = pin!(first.look_up(question.0, question.1));
        if others.is_empty() {
            return asked.await;
        }
        match timeout(NEXT_AFTER, &mut asked).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(why)) => return in_order(others, question).await.map_err(|_| why),
            Err(_) => {}
        }
        let mut next = in_order(others, question);
        let mut later: Option<Result<Answer, String>> = None;
        loop {
            let preferred = match &later {
                Some(Ok(answer)) if answer.addresses.is_empty() => NOTHING_AFTER,
                _ => ADDRESSES_AFTER,
            };
            tokio::select! {
                said = &mut asked => return match (said, later) {
                    (Ok(answer), _) => Ok(answer),
                    (Err(why), Some(later)) => later.map_err(|_| why),
                    (Err(why), None) => next.await.map_err(|_| why),
                },
                said = &mut next, if later.is_none() => later = Some(said),
                () = sleep_until(began + preferred), if matches!(later, Some(Ok(_))) => {
                    first.missed(question.0, answers);
                    return later.unwrap_or_else(|| Err("no resolver".to_owned()));
                }
            }
        }
    })
}

/// Parses a name without restricting its characters (RFC 2181 section 11): underscores and bad
/// punycode occur in names.
///
/// # Errors
/// What is wrong with the name.
pub fn name(text: &str) -> Result<Name, String> {
    Name::from_ascii(text).map_err(|error| error.to_string())
}

/// The resolvers to query, and how names are looked up.
pub struct Configured {
    pub endpoints: Vec<AskedServer>,
    /// The search list of the system's resolvers.
    pub search: Vec<Name>,
    pub options: ResolverOpts,
}

/// The resolvers to query, and their options. `secure` is for those over TLS.
///
/// # Errors
/// If the system's resolvers are wanted and cannot be read.
pub fn configured(dns: &Dns, secure: Option<&SecureDns>) -> Result<Configured, String> {
    if dns.servers.is_empty() {
        let read = hickory_resolver::system_conf::read_system_conf();
        let (config, options) = read.map_err(|error| {
            format!("cannot read /etc/resolv.conf: {error}; [dns] servers names resolvers instead")
        })?;
        let (domain, search, servers) = config.into_parts();
        return Ok(Configured {
            endpoints: servers.into_iter().map(AskedServer::Clear).collect(),
            search: domain.into_iter().chain(search).collect(),
            options,
        });
    }
    let endpoints = dns.servers.iter().map(|server| endpoint(server, secure));
    let (endpoints, options) = (endpoints.collect::<Result<_, _>>()?, ResolverOpts::default());
    Ok(Configured { endpoints, search: Vec::new(), options })
}

/// A configured resolver. One over TLS is never asked in clear.
fn endpoint(server: &NameServer, secure: Option<&SecureDns>) -> Result<AskedServer, String> {
    let secure = match (&server.transport, secure) {
        (DnsTransport::Clear, _) => None,
        (_, Some(secure)) => secure.server(server)?,
        (_, None) => return Err(format!("{server}: no CA certificates were read")),
    };
    if let Some(server) = secure {
        return Ok(AskedServer::Secure(server));
    }
    let mut config = NameServerConfig::udp_and_tcp(server.address.ip());
    for connection in &mut config.connections {
        connection.port = server.address.port();
    }
    Ok(AskedServer::Clear(config))
}
