//! The process inside: it enters its namespaces, makes sockets there, passes them out, and becomes
//! the first process, which runs the command and ends all that it leaves behind.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use eyelet_sys::channel::Channel;
use eyelet_sys::child::{self, Signal};
use eyelet_sys::confine::{namespace, signals};
use eyelet_sys::process;
use rustix::process::{WaitOptions, WaitStatus, setsid, wait, waitpid};

use crate::filter;
use crate::loopback;
use crate::message::{ConfinedPlan, Kind, receive, receive_plan, send, send_failure};
use crate::mounts;
use crate::show;
use crate::sockets::ConfinedSockets;
use crate::step::{ConfineStep, SandboxError};

/// The exit status of a process that has told its other side what failed.
pub const FAILED_INSIDE: u8 = 1;
/// A shell adds this to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// Runs it, with the channel to the process outside, which is a descriptor with this number.
/// Returns the command's exit status.
pub fn run_inside(channel: u32) -> ExitCode {
    let Ok(mut channel) = Channel::inherited(channel) else {
        return ExitCode::from(FAILED_INSIDE);
    };
    match run(&mut channel) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // Who has ended needs no reason.
            let _ = send_failure(&mut channel, &error);
            ExitCode::from(FAILED_INSIDE)
        }
    }
}

fn run(channel: &mut Channel) -> Result<u8, SandboxError> {
    let start = SandboxError::at(ConfineStep::Start);
    let plan = receive_plan(channel)?;
    let outer = mounts::outer_sockets().map_err(SandboxError::at(ConfineStep::Files))?;
    // From here on a signal ends nothing: the command is asked.
    signals::hold().map_err(&start)?;
    namespace::enter().map_err(SandboxError::at(ConfineStep::Namespaces))?;
    // Before the kernel's change of rights it would be forgotten.
    namespace::end_with_parent().map_err(&start)?;
    send(channel, Kind::Entered, &(), &[]).map_err(&start)?;
    let ((), _) = receive(channel, Kind::Mapped)?;
    loopback::let_ping();
    let has_ipv6 = loopback::set_up().map_err(SandboxError::at(ConfineStep::Network))?;
    let (layout, descriptors) =
        ConfinedSockets::make((&plan.ports, &plan.quic_ports), has_ipv6)?.take_apart();
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    send(channel, Kind::Sockets, &layout, &borrowed).map_err(&start)?;
    drop(descriptors);
    mounts::cover(&plan, &outer)?;
    show::show(&plan.shown).map_err(SandboxError::about(ConfineStep::Files, show::FOLDER))?;
    let ((), _) = receive(channel, Kind::Go)?;
    let (mut told, tells) = io::pipe().map_err(&start)?;
    match namespace::fork().map_err(SandboxError::at(ConfineStep::Processes))? {
        Some(first) => {
            send(channel, Kind::Started, &first, &[]).map_err(&start)?;
            drop(tells);
            wait_for(first).map_err(start)
        }
        None => {
            drop(tells);
            // What fails here is sent after that message: the parts of two would mix.
            told.read_to_end(&mut Vec::new()).map_err(&start)?;
            begin(channel, &plan)
        }
    }
}

/// Waits for the first process, and returns the exit status of the command.
fn wait_for(first: u32) -> io::Result<u8> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, ended))) if is(pid, first) => return Ok(status(ended)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is(pid: rustix::process::Pid, number: u32) -> bool {
    pid.as_raw_pid().unsigned_abs() == number
}

/// The exit status of a shell for a command that ended so.
fn status(ended: WaitStatus) -> u8 {
    let by_signal = ended.terminating_signal().map(|signal| BY_SIGNAL + signal);
    let status = ended.exit_status().or(by_signal).unwrap_or(BY_SIGNAL);
    u8::try_from(status).unwrap_or(u8::MAX)
}

/// Passes signals on to the command until it has ended, and reaps what others leave behind.
fn look_after(command: u32) -> io::Result<u8> {
    loop {
        let arrived = signals::next()?;
        match arrived.signal {
            Signal::CHILD => {}
            // A terminal sends these to the command, too.
            Signal::INT | Signal::QUIT if !arrived.is_sent => continue,
            signal => {
                // It may have ended just now.
                let _ = child::signal(command, signal);
                continue;
            }
        }
        while let Ok(Some((pid, ended))) = waitpid(None, WaitOptions::NOHANG) {
            if is(pid, command) {
                return Ok(status(ended));
            }
        }
    }
}

/// The first process of its namespace: when it ends, the kernel ends all others.
fn begin(channel: &mut Channel, plan: &ConfinedPlan) -> Result<u8, SandboxError> {
    leave_session().map_err(SandboxError::at(ConfineStep::Processes))?;
    mounts::mount_proc().map_err(SandboxError::at(ConfineStep::Processes))?;
    filter::drop_rights().map_err(SandboxError::at(ConfineStep::Rights))?;
    process::forbid_dumps().map_err(SandboxError::at(ConfineStep::Rights))?;
    process::forbid_crash_reports().map_err(SandboxError::at(ConfineStep::Rights))?;
    match namespace::fork().map_err(SandboxError::at(ConfineStep::Processes))? {
        Some(command) => look_after(command).map_err(SandboxError::at(ConfineStep::Command)),
        None => {
            let error = execute(plan);
            let about = plan.command.first().map(|it| it.to_string_lossy()).unwrap_or_default();
            let failed = SandboxError::about(ConfineStep::Command, about)(error);
            let _ = send_failure(channel, &failed);
            Ok(FAILED_INSIDE)
        }
    }
}

/// Begins a session, so that the command cannot signal the process group of the one who started it.
/// With a terminal it stays: Ctrl-C and Ctrl-Z are for all of a job.
fn leave_session() -> io::Result<()> {
    match File::open("/dev/tty") {
        Ok(_) => Ok(()),
        Err(_) => setsid().map(drop).map_err(io::Error::from),
    }
}

/// Executes the command in place of this process. Returns why it could not.
fn execute(plan: &ConfinedPlan) -> io::Error {
    let Some((program, arguments)) = plan.command.split_first() else {
        return ErrorKind::InvalidInput.into();
    };
    let prepared = process::close_others_at_exec().and_then(|()| signals::release());
    if let Err(error) = prepared {
        return error;
    }
    let mut command = Command::new(program);
    command.args(arguments).envs(plan.variables.iter().map(|(name, value)| (name, value)));
    for name in &plan.removed {
        command.env_remove(name);
    }
    command.exec()
}
