//! The `traceparent` field of W3C Trace Context, level 1: <https://www.w3.org/TR/trace-context-1/>.
//! It says which trace a request belongs to, and which span of it has sent the request.

/// Bytes of a field of version 00. One of a higher version may be longer.
pub const TRACEPARENT_BYTES: usize = 55;

/// The only version whose flags are known.
const VERSION: &[u8; 2] = b"00";
/// A version that is forbidden: it is invalid (section 3.2.2.1).
const VERSION_FORBIDDEN: u8 = 0xff;
/// The flag of a trace that is recorded.
const SAMPLED: u8 = 0x01;
/// The beginnings of the parts of the field. Before each of them but the first is a dash.
const TRACE_ID_AT: usize = 3;
const SPAN_ID_AT: usize = 36;
const FLAGS_AT: usize = 53;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The number of a trace. It is never 0.
pub type TraceId = [u8; 16];
/// The number of a span of a trace. It is never 0.
pub type SpanId = [u8; 8];

/// The contents of a `traceparent` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span that sends the request: the parent of those that its receiver begins.
    pub span_id: SpanId,
    /// True if the sender records the trace.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Reads a field's value. `None`: it is invalid, and the receiver begins a trace of its own
    /// (section 4.3).
    pub fn parse(value: &[u8]) -> Option<Self> {
        let version = byte(value.get(..2)?)?;
        let is_whole = match value.len().checked_sub(TRACEPARENT_BYTES)? {
            0 => true,
            // A higher version may have more behind another dash (section 3.2.4).
            _ => version != 0 && value.get(TRACEPARENT_BYTES) == Some(&b'-'),
        };
        let dashes = [TRACE_ID_AT - 1, SPAN_ID_AT - 1, FLAGS_AT - 1];
        let has_parts = dashes.iter().all(|at| value.get(*at) == Some(&b'-'));
        if version == VERSION_FORBIDDEN || !is_whole || !has_parts {
            return None;
        }
        let trace_id = bytes(value.get(TRACE_ID_AT..SPAN_ID_AT - 1)?)?;
        let span_id = bytes(value.get(SPAN_ID_AT..FLAGS_AT - 1)?)?;
        let flags = byte(value.get(FLAGS_AT..TRACEPARENT_BYTES)?)?;
        // Section 3.2.2.3 and 3.2.2.4: zeros are invalid. Unknown flags are ignored (3.2.2.5).
        let is_known = trace_id != [0; 16] && span_id != [0; 8];
        is_known.then_some(Self { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
    }

    /// The field's value, in version 00 (section 3.2.4: a higher one is not sent on).
    pub fn to_bytes(self) -> [u8; TRACEPARENT_BYTES] {
        let mut value = [b'-'; TRACEPARENT_BYTES];
        let (version, rest) = value.split_at_mut(TRACE_ID_AT);
        let (trace_id, rest) = rest.split_at_mut(SPAN_ID_AT - TRACE_ID_AT);
        let (span_id, flags) = rest.split_at_mut(FLAGS_AT - SPAN_ID_AT);
        version[..2].copy_from_slice(VERSION);
        write_hex(&self.trace_id, trace_id);
        write_hex(&self.span_id, span_id);
        write_hex(&[u8::from(self.is_sampled)], flags);
        value
    }
}

/// An id in lower-case hexadecimal digits. `N` is twice the bytes of the id.
pub fn hex<const N: usize>(id: &[u8]) -> [u8; N] {
    let mut digits = [b'0'; N];
    write_hex(id, &mut digits);
    digits
}

fn write_hex(bytes: &[u8], out: &mut [u8]) {
    for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0x0f)]]);
    }
}

/// Two lower-case digits. Upper-case ones are invalid (section 3.2.2: HEXDIGLC).
fn byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let [high, low] = pair else { return None };
    Some(digit(high)? << 4 | digit(low)?)
}

fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut id = [0; N];
    for (id, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *id = byte(pair)?;
    }
    Some(id)
}

#[cfg(test)]
mod tests;
