//! The sources of the certificates of a terminate rule: files, this process, or another one.

/// The source of the certificates of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CertificateSource {
    /// Files, in `RuleList::certificates`.
    #[default]
    Files,
    /// `"local"`: one for each name, signed by the local certificate authority.
    Local(LocalNames),
    /// `"mint"`: one for each certificate of an origin, signed by the authority of the rule, whose
    /// files are in `RuleList::certificates`.
    Mint,
    /// `"spiffe"`: the one that the SPIFFE Workload API has sent last.
    Spiffe,
    /// `"acme"`: one for each name, ordered from an ACME server.
    Acme {
        /// True if a name is ordered when a client first asks for it.
        on_demand: bool,
    },
}

/// The names that the local certificate authority signs for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalNames {
    /// The rule lists names, so each name that gets there is listed.
    Listed,
    /// The rule takes any name: only those of this machine are signed.
    Loopback,
}
