//! Reads the frame headers of HTTP/2 as bytes pass through. Copies nothing but a header that is
//! split between two reads.

/// Size in bytes of a frame header (RFC 9113 §4.1).
const HEAD_BYTES: usize = 9;

/// Frame types (RFC 9113 §6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const CONTINUATION: u8 = 9;

/// Frame flags; [`ACK`] belongs to SETTINGS and PING.
pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;

/// A GOAWAY frame without an error text: `last_stream`, ENHANCE_YOUR_CALM (RFC 9113 §6.8, §7).
pub(super) fn goaway(last_stream: u32) -> [u8; 17] {
    let [a, b, c, d] = last_stream.to_be_bytes();
    [0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 11]
}

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

/// Finds the frame headers in one direction of a connection.
#[derive(Debug, Default)]
pub(super) struct FrameHeads {
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

    pub(super) fn ends_stream(self) -> bool {
        self.flags & END_STREAM != 0
    }
}

// === impl FrameHeads ===

impl FrameHeads {
    /// Returns the next header in `bytes` and advances `bytes` past it; `None` at the end of
    /// `bytes`.
    #[inline]
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
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
    pub(super) fn is_between_frames(&self) -> bool {
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
mod tests {
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
