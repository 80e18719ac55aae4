//! The part of an incomplete message that has arrived.

use bytes::{Bytes, BytesMut};

use super::{BodyReservation, RequestError};

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
mod tests {
    use proptest::prelude::*;

    use super::super::body_budget::{BodyBudget, Peer};
    use super::*;

    proptest! {
        #[test]
        fn parts_are_joined_in_order_and_take_little_more_memory_than_the_message(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..8),
        ) {
            let reservation = BodyBudget::new(usize::MAX).reserve(&Peer::new());
            let mut message = PartialMessage::new(&reservation);
            for piece in &pieces {
                message.push(piece).unwrap();
            }
            let sent = pieces.concat();
            prop_assert_eq!(message.bytes(), sent.len());
            let taken: usize = message.parts.iter().map(BytesMut::capacity).sum();
            prop_assert!(taken <= sent.len() + PART_BYTES_MAX, "{} bytes", taken);
            prop_assert_eq!(&message.into_bytes()[..], &sent[..]);
        }
    }

    #[test]
    fn a_message_that_arrives_byte_by_byte_has_few_parts() {
        let reservation = BodyBudget::new(usize::MAX).reserve(&Peer::new());
        let mut message = PartialMessage::new(&reservation);
        for _ in 0..PART_BYTES_MAX {
            message.push(b"v").unwrap();
        }
        assert!(message.parts.len() < 12, "{} parts", message.parts.len());
        assert_eq!(message.into_bytes().len(), PART_BYTES_MAX);
    }

    #[test]
    fn bytes_beyond_the_budget_are_not_kept() {
        let reservation = BodyBudget::new(64 * 1024).reserve(&Peer::new());
        let mut message = PartialMessage::new(&reservation);
        message.push(&[7; 1000]).unwrap();
        assert_eq!(message.push(&[7; 64 * 1024]), Err(RequestError::NoRoom));
        assert_eq!(message.bytes(), 1000);
    }
}
