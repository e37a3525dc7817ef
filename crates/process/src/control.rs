//! The control socket. `eyelet reload FILE` and other commands use it to find the process that
//! serves FILE. A request is one line; the answer is a status and lines.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use eyelet_sys::file::OwnFolder;
use eyelet_sys::process;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

pub use self::sockets::{digest_name, own_folder};
use self::sockets::{name, names, remove_dead, search};
use crate::held;
pub use crate::held::NOTHING_HELD;
use crate::reload::ReloadOutcome;
use eyelet_admin::{KeepAsked, VerdictAsked};
use eyelet_hold::{Holds, NobodyWaits, QuestionFilter, Which};
use eyelet_telemetry::held::{HeldBy, HeldVerdict};

mod sockets;

/// The requests. The path of a program may follow "upgrade" after a blank.
const RELOAD: &[u8] = b"reload";
const UPGRADE: &[u8] = b"upgrade";
const CHANGE_KEY: &[u8] = b"acme rollover";
const RECORDS: &[u8] = b"acme record";
const HELD: &[u8] = b"held";
const EXPLAIN: &[u8] = b"explain\t";
const FILE: &[u8] = b"file";
/// Bytes of a request: the longest path (PATH_MAX) and the word before it.
const REQUEST_BYTES_MAX: usize = 4096 + 16;
/// The time that a client of the socket may take to send its request, and to read the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that the answer may take: more than the time limits of the steps of an upgrade
/// together, and than that of a change of the account's key.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);
const _: () = assert!(eyelet_acme::CHANGE_TIMEOUT.as_secs() < ANSWER_TIMEOUT.as_secs());
/// The time that a process may take to say which file it serves. One that reloads says it later.
const FILE_TIMEOUT: Duration = Duration::from_secs(2);
/// Processes that are asked for their file.
const FILES_MAX: usize = 8;
/// The time for which two processes may be seen while one replaces the other: the old one closes
/// its socket at once after the new one has opened its own.
const TWO_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which this is checked.
const TWO_STEP: Duration = Duration::from_millis(50);
/// The time for which accepting pauses after an error, such as no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of an answer: more than all mistakes that are printed.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Requests that wait while one is answered. More wait in the socket's queue.
const REQUESTS_MAX: usize = 1;
/// Stands for the file of a process that serves none: no file has this path.
const COMMAND: &str = "eyelet command";

/// An open control socket. Dropping it removes its file.
pub struct Control {
    path: PathBuf,
    requests: Receiver<ControlRequest>,
}

/// A request about the account at the ACME server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeRequest {
    /// To have another key.
    ChangeKey,
    /// To say which DNS records it needs for wildcards.
    Records,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// To read the file again.
    Reload,
    /// To hand everything over to this program, or to the one at the path of this process.
    Upgrade(Option<PathBuf>),
    /// For the account at the ACME server.
    Acme(AcmeRequest),
    /// To list what is held, or to give a verdict.
    Held(Option<HeldCommand>),
    /// To explain a connection, by these flags of `eyelet explain`.
    Explain(Vec<String>),
    /// To say which file it serves.
    File,
}

/// A verdict on what is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCommand {
    /// The name, or the address.
    pub name: String,
    /// The port, or any.
    pub port: Option<u16>,
    pub narrowed: NarrowedVerdict,
    pub verdict: VerdictAsked,
}

impl HeldCommand {
    /// True if the verdict is to be written to a list.
    pub fn is_always(&self) -> bool {
        matches!(self.verdict.keep, KeepAsked::Always)
    }
}

/// The scope of a verdict beside a name: anything, where nothing is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct NarrowedVerdict {
    /// Only what came to the rule of this name
    #[arg(long, value_name = "NAME", value_parser = narrower)]
    rule: Option<String>,
    /// Only requests with this method
    #[arg(long, value_name = "METHOD", value_parser = narrower)]
    method: Option<String>,
    /// Only requests with this path
    #[arg(long, value_name = "PATH", value_parser = narrower)]
    path: Option<String>,
}

/// A value as the control socket takes it.
fn narrower(text: &str) -> Result<String, String> {
    match text.contains(['\t', '\n']) {
        true => Err("expected no tabs and no line ends".into()),
        false => Ok(text.into()),
    }
}

