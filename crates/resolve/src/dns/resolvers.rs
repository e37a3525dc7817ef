//! Queries for evidence: whether an address is one of a name's. Every configured resolver is
//! queried separately, because a CDN answers each of them differently. None speaks for another one:
//! if one fails, an address that the others do not have is unknown.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::dns::answer::Answer;
use crate::dns::resolved::{Resolved, merge};
use crate::dns::secure::SecureDns;
use crate::dns::server::{DnsServer, ServerMemory};
use crate::dns::servers::{self, Configured};
use eyelet_config::Dns;

/// The resolvers of a worker. Set up at the first name.
pub struct Resolvers {
    dns: Dns,
    secure: Option<Arc<SecureDns>>,
    timeout: Duration,
    memory: Arc<ServerMemory>,
    made: OnceCell<Result<Vec<Rc<DnsServer>>, String>>,
}

impl Resolvers {
    /// Resolvers for `dns`; nothing is read yet.
    pub fn new(
        dns: &Dns,
        secure: Option<Arc<SecureDns>>,
        timeout: Duration,
        memory: Arc<ServerMemory>,
    ) -> Self {
        Self { dns: dns.clone(), secure, timeout, memory, made: OnceCell::new() }
    }

    fn servers(&self) -> Result<&[Rc<DnsServer>], &str> {
        self.made.get_or_init(|| self.make()).as_deref().map_err(String::as_str)
    }

    /// Queries every resolver for the addresses of `name` of one family, until `deadline`.
    /// [`PendingQuery::next`] returns the answers as they arrive.
    pub fn ask(&self, name: &str, v6: bool, deadline: Instant) -> Result<PendingQuery, String> {
        let mut whole = servers::name(name)?;
        // The search list of this host must not extend it.
        whole.set_fqdn(true);
        let mut asked = JoinSet::new();
        for server in self.servers()? {
            let (name, server) = (whole.clone(), server.clone());
            asked.spawn_local(async move { server.look_up(&name, v6).await });
        }
        Ok(PendingQuery { asked, deadline })
    }

    fn make(&self) -> Result<Vec<Rc<DnsServer>>, String> {
        let Configured { endpoints, mut options, .. } =
            servers::configured(&self.dns, self.secure.as_deref())?;
        // A query takes the whole timeout: a late answer still counts.
        options.timeout = self.timeout;
        // It may be shorter than a sound answer takes.
        let make = |endpoint| DnsServer::new(endpoint, &options, &self.memory, false).map(Rc::new);
        endpoints.into_iter().map(make).collect()
    }
}

/// A question under way.
pub struct PendingQuery {
    asked: JoinSet<Result<Answer, String>>,
    deadline: Instant,
}

impl PendingQuery {
    /// Waits for one more answer and merges it into `before`.
    pub async fn next(
        &mut self,
        before: Option<&Resolved>,
        now_ms: impl Fn() -> u64,
        history: Duration,
    ) -> Resolved {
        let next = timeout_at(self.deadline, self.asked.join_next()).await;
        let (answer, complete) = match next {
            Err(_) => (Err("no answer in time".to_owned()), true),
            Ok(None) => (Err("no resolver".to_owned()), true),
            Ok(Some(Err(_))) => (Err("the query was dropped".to_owned()), false),
            Ok(Some(Ok(answer))) => (answer, false),
        };
        let complete = complete || self.asked.is_empty();
        merge(before, answer, complete, now_ms(), history)
    }
}
