//! Fields as they come and go, and what is not plain.

use super::*;

fn all(message: &[u8]) -> Result<Vec<(u32, Value<'_>)>, NotPlain> {
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
fn whatever_is_cut_off_or_unusual_is_not_plain() {
    let table: [&[u8]; 9] = [
        &[0x08],
        &[0x08, 0x80],
        &[0x12, 5, 1],
        &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        &[0x1d, 1, 2, 3],
        &[0],
        &[0x0b, 0x0c],
        &[0x0e],
        &[0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2],
    ];
    for message in table {
        assert_eq!(all(message), Err(NotPlain), "{message:?}");
    }
}
