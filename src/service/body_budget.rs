//! Limits the memory of incomplete messages, and of long ones until their calls are answered.
//!
//! An incomplete message costs its sender nothing and this process a waiting call. All incomplete
//! messages together may take a fixed number of bytes, those of one connection half of that. When
//! there is no room, the connection that holds the most loses its oldest incomplete message: a
//! client that fills the room takes it from itself, and one that sends complete messages is not
//! refused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::RequestError;

/// Minimum size in bytes that an incomplete message counts for: its call's headers, task and
/// buffers.
const MESSAGE_BYTES_MIN: usize = 8 * 1024;

/// A client's connection, whose messages count together. A cheap handle: clones are the same
/// connection.
#[derive(Debug, Clone)]
pub struct Peer(Arc<Caller>);

#[derive(Debug)]
struct Caller {
    id: u64,
    /// Number of calls of this connection that hold a place of the gate.
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
    held: usize,
    /// Bytes of complete messages.
    whole: usize,
    /// The connections with incomplete messages.
    peers: HashMap<u64, Unfinished>,
    next: u64,
}

/// The incomplete messages of one connection, oldest first.
#[derive(Debug, Default)]
struct Unfinished {
    held: usize,
    messages: BTreeMap<u64, (usize, Arc<Notice>)>,
}

/// Notifies a message's reader that the message has lost its room.
#[derive(Debug, Default)]
struct Notice {
    is_given_up: AtomicBool,
    reader: AtomicWaker,
}

/// One message. It is counted from its first wait or byte until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct Held(Arc<Message>);

#[derive(Debug)]
struct Message {
    room: BodyBudget,
    peer: Peer,
    notice: Arc<Notice>,
    stage: Mutex<Stage>,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// No byte was read, and no wait has begun.
    New,
    /// The message has this number among those of its connection.
    Unfinished(u64),
    /// The message counts for this many bytes.
    Whole(usize),
}

// === impl Peer ===

impl Peer {
    /// Creates the peer of a newly accepted connection.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Caller { id, waiting: AtomicUsize::new(0) }))
    }

    /// Number of calls of this connection that hold a place of the gate.
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
    /// Creates a room of `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let (refused, state) = (AtomicU64::new(0), Mutex::default());
        Self { shared: Arc::new(Shared { bytes_max, refused, state }) }
    }

    /// Registers a message that `peer` has begun.
    pub(super) fn hold(&self, peer: &Peer) -> Held {
        let (room, peer) = (self.clone(), peer.clone());
        let (notice, stage) = (Arc::default(), Mutex::new(Stage::New));
        Held(Arc::new(Message { room, peer, notice, stage }))
    }

    /// Number of messages that found no room, or lost it.
    pub(super) fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Number of bytes that are held.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.state.lock().held as u64
    }
}

// === impl Held ===

impl Held {
    /// The connection that sends the message.
    pub fn peer(&self) -> &Peer {
        &self.0.peer
    }

    /// Counts `bytes` more.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::NoRoom`] if there is no room for them, or the message has lost its room.
    pub fn take(&self, bytes: usize) -> Result<(), RequestError> {
        let Message { room: BodyBudget { shared }, peer, notice, stage } = &*self.0;
        let given_up = {
            let mut stage = stage.lock();
            let mut state = shared.state.lock();
            let number = match *stage {
                Stage::New => state.begin(peer.0.id, notice),
                Stage::Unfinished(number) => number,
                Stage::Whole(_) => return Ok(()),
            };
            *stage = Stage::Unfinished(number);
            state.grow(peer.0.id, number, bytes, shared.bytes_max)
        };
        shared.refused.fetch_add(given_up.len() as u64, Ordering::Relaxed);
        given_up.iter().for_each(|notice| notice.reader.wake());
        if notice.is_given_up.load(Ordering::Acquire) { Err(RequestError::NoRoom) } else { Ok(()) }
    }

