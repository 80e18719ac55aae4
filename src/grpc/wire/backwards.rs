//! Writes protobuf from the end to the beginning: what a message takes is known once it is written,
//! and its length goes before it. So each byte is written once, and nothing is measured.

use smallvec::SmallVec;

use super::proto::VARINT_BYTES_MAX;

/// Bytes of a message that allocates nothing: some four statuses with names.
const PLACE_BYTES: usize = 256;

/// Takes fields in reverse order.
pub(super) struct Backwards {
    place: SmallVec<[u8; PLACE_BYTES]>,
    /// What follows has been written.
    at: usize,
}

// === impl Backwards ===

impl Backwards {
    pub(super) fn new() -> Self {
        Self { place: SmallVec::from_buf([0; PLACE_BYTES]), at: PLACE_BYTES }
    }

    /// What has been written.
    pub(super) fn written(&self) -> &[u8] {
        self.place.get(self.at..).unwrap_or_default()
    }

    /// Bytes as they are.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if bytes.len() > self.at {
            self.grow(bytes.len());
        }
        let start = self.at.saturating_sub(bytes.len());
        if let Some(place) = self.place.get_mut(start..self.at) {
            place.copy_from_slice(bytes);
        }
        self.at = start;
    }

    /// A number, left out if it is 0, as proto3 has it.
    pub(super) fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint_field(field, value);
        }
    }

    /// A number, whatever it is.
    pub(super) fn varint_field(&mut self, field: u32, value: u64) {
        self.varint(value);
        self.varint(u64::from(field) << 3);
    }

    /// A double, whatever it is.
    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.put(&value.to_le_bytes());
        self.varint(u64::from(field) << 3 | 1);
    }

    /// Text, left out if it is empty.
    pub(super) fn text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.text_field(field, text);
        }
    }

    /// Text, whatever it is.
    pub(super) fn text_field(&mut self, field: u32, text: &str) {
        self.message(field, |this| this.put(text.as_bytes()));
    }

    /// A message, which is there even if it is empty.
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let after = self.written().len();
        write(self);
        self.varint((self.written().len() - after) as u64);
        self.varint(u64::from(field) << 3 | 2);
    }

    #[allow(clippy::cast_possible_truncation, reason = "seven bits at a time")]
    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.put(&[value as u8]); // by far the most frequent
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

    /// Makes room for `more` bytes before what is written.
    #[cold]
    fn grow(&mut self, more: usize) {
        let free = self.place.len().max(more);
        self.place.insert_many(0, std::iter::repeat_n(0, free));
        self.at += free;
    }
}

#[cfg(test)]
mod tests;
