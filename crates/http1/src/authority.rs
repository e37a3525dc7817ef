//! The authority of a request: a host, and a port if there is one (RFC 9110 4.2).

use std::cell::RefCell;
use std::ops::Range;

use bytes::Bytes;
use http::uri::Authority;

use super::fault::RequestFault;

/// Hosts that a worker keeps for its next requests: a client mostly asks one host.
const HOSTS_KEPT: usize = 8;
/// Bytes of the longest one: a name and a port.
const HOST_BYTES_KEPT: usize = 260;

thread_local! {
    /// The last hosts that were read, by their texts.
    static KEPT: RefCell<[Option<Authority>; HOSTS_KEPT]> =
        const { RefCell::new([const { None }; HOSTS_KEPT]) };
}

/// The authority at this place of a head. A long one shares the memory of the head.
pub(super) fn read_host_text(head: &Bytes, place: Range<usize>) -> Result<Authority, RequestFault> {
    if place.len() > HOST_BYTES_KEPT {
        return read_shared_authority(head.slice(place));
    }
    let text = &head[place];
    let last = text.last().map_or(0, |byte| usize::from(*byte));
    KEPT.with_borrow_mut(|kept| {
        let known = &mut kept[(text.len() ^ last) % HOSTS_KEPT];
        if let Some(known) = known
            && known.as_str().as_bytes() == text
        {
            return Ok(known.clone());
        }
        let read = read_authority(text)?;
        *known = Some(read.clone());
        Ok(read)
    })
}

/// `uri-host [ ":" port ]`, without user information.
pub fn read_authority(text: &[u8]) -> Result<Authority, RequestFault> {
    checked(Authority::try_from(text).map_err(|_| RequestFault::Host)?)
}

/// An authority that shares the memory of its text.
pub fn read_shared_authority(text: Bytes) -> Result<Authority, RequestFault> {
    checked(Authority::from_maybe_shared(text).map_err(|_| RequestFault::Host)?)
}

/// An authority whose host and port are none that readers take for others.
pub(super) fn checked(authority: Authority) -> Result<Authority, RequestFault> {
    // This also refuses user information: it ends in `@`, or the port begins in it.
    let (host, port) = split_port(authority.as_str());
    let port_fits = match port.strip_prefix(':') {
        None => port.is_empty(),
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit())
                && (digits.is_empty() || digits.parse::<u16>().is_ok())
        }
    };
    // One trailing dot is the root of a full name (RFC 1034 section 3.1). No other label may be
    // empty: a reader that drops empty labels would see another name.
    // The loop has no early end, so it has no branch for each byte.
    let (is_plain, _) = host.bytes().fold((true, b'.'), |(all, before), byte| {
        let is_label_empty = (before == b'.') & (byte == b'.');
        (all & HOST_BYTES[usize::from(byte)] & !is_label_empty, byte)
    });
    if host.is_empty() || !port_fits || !is_plain {
        return Err(RequestFault::Host);
    }
    Ok(authority)
}

/// The bytes that a host may consist of.
static HOST_BYTES: [bool; 256] = {
    let (mut bytes, mut byte) = ([false; 256], 0);
    while byte < 256 {
        let is_mark = matches!(byte as u8, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']');
        bytes[byte] = (byte as u8).is_ascii_alphanumeric() || is_mark;
        byte += 1;
    }
    bytes
};

/// The host of an authority without user information, and the rest: a port behind its colon.
pub fn split_port(authority: &str) -> (&str, &str) {
    // Bytes, because a search for a `char` costs more than all of a short text.
    let at = |wanted: u8| authority.bytes().position(|byte| byte == wanted);
    let end = if authority.starts_with('[') { at(b']').map(|at| at + 1) } else { at(b':') };
    authority.split_at(end.unwrap_or(authority.len()))
}
