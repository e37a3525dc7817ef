//! The arguments of `eyelet explain`, except for those that say what is known of the name.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use eyelet_config::tls_version_code;
use eyelet_wire::connect::{ConnectFault, Target};
use eyelet_wire::hello::Transport;

use super::evidence::EvidenceArgs;

const EXAMPLES: &str = "\
Examples:
  eyelet explain edge.toml --sni app.example --alpn h2
  eyelet explain edge.toml --connect packages.example:443      the hello has the same name
  eyelet explain edge.toml --sni bank.example --destination 192.0.2.7:443 --ask
  eyelet explain agent.toml --profile agent --sni forge.example --method POST --path /org/x
  eyelet explain edge.toml --quic first.pcap                   the hello in QUIC's datagrams
  tail -n 1 access.log | eyelet explain edge.toml --log-line -

Exit status: 0, whatever the verdict is; 2 if FILE has mistakes or a flag is wrong.";

/// Arguments of `eyelet explain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The configuration
    pub file: PathBuf,
    /// A profile of FILE, for a command in a sandbox; the command dials the name of --sni at port
    /// 443, or HOST:PORT of --connect
    #[arg(long, value_name = "NAME", conflicts_with_all = ["listener", "log_line", "quic", "client",
        "proxy_user", "client_cert", "peer_uid", "peer_cgroup", "ask", "true_by", "false_by",
        "certificate_names", "certificate_issuer"])]
    pub profile: Option<String>,
    /// The name in the hello; by default the host of --connect, else a hello without a name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["no_sni", "sni_malformed"])]
    pub sni: Option<String>,
    /// A hello without a name
    #[arg(long, conflicts_with = "sni_malformed")]
    pub no_sni: bool,
    /// A hello whose name cannot be read
    #[arg(long)]
    pub sni_malformed: bool,
    /// The protocols that the client offers, such as h2,http/1.1
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub alpn: Vec<String>,
    /// The client's address; by default 127.0.0.1
    #[arg(long, value_name = "IP")]
    pub client: Option<IpAddr>,
    /// The address to which the client wanted to go; by default the listener's address, if it is a
    /// single one
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub destination: Option<SocketAddr>,
    /// The target of the client's CONNECT
    #[arg(long, value_name = "HOST:PORT", value_parser = target)]
    pub connect: Option<Target>,
    /// The user that the client names to the proxy, with its token
    #[arg(long, value_name = "NAME")]
    pub proxy_user: Option<String>,
    /// The common name in the certificate that the client shows to the proxy
    #[arg(long, value_name = "NAME")]
    pub client_cert: Option<String>,
    /// The user of the process at a Unix socket
    #[arg(long, value_name = "UID", conflicts_with = "client")]
    pub peer_uid: Option<u32>,
    /// The cgroup of the process at a Unix socket
    #[arg(long, value_name = "PATH")]
    pub peer_cgroup: Option<String>,
    /// The listener, by its name or its address; by default the first that fits
    #[arg(long, value_name = "ADDRESS|NAME")]
    pub listener: Option<String>,
    /// The highest TLS version that the client offers
    #[arg(long, value_name = "VERSION", default_value = "1.3", value_parser = tls_version_code)]
    pub tls_version_max: u16,
    /// A hello with the ECH extension
    #[arg(long)]
    pub ech: bool,
    /// A hello that offers TLS compression
    #[arg(long)]
    pub tls_compression: bool,
    /// The client's JA4 fingerprint; by default it is unknown
    #[arg(long, value_name = "FINGERPRINT")]
    pub ja4: Option<String>,
    /// The method of a request on the connection; by default GET, if there is a --path
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// The path of a request on the connection; by default "/", if there is a --method
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// The protocol that carries the connection: tcp or quic
    #[arg(long, value_name = "PROTOCOL", default_value_t = Transport::Tcp,
        value_parser = transport, conflicts_with = "connect")]
    pub transport: Transport,
    /// A file with the first datagrams of a QUIC connection, in hex or as a capture (pcap): asks
    /// about their hello
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sni", "no_sni", "sni_malformed",
        "connect", "alpn", "tls_version_max", "ech", "tls_compression", "ja4", "log_line"])]
    pub quic: Option<PathBuf>,
    /// A line of the access log, or "-" to read one: asks about its connection
    #[arg(long, value_name = "LINE", conflicts_with_all = ["sni", "no_sni", "sni_malformed",
        "connect", "listener", "destination", "alpn", "client", "tls_version_max",
        "tls_compression", "ja4", "transport"])]
    pub log_line: Option<String>,
    /// Gather evidence now: ask DNS and the destination
    #[arg(long)]
    pub ask: bool,
    /// The facts about the name.
    #[command(flatten)]
    pub evidence: EvidenceArgs,
}

/// Reads the target of a CONNECT.
pub(super) fn target(text: &str) -> Result<Target, String> {
    Target::new(text.as_bytes()).map_err(|fault| match fault {
        ConnectFault::Target => "expected HOST:PORT, such as app.example:443".to_owned(),
        fault => fault.to_string(),
    })
}

fn transport(text: &str) -> Result<Transport, &'static str> {
    let known = [Transport::Quic, Transport::Tcp];
    known.into_iter().find(|it| it.to_string() == text).ok_or("expected \"quic\" or \"tcp\"")
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let expected = |_| "expected IP:PORT, such as 192.0.2.7:443 or [2001:db8::7]:443".to_owned();
    text.parse().map_err(expected)
}
