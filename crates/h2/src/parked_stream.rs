//! An open stream of a parked connection, as an entry of fixed length: written, read, checked, and
//! changed where it is.

use crate::limits::PARKED_STREAMS_MAX;
use crate::priority::{Priority, URGENCY_MAX};
use crate::role::H2Role;
use crate::stream::{H2Stream, Receiving, RequestKind, Sending};
use crate::window::{ReceiveWindow, SendWindow, WINDOW_MAX};

/// Bytes of an entry: the identifier, the window for sending, that for receiving and its size, the
/// rest of the `content-length`, and the bits below.
pub const PARKED_STREAM_BYTES: usize = 4 * 4 + 8 + 2;

/// An entry.
pub(crate) type StreamEntry = [u8; PARKED_STREAM_BYTES];

/// The bits: two of [`Sending`], three of [`Receiving`], three of the urgency, and two flags.
const RECEIVING_SHIFT: u16 = 2;
const URGENCY_SHIFT: u16 = 5;
const IS_INCREMENTAL: u16 = 1 << 8;
const IS_DROP: u16 = 1 << 9;
const ALL_BITS: u16 = (1 << 10) - 1;
const SENDING_MASK: u16 = 3;
const RECEIVING_MASK: u16 = 7;

/// The reason why an entry is not one of an open stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEntryFault {
    /// Its identifier is even, not above the one before, or above the last stream.
    Id,
    /// Both directions have ended, or one is where this role cannot be, or a bit is unknown.
    State,
    /// A window is beyond 2^31-1, or may take more than its size.
    Window,
}

/// Appends a stream. Its caller holds none of its data. The window for data that will not come is
/// not kept.
pub(crate) fn write(stream: &H2Stream, out: &mut Vec<u8>) {
    out.extend_from_slice(&entry_of(stream));
}

fn entry_of(stream: &H2Stream) -> StreamEntry {
    let (receiving, missing) = match stream.receiving {
        Receiving::Ended => (0, 0),
        Receiving::Body { left: None } => (1, 0),
        Receiving::Body { left: Some(left) } => (2, left),
        Receiving::Head { request: RequestKind::Head } => (3, 0),
        Receiving::Head { request: RequestKind::Connect } => (4, 0),
        Receiving::Head { request: RequestKind::Other } => (5, 0),
    };
    let (left, size) = match stream.receiving {
        Receiving::Ended => (0, 0),
        _ => (stream.receive_window.left(), stream.receive_window.size()),
    };
    let Priority { urgency, incremental } = stream.priority;
    let bits = stream.sending as u16
        | receiving << RECEIVING_SHIFT
        | u16::from(urgency) << URGENCY_SHIFT
        | if incremental { IS_INCREMENTAL } else { 0 }
        | if stream.is_drop { IS_DROP } else { 0 };
    let mut entry = [0; PARKED_STREAM_BYTES];
    let fields = [
        &stream.id.to_be_bytes()[..],
        &stream.send_window.0.to_be_bytes(),
        &left.to_be_bytes(),
        &size.to_be_bytes(),
        &missing.to_be_bytes(),
        &bits.to_be_bytes(),
    ];
    let bytes = fields.into_iter().flatten();
    entry.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    entry
}

fn id_of(entry: &StreamEntry) -> u32 {
    let [a, b, c, d, ..] = *entry;
    u32::from_be_bytes([a, b, c, d])
}

/// The stream of an entry.
pub(crate) fn read(entry: &StreamEntry) -> Result<H2Stream, StreamEntryFault> {
    let word = |at: usize| {
        let bytes = entry.get(at..).and_then(<[u8]>::first_chunk::<4>);
        bytes.copied().map(u32::from_be_bytes).unwrap_or_default()
    };
    let [.., high, low] = *entry;
    let bits = u16::from_be_bytes([high, low]);
    let missing = u64::from(word(16)) << 32 | u64::from(word(20));
    let sending = match bits & SENDING_MASK {
        0 => Sending::Head,
        1 => Sending::Body,
        2 => Sending::Ended,
        _ => return Err(StreamEntryFault::State),
    };
    let receiving = match bits >> RECEIVING_SHIFT & RECEIVING_MASK {
        0 => Receiving::Ended,
        1 => Receiving::Body { left: None },
        2 => Receiving::Body { left: Some(missing) },
        3 => Receiving::Head { request: RequestKind::Head },
        4 => Receiving::Head { request: RequestKind::Connect },
        5 => Receiving::Head { request: RequestKind::Other },
        _ => return Err(StreamEntryFault::State),
    };
    let has_length = matches!(receiving, Receiving::Body { left: Some(_) });
    if bits & !ALL_BITS != 0 || missing != 0 && !has_length {
        return Err(StreamEntryFault::State);
    }
    let (send, left, size) = (word(4).cast_signed(), word(8).cast_signed(), word(12));
    let is_kept = receiving != Receiving::Ended || (left, size) == (0, 0);
    // No less than the largest size that was changed to 0 (RFC 9113 section 6.9.2).
    let is_wide = [send, left].iter().all(|window| window.unsigned_abs() <= WINDOW_MAX);
    if !is_kept || !is_wide || size > WINDOW_MAX || i64::from(left) > i64::from(size) {
        return Err(StreamEntryFault::Window);
    }
    Ok(H2Stream {
        id: id_of(entry),
        sending,
        receiving,
        send_window: SendWindow(send),
        receive_window: ReceiveWindow::restored(size, left),
        priority: Priority {
            urgency: (bits >> URGENCY_SHIFT) as u8 & URGENCY_MAX,
            incremental: bits & IS_INCREMENTAL != 0,
        },
        wants_to_send: false,
        is_drop: bits & IS_DROP != 0,
    })
}

