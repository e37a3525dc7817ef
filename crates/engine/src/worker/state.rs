//! Parts of a worker's state, by who uses them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::worker::source::{Source, Sources};
use eyelet_table::drain_pace::DrainPace;
use eyelet_table::large_groups::LargeGroups;
use eyelet_table::memory_wait::MemoryWait;
use eyelet_table::queues::{Holders, IdlePosition, ShedQueue};

/// The state of load shedding.
#[derive(Default)]
pub(crate) struct SheddingState {
    /// Half-open connections that hold much, oldest first. Some positions are stale.
    pub large: ShedQueue,
    /// Half-open connections, oldest first. Some positions are stale.
    pub half_open: ShedQueue,
    /// HTTP/2 connections without a stream, longest idle first. Some positions are stale.
    pub unused: ShedQueue,
    /// Connections that are held until somebody decides, oldest first. Some positions are stale.
    pub held: ShedQueue,
    /// Parked connections that hold bytes for a peer, longest first. Some positions are stale.
    pub holders: RefCell<Holders>,
    /// Idle connections that the search found, the longest idle last.
    pub idle: RefCell<Vec<IdlePosition>>,
    /// The slot at which that search goes on.
    pub idle_cursor: Cell<u32>,
    /// Searches of the table for idle connections since the last tick.
    pub idle_searches: Cell<u32>,
    /// Tasks that serve parked connections, by source.
    pub tasks: RefCell<HashMap<Source, usize, RandomState>>,
    /// Memory that parked connections hold, by source.
    pub sources: Sources,
    /// Tasks that wait for memory.
    pub memory_wait: MemoryWait,
}

/// The state that moves connections to another process, and takes those that come from one.
#[derive(Default)]
pub(crate) struct MovingState {
    /// True if its connections leave for another process.
    pub is_leaving: Cell<bool>,
    /// True if connections rest as soon as they can, to leave: while an order says so, then until
    /// the worker retires, and later from time to time.
    pub is_awaited: Cell<bool>,
    /// Connections of groups that are too large to leave.
    pub large: RefCell<LargeGroups>,
    /// The other process reads messages of versions below this one. `None`: of all.
    pub reads_below: Cell<Option<u16>>,
    /// The slot at which the search for connections to hand over goes on.
    pub cursor: Cell<u32>,
    /// True if that search goes on after an iteration.
    pub is_searching: Cell<bool>,
    /// Connections that arrive from another process, which may have given them up, and have no slot
    /// yet.
    pub unplaced: Cell<usize>,
}

/// The way in which a worker's connections end, and why.
#[derive(Default)]
pub(crate) struct EndingState {
    /// The drain, if there is one.
    pub drain: Cell<Option<DrainPace>>,
    /// True if the drain's time is over.
    pub is_cutting: Cell<bool>,
    /// True if what another process has not taken goes on here, and takes nothing new.
    pub is_retired: Cell<bool>,
    /// The slot at which the search for connections that have come to rest since goes on.
    pub retired_cursor: Cell<u32>,
    /// True if an operator has ever ended an active connection here.
    pub has_operator_ended: Cell<bool>,
}

/// Connections that came and went since memory was last returned to the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// Peak of open connections.
    pub(crate) peak: usize,
    /// Connections open at the last tick.
    pub(crate) open: usize,
    /// Ticks since that number changed.
    pub(crate) quiet: u32,
    pub(crate) ticks: u32,
    /// Peak of the bytes that the budget counts.
    pub(crate) peak_bytes: usize,
    /// Ticks since most of those were given back.
    pub(crate) given_back: u32,
    /// Ticks for which memory still counts as scarce.
    pub(crate) scarce_ticks: u32,
    /// Ticks since a compressor was last used.
    pub(crate) rested: u32,
    /// True if there may be memory to return: handshakes leave some, also for connections that
    /// stay, and so do freed compressors.
    pub(crate) dirty: bool,
}
