//! Header blocks: fragments are decoded as they arrive, and the message begins when they end.

use crate::connection::{BlockPurpose, FrameState, H2Connection, HeadBlock};
use crate::event::H2Event;
use crate::fault::{ConnectionFault, Flood, MalformedMessage, StreamFault};
use crate::frame::{FRAME_HEAD_BYTES, FrameHead, flag};
use crate::head::MessageHead;
use crate::hpack::HpackDecoder;
use crate::limits::{CONTINUATIONS_MAX, CONTROL_FRAMES_PER_DATA};
use crate::priority::Priority;
use crate::receive::{Step, Stepped};
use crate::stream::{Receiving, RequestKind, Sending};

/// The first status of a final response.
const FINAL_STATUS: u16 = 200;
/// The first status that is neither interim nor a success.
const REDIRECT_STATUS: u16 = 300;
const NO_CONTENT: u16 = 204;
const NOT_MODIFIED: u16 = 304;

impl H2Connection {
    pub(crate) fn continuation<'a>(&mut self, head: FrameHead) -> Stepped<'a> {
        if let Some(block) = &mut self.block {
            block.continuations += 1;
            if block.continuations > CONTINUATIONS_MAX {
                return Err(ConnectionFault::Flood(Flood::Continuation));
            }
        }
        self.count_block(head.len)?;
        let is_last = head.has(flag::END_HEADERS);
        self.reading = FrameState::Block { left: head.len, padding: 0, is_last };
        Ok(Step::Used(FRAME_HEAD_BYTES))
    }

    /// Counts a fragment before it arrives.
    pub(crate) fn count_block(&mut self, bytes: usize) -> Result<(), ConnectionFault> {
        let bytes_max = self.limits.block_bytes_max();
        let Some(block) = &mut self.block else { return Err(ConnectionFault::HeadInterrupted) };
        block.bytes += bytes;
        if block.bytes > bytes_max {
            return Err(ConnectionFault::Flood(Flood::Block));
        }
        Ok(())
    }

