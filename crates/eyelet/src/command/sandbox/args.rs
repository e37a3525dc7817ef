//! The arguments of `eyelet sandbox`, as clap reads them.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

/// Arguments of `eyelet sandbox`.
#[derive(Clone, Debug, clap::Args)]
#[command(override_usage = "eyelet sandbox [--allow FILE] [--learn FILE] [OPTIONS] -- COMMAND...")]
pub struct SandboxArgs {
    /// A list of what the command may reach, an entry a line: a.example (by TLS at port 443, by
    /// HTTP at port 80), .a.example (also the names below it), a.example:8443, and
    /// `tcp a.example:5432` for other protocols; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(super) allow: Vec<PathBuf>,
    /// Let the command reach every public name by TLS and HTTP, at ports 443 and 80 and those of
    /// this list, and add to it the names that it has reached, and those that were refused because
    /// no entry has their port; what stands in it stays, and is allowed
    #[arg(long, value_name = "FILE")]
    pub(super) learn: Option<PathBuf>,
    /// Let connections by TLS to a name that is not on the list wait until somebody decides, by
    /// `eyelet held` in another terminal
    #[arg(long)]
    pub(super) ask: bool,
    /// A configuration with profiles, each a table [sandbox.NAME]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The profile of --config to use, together with the other options
    #[arg(long, value_name = "NAME")]
    pub(super) profile: Option<String>,
    /// Refuse no name and no request, and say at the end what would have been refused
    #[arg(long)]
    pub(super) dry_run: bool,
    /// A network of private addresses to which names may lead; may be given several times
    #[arg(long, value_name = "NET", value_parser = net)]
    pub(super) allow_private: Vec<IpNet>,
    /// Write a report to this file at the end, as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Write events to standard error as JSON, a line each, in place of the summary
    #[arg(long)]
    pub(super) json: bool,
    /// Run nothing, and print the variables by which programs trust the authority of a run, as
    /// lines of a shell
    #[arg(long)]
    pub(super) print_env: bool,
    /// The other end's descriptor, for the process inside
    #[arg(long, hide = true)]
    pub(super) inside: Option<u32>,
    /// The command and its arguments
    #[arg(required_unless_present_any = ["inside", "print_env"], trailing_var_arg = true)]
    #[arg(value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl SandboxArgs {
    /// True if a program reads what is said.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// The descriptor of the process inside, if this is that.
    pub(crate) fn inside(&self) -> Option<u32> {
        self.inside
    }
}

/// A network, or an address alone.
fn net(text: &str) -> Result<IpNet, String> {
    let ip = |_| text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(ip).map_err(|_| "expected a network, such as 10.0.0.0/8".into())
}
