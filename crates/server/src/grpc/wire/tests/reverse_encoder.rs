//! Values that are written are read back unchanged, whatever their length.

use super::super::*;

fn written(write: impl FnOnce(&mut ReverseEncoder)) -> Vec<u8> {
    let mut message = ReverseEncoder::new();
    write(&mut message);
    message.written().to_vec()
}

#[test]
fn numbers_of_every_length_come_back() {
    for shift in 0..64 {
        for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
            let bytes = written(|it| it.varint_field(7, value));
            let mut fields = Fields::of(&bytes);
            assert_eq!(fields.next(), Ok(Some((7, Value::Varint(value)))));
            assert_eq!(fields.next(), Ok(None));
        }
    }
}

#[test]
fn a_message_within_another_carries_its_length_and_defaults_are_left_out() {
    let bytes = written(|it| {
        it.message(3, |it| {
            it.number(2, 0);
            it.text(1, "");
        });
        it.message(3, |it| {
            it.number(2, 300);
            it.text(1, "ab");
        });
    });
    assert_eq!(bytes, [0x1a, 7, 0x0a, 2, b'a', b'b', 0x10, 0xac, 0x02, 0x1a, 0]);
}

#[test]
fn what_does_not_fit_at_first_finds_room() {
    for length in (0..2 * INLINE_BYTES).chain([10_000]) {
        let text = "x".repeat(length);
        let bytes = written(|it| {
            it.text_field(2, "end");
            it.text_field(1, &text);
        });
        let mut fields = Fields::of(&bytes);
        assert_eq!(fields.next(), Ok(Some((1, Value::Bytes(text.as_bytes())))));
        assert_eq!(fields.next(), Ok(Some((2, Value::Bytes(b"end")))));
        assert_eq!(fields.next(), Ok(None));
    }
}
