//! Configuration: a TOML file in; one checked and indexed value, or every mistake with its place,
//! out. No tokio, no sockets. It reads the files that the configuration names.

#![allow(missing_docs)] // only the workspace uses it

mod acme;
mod admin;
pub mod certificate;
mod checked;
mod compression;
mod diagnostic;
mod elsewhere;
mod files;
mod fleet;
mod headers;
mod hold;
mod listen_address;
mod listeners;
pub mod lists;
mod load;
mod local;
mod matchers;
mod mint;
mod model;
mod originate;
pub mod pem;
mod reader;
mod requester;
mod requests;
mod rule;
mod rules;
mod sandbox;
mod secret;
mod settings;
#[cfg(test)]
mod tests;
mod trace;
mod upstreams;
pub mod users;
mod values;

pub use acme::{AcmeNames, AcmeSettings, ExternalAccount, external_account_key};
pub use admin::{AdminSettings, admin_token};
pub use certificate::CertificateFiles;
pub use checked::{Config, WatchedFile};
pub use diagnostic::{Diagnostic, Severity};
pub use files::{Depth, UnchangedPairs};
pub use fleet::{FleetSettings, RedisAddress, RedisTls, StoreAddress, fleet_secret};
pub use headers::Fields;
pub use hold::{HoldSettings, HoldWebhook};
pub use listen_address::{ListenAddress, is_loopback_host};
pub use lists::{ListFile, ListFiles, ListKind, RenewedList};
pub use load::{Loaded, load, load_next, parse};
pub use local::{LocalSettings, Permitted, is_loopback_name};
pub use mint::RunAuthority;
pub use model::{
    Access, Action, Balance, CONNECTIONS_MAX, CertificateSource, Compression, CompressionMode,
    DialSource, Dictionaries, Dns, EvidenceSettings, HELLO_BYTES_MAX, Hold, Host, HostPort,
    HttpAddress, HttpLimits, HttpUpstream, Limits, Listener, ListenerKind, LocalNames, LogFormat,
    LogSettings, Originate, ProxyProtocol, Refuse, Splice, SpliceUpstream, Terminate,
    TerminateUpstream, Tickets, TlsUpstream, UpstreamCheck, UpstreamFiles, UpstreamHttp2,
    UpstreamTls, Version,
};
pub use rules::{RuleList, RuleNames, RuleRef};
pub use sandbox::{SandboxAction, SandboxProfile, SandboxRule, sandbox_profile};
pub use secret::{SECRET_READ_BYTES_MAX, SecretSettings, SecretSource, secret_of_file};
pub use trace::{SecretFields, TraceEndpoint, TraceSettings, trace_fields};
pub use upstreams::{UPSTREAM_WAIT_MAX, UPSTREAMS_MAX};
pub use values::tls_version_code;
