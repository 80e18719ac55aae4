//! What an HTTP/2 client may do on its connection: the streams that are open, for how long, and a
//! budget for the frames that are no requests.
//!
//! `h2` answers control frames itself and does not say how many there were, nor which answers the
//! client does not read. Both can be told from the heads of the frames that pass by.

use std::collections::VecDeque;
use std::time::Duration;

use ratelease_engine::time::{Clock, Time};

use super::frames::*;
use super::waiting::Waiting;

/// What the frames that are no requests cost. Those that cost more make `h2` visit every stream
/// (SETTINGS) or answer (PING), or are of no use (empty DATA, kinds that HTTP/2 does not have).
const SETTINGS_COST: u32 = 64;
const PING_COST: u32 = 8;
const EMPTY_COST: u32 = 8;
const COST: u32 = 1;

/// The budget of a new connection: 32 SETTINGS or 2048 resets. More of it would serve a flood that
/// connects again and again.
const BUDGET_FIRST: u32 = 2 * 1024;

/// The most that a budget grows to: what comes back in four seconds, for which this process may
/// stand still while an Envoy goes on.
const BUDGET_MAX: u32 = 4 * PER_SECOND;

/// What comes back each second. An Envoy that resets each stream after 20 ms has at most 256
/// streams under way and so resets 12 800 a second; a flood is a hundred thousand and more.
const PER_SECOND: u32 = 16 * 1024;

/// What each frame of headers that is sent earns, so that a client whose requests are answered may
/// send frames in proportion: some ping and open their windows with each answer.
const EARNED: u32 = 8;

/// Streams that are open or refused but not yet told so, above which a client has to calm down.
const STREAMS_HELD_MAX: usize = 4096;

/// Seconds after which a request has to be whole. More than a few that are not end the connection;
/// so does any after [`QUIET_MAX`]. A request that is one message has it in the packet of its head.
const UNFINISHED_MAX: u32 = 2;
const UNFINISHED_FEW: usize = 8;

/// Seconds without a frame of an answer, above which its client does not read it: longer than any
/// request may take to be answered (10 s).
const QUIET_MAX: u32 = 15;

/// The streams of one connection, and what its client may still send.
#[derive(Debug)]
pub(super) struct Ledger {
    inbound: FrameHeads,
    outbound: FrameHeads,
    /// Open ones by identifier, which only grows.
    streams: VecDeque<Stream>,
    last_stream: u32,
    /// Of the open streams: those whose request is not whole, and those whose answer has begun.
    unfinished: usize,
    answering: usize,
    /// Bytes of header blocks since they were last asked for.
    header_bytes: usize,
    budget: Budget,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: u32,
    /// The second of its last frame that counts: the first of its request, then those sent.
    moved: u32,
    is_whole: bool,
    is_answering: bool,
}

#[derive(Debug)]
struct Budget {
    left: u32,
    filled: Time,
}

/// The client has done more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Excess(pub(super) &'static str);

// === impl Ledger ===

impl Ledger {
    pub(super) fn new(now: Time) -> Self {
        Self {
            inbound: FrameHeads::default(),
            outbound: FrameHeads::default(),
            streams: VecDeque::new(),
            last_stream: 0,
            unfinished: 0,
            answering: 0,
            header_bytes: 0,
            budget: Budget { left: BUDGET_FIRST, filled: now },
        }
    }

    /// Takes in what was read in this second.
    pub(super) fn note_read(
        &mut self,
        mut bytes: &[u8],
        second: u32,
        clock: &Clock,
    ) -> Result<(), Excess> {
        while let Some(head) = self.inbound.next(&mut bytes) {
            if matches!(head.kind, HEADERS | CONTINUATION) {
                self.header_bytes += head.length as usize;
            }
            self.note_inbound(head, second, clock)?;
        }
        Ok(())
    }

