//! A connection and its streams: the part that is the same in both roles.

use bytes::Bytes;
use eyelet_h2::{ErrorCode, H2Connection};

use crate::frame_queue::FrameQueue;
use crate::received::ReceivedData;
use crate::waiting::WaitingTask;

/// A stream, until its task drops it.
pub struct StreamBase {
    /// Its identifier.
    pub id: u32,
    /// Data of the peer's message that its task has not taken.
    data: ReceivedData,
    /// Bytes of unreleased data: those that wait, and those that its task has taken.
    unreleased: usize,
    /// Its task.
    pub task: WaitingTask,
}

impl StreamBase {
    /// A stream that has begun.
    pub fn new(id: u32) -> Self {
        Self { id, data: ReceivedData::default(), unreleased: 0, task: WaitingTask::default() }
    }

    /// True if nothing of the peer's data is held, here or by the task.
    pub fn is_clear(&self) -> bool {
        self.unreleased == 0
    }

    /// Bytes of the peer's data that were not released.
    pub fn unreleased(&self) -> usize {
        self.unreleased
    }
}

/// A stream of one of the roles.
pub trait StreamRole {
    /// The part that both roles have.
    fn base(&self) -> &StreamBase;
    /// Returns that part, to be changed.
    fn base_mut(&mut self) -> &mut StreamBase;
    /// Has its task run again if it waits.
    fn wake(&mut self) {
        self.base_mut().task.wake();
    }
}

/// A connection that its task and the tasks of its streams share.
pub struct Multiplexed<S> {
    /// The protocol's state.
    pub h2: H2Connection,
    /// The bytes on their way to the peer.
    pub out: FrameQueue,
    /// The streams by their identifiers, which grow.
    pub streams: Vec<S>,
    /// The task that reads and writes.
    pub driver: WaitingTask,
    /// Bytes of memory of data that waits for the streams' tasks.
    memory: usize,
    /// Bytes of data that were not released.
    unreleased: usize,
}

impl<S: StreamRole> Multiplexed<S> {
    /// A connection that has just begun. `out` is what it says first.
    pub fn new(h2: H2Connection, out: FrameQueue) -> Self {
        let driver = WaitingTask::default();
        Self { h2, out, streams: Vec::new(), driver, memory: 0, unreleased: 0 }
    }

    fn at(&self, id: u32) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.base().id).ok()
    }

    /// The stream with this identifier.
    pub fn find(&mut self, id: u32) -> Option<&mut S> {
        let at = self.at(id)?;
        self.streams.get_mut(at)
    }

    /// Gives up the memory that only traffic needs: all streams rest.
    pub fn shrink(&mut self) {
        self.streams.shrink_to_fit();
        self.h2.shrink();
        self.out.shrink();
    }

    /// Bytes of memory of data that waits for the streams' tasks.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Bytes of data that were not released.
    pub fn unreleased(&self) -> usize {
        self.unreleased
    }

    /// Keeps data that has arrived for a stream, and wakes its task. Returns whether there is one
    /// with this identifier.
    pub fn keep(&mut self, id: u32, data: &[u8]) -> bool {
        let Some(at) = self.at(id) else { return false };
        let Some(stream) = self.streams.get_mut(at) else { return false };
        let base = stream.base_mut();
        let before = base.data.memory();
        base.data.push(data);
        base.unreleased += data.len();
        self.memory = self.memory + base.data.memory() - before;
        self.unreleased += data.len();
        stream.wake();
        true
    }

    /// Takes a part of what has arrived for a stream.
    pub fn take(&mut self, id: u32) -> Option<Bytes> {
        let data = &mut self.find(id)?.base_mut().data;
        let before = data.memory();
        let part = data.take();
        let after = data.memory();
        self.memory -= before - after;
        part
    }

    /// Opens the windows of a stream and of the connection by bytes that its task has taken, and no
    /// others. The peer may send as many more.
    pub fn release(&mut self, id: u32, bytes_max: usize) {
        let Some(base) = self.find(id).map(StreamRole::base_mut) else { return };
        let bytes = bytes_max.min(base.unreleased - base.data.len());
        base.unreleased -= bytes;
        self.unreleased -= bytes;
        if bytes > 0 {
            self.h2.release(id, window_bytes(bytes), self.out.frames());
        }
    }

    /// Drops what has arrived for a stream. Its own window opens no more.
    pub fn drop_data(&mut self, id: u32) {
        let Some(base) = self.find(id).map(StreamRole::base_mut) else { return };
        let data = std::mem::take(&mut base.data);
        let bytes = std::mem::take(&mut base.unreleased);
        self.memory -= data.memory();
        self.unreleased -= bytes;
        if bytes > 0 {
            self.h2.release_connection(window_bytes(bytes), self.out.frames());
        }
    }

    /// Takes a stream away whose task has ended. It is reset if it has not ended.
    pub fn remove(&mut self, id: u32, code: ErrorCode) -> Option<S> {
        self.drop_data(id);
        let at = self.at(id)?;
        self.h2.reset(id, code, self.out.frames());
        Some(self.streams.remove(at))
    }
}

/// Bytes by which a window opens: it has less than 2^31 (RFC 9113 section 6.9.1).
fn window_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