impl NarrowedVerdict {
    /// The keys and the values, as the control socket takes them.
    fn words(&self) -> impl Iterator<Item = String> + '_ {
        let Self { rule, method, path } = self;
        let all = [("rule", rule), ("method", method), ("path", path)];
        all.into_iter().filter_map(|(key, value)| Some(format!("\t{key}={}", value.as_ref()?)))
    }

    fn read<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut narrowed = Self::default();
        for word in words {
            let (key, value) = word.split_once('=')?;
            let place = match key {
                "rule" => &mut narrowed.rule,
                "method" => &mut narrowed.method,
                "path" => &mut narrowed.path,
                _ => return None,
            };
            if place.replace(value.into()).is_some() {
                return None;
            }
        }
        Some(narrowed)
    }
}

/// A permitted client and what it asks for.
pub struct ControlRequest {
    /// The command that it asks for.
    pub command: ControlCommand,
    stream: UnixStream,
}

impl Control {
    /// Opens the socket of the process that serves `file`. Call it within a tokio runtime.
    ///
    /// # Errors
    /// If there is no folder that only this user can write to.
    pub fn open(file: &Path) -> io::Result<Self> {
        Self::open_as(&names(file)?)
    }

    /// Opens the socket of a process that serves no file, and is found only where all are asked.
    ///
    /// # Errors
    /// As above.
    pub fn open_for_command() -> io::Result<Self> {
        let name = name(Path::new(COMMAND));
        Self::open_as(&[name.clone(), name])
    }

    fn open_as([real, given]: &[String; 2]) -> io::Result<Self> {
        let folder = own_folder();
        // The folder must be ours: a user who can write to it could answer in our place.
        OwnFolder::open(&folder).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
        })?;
        remove_dead(&folder);
        let path = folder.join(format!("{real}.{given}.{}.sock", std::process::id()));
        // It has our process id: a process with the same one has left it, in a container the first.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let (sender, requests) = channel(REQUESTS_MAX);
        let control = Self { path, requests };
        fs::set_permissions(&control.path, fs::Permissions::from_mode(0o600))?;
        tokio::spawn(accept(listener, sender));
        Ok(control)
    }

    pub async fn next(&mut self) -> Option<ControlRequest> {
        self.requests.recv().await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Clients find the socket by its file. A client that is connected already gets no answer.
        let _ = fs::remove_file(&self.path);
    }
}

impl ControlRequest {
    /// Answers the request. A client that does not read loses its answer.
    pub async fn answer(mut self, outcome: &ReloadOutcome) {
        let text = format!("{}\n{}", outcome.code, outcome.text);
        let _ = timeout(REQUEST_TIMEOUT, self.stream.write_all(text.as_bytes())).await;
    }
}

/// Lists what is held, or gives a verdict.
pub fn answer_held(holds: &Holds, command: Option<&HeldCommand>) -> ReloadOutcome {
    let Some(HeldCommand { name, port, narrowed, verdict }) = command else {
        return ReloadOutcome { code: 0, text: held::listed(holds) };
    };
    let NarrowedVerdict { rule, method, path } = narrowed;
    let filter = QuestionFilter {
        rule: rule.as_deref(),
        method: method.as_deref(),
        path: path.as_deref(),
        ..QuestionFilter::named(name, *port)
    };
    match held::decide(holds, Which::Like(filter), *verdict, HeldBy::Terminal) {
        Ok(line) => ReloadOutcome { code: 0, text: format!("{line}\n") },
        Err(why) => ReloadOutcome::failed(why),
    }
}

async fn accept(listener: UnixListener, requests: Sender<ControlRequest>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("the control socket cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let user = stream.peer_cred().map(|peer| peer.uid());
        if !user.as_ref().is_ok_and(|user| may_ask(*user)) {
            tracing::warn!("control socket: user {user:?} is not allowed to connect");
            continue;
        }
        let Ok(Ok(request)) = timeout(REQUEST_TIMEOUT, read(stream)).await else { continue };
        if requests.send(request).await.is_err() {
            return;
        }
    }
}

/// True if this user may ask: the user of the process, or root.
fn may_ask(user: u32) -> bool {
    user == process::user() || user == 0
}

async fn read(mut stream: UnixStream) -> io::Result<ControlRequest> {
    let mut said = Vec::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            _ if said.len() == REQUEST_BYTES_MAX => return Err(io::ErrorKind::InvalidData.into()),
            byte => said.push(byte),
        }
    }
    let command = parse(&said).ok_or(io::ErrorKind::InvalidData)?;
    Ok(ControlRequest { command, stream })
}

