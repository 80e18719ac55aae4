//! Gives `tests/fuzz` access to the translation of resources. For tests alone.

use ratelease_rules::{Faults, Loaded, Options, Source, load};
use ratelease_xds::shape::decode;

use super::translate::{path_of, text_of};
use super::wire::{CONFIG_SHAPE, RateLimitConfig, RateLimitDescriptor};

/// A resource that was translated and compiled.
pub struct Resource {
    /// The number of its descriptors with a limit.
    pub limits: usize,
    /// Its rules, or the field of each fault.
    pub loaded: Result<Loaded, Vec<String>>,
}

/// Reads a resource; `None` if the bytes are not a valid message.
pub fn resource(bytes: &[u8]) -> Option<Resource> {
    let config: RateLimitConfig = decode(bytes, &CONFIG_SHAPE, usize::MAX).ok()?;
    let text = text_of(&config)?;
    let source = Source { name: "xds:fuzz".to_owned(), text: text.clone().into_bytes() };
    let fields = |faults: Faults| faults.iter().map(|it| path_of(&text, it.line)).collect();
    let loaded = load(&[source], Options::default()).map_err(fields);
    Some(Resource { limits: limits(&config.descriptors), loaded })
}

/// Decodes a resource, and returns whether it is a valid message that takes no more memory than is
/// in proportion to its bytes.
pub fn is_decoded(bytes: &[u8]) -> bool {
    decode::<RateLimitConfig>(bytes, &CONFIG_SHAPE, usize::MAX).is_ok()
}

fn limits(descriptors: &[RateLimitDescriptor]) -> usize {
    let of =
        |it: &RateLimitDescriptor| usize::from(it.rate_limit.is_some()) + limits(&it.descriptors);
    descriptors.iter().map(of).sum()
}
