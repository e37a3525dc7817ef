//! DNS servers: a question asked twice where the first answer is late, and aliases followed to
//! their end. It must not know why a name is asked for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::xfer::{DnsHandle, FirstAnswer, RetryDnsHandle};
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{DnsRequestOptions, DnsResponse, Query};
use hickory_resolver::proto::rr::Name;
use hickory_resolver::{NameServerPool, PoolContext, TlsConfig};

use crate::answer::{Answer, Question};
use eyelet_config::Dns;

/// Questions under way on one connection to a resolver.
const QUESTIONS_A_CONNECTION: usize = 256;

/// One resolver, or several: the first answer counts.
pub struct Servers {
    first: Handle,
    /// Of its own, as one would not ask twice what it is asking.
    again: Handle,
    again_after: Duration,
    options: DnsRequestOptions,
}

type Handle = RetryDnsHandle<NameServerPool<TokioRuntimeProvider>>;

/// A response, or the TTL of that there is nothing.
type Said = Result<DnsResponse, u32>;

impl Servers {
    /// Whom `servers` are; nobody is asked yet.
    ///
    /// # Errors
    /// Never, as long as resolvers are asked without TLS.
    pub fn new(servers: Vec<NameServerConfig>, mut options: ResolverOpts) -> Result<Self, String> {
        options.max_active_requests = QUESTIONS_A_CONNECTION;
        let mut asked = DnsRequestOptions::default();
        asked.use_edns = options.edns0;
        let handle = || {
            let tls = TlsConfig::new().map_err(|error| error.to_string())?;
            let context = Arc::new(PoolContext::new(options.clone(), tls));
            let provider = TokioRuntimeProvider::default();
            let pool = NameServerPool::from_config(servers.clone(), context, provider);
            Ok::<_, String>(RetryDnsHandle::new(pool, options.attempts))
        };
        let (first, again, again_after) = (handle()?, handle()?, options.timeout / 2);
        Ok(Self { first, again, again_after, options: asked })
    }

    /// What is said to a question. A datagram may be lost, and the library waits the longer to
    /// send another the more names there were of which it heard nothing: so half of the time is
    /// for asking once more, and what comes first of either counts.
    async fn ask(&self, query: &Query) -> Result<Said, String> {
        let first = said(&self.first, query, self.options);
        let again = async {
            tokio::time::sleep(self.again_after).await;
            said(&self.again, query, self.options).await
        };
        tokio::pin!(first);
        tokio::select! {
            said = &mut first => said,
            Ok(said) = again => Ok(said),
        }
    }

    /// The addresses of a name, of one family.
    ///
    /// # Errors
    /// Why that cannot be known.
    pub async fn look_up(&self, name: &Name, v6: bool) -> Result<Answer, String> {
        let mut question = Question::new(name.clone(), v6);
        loop {
            let query = match question.query() {
                Ok(query) => query,
                Err(answer) => return Ok(answer),
            };
            let answer = match self.ask(&query).await? {
                Ok(response) => question.read(&response)?,
                Err(negative_ttl_secs) => Some(question.nothing(negative_ttl_secs)),
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }
}

async fn said(handle: &Handle, query: &Query, options: DnsRequestOptions) -> Result<Said, String> {
    match handle.lookup(query.clone(), options).first_answer().await {
        Ok(response) => Ok(Ok(response)),
        // That there is no such name, or no address of it, is an answer.
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            Ok(Err(none.negative_ttl.unwrap_or(0)))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A name as it stands (RFC 2181 section 11): underscores and bad punycode are in names too.
///
/// # Errors
/// What is wrong with it.
pub fn name(text: &str) -> Result<Name, String> {
    Name::from_ascii(text).map_err(|error| error.to_string())
}

/// The resolvers to ask, and how.
///
/// # Errors
/// If the system's are wanted and cannot be had.
pub fn configured(dns: &Dns) -> Result<(ResolverConfig, ResolverOpts), String> {
    if dns.servers.is_empty() {
        let read = hickory_resolver::system_conf::read_system_conf();
        return read.map_err(|error| error.to_string());
    }
    let servers = dns.servers.iter().copied().map(server).collect();
    Ok((ResolverConfig::from_name_servers(servers), ResolverOpts::default()))
}

/// A resolver at an address.
fn server(address: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut config.connections {
        connection.port = address.port();
    }
    config
}
