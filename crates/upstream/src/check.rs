//! Active checks of upstreams: each is asked again and again, by a task of one worker, whether it
//! is up. The task ends when no rule wants the check any more.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use eyelet_balance::group::Member;
use eyelet_config::{HttpAddress, HttpUpstream, TerminateUpstream, UpstreamCheck};
use eyelet_resolve::connect::DialOptions;
use eyelet_resolve::dial::{DialTarget, dial as dial_target, is_own_shortage, no_descriptor};
use eyelet_telemetry::info::ConnectionInfo;
use eyelet_telemetry::reason::{Limit, Reason};
use eyelet_wire::proxy::{Command, Tlvs, V2_WRITTEN_BYTES_MAX, write_v2};
use http::{Request, header, request};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::Upstream;
use crate::dial::{DialTerms, Dialled, Dialler, dial_unmeasured, spoken};
use crate::http2::Http2Connection;
use crate::request::{HeadAsked, NoAnswer, UpstreamRequest};
use eyelet_http1::write_queue::WriteQueue;

/// Time from the end of one check to the next. A failure is noticed after two of them, and an
/// application answers a request in two seconds without noticing.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time for one check, from the look-up to the response's head.
const LIMIT: Duration = Duration::from_secs(2);
/// Interim responses to one check.
const INTERIM_MAX: usize = 8;
/// The checks come from no listener.
const NO_LISTENER: u16 = u16::MAX;

/// The reason why a check failed.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    /// There is no connection, or no response.
    #[error("{0}")]
    Failed(Reason),
    /// The response is neither 2xx nor 3xx.
    #[error("its check answers {0}")]
    Status(u16),
    /// It took too long.
    #[error("its check has no answer after {} s", LIMIT.as_secs())]
    Late,
}

impl CheckError {
    /// True if this process or host lacked something for it: no word about the upstream.
    fn is_own_shortage(&self) -> bool {
        matches!(self, Self::Failed(reason) if is_own_shortage(reason))
    }
}

/// Begins the checks that this configuration wants and that no task makes. One worker of the
/// process calls it at each tick, inside its event loop: a drain ends the checks, and it may be
/// taken back. `newest` gives the worker's dialler under the newest configuration.
pub fn begin<F>(dialler: &Dialler, newest: F)
where
    F: Fn() -> Option<Rc<Dialler>> + Clone + 'static,
{
    if is_ending(dialler) {
        return;
    }
    for member in dialler.names.shared.upstreams.checked() {
        if !member.is_being_checked.swap(true, Relaxed) {
            let checking = Checking(member.clone());
            tokio::task::spawn_local(check_on(newest.clone(), checking));
        }
    }
}

/// The task that checks an upstream. Its end lets another begin, however it ends.
struct Checking(Arc<Member>);

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.is_being_checked.store(false, Relaxed);
    }
}

/// Checks an upstream until the worker ends or no rule wants it.
async fn check_on(newest: impl Fn() -> Option<Rc<Dialler>>, checking: Checking) {
    let member = &checking.0;
    while let Some(dialler) = newest().filter(|dialler| is_wanted(dialler, member)) {
        let result = check(&dialler, member).await;
        if !result.as_ref().is_err_and(CheckError::is_own_shortage) {
            member.health.checked(dialler.engine.now_unix_ms(), result);
        }
        // It would keep the configuration.
        drop(dialler);
        sleep(INTERVAL).await;
    }
}

/// True if nothing new is asked by this process. Another one may make the checks.
fn is_ending(dialler: &Dialler) -> bool {
    dialler.engine.is_draining() || dialler.engine.is_retired()
}

fn is_wanted(dialler: &Dialler, member: &Arc<Member>) -> bool {
    let mut checked = dialler.names.shared.upstreams.checked();
    !is_ending(dialler) && checked.any(|wanted| Arc::ptr_eq(wanted, member))
}

