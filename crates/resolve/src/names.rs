//! The parts of a process and of each of its workers that look names up and gather evidence.

use std::rc::Rc;
use std::sync::Arc;

use crate::dns::resolver::Resolver;
use crate::dns::resolvers::Resolvers;
use crate::evidence::EvidenceStore;
use crate::loops::Loops;
use crate::ports::PortShortage;
use crate::system::SystemDns;
use eyelet_balance::table::Table;
use eyelet_config::Config;
use eyelet_engine::worker::Worker;
use eyelet_memory::budget::Budget;

/// The part that all workers share.
#[derive(Clone)]
pub struct SharedNames {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// The addresses at which this process listens and those that it dialled, to notice loops.
    pub loops: Loops,
    /// Evidence for names, and the addresses of names that are dialled.
    pub evidence: EvidenceStore,
    /// The load and the health of upstreams in lists.
    pub upstreams: Arc<Table>,
    /// Memory that connections hold, in all workers.
    pub budget: Arc<Budget>,
    /// The version of the system's hosts and resolvers.
    pub system: SystemDns,
}

/// The state of one worker.
pub struct Names {
    /// The part that all workers share.
    pub shared: Arc<SharedNames>,
    /// The worker itself, for its clock.
    pub engine: Rc<Worker>,
    /// Looks up names that are dialled.
    pub resolver: Rc<Resolver>,
    /// The resolvers for evidence. Each is queried separately.
    pub resolvers: Rc<Resolvers>,
    /// The last upstream for which no local port was left.
    pub shortage: PortShortage,
    /// The version of the system's files that both were made from.
    system: u64,
}

impl Names {
    /// The state before the first query. No file is read.
    pub fn new(shared: Arc<SharedNames>, engine: Rc<Worker>) -> Self {
        let config = &shared.config;
        let servers = || shared.evidence.servers.clone();
        let secure = || shared.evidence.secure_dns.clone();
        let resolver = Rc::new(Resolver::new(&config.dns, secure(), servers()));
        let timeout = config.evidence.timeout;
        let resolvers = Rc::new(Resolvers::new(&config.dns, secure(), timeout, servers()));
        let system = shared.system.version();
        let shortage = PortShortage::default();
        Self { shared, engine, resolver, resolvers, shortage, system }
    }

    /// Returns the names under a new configuration. They keep their resolvers where they stay as
    /// they are, in the configuration and in the system's files.
    #[must_use]
    pub fn reloaded(&self, shared: Arc<SharedNames>) -> Self {
        let (old, new) = (&self.shared.config, &shared.config);
        let system = shared.system.version();
        let trusts_as = match (&self.shared.evidence.secure_dns, &shared.evidence.secure_dns) {
            (Some(old), Some(new)) => old.trusts_as(new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !trusts_as
            || (&old.dns, old.evidence.timeout, self.system)
                != (&new.dns, new.evidence.timeout, system)
        {
            return Self::new(shared, self.engine.clone());
        }
        let (resolver, resolvers) = (self.resolver.clone(), self.resolvers.clone());
        let (engine, shortage) = (self.engine.clone(), PortShortage::default());
        Self { shared, engine, resolver, resolvers, shortage, system }
    }
}
