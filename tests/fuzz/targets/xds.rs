//! Resources of xDS: what they become is a rule file, or faults that name their fields.

use ratelease_rules::{Options, Source, load};
use ratelease_xds::config::{RateLimitDescriptor, decode, path_of, text_of};

use crate::run;

/// The number of descriptors with a limit.
fn limits(descriptors: &[RateLimitDescriptor]) -> usize {
    let of =
        |it: &RateLimitDescriptor| usize::from(it.rate_limit.is_some()) + limits(&it.descriptors);
    descriptors.iter().map(of).sum()
}

#[test]
fn a_resource_is_as_many_rules_as_it_has_limits_or_has_faults_with_their_fields() {
    run::mutated(
        "xds",
        &["\u{a}\u{1}d", "\u{12}\u{1}d", "\u{1a}\u{3}\u{a}\u{1}k", "\u{8}\u{2}", "\u{8}\u{7}"],
        20_000,
        |bytes| {
            let Ok(config) = decode(bytes, usize::MAX) else { return false };
            let Some(text) = text_of(&config, true, usize::MAX) else { return false };
            let source = Source { name: "xds:fuzz".to_owned(), text: text.clone().into() };
            match load(&[source], Options::default()) {
                Ok(loaded) => assert_eq!(loaded.rules.len(), limits(&config.descriptors)),
                Err(faults) => {
                    let fields: Vec<_> = faults.iter().map(|it| path_of(&text, it.line)).collect();
                    let is_field = |field: &String| {
                        ["domain", "descriptors"].iter().any(|it| field.starts_with(it))
                    };
                    assert!(!fields.is_empty() && fields.iter().all(is_field), "{fields:?}");
                }
            }
            true
        },
    );
}
