//! Messages between the process inside and the one outside, over their channel.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use eyelet_sys::channel::Channel;
use serde::{Deserialize, Serialize};

use crate::step::{ConfineStep, SandboxError};

/// The time in which the kernel takes a message. Both sides read what they are sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The plan for the process inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConfinedPlan {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// TCP ports at which each address listens. A port that is not here is refused by the kernel.
    pub ports: Vec<u16>,
    /// UDP ports of QUIC, at each address.
    pub quic_ports: Vec<u16>,
    /// Files and folders that are hidden, beside those that always are.
    pub hidden: Vec<PathBuf>,
    /// Files that it is shown.
    pub shown: Vec<ShownFile>,
    /// Variables of the command's environment.
    pub variables: Vec<(OsString, OsString)>,
    /// Variables that are taken out of it.
    pub removed: Vec<OsString>,
}

/// A file that the command is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownFile {
    /// Its name in the folder.
    pub name: String,
    /// Its bytes, which follow the plan in a message of their own.
    #[serde(skip)]
    pub content: Vec<u8>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the inside: the [`ConfinedPlan`].
    Plan = 1,
    /// From the inside: it has its namespaces.
    Entered = 2,
    /// To the inside: its users are mapped.
    Mapped = 3,
    /// From the inside: the sockets, as descriptors.
    Sockets = 4,
    /// To the inside: what it dials is served.
    Go = 5,
    /// From the inside: the number of the first process, which ends with all others.
    Started = 6,
    /// From the inside: [`Failure`].
    Failed = 7,
    /// To the inside: the bytes of a file.
    File = 8,
}

/// A step that failed inside.
#[derive(Serialize, Deserialize)]
struct Failure {
    step: ConfineStep,
    about: Option<String>,
    errno: Option<i32>,
    text: String,
}

/// Sends a message.
pub(crate) fn send(
    channel: &mut Channel,
    kind: Kind,
    body: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(body)?;
    channel.send(kind as u8, &body, descriptors, SEND_TIMEOUT)
}

/// Sends the plan, and the files that the command is shown.
pub(crate) fn send_plan(channel: &mut Channel, plan: &ConfinedPlan) -> io::Result<()> {
    send(channel, Kind::Plan, plan, &[])?;
    for file in &plan.shown {
        channel.send(Kind::File as u8, &file.content, &[], SEND_TIMEOUT)?;
    }
    Ok(())
}

/// Receives what [`send_plan`] sends.
///
/// # Errors
/// As those of [`receive`].
pub(crate) fn receive_plan(channel: &mut Channel) -> Result<ConfinedPlan, SandboxError> {
    let (mut plan, _): (ConfinedPlan, _) = receive(channel, Kind::Plan)?;
    for file in &mut plan.shown {
        (file.content, _) = receive_bytes(channel, Kind::File)?;
    }
    Ok(plan)
}

/// Tells the other side that a step failed.
pub(crate) fn send_failure(channel: &mut Channel, failed: &SandboxError) -> io::Result<()> {
    let SandboxError { step, about, error } = failed;
    let failure = Failure {
        step: *step,
        about: about.clone(),
        errno: error.raw_os_error(),
        text: error.to_string(),
    };
    send(channel, Kind::Failed, &failure, &[])
}

/// Receives a message of this kind, with its descriptors.
///
/// # Errors
/// What the other side says that failed, or that it has ended.
pub(crate) fn receive<T: for<'de> Deserialize<'de>>(
    channel: &mut Channel,
    kind: Kind,
) -> Result<(T, Vec<OwnedFd>), SandboxError> {
    let (body, descriptors) = receive_bytes(channel, kind)?;
    let body = serde_json::from_slice(&body);
    let body = body.map_err(|error| SandboxError::at(ConfineStep::Start)(error.into()))?;
    Ok((body, descriptors))
}

fn receive_bytes(
    channel: &mut Channel,
    kind: Kind,
) -> Result<(Vec<u8>, Vec<OwnedFd>), SandboxError> {
    let ended = SandboxError::at(ConfineStep::Start);
    let mut body = Vec::new();
    let received = channel.receive(&mut body, None).map_err(&ended)?;
    if received.kind == Kind::Failed as u8 {
        let read = serde_json::from_slice(&body);
        let Failure { step, about, errno, text } = read.map_err(|error| ended(error.into()))?;
        let error = errno.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error);
        return Err(SandboxError { step, about, error });
    }
    if received.kind != kind as u8 {
        return Err(ended(ErrorKind::InvalidData.into()));
    }
    Ok((body, received.descriptors))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn large_files_follow_the_plan_whole() {
        let (mut ours, theirs) = Channel::pair().unwrap();
        let mut theirs = Channel::over(theirs).unwrap();
        // As many as a run may show, each larger than a file of roots may be.
        let shown: Vec<ShownFile> = (0..12)
            .map(|number| ShownFile {
                name: format!("{number}.pem"),
                content: vec![200 + number; 5 << 20],
            })
            .collect();
        let plan = ConfinedPlan {
            command: vec!["true".into()],
            ports: vec![443],
            quic_ports: vec![443],
            hidden: Vec::new(),
            shown,
            variables: Vec::new(),
            removed: Vec::new(),
        };
        let received = std::thread::spawn(move || receive_plan(&mut theirs).unwrap());
        send_plan(&mut ours, &plan).unwrap();
        let received = received.join().unwrap();
        assert_eq!(received.shown.len(), plan.shown.len());
        for (sent, received) in plan.shown.iter().zip(&received.shown) {
            assert!(sent.name == received.name && sent.content == received.content);
        }
    }
}