    pub(crate) fn read_block<'a>(
        &mut self,
        input: &[u8],
        (left, padding, is_last): (usize, usize, bool),
        out: &mut Vec<u8>,
    ) -> Stepped<'a> {
        let used = left.min(input.len());
        if used > 0 {
            let Some(block) = &mut self.block else { return Err(ConnectionFault::Closed) };
            decode(&mut self.decoder, block, input.get(..used).unwrap_or_default())?;
        }
        let padded = padding.min(input.len() - used);
        let (left, padding) = (left - used, padding - if left == used { padded } else { 0 });
        let used = used + if left == 0 { padded } else { 0 };
        if left > 0 || padding > 0 {
            self.reading = FrameState::Block { left, padding, is_last };
            return Ok(if used > 0 { Step::Used(used) } else { Step::Need(1) });
        }
        self.reading = FrameState::Head;
        if !is_last {
            return Ok(Step::Used(used));
        }
        let Some(block) = self.block.take() else { return Err(ConnectionFault::Closed) };
        Ok(match self.end_block(block, out)? {
            Some(event) => Step::Event(used, event),
            None => Step::Used(used),
        })
    }

    fn end_block<'a>(
        &mut self,
        block: HeadBlock,
        out: &mut Vec<u8>,
    ) -> Result<Option<H2Event<'a>>, ConnectionFault> {
        self.decoder.end(&block.rest)?;
        let (stream, is_last) = (block.stream, block.ends_stream);
        let purpose = if self.is_gone(stream) { BlockPurpose::Drop } else { block.purpose };
        let fault = match purpose {
            BlockPurpose::Drop => {
                // It has begun for the client, which may send more frames of it.
                self.last_stream = self.last_stream.max(stream);
                // A flood of requests after GOAWAY, or for streams that were reset.
                self.count_control()?;
                return Ok(None);
            }
            BlockPurpose::Fail(fault) => {
                self.last_stream = self.last_stream.max(stream);
                fault
            }
            BlockPurpose::Request => {
                let begun = self.begin_request(stream, is_last, block.reader.end());
                match begun {
                    Ok(head) => return Ok(Some(H2Event::Request { stream, head, is_last })),
                    Err(fault) => fault,
                }
            }
            BlockPurpose::Response => match self.take_response(stream, is_last, block.reader.end())
            {
                Ok(head) => {
                    if head.status < FINAL_STATUS {
                        self.count_control()?;
                    }
                    return Ok(Some(H2Event::Response { stream, head, is_last }));
                }
                Err(fault) => fault,
            },
            BlockPurpose::Trailers => match self.take_trailers(stream, block.reader.end()) {
                Ok(head) => {
                    return Ok(Some(H2Event::Trailers { stream, fields: head.fields }));
                }
                Err(fault) => fault,
            },
        };
        self.fail_stream(stream, fault, out).map(Some)
    }

    /// True if a stream is not served any more: the caller has reset it, or has said an earlier
    /// last stream, perhaps while the head was on its way.
    fn is_gone(&mut self, stream: u32) -> bool {
        self.streams.find(stream).is_none() && (!self.is_idle(stream) || self.ignores(stream))
    }

    fn begin_request(
        &mut self,
        stream: u32,
        is_last: bool,
        head: Result<Box<MessageHead>, StreamFault>,
    ) -> Result<Box<MessageHead>, StreamFault> {
        // It has begun, whether it is served or not.
        self.last_stream = stream;
        let early = self.early_priorities.iter().find(|(early, _)| *early == stream);
        let early = early.map(|(_, priority)| *priority);
        // Streams below it will not begin any more.
        self.early_priorities.retain(|(early, _)| *early > stream);
        if self.streams.len() >= self.limits.streams_max as usize {
            return Err(StreamFault::TooMany);
        }
        let head = head?;
        let left = if head.is_too_large { None } else { head.length };
        if is_last && left.is_some_and(|left| left > 0) {
            return Err(StreamFault::Malformed(MalformedMessage::Length));
        }
        let receiving = if is_last { Receiving::Ended } else { Receiving::Body { left } };
        self.add_stream(stream, Sending::Head, receiving);
        if let Some(stream) = self.streams.find(stream) {
            // PRIORITY_UPDATE is newer than the field (RFC 9218 section 7).
            stream.priority = early.or(head.priority).unwrap_or(Priority::UNSAID);
        }
        self.control.drain(CONTROL_FRAMES_PER_DATA);
        Ok(head)
    }

    fn take_response(
        &mut self,
        stream: u32,
        is_last: bool,
        head: Result<Box<MessageHead>, StreamFault>,
    ) -> Result<Box<MessageHead>, StreamFault> {
        let malformed = StreamFault::Malformed;
        let mut head = head?;
        let Some(known) = self.streams.find(stream) else { return Err(StreamFault::Closed) };
        let Receiving::Head { request } = known.receiving else {
            return Err(StreamFault::Closed);
        };
        if head.status < FINAL_STATUS {
            return match is_last {
                true => Err(malformed(MalformedMessage::InterimEnd)),
                false => Ok(head),
            };
        }
        let is_success = (FINAL_STATUS..REDIRECT_STATUS).contains(&head.status);
        let left = match request {
            RequestKind::Connect if is_success => {
                // What follows has no length (RFC 9110 section 9.3.6).
                head.length = None;
                None
            }
            RequestKind::Head => Some(0),
            _ if matches!(head.status, NO_CONTENT | NOT_MODIFIED) => Some(0),
            _ => head.length,
        };
        if is_last && left.is_some_and(|left| left > 0) {
            return Err(malformed(MalformedMessage::Length));
        }
        known.receiving = if is_last { Receiving::Ended } else { Receiving::Body { left } };
        self.settle(stream);
        Ok(head)
    }

    fn take_trailers(
        &mut self,
        stream: u32,
        head: Result<Box<MessageHead>, StreamFault>,
    ) -> Result<Box<MessageHead>, StreamFault> {
        let head = head?;
        let Some(known) = self.streams.find(stream) else { return Err(StreamFault::Closed) };
        if !matches!(known.receiving, Receiving::Body { left: None | Some(0) }) {
            return Err(StreamFault::Malformed(MalformedMessage::Length));
        }
        known.receiving = Receiving::Ended;
        self.settle(stream);
        Ok(head)
    }
}

/// Decodes a fragment. Only the beginning of a field whose rest is missing is kept.
fn decode(
    decoder: &mut HpackDecoder,
    HeadBlock { reader, rest, .. }: &mut HeadBlock,
    fragment: &[u8],
) -> Result<(), ConnectionFault> {
    if rest.is_empty() {
        let used = decoder.decode(fragment, |field| reader.take(field))?;
        rest.extend_from_slice(fragment.get(used..).unwrap_or_default());
    } else {
        rest.extend_from_slice(fragment);
        let used = decoder.decode(rest, |field| reader.take(field))?;
        rest.drain(..used);
    }
    Ok(())
}