fn parse(said: &[u8]) -> Option<ControlCommand> {
    if said == CHANGE_KEY {
        return Some(ControlCommand::Acme(AcmeRequest::ChangeKey));
    }
    if said == RECORDS {
        return Some(ControlCommand::Acme(AcmeRequest::Records));
    }
    if let Some(held) = said.strip_prefix(HELD) {
        return match held {
            b"" => Some(ControlCommand::Held(None)),
            _ => parse_held(std::str::from_utf8(held).ok()?).map(Some).map(ControlCommand::Held),
        };
    }
    if let Some(words) = said.strip_prefix(EXPLAIN) {
        let words = std::str::from_utf8(words).ok()?.split('\t').map(str::to_owned);
        return Some(ControlCommand::Explain(words.collect()));
    }
    match said.split(|byte| *byte == b' ').next()? {
        RELOAD if said == RELOAD => Some(ControlCommand::Reload),
        FILE if said == FILE => Some(ControlCommand::File),
        UPGRADE if said == UPGRADE => Some(ControlCommand::Upgrade(None)),
        UPGRADE => {
            let path = Path::new(OsStr::from_bytes(said.get(UPGRADE.len() + 1..)?));
            path.is_absolute().then(|| ControlCommand::Upgrade(Some(path.to_owned())))
        }
        _ => None,
    }
}

/// Reads what follows "held": the verdict, the name with its port or without, and how long; then,
/// each behind a tab, what else it is about.
fn parse_held(said: &str) -> Option<HeldCommand> {
    let mut parts = said.split('\t');
    let said = parts.next()?;
    let narrowed = NarrowedVerdict::read(parts)?;
    let mut words = said.strip_prefix(' ')?.split(' ');
    let verdict = words.next()?;
    let verdict = HeldVerdict::ALL.iter().copied().find(|one| one.name() == verdict)?;
    let (name, port) = parse_target(words.next()?)?;
    let keep = match words.next()? {
        "once" => KeepAsked::Once,
        "always" => KeepAsked::Always,
        time => KeepAsked::of(time).ok()?,
    };
    let verdict = VerdictAsked { verdict, keep };
    words.next().is_none().then_some(HeldCommand { name, port, narrowed, verdict })
}

/// Reads NAME or NAME:PORT. An address of IPv6 with a port is in brackets.
fn parse_target(text: &str) -> Option<(String, Option<u16>)> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, Some(port.parse().ok()?))
        }
        _ => (text, None),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    (!name.is_empty()).then(|| (name.to_owned(), port))
}

/// Has the processes of this user, or the one that serves `file`, list what they hold, and prints
/// it.
pub fn list_held(file: Option<&Path>) -> ExitCode {
    match file {
        Some(file) => print(&ask(file, HELD)),
        None => ask_all(HELD),
    }
}

/// Gives a verdict on what the processes of this user hold, or the one that serves `file`, and
/// prints what they say.
pub fn decide_held(
    file: Option<&Path>,
    verdict: HeldVerdict,
    (target, narrowed): (&str, &NarrowedVerdict),
    keep: &str,
) -> ExitCode {
    if target.contains([' ', '\n']) || parse_target(target).is_none() {
        return print(&Err(format!("{target:?} is no name; expected NAME or NAME:PORT")));
    }
    let narrowed: String = narrowed.words().collect();
    let request = [HELD, format!(" {verdict} {target} {keep}{narrowed}").as_bytes()].concat();
    match file {
        Some(file) => print(&ask(file, &request)),
        None => ask_all(&request),
    }
}

/// Asks all processes of this user, and prints what they say: where none has done it, why.
fn ask_all(request: &[u8]) -> ExitCode {
    let found = match search(None) {
        Ok(found) if found.is_empty() => {
            return print(&Err("no process of this user serves anything here".into()));
        }
        Ok(found) => found,
        Err(why) => return print(&Err(why)),
    };
    let mut outcome = ReloadOutcome { code: 1, text: String::new() };
    for (_, pid, stream) in found {
        let said = converse(stream, request, ANSWER_TIMEOUT);
        let mut said = said.unwrap_or_else(|error| {
            ReloadOutcome::failed(format_args!("eyelet: process {pid}: {error}"))
        });
        if request == HELD && said.code == 0 {
            // Each line is one process's, and those with nothing say nothing.
            said.text = match &*said.text {
                NOTHING_HELD => String::new(),
                text => text.replace('\n', &format!(", process {pid}\n")),
            };
        }
        match (outcome.code, said.code) {
            (1, 0) => outcome = said,
            (0, 0) if !outcome.text.contains(&said.text) => outcome.text.push_str(&said.text),
            // Where nobody waits, the others have more to say.
            (1, _) if has_said_nothing(&outcome.text) => outcome.text = said.text,
            _ => {}
        }
    }
    if request == HELD && outcome.code == 0 && outcome.text.is_empty() {
        outcome.text.push_str(NOTHING_HELD);
    }
    print(&Ok(outcome))
}

