//! Finds the ends of HTTP/2 frames, heads and streams in bytes that pass, in either direction.

/// Bytes of the client's preface (RFC 9113 3.4).
pub const PREFACE_BYTES: usize = 24;
/// A frame's header (RFC 9113 4.1).
const FRAME_HEAD_BYTES: usize = 9;
/// Types of frames (RFC 9113 section 6) and their flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What ends with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The stream of the frame.
    pub stream: u32,
    /// Whether a head, or trailers, end.
    pub head: bool,
    /// Bytes of the head's frames, without their headers. 0 if no head ends.
    pub head_bytes: usize,
    /// Whether the sender ends the stream.
    pub stream_too: bool,
    /// Whether the sender resets the stream.
    pub reset: bool,
}

/// Follows one direction of a connection.
#[derive(Debug, Default)]
pub struct Frames {
    /// Bytes before the first frame.
    skip: usize,
    head: [u8; FRAME_HEAD_BYTES],
    /// Bytes of it that have arrived.
    head_bytes: usize,
    /// Bytes of the frame that are still to come, and that have arrived.
    left: usize,
    here: usize,
    /// Bytes of earlier frames of the same head.
    block: usize,
    /// Whether the current head ends its stream.
    ends_stream: bool,
}

impl Frames {
    /// For a client's direction, which begins with the preface.
    pub fn of_client() -> Self {
        Self { skip: PREFACE_BYTES, ..Self::default() }
    }

    /// Passes bytes up to the end of the first frame. Returns how many, and what ended.
    pub fn pass(&mut self, bytes: &[u8]) -> (usize, Option<Ended>) {
        let mut at = self.skip.min(bytes.len());
        self.skip -= at;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.head_bytes < FRAME_HEAD_BYTES {
                let passed = (FRAME_HEAD_BYTES - self.head_bytes).min(rest.len());
                self.head[self.head_bytes..][..passed].copy_from_slice(&rest[..passed]);
                self.head_bytes += passed;
                at += passed;
                let [high, middle, low, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
            } else {
                let passed = self.left.min(rest.len());
                self.left -= passed;
                self.here += passed;
                at += passed;
            }
            if self.head_bytes == FRAME_HEAD_BYTES && self.left == 0 {
                return (at, Some(self.ends()));
            }
        }
        (at, None)
    }

    fn ends(&mut self) -> Ended {
        let [_, _, _, kind, flags, stream @ ..] = self.head;
        let is_head = matches!(kind, HEADERS | CONTINUATION);
        let head = is_head && flags & END_HEADERS != 0;
        if kind == HEADERS {
            self.ends_stream = flags & END_STREAM != 0;
        }
        let block = self.block + if is_head { self.here } else { 0 };
        self.block = if head { 0 } else { block };
        (self.head_bytes, self.here) = (0, 0);
        let reset = kind == RST_STREAM;
        Ended {
            // The first bit is reserved.
            stream: u32::from_be_bytes(stream) & !(1 << 31),
            head,
            head_bytes: if head { block } else { 0 },
            stream_too: reset
                || head && self.ends_stream
                || kind == DATA && flags & END_STREAM != 0,
            reset,
        }
    }

    /// Bytes of an unfinished head or frame.
    pub fn begun(&self) -> usize {
        self.block + self.head_bytes + self.here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, bytes: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, bytes, kind, flags, 0x80, 0, 0, 1];
        frame.resize(FRAME_HEAD_BYTES + usize::from(bytes), 0);
        frame
    }

    /// Passes all bytes. Returns what ended.
    fn pass(frames: &mut Frames, mut bytes: &[u8]) -> Vec<Ended> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let (passed, ended) = frames.pass(bytes);
            all.extend(ended);
            bytes = &bytes[passed..];
        }
        all
    }

    #[test]
    fn unfinished_frames_are_counted_and_finished_ones_are_not() {
        let mut frames = Frames::of_client();
        let whole = [vec![0; PREFACE_BYTES], frame(4, 0, 0), frame(HEADERS, END_HEADERS, 70)];
        pass(&mut frames, &whole.concat());
        assert_eq!(frames.begun(), 0);
        for byte in [frame(8, 0, 4), frame(HEADERS, 0, 50)].concat() {
            pass(&mut frames, &[byte]);
        }
        assert_eq!(frames.begun(), 50);
        pass(&mut frames, &frame(CONTINUATION, 0, 200)[..109]);
        assert_eq!(frames.begun(), 50 + 109);
        pass(&mut frames, &[0; 100]);
        assert_eq!(frames.begun(), 250);
        pass(&mut frames, &frame(CONTINUATION, END_HEADERS, 1));
        assert_eq!(frames.begun(), 0);
    }

    /// However the bytes are cut, each frame ends once, and a stream ends with its last frame.
    #[test]
    fn ends_are_seen_in_every_cut() {
        let nothing =
            Ended { stream: 1, head: false, head_bytes: 0, stream_too: false, reset: false };
        let all = [
            (frame(HEADERS, END_HEADERS, 3), Ended { head: true, head_bytes: 3, ..nothing }),
            (frame(DATA, 0, 9), nothing),
            (frame(DATA, END_STREAM, 0), Ended { stream_too: true, ..nothing }),
            (frame(HEADERS, END_STREAM, 5), nothing),
            (frame(CONTINUATION, 0, 1), nothing),
            (
                frame(CONTINUATION, END_HEADERS, 2),
                Ended { head: true, head_bytes: 8, stream_too: true, ..nothing },
            ),
            (frame(HEADERS, END_HEADERS, 0), Ended { head: true, ..nothing }),
            (frame(RST_STREAM, 0, 4), Ended { stream_too: true, reset: true, ..nothing }),
            (frame(8, END_STREAM, 4), nothing),
        ];
        let bytes = all.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<_>>();
        let wanted = all.map(|(_, ended)| ended);
        for size in 1..=bytes.len() {
            let mut frames = Frames::default();
            let seen = bytes.chunks(size).flat_map(|cut| pass(&mut frames, cut));
            assert_eq!(seen.collect::<Vec<_>>(), wanted, "in pieces of {size}");
        }
    }
}
