//! Tests of the old process in an upgrade: who owns a batch at each answer, and at none.

#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

use parking_lot::{Mutex, MutexGuard};

use eyelet_engine::departure::LeavingBatch;

use super::*;

/// One test at a time: a program cannot be started while another test's child has it open for
/// writing (ETXTBSY), which it inherits for a moment.
static ALONE: Mutex<()> = Mutex::new(());

/// A plan to start a program that does nothing.
fn hanging(folder: &Path) -> (Plan, MutexGuard<'static, ()>) {
    let alone = ALONE.lock();
    let program = folder.join("hangs");
    std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let plan = Plan {
        program,
        file: PathBuf::from("edge.toml"),
        listeners: Arc::new([]),
        workers: 1,
        first_id: 1,
        upstreams: BTreeMap::new(),
        tickets: Zeroizing::default(),
        predecessors: Arc::default(),
        holds: Arc::default(),
        is_off: Arc::default(),
    };
    (plan, alone)
}

/// It is dead before anybody hears of it and takes the connections back.
#[test]
fn a_process_that_does_not_answer_a_batch_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, _alone) = hanging(folder.path());
    let mut successor = plan.start().unwrap();
    let process = PathBuf::from(format!("/proc/{}", successor.child.id()));
    (successor.reads_connections, successor.answer_timeout) = (true, STEP);
    let socket = Arc::new(OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()));
    let sockets = vec![socket.clone()];
    let batch = LeavingBatch { states: Zeroizing::default(), sockets, group: None };
    let (answer, end) = successor.move_batch(batch);
    assert_eq!(answer, None);
    assert_eq!(end.unwrap_err().to_string(), "the other process is too slow");
    assert_eq!(Arc::strong_count(&socket), 1, "the worker is the only one that has it");
    assert!(process.exists());
    drop(successor);
    assert!(!process.exists(), "it is killed and reaped");
}

#[test]
fn a_process_that_reads_another_format_gets_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, _alone) = hanging(folder.path());
    let mut successor = plan.start().unwrap();
    let batch = LeavingBatch { states: Zeroizing::default(), sockets: Vec::new(), group: None };
    let (answer, end) = successor.move_batch(batch);
    assert_eq!(answer, Some(BatchAnswer::Refused));
    end.unwrap();
}

#[test]
fn a_program_that_hangs_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, _alone) = hanging(folder.path());
    let mut successor = plan.start().unwrap();
    let process = PathBuf::from(format!("/proc/{}", successor.child.id()));
    let error = plan.introduce(&mut successor, STEP).unwrap_err();
    assert!(matches!(error, UpgradeError::Slow), "{error}");
    assert!(process.exists());
    drop(successor);
    assert!(!process.exists(), "it is killed and reaped");
    plan.is_off.store(true, Relaxed);
    let mut successor = plan.start().unwrap();
    let error = plan.introduce(&mut successor, START_TIMEOUT).unwrap_err();
    assert!(matches!(error, UpgradeError::Over), "{error}");
}