/// True if a process knows nothing of what it was asked about.
pub fn has_said_nothing(text: &str) -> bool {
    text.is_empty() || text.contains(&NobodyWaits.to_string())
}

/// Has the process that serves `file` explain a connection, by these flags of `eyelet explain`.
///
/// # Errors
/// The reason why there is no answer, for a sentence.
pub fn explain(file: &Path, words: &[String]) -> Result<ReloadOutcome, String> {
    let request = [EXPLAIN, words.join("\t").as_bytes()].concat();
    let is_sent = |word: &String| !word.contains(['\t', '\n']);
    if request.len() > REQUEST_BYTES_MAX || !words.iter().all(is_sent) {
        return Err("these flags are too long, or have tabs or line ends".into());
    }
    ask(file, &request)
}

/// Asks the process that serves `file` for a reload, and prints what it says.
pub fn reload(file: &Path) -> ExitCode {
    print(&ask(file, RELOAD))
}

/// Asks the process that serves `file` to hand everything over to a new program, and prints what it
/// says.
pub fn upgrade(file: &Path, program: Option<&Path>) -> ExitCode {
    let said = match program.map(std::path::absolute).transpose() {
        Ok(None) => ask(file, UPGRADE),
        Ok(Some(path)) => {
            let path = path.as_os_str().as_bytes();
            if path.contains(&b'\n') {
                Err(String::from("--binary: the path has a line break"))
            } else {
                ask(file, &[UPGRADE, b" ", path].concat())
            }
        }
        Err(error) => Err(format!("--binary: {error}")),
    };
    print(&said)
}

/// Asks the process that serves `file` for another key of its ACME account, and prints what it
/// says.
pub fn change_account_key(file: &Path) -> ExitCode {
    print(&ask(file, CHANGE_KEY))
}

/// Asks the process that serves `file` for the DNS records that its ACME account needs, and prints
/// them.
pub fn acme_records(file: &Path) -> ExitCode {
    print(&ask(file, RECORDS))
}

fn print(said: &Result<ReloadOutcome, String>) -> ExitCode {
    let failed;
    let outcome = match said {
        Ok(outcome) => outcome,
        Err(why) => {
            failed = ReloadOutcome::failed(format_args!("eyelet: {why}"));
            &failed
        }
    };
    // If an output is closed, the exit code still gives the result.
    let _ = match outcome.code {
        0 => io::stdout().write_all(outcome.text.as_bytes()),
        _ => io::stderr().write_all(outcome.text.as_bytes()),
    };
    ExitCode::from(outcome.code)
}

/// Root may ask for others, and needs no such advice.
fn or_as_root(user: u32) -> &'static str {
    if user == 0 { "" } else { ", or as root" }
}

fn ask(file: &Path, request: &[u8]) -> Result<ReloadOutcome, String> {
    let shown = file.display();
    let names = names(file).map_err(|error| format!("{shown}: {error}{}", others_served()))?;
    let end = Instant::now() + TWO_TIMEOUT;
    let mut found = search(Some(&names))?;
    while found.len() > 1 && Instant::now() < end {
        std::thread::park_timeout(TWO_STEP);
        found = search(Some(&names))?;
    }
    match found.len() {
        0 => Err(format!(
            "no process of this user serves {shown}: `eyelet serve {shown}` starts one; ask \
             another user's as that user{}{}",
            or_as_root(process::user()),
            others_served()
        )),
        1 => found.pop().map_or(Err(String::new()), |(_, pid, stream)| {
            converse(stream, request, ANSWER_TIMEOUT)
                .map_err(|error| format!("process {pid}: {error}"))
        }),
        _ => {
            let pids: Vec<String> = found.iter().map(|(_, pid, _)| pid.to_string()).collect();
            let pids = pids.join(", ");
            Err(format!("more than one process serves {shown} ({pids}): send SIGHUP to one"))
        }
    }
}

