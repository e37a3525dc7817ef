//! Moves bytes untouched: few by read and write, bulk by splice(2) through a pooled pipe.

use std::io;
use std::net::SocketAddr;

use super::buffers::Buffers;
use super::flow::Flow;
use super::flow::direction::Mode;
use super::sockets::{Failed, More, Progress, Sockets, conclude};
use crate::ready::{CLIENT, READ, Side, UPSTREAM};
use eyelet_memory::interner::{Heap, Name};
use eyelet_telemetry::held::HeldInfo;
use eyelet_telemetry::info::{Decided, End, Outcome, Parked, UpstreamName};

/// A read of so many bytes makes a direction bulk. One read of a full default socket buffer gives
/// as much; a TLS flight is smaller.
const COPY_BYTES: usize = 64 << 10;
/// A bulk read of fewer bytes ends the bulk: two system calls cost more than two copies.
const BULK_BYTES_MIN: usize = 16 << 10;

/// A spliced connection between two wakes. It may be this large at no cost: a terminated one needs
/// as much for its keys, in the same slot.
pub struct Spliced {
    /// Bytes in transit.
    pub flow: Flow,
    destination: Option<SocketAddr>,
    upstream: Option<SocketAddr>,
    name: Option<Name>,
    held: Option<HeldInfo>,
}

impl Spliced {
    /// Takes name, address, and what became of a held one, which differ between most connections,
    /// out of `decided`. What is left is the same for many connections, which share it.
    pub fn new(flow: Flow, decided: &mut Decided) -> Self {
        let destination = decided.destination.take();
        let held = decided.held.take();
        let mut spliced = Self { flow, destination, upstream: None, name: None, held };
        if let Some(UpstreamName::Address(address)) = decided.upstream {
            (spliced.upstream, decided.upstream) = (Some(address), None);
        }
        spliced.name = decided.sni.take().map(Name::from);
        spliced
    }

    /// Bytes on the heap, for a name that is too long to be stored inline.
    pub fn name_bytes(&self) -> usize {
        self.name.as_ref().map_or(0, Heap::heap_bytes)
    }

