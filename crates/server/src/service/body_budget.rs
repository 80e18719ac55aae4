//! Limits the memory of incomplete messages, and of long ones until their calls are answered.
//!
//! An incomplete message costs its sender nothing and this process a waiting call. All incomplete
//! messages together may take a fixed number of bytes, those of one connection half of that. When
//! there is no room, the connection that reserves the most loses its oldest incomplete message: a
//! client that fills the budget takes it from itself, and one that sends complete messages is not
//! refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::RequestError;

/// Minimum size in bytes that an incomplete message counts for: its call's headers, task and
/// buffers.
const MESSAGE_BYTES_MIN: usize = 8 * 1024;

/// A client's connection, whose messages count together. A cheap handle: clones are the same
/// connection.
#[derive(Debug, Clone)]
pub struct Peer(Arc<PeerState>);

#[derive(Debug)]
struct PeerState {
    id: u64,
    /// Number of calls of this connection that hold a permit of the concurrency limit.
    waiting: AtomicUsize,
}

/// Bounds the bytes of messages. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub(super) struct BodyBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes_max: usize,
    refused: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of all messages.
    bytes: usize,
    /// Bytes of complete messages.
    complete_bytes: usize,
    /// The connections with incomplete messages.
    peers: HashMap<u64, IncompleteMessages>,
    next: u64,
}

/// The incomplete messages of one connection, oldest first.
#[derive(Debug, Default)]
struct IncompleteMessages {
    bytes: usize,
    messages: BTreeMap<u64, IncompleteMessage>,
}

#[derive(Debug)]
struct IncompleteMessage {
    bytes: usize,
    revocation: Arc<Revocation>,
}

/// Notifies a message's reader that the message has lost its reservation.
#[derive(Debug, Default)]
struct Revocation {
    is_revoked: AtomicBool,
    reader: AtomicWaker,
}

/// The bytes reserved for one message, counted from its first wait or byte until its last clone is
/// dropped.
#[derive(Debug, Clone)]
pub struct BodyReservation(Arc<Message>);

#[derive(Debug)]
struct Message {
    budget: BodyBudget,
    peer: Peer,
    revocation: Arc<Revocation>,
    stage: Mutex<Stage>,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// No byte was read, and no wait has begun.
    New,
    /// The message has this number among those of its connection.
    Incomplete(u64),
    /// The message counts for this many bytes.
    Complete(usize),
}

// === impl Peer ===

impl Peer {
    /// Creates the peer of a newly accepted connection.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(PeerState { id, waiting: AtomicUsize::new(0) }))
    }

    /// Number of calls of this connection that hold a permit of the concurrency limit.
    pub(super) fn waiting(&self) -> &AtomicUsize {
        &self.0.waiting
    }
}

impl Default for Peer {
    fn default() -> Self {
        Self::new()
    }
}

// === impl BodyBudget ===

impl BodyBudget {
    /// Creates a budget of `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let shared = Shared { bytes_max, refused: AtomicU64::new(0), state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Registers a message that `peer` has begun.
    pub(super) fn reserve(&self, peer: &Peer) -> BodyReservation {
        BodyReservation(Arc::new(Message {
            budget: self.clone(),
            peer: peer.clone(),
            revocation: Arc::default(),
            stage: Mutex::new(Stage::New),
        }))
    }

    /// Number of messages that got no reservation, or lost it.
    pub(super) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Number of bytes that are reserved.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.state.lock().bytes as u64
    }
}

// === impl BodyReservation ===

impl BodyReservation {
    /// The connection that sends the message.
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Counts `bytes` more.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::NoRoom`] if there is no room for them, or the message has lost its
    /// reservation.
    pub fn grow(&self, bytes: usize) -> Result<(), RequestError> {
        let Message { budget: BodyBudget { shared }, peer, revocation, stage } = &*self.0;
        let revoked = {
            let mut stage = stage.lock();
            let mut state = shared.state.lock();
            let number = match *stage {
                Stage::New => state.begin(peer.0.id, revocation),
                Stage::Incomplete(number) => number,
                Stage::Complete(_) => return Ok(()),
            };
            *stage = Stage::Incomplete(number);
            state.grow(peer.0.id, number, bytes, shared.bytes_max)
        };
        shared.refused.fetch_add(revoked.len() as u64, Ordering::Relaxed);
        revoked.iter().for_each(|revocation| revocation.reader.wake());
        if revocation.is_revoked.load(Ordering::Acquire) {
            Err(RequestError::NoRoom)
        } else {
            Ok(())
        }
    }

    /// Marks the message as complete: it cannot lose its reservation any more, and counts only if
    /// it is long.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::NoRoom`] if long messages have used up their half of the budget.
    pub fn complete(&self) -> Result<(), RequestError> {
        let Message { budget: BodyBudget { shared }, peer, stage, .. } = &*self.0;
        let mut stage = stage.lock();
        let Stage::Incomplete(number) = *stage else { return Ok(()) };
        let mut state = shared.state.lock();
        *stage = Stage::Complete(0);
        let Some(reserved) = state.remove(peer.0.id, number) else {
            return Err(RequestError::NoRoom);
        };
        let bytes = reserved - MESSAGE_BYTES_MIN;
        if bytes <= MESSAGE_BYTES_MIN {
            return Ok(());
        }
        if state.complete_bytes + bytes > shared.bytes_max / 2 {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(RequestError::NoRoom);
        }
        *stage = Stage::Complete(bytes);
        state.complete_bytes += bytes;
        state.bytes += bytes;
        Ok(())
    }

    /// Ready once the message has lost its reservation.
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        let revocation = &self.0.revocation;
        revocation.reader.register(cx.waker());
        match revocation.is_revoked.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let mut state = self.budget.shared.state.lock();
        match *self.stage.get_mut() {
            Stage::New => {}
            Stage::Incomplete(number) => drop(state.remove(self.peer.0.id, number)),
            Stage::Complete(bytes) => {
                state.complete_bytes -= bytes;
                state.bytes -= bytes;
            }
        }
    }
}

