//! A limit on what one reply may hold, enforced on the bytes before redis-rs buffers and parses
//! them: the client has no limit of its own but on nesting (100 levels), and a length of 2 GB in
//! a reply's head is memory for as long as the server goes on sending.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How much one reply may hold.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Bytes of the reply, framing included.
    bytes: usize,
    /// Values in it; each is 64 bytes or so once it is parsed, though it may be 3 on the wire.
    values: usize,
}

/// Replies to logins and scripts: a script's are below 200 bytes, and that of HELLO lists the
/// server's modules.
const ORDINARY: Limit = Limit { bytes: 16 << 10, values: 1 << 10 };

/// Lists of the cluster's nodes. 1024 masters with two replicas each take 25 000 values and 0.4 MB
/// in CLUSTER SLOTS while each owns one range; this has room for two and a half each.
const LISTS: Limit = Limit { bytes: 4 << 20, values: 64 << 10 };

/// The limit of one connection, which is higher while a list of nodes is awaited.
#[derive(Debug, Default)]
pub(super) struct ReplyLimit {
    lists_awaited: AtomicUsize,
    exceeded: AtomicBool,
}

/// A reply that is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Excess {
    Bytes(usize),
    Values(usize),
    /// What stands for a length is none.
    Length,
}

/// Follows the replies on a connection, byte by byte, as far as their lengths go.
#[derive(Debug)]
pub(super) struct ReplyCounter {
    state: State,
    /// Bytes of the present reply so far, with those of a text that was announced.
    bytes: usize,
    /// Values of it that have begun.
    values: usize,
    /// Values of it that have not ended; at least 1, for the reply itself.
    pending: usize,
}

/// Where in a value the next byte is. A value begins with its type.
#[derive(Debug, Clone, Copy)]
enum State {
    Type,
    /// A value that is one line, such as a number or an error.
    Line,
    /// Behind a carriage return in it.
    LineEnd,
    Length {
        of: u8,
        length: Length,
    },
    LengthEnd {
        of: u8,
        length: Length,
    },
    /// A text with its line end: so many bytes are left of it.
    Text(usize),
}

#[derive(Debug, Clone, Copy, Default)]
struct Length {
    is_negative: bool,
    number: usize,
}

// === impl ReplyLimit ===

impl ReplyLimit {
    /// Raises the limit until what this returns is dropped.
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

    /// Has `counter` follow what came next; after an error the connection is of no more use.
    pub(super) fn check(&self, counter: &mut ReplyCounter, bytes: &[u8]) -> Result<(), Excess> {
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

    /// Takes a byte that is not of a text.
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

    /// A value's head has ended: its texts are bytes and its parts values, before any of them came.
    fn begin(&mut self, of: u8, length: Length, limit: Limit) -> Result<(), Excess> {
        let Length { is_negative, number } = length;
        // To redis-rs `-0` is 0.
        let is_negative = is_negative && number > 0;
        let parts = match of {
            // Nothing: redis-rs reads no further.
            b'$' | b'*' | b'~' | b'>' if is_negative => 0,
            _ if is_negative => return Err(Excess::Length),
            b'$' | b'!' | b'=' => {
                let text = number.saturating_add(2);
                self.add_bytes(text, limit)?;
                self.state = State::Text(text);
                return Ok(());
            }
            b'%' => number.saturating_mul(2),
            // Attributes stand before the value that they are of.
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
    /// This with one more digit, or a sign before any.
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
