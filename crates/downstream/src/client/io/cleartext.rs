//! The stream of a client without TLS: what is read is the plaintext, and what is written is sent
//! as it is.

use std::cell::Cell;
use std::rc::Rc;

use bytes::BytesMut;
use eyelet_engine::ready::CLIENT;
use eyelet_engine::worker::Handle;
use eyelet_memory::budget::{Counted, HELLO_BYTES};
use eyelet_record::Keys;

use super::{ClientLost, ClientStream};

impl ClientStream {
    /// A connection without TLS whose client has sent these bytes.
    pub fn cleartext(handle: Handle, received: &[u8]) -> Self {
        let counted = Counted::new(&handle.worker.process.budget, 0);
        let mut client = Self {
            handle: Rc::new(handle),
            counted,
            plain: BytesMut::from(received),
            plain_held: 0,
            bytes_to_client: Rc::new(Cell::new(0)),
            ended: false,
            session: None,
            keys: Keys::new(),
            fresh: false,
            partial: Vec::new(),
            sealed: Vec::new(),
            sent: 0,
            truncated: false,
        };
        client.recount();
        client
    }

    /// Reads what has arrived. While memory is short, a piece of it.
    pub(super) fn read_cleartext(
        &mut self,
        max: usize,
        take: &mut impl FnMut(&[u8]) -> usize,
    ) -> Result<Option<usize>, ClientLost> {
        let worker = self.handle.worker.clone();
        let input = &mut *worker.buffers.borrow_mut().input;
        let piece = worker.process.budget.piece().unwrap_or(HELLO_BYTES);
        let room = max.max(1).min(piece).min(input.len());
        let read = self.handle.recv_now(CLIENT, &mut input[..room])?;
        self.ended |= read == Some(0);
        let read = read.unwrap_or(0);
        let taken = if read > 0 { take(&input[..read]) } else { 0 };
        self.plain.extend_from_slice(&input[taken..read]);
        Ok(Some(read))
    }
}
