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

#[test]
fn numbers_of_every_length_come_back() {
    for shift in 0..64 {
        for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
            let mut bytes = BytesMut::new();
            varint_field(&mut bytes, 7, value);
            assert_eq!(all(&bytes), Ok(vec![(7, Value::Varint(value))]));
        }
    }
}

struct Pair(&'static str, u64);

impl Message for Pair {
    fn write(&self, sink: &mut impl Sink) {
        text(sink, 1, self.0);
        number(sink, 2, self.1);
    }
}

#[test]
fn a_message_within_another_carries_its_length_and_defaults_are_left_out() {
    let mut bytes = BytesMut::new();
    message(&mut bytes, 3, &Pair("ab", 300));
    message(&mut bytes, 3, &Pair("", 0));
    assert_eq!(&bytes[..], [0x1a, 7, 0x0a, 2, b'a', b'b', 0x10, 0xac, 0x02, 0x1a, 0]);
    assert_eq!(measure(&Pair("ab", 300)), 7);
}
