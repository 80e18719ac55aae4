//! The part of an incomplete message that has arrived.

use bytes::{Bytes, BytesMut};

use super::{Held, RequestError};

/// Maximum size in bytes of a part: the payload of one HTTP/2 frame.
const PART_BYTES_MAX: usize = 16 * 1024;

/// Minimum size in bytes of a part: a message that arrives byte by byte has few parts.
const PART_BYTES_MIN: usize = 64;

/// The beginning of a message, in parts. Bytes are copied into the parts, since the buffer they
/// were read into is shared with other data. A part never moves: one growing buffer leaves holes of
/// every size behind, which took as much memory again as the messages themselves.
#[derive(Debug)]
pub struct Parts<'h> {
    held: &'h Held,
    parts: Vec<BytesMut>,
    bytes: usize,
}

impl<'h> Parts<'h> {
    /// Creates an empty message that counts as `held`.
    pub fn new(held: &'h Held) -> Self {
        Self { held, parts: Vec::new(), bytes: 0 }
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
    pub fn add(&mut self, mut bytes: &[u8]) -> Result<(), RequestError> {
        self.held.take(bytes.len())?;
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
    pub fn join(mut self) -> Bytes {
        if self.parts.len() <= 1 {
            return self.parts.pop().unwrap_or_default().freeze();
        }
        let mut joined = BytesMut::with_capacity(self.bytes);
        self.parts.into_iter().for_each(|part| joined.extend_from_slice(&part));
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::body_budget::{BodyBudget, Peer};
    use super::*;

    proptest! {
        #[test]
        fn parts_are_joined_in_order_and_take_little_more_than_came(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..8),
        ) {
            let held = BodyBudget::new(usize::MAX).hold(&Peer::new());
            let mut parts = Parts::new(&held);
            for piece in &pieces {
                parts.add(piece).unwrap();
            }
            let sent = pieces.concat();
            prop_assert_eq!(parts.bytes(), sent.len());
            let taken: usize = parts.parts.iter().map(BytesMut::capacity).sum();
            prop_assert!(taken <= sent.len() + PART_BYTES_MAX, "{} bytes", taken);
            prop_assert_eq!(&parts.join()[..], &sent[..]);
        }
    }

    #[test]
    fn a_message_that_comes_byte_by_byte_has_few_parts() {
        let held = BodyBudget::new(usize::MAX).hold(&Peer::new());
        let mut parts = Parts::new(&held);
        for _ in 0..PART_BYTES_MAX {
            parts.add(b"v").unwrap();
        }
        assert!(parts.parts.len() < 12, "{} parts", parts.parts.len());
        assert_eq!(parts.join().len(), PART_BYTES_MAX);
    }

    #[test]
    fn nothing_is_kept_for_which_there_is_no_room() {
        let held = BodyBudget::new(64 * 1024).hold(&Peer::new());
        let mut parts = Parts::new(&held);
        parts.add(&[7; 1000]).unwrap();
        assert_eq!(parts.add(&[7; 64 * 1024]), Err(RequestError::NoRoom));
        assert_eq!(parts.bytes(), 1000);
    }
}
