//! The state of a connection between two records, and its making from a handshake's secrets.
//! Opening is in `open.rs`, sealing in `seal.rs`.

use std::fmt;

use crate::fault::RecordFault;
use crate::keys;
use crate::partial::Partial;
use crate::suite::{
    Direction, IV_BYTES, Role, SECRET_BYTES, Suite, TLS12_IV_AT, Version, hash_len, key_len,
};

/// The state of reading: what may still come from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Records.
    Open,
    /// Nothing: its close_notify was read, and what follows is ignored.
    Closed,
    /// Nothing: a fault or a fatal alert ended the session.
    Failed,
}

/// The state of writing: what we may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// Records.
    Open,
    /// An alert alone: the peer broke the protocol.
    Failed,
    /// Nothing: our close_notify or fatal alert was sealed, or the peer's fatal alert was read.
    Closed,
}

/// The KeyUpdate that we must send (RFC 8446 section 4.6.3). TLS 1.2 has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUpdateDue {
    /// None.
    No,
    /// The peer requested one. One answers many requests.
    Answer,
    /// One that requests the peer's.
    Request,
    /// The peer requested one, and it will request the peer's.
    AnswerAndRequest,
}

impl KeyUpdateDue {
    /// The peer requested ours.
    pub(crate) const fn with_answer(self) -> Self {
        match self {
            Self::No | Self::Answer => Self::Answer,
            Self::Request | Self::AnswerAndRequest => Self::AnswerAndRequest,
        }
    }

    /// The peer's key nears its limit, or our caller wants another.
    pub(crate) const fn with_request(self) -> Self {
        match self {
            Self::No | Self::Request => Self::Request,
            Self::Answer | Self::AnswerAndRequest => Self::AnswerAndRequest,
        }
    }

    /// The peer has changed its key, so that no request is needed.
    pub(crate) const fn without_request(self) -> Self {
        match self {
            Self::No | Self::Request => Self::No,
            Self::Answer | Self::AnswerAndRequest => Self::Answer,
        }
    }
}

/// The answers to renegotiation, which only TLS 1.2 has: one warning, then a fatal alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renegotiation {
    /// The peer has not asked.
    Unasked,
    /// The peer has asked: a no_renegotiation warning is due.
    WarningDue,
    /// The warning was sealed.
    Refused,
}

/// All that a connection needs between two records: 128 bytes, wiped on drop. Its Debug output
/// shows neither secrets nor sequence numbers.
///
/// A move leaves a copy that is not wiped, so create it where it will stay.
pub struct Session {
    pub(crate) rx: Direction,
    pub(crate) tx: Direction,
    pub(crate) partial: Partial,
    pub(crate) suite: Suite,
    pub(crate) version: Version,
    pub(crate) role: Role,
    pub(crate) reading: Reading,
    pub(crate) writing: Writing,
    pub(crate) key_update_due: KeyUpdateDue,
    pub(crate) renegotiation: Renegotiation,
    pub(crate) key_updates: u8,
    pub(crate) empty_records: u8,
    pub(crate) warnings: u8,
}

impl Session {
    /// A TLS 1.3 session from the application traffic secrets of generation 0 (RFC 8446 section
    /// 7.2) and the sequence numbers after the handshake.
    ///
    /// # Errors
    /// [`RecordFault::KeyLength`] if a secret is not as long as the suite's hash: 32 bytes, or 48
    /// for AES-256-GCM.
    pub fn tls13(
        role: Role,
        suite: Suite,
        client_secret: &[u8],
        server_secret: &[u8],
        rx_seq: u64,
        tx_seq: u64,
    ) -> Result<Session, RecordFault> {
        let mut session = Session::blank(role, suite, Version::Tls13, rx_seq, tx_seq);
        session.set_secrets(client_secret, server_secret)?;
        Ok(session)
    }

    /// A session like that of [`Session::tls13`] before the first record, made in its box: the box
    /// may be moved, and no copy of the secrets is left behind.
    ///
    /// # Errors
    /// [`RecordFault::KeyLength`], likewise.
    pub fn boxed_tls13(
        role: Role,
        suite: Suite,
        client_secret: &[u8],
        server_secret: &[u8],
    ) -> Result<Box<Session>, RecordFault> {
        let mut session = Box::new(Session::blank(role, suite, Version::Tls13, 0, 0));
        session.set_secrets(client_secret, server_secret)?;
        Ok(session)
    }

    fn set_secrets(&mut self, client: &[u8], server: &[u8]) -> Result<(), RecordFault> {
        let (rx, tx) = match self.role {
            Role::Server => (client, server),
            Role::Client => (server, client),
        };
        let hash_len = hash_len(self.suite);
        copy_exact(&mut self.rx.secret[..hash_len], rx)?;
        copy_exact(&mut self.tx.secret[..hash_len], tx)
    }

