//! Reads protobuf's wire format without a library: values are borrowed from the message, and
//! nothing is allocated. The format is <https://protobuf.dev/programming-guides/encoding/>.

/// Maximum size in bytes of a 64-bit varint.
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
    /// A type that none of the known messages uses; skipped.
    Other,
}

/// Maximum nesting of groups, the same as in prost. No known message has groups.
const GROUPS_MAX: usize = 100;

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The field number is 0, 2^29 or above, or missing.
    #[error("invalid tag: a field has no valid number")]
    Tag,
    /// The varint does not end within ten bytes, or exceeds 64 bits.
    #[error("invalid varint: a number has more than 64 bits, or no end")]
    Varint,
    /// A field's length exceeds the bytes that the message has left.
    #[error("buffer underflow: a field is longer than the message")]
    Length,
    /// A known field has another type, or the type does not exist.
    #[error("invalid wire type: a field is not of the type that the protocol gives it")]
    WireType,
    /// A text is not UTF-8.
    #[error("invalid string: a text is not UTF-8")]
    Text,
    /// A group has no end, or is nested too deeply.
    #[error("invalid group: it has no end, or more than {GROUPS_MAX} around it")]
    Group,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the next field's number and value.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = self.tag()?;
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            2 => Value::Bytes(self.bytes()?),
            other => self.skip(number, other)?,
        };
        Ok(Some((number, value)))
    }

    fn tag(&mut self) -> Result<(u32, u64), Malformed> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        Ok((number.ok_or(Malformed::Tag)?, tag & 7))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        // One byte is by far the most frequent case: tags, lengths, small numbers.
        if let [byte @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut value = 0_u64;
        for at in 0..VARINT_BYTES_MAX {
            let byte = *self.rest.get(at).ok_or(Malformed::Varint)?;
            if at == VARINT_BYTES_MAX - 1 && byte > 1 {
                return Err(Malformed::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.rest = self.rest.get(at + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(Malformed::Varint)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Length)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(bytes)
    }

    #[cold]
    fn skip(&mut self, number: u32, wire_type: u64) -> Result<Value<'a>, Malformed> {
        let length = match wire_type {
            1 => 8,
            3 => return self.skip_group(number),
            5 => 4,
            _ => return Err(Malformed::WireType),
        };
        self.rest = self.rest.get(length..).ok_or(Malformed::Length)?;
        Ok(Value::Other)
    }

    /// Skips to the end of a group that has begun, including nested groups.
    fn skip_group(&mut self, number: u32) -> Result<Value<'a>, Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            match self.tag()? {
                (number, 4) if number == *innermost => drop(open.pop()),
                (number, 3) if open.len() < GROUPS_MAX => open.push(number),
                (_, 3 | 4) => return Err(Malformed::Group),
                (_, 0) => drop(self.varint()?),
                (_, 2) => drop(self.bytes()?),
                (number, other) => drop(self.skip(number, other)?),
            }
        }
        Ok(Value::Other)
    }
}

// === impl Value ===

impl<'a> Value<'a> {
    pub(super) fn varint(self) -> Result<u64, Malformed> {
        match self {
            Value::Varint(value) => Ok(value),
            _ => Err(Malformed::WireType),
        }
    }

    /// A 32-bit number: higher bits are cut off, as protobuf requires.
    #[allow(clippy::cast_possible_truncation, reason = "as protobuf wants it")]
    pub(super) fn varint32(self) -> Result<u32, Malformed> {
        self.varint().map(|value| value as u32)
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::WireType),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Text)
    }
}

#[cfg(test)]
mod tests;
