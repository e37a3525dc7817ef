//! The client's side of an HTTP/1.1 exchange that rests: how far its request was read, and how its
//! response is framed. crates/handover/README.md describes the form.

use eyelet_http1::body::{Decoder, DecoderPlace, Encoder};

use eyelet_resting::{PlaceV1, append};

/// Bits of the first byte. The values of the last one follow it.
const CHUNKED: u8 = 1;
const CLOSES: u8 = 1 << 1;
const HTTP10: u8 = 1 << 2;
const HAS_BODY: u8 = 1 << 3;
const ALL_BITS: u8 = (1 << 4) - 1;

/// The client's side of an exchange that rests. That of HTTP/2 frames itself, and is the default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestingClient {
    /// The framing of the response's body.
    pub encoder: Encoder,
    /// Its connection ends behind the response.
    pub closes: bool,
    /// It speaks HTTP/1.0.
    pub is_http10: bool,
    /// The place of the decoder of the request's body, and the bytes of chunk extensions so far.
    /// `None`: the body has ended.
    pub body: Option<(DecoderPlace, usize)>,
}

impl Default for RestingClient {
    fn default() -> Self {
        Self { encoder: Encoder::Plain, closes: false, is_http10: false, body: None }
    }
}

impl RestingClient {
    /// Appends the form.
    pub fn pack(&self, out: &mut Vec<u8>) {
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let bits = bit(self.encoder == Encoder::Chunked, CHUNKED)
            | bit(self.closes, CLOSES)
            | bit(self.is_http10, HTTP10)
            | bit(self.body.is_some(), HAS_BODY);
        out.push(bits);
        if let Some((place, extension_bytes)) = self.body {
            let extension_bytes = u32::try_from(extension_bytes).unwrap_or(u32::MAX);
            append(&(PlaceV1::from(place), extension_bytes), out);
        }
    }

    /// Reads the form, and returns what is behind it. `None`: there is none.
    pub fn unpack(form: &[u8]) -> Option<(Self, &[u8])> {
        let (&bits, mut form) = form.split_first()?;
        if bits & !ALL_BITS != 0 {
            return None;
        }
        let mut body = None;
        if bits & HAS_BODY != 0 {
            let ((place, extension_bytes), behind): ((PlaceV1, u32), _) =
                postcard::take_from_bytes(form).ok()?;
            let place = (place.into(), usize::try_from(extension_bytes).ok()?);
            Decoder::at(place.0, place.1)?;
            (body, form) = (Some(place), behind);
        }
        let encoder = if bits & CHUNKED == 0 { Encoder::Plain } else { Encoder::Chunked };
        let (closes, is_http10) = (bits & CLOSES != 0, bits & HTTP10 != 0);
        // No end of a connection ends a request.
        let is_request = !matches!(body, Some((DecoderPlace::UntilClose, _)));
        is_request.then_some((Self { encoder, closes, is_http10, body }, form))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Another process may have written them, of any release since version 6 of messages.
    #[test]
    fn stored_forms_are_read_for_ever() {
        let body = Some((DecoderPlace::Chunk(300), 2));
        let default = RestingClient::default();
        for (stored, client) in [
            (&b"\x00"[..], default),
            (b"\x03", RestingClient { encoder: Encoder::Chunked, closes: true, ..default }),
            (b"\x08\x03\xac\x02\x02", RestingClient { body, ..default }),
            (b"\x04", RestingClient { is_http10: true, ..default }),
        ] {
            let mut form = Vec::new();
            client.pack(&mut form);
            assert_eq!(form, stored, "the form has changed, which it must not");
            assert_eq!(RestingClient::unpack(&[stored, b"x"].concat()), Some((client, &b"x"[..])));
            for len in 0..stored.len() {
                assert!(RestingClient::unpack(&stored[..len]).is_none(), "{len}");
            }
        }
    }

    #[test]
    fn what_no_client_has_is_not_read() {
        let past = [&[HAS_BODY, 3][..], &[0xff; 9], &[1, 0]].concat();
        for form in [&[1 << 4][..], &[HAS_BODY, 1, 0], &[HAS_BODY, 6, 0], &past] {
            assert!(RestingClient::unpack(form).is_none(), "{form:?}");
        }
    }
}