    /// A TLS 1.2 session from the key and 12-byte iv of each direction, and the sequence numbers
    /// after the handshake (1 each after the Finished messages).
    ///
    /// The iv of AES-GCM is the salt (4 bytes) and the base of the explicit nonce (8 bytes), as in
    /// rustls' `ExtractedSecrets`. Records carry that base xor the sequence number.
    ///
    /// # Errors
    /// [`RecordFault::KeyLength`] if a key or an iv is not as long as the suite requires.
    #[allow(clippy::too_many_arguments)] // two directions of three values; a struct hides none
    pub fn tls12(
        role: Role,
        suite: Suite,
        rx_key: &[u8],
        rx_iv: &[u8],
        tx_key: &[u8],
        tx_iv: &[u8],
        rx_seq: u64,
        tx_seq: u64,
    ) -> Result<Session, RecordFault> {
        let mut session = Session::blank(role, suite, Version::Tls12, rx_seq, tx_seq);
        session.set_keys([(rx_key, rx_iv), (tx_key, tx_iv)])?;
        Ok(session)
    }

    /// A session like that of [`Session::tls12`], made in its box, as by [`Session::boxed_tls13`].
    /// The key, the iv and the sequence number of each direction, receiving first.
    ///
    /// # Errors
    /// [`RecordFault::KeyLength`], likewise.
    pub fn boxed_tls12(
        role: Role,
        suite: Suite,
        [(rx_key, rx_iv, rx_seq), (tx_key, tx_iv, tx_seq)]: [(&[u8], &[u8], u64); 2],
    ) -> Result<Box<Session>, RecordFault> {
        let mut session = Box::new(Session::blank(role, suite, Version::Tls12, rx_seq, tx_seq));
        session.set_keys([(rx_key, rx_iv), (tx_key, tx_iv)])?;
        Ok(session)
    }

    fn set_keys(&mut self, [rx, tx]: [(&[u8], &[u8]); 2]) -> Result<(), RecordFault> {
        let key_len = key_len(self.suite);
        for (direction, (key, iv)) in [(&mut self.rx, rx), (&mut self.tx, tx)] {
            copy_exact(&mut direction.secret[..key_len], key)?;
            copy_exact(&mut direction.secret[TLS12_IV_AT..][..IV_BYTES], iv)?;
        }
        Ok(())
    }

    /// Moves it out of its box, which is wiped.
    #[allow(clippy::boxed_local)] // a reference could not say that nothing is left
    pub fn unboxed(mut self: Box<Self>) -> Session {
        let blank = Session::blank(self.role, self.suite, self.version, 0, 0);
        std::mem::replace(&mut *self, blank)
    }

    pub(crate) fn blank(
        role: Role,
        suite: Suite,
        version: Version,
        rx_seq: u64,
        tx_seq: u64,
    ) -> Session {
        Session {
            rx: Direction { secret: [0; SECRET_BYTES], seq: rx_seq },
            tx: Direction { secret: [0; SECRET_BYTES], seq: tx_seq },
            partial: Partial::NONE,
            suite,
            version,
            role,
            reading: Reading::Open,
            writing: Writing::Open,
            key_update_due: KeyUpdateDue::No,
            renegotiation: Renegotiation::Unasked,
            key_updates: 0,
            empty_records: 0,
            warnings: 0,
        }
    }

    /// The suite.
    pub const fn suite(&self) -> Suite {
        self.suite
    }

    /// The protocol version.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the end of the connection that this is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// True if the peer has sent close_notify. If the stream ends before that, it was truncated.
    pub const fn read_closed(&self) -> bool {
        matches!(self.reading, Reading::Closed)
    }

    /// True if nothing can be sealed any more: we sent close_notify or a fatal alert, or received a
    /// fatal one.
    pub const fn write_closed(&self) -> bool {
        matches!(self.writing, Writing::Closed)
    }

    /// True if the AEAD keys and ivs in use are these: (key, iv) for receiving and for sending. A
    /// handover uses it to compare with the handshake library's own keys.
    pub fn has_keys(&self, rx: (&[u8], &[u8]), tx: (&[u8], &[u8])) -> bool {
        let same = |direction: &Direction, (key, iv): (&[u8], &[u8])| {
            let material = keys::Material::derive(self.suite, self.version, &direction.secret);
            material.key() == key && material.iv == iv
        };
        same(&self.rx, rx) && same(&self.tx, tx)
    }

    /// Ends the session by a fault or a fatal alert. A direction that is closed stays closed.
    pub(crate) fn fail(&mut self, writing: Writing) {
        if self.reading == Reading::Open {
            self.reading = Reading::Failed;
        }
        if self.writing != Writing::Closed {
            self.writing = writing;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.rx.wipe();
        self.tx.wipe();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("role", &self.role)
            .field("version", &self.version)
            .field("suite", &self.suite)
            .field("read_closed", &self.read_closed())
            .field("write_closed", &self.write_closed())
            .finish_non_exhaustive()
    }
}

fn copy_exact(to: &mut [u8], from: &[u8]) -> Result<(), RecordFault> {
    if to.len() != from.len() {
        return Err(RecordFault::KeyLength);
    }
    to.copy_from_slice(from);
    Ok(())
}
