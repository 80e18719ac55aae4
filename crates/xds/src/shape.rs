//! The memory that a message of another process takes once it is decoded, counted before that.
//!
//! A repeated field of an empty message is two bytes on the wire, and hundreds in memory. So the
//! fields that allocate more than their bytes are listed by type, and counted at every depth.

use std::fmt;

use prost::encoding::{WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

/// The fields of a message type that take more memory than their bytes.
#[derive(Debug)]
pub struct Shape(pub &'static [Field]);

/// A field that holds messages, or several texts.
#[derive(Debug)]
pub struct Field {
    /// The number of the field.
    pub number: u32,
    /// Bytes of one item of its vector or table; 0 if it is no such field.
    pub item: usize,
    /// The type of its messages.
    pub of: &'static Shape,
}

/// Why a message is not decoded.
#[derive(Debug)]
pub enum Undecoded {
    /// The message is malformed.
    Malformed(DecodeError),
    /// The message would take more memory than so many bytes.
    TooLarge(usize),
}

/// A type without such fields.
pub static FLAT: Shape = Shape(&[]);

/// Maximum bytes that a message may take in memory for each of its own bytes. A descriptor with a
/// limit takes some 30 bytes on the wire and 300 in memory.
const PER_BYTE: usize = 32;

/// Bytes that a message may take in memory besides.
const BESIDES: usize = 1 << 20;

/// Maximum that a message may take in memory.
const DECODED_BYTES_MAX: usize = 160 << 20;

/// Maximum depth of messages, as in the decoder.
const DEPTH_MAX: usize = 100;

/// Vectors and tables begin with room for so many items.
const ITEMS_MIN: usize = 4;

/// Decodes a message of this shape, unless it would take more than `max` bytes of memory, or more
/// than is in proportion to its length.
///
/// # Errors
/// It is malformed, or too large.
pub fn decode<M: Message + Default>(
    message: &[u8],
    shape: &Shape,
    max: usize,
) -> Result<M, Undecoded> {
    check(message, shape, max)?;
    M::decode(message).map_err(Undecoded::Malformed)
}

/// Checks what [`decode`] checks before it decodes.
///
/// # Errors
/// The message is too large.
pub fn check(message: &[u8], shape: &Shape, max: usize) -> Result<(), Undecoded> {
    let bytes = message.len();
    let proportional = bytes.saturating_mul(PER_BYTE).saturating_add(BESIDES);
    let max = max.min(proportional).min(DECODED_BYTES_MAX);
    let mut left = max.checked_sub(bytes).ok_or(Undecoded::TooLarge(max))?;
    count(message, shape, 0, &mut left).ok_or(Undecoded::TooLarge(max))
}

/// Takes the memory that the fields of a message need from `left`; `None` if that is not enough. Of
/// a malformed message, the fields before the fault count: the decoder reports the fault.
fn count(mut message: &[u8], shape: &Shape, depth: usize, left: &mut usize) -> Option<()> {
    let mut items = [0_usize; FIELDS_MAX];
    while let Ok((number, wire_type)) = decode_key(&mut message) {
        let found = shape.0.iter().zip(&mut items).find(|(field, _)| field.number == number);
        let Some((field, items)) = found.filter(|_| wire_type == WireType::LengthDelimited) else {
            if skip_field(wire_type, number, &mut message, Default::default()).is_err() {
                break;
            }
            continue;
        };
        let length = decode_varint(&mut message).ok().and_then(|it| usize::try_from(it).ok());
        let Some((content, rest)) = length.and_then(|it| message.split_at_checked(it)) else {
            break;
        };
        message = rest;
        *left = left.checked_sub((capacity(*items + 1) - capacity(*items)) * field.item)?;
        *items += 1;
        if depth < DEPTH_MAX {
            count(content, field.of, depth + 1, left)?;
        }
    }
    Some(())
}

/// Maximum number of fields of a shape.
const FIELDS_MAX: usize = 8;

/// Places of a vector or a table with so many items: both double.
fn capacity(items: usize) -> usize {
    match items {
        0 => 0,
        _ => (items * 8 / 7).max(ITEMS_MIN).next_power_of_two(),
    }
}

// === impl Undecoded ===

impl fmt::Display for Undecoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => error.fmt(f),
            Self::TooLarge(max) => {
                write!(f, "it would take more than {max} bytes of memory once it is decoded")
            }
        }
    }
}

impl std::error::Error for Undecoded {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message that holds others of its type.
    #[derive(Clone, PartialEq, Message)]
    struct Tree {
        #[prost(message, repeated, tag = "1")]
        below: Vec<Tree>,
        #[prost(string, tag = "2")]
        text: String,
        #[prost(string, tag = "3")]
        name: String,
        #[prost(string, tag = "4")]
        note: String,
    }

    static TREE: Shape = Shape(&[Field { number: 1, item: size_of::<Tree>(), of: &TREE }]);

    fn field(content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![1 << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        [&bytes, content].concat()
    }

    #[test]
    fn a_message_whose_parts_are_not_empty_is_decoded() {
        let leaf = Tree { text: "a text of some bytes".into(), ..Tree::default() };
        let tree = Tree { below: vec![leaf; 10_000], ..Tree::default() };
        let bytes = tree.encode_to_vec();
        assert_eq!(decode::<Tree>(&bytes, &TREE, usize::MAX).unwrap(), tree);
        assert!(matches!(decode::<Tree>(&bytes, &TREE, bytes.len()), Err(Undecoded::TooLarge(_))));
        let needed = 16_384 * size_of::<Tree>() + bytes.len();
        assert!(check(&bytes, &TREE, needed).is_ok());
        assert!(check(&bytes, &TREE, needed - 1).is_err());
    }

    #[test]
    fn empty_parts_are_counted_at_every_depth() {
        let mut empty = field(&[]).repeat(100_000);
        for depth in 0..20 {
            let refused = decode::<Tree>(&empty, &TREE, usize::MAX);
            assert!(matches!(refused, Err(Undecoded::TooLarge(_))), "{depth}");
            empty = field(&empty);
        }
        let few = field(&[]).repeat(200);
        assert!(decode::<Tree>(&few, &TREE, usize::MAX).is_ok());
    }

    #[test]
    fn what_is_malformed_is_left_to_the_decoder() {
        let bytes = field(&field(b"\x12\x03abc"));
        for cut in 1..bytes.len() {
            let cut = decode::<Tree>(&bytes[..cut], &TREE, usize::MAX);
            assert!(matches!(cut, Err(Undecoded::Malformed(_))));
        }
    }
}
