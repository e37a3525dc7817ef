//! The arguments of `eyelet run` and `eyelet proxy`, and the examples of their help.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use eyelet_config::{Permitted, UPSTREAM_WAIT_MAX};
use serde::{Deserialize, Serialize};

use super::name::{LABEL_BYTES_MAX, LOCALHOST};
use super::ports::HTTPS;

/// Bytes of a name (RFC 1035 section 2.3.4), without the last dot.
const NAME_BYTES_MAX: usize = 253;

const RUN_EXAMPLES: &str = "\
Examples:
  eyelet run -- node server.js                 https://FOLDER.localhost:8443/, by the folder's name
  eyelet run --name api.localhost -- node api.js    a second one has the same port
  eyelet run --watch src -- npm start          starts it again when a file in src changes
  eyelet run --port 8000 -- python3 -m http.server 8000
  eyelet run --name app.example --certificate app.pem --key app.key -- ./server
  eyelet run --tcp --proxy-protocol -- python3 chat.py     not HTTP; the client's address first

The command finds the port to listen on in PORT. If it listens elsewhere, that is found too.
Requests that come while it restarts wait (--hold). SIGUSR1 prints the memory of TLS.
Exit status: the command's after SIGINT or SIGTERM; 126 or 127 if it cannot be started; else 1.";

const PROXY_EXAMPLES: &str = "\
Examples:
  eyelet proxy app.localhost=127.0.0.1:3000
  eyelet proxy app.localhost=http://127.0.0.1:3000 api.localhost=unix:/run/api.sock
  eyelet proxy --background api.localhost=127.0.0.1:8000     ends by `eyelet stop api.localhost`
  eyelet proxy --certificate app.pem --key app.key app.example=10.0.0.7:3000";

/// Arguments of `eyelet run`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    #[command(flatten)]
    pub(super) edge: EdgeArgs,
    /// The name in the URL and in the local certificate; by default that of this folder, as
    /// app.localhost, and in a worktree of git with its branch, as feature.app.localhost
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub(super) name: Option<String>,
    /// The port that the command listens on; without it a free one
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: Option<u16>,
    /// Let other machines of this network reach it, such as phones: `lan`, or an address of this
    /// machine. A page in the clear has the certificate that they must trust
    #[arg(long, value_name = "lan|ADDR", value_parser = share)]
    #[arg(conflicts_with_all = ["listen", "certificate", "tcp"])]
    pub(super) share: Option<IpAddr>,
    /// Start the command again when a file in this folder changes
    #[arg(long, value_name = "DIR")]
    pub(super) watch: Vec<PathBuf>,
    /// The command and its arguments; `--` marks its beginning
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

/// Arguments of `eyelet proxy`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = PROXY_EXAMPLES)]
pub struct ProxyArgs {
    #[command(flatten)]
    pub(super) edge: EdgeArgs,
    /// Go on in the background, until `eyelet stop NAME`
    #[arg(long, conflicts_with_all = ["listen", "certificate", "log"])]
    pub(super) background: bool,
    /// PEM file that verifies https:// applications: their authority, or their own certificate;
    /// without it the system's, and on this machine the local authority's and mkcert's
    #[arg(long, value_name = "PEM")]
    pub(super) upstream_ca: Option<PathBuf>,
    /// Says what is there instead.
    #[arg(long = "share", hide = true, value_parser = no_share)]
    _share: Option<String>,
    /// A name and its application: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:/PATH
    #[arg(required = true, value_name = "NAME=UPSTREAM", value_parser = site)]
    pub(super) sites: Vec<Site>,
}

