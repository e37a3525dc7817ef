//! A fault of ours in a message of another process's flows.

use std::sync::mpsc::{RecvError, sync_channel};

use super::*;
use crate::flows::receive;
use crate::worker::inbox::Inbox;

/// The process that has sent it hears that there is no answer, and the worker takes the next one.
#[test]
fn a_worker_takes_messages_after_a_panic() {
    let network = Network::new();
    let (old, new) = (worker(), worker());
    let (mut stepper, _program) = network.serve(&old);
    let _client = network.begin(&mut stepper, PANICS);
    let again = old.leave_datagrams(from_ref(&network.listener), true);
    let mut messages = copies(&leave(&old, 100));
    messages.push((Vec::new(), Vec::new()));
    let (after, _program) = network.serve(&new);
    let (process, datagrams) = mpsc::channel(1);
    let (to, flows) = mpsc::channel(messages.len());
    let said = messages.into_iter().map(|(body, sockets)| {
        let (placed, said) = sync_channel(1);
        to.try_send(FlowNews::Message { body, sockets, placed }).unwrap();
        said
    });
    let said: Vec<_> = said.collect();
    let inbox = Inbox { datagrams, flows, shedding: Arc::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let receiving = tokio::task::spawn_local(receive(new.clone(), inbox));
        for _ in 0..ROUNDS {
            tokio::task::yield_now().await;
        }
        drop(process);
        receiving.await.unwrap();
    });
    assert_eq!(said[0].recv(), Err(RecvError));
    assert!(said[1].recv().unwrap().is_err(), "it is none");
    assert_eq!(new.flows.table.borrow().open(), 0);
    drop(again);
    end(after, new);
    end(stepper, old);
}
