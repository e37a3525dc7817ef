//! Bytes through untouched: small ones by read and write, bulk by splice(2) through a pooled pipe.
//! It must not know what the bytes mean.

use std::io;

use super::{
    BULK_DOWN, BULK_UP, Buffers, CLIENT_ENDED, Failed, Flow, More, PIPE_BYTES, Progress,
    SHARE_BYTES, Sockets, UPSTREAM_ENDED, conclude,
};
use crate::lot::{CLIENT, READ, Side, UPSTREAM};
use crate::story::{End, Outcome, Parked};

/// Bytes read at once before a direction counts as bulk: what one read of a full default socket
/// buffer gives; a TLS flight is smaller.
const COPY_BYTES: usize = 64 << 10;
/// A bulk read that brings less than this ends the bulk: two system calls for it are dearer than
/// two copies.
const BULK_BYTES_MIN: usize = 16 << 10;

/// Moves what can be moved, both ways.
pub fn run(
    flow: &mut Flow,
    sockets: &mut Sockets<'_>,
    story: &mut Parked,
    buffers: &mut Buffers,
) -> Progress {
    let up = direction(flow, sockets, CLIENT, buffers, story);
    // Even where the upstream cannot be written any more, what it said before goes to the client.
    let down = direction(flow, sockets, UPSTREAM, buffers, story);
    match (up, down) {
        (Ok(up), Ok(down)) => conclude(flow, up, down, Outcome::Spliced),
        (Err(failed), _) | (_, Err(failed)) => Progress::Reset(match flow.never(story) {
            Some(reason) => End { outcome: Outcome::Refused, reason },
            None => End { outcome: Outcome::Spliced, reason: failed.reason() },
        }),
    }
}

/// Moves one direction; whether its share of the turn was used up with more to come.
fn direction(
    flow: &mut Flow,
    sockets: &mut Sockets<'_>,
    from: Side,
    buffers: &mut Buffers,
    story: &mut Parked,
) -> Result<More, Failed> {
    let to = UPSTREAM - from;
    let (ended, bulk) =
        if from == CLIENT { (CLIENT_ENDED, BULK_UP) } else { (UPSTREAM_ENDED, BULK_DOWN) };
    let mut share = SHARE_BYTES;
    while sockets.flush(flow, to, buffers)? && !flow.has(ended) && sockets.ready.any(from, READ) {
        if share == 0 {
            return Ok(More::Again);
        }
        let Some(room) = sockets.room(to, buffers) else { return Ok(More::Later) };
        let read = if flow.has(bulk) {
            pump(flow, sockets, from, buffers, room, story)?
        } else {
            copy(flow, sockets, from, buffers, room, story)?
        };
        match read {
            None => {}
            Some(0) => {
                flow.let_go(from);
                flow.note_end(from);
            }
            Some(read) => {
                match from {
                    CLIENT => story.bytes_to_upstream += read as u64,
                    _ => story.bytes_to_client += read as u64,
                }
                share = share.saturating_sub(read);
            }
        }
    }
    sockets.tell_end(flow, to)?;
    Ok(More::No)
}

fn copy(
    flow: &mut Flow,
    sockets: &mut Sockets<'_>,
    from: Side,
    buffers: &mut Buffers,
    room: usize,
    story: &mut Parked,
) -> Result<Option<usize>, Failed> {
    let to = UPSTREAM - from;
    let room = COPY_BYTES.min(room);
    let Some(read) = sockets.recv(from, &mut buffers.input[..room])? else {
        return Ok(None);
    };
    let mut bytes = &buffers.input[..read];
    if flow.is_watched(from) {
        let mut chosen = false;
        let passed = flow.pass(from, bytes, story.sni(), &mut chosen);
        story.compression_chosen |= chosen;
        // The reason is the watch's: see `run`.
        let stopped = |_| Failed { side: from, error: io::ErrorKind::PermissionDenied.into() };
        bytes = &bytes[..passed.map_err(stopped)?];
    }
    if !bytes.is_empty() {
        let sent = sockets.send(to, bytes)?;
        flow.hold(to, &bytes[sent..]);
    }
    if read == COPY_BYTES && !flow.is_watched(from) {
        flow.flags |= if from == CLIENT { BULK_UP } else { BULK_DOWN };
    }
    Ok(Some(read))
}

fn pump(
    flow: &mut Flow,
    sockets: &mut Sockets<'_>,
    from: Side,
    buffers: &mut Buffers,
    room: usize,
    story: &mut Parked,
) -> Result<Option<usize>, Failed> {
    let to = UPSTREAM - from;
    let bulk = if from == CLIENT { BULK_UP } else { BULK_DOWN };
    let (Some(source), Some(pipe)) = (sockets.socket(from), buffers.pipe()) else {
        // Out of descriptors for pipes: copying still works.
        flow.flags &= !bulk;
        return copy(flow, sockets, from, buffers, room, story);
    };
    let filled = pipe.fill(source, PIPE_BYTES);
    // A short splice says nothing of what is left: a pipe takes so many pieces, not bytes.
    let filled = sockets.note_read(from, filled, 0)?;
    match filled {
        // Drained, and still bulk: what comes next need not begin with a copy.
        None | Some(0) => buffers.give_back(pipe),
        Some(filled) => {
            if filled < BULK_BYTES_MIN {
                flow.flags &= !bulk;
            }
            let pending = flow.pending();
            let held = if to == CLIENT { &mut pending.to_client } else { &mut pending.to_upstream };
            held.pipe = Some((pipe, filled));
        }
    }
    Ok(filled)
}