    /// The name in the hello.
    pub fn sni(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// The address that was dialled.
    pub fn upstream(&self) -> Option<UpstreamName> {
        self.upstream.map(UpstreamName::Address)
    }

    /// Copies name and address back, to be logged.
    pub fn restore(&self, decided: &mut Decided) {
        decided.destination = self.destination;
        if let Some(upstream) = self.upstream {
            decided.upstream = Some(UpstreamName::Address(upstream));
        }
        decided.sni = self.sni().map(Into::into);
        decided.held = self.held;
    }
}

/// Moves what can be moved, both ways.
pub fn run(
    spliced: &mut Spliced,
    sockets: &mut Sockets<'_>,
    info: &mut Parked,
    buffers: &mut Buffers,
) -> Progress {
    let up = direction(spliced, sockets, CLIENT, buffers, info);
    let down = if spliced.flow.is_refused() {
        Ok(More::No)
    } else {
        // Even if the upstream cannot be written any more, the client gets what it sent before.
        direction(spliced, sockets, UPSTREAM, buffers, info)
    };
    let flow = &mut spliced.flow;
    match (up, down) {
        (Ok(up), Ok(down)) => conclude(flow, up, down, Outcome::Spliced),
        (Err(failed), _) | (_, Err(failed)) => Progress::Reset(match flow.never(info) {
            Some(reason) => End { outcome: Outcome::Refused, reason },
            None => End { outcome: Outcome::Spliced, reason: failed.reason() },
        }),
    }
}

/// Moves one direction. Returns whether it has more to move.
fn direction(
    spliced: &mut Spliced,
    sockets: &mut Sockets<'_>,
    from: Side,
    buffers: &mut Buffers,
    info: &mut Parked,
) -> Result<More, Failed> {
    // A writable socket is no work if nothing is held for it.
    if spliced.flow.transit().is_none() && !sockets.ready.any(from, READ) {
        return Ok(More::No);
    }
    let to = UPSTREAM - from;
    let mut share = buffers.share_bytes;
    loop {
        let flow = &mut spliced.flow;
        if !sockets.flush(flow, to, buffers)?
            || !flow.is_open(from)
            || !sockets.ready.any(from, READ)
        {
            break;
        }
        if share == 0 {
            return Ok(More::Again);
        }
        let Some(room) = sockets.room(to, buffers) else { return Ok(More::Later) };
        let read = if let Some(Mode::Bulk) = flow.mode(from) {
            pump(spliced, sockets, from, buffers, room, info)?
        } else {
            copy(spliced, sockets, from, buffers, room, info)?
        };
        match read {
            None => {}
            Some(0) => {
                spliced.flow.release(from);
                spliced.flow.note_fin(from);
            }
            Some(read) => {
                match from {
                    CLIENT => info.bytes_to_upstream += read as u64,
                    _ => info.bytes_to_client += read as u64,
                }
                share = share.saturating_sub(read);
            }
        }
    }
    sockets.pass_end(&mut spliced.flow, to)?;
    Ok(More::No)
}

fn copy(
    spliced: &mut Spliced,
    sockets: &mut Sockets<'_>,
    from: Side,
    buffers: &mut Buffers,
    room: usize,
    info: &mut Parked,
) -> Result<Option<usize>, Failed> {
    let to = UPSTREAM - from;
    let room = COPY_BYTES.min(room);
    let Some(read) = sockets.recv(from, &mut buffers.input[..room])? else {
        return Ok(None);
    };
    let mut bytes = &buffers.input[..read];
    let flow = &mut spliced.flow;
    if flow.is_inspected(from) {
        let mut chosen = false;
        // It is compared with the client's hello, and reading it takes a check of its UTF-8.
        let name = spliced.name.as_ref().filter(|_| from == CLIENT).map(Name::as_str);
        let passed = flow.pass(from, bytes, name, &mut chosen);
        if chosen {
            info.choose_compression();
        }
        // The inspection has the reason: see `run`.
        let stopped = |_| Failed { side: from, error: io::ErrorKind::PermissionDenied.into() };
        bytes = &bytes[..passed.map_err(stopped)?];
    }
    if !bytes.is_empty() {
        sockets.no_delay(flow, to);
        let sent = sockets.send(to, bytes)?;
        flow.hold(to, &bytes[sent..]);
    }
    if read == COPY_BYTES
        && let Some(mode @ Mode::Copy) = flow.mode(from)
    {
        *mode = Mode::Bulk;
    }
    Ok(Some(read))
}

fn pump(
    spliced: &mut Spliced,
    sockets: &mut Sockets<'_>,
    from: Side,
    buffers: &mut Buffers,
    room: usize,
    info: &mut Parked,
) -> Result<Option<usize>, Failed> {
    let to = UPSTREAM - from;
    let flow = &mut spliced.flow;
    let (Some(source), Some(lent)) = (sockets.socket(from), buffers.pipe()) else {
        // No descriptors for a pipe: copying still works.
        end_bulk(flow, from);
        return copy(spliced, sockets, from, buffers, room, info);
    };
    let filled = lent.pipe.fill(source, buffers.share_bytes);
    // A short splice does not mean an empty socket: a pipe takes a number of pieces, not of bytes.
    let filled = sockets.note_read(from, filled, 0)?;
    match filled {
        // Drained, and still bulk: the next bytes need not begin with a copy.
        None | Some(0) => buffers.give_back(lent),
        Some(filled) => {
            if filled < BULK_BYTES_MIN {
                end_bulk(flow, from);
            }
            let pending = flow.pending();
            let held = if to == CLIENT { &mut pending.to_client } else { &mut pending.to_upstream };
            held.pipe = Some((lent, filled));
        }
    }
    Ok(filled)
}

fn end_bulk(flow: &mut Flow, from: Side) {
    if let Some(mode @ Mode::Bulk) = flow.mode(from) {
        *mode = Mode::Copy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and address come back, and what is left is the same for all connections.
    #[test]
    fn names_and_addresses_are_kept_and_logged() {
        let addresses = [SocketAddr::from(([192, 0, 2, 1], 443)), ([0; 16], 1).into()];
        for len in [0, 1, 46, 47, 253] {
            for address in addresses {
                let decided = Decided {
                    sni: Some("n".repeat(len).into()),
                    destination: Some(address),
                    upstream: Some(UpstreamName::Address(address)),
                    ..Decided::default()
                };
                let mut left = decided.clone();
                let spliced = Spliced::new(Flow::default(), &mut left);
                assert_eq!(left, Decided::default());
                spliced.restore(&mut left);
                assert_eq!(left, decided);
            }
        }
    }

    #[test]
    fn an_upstream_without_an_address_stays_with_what_is_shared() {
        let decided = Decided { upstream: Some(UpstreamName::of("unix:/x")), ..Decided::default() };
        let mut left = decided.clone();
        let spliced = Spliced::new(Flow::default(), &mut left);
        assert_eq!(left, decided);
        spliced.restore(&mut left);
        assert_eq!(left, decided);
    }
}
