//! Configuration: a TOML file in; one checked and indexed value, or every mistake with its place,
//! out. No tokio, no sockets. It reads the files that the configuration names.

#![allow(missing_docs)] // only the workspace uses it

mod checked;
mod load;
mod model;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod rule;
mod rules;
mod sections;
mod settings;
#[cfg(test)]
mod tests;

pub use checked::{Config, WatchedFile};
pub use eyelet_document::diagnostic::{Diagnostic, Severity};
pub use eyelet_files::{Depth, UnchangedPairs, users};
pub use eyelet_pki::certificate::CertificateFiles;
pub use eyelet_wire::hello::HostName;
pub use load::{Loaded, load, load_next, parse};
pub use model::dns::{Dns, DnsTransport, NameServer};
pub use model::headers::Fields;
pub use model::limits::{CONNECTIONS_MAX, HELLO_BYTES_MAX, HttpLimits, Limits};
pub use model::listen_address::{ListenAddress, is_loopback_host};
pub use model::values::tls_version_code;
pub use model::{
    Access, Action, Balance, CertificateSource, Compression, CompressionMode, DialSource,
    Dictionaries, EvidenceSettings, Hold, Host, HostPort, HttpAddress, HttpUpstream, Listener,
    ListenerKind, LocalNames, LogFormat, LogSettings, Originate, ProxyProtocol, RefusalAlert,
    Refuse, Splice, SpliceUpstream, Terminate, TerminateUpstream, Tickets, TlsUpstream,
    UpstreamCheck, UpstreamFiles, UpstreamHttp2, UpstreamTls, Version,
};
pub use rules::lists;
pub use rules::lists::{ListFile, ListFiles, ListKind, RenewedList};
pub use rules::mint::RunAuthority;
pub use rules::upstreams::{UPSTREAM_WAIT_MAX, UPSTREAMS_MAX};
pub use rules::{RuleList, RuleNames, RuleRef};
pub use sections::acme::{AcmeNames, AcmeSettings, ExternalAccount, external_account_key};
pub use sections::admin::{AdminSettings, admin_token};
pub use sections::fleet::{FleetSettings, RedisAddress, RedisTls, StoreAddress, fleet_secret};
pub use sections::hold::{HoldSettings, HoldWebhook};
pub use sections::sandbox::{
    SandboxAction, SandboxNames, SandboxProfile, SandboxRule, sandbox_names, sandbox_profile,
};
pub use sections::secret::{SECRET_READ_BYTES_MAX, SecretSettings, SecretSource, secret_of_file};
pub use sections::spiffe::{SPIFFE_SOCKET_VARIABLE, SpiffeSettings};
pub use sections::trace::{SecretFields, TraceEndpoint, TraceSettings, trace_fields};
pub use settings::local::{LocalSettings, Permitted, is_loopback_name};
