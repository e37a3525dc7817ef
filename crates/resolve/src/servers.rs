//! DNS servers. A query is sent a second time if the first answer is late, and aliases are followed
//! to their end.

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

/// Most queries under way on one connection to a resolver.
const QUESTIONS_A_CONNECTION: usize = 256;

/// One resolver, or several of which the first answer counts.
pub struct Servers {
    first: Handle,
    /// A second handle, because one handle merges equal queries.
    again: Handle,
    again_after: Duration,
    options: DnsRequestOptions,
}

type Handle = RetryDnsHandle<NameServerPool<TokioRuntimeProvider>>;

/// A response, or the negative TTL if there are no records.
type Said = Result<DnsResponse, u32>;

impl Servers {
    /// Sets `servers` up. Nothing is sent yet.
    ///
    /// # Errors
    /// Only resolvers over TLS can fail here, and there are none.
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

    /// Sends a query. A datagram may be lost, and hickory's backoff grows with recent timeouts. So
    /// after half of the time the query is sent once more, and the first answer to either counts.
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
    /// Why they are unknown.
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
        // A missing name, or one without an address, is an answer.
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
            Ok(Err(none.negative_ttl.unwrap_or(0)))
        }
        Err(error) => Err(fault(&error)),
    }
}

/// Why a question has no answer, for the log.
fn fault(error: &NetError) -> String {
    match error {
        NetError::NoConnections | NetError::Timeout => "no resolver answered".into(),
        NetError::Io(error) => format!("no resolver answered: {error}"),
        error => error.to_string(),
    }
}

/// Parses a name without restricting its characters (RFC 2181 section 11): underscores and bad
/// punycode occur in names.
///
/// # Errors
/// What is wrong with the name.
pub fn name(text: &str) -> Result<Name, String> {
    Name::from_ascii(text).map_err(|error| error.to_string())
}

/// The resolvers to query, and their options.
///
/// # Errors
/// If the system's resolvers are wanted and cannot be read.
pub fn configured(dns: &Dns) -> Result<(ResolverConfig, ResolverOpts), String> {
    if dns.servers.is_empty() {
        let read = hickory_resolver::system_conf::read_system_conf();
        return read.map_err(|error| {
            format!("cannot read /etc/resolv.conf: {error}; [dns] servers names resolvers instead")
        });
    }
    let servers = dns.servers.iter().copied().map(server).collect();
    Ok((ResolverConfig::from_name_servers(servers), ResolverOpts::default()))
}

/// The resolver at an address.
fn server(address: SocketAddr) -> NameServerConfig {
    let mut config = NameServerConfig::udp_and_tcp(address.ip());
    for connection in &mut config.connections {
        connection.port = address.port();
    }
    config
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