// === impl State ===

impl State {
    /// Returns the number of a new message.
    fn begin(&mut self, peer: u64, revocation: &Arc<Revocation>) -> u64 {
        self.next += 1;
        let incomplete = self.peers.entry(peer).or_default();
        let message =
            IncompleteMessage { bytes: MESSAGE_BYTES_MIN, revocation: Arc::clone(revocation) };
        incomplete.messages.insert(self.next, message);
        incomplete.bytes += MESSAGE_BYTES_MIN;
        self.bytes += MESSAGE_BYTES_MIN;
        self.next
    }

    /// Counts `bytes` more for a message and makes room for them. Returns the messages that lost
    /// their reservation; the caller has to wake their readers.
    fn grow(
        &mut self,
        peer: u64,
        number: u64,
        bytes: usize,
        bytes_max: usize,
    ) -> Vec<Arc<Revocation>> {
        if let Some(incomplete) = self.peers.get_mut(&peer)
            && let Some(message) = incomplete.messages.get_mut(&number)
        {
            message.bytes += bytes;
            incomplete.bytes += bytes;
            self.bytes += bytes;
        }
        let mut revoked = Vec::new();
        loop {
            let own = self.peers.get(&peer).map_or(0, |incomplete| incomplete.bytes);
            let from = match own > bytes_max / 2 {
                true => Some(peer),
                false if self.bytes > bytes_max => self.next_to_revoke(),
                false => None,
            };
            let Some(revocation) = from.and_then(|from| self.revoke_oldest(from)) else {
                return revoked;
            };
            revoked.push(revocation);
        }
    }

    /// The connection whose incomplete messages reserve the most. If none has more than one, the
    /// connection with the oldest: an honest message is milliseconds old, however large it is.
    fn next_to_revoke(&self) -> Option<u64> {
        let (largest, incomplete) =
            self.peers.iter().max_by_key(|(_, incomplete)| incomplete.bytes)?;
        if incomplete.messages.len() > 1 {
            return Some(*largest);
        }
        let oldest = |incomplete: &IncompleteMessages| incomplete.messages.keys().next().copied();
        self.peers.iter().min_by_key(|(_, incomplete)| oldest(incomplete)).map(|(peer, _)| *peer)
    }

    /// Removes the oldest message of `peer`.
    fn revoke_oldest(&mut self, peer: u64) -> Option<Arc<Revocation>> {
        let (number, message) = self.peers.get(&peer)?.messages.first_key_value()?;
        let number = *number;
        let revocation = Arc::clone(&message.revocation);
        revocation.is_revoked.store(true, Ordering::Release);
        self.remove(peer, number);
        Some(revocation)
    }

    /// Stops counting a message; returns the bytes that it counted for.
    fn remove(&mut self, peer: u64, number: u64) -> Option<usize> {
        let incomplete = self.peers.get_mut(&peer)?;
        let IncompleteMessage { bytes, .. } = incomplete.messages.remove(&number)?;
        incomplete.bytes -= bytes;
        if incomplete.messages.is_empty() {
            self.peers.remove(&peer);
        }
        self.bytes -= bytes;
        Some(bytes)
    }
}

// === The part of an incomplete message that has arrived ===

/// Maximum size in bytes of a part: the payload of one HTTP/2 frame.
const PART_BYTES_MAX: usize = 16 * 1024;

/// Minimum size in bytes of a part: a message that arrives byte by byte has few parts.
const PART_BYTES_MIN: usize = 64;

/// The beginning of a message, in parts. Bytes are copied into the parts, since the buffer they
/// were read into is shared with other data. A part never moves: one growing buffer leaves holes of
/// every size behind, which took as much memory again as the messages themselves.
#[derive(Debug)]
pub struct PartialMessage<'h> {
    reservation: &'h BodyReservation,
    parts: Vec<BytesMut>,
    bytes: usize,
}

impl<'h> PartialMessage<'h> {
    /// Creates an empty message that is counted on `reservation`.
    pub fn new(reservation: &'h BodyReservation) -> Self {
        Self { reservation, parts: Vec::new(), bytes: 0 }
    }

    /// Number of bytes that have arrived.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts and keeps the next bytes.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::NoRoom`] if there is no room for them.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), RequestError> {
        self.reservation.grow(bytes.len())?;
        while !bytes.is_empty() {
            let room = self.parts.last().map_or(0, |part| part.capacity() - part.len());
            if room == 0 {
                // As large as all parts so far, so that their number stays small.
                let capacity = bytes.len().max(self.bytes).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
                self.parts.push(BytesMut::with_capacity(capacity));
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(part) = self.parts.last_mut() {
                part.extend_from_slice(now);
            }
            self.bytes += now.len();
            bytes = later;
        }
        Ok(())
    }

    /// Returns everything that has arrived, in one piece.
    pub fn into_bytes(mut self) -> Bytes {
        if self.parts.len() <= 1 {
            return self.parts.pop().unwrap_or_default().freeze();
        }
        let mut joined = BytesMut::with_capacity(self.bytes);
        self.parts.into_iter().for_each(|part| joined.extend_from_slice(&part));
        joined.freeze()
    }
}

#[cfg(test)]
mod tests;
