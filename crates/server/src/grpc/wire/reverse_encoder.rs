//! Writes protobuf from the end to the beginning: the length of a message is known once it is
//! written, and precedes it. So each byte is written once, and no message is measured first.

use smallvec::SmallVec;

use super::proto::VARINT_BYTES_MAX;

/// Size in bytes up to which a message is written without allocation: some four statuses with
/// names.
const INLINE_BYTES: usize = 256;

/// Takes fields in reverse order.
pub(super) struct ReverseEncoder {
    buffer: SmallVec<[u8; INLINE_BYTES]>,
    /// Everything from this index on has been written.
    at: usize,
}

// === impl ReverseEncoder ===

impl ReverseEncoder {
    pub(super) fn new() -> Self {
        Self { buffer: SmallVec::from_buf([0; INLINE_BYTES]), at: INLINE_BYTES }
    }

    /// The bytes written so far.
    pub(super) fn written(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    /// Writes bytes unchanged.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > self.at {
            self.grow(bytes.len());
        }
        let start = self.at.saturating_sub(bytes.len());
        if let Some(buffer) = self.buffer.get_mut(start..self.at) {
            buffer.copy_from_slice(bytes);
        }
        self.at = start;
    }

    /// Writes a number; a 0 is left out, as in proto3.
    pub(super) fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint_field(field, value);
        }
    }

    /// Writes a number, even a 0.
    pub(super) fn varint_field(&mut self, field: u32, value: u64) {
        self.varint(value);
        self.varint(u64::from(field) << 3);
    }

    /// Writes a double, even a 0.
    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.put(&value.to_le_bytes());
        self.varint(u64::from(field) << 3 | 1);
    }

    /// Writes text; empty text is left out.
    pub(super) fn text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.text_field(field, text);
        }
    }

    /// Writes text, even if it is empty.
    pub(super) fn text_field(&mut self, field: u32, text: &str) {
        self.message(field, |this| this.put(text.as_bytes()));
    }

    /// Writes a message, even if it is empty.
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let after = self.written().len();
        write(self);
        self.varint((self.written().len() - after) as u64);
        self.varint(u64::from(field) << 3 | 2);
    }

    #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.put(&[value as u8]); // by far the most frequent case
        }
        let mut bytes = [0; VARINT_BYTES_MAX];
        let mut len = 0;
        while let Some(byte) = bytes.get_mut(len) {
            len += 1;
            *byte = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                break;
            }
            *byte |= 0x80;
        }
        self.put(bytes.get(..len).unwrap_or_default());
    }

    /// Makes room for `more` bytes before those written.
    #[cold]
    fn grow(&mut self, more: usize) {
        let free = self.buffer.len().max(more);
        self.buffer.insert_many(0, std::iter::repeat_n(0, free));
        self.at += free;
    }
}

#[cfg(test)]
mod tests;
