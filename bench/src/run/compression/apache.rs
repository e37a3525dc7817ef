//! A Subversion repository behind Apache, and the svn client.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::edge::finished;
use crate::lab::{CERTIFICATE, KEY, LOCALHOST, Lab, Server};
use crate::peers;

/// Apache with mod_dav_svn: three servers for the same repository.
pub struct Apache {
    /// Neither TLS nor compression: an upstream.
    pub plain: SocketAddr,
    /// TLS.
    pub identity: SocketAddr,
    /// TLS and gzip.
    pub gzip: SocketAddr,
    pub server: Server,
}

/// The programs that a checkout needs.
struct Programs {
    apache: PathBuf,
    svn: PathBuf,
    svnadmin: PathBuf,
}

impl Programs {
    fn find() -> io::Result<Self> {
        let find = |name: &str| {
            peers::find_program(name)
                .ok_or_else(|| io::Error::other(format!("{name} is not installed")))
        };
        if !Path::new(MODULES).join("mod_dav_svn.so").exists() {
            return Err(io::Error::other("libapache2-mod-svn is not installed"));
        }
        Ok(Self { apache: find("apache2")?, svn: find("svn")?, svnadmin: find("svnadmin")? })
    }
}

/// Imports trees by name and serves them.
pub async fn start(lab: &Lab, trees: &[(&str, &Path)]) -> io::Result<Apache> {
    let programs = Programs::find()?;
    let repository = create(lab, &programs).await?;
    for (name, tree) in trees {
        let mut import = svn(lab, &programs, true);
        import.args(["import", "--quiet", "--no-auto-props", "--no-ignore", "--message", "import"]);
        import.arg(tree).arg(format!("file://{}/{name}", repository.display()));
        finished(import).await?;
    }
    serve(lab, &programs, &repository).await
}

/// Serves a tree in two revisions: the older one is 1, the newer one 2.
pub async fn start_revisions(lab: &Lab, name: &str, trees: [&Path; 2]) -> io::Result<Apache> {
    let programs = Programs::find()?;
    let repository = create(lab, &programs).await?;
    let url = format!("file://{}/{name}", repository.display());
    let copy = lab.folder().join("revisions");
    let run = async |words: &[&str]| {
        let mut command = svn(lab, &programs, true);
        command.args(words);
        finished(command).await
    };
    let place = copy.display().to_string();
    run(&["mkdir", "--quiet", "--parents", "--message", "start", &url]).await?;
    run(&["checkout", "--quiet", &url, &place]).await?;
    for (tree, message) in trees.into_iter().zip(["older", "newer"]) {
        let mut replaced = Command::new("sh");
        replaced.args(["-ec", REPLACE, "sh"]).arg(&copy).arg(tree);
        finished(replaced).await?;
        let said = run(&["status", &place]).await?.stdout;
        for gone in String::from_utf8_lossy(&said).lines().filter_map(|l| l.strip_prefix('!')) {
            // The last @ of a path would begin a peg revision.
            run(&["remove", "--quiet", &format!("{}@", gone.trim_start())]).await?;
        }
        run(&["add", "--quiet", "--force", "--no-auto-props", "--no-ignore", &place]).await?;
        run(&["commit", "--quiet", "--message", message, &place]).await?;
    }
    fs::remove_dir_all(copy)?;
    serve(lab, &programs, &repository).await
}

async fn create(lab: &Lab, programs: &Programs) -> io::Result<PathBuf> {
    let repository = lab.folder().join("repository");
    let mut create = Command::new(&programs.svnadmin);
    create.arg("create").arg(&repository);
    finished(create).await?;
    Ok(repository)
}

async fn serve(lab: &Lab, programs: &Programs, repository: &Path) -> io::Result<Apache> {
    // Apache started by root serves as another user.
    let mut open = Command::new("chmod");
    open.args(["-R", "a+rwX"]).arg(repository);
    finished(open).await?;
    let apache = Apache::addresses(lab)?;
    let file = lab.folder().join("apache.conf");
    fs::write(&file, configuration(lab, repository, &apache))?;
    let command: Vec<OsString> =
        vec![programs.apache.clone().into(), "-f".into(), file.into(), "-DFOREGROUND".into()];
    let (plain, identity, gzip) = apache;
    Ok(Apache { plain, identity, gzip, server: lab.start_server("apache", &command, plain)? })
}

