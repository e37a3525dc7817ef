//! Flows whose upstream is not there: their clients are told, and their lines say so.

use super::*;

/// The upstream of a flow is gone. A client that no server has answered is told so once for each of
/// its datagrams; one that was answered, or whose guard has no word for it, is not.
#[test]
fn a_client_without_an_upstream_is_told() {
    for (last, is_answered) in [(1, false), (1, true), (UNTOLD, false)] {
        let (mut network, worker) = (Network::new(), worker());
        let (mut stepper, program) = network.serve(&worker);
        let client = network.begin(&mut stepper, last);
        let (_, edge) = network.heard().unwrap();
        if is_answered {
            network.server.send_to(&long(0, b"client", b"server-1", 1200, 9), edge).unwrap();
            stepper.iterate();
            assert_eq!(client.recv(&mut [0; 2048]).unwrap(), 1200);
        }
        network.server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let is_told = !is_answered && last != UNTOLD;
        let next = long(0, b"first-id", b"client", 1200, 9);
        client.send(&next).unwrap();
        stepper.iterate();
        stepper.iterate();
        let lines = program.logged.take();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].2.contains("refused"), "{lines:?}");
        let mut told = [0; 64];
        let heard = client.recv(&mut told).map(|len| told[..len].to_vec());
        assert_eq!(heard.ok(), is_told.then(|| REFUSAL.to_vec()));
        assert_eq!(worker.process.open.load(Relaxed), 0);
        assert_eq!(worker.process.descriptors.load(Relaxed), 0);
        if is_told {
            client.send(&next).unwrap();
            stepper.iterate();
            assert_eq!(client.recv(&mut told).unwrap(), REFUSAL.len(), "its repetition, too");
            assert!(program.logged.borrow().is_empty());
        }
        end(stepper, worker);
    }
}

/// Of a hello in two datagrams the first has the kernel say that nobody listens, and the second one
/// hears of it.
#[test]
fn a_client_whose_hello_is_in_two_datagrams_is_told() {
    let (mut network, worker) = (Network::new(), worker());
    let (mut stepper, program) = network.serve(&worker);
    network.server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = network.client();
    for last in [IN_TWO, 10] {
        client.send(&long(0, b"first-id", b"client", 1200, last)).unwrap();
    }
    stepper.iterate();
    let mut told = [0; 64];
    let heard = client.recv(&mut told).map(|len| told[..len].to_vec());
    assert_eq!(heard.ok(), Some(REFUSAL.to_vec()));
    let lines = program.logged.take();
    assert!(lines.len() == 1 && lines[0].2.contains("refused"), "{lines:?}");
    assert_eq!(worker.process.open.load(Relaxed), 0);
    assert_eq!(worker.process.descriptors.load(Relaxed), 0);
    end(stepper, worker);
}
