//! Opens all records in a buffer, seals data that lies in slots side by side, and seals a control
//! record into a value of its own.

use std::ops::{Deref, Range};

use crate::fault::RecordFault;
use crate::keys::Keys;
use crate::open::{Incoming, Opened};
use crate::session::Session;
use crate::{CONTROL_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// The reason why no more records of a peer can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFailure {
    /// The peer ended the connection with this alert.
    Alert(u8),
    /// The peer broke the protocol, and gets the alert of this fault.
    Fault(RecordFault),
}

impl From<RecordFault> for OpenFailure {
    fn from(fault: RecordFault) -> Self {
        Self::Fault(fault)
    }
}

/// A sealed control record: a KeyUpdate or an alert. Empty: none was due, or none may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRecord {
    bytes: [u8; CONTROL_BYTES_MAX],
    len: usize,
}

impl Deref for ControlRecord {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Session {
    /// Opens the whole records at the start of `input`, in place, and gives where the unfinished
    /// one behind them begins. `take` is called for the data of each, with `input` and where in it
    /// the data lies; it may move what lies before that.
    ///
    /// A reply that is due is not sealed here, because several requests are one reply (RFC 8446
    /// section 4.6.3): see [`Session::control_due`]. Whether close_notify came is asked of
    /// [`Session::read_closed`].
    ///
    /// # Errors
    /// The peer's fault, or its fatal alert. What was opened before was taken.
    pub fn open_all(
        &mut self,
        keys: &mut Keys,
        input: &mut [u8],
        mut take: impl FnMut(&mut [u8], Range<usize>),
    ) -> Result<usize, OpenFailure> {
        let mut at = 0;
        while at < input.len()
            && let Opened::Record { consumed, what } = self.open(keys, &mut input[at..])?
        {
            match what {
                Incoming::Data(data) => take(input, at + data.start..at + data.end),
                Incoming::PeerAlert(code) => return Err(OpenFailure::Alert(code)),
                Incoming::CloseNotify | Incoming::Nothing | Incoming::Reply => {}
            }
            at += consumed;
        }
        Ok(at)
    }

    /// The room for the payload in each of the slots that divide `output`, for
    /// [`Session::seal_slots`].
    pub fn slots<'a>(&self, output: &'a mut [u8]) -> impl Iterator<Item = &'a mut [u8]> + use<'a> {
        let prefix = self.prefix_len();
        let slots = output.chunks_exact_mut(self.record_len(PAYLOAD_BYTES_MAX));
        slots.map(move |slot| &mut slot[prefix..][..PAYLOAD_BYTES_MAX])
    }

    /// Seals a payload that lies in the first slots of `output`, each but the last of them full.
    /// Full records lie side by side, so the records are one piece. Returns its length.
    ///
    /// # Errors
    /// As for [`Session::seal`].
    pub fn seal_slots(
        &mut self,
        keys: &mut Keys,
        output: &mut [u8],
        payload_len: usize,
    ) -> Result<usize, RecordFault> {
        let (mut at, mut left) = (0, payload_len);
        while left > 0 {
            let payload = left.min(PAYLOAD_BYTES_MAX);
            at += self.seal(keys, &mut output[at..], payload)?;
            left -= payload;
        }
        Ok(at)
    }

    /// The control record that is due, sealed; see [`Session::seal_control`].
    ///
    /// # Errors
    /// The keys are used up.
    pub fn control(&mut self, keys: &mut Keys) -> Result<ControlRecord, RecordFault> {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = self.seal_control(keys, &mut bytes)?;
        Ok(ControlRecord { bytes, len })
    }

    /// Seals an alert, which may be close_notify; see [`Session::seal_alert`]. Empty if the session
    /// may send none any more.
    pub fn alert(&mut self, keys: &mut Keys, description: u8) -> ControlRecord {
        let mut bytes = [0; CONTROL_BYTES_MAX];
        let len = self.seal_alert(keys, description, &mut bytes).unwrap_or(0);
        ControlRecord { bytes, len }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::suite::{Role, Suite};

    fn pair() -> (Session, Session) {
        let session =
            |role| Session::tls13(role, Suite::Aes128Gcm, &[1; 32], &[2; 32], 0, 0).unwrap();
        (session(Role::Client), session(Role::Server))
    }

    fn seal(session: &mut Session, text: &[u8]) -> Vec<u8> {
        let mut slot = vec![0; session.record_len(text.len())];
        let begin = session.prefix_len();
        slot[begin..begin + text.len()].copy_from_slice(text);
        session.seal(&mut Keys::new(), &mut slot, text.len()).unwrap();
        slot
    }

    #[test]
    fn all_whole_records_are_opened_and_the_last_one_is_left() {
        let (mut client, mut server) = pair();
        let mut input = seal(&mut client, b"one, ");
        client.request_key_update();
        input.extend_from_slice(&client.control(&mut Keys::new()).unwrap());
        input.extend(seal(&mut client, b"two"));
        let whole = input.len();
        input.extend(&seal(&mut client, b"three")[..9]);
        let mut heard = Vec::new();
        let take = |input: &mut [u8], data: Range<usize>| heard.extend_from_slice(&input[data]);
        assert_eq!(server.open_all(&mut Keys::new(), &mut input, take), Ok(whole));
        assert_eq!(heard, b"one, two");
        // Two KeyUpdates would have been one reply.
        assert!(server.control_due());
        assert!(!server.control(&mut Keys::new()).unwrap().is_empty());
        assert!(server.control(&mut Keys::new()).unwrap().is_empty());
    }

    #[test]
    fn slots_are_sealed_to_one_piece() {
        for len in [0, 1, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, 2 * PAYLOAD_BYTES_MAX] {
            let (mut client, mut server) = pair();
            let mut output = vec![0; 2 * client.record_len(PAYLOAD_BYTES_MAX)];
            let text: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut rest = &text[..];
            for slot in client.slots(&mut output) {
                let (part, behind) = rest.split_at(rest.len().min(slot.len()));
                slot[..part.len()].copy_from_slice(part);
                rest = behind;
            }
            let sealed = client.seal_slots(&mut Keys::new(), &mut output, len).unwrap();
            let mut heard = Vec::new();
            let take = |input: &mut [u8], data: Range<usize>| heard.extend_from_slice(&input[data]);
            let opened = server.open_all(&mut Keys::new(), &mut output[..sealed], take);
            assert_eq!((opened, rest.len()), (Ok(sealed), 0));
            assert!(heard == text, "{len}");
        }
    }

    #[test]
    fn behind_an_alert_nothing_is_opened_and_nothing_sealed() {
        let (mut client, mut server) = pair();
        let mut input = seal(&mut client, b"before");
        input.extend_from_slice(&client.alert(&mut Keys::new(), 40));
        assert!(client.alert(&mut Keys::new(), 0).is_empty(), "its direction is closed");
        let mut heard = Vec::new();
        let take = |input: &mut [u8], data: Range<usize>| heard.extend_from_slice(&input[data]);
        let opened = server.open_all(&mut Keys::new(), &mut input, take);
        assert_eq!((opened, &*heard), (Err(OpenFailure::Alert(40)), &b"before"[..]));
        let mut next = seal(&mut pair().0, b"x");
        let opened = server.open_all(&mut Keys::new(), &mut next, |_, _| ());
        assert_eq!(opened, Err(OpenFailure::Fault(RecordFault::Closed)));
    }
}