/// Arguments of both.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct EdgeArgs {
    /// The address to listen at; by default 443 or 8443 or the next free port, on loopback for a
    /// name under localhost, else on all addresses; with 443 plain http on 80 is redirected
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(super) listen: Option<SocketAddr>,
    /// PEM file with the certificate chain; without it the local authority signs one
    #[arg(long, value_name = "PEM", requires = "key")]
    pub(super) certificate: Option<PathBuf>,
    /// PEM file with its key
    #[arg(long, value_name = "PEM", requires = "certificate")]
    pub(super) key: Option<PathBuf>,
    /// The folder of the local authority, as `[local] folder`; by default the user's own
    #[arg(long, value_name = "DIR", conflicts_with = "certificate")]
    pub(super) ca_folder: Option<PathBuf>,
    /// PEM file with authorities; clients must show a certificate that these signed
    #[arg(long, value_name = "PEM")]
    pub(super) client_ca: Option<PathBuf>,
    /// The time for which requests wait while the application accepts no connection; at most 10m
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = hold)]
    pub(super) hold: Duration,
    /// The application does not speak HTTP: it gets the bytes as they are, always from an address
    /// of this host (not from the client's: for that see --proxy-protocol)
    #[arg(long)]
    pub(super) tcp: bool,
    /// Send a PROXY v2 header first, with the client's address and the facts of TLS
    #[arg(long)]
    pub(super) proxy_protocol: bool,
    /// Write access lines to this file
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
}

impl EdgeArgs {
    /// True if the edge is for this command alone: it listens, or logs, where no other does, or
    /// has a certificate that may be for other names.
    pub(super) fn is_alone(&self) -> bool {
        self.listen.is_some() || self.certificate.is_some() || self.log.is_some()
    }
}

/// Arguments of `eyelet stop`.
#[derive(Clone, Debug, clap::Args)]
pub struct StopArgs {
    /// A name of an `eyelet run` or an `eyelet proxy`, as `eyelet list` shows it
    #[arg(value_name = "NAME", value_parser = host)]
    pub(super) name: String,
}

/// A name and its application.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Site {
    pub(super) name: String,
    pub(super) upstream: String,
}

fn site(text: &str) -> Result<Site, String> {
    const EXPECTED: &str = "expected a name and its application, such as";
    let (name, upstream) =
        text.split_once('=').ok_or_else(|| format!("{EXPECTED} app.localhost=127.0.0.1:3000"))?;
    let bare = upstream.strip_prefix(':').unwrap_or(upstream);
    if bare.bytes().all(|byte| byte.is_ascii_digit()) {
        let port = if bare.is_empty() { "3000" } else { bare };
        return Err(format!("{EXPECTED} {name}=127.0.0.1:{port}"));
    }
    // `http://127.0.0.1:3000/` is what a browser shows of it.
    let slash = if upstream.starts_with("unix:") { None } else { upstream.strip_suffix('/') };
    // Of several sites none is meant without a name.
    let host = name_of(name, ", and with one application only")?;
    Ok(Site { name: host, upstream: slash.unwrap_or(upstream).to_owned() })
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an address and a port, such as 127.0.0.1:8443 or 0.0.0.0:443".to_owned()
    })
}

/// The address of this machine by which others reach it.
fn share(text: &str) -> Result<IpAddr, String> {
    let ip = match text {
        "lan" => eyelet_sys::interfaces::own_address().map(IpAddr::from).ok_or(
            "this machine has no default route; say its address in the network, as \
             --share 192.168.1.5",
        )?,
        text => text.parse().map_err(|_| {
            "expected lan, or an address of this machine, such as 192.168.1.5".to_owned()
        })?,
    };
    if ip.is_loopback() {
        return Err(format!(
            "{ip} is this machine alone: say lan, or the address by which others reach it, such \
             as 192.168.1.5"
        ));
    }
    if !Permitted::default().has_address(ip) {
        return Err(format!(
            "{ip} is no address of a private network, and the local authority signs no other: say \
             --listen {}, with --certificate and --key",
            SocketAddr::new(ip, HTTPS[1])
        ));
    }
    // Not with the port of the edge, which is chosen later.
    if let Err(error) = TcpListener::bind((ip, 0))
        && error.kind() == ErrorKind::AddrNotAvailable
    {
        let family = if ip.is_ipv4() { 4 } else { 6 };
        return Err(format!(
            "{ip} is not an address of this machine; `ip -{family} addr` lists them"
        ));
    }
    Ok(ip)
}

