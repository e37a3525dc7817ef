//! The check of a flow's datagrams after its decision.

use eyelet_telemetry::reason::Reason;

/// Reads a client's datagrams until it has the handshake's keys: it could change its hello after
/// the decision. The program's code, because it takes the keys of Initial packets.
pub trait DatagramGuard {
    /// Reads a datagram of the client. Takes the server's id if it is known.
    fn read(&mut self, datagram: &[u8], server_id: Option<&[u8]>) -> GuardTurn;

    /// The guard as bytes for another process. `None`: it is in the middle of something.
    fn export(&self) -> Option<Vec<u8>>;

    /// The datagram that ends the client's connection for this reason. Empty: it gets none.
    fn refusal(&self, reason: &Reason) -> Vec<u8>;
}

/// The verdict of a guard about a datagram.
pub enum GuardTurn {
    Passes,
    Drops,
    /// The flow ends.
    Ends(Reason),
}
