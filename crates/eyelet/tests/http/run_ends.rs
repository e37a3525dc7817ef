//! Commands of `eyelet run` that do not end when they are asked to.

use rustix::process::Signal;

use crate::run::Run;

/// It has ten seconds, which is said, and a second Ctrl-C ends them.
#[test]
fn a_command_that_ignores_ctrl_c_is_said_to_and_killed_by_the_second() {
    let script = "trap '' INT TERM; echo ready; while :; do sleep 0.1; done";
    let mut run = Run::start(&[], &["sh", "-c", script]);
    run.talk.hear("ready\n");
    run.talk.signal(Signal::INT);
    run.talk.hear("eyelet: the command has 10 s to end; Ctrl-C again kills it\n");
    run.talk.signal(Signal::INT);
    let said = run.talk.finish();
    assert!(said.text.ends_with("eyelet: killed it\n"), "{}", said.text);
    assert_eq!(said.status.code(), Some(137), "{}", said.text);
}

/// Nobody is at a terminal, for all that is known.
#[test]
fn a_command_that_ignores_sigterm_is_not_said_to_end_by_ctrl_c() {
    let script = "trap '' INT; trap 'sleep 1.5; echo stays' TERM; echo ready; \
        while :; do sleep 0.1; done";
    let mut run = Run::start(&[], &["sh", "-c", script]);
    run.talk.hear("ready\n");
    run.talk.signal(Signal::TERM);
    run.talk.hear("stays\n");
    run.talk.signal(Signal::INT);
    let said = run.talk.finish();
    assert!(!said.text.contains("Ctrl-C"), "{}", said.text);
    assert!(said.text.ends_with("eyelet: killed it\n"), "{}", said.text);
}

/// Nothing is said of one that ends at once.
#[test]
fn a_command_that_ends_is_not_said_to_have_time() {
    let run = Run::start(&[], &["sh", "-c", "echo ready; exec sleep 600"]);
    let mut talk = run.talk;
    talk.hear("ready\n");
    talk.signal(Signal::INT);
    let said = talk.finish();
    assert!(!said.text.contains("to end") && !said.text.contains("killed"), "{}", said.text);
    assert_eq!(said.status.code(), Some(130), "{}", said.text);
}
