//! Limits on an HTTP/2 connection: the number of open streams, how long they may be open, and a
//! budget for frames that are not requests.
//!
//! `h2` answers control frames itself and does not report how many arrived, nor which answers the
//! client leaves unread. Both can be derived from the frame headers that pass through.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease_engine::time::{Clock, Time};

use super::pool::PendingStreams;

/// Cost of a SETTINGS frame, which makes `h2` visit every stream.
const SETTINGS_COST: u32 = 64;

/// Cost of a PING frame, which makes `h2` answer.
const PING_COST: u32 = 8;

/// Cost of a frame that is of no use: empty DATA, or a type that HTTP/2 does not define.
const EMPTY_COST: u32 = 8;

/// Cost of any other frame that is not a request.
const COST: u32 = 1;

/// The budget of a new connection: 32 SETTINGS or 2048 resets, which is twice as many as an Envoy
/// opens on it at first. A larger one would help a flood that reconnects again and again.
const BUDGET_INITIAL: u32 = 2 * 1024;

/// Maximum of a budget: the amount regained in four seconds, a time for which this process may be
/// stopped while an Envoy goes on.
const BUDGET_MAX: u32 = 4 * BUDGET_PER_SECOND;

/// Budget regained each second. A worker of an Envoy takes some 65 us for a request, so that its
/// connection resets at most 15 000 streams a second when all of them time out; a flood is a
/// hundred thousand and more.
const BUDGET_PER_SECOND: u32 = 16 * 1024;

/// Budget earned by each frame of headers sent, so that a client whose requests are answered may
/// send frames in proportion: some clients ping and open their windows with each answer.
const CREDIT_PER_ANSWER: u32 = 8;

/// Maximum number of streams that are open, or refused without the client having been informed yet;
/// above it the connection is closed with ENHANCE_YOUR_CALM.
const STREAMS_HELD_MAX: usize = 4096;

/// Maximum bytes of a header block that goes on in CONTINUATION frames: four times the maximum for
/// the fields of a request.
const BLOCK_BYTES_MAX: usize = 32 * 1024;

/// Seconds after which a request has to be complete. A request of one message has the message in
/// the same packet as its headers.
const UNFINISHED_MAX: u32 = 4;

/// Number of incomplete requests above which a connection is closed. After [`QUIET_MAX`], one
/// incomplete request is enough.
const UNFINISHED_FEW: usize = 8;

/// Seconds without a frame of an answer, above which the client is taken not to read it: longer
/// than any request may take to be answered (10 s).
const QUIET_MAX: u32 = 15;

/// Observes the streams of a connection as their frames pass: `h2` does not report a reset that
/// comes after the answer.
pub trait StreamObserver: Send + Sync {
    /// Whether it observes at present.
    fn is_watching(&self) -> bool;

    /// The client has reset this stream.
    fn note_reset(&self, stream: u32);

    /// The last frame of the answer on this stream was written.
    fn note_answered(&self, stream: u32);
}

/// The streams of one connection, and the client's remaining budget.
#[derive(Debug)]
pub(super) struct Http2Limits {
    inbound: FrameHeads,
    outbound: FrameHeads,
    /// Open streams by identifier, which only grows.
    streams: VecDeque<Stream>,
    last_stream: u32,
    /// Among the open streams: those whose request is incomplete, and those whose answer has begun.
    unfinished: usize,
    answering: usize,
    /// Bytes of header blocks since `take_header_bytes` was last called.
    header_bytes: usize,
    /// Frames of content after which more is to come, since `take_parts` was last called.
    parts: usize,
    /// Bytes of the header block that began last.
    block_bytes: usize,
    /// Whether the client has reset a stream since `take_resets` was last called.
    has_resets: bool,
    budget: FrameBudget,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: u32,
    /// The second of the stream's last frame that counts: the first of its request, then those
    /// sent.
    last_progress: u32,
    is_complete: bool,
    is_answering: bool,
}

#[derive(Debug)]
struct FrameBudget {
    left: u32,
    filled: Time,
}

/// The client exceeded a limit; the text says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitExceeded(pub(super) &'static str);

// === impl Http2Limits ===

impl Http2Limits {
    pub(super) fn new(now: Time) -> Self {
        Self {
            inbound: FrameHeads::default(),
            outbound: FrameHeads::default(),
            streams: VecDeque::new(),
            last_stream: 0,
            unfinished: 0,
            answering: 0,
            header_bytes: 0,
            parts: 0,
            block_bytes: 0,
            has_resets: false,
            budget: FrameBudget { left: BUDGET_INITIAL, filled: now },
        }
    }

