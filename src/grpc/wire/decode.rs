//! Reads a `RateLimitRequest`: all text is borrowed from the message. Numbers are those of
//! `envoy/service/ratelimit/v3/rls.proto` and, beneath `envoy/extensions/common/ratelimit`, of
//! `v3/ratelimit.proto`.
//!
//! As protobuf has it, unknown fields are skipped, the last of a repeated number wins, and a
//! message that comes in parts is put together.
//!
//! Descriptors and entries are counted as they are read: what a message costs is bounded before it
//! is known how many it claims to have.

use ratelease_rules::request::{DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Entry, Few, Request};
use ratelease_rules::{Limit, Unit};

use super::proto::{Fields, Malformed};
use crate::refusal::Fault;

/// `RateLimitOverride` as it stands in the message.
#[derive(Debug, Clone, Copy, Default)]
struct Override {
    requests_per_unit: u32,
    unit: u32,
}

/// Why a message is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is not one of protobuf, or not of this type.
    #[error("the message is no RateLimitRequest: {0}")]
    Malformed(#[from] Malformed),
    /// It breaks a bound or names something that does not exist.
    #[error("{0}")]
    Refused(Fault),
}

/// The request that `message` is.
pub(super) fn request(message: &[u8]) -> Result<Request<'_>, Unreadable> {
    let mut request = Request { domain: "", descriptors: Few::new(), hits_addend: 0 };
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => request.domain = value.text()?,
            2 if request.descriptors.len() >= DESCRIPTORS_MAX => {
                return Err(Unreadable::Refused(Fault::Descriptors));
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

/// A new element at the end, to be filled where it is: descriptors are large.
fn push<'v, 'a>(descriptors: &'v mut Few<Descriptor<'a>>) -> &'v mut Descriptor<'a> {
    let at = descriptors.len();
    descriptors.push(Descriptor::default());
    &mut descriptors[at]
}

/// The descriptor of this index.
fn descriptor<'a>(
    at: usize,
    message: &'a [u8],
    descriptor: &mut Descriptor<'a>,
) -> Result<(), Unreadable> {
    let mut limit = None;
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 if descriptor.entries.len() >= ENTRIES_MAX => {
                return Err(Unreadable::Refused(Fault::Entries(at)));
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

/// A `UInt64Value`.
fn wrapped(mut read: u64, message: &[u8]) -> Result<u64, Malformed> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            read = value.varint()?;
        }
    }
    Ok(read)
}

/// A unit that does not exist is refused; it ends the reference's process.
fn limit_of(at: usize, limit: Override) -> Result<Limit, Unreadable> {
    let unit = Unit::from_number(limit.unit.into()).ok_or(Unreadable::Refused(Fault::Unit(at)))?;
    Ok(Limit::fixed_window(limit.requests_per_unit, unit))
}

#[cfg(test)]
mod tests;