/// The files that are served, each with its process: those whose control sockets are in this
/// user's own folder.
pub fn served_here() -> Vec<String> {
    let own = own_folder();
    served(search(None).unwrap_or_default().into_iter().filter(|(folder, _, _)| *folder == own))
}

/// The files of these processes. Those that do not answer at once are left out.
fn served(found: impl Iterator<Item = (PathBuf, u32, StdStream)>) -> Vec<String> {
    let said = found.take(FILES_MAX).filter_map(|(_, pid, stream)| {
        let said = converse(stream, FILE, FILE_TIMEOUT).ok()?;
        (said.code == 0).then(|| format!("{}, process {pid}", said.text.trim_end()))
    });
    said.collect()
}

/// The files that are served instead of another one, for a sentence.
fn others_served() -> String {
    match served(search(None).unwrap_or_default().into_iter()).join("; ") {
        none if none.is_empty() => none,
        some => format!(" (served: {some})"),
    }
}

/// True if a process that this user can find serves the file.
pub fn is_served(file: &Path) -> bool {
    let found = names(file).ok().and_then(|names| search(Some(&names)).ok());
    found.is_some_and(|found| !found.is_empty())
}

fn converse(
    mut stream: StdStream,
    request: &[u8],
    answer_timeout: Duration,
) -> io::Result<ReloadOutcome> {
    stream.set_read_timeout(Some(answer_timeout))?;
    stream.write_all(&[request, b"\n"].concat())?;
    let mut said = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut said)?;
    let (code, text) = said.split_once('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
    let code = code.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(ReloadOutcome { code, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_ask_as_root() {
        assert_eq!([0, 1000].map(or_as_root), ["", ", or as root"]);
    }

    #[test]
    fn only_whole_requests_are_understood() {
        let upgrade = |path: Option<&str>| Some(ControlCommand::Upgrade(path.map(PathBuf::from)));
        let held = |name: &str, port, keep| {
            let verdict = VerdictAsked { verdict: HeldVerdict::Allow, keep };
            let (name, narrowed) = (name.into(), NarrowedVerdict::default());
            Some(ControlCommand::Held(Some(HeldCommand { name, port, narrowed, verdict })))
        };
        for (said, expected) in [
            ("reload", Some(ControlCommand::Reload)),
            ("upgrade", upgrade(None)),
            ("upgrade /opt/new eyelet", upgrade(Some("/opt/new eyelet"))),
            ("upgrade eyelet", None),
            ("upgrade ", None),
            ("acme rollover", Some(ControlCommand::Acme(AcmeRequest::ChangeKey))),
            ("acme record", Some(ControlCommand::Acme(AcmeRequest::Records))),
            ("acme records", None),
            ("acme", None),
            ("held", Some(ControlCommand::Held(None))),
            ("held allow a.example once", held("a.example", None, KeepAsked::Once)),
            ("held allow [::1]:443 always", held("::1", Some(443), KeepAsked::Always)),
            ("held allow ::1 1h", held("::1", None, KeepAsked::For(Duration::from_hours(1)))),
            (
                "held allow a.example once\trule=no admin\tpath=/a b=c",
                Some(ControlCommand::Held(Some(HeldCommand {
                    name: "a.example".into(),
                    port: None,
                    narrowed: NarrowedVerdict {
                        rule: Some("no admin".into()),
                        method: None,
                        path: Some("/a b=c".into()),
                    },
                    verdict: VerdictAsked { verdict: HeldVerdict::Allow, keep: KeepAsked::Once },
                }))),
            ),
            ("held allow a.example once\trule=a\trule=b", None),
            ("held allow a.example once\tname=b", None),
            ("held allow a.example", None),
            ("held allow a.example:x once", None),
            ("held allow a.example once more", None),
            ("held allow  once", None),
            ("held maybe a.example once", None),
            ("heldfast", None),
            (
                "explain\tproxy.toml\t--sni\ta b",
                Some(ControlCommand::Explain(
                    ["proxy.toml", "--sni", "a b"].map(String::from).to_vec(),
                )),
            ),
            ("explain", None),
            ("explained\ta", None),
            ("file", Some(ControlCommand::File)),
            ("file a", None),
            ("reload now", None),
            ("reloaded", None),
            ("", None),
        ] {
            assert_eq!(parse(said.as_bytes()), expected, "{said:?}");
        }
    }
}