    /// Processes bytes read in this second, and reports the resets among them to `observer`.
    pub(super) fn note_read(
        &mut self,
        mut bytes: &[u8],
        second: u32,
        clock: &Clock,
        observer: Option<&dyn StreamObserver>,
    ) -> Result<(), LimitExceeded> {
        while let Some(head) = self.inbound.next(&mut bytes) {
            if head.kind == RST_STREAM {
                self.has_resets = true;
                if let Some(observer) = observer {
                    observer.note_reset(head.stream);
                }
            }
            self.note_header_block(head)?;
            self.note_inbound(head, second, clock)?;
        }
        Ok(())
    }

    /// Processes bytes written in this second, and reports the answers that end in them to
    /// `observer`. Returns whether they held part of an answer.
    pub(super) fn note_written(
        &mut self,
        mut bytes: &[u8],
        second: u32,
        observer: Option<&dyn StreamObserver>,
    ) -> bool {
        let mut has_answers = false;
        while let Some(head) = self.outbound.next(&mut bytes) {
            let is_of_answer = matches!(head.kind, HEADERS | DATA);
            has_answers |= is_of_answer;
            if is_of_answer
                && head.ends_stream()
                && let Some(observer) = observer
            {
                observer.note_answered(head.stream);
            }
            self.note_outbound(head, second);
        }
        has_answers
    }

    /// Number of open streams.
    pub(super) fn open(&self) -> usize {
        self.streams.len()
    }

    /// Number of streams that wait for the client, not counting `long_lived` ones.
    pub(super) fn waiting(&self, long_lived: usize) -> PendingStreams {
        let unread = self.answering.saturating_sub(long_lived);
        PendingStreams { unfinished: self.unfinished, arriving: 0, unread }
    }

    /// Bytes of the header blocks that have begun since the last call.
    pub(super) fn take_header_bytes(&mut self) -> usize {
        std::mem::take(&mut self.header_bytes)
    }

    /// Frames of content, after which more is to come, since this was last called.
    pub(super) fn take_parts(&mut self) -> usize {
        std::mem::take(&mut self.parts)
    }

    /// Whether the client has reset a stream since the last call.
    pub(super) fn take_resets(&mut self) -> bool {
        std::mem::take(&mut self.has_resets)
    }

    /// The identifier of the newest stream.
    pub(super) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Whether a frame may be written now.
    pub(super) fn is_between_frames(&self) -> bool {
        self.outbound.is_between_frames()
    }

    /// Fails if streams have made no progress for too long. `long_lived` of them may be quiet, and
    /// the requests of `unending` need not be finished.
    pub(super) fn sweep(
        &self,
        second: u32,
        long_lived: usize,
        unending: usize,
    ) -> Result<(), LimitExceeded> {
        let mut unfinished = 0;
        let mut quiet = 0;
        for stream in &self.streams {
            let still = second.wrapping_sub(stream.last_progress);
            unfinished += usize::from(!stream.is_complete && still > UNFINISHED_MAX);
            quiet += usize::from(still > QUIET_MAX);
        }
        if unfinished > UNFINISHED_FEW + unending {
            return Err(LimitExceeded("requests that are not finished"));
        }
        if quiet > long_lived { Err(LimitExceeded("answers that are not read")) } else { Ok(()) }
    }

    /// Counts the bytes of header blocks. `h2` keeps a block until its last frame has come.
    fn note_header_block(&mut self, head: Head) -> Result<(), LimitExceeded> {
        let length = head.length as usize;
        match head.kind {
            HEADERS => self.block_bytes = length,
            CONTINUATION => self.block_bytes += length,
            _ => return Ok(()),
        }
        self.header_bytes += length;
        if head.kind == CONTINUATION && self.block_bytes > BLOCK_BYTES_MAX {
            return Err(LimitExceeded("bytes of a header block"));
        }
        Ok(())
    }