/// The streams of all entries. `last` is the highest that can be open.
///
/// # Errors
/// The first entry that is not possible, by its index.
pub(crate) fn read_all(
    entries: &[StreamEntry],
    role: H2Role,
    last: u32,
) -> Result<Vec<H2Stream>, (usize, StreamEntryFault)> {
    let mut streams: Vec<H2Stream> = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let stream = read(entry).map_err(|fault| (index, fault))?;
        let before = streams.last().map_or(0, |before| before.id);
        if stream.id.is_multiple_of(2) || stream.id <= before || stream.id > last {
            return Err((index, StreamEntryFault::Id));
        }
        // A client sends its request's head as a stream begins, and a server has read it by then.
        let is_of_role = match role {
            H2Role::Client => stream.sending != Sending::Head,
            H2Role::Server => !matches!(stream.receiving, Receiving::Head { .. }),
        };
        if !is_of_role || stream.has_ended() {
            return Err((index, StreamEntryFault::State));
        }
        streams.push(stream);
    }
    Ok(streams)
}

/// The entries of a parked connection, changed where they are.
pub(crate) struct StreamEntries<'a>(pub(crate) &'a mut [StreamEntry]);

impl StreamEntries<'_> {
    /// True if a stream could send if the connection's window were open.
    pub(crate) fn may_send(&self) -> bool {
        self.0.iter().any(|entry| read(entry).is_ok_and(|stream| room(&stream) > 0))
    }

    /// Opens what may be sent on a stream. Does nothing if it has ended: the frame crossed our last
    /// one. `None` if the connection must decide: the window becomes too wide, or the stream can
    /// send and could not before.
    pub(crate) fn open(&mut self, id: u32, bytes: u32, is_open: bool) -> Option<()> {
        let Ok(at) = self.0.binary_search_by_key(&id, id_of) else { return Some(()) };
        let entry = self.0.get_mut(at)?;
        *entry = changed(entry, is_open, |window| window.open(bytes))?;
        Some(())
    }

    /// Follows a changed SETTINGS_INITIAL_WINDOW_SIZE on all streams, or on none: `None` as above.
    pub(crate) fn resize(&mut self, (from, to): (u32, u32), is_open: bool) -> Option<()> {
        let resized = |entry: &StreamEntry| changed(entry, is_open, |it| it.resize(from, to));
        if from == to {
            return Some(());
        }
        if self.0.iter().any(|entry| resized(entry).is_none()) {
            return None;
        }
        for entry in self.0.iter_mut() {
            *entry = resized(entry)?;
        }
        Some(())
    }
}

/// An entry with another window. `is_open`: that of the connection is.
fn changed(
    entry: &StreamEntry,
    is_open: bool,
    change: impl Fn(&mut SendWindow) -> Option<()>,
) -> Option<StreamEntry> {
    let mut stream = read(entry).ok()?;
    let before = room(&stream);
    change(&mut stream.send_window)?;
    // Its caller may have stopped because the window was closed.
    let is_freed = is_open && before == 0 && room(&stream) > 0;
    (!is_freed).then(|| entry_of(&stream))
}

fn room(stream: &H2Stream) -> usize {
    if stream.sending == Sending::Body { stream.send_window.left() } else { 0 }
}

/// The entries at the beginning of these bytes.
pub(crate) fn split(bytes: &[u8], count: u16) -> Option<(&[StreamEntry], &[u8])> {
    let (entries, rest) = bytes.split_at_checked(usize::from(count) * PARKED_STREAM_BYTES)?;
    Some((entries.as_chunks().0, rest))
}

/// Splits off the entries, to change them.
pub(crate) fn split_mut(bytes: &mut [u8], count: u16) -> Option<StreamEntries<'_>> {
    let entries = bytes.get_mut(..usize::from(count) * PARKED_STREAM_BYTES)?;
    Some(StreamEntries(entries.as_chunks_mut().0))
}

/// All entries of a connection fit two bytes of length.
const _: () = assert!(PARKED_STREAMS_MAX as usize * PARKED_STREAM_BYTES <= u16::MAX as usize);