/// Checks an upstream once, in [`LIMIT`].
async fn check(dialler: &Dialler, member: &Member) -> Result<(), CheckError> {
    match (&member.check, &member.upstream) {
        (Some(UpstreamCheck::Get(path)), TerminateUpstream::Http(to)) => {
            ask(dialler, member, to, path).await
        }
        (_, upstream) => {
            let target = match upstream {
                TerminateUpstream::Tcp(to) => DialTarget::Configured(to),
                TerminateUpstream::Tls(upstream) => DialTarget::Configured(&upstream.address),
                TerminateUpstream::Unix(path) => DialTarget::Unix(path),
                TerminateUpstream::Http(to) => match &to.address {
                    HttpAddress::Tcp(to) => DialTarget::Configured(to),
                    HttpAddress::Unix(path) => DialTarget::Unix(path),
                    HttpAddress::Destination => {
                        return Err(CheckError::Failed(Reason::NoDestination));
                    }
                },
            };
            let (lacks_descriptor, sources) = (Cell::new(false), member.sources.some());
            let options = DialOptions {
                sources,
                lacks_descriptor: Some(&lacks_descriptor),
                ..Default::default()
            };
            let info = info();
            let dial = dial_target(&dialler.names, &dialler.engine, &info, &target, &options);
            match timeout(LIMIT, dial).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(undialled)) => Err(undialled.end.reason.into()),
                Err(_) if lacks_descriptor.get() => Err(no_descriptor().into()),
                Err(_) => Err(CheckError::Late),
            }
        }
    }
}

/// Asks for a path. 2xx and 3xx mean that it is up.
async fn ask(
    dialler: &Dialler,
    member: &Member,
    to: &HttpUpstream,
    path: &str,
) -> Result<(), CheckError> {
    let mut room = [0; V2_WRITTEN_BYTES_MAX];
    let length = match member.is_told {
        // No client is behind a check.
        true => write_v2(&mut room, Command::Local, &Tlvs::default()).unwrap_or_default(),
        false => 0,
    };
    let preface = room.get(..length).unwrap_or_default();
    let spoken = spoken(to, false);
    let (sources, wait, late_at) = (member.sources.some(), LIMIT, Instant::now() + LIMIT);
    let terms = DialTerms { spoken, preface, wait, balanced: None, sources, is_early: false };
    let dialled = dial_unmeasured(dialler, to, terms, &info()).await;
    let (parts, host) = head(to, path)?;
    let forwarded = Rc::default();
    let request = UpstreamRequest::without_body(&parts, &host, &forwarded);
    let mut upstream = match dialled.map_err(|failure| failure.reason)? {
        Dialled::Http1(connection) => Upstream::Http1(connection),
        Dialled::Http2(connection) => {
            let asked = Http2Connection::ask(&connection, &request).ok_or(NoAnswer::Unread)?;
            Upstream::Http2(Box::new(asked))
        }
    };
    let answered = timeout_at(late_at, answer(&mut upstream, &request)).await;
    answered.unwrap_or(Err(CheckError::Late))
}

/// Sends the request of a check, and reads its answer.
async fn answer(upstream: &mut Upstream, request: &UpstreamRequest<'_>) -> Result<(), CheckError> {
    let mut queue = WriteQueue::default();
    queue.push_head(upstream.head(request));
    let sent = poll_fn(|task| upstream.poll_send(task, &mut queue)).await;
    sent.map_err(|_| NoAnswer::Dead)?;
    for _ in 0..=INTERIM_MAX {
        let asked = HeadAsked { method: &request.parts.method, may_be_lines: false };
        let answer = poll_fn(|task| upstream.poll_head(task, asked)).await;
        let status = answer?.status();
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        if !status.is_informational() {
            return Err(CheckError::Status(status.as_u16()));
        }
    }
    Err(CheckError::Late)
}

fn head(to: &HttpUpstream, path: &str) -> Result<(request::Parts, String), CheckError> {
    let host = match (&to.address, &to.tls) {
        (HttpAddress::Unix(_) | HttpAddress::Destination, _) => "localhost".to_owned(),
        (HttpAddress::Tcp(to), _) => to.authority(),
    };
    let uri = format!("http://{host}{path}");
    let request = Request::get(uri).header(header::USER_AGENT, "eyelet-check").body(());
    let request = request.map_err(|_| CheckError::Failed(Reason::Internal("a check's path")))?;
    Ok((request.into_parts().0, host))
}

impl From<Reason> for CheckError {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::Timeout(Limit::Connect, None) => Self::Late,
            reason => Self::Failed(reason),
        }
    }
}

impl From<NoAnswer> for CheckError {
    fn from(why: NoAnswer) -> Self {
        Self::Failed(why.into())
    }
}

/// A check has no client and no listener.
fn info() -> ConnectionInfo {
    let mut info = ConnectionInfo::new(0, 0, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    info.decided.listener = NO_LISTENER;
    info
}
