//! Configuration: a TOML file in, one checked and indexed value out, or every mistake with its
//! place. No tokio, no sockets; it reads the files that the configuration names.

pub mod certificate;
mod checked;
mod compression;
mod diagnostic;
mod files;
mod listeners;
mod load;
mod matchers;
mod model;
mod reader;
mod rule;
mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod values;

pub use certificate::CertificateFiles;
pub use checked::Config;
pub use diagnostic::{Diagnostic, Severity};
pub use files::Depth;
pub use load::{Loaded, load, parse};
pub use model::{
    Access, Action, Compression, Dictionaries, Dns, EvidenceSettings, HELLO_BYTES_MAX, Host,
    HostPort, Http, HttpAddress, HttpUpstream, Limits, Listener, ListenerKind, Log, ProxyProtocol,
    Refuse, Source, Splice, SpliceUpstream, Terminate, TerminateUpstream, TlsVersion,
    UpstreamHttp2, UpstreamTls,
};
pub use rules::{Rule, RuleList, RuleNames};
pub use values::tls_version_code;
