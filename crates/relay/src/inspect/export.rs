//! An inspection's state in a form for another process. The readers of hellos are not in it: they
//! read the bytes that are held back, which go along, once more.

use serde::{Deserialize, Serialize};

/// Version 1 of the form.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct InspectionV1 {
    /// Bytes that are left of the client's current record.
    pub(super) left: u16,
    /// The beginning of the next record's header, and its length.
    pub(super) header: [u8; 5],
    pub(super) header_len: u8,
    /// The server has sent a HelloRetryRequest.
    pub(super) is_retried: bool,
}
