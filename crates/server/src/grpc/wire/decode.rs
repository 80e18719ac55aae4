//! Reads a `RateLimitRequest`: all text is borrowed from the message. Field numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto` and, from `envoy/extensions/common/ratelimit`, of
//! `v3/ratelimit.proto`.
//!
//! As protobuf specifies, unknown fields are skipped, the last occurrence of a number wins, and
//! parts of a split message are merged.
//!
//! Descriptors and entries are counted as they are read, so the cost of a message is bounded before
//! the number that it contains is known.

use ratelease_rules::request::{DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Entry, Few, Request};
use ratelease_rules::{Limit, Unit};

use super::proto::{Fields, Malformed};
use crate::request_error::InvalidRequest;

/// `RateLimitOverride` as in the message.
#[derive(Debug, Clone, Copy, Default)]
struct Override {
    requests_per_unit: u32,
    unit: u32,
}

/// Why a message is not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message is not valid protobuf, or has another type.
    #[error("the message is no RateLimitRequest: {0}")]
    Malformed(#[from] Malformed),
    /// The request exceeds a bound or has an invalid value.
    #[error("{0}")]
    Invalid(InvalidRequest),
}

/// Reads the request in `message`.
pub(super) fn request(message: &[u8]) -> Result<Request<'_>, DecodeError> {
    let mut request = Request { domain: "", descriptors: Few::new(), hits_addend: 0 };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => request.domain = value.text()?,
            2 if request.descriptors.len() >= DESCRIPTORS_MAX => {
                return Err(DecodeError::Invalid(InvalidRequest::Descriptors));
            }
            2 => {
                let at = request.descriptors.len();
                descriptor(at, value.bytes()?, push(&mut request.descriptors))?;
            }
            3 => request.hits_addend = value.varint32()?,
            _ => {}
        }
    }
    Ok(request)
}

/// Appends a new element, to be filled in place: descriptors are large.
fn push<'v, 'a>(descriptors: &'v mut Few<Descriptor<'a>>) -> &'v mut Descriptor<'a> {
    let at = descriptors.len();
    descriptors.push(Descriptor::default());
    &mut descriptors[at]
}

/// Reads the descriptor at this index.
fn descriptor<'a>(
    at: usize,
    message: &'a [u8],
    descriptor: &mut Descriptor<'a>,
) -> Result<(), DecodeError> {
    let mut limit = None;
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 if descriptor.entries.len() >= ENTRIES_MAX => {
                return Err(DecodeError::Invalid(InvalidRequest::Entries(at)));
            }
            1 => descriptor.entries.push(entry(value.bytes()?)?),
            2 => limit = Some(override_of(limit.unwrap_or_default(), value.bytes()?)?),
            3 => {
                let hits = wrapped(descriptor.hits_addend.unwrap_or_default(), value.bytes()?);
                descriptor.hits_addend = Some(hits?);
            }
            4 => descriptor.refund = value.varint()? != 0,
            _ => {}
        }
    }
    descriptor.limit = limit.map(|limit| limit_of(at, limit)).transpose()?;
    Ok(())
}

fn entry(message: &[u8]) -> Result<Entry<'_>, Malformed> {
    let mut entry = Entry { key: "", value: "" };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => entry.key = value.text()?,
            2 => entry.value = value.text()?,
            _ => {}
        }
    }
    Ok(entry)
}

fn override_of(mut read: Override, message: &[u8]) -> Result<Override, Malformed> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => read.requests_per_unit = value.varint32()?,
            2 => read.unit = value.varint32()?,
            _ => {}
        }
    }
    Ok(read)
}

/// Reads a `UInt64Value`.
fn wrapped(mut read: u64, message: &[u8]) -> Result<u64, Malformed> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            read = value.varint()?;
        }
    }
    Ok(read)
}

/// Refuses an unknown unit, which would end the reference implementation's process.
fn limit_of(at: usize, limit: Override) -> Result<Limit, DecodeError> {
    let unit = Unit::from_number(limit.unit.into())
        .ok_or(DecodeError::Invalid(InvalidRequest::Unit(at)))?;
    Ok(Limit::fixed_window(limit.requests_per_unit, unit))
}

#[cfg(test)]
mod tests;