    /// Marks the message as complete: it cannot lose its room any more, and counts only if it is
    /// long.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::NoRoom`] if long messages have used up their half of the room.
    pub fn finish(&self) -> Result<(), RequestError> {
        let Message { room: BodyBudget { shared }, peer, stage, .. } = &*self.0;
        let mut stage = stage.lock();
        let Stage::Unfinished(number) = *stage else { return Ok(()) };
        let mut state = shared.state.lock();
        *stage = Stage::Whole(0);
        let Some(held) = state.remove(peer.0.id, number) else { return Err(RequestError::NoRoom) };
        let bytes = held - MESSAGE_BYTES_MIN;
        if bytes <= MESSAGE_BYTES_MIN {
            return Ok(());
        }
        if state.whole + bytes > shared.bytes_max / 2 {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(RequestError::NoRoom);
        }
        *stage = Stage::Whole(bytes);
        state.whole += bytes;
        state.held += bytes;
        Ok(())
    }

    /// Ready once the message has lost its room.
    pub fn poll_given_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let notice = &self.0.notice;
        notice.reader.register(cx.waker());
        match notice.is_given_up.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let mut state = self.room.shared.state.lock();
        match *self.stage.get_mut() {
            Stage::New => {}
            Stage::Unfinished(number) => drop(state.remove(self.peer.0.id, number)),
            Stage::Whole(bytes) => {
                state.whole -= bytes;
                state.held -= bytes;
            }
        }
    }
}

// === impl State ===

impl State {
    /// Returns the number of a new message.
    fn begin(&mut self, peer: u64, notice: &Arc<Notice>) -> u64 {
        self.next += 1;
        let unfinished = self.peers.entry(peer).or_default();
        unfinished.messages.insert(self.next, (MESSAGE_BYTES_MIN, Arc::clone(notice)));
        unfinished.held += MESSAGE_BYTES_MIN;
        self.held += MESSAGE_BYTES_MIN;
        self.next
    }

    /// Counts `bytes` more for a message and makes room for them. Returns the messages that lost
    /// their room; the caller has to wake their readers.
    fn grow(&mut self, peer: u64, number: u64, bytes: usize, bytes_max: usize) -> Vec<Arc<Notice>> {
        if let Some(unfinished) = self.peers.get_mut(&peer)
            && let Some((held, _)) = unfinished.messages.get_mut(&number)
        {
            *held += bytes;
            unfinished.held += bytes;
            self.held += bytes;
        }
        let mut given_up = Vec::new();
        loop {
            let own = self.peers.get(&peer).map_or(0, |unfinished| unfinished.held);
            let from = match own > bytes_max / 2 {
                true => Some(peer),
                false if self.held > bytes_max => self.next_to_lose(),
                false => None,
            };
            let Some(notice) = from.and_then(|from| self.give_up_oldest(from)) else {
                return given_up;
            };
            given_up.push(notice);
        }
    }

    /// The connection whose incomplete messages hold the most. If none has more than one, the
    /// connection with the oldest: an honest message is milliseconds old, however large it is.
    fn next_to_lose(&self) -> Option<u64> {
        let (largest, unfinished) =
            self.peers.iter().max_by_key(|(_, unfinished)| unfinished.held)?;
        if unfinished.messages.len() > 1 {
            return Some(*largest);
        }
        let oldest = |unfinished: &Unfinished| unfinished.messages.keys().next().copied();
        self.peers.iter().min_by_key(|(_, unfinished)| oldest(unfinished)).map(|(peer, _)| *peer)
    }

    /// Removes the oldest message of `peer`.
    fn give_up_oldest(&mut self, peer: u64) -> Option<Arc<Notice>> {
        let (number, (_, notice)) = self.peers.get(&peer)?.messages.first_key_value()?;
        let (number, notice) = (*number, Arc::clone(notice));
        notice.is_given_up.store(true, Ordering::Release);
        self.remove(peer, number);
        Some(notice)
    }

    /// Stops counting a message; returns the bytes that it counted for.
    fn remove(&mut self, peer: u64, number: u64) -> Option<usize> {
        let unfinished = self.peers.get_mut(&peer)?;
        let (bytes, _) = unfinished.messages.remove(&number)?;
        unfinished.held -= bytes;
        if unfinished.messages.is_empty() {
            self.peers.remove(&peer);
        }
        self.held -= bytes;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests;