fn no_share(_: &str) -> Result<String, String> {
    Err("this is for `eyelet run`; here say --listen with an address of this machine, such as \
         --listen 192.168.1.5:8443"
        .into())
}

fn hold(text: &str) -> Result<Duration, String> {
    let hold = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match hold <= UPSTREAM_WAIT_MAX {
        true => Ok(hold),
        false => Err(format!("expected at most {}", humantime::format_duration(UPSTREAM_WAIT_MAX))),
    }
}

/// Reads the name of a project.
pub fn host(text: &str) -> Result<String, String> {
    name_of(text, "")
}

/// A name; one without a dot is below `localhost`. `provided` ends the advice of how to serve an
/// address.
fn name_of(text: &str, provided: &str) -> Result<String, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        let listen = SocketAddr::new(ip, HTTPS[1]);
        let how = match Permitted::default().has_address(ip) {
            true => format!("say --listen {listen}"),
            false => format!(
                "the local authority does not sign this one: give --certificate and --key, with \
                 --listen {listen}"
            ),
        };
        return Err(format!(
            "clients send no name for an address; {how} and a name such as app.localhost{provided}"
        ));
    }
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label) {
        true if text.contains('.') || text.eq_ignore_ascii_case(LOCALHOST) => {
            Ok(text.to_ascii_lowercase())
        }
        true => Ok(format!("{}.{LOCALHOST}", text.to_ascii_lowercase())),
        false => Err("expected a host name, such as app.localhost".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn sites() {
        let found = site("App.localhost=unix:/run/a=b.sock").expect("a site");
        assert_eq!(found.name, "app.localhost");
        assert_eq!(found.upstream, "unix:/run/a=b.sock");
        let found = site("app.localhost=http://127.0.0.1:3000/").expect("a site");
        assert_eq!(found.upstream, "http://127.0.0.1:3000");
        for (short, name) in [("App=a:1", "app.localhost"), ("localhost=a:1", "localhost")] {
            assert_eq!(site(short).expect(short).name, name);
        }
        for bad in ["app", "app=", "=127.0.0.1:1", "a b=127.0.0.1:1", "a..b=1", "\"=1"] {
            assert!(site(bad).is_err(), "{bad:?}");
        }
        for (address, is_signed) in [
            ("192.168.1.5", true),
            ("[fd00::5]", true),
            ("192.0.2.1", false),
            ("[2001:db8::1]", false),
            ("0.0.0.0", false),
            ("::", false),
        ] {
            let how =
                if is_signed { "say --listen " } else { "give --certificate and --key, with " };
            let said = host(address).unwrap_err();
            assert!(said.contains(how) && said.ends_with(" app.localhost"), "{said}");
            let said = site(&format!("{address}=127.0.0.1:1")).unwrap_err();
            assert!(said.contains(how) && said.ends_with("one application only"), "{said}");
        }
        for port in ["8000", ":8000"] {
            let said = site(&format!("app={port}")).unwrap_err();
            assert!(said.ends_with("such as app=127.0.0.1:8000"), "{said}");
        }
    }

    #[test]
    fn the_command_begins_at_its_first_word_or_behind_two_dashes() {
        #[derive(Parser)]
        struct Typed {
            #[command(flatten)]
            run: RunArgs,
        }
        let read = |line: &str| Typed::try_parse_from(line.split(' ')).map(|typed| typed.run);
        for line in ["run --tcp node a.js --tcp -- b", "run --tcp -- node a.js --tcp -- b"] {
            let args = read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(args.command, ["node", "a.js", "--tcp", "--", "b"], "{line}");
            assert!(args.edge.tcp);
        }
        for line in ["run", "run --", "run --prot 3000 node", "run --listen 8443 node"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