    fn note_inbound(
        &mut self,
        head: Head,
        second: u32,
        clock: &Clock,
    ) -> Result<(), LimitExceeded> {
        let (cost, what) = match head.kind {
            HEADERS => return self.note_request(head, second),
            DATA if head.ends_stream() => {
                self.note_complete(head.stream);
                return Ok(());
            }
            DATA if head.length > 0 => {
                self.parts += 1; // flow control and turns bound these
                return Ok(());
            }
            DATA => (EMPTY_COST, "empty DATA frames"),
            RST_STREAM => {
                self.remove(head.stream);
                (COST, "RST_STREAM frames")
            }
            SETTINGS if head.flags & ACK == 0 => (SETTINGS_COST, "SETTINGS frames"),
            PING => (PING_COST, "PING frames"),
            PRIORITY => (COST, "PRIORITY frames"),
            WINDOW_UPDATE => (COST, "WINDOW_UPDATE frames"),
            CONTINUATION => (COST, "CONTINUATION frames"),
            _ => (EMPTY_COST, "frames that are of no use"),
        };
        if self.budget.spend(cost, clock) { Ok(()) } else { Err(LimitExceeded(what)) }
    }

    fn note_request(&mut self, head: Head, second: u32) -> Result<(), LimitExceeded> {
        let is_complete = head.ends_stream();
        if head.stream <= self.last_stream {
            // Trailers.
            if is_complete {
                self.note_complete(head.stream);
            }
            return Ok(());
        }
        if self.streams.len() >= STREAMS_HELD_MAX {
            return Err(LimitExceeded("streams above the limit"));
        }
        self.last_stream = head.stream;
        self.unfinished += usize::from(!is_complete);
        let stream =
            Stream { id: head.stream, last_progress: second, is_complete, is_answering: false };
        self.streams.push_back(stream);
        Ok(())
    }

    fn note_outbound(&mut self, head: Head, second: u32) {
        match head.kind {
            HEADERS => self.budget.earn(CREDIT_PER_ANSWER),
            DATA => {}
            RST_STREAM => return self.remove(head.stream),
            _ => return,
        }
        if head.ends_stream() {
            return self.remove(head.stream);
        }
        let Some(stream) = self.find(head.stream).and_then(|at| self.streams.get_mut(at)) else {
            return;
        };
        stream.last_progress = second;
        if !stream.is_answering {
            stream.is_answering = true;
            self.answering += 1;
        }
    }

    fn note_complete(&mut self, id: u32) {
        if let Some(stream) = self.find(id).and_then(|at| self.streams.get_mut(at))
            && !stream.is_complete
        {
            stream.is_complete = true;
            self.unfinished -= 1;
        }
    }

    fn find(&self, id: u32) -> Option<usize> {
        let is = |stream: &Stream| stream.id == id;
        // A message mostly follows its headers directly, and calls are mostly answered in order.
        if self.streams.back().is_some_and(is) {
            return Some(self.streams.len() - 1);
        }
        if self.streams.front().is_some_and(is) {
            return Some(0);
        }
        self.streams.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    fn remove(&mut self, id: u32) {
        if let Some(stream) = self.find(id).and_then(|at| self.streams.remove(at)) {
            self.unfinished -= usize::from(!stream.is_complete);
            self.answering -= usize::from(stream.is_answering);
        }
    }
}

// === impl FrameBudget ===

impl FrameBudget {
    /// Takes `cost` from the budget; returns false if less is left. The clock is read only when the
    /// budget is too small.
    fn spend(&mut self, cost: u32, clock: &Clock) -> bool {
        if self.left < cost {
            self.fill(clock.now());
        }
        let left = self.left.checked_sub(cost);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    fn earn(&mut self, earned: u32) {
        self.left = (self.left + earned).min(BUDGET_MAX);
    }

    #[cold]
    fn fill(&mut self, now: Time) {
        let since = now.since(self.filled).min(Duration::from_secs(4));
        let back = since.as_micros() * u128::from(BUDGET_PER_SECOND) / 1_000_000;
        if back > 0 {
            self.filled = now;
            let back = u32::try_from(back).unwrap_or(BUDGET_MAX);
            self.left = (self.left + back).min(BUDGET_MAX);
        }
    }
}

// Reads the frame headers of HTTP/2 as bytes pass through. Copies nothing but a header that is
// split between two reads.

/// Size in bytes of a frame header (RFC 9113 §4.1).
const HEAD_BYTES: usize = 9;

/// Type of a DATA frame (RFC 9113 §6.1).
const DATA: u8 = 0;
/// Type of a HEADERS frame (RFC 9113 §6.2).
const HEADERS: u8 = 1;
/// Type of a PRIORITY frame (RFC 9113 §6.3).
const PRIORITY: u8 = 2;
/// Type of a RST_STREAM frame (RFC 9113 §6.4).
const RST_STREAM: u8 = 3;
/// Type of a WINDOW_UPDATE frame (RFC 9113 §6.9).
const WINDOW_UPDATE: u8 = 8;
/// Type of a SETTINGS frame (RFC 9113 §6.5).
const SETTINGS: u8 = 4;
/// Type of a PING frame (RFC 9113 §6.7).
const PING: u8 = 6;
/// Type of a CONTINUATION frame (RFC 9113 §6.10).
const CONTINUATION: u8 = 9;

/// Flag of the last frame of a stream.
const END_STREAM: u8 = 1;

/// Flag of a SETTINGS or PING frame that answers another one.
const ACK: u8 = 1;

/// A GOAWAY frame without an error text: `last_stream`, ENHANCE_YOUR_CALM (RFC 9113 §6.8, §7).
pub(super) fn goaway(last_stream: u32) -> [u8; 17] {
    let [a, b, c, d] = last_stream.to_be_bytes();
    [0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 11]
}

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    length: u32,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Finds the frame headers in one direction of a connection.
#[derive(Debug, Default)]
struct FrameHeads {
    /// The first bytes of a header whose other bytes have not arrived yet.
    split: [u8; HEAD_BYTES],
    split_bytes: usize,
    /// Number of bytes left of the payload that is passing through.
    payload: usize,
}

// === impl Head ===

impl Head {
    fn read([l0, l1, l2, kind, flags, s0, s1, s2, s3]: [u8; HEAD_BYTES]) -> Self {
        let length = u32::from_be_bytes([0, l0, l1, l2]);
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        Self { length, kind, flags, stream }
    }

