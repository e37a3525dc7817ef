//! Gathers evidence for one connection now, for a person who asks: without caches, without limits
//! for clients, in a runtime of its own.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout};

use crate::certificate::{Prober, Shown};
use crate::dns::resolved::Resolved;
use crate::dns::resolvers::Resolvers;
use crate::dns::secure::SecureDns;
use eyelet_config::Config;
use eyelet_tls::roots::EvidenceRoots;

/// Runs a question to its answer. Each has the timeout of `[evidence]`.
///
/// # Errors
/// If the kernel gives no event queue.
pub fn now<T>(question: impl Future<Output = T>) -> io::Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(LocalSet::new().run_until(question)))
}

/// The addresses of a name, IPv4 first: at most the eight that an access line shows.
///
/// # Errors
/// Why there is none.
pub async fn addresses(config: &Config, name: &str) -> Result<Vec<IpAddr>, String> {
    // If one family fails, the other is enough.
    let (four, six) = tokio::join!(resolve(config, name, false), resolve(config, name, true));
    let (four, six) = (four?, six?);
    let all = four.logged.addresses.iter().chain(&six.logged.addresses).copied();
    let all: Vec<IpAddr> = all.collect();
    let fault = four.fault().or(six.fault()).unwrap_or("the name has no address");
    if all.is_empty() { Err(fault.to_owned()) } else { Ok(all) }
}

/// True if `address` is one of the name's.
///
/// # Errors
/// Why that cannot be said.
pub async fn dns(config: &Config, name: &str, address: IpAddr) -> Result<bool, String> {
    let address = address.to_canonical();
    let resolved = resolve(config, name, address.is_ipv6()).await?;
    let has = resolved.has(address, now_ms(), config.evidence.history);
    has.ok_or_else(|| resolved.fault().unwrap_or("no answer").to_owned())
}

/// The certificate that `destination` shows for the name. If the client chose the destination
/// (`is_chosen`), internal addresses are asked only if a rule allows them, as by an edge.
///
/// # Errors
/// Why there is none.
pub async fn certificate(
    config: &Config,
    destination: SocketAddr,
    name: Option<&str>,
    is_chosen: bool,
) -> Result<Shown, String> {
    let roots = EvidenceRoots::new(config.evidence.ca.as_deref());
    let prober = roots.and_then(|roots| Prober::new(config, roots.store()));
    let prober = prober.map_err(|why| why.to_string())?;
    if let Some(why) = prober.declines(destination.ip()).filter(|_| is_chosen) {
        return Err(why);
    }
    let ask = async {
        let stream = TcpStream::connect(destination).await.map_err(|why| why.to_string())?;
        prober.ask(stream, destination.ip(), name, now_ms()).await
    };
    let asked = timeout(config.evidence.timeout, ask).await;
    asked.unwrap_or_else(|_| Err("no handshake in time".to_owned()))
}

async fn resolve(config: &Config, name: &str, v6: bool) -> Result<Resolved, String> {
    let wait = config.evidence.timeout;
    let secure = SecureDns::new(&config.dns).map_err(|why| format!("[dns] ca: {why}"))?;
    let resolvers = Resolvers::new(&config.dns, secure, wait, Arc::default());
    let mut question = resolvers.ask(name, v6, Instant::now() + wait)?;
    let mut resolved = question.next(None, now_ms, config.evidence.history).await;
    while !resolved.is_complete() {
        resolved = question.next(Some(&resolved), now_ms, config.evidence.history).await;
    }
    Ok(resolved)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
