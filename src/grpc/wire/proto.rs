//! Reads protobuf's wire format, by hand: what is read is borrowed from the message. The format is
//! <https://protobuf.dev/programming-guides/encoding/>.

/// A varint of 64 bits takes at most so many bytes.
pub(super) const VARINT_BYTES_MAX: usize = 10;

/// Reads the fields of one message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// One field's value, by its wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Of a type that none of our messages has; skipped.
    Other,
}

/// A message that is malformed, or has something in it that is seldom seen: whoever takes messages
/// of any kind has to look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotPlain;

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field's number and value.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, NotPlain> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.tag()?;
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            2 => Value::Bytes(self.bytes()?),
            other => self.skip(other)?,
        };
        Ok(Some((number, value)))
    }

    fn tag(&mut self) -> Result<(u32, u64), NotPlain> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        Ok((number.ok_or(NotPlain)?, tag & 7))
    }

    fn varint(&mut self) -> Result<u64, NotPlain> {
        // One byte is by far the most frequent: tags, lengths, small numbers.
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut value = 0_u64;
        for at in 0..VARINT_BYTES_MAX {
            let byte = *self.rest.get(at).ok_or(NotPlain)?;
            if at == VARINT_BYTES_MAX - 1 && byte > 1 {
                return Err(NotPlain);
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = self.rest.get(at + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(NotPlain)
    }

    fn bytes(&mut self) -> Result<&'a [u8], NotPlain> {
        let length = usize::try_from(self.varint()?).map_err(|_| NotPlain)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(NotPlain)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn skip(&mut self, wire_type: u64) -> Result<Value<'a>, NotPlain> {
        let length = match wire_type {
            1 => 8,
            5 => 4,
            _ => return Err(NotPlain),
        };
        self.rest = self.rest.get(length..).ok_or(NotPlain)?;
        Ok(Value::Other)
    }
}

// === impl Value ===

impl<'a> Value<'a> {
    pub(super) fn varint(self) -> Result<u64, NotPlain> {
        match self {
            Value::Varint(value) => Ok(value),
            _ => Err(NotPlain),
        }
    }

    /// A number of 32 bits: what is above is cut off, as protobuf wants it.
    #[allow(clippy::cast_possible_truncation, reason = "as protobuf wants it")]
    pub(super) fn varint32(self) -> Result<u32, NotPlain> {
        self.varint().map(|value| value as u32)
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], NotPlain> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(NotPlain),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, NotPlain> {
        std::str::from_utf8(self.bytes()?).map_err(|_| NotPlain)
    }
}

#[cfg(test)]
mod tests;
