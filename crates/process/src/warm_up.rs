//! Each worker's warm-up: a handshake and an echo with itself before it accepts connections. It has
//! no slot and no access line.
//!
//! Libraries allocate state when a thread first uses them (random number generators, tables). The
//! warm-up makes these allocations while the heap is small, so they lie together. In a first burst
//! of connections they would be scattered over free memory and pin its pages for life.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;

use eyelet_record::Session;
use eyelet_sys::socket;
use rustls::{ClientConnection, Error};
use rustls_pki_types::ServerName;

use eyelet_config::{Action, Terminate};
use eyelet_edge::path::handshake::{self, Handshaken};
use eyelet_edge::snapshot::edge::Edge;
use eyelet_engine::ready::{CLIENT, READ, Ready, UPSTREAM};
use eyelet_memory::budget::{Account, CountedBuffer};
use eyelet_relay::terminate::Terminated;
use eyelet_relay::{Buffers, Flow, Relay, Sockets};
use eyelet_telemetry::info::{ConnectionInfo, Parked, SharedInfo};
use eyelet_tls::provider;

/// The bytes that are echoed.
const WORD: &[u8] = b"hello";

/// Warms up with the first terminate rule that requests no client certificate. Without such a rule
/// it does nothing. A failure is logged and does not stop the start: clients may offer what our own
/// client does not.
pub fn warm_up(edge: &Edge) {
    let rules = &edge.snapshot.config.rules;
    let is_open = |t: &Terminate| t.client_ca.is_none() && t.client_spiffe.is_empty();
    let open = |action: &Action| matches!(action, Action::Terminate(t) if is_open(t));
    let Some(rule) = rules.iter().position(|rule| open(rule.action)) else { return };
    let warmed_up = shake(edge, rule as u32).and_then(|(done, client)| {
        let buffers = &mut *edge.engine.buffers.borrow_mut();
        buffers.piece = edge.snapshot.budget.piece();
        let shared = &mut edge.engine.shared.borrow_mut();
        echo(shared, buffers, done.session, client).map_err(|error| error.to_string())
    });
    if let Err(error) = warmed_up {
        let name = &rules.at(rule as u32).name;
        tracing::warn!("rule {name:?}: warm-up: a connection with itself fails: {error}");
    }
}

fn shake(edge: &Edge, rule: u32) -> Result<(Handshaken, ClientConnection), String> {
    let snapshot = &edge.snapshot;
    let mut config =
        snapshot.tls.of(&snapshot.config.rules, rule, None).map_err(|error| error.to_string())?;
    if config.certificates.is_empty() {
        // Those of this rule may not be issued yet.
        config.certificates = eyelet_acme::stand_in()?;
    }
    let mut client = client().map_err(|error| error.to_string())?;
    let incoming = CountedBuffer::of(&snapshot.budget, Account::Received);
    Ok((handshake::warm_up(config, &mut client, incoming)?, client))
}

fn client() -> Result<ClientConnection, Error> {
    let name = ServerName::from(std::net::IpAddr::from(UNSPECIFIED.0));
    ClientConnection::new(provider::key_only()?.into(), name)
}

/// Sends bytes through the relay to an upstream and back.
fn echo(
    shared: &mut SharedInfo,
    buffers: &mut Buffers,
    session: Session,
    client: ClientConnection,
) -> io::Result<()> {
    let mut relay = Relay::Terminate(Terminated { session, flow: Flow::default() });
    let client_address = SocketAddr::from(UNSPECIFIED);
    let mut info = ConnectionInfo::new(0, 0, client_address).park(shared);
    let said = there_and_back(&mut relay, &mut info, buffers, client);
    shared.forget(&info);
    said
}

fn there_and_back(
    relay: &mut Relay,
    info: &mut Parked,
    buffers: &mut Buffers,
    mut client: ClientConnection,
) -> io::Result<()> {
    let (outside, inside) = socket::pair()?;
    let (upstream, application) = socket::pair()?;
    let mut moved = |side| {
        let mut ready = Ready::default();
        ready.add(side, READ);
        let mut sockets = Sockets::new(inside.as_fd(), Some(upstream.as_fd()), &mut ready);
        eyelet_relay::run(relay, &mut sockets, info, buffers, &|_, _, _| 0)
    };
    let mut sealed = Vec::new();
    client.writer().write_all(WORD)?;
    client.write_tls(&mut sealed)?;
    socket::send(&outside, &sealed)?;
    moved(CLIENT);
    let mut said = [0; WORD.len()];
    socket::recv(&application, &mut said)?;
    socket::send(&application, &said)?;
    moved(UPSTREAM);
    let mut answer = [0; 64];
    let read = socket::recv(&outside, &mut answer)?;
    client.read_tls(&mut &answer[..read])?;
    client.process_new_packets().map_err(io::Error::other)?;
    client.reader().read_exact(&mut said)?;
    if said == WORD { Ok(()) } else { Err(io::Error::other("the echo differs")) }
}

/// No listener has this address.
const UNSPECIFIED: (Ipv4Addr, u16) = (Ipv4Addr::UNSPECIFIED, 0);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use eyelet_record::{Role, Suite};

    use super::*;
    use eyelet_memory::budget::Budget;
    use eyelet_relay::SHARE_BYTES;

    #[test]
    fn nothing_is_left_of_a_connection_that_fails() {
        let session = Session::tls13(Role::Server, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0);
        let (mut shared, mut buffers) =
            (SharedInfo::new(&Arc::new(Budget::new(64 << 20, 0))), Buffers::new(SHARE_BYTES));
        // A client that has not finished its handshake cannot be decrypted.
        echo(&mut shared, &mut buffers, session.unwrap(), client().unwrap()).unwrap_err();
        assert!(shared.is_empty());
    }
}
