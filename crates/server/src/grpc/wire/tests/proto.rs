//! Valid fields, and malformed ones.

use super::super::*;

fn all(message: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
    let mut fields = Fields::of(message);
    std::iter::from_fn(|| fields.next().transpose()).collect()
}

#[test]
fn fields_are_read_by_their_wire_type() {
    let message =
        [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
    let expected =
        [(1, Value::Varint(150)), (2, Value::Bytes(b"hi")), (3, Value::Other), (4, Value::Other)];
    assert_eq!(all(&message).as_deref(), Ok(&expected[..]));
    assert_eq!(all(&[]).as_deref(), Ok(&[][..]));
}

#[test]
fn each_kind_of_malformed_message_has_its_own_error() {
    let table: [(&[u8], Malformed); 13] = [
        (&[0x08], Malformed::Varint),
        (&[0x08, 0x80], Malformed::Varint),
        (&[0x12, 5, 1], Malformed::Length),
        (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], Malformed::Length),
        (&[0x1d, 1, 2, 3], Malformed::Length),
        (&[0], Malformed::Tag),
        (&[0x0e], Malformed::WireType),
        (&[0x0c], Malformed::WireType),
        (&[0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2], Malformed::Varint),
        (&[0x0b], Malformed::Varint),
        (&[0x0b, 0x14], Malformed::Group),
        (&[0x0b, 0x0e], Malformed::WireType),
        (&[0x0b; GROUPS_MAX + 1], Malformed::Group),
    ];
    for (message, fault) in table {
        assert_eq!(all(message), Err(fault), "{message:?}");
    }
}

#[test]
fn groups_are_skipped_with_all_that_is_in_them() {
    let message = [0x0b, 0x08, 1, 0x13, 0x1a, 1, 9, 0x14, 0x1d, 1, 2, 3, 4, 0x0c, 0x20, 7];
    let expected = [(1, Value::Other), (4, Value::Varint(7))];
    assert_eq!(all(&message).as_deref(), Ok(&expected[..]));
}