    /// Takes in what was written in this second; whether part of an answer was among it.
    pub(super) fn note_written(&mut self, mut bytes: &[u8], second: u32) -> bool {
        let mut has_answers = false;
        while let Some(head) = self.outbound.next(&mut bytes) {
            has_answers |= matches!(head.kind, HEADERS | DATA);
            self.note_outbound(head, second);
        }
        has_answers
    }

    /// Open streams.
    pub(super) fn open(&self) -> usize {
        self.streams.len()
    }

    /// Streams that wait for the client, but for `lasting` ones.
    pub(super) fn waiting(&self, lasting: usize) -> Waiting {
        let unread = self.answering.saturating_sub(lasting);
        Waiting { unfinished: self.unfinished, unread }
    }

    /// Bytes of the header blocks that have begun since this was last called.
    pub(super) fn take_header_bytes(&mut self) -> usize {
        std::mem::take(&mut self.header_bytes)
    }

    /// The identifier of the newest stream.
    pub(super) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Whether a frame may be written now.
    pub(super) fn is_between_frames(&self) -> bool {
        self.outbound.is_between_frames()
    }

    /// Fails if streams have stood still for too long; `lasting` of them may.
    pub(super) fn sweep(&self, second: u32, lasting: usize) -> Result<(), Excess> {
        let (mut unfinished, mut quiet) = (0, 0);
        for stream in &self.streams {
            let still = second.wrapping_sub(stream.moved);
            unfinished += usize::from(!stream.is_whole && still > UNFINISHED_MAX);
            quiet += usize::from(still > QUIET_MAX);
        }
        if unfinished > UNFINISHED_FEW {
            return Err(Excess("requests that are not finished"));
        }
        if quiet > lasting { Err(Excess("answers that are not read")) } else { Ok(()) }
    }

    fn note_inbound(&mut self, head: Head, second: u32, clock: &Clock) -> Result<(), Excess> {
        let (cost, what) = match head.kind {
            HEADERS => return self.note_request(head, second),
            DATA if head.ends_stream() => {
                self.note_whole(head.stream);
                return Ok(());
            }
            DATA if head.length > 0 => return Ok(()), // flow control bounds these
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
        if self.budget.spend(cost, clock) { Ok(()) } else { Err(Excess(what)) }
    }

    fn note_request(&mut self, head: Head, second: u32) -> Result<(), Excess> {
        let is_whole = head.ends_stream();
        if head.stream <= self.last_stream {
            // Trailers.
            if is_whole {
                self.note_whole(head.stream);
            }
            return Ok(());
        }
        if self.streams.len() >= STREAMS_HELD_MAX {
            return Err(Excess("streams above the limit"));
        }
        self.last_stream = head.stream;
        self.unfinished += usize::from(!is_whole);
        let stream = Stream { id: head.stream, moved: second, is_whole, is_answering: false };
        self.streams.push_back(stream);
        Ok(())
    }

    fn note_outbound(&mut self, head: Head, second: u32) {
        match head.kind {
            HEADERS => self.budget.earn(EARNED),
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
        stream.moved = second;
        if !stream.is_answering {
            stream.is_answering = true;
            self.answering += 1;
        }
    }

    fn note_whole(&mut self, id: u32) {
        if let Some(stream) = self.find(id).and_then(|at| self.streams.get_mut(at))
            && !stream.is_whole
        {
            stream.is_whole = true;
            self.unfinished -= 1;
        }
    }

    fn find(&self, id: u32) -> Option<usize> {
        let is = |stream: &Stream| stream.id == id;
        // A message follows its head, and calls are mostly answered in their order.
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
            self.unfinished -= usize::from(!stream.is_whole);
            self.answering -= usize::from(stream.is_answering);
        }
    }
}

// === impl Budget ===

impl Budget {
    /// False if that much is not left. The clock is read only then.
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
        let back = since.as_micros() * u128::from(PER_SECOND) / 1_000_000;
        if back > 0 {
            self.filled = now;
            let back = u32::try_from(back).unwrap_or(BUDGET_MAX);
            self.left = (self.left + back).min(BUDGET_MAX);
        }
    }
}

#[cfg(test)]
mod tests;
