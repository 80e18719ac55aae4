//! A `RateLimitConfig` and the text that it became, of which only what changed is written again.

use std::ops::Range;

use prost::encoding::{WireType, decode_key, decode_varint};
use ratelease_rules::Source;
use ratelease_xds::shape::{Undecoded, decode, decode_all};

use super::translate::{TEXT_BYTES_MAX, items, text_with_starts};
use super::wire::{CONFIG_SHAPE, DESCRIPTOR_SHAPE, RateLimitConfig, RateLimitDescriptor};

/// A resource that was translated.
#[derive(Debug)]
pub(super) struct Translated {
    pub(super) name: String,
    pub(super) domain: String,
    /// Where each descriptor of the first level begins in the text.
    starts: Vec<usize>,
}

/// The fields of a resource, with the descriptors of the first level as they were sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields<'m> {
    name: &'m str,
    domain: &'m str,
    descriptors: Vec<&'m [u8]>,
}

// === impl Translated ===

impl Translated {
    /// The name of a resource, if it is easily found.
    pub(super) fn name_of(message: &[u8]) -> Option<&str> {
        let (1, field, _) = field(message)? else { return None };
        std::str::from_utf8(field).ok()
    }

    /// Translates a resource. `known` is the one that had its name before, with its message and its
    /// text. It takes `memory` at most: half of it for the message, and half for its text, which
    /// doubles while it is written.
    ///
    /// # Errors
    /// The message is malformed, or would take more memory.
    pub(super) fn new(
        message: &[u8],
        known: Option<(&Self, &[u8], &Source)>,
        memory: usize,
    ) -> Result<(Self, String), Undecoded> {
        let patched =
            known.and_then(|(it, before, source)| it.patched([before, message], source, memory));
        if let Some(patched) = patched {
            return Ok(patched);
        }
        let config: RateLimitConfig = decode(message, &CONFIG_SHAPE, memory / 2)?;
        let text_max = if memory / 4 < TEXT_BYTES_MAX { memory } else { TEXT_BYTES_MAX };
        let (text, starts) =
            text_with_starts(&config, memory / 4).ok_or(Undecoded::TooLarge(text_max))?;
        let RateLimitConfig { name, domain, .. } = config;
        Ok((Self { name, domain, starts }, text))
    }

    /// Whether it was this `memory`, and no other bound, that a resource exceeded.
    pub(super) fn lacks_memory(error: &Undecoded, memory: usize) -> bool {
        matches!(error, Undecoded::TooLarge(max) if *max == memory / 2 || *max == memory)
    }

    /// Translates what differs between the message of `self`, whose text `source` has, and a new
    /// one. `None` if the whole message has to be read.
    fn patched(
        &self,
        [old, new]: [&[u8]; 2],
        source: &Source,
        memory: usize,
    ) -> Option<(Self, String)> {
        let (old, new) = (Fields::read(old)?, Fields::read(new)?);
        let has_list = !old.descriptors.is_empty() && !new.descriptors.is_empty();
        let is_whole = has_list && self.starts.len() == old.descriptors.len();
        if !is_whole || (old.name, old.domain) != (new.name, new.domain) {
            return None;
        }
        let (gone, come) = difference(&old.descriptors, &new.descriptors);
        let changed = new.descriptors.get(come)?;
        let changed =
            decode_all::<RateLimitDescriptor>(changed, &DESCRIPTOR_SHAPE, memory / 2).ok()?;
        let before = source.text.get(..self.start(gone.start, source)?)?;
        let after = source.text.get(self.start(gone.end, source)?..)?;
        let max = TEXT_BYTES_MAX.min(memory / 4);
        let mut text = String::with_capacity(source.text.len());
        text.push_str(std::str::from_utf8(before).ok()?);
        let mut starts = self.starts.get(..gone.start)?.to_vec();
        items(&changed, 0, &mut text, max, &mut |at| starts.push(at));
        let (from, to) = (source.text.len() - after.len(), text.len());
        text.push_str(std::str::from_utf8(after).ok()?);
        starts.extend(self.starts.get(gone.end..)?.iter().map(|at| at - from + to));
        let (name, domain) = (self.name.clone(), self.domain.clone());
        (text.len() <= max).then_some((Self { name, domain, starts }, text))
    }

    /// Where the descriptor of this number begins in the text, or where the text ends.
    fn start(&self, number: usize, source: &Source) -> Option<usize> {
        match self.starts.get(number) {
            Some(start) => Some(*start),
            None => (number == self.starts.len()).then_some(source.text.len()),
        }
    }
}

/// The numbers of the items between what both lists begin and end with.
fn difference(old: &[&[u8]], new: &[&[u8]]) -> (Range<usize>, Range<usize>) {
    let same = |(a, b): &(&&[u8], &&[u8])| a == b;
    let first = old.iter().zip(new).take_while(same).count();
    let rest = old.iter().skip(first).rev().zip(new.iter().skip(first).rev());
    let last = rest.take_while(same).count();
    (first..old.len() - last, first..new.len() - last)
}

