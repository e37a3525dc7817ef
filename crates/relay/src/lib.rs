//! Moves bytes between the two sockets of a parked connection. The buffers are the worker's.
//!
//! Each module of this list imports only what is above it:
//! - [`ready`]: sides of a connection, and what their sockets are ready for.
//! - [`inspect`]: the first flights of a spliced connection.
//! - `buffers`, and `flow`: what a worker lends, and what a connection keeps between two wakes.
//! - `sockets`: reads from a side and writes to one, for all that follow.
//! - [`splice`], [`terminate`], `cleartext`, [`held`]: the ways in which bytes are moved.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

use eyelet_telemetry::info::{Outcome, Parked};

mod buffers;
mod cleartext;
mod exchange;
mod flow;
pub mod held;
pub mod inspect;
mod originate;
pub mod ready;
mod sockets;
pub mod splice;
pub mod terminate;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use buffers::{Buffers, PIPES_MAX, SHARE_BYTES};
pub use flow::export;
pub use flow::frames::WebSocketFrames;
pub use flow::{Flow, Held, KeptExchanges, Pending, Rest};
pub use sockets::{AnswerParked, Progress, Sockets};

/// The system calls that move bytes. A simulator puts its own in their place.
#[cfg(not(feature = "testing"))]
use eyelet_sys::{pipe, socket};
#[cfg(feature = "testing")]
use testing::kernel::{pipe, socket};

/// The way in which a parked connection's bytes are moved.
pub enum Relay {
    /// A client without TLS whose requests the program serves. It has an upstream of its own only
    /// while an exchange of it rests.
    Cleartext(Flow),
    /// Not at all, until somebody decides.
    Held(held::HeldConnection),
    /// Untouched.
    Splice(splice::Spliced),
    /// TLS towards the client, plain towards the upstream; or the other way round, see
    /// [`terminate::Terminated::is_originated`].
    Terminate(terminate::Terminated),
}

impl Relay {
    /// The flow of a connection whose requests the program serves, or whose TLS ends here.
    pub fn served_flow(&self) -> Option<&Flow> {
        match self {
            Self::Cleartext(flow) => Some(flow),
            Self::Held(_) | Self::Splice(_) => None,
            Self::Terminate(terminated) => Some(&terminated.flow),
        }
    }

    /// The flow of either kind.
    pub fn flow(&mut self) -> &mut Flow {
        match self {
            Self::Cleartext(flow) => flow,
            Self::Held(held) => &mut held.flow,
            Self::Splice(spliced) => &mut spliced.flow,
            Self::Terminate(terminated) => &mut terminated.flow,
        }
    }

    /// The outcome of a connection that it is of.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Held(held) if held.session().is_none() => Outcome::Failed,
            Self::Splice(_) => Outcome::Spliced,
            Self::Held(_) => Outcome::Terminated,
            Self::Terminate(terminated) if !terminated.is_originated() => Outcome::Terminated,
            Self::Cleartext(_) | Self::Terminate(_) => Outcome::Originated,
        }
    }

    /// True if TLS is towards the upstream: [`terminate::Terminated::is_originated`].
    pub fn is_originated(&self) -> bool {
        matches!(self, Self::Terminate(terminated) if terminated.is_originated())
    }

    /// True if exchanges of it rest: [`Flow::keep_exchange`], or those of its streams.
    pub fn has_exchange(&self) -> bool {
        self.served_flow().is_some_and(|flow| flow.exchange().is_some() || flow.has_streams())
    }

    /// True if nobody can know what its peers are about to send: bytes pass from one to the other,
    /// or in streams. A terminated connection is none: who spoke last tells if it waits for an
    /// answer ([`Flow::is_asked`]).
    pub fn is_pair(&self) -> bool {
        let has_streams = match self {
            Self::Cleartext(flow) => flow.has_streams(),
            Self::Held(_) => false,
            Self::Splice(_) => return true,
            Self::Terminate(terminated) => terminated.flow.has_streams(),
        };
        has_streams || self.is_originated()
    }

    /// Bytes of memory that it holds besides its slot.
    pub fn held_bytes(&mut self) -> usize {
        let own = match self {
            Self::Held(held) => held.held_bytes(),
            Self::Splice(spliced) => spliced.name_bytes(),
            Self::Cleartext(_) | Self::Terminate(_) => 0,
        };
        own + self.flow().held_bytes()
    }

    /// Bytes of memory that its client's source is charged for.
    pub fn charged_bytes(&mut self) -> usize {
        self.held_bytes() + self.flow().shared_bytes()
    }
}

/// Moves what can be moved. `info` counts the bytes.
pub fn run(
    relay: &mut Relay,
    sockets: &mut Sockets<'_>,
    info: &mut Parked,
    buffers: &mut Buffers,
    answer: AnswerParked<'_>,
) -> Progress {
    match relay {
        Relay::Cleartext(flow) if flow.exchange().is_some() => {
            exchange::run(flow, sockets, buffers)
        }
        Relay::Cleartext(flow) => cleartext::run(flow, sockets, buffers),
        Relay::Held(held) => held::run(held, sockets),
        Relay::Splice(spliced) => splice::run(spliced, sockets, info, buffers),
        Relay::Terminate(originated) if originated.is_originated() => {
            originate::run(originated, sockets, info, buffers, answer)
        }
        Relay::Terminate(terminated) if terminated.flow.exchange().is_some() => {
            exchange::run(&mut terminated.flow, sockets, buffers)
        }
        Relay::Terminate(terminated) => terminate::run(terminated, sockets, info, buffers, answer),
    }
}
