//! Two edges: one beside the client, which begins TLS, and one beside the server, which ends it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::lab::{CERTIFICATE, KEY, LOCALHOST, Lab, Server};
use crate::run::compression::edge::eyelet;

/// The edge beside Apache. `effort` is its `compress_effort`.
pub fn far(lab: &Lab, upstream: SocketAddr, effort: &str) -> io::Result<Server> {
    start(lab, eyelet(lab)?, "far", |address| {
        format!(
            "[[listener]]\naddress = \"{address}\"\n[[rule]]\nname = \"svn\"\n\
             sni = \"{LOCALHOST}\"\naction = \"terminate\"\ncertificate = \"{CERTIFICATE}\"\n\
             key = \"{KEY}\"\nupstream = \"http://{upstream}\"\ncompress_effort = \"{effort}\"\n\
             dictionary = \"/svn/!svn/rvr/*/{{file}}\"\n"
        )
    })
}

/// The edge beside the client. `port` leads to the far one.
pub fn near(lab: &Lab, program: &Path, port: u16) -> io::Result<Server> {
    start(lab, program, "near", |address| {
        format!(
            "[[listener]]\nkind = \"plain\"\naddress = \"{address}\"\n[[rule]]\nname = \"svn\"\n\
             action = \"originate\"\nupstream = \"https://{LOCALHOST}:{port}\"\n\
             upstream_ca = \"{CERTIFICATE}\"\ncompress = \"on\"\n"
        )
    })
}

/// Starts an edge with a store of its own, and as many workers as it has by default.
fn start(
    lab: &Lab,
    program: &Path,
    name: &str,
    rest: impl Fn(SocketAddr) -> String,
) -> io::Result<Server> {
    let address = lab.free_address()?;
    let name = format!("{name}-{}", address.port());
    let file = lab.folder().join(format!("{name}.toml"));
    let shared = format!(
        "[limits]\nmemory_max = \"1GiB\"\n[dictionary]\npath = \"{name}\"\n\
         bytes_max = \"256MiB\"\n[log]\naccess = \"{name}.log\"\n"
    );
    fs::write(&file, shared + &rest(address))?;
    let command: Vec<OsString> = vec![program.into(), "serve".into(), file.into()];
    lab.start_server(&name, &command, address)
}