    fn ends_stream(self) -> bool {
        self.flags & END_STREAM != 0
    }
}

// === impl FrameHeads ===

impl FrameHeads {
    /// Returns the next header in `bytes` and advances `bytes` past it; `None` at the end of
    /// `bytes`.
    #[inline]
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        let skipped = self.payload.min(bytes.len());
        *bytes = bytes.get(skipped..)?;
        self.payload -= skipped;
        let head = match bytes.split_first_chunk::<HEAD_BYTES>() {
            Some((head, rest)) if self.split_bytes == 0 => {
                *bytes = rest;
                *head
            }
            _ => self.join(bytes)?,
        };
        let head = Head::read(head);
        self.payload = head.length as usize;
        Some(head)
    }

    /// Whether the next byte begins a frame.
    fn is_between_frames(&self) -> bool {
        self.split_bytes == 0 && self.payload == 0
    }

    /// Returns a header that began in an earlier read; keeps the bytes of one that ends in a later
    /// read.
    #[cold]
    fn join(&mut self, bytes: &mut &[u8]) -> Option<[u8; HEAD_BYTES]> {
        let wanted = self.split.get_mut(self.split_bytes..)?;
        let taken = wanted.len().min(bytes.len());
        let (first, rest) = bytes.split_at(taken);
        wanted.iter_mut().zip(first).for_each(|(to, from)| *to = *from);
        *bytes = rest;
        self.split_bytes += taken;
        if self.split_bytes < HEAD_BYTES {
            return None;
        }
        self.split_bytes = 0;
        Some(self.split)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod frame_tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, stream: u32, length: u16) -> Vec<u8> {
        let [l1, l2] = length.to_be_bytes();
        let head = [&[0, l1, l2, kind, 5][..], &stream.to_be_bytes()].concat();
        [head, vec![0xff; length.into()]].concat()
    }

    proptest! {
        #[test]
        fn every_head_is_found_however_the_bytes_are_cut(
            sent in prop::collection::vec((any::<u8>(), 0_u32..1 << 31, 0_u16..40), 0..20),
            cuts in prop::collection::vec(1_usize..30, 1..60),
        ) {
            let one = |(kind, stream, length): &(u8, u32, u16)| frame(*kind, *stream, *length);
            let bytes: Vec<u8> = sent.iter().flat_map(one).collect();
            let (mut heads, mut found, mut rest) = (FrameHeads::default(), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (mut part, after) = rest.split_at(rest.len().min(*cut));
                while let Some(head) = heads.next(&mut part) {
                    found.push((head.kind, head.stream, head.length));
                }
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            let sent: Vec<_> = sent.into_iter().map(|(k, s, l)| (k, s, u32::from(l))).collect();
            prop_assert_eq!(found, sent);
            prop_assert!(heads.is_between_frames());
        }
    }
}
