//! The two roles of a connection: who sends requests, and who answers them.

/// Our role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H2Role {
    /// We send requests.
    Client,
    /// We answer requests.
    Server,
}
