//! An edge that compresses, and the common parts of the compression scenarios: request fields,
//! waits, and columns.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::web::WebClient;
use crate::board::Column;
use crate::lab::{LOCALHOST, Lab, Server, host_name};

/// An edge in front of one upstream.
pub struct EdgeProcess {
    pub server: Server,
    pub address: SocketAddr,
    pub file: PathBuf,
}

impl EdgeProcess {
    pub fn start(lab: &Lab, upstream: SocketAddr, terms: &str) -> io::Result<Self> {
        let address = lab.free_address()?;
        let file = lab.folder().join(format!("compression-{}.toml", address.port()));
        let name = format!("store-{}", address.port());
        // The edge's dictionary folder, to which dictionaries are added while it runs.
        std::fs::create_dir(lab.folder().join(&name))?;
        let text = format!(
            "workers = 1\n[[listener]]\naddress = \"{address}\"\n[[rule]]\nname = \"app\"\n\
             sni = [\"{}\", \"{LOCALHOST}\"]\naction = \"terminate\"\ncertificate = \"{}\"\n\
             key = \"{}\"\nupstream = \"http://{upstream}\"\n{terms}[dictionary]\n\
             path = \"{name}\"\n[log]\naccess = \"access-{}.log\"\n",
            host_name(0),
            crate::lab::CERTIFICATE,
            crate::lab::KEY,
            address.port()
        );
        std::fs::write(&file, text)?;
        let command: Vec<OsString> = vec![eyelet(lab)?.into(), "serve".into(), file.clone().into()];
        let server = lab.start_server("eyelet-compression", &command, address)?;
        Ok(Self { server, address, file })
    }

    pub async fn client(&self) -> io::Result<WebClient> {
        WebClient::open(self.address).await
    }

    /// Trains from the edge's own log. Returns the command's output. A running edge offers the
    /// dictionary 2 s later.
    pub async fn train(&self, lab: &Lab, more: &[&str]) -> io::Result<String> {
        // The log is written in batches, so wait for it.
        tokio::time::sleep(READY).await;
        let log = lab.folder().join(format!("access-{}.log", self.address.port()));
        let mut command = Command::new(eyelet(lab)?);
        command.args(["dictionary", "train"]).arg(&self.file).args(["--rule", "app"]).args(more);
        command.arg("--from").arg(log);
        let done = finished(command).await?;
        tokio::time::sleep(READY + READY).await;
        Ok(String::from_utf8_lossy(&done.stdout).trim().replace('\n', "; "))
    }
}

/// Runs a program to its end in a thread of its own: its server may run in this one.
pub async fn finished(mut command: Command) -> io::Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || tell.send(command.output()));
    let done = told.await.map_err(io::Error::other)??;
    match done.status.success() {
        true => Ok(done),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(io::Error::other(format!("{name}: {}: {}", done.status, said.trim())))
        }
    }
}

pub fn eyelet(lab: &Lab) -> io::Result<&Path> {
    lab.eyelet().ok_or_else(|| io::Error::other("there is no eyelet to measure"))
}

/// The `Available-Dictionary` field of a client with this dictionary.
pub fn available(body: impl AsRef<[u8]>) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, body.as_ref());
    format!(":{}:", STANDARD.encode(hash))
}

pub fn column(key: &'static str, heading: &str, decimals: usize) -> Column {
    // Leaked: headings live until the program ends, soon after its table.
    Column { key, heading: String::leak(heading.to_owned()), decimals }
}

pub const CODINGS: [(&str, &str); 4] =
    [("identity", "identity"), ("gzip", "gzip"), ("br", "br"), ("zstd", "zstd")];
/// The Accept-Encoding field of a browser with a dictionary.
pub const EVERY_CODING: &str = "gzip, deflate, br, zstd, dcb, dcz";

/// A fixed effort, so that load does not change it during the measurement.
pub const SMALL: &str = "compress_effort = \"small\"\n";

/// The program's promised delay for a version's delta and for a trained dictionary's offer.
pub const READY: Duration = Duration::from_secs(2);
