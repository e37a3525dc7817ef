//! The question about a command in a sandbox: the edge's configuration for its profile, and the
//! destination as flags of that edge.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use eyelet_config::{Config, sandbox_profile};
use eyelet_sandbox::{RunServing, StandIns, read_lists};
use eyelet_wire::connect::{Target, TargetHost};
use eyelet_wire::hello::Transport;

use super::args::ExplainArgs;

/// The port of a name without one.
const HTTPS: u16 = 443;
/// The addresses at which a sandbox has sockets.
const INSIDE: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// A question that is ready, or its answer.
pub(super) enum ProfileQuestion {
    /// The rules decide it.
    ByRules(Box<(ExplainArgs, Config)>),
    /// No rule is asked: the answer is printed.
    Answered,
}

/// Reads the profile, and puts the question to the edge that would serve it.
///
/// # Errors
/// The mistakes of the profile and of its lists, as lines. The outer error is that of `out`.
pub(super) fn ask(
    args: &ExplainArgs,
    name: &str,
    out: &mut impl Write,
) -> io::Result<Result<ProfileQuestion, String>> {
    let (serving_config, dialled) = match read(args, name) {
        Ok(read) => read,
        Err(mistakes) => return Ok(Err(mistakes)),
    };
    let Dialled { host, to, is_listening, has_quic, exists } = dialled;
    if !exists {
        writeln!(out, "dns:     {host} does not exist inside: it is not on the list")?;
    }
    let port = to.port();
    if !is_listening {
        writeln!(
            out,
            "port:    the kernel refuses {port}: no entry of the list has it; --connect HOST:PORT \
             or --destination IP:PORT asks for another port"
        )?;
        return Ok(Ok(ProfileQuestion::Answered));
    }
    if args.transport == Transport::Quic && !has_quic {
        writeln!(out, "port:    the kernel refuses QUIC at {port}: clients go on by TCP")?;
        return Ok(Ok(ProfileQuestion::Answered));
    }
    let sni = args.sni.clone().or(Some(host)).filter(|host| host.parse::<IpAddr>().is_err());
    let listener = SocketAddr::new(INSIDE[usize::from(to.is_ipv6())], port);
    let args = ExplainArgs {
        sni: sni.filter(|_| !args.no_sni && !args.sni_malformed),
        destination: Some(to),
        connect: None,
        listener: Some(listener.to_string()),
        ..args.clone()
    };
    Ok(Ok(ProfileQuestion::ByRules(Box::new((args, serving_config)))))
}

/// The place that the command dials.
struct Dialled {
    /// The name, or the address.
    host: String,
    /// The address inside.
    to: SocketAddr,
    /// True if the sandbox has a socket at the port.
    is_listening: bool,
    /// True if it has one of QUIC there.
    has_quic: bool,
    /// True if the name can be looked up.
    exists: bool,
}

fn read(args: &ExplainArgs, name: &str) -> Result<(Config, Dialled), String> {
    let lines =
        |mistakes: Vec<_>| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let profile = sandbox_profile(&args.file, name).map_err(lines)?;
    let (list, _) = read_lists(&profile)?;
    let serving = RunServing::new(&profile, &list, profile.dry_run, Path::new("/dev/null"));
    serving.with_list_to_come(&profile).check(&profile.secrets)?;
    let ports = serving.checked_ports()?;
    let each = |port: &u16| INSIDE.map(|ip| SocketAddr::new(ip, *port));
    let addresses: Vec<SocketAddr> = ports.iter().flat_map(each).collect();
    let mut stand_ins = StandIns::default();
    let config = serving.config(&addresses, &mut stand_ins, None)?;
    let (host, port) = match (&args.connect, &args.sni, args.destination) {
        (Some(Target { host: TargetHost::Name(name), port }), ..) => {
            (name.as_str().to_owned(), *port)
        }
        (Some(Target { host: TargetHost::Ip(ip), port }), ..) => (ip.to_string(), *port),
        (None, _, Some(to)) => (to.ip().to_string(), to.port()),
        (None, Some(name), None) => (name.to_ascii_lowercase(), HTTPS),
        (None, None, None) => {
            return Err("--profile needs what the command dials: --sni NAME, or --connect \
                        HOST:PORT for another port"
                .to_owned());
        }
    };
    let ip = host.parse().ok();
    let stand_in = || stand_ins.of(&host).map(|(v4, _)| IpAddr::V4(v4));
    let ip = ip.or_else(stand_in).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let dialled = Dialled {
        exists: serving.lets_all_pass
            || serving.asks
            || host.parse::<IpAddr>().is_ok()
            || list.has(&host),
        is_listening: ports.contains(&port),
        has_quic: serving.quic_ports().contains(&port),
        to: SocketAddr::new(ip, port),
        host,
    };
    Ok((config, dialled))
}
