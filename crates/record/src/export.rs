//! A session as bytes for another process, and back. The form is fixed and documented in
//! crates/handover/README.md: a change of the types in memory must not change it.

use thiserror::Error;

use crate::handshake::{KEY_UPDATE, KEY_UPDATES_MAX, may_begin};
use crate::open::{EMPTY_RECORDS_MAX, WARNINGS_MAX};
use crate::partial::Partial;
use crate::session::{KeyUpdateDue, Reading, Renegotiation, Session, Writing};
use crate::suite::{
    Direction, IV_BYTES, Role, SECRET_BYTES, Suite, TLS12_IV_AT, Version, hash_len, key_len,
};

/// Bytes of an exported session: 7 for its kind and progress, 5 of a message that has begun, 3
/// counts, and for each direction the sequence number and the secret.
pub const EXPORT_BYTES: usize = 7 + 5 + 3 + 2 * (8 + SECRET_BYTES);

/// The reason why bytes are not an exported session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionFault {
    /// The length is not [`EXPORT_BYTES`].
    #[error("an exported session has {EXPORT_BYTES} bytes, and these are {0}")]
    Length(usize),
    /// The code names no cipher suite.
    #[error("{0} is no cipher suite")]
    Suite(u8),
    /// The code names no version of TLS.
    #[error("{0} is no version of TLS")]
    Version(u8),
    /// The code names neither client nor server.
    #[error("{0} is no role")]
    Role(u8),
    /// These states are unknown, or not possible in this version: of reading, writing, a KeyUpdate
    /// and renegotiation.
    #[error("states {0:?} are not possible")]
    States([u8; 4]),
    /// A count is above its limit.
    #[error("a count of {0} is above its limit")]
    Count(u8),
    /// No session stops in the middle of a message in this way.
    #[error("no message can have begun so")]
    Partial,
    /// Bytes that the suite does not use are not zero.
    #[error("unused bytes of a secret are not zero")]
    Padding,
}

/// Codes of the exported form. Each value has one.
const SUITES: [(u8, Suite); 3] =
    [(1, Suite::Aes128Gcm), (2, Suite::Aes256Gcm), (3, Suite::ChaCha20Poly1305)];
const VERSIONS: [(u8, Version); 2] = [(2, Version::Tls12), (3, Version::Tls13)];
const ROLES: [(u8, Role); 2] = [(1, Role::Server), (2, Role::Client)];
const READING: [(u8, Reading); 3] =
    [(0, Reading::Open), (1, Reading::Closed), (2, Reading::Failed)];
/// A session that has failed for reading says 0 while its alert may still be sealed.
const WRITING: [(u8, Writing); 2] = [(0, Writing::Open), (1, Writing::Closed)];
const KEY_UPDATES: [(u8, KeyUpdateDue); 4] = [
    (0, KeyUpdateDue::No),
    (1, KeyUpdateDue::Answer),
    (2, KeyUpdateDue::Request),
    (3, KeyUpdateDue::AnswerAndRequest),
];
const RENEGOTIATION: [(u8, Renegotiation); 3] =
    [(0, Renegotiation::Unasked), (1, Renegotiation::WarningDue), (2, Renegotiation::Refused)];
/// A message that is skipped. Smaller codes are the number of bytes of a head.
const SKIP: u8 = 5;
/// The first four bytes of a KeyUpdate. No other message is kept with all four.
const KEY_UPDATE_HEAD: [u8; 4] = [KEY_UPDATE[0], KEY_UPDATE[1], KEY_UPDATE[2], KEY_UPDATE[3]];

fn code<T: Copy + PartialEq>(codes: &[(u8, T)], value: T) -> u8 {
    codes.iter().find(|(_, known)| *known == value).map_or(0, |(code, _)| *code)
}

fn value<T: Copy>(codes: &[(u8, T)], code: u8) -> Option<T> {
    codes.iter().find(|(known, _)| *known == code).map(|(_, value)| *value)
}

impl Session {
    /// Writes all that another process needs to go on. From here on one of the two may seal or
    /// open, never both: a second record with the same sequence number would reuse a nonce.
    ///
    /// The bytes hold the secrets, so the caller wipes them.
    pub fn export(&self, out: &mut [u8; EXPORT_BYTES]) {
        let (partial, partial_bytes) = match self.partial {
            Partial::Head { len, bytes } => (len, bytes),
            Partial::Skip { left } => (SKIP, u32::from(left).to_be_bytes()),
        };
        let mut rest = &mut out[..];
        let identity =
            [code(&SUITES, self.suite), code(&VERSIONS, self.version), code(&ROLES, self.role)];
        write(&mut rest, &identity);
        write(&mut rest, &self.states());
        write(&mut rest, &[partial]);
        write(&mut rest, &partial_bytes);
        write(&mut rest, &[self.key_updates, self.empty_records, self.warnings]);
        for direction in [&self.rx, &self.tx] {
            write(&mut rest, &direction.seq.to_be_bytes());
            write(&mut rest, &direction.secret);
        }
    }

    /// The session that [`Session::export`] has written.
    ///
    /// # Errors
    /// The first value that no exported session has.
    pub fn import(bytes: &[u8]) -> Result<Session, SessionFault> {
        let mut session = Session::blank(Role::Client, Suite::Aes128Gcm, Version::Tls13, 0, 0);
        session.read(bytes)?;
        Ok(session)
    }

