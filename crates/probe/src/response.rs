//! An answer to a GET, by either version of HTTP.

/// Most bytes of an answer's head.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a body, as sent and as decoded.
pub const BODY_BYTES_MAX: u64 = 8 << 20;

/// Its status, its fields with lower-case names, its body without chunks or frames.
#[derive(Debug, Default)]
pub struct ProbeResponse {
    /// The status code.
    pub status: u16,
    /// Names and values.
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body is longer than [`BODY_BYTES_MAX`]; its beginning is here.
    pub is_cut: bool,
}

impl ProbeResponse {
    /// The codings of the body, in the order in which they were applied.
    pub fn codings(&self) -> Vec<String> {
        let values = self.fields.iter().filter(|(name, _)| name == "content-encoding");
        let names = values.flat_map(|(_, value)| value.split(','));
        names.map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty()).collect()
    }

    /// The first value of a name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }
}