impl Apache {
    fn addresses(lab: &Lab) -> io::Result<(SocketAddr, SocketAddr, SocketAddr)> {
        Ok((lab.free_address()?, lab.free_address()?, lab.free_address()?))
    }
}

/// A checkout by the real client. Returns its seconds.
pub async fn checkout(lab: &Lab, name: &str, port: u16, gzip: bool) -> io::Result<f64> {
    let url = format!("https://{LOCALHOST}:{port}/svn/{name}");
    checkout_of(lab, &url, &[], gzip).await
}

/// A checkout of any URL, with more words for svn, such as a revision.
pub async fn checkout_of(lab: &Lab, url: &str, words: &[&str], gzip: bool) -> io::Result<f64> {
    let programs = Programs::find()?;
    let into = lab.folder().join("working-copy");
    let mut command = svn(lab, &programs, gzip);
    command.args(["checkout", "--quiet", "--non-interactive"]).args(words);
    command.arg(url).arg(&into);
    let began = Instant::now();
    finished(command).await?;
    let seconds = began.elapsed().as_secs_f64();
    fs::remove_dir_all(into)?;
    Ok(seconds)
}

/// Runs svn with a configuration of its own, so that the user's settings have no effect.
fn svn(lab: &Lab, programs: &Programs, gzip: bool) -> Command {
    let mut command = Command::new(&programs.svn);
    command.arg("--config-dir").arg(lab.folder().join("svn-settings"));
    for option in [
        format!("http-compression={}", if gzip { "yes" } else { "no" }),
        format!("ssl-authority-files={}", lab.folder().join(CERTIFICATE).display()),
    ] {
        command.args(["--config-option", &format!("servers:global:{option}")]);
    }
    command
}

fn configuration(
    lab: &Lab,
    repository: &Path,
    (plain, identity, gzip): &(SocketAddr, SocketAddr, SocketAddr),
) -> String {
    let (folder, repository) = (lab.folder().display(), repository.display());
    let module = |name: &str| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n");
    let modules =
        ["mpm_event", "authz_core", "dav", "dav_svn", "deflate", "filter", "ssl"].map(module);
    let place = |more: &str| {
        format!(
            "<Location /svn>\nDAV svn\nSVNPath {repository}\nSVNCacheFullTexts on\n\
             Require all granted\n{more}</Location>\n"
        )
    };
    let tls = format!(
        "SSLEngine on\nSSLCertificateFile {folder}/{CERTIFICATE}\n\
         SSLCertificateKeyFile {folder}/{KEY}\n"
    );
    format!(
        "ServerRoot {folder}\nPidFile {folder}/apache.pid\nErrorLog /dev/stderr\n\
         ServerName {LOCALHOST}\nDefaultRuntimeDir {folder}\nMutex pthread\n{}\
         User www-data\nGroup www-data\nListen {plain}\nListen {identity}\nListen {gzip}\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 30\nTimeout 60\n\
         DeflateCompressionLevel 6\n\
         <VirtualHost {plain}>\n{}</VirtualHost>\n\
         <VirtualHost {identity}>\n{tls}{}</VirtualHost>\n\
         <VirtualHost {gzip}>\n{tls}{}</VirtualHost>\n",
        modules.concat(),
        place(""),
        place(""),
        place("SetOutputFilter DEFLATE\n")
    )
}

/// Puts a tree in the place of what a working copy has.
const REPLACE: &str = "find \"$1\" -mindepth 1 -maxdepth 1 ! -name .svn -exec rm -r {} +
cp -r \"$2/.\" \"$1\"";
/// Debian's folder of Apache modules.
const MODULES: &str = "/usr/lib/apache2/modules";