    /// The session that [`Session::export`] has written, made in its box: see
    /// [`Session::boxed_tls13`].
    ///
    /// # Errors
    /// The first value that no exported session has.
    pub fn boxed_import(bytes: &[u8]) -> Result<Box<Session>, SessionFault> {
        let blank = Session::blank(Role::Client, Suite::Aes128Gcm, Version::Tls13, 0, 0);
        let mut session = Box::new(blank);
        session.read(bytes)?;
        Ok(session)
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), SessionFault> {
        let Ok(bytes) = <&[u8; EXPORT_BYTES]>::try_from(bytes) else {
            return Err(SessionFault::Length(bytes.len()));
        };
        let [suite, version, role, reading, writing, key_update, renegotiation, partial, ..] =
            *bytes;
        let [.., a, b, c, d, key_updates, empty_records, warnings] = bytes[..15] else {
            return Err(SessionFault::Length(bytes.len()));
        };
        let suite = value(&SUITES, suite).ok_or(SessionFault::Suite(suite))?;
        let version = value(&VERSIONS, version).ok_or(SessionFault::Version(version))?;
        let role = value(&ROLES, role).ok_or(SessionFault::Role(role))?;
        (self.suite, self.version, self.role) = (suite, version, role);
        self.set_states([reading, writing, key_update, renegotiation])?;
        self.partial = import_partial(partial, [a, b, c, d], version, role)?;
        for (count, max) in [
            (key_updates, KEY_UPDATES_MAX),
            (empty_records, EMPTY_RECORDS_MAX),
            (warnings, WARNINGS_MAX),
        ] {
            if count > max {
                return Err(SessionFault::Count(count));
            }
        }
        (self.key_updates, self.empty_records) = (key_updates, empty_records);
        self.warnings = warnings;
        let (rx, tx) = bytes[15..].split_at(8 + SECRET_BYTES);
        import_direction(&mut self.rx, rx, suite, version)?;
        import_direction(&mut self.tx, tx, suite, version)
    }

    /// The codes of its states: reading, writing, KeyUpdate, renegotiation.
    fn states(&self) -> [u8; 4] {
        [
            code(&READING, self.reading),
            code(&WRITING, self.writing),
            code(&KEY_UPDATES, self.key_update_due),
            code(&RENEGOTIATION, self.renegotiation),
        ]
    }

    fn set_states(&mut self, codes: [u8; 4]) -> Result<(), SessionFault> {
        let [reading, writing, key_update, renegotiation] = codes;
        // Only TLS 1.3 has KeyUpdates, and only TLS 1.2 renegotiation.
        let of_other = match self.version {
            Version::Tls12 => key_update,
            Version::Tls13 => renegotiation,
        };
        let (Some(reading), Some(writing), Some(key_update), Some(renegotiation)) = (
            value(&READING, reading),
            value(&WRITING, writing),
            value(&KEY_UPDATES, key_update),
            value(&RENEGOTIATION, renegotiation),
        ) else {
            return Err(SessionFault::States(codes));
        };
        if of_other != 0 {
            return Err(SessionFault::States(codes));
        }
        self.reading = reading;
        self.writing = match (reading, writing) {
            (Reading::Failed, Writing::Open) => Writing::Failed,
            (_, writing) => writing,
        };
        (self.key_update_due, self.renegotiation) = (key_update, renegotiation);
        Ok(())
    }
}

fn write(rest: &mut &mut [u8], bytes: &[u8]) {
    let (to, behind) = std::mem::take(rest).split_at_mut(bytes.len());
    to.copy_from_slice(bytes);
    *rest = behind;
}

fn import_partial(
    kind: u8,
    bytes: [u8; 4],
    version: Version,
    role: Role,
) -> Result<Partial, SessionFault> {
    let is_possible = match kind {
        0 => bytes == [0; 4],
        1..=3 => {
            let (begun, rest) = bytes.split_at(usize::from(kind));
            may_begin(version, role, begun[0]) && rest.iter().all(|byte| *byte == 0)
        }
        4 => version == Version::Tls13 && bytes == KEY_UPDATE_HEAD,
        // A server of TLS 1.3 skips no message.
        SKIP => {
            let skips = (version, role) != (Version::Tls13, Role::Server);
            skips && bytes != [0; 4] && bytes[..2] == [0; 2]
        }
        _ => false,
    };
    match kind {
        _ if !is_possible => Err(SessionFault::Partial),
        SKIP => Ok(Partial::Skip { left: u16::from_be_bytes([bytes[2], bytes[3]]) }),
        len => Ok(Partial::Head { len, bytes }),
    }
}

/// Fills in place: a secret that moves leaves a copy.
fn import_direction(
    direction: &mut Direction,
    bytes: &[u8],
    suite: Suite,
    version: Version,
) -> Result<(), SessionFault> {
    let (seq, secret) = bytes.split_at(8);
    let is_used = |at| match version {
        Version::Tls13 => at < hash_len(suite),
        Version::Tls12 => {
            at < key_len(suite) || (TLS12_IV_AT..TLS12_IV_AT + IV_BYTES).contains(&at)
        }
    };
    if secret.iter().enumerate().any(|(at, byte)| !is_used(at) && *byte != 0) {
        return Err(SessionFault::Padding);
    }
    direction.seq = seq.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    direction.secret.copy_from_slice(secret);
    Ok(())
}