// === impl Fields ===

impl<'m> Fields<'m> {
    /// Reads the fields; `None` if a field is not of this type, or the message is malformed.
    fn read(mut message: &'m [u8]) -> Option<Self> {
        let mut read = Self::default();
        while !message.is_empty() {
            let (tag, content, rest) = field(message)?;
            match tag {
                1 => read.name = std::str::from_utf8(content).ok()?,
                2 => read.domain = std::str::from_utf8(content).ok()?,
                3 => read.descriptors.push(content),
                _ => return None,
            }
            message = rest;
        }
        Some(read)
    }
}

/// The tag and the content of the first field, which has a length, and what follows it.
fn field(mut message: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let (tag, wire_type) = decode_key(&mut message).ok()?;
    if wire_type != WireType::LengthDelimited {
        return None;
    }
    let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
    let (content, rest) = message.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::rule_source::xds::wire::RateLimitPolicy;

    fn config(limits: &[(&str, u32)]) -> RateLimitConfig {
        let policy = |requests_per_unit| RateLimitPolicy {
            unit: 1,
            requests_per_unit,
            ..RateLimitPolicy::default()
        };
        let below = RateLimitDescriptor { key: "below".into(), ..Default::default() };
        let descriptors = limits.iter().map(|(key, limit)| RateLimitDescriptor {
            key: (*key).to_owned(),
            rate_limit: Some(policy(*limit)),
            descriptors: vec![below.clone(); *limit as usize % 3],
            ..RateLimitDescriptor::default()
        });
        let (name, domain) = ("n".to_owned(), "d".to_owned());
        RateLimitConfig { name, domain, descriptors: descriptors.collect() }
    }

    /// Translates `new` after `old`, and checks the result against a translation from scratch.
    fn check(old: &RateLimitConfig, new: &RateLimitConfig) {
        let [old, new] = [old, new].map(Message::encode_to_vec);
        let (known, text) = Translated::new(&old, None, usize::MAX).unwrap();
        let source = Source { name: "xds:n".into(), text: text.into_bytes() };
        let (patched, text) =
            Translated::new(&new, Some((&known, &old, &source)), usize::MAX).unwrap();
        let (whole, expected) = Translated::new(&new, None, usize::MAX).unwrap();
        assert_eq!(text, expected);
        assert_eq!(patched.starts, whole.starts);
        assert_eq!((patched.name, patched.domain), (whole.name, whole.domain));
    }

    #[test]
    fn a_resource_that_changed_has_the_text_of_a_translation_from_scratch() {
        let sets: [&[(&str, u32)]; 9] = [
            &[],
            &[("a", 1)],
            &[("a", 1), ("b", 2), ("c", 3), ("d", 4)],
            &[("a", 1), ("b", 9), ("c", 3), ("d", 4)],
            &[("a", 1), ("c", 3), ("d", 4)],
            &[("a", 1), ("b", 2), ("x", 5), ("c", 3), ("d", 4)],
            &[("d", 4), ("c", 3), ("b", 2), ("a", 1)],
            &[("a", 1), ("b", 2), ("c", 3), ("d", 5)],
            &[("x", 1), ("b", 2), ("c", 3), ("d", 4)],
        ];
        for old in sets {
            for new in sets {
                check(&config(old), &config(new));
            }
            let moved = RateLimitConfig { domain: "e".into(), ..config(old) };
            check(&config(old), &moved);
        }
    }

    #[test]
    fn only_descriptors_that_differ_are_read() {
        let (old, new): (&[&[u8]], &[&[u8]]) = (&[b"a", b"b", b"a", b"a"], &[b"a", b"c", b"a"]);
        assert_eq!(difference(old, new), (1..3, 1..2));
        assert_eq!(difference(old, old), (4..4, 4..4));
        assert_eq!(difference(&[], new), (0..0, 0..3));
        assert_eq!(difference(&old[..1], old), (1..1, 1..4));
    }

    #[test]
    fn what_is_not_a_resource_is_not_patched() {
        let good = config(&[("a", 1)]).encode_to_vec();
        assert!(Fields::read(&good).is_some());
        for cut in 1..good.len() {
            let cut = &good[..cut];
            let (known, text) = Translated::new(&good, None, usize::MAX).unwrap();
            let source = Source { name: "xds:n".into(), text: text.into_bytes() };
            let patched = Translated::new(cut, Some((&known, &good, &source)), usize::MAX);
            assert_eq!(patched.is_ok(), RateLimitConfig::decode(cut).is_ok());
        }
        assert_eq!(Fields::read(&[0x20, 1]), None, "a field of another type");
    }
}
