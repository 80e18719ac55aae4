//! Limits the size of one reply, enforced on the bytes before redis-rs buffers and parses them. The
//! client limits only nesting (100 levels): a reply that announces a length of 2 GB takes up memory
//! for as long as the server keeps sending.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The largest size of one reply.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Bytes of the reply, framing included.
    bytes: usize,
    /// Values in it; each takes about 64 bytes once parsed, though it may be 3 bytes on the wire.
    values: usize,
}

/// Replies to logins and scripts: a script's are below 200 bytes, those to INFO and ROLE longer.
const ORDINARY: Limit = Limit { bytes: 16 << 10, values: 1 << 10 };

/// Lists of the cluster's nodes. 1024 masters with two replicas each take 25 000 values and 0.4 MB
/// in CLUSTER SLOTS if each master owns one range; this leaves room for two and a half ranges each.
const LISTS: Limit = Limit { bytes: 4 << 20, values: 64 << 10 };

/// The limit of one connection. It is higher while a list of nodes is expected.
#[derive(Debug, Default)]
pub(super) struct ReplyLimit {
    lists_awaited: AtomicUsize,
    exceeded: AtomicBool,
    /// Whether anything was read since the login.
    has_read: AtomicBool,
}

/// The reason why a reply is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Bytes(usize),
    Values(usize),
    /// A length is malformed.
    Length,
}

/// Counts the bytes and values of the replies on a connection, as far as their lengths tell.
#[derive(Debug)]
pub(super) struct ReplyCounter {
    state: State,
    /// Bytes of the present reply so far, including those of an announced text.
    bytes: usize,
    /// Values of the reply that have begun.
    values: usize,
    /// Values of the reply that have not ended; at least 1, for the reply itself.
    pending: usize,
}

/// The position of the next byte within a value. A value begins with its type.
#[derive(Debug, Clone, Copy)]
enum State {
    Type,
    /// A value that is one line, such as a number or an error.
    Line,
    /// After a carriage return in the line.
    LineEnd,
    Length {
        of: u8,
        length: Length,
    },
    LengthEnd {
        of: u8,
        length: Length,
    },
    /// A text with its line end, of which this many bytes remain.
    Text(usize),
}

#[derive(Debug, Clone, Copy, Default)]
struct Length {
    is_negative: bool,
    number: usize,
}

// === impl ReplyLimit ===

impl ReplyLimit {
    /// Raises the limit until the returned guard is dropped.
    pub(super) fn await_list(&self) -> impl Drop + use<'_> {
        struct Lower<'a>(&'a ReplyLimit);
        impl Drop for Lower<'_> {
            fn drop(&mut self) {
                self.0.lists_awaited.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.lists_awaited.fetch_add(1, Ordering::Relaxed);
        Lower(self)
    }

    /// Whether a reply was refused.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Forgets what was read until now, which was the login.
    pub(super) fn note_login(&self) {
        self.has_read.store(false, Ordering::Relaxed);
    }

    /// Whether anything was read since the login.
    pub(super) fn has_read(&self) -> bool {
        self.has_read.load(Ordering::Relaxed)
    }

    /// Lets `counter` process the bytes that arrived; after an error the connection must not be
    /// used.
    pub(super) fn check(&self, counter: &mut ReplyCounter, bytes: &[u8]) -> Result<(), Excess> {
        if !bytes.is_empty() {
            self.has_read.store(true, Ordering::Relaxed);
        }
        let awaits_list = self.lists_awaited.load(Ordering::Relaxed) > 0;
        let limit = if awaits_list { LISTS } else { ORDINARY };
        counter.follow(bytes, limit).inspect_err(|_| self.exceeded.store(true, Ordering::Relaxed))
    }
}

// === impl ReplyCounter ===

impl Default for ReplyCounter {
    fn default() -> Self {
        Self { state: State::Type, bytes: 0, values: 0, pending: 1 }
    }
}

impl ReplyCounter {
    fn follow(&mut self, mut bytes: &[u8], limit: Limit) -> Result<(), Excess> {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let State::Text(left) = self.state {
                let taken = left.min(bytes.len());
                self.state = State::Text(left - taken);
                if taken == left {
                    self.end_value();
                }
                bytes = bytes.get(taken..).unwrap_or_default();
            } else {
                self.add_bytes(1, limit)?;
                self.step(byte, limit)?;
                bytes = rest;
            }
        }
        Ok(())
    }

    /// Processes a byte that is not part of a text.
    fn step(&mut self, byte: u8, limit: Limit) -> Result<(), Excess> {
        self.state = match (self.state, byte) {
            (State::Type, b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|') => {
                self.values += 1;
                State::Length { of: byte, length: Length::default() }
            }
            (State::Type, _) => {
                self.values += 1;
                State::Line
            }
            (State::Line | State::LineEnd, b'\r') => State::LineEnd,
            (State::LineEnd, b'\n') => {
                self.end_value();
                return Ok(());
            }
            (State::Line | State::LineEnd, _) => State::Line,
            (State::Length { of, length }, b'\r') => State::LengthEnd { of, length },
            (State::Length { of, length }, _) => State::Length { of, length: length.with(byte)? },
            (State::LengthEnd { of, length }, b'\n') => return self.begin(of, length, limit),
            (State::LengthEnd { .. } | State::Text(_), _) => return Err(Excess::Length),
        };
        Ok(())
    }

    /// Handles the end of a value's head: its text counts as bytes and its parts as values, before
    /// any of them has arrived.
    fn begin(&mut self, of: u8, length: Length, limit: Limit) -> Result<(), Excess> {
        let Length { is_negative, number } = length;
        // redis-rs reads `-0` as 0.
        let is_negative = is_negative && number > 0;
        let parts = match of {
            // A null: redis-rs reads no further.
            b'$' | b'*' | b'~' | b'>' if is_negative => 0,
            _ if is_negative => return Err(Excess::Length),
            b'$' | b'!' | b'=' => {
                let text = number.saturating_add(2);
                self.add_bytes(text, limit)?;
                self.state = State::Text(text);
                return Ok(());
            }
            b'%' => number.saturating_mul(2),
            // Attributes precede the value to which they belong.
            b'|' => number.saturating_mul(2).saturating_add(1),
            _ => number,
        };
        // This value has begun, and its end is still pending.
        if self.values.saturating_add(self.pending - 1).saturating_add(parts) > limit.values {
            return Err(Excess::Values(limit.values));
        }
        self.pending += parts;
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.state = State::Type;
        self.pending = self.pending.saturating_sub(1);
        if self.pending == 0 {
            *self = Self::default();
        }
    }

    fn add_bytes(&mut self, more: usize, limit: Limit) -> Result<(), Excess> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > limit.bytes { Err(Excess::Bytes(limit.bytes)) } else { Ok(()) }
    }
}

// === impl Length ===

impl Length {
    /// Adds one more digit, or a sign before all digits.
    fn with(self, byte: u8) -> Result<Self, Excess> {
        match byte {
            b'-' if !self.is_negative && self.number == 0 => Ok(Self { is_negative: true, ..self }),
            b'0'..=b'9' => {
                let number = self.number.saturating_mul(10).saturating_add((byte - b'0').into());
                Ok(Self { number, ..self })
            }
            _ => Err(Excess::Length),
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(most) => write!(f, "a reply of more than {most} bytes"),
            Self::Values(most) => write!(f, "a reply of more than {most} values"),
            Self::Length => f.write_str("a reply whose length is not a number"),
        }
    }
}

impl std::error::Error for Excess {}

#[cfg(test)]
mod tests;
