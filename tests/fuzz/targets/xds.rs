//! Resources of xDS: what they become is a rule file, or faults that name their fields.

use ratelease_sidecar::rule_source::xds::fuzzing;

use crate::run;

#[test]
fn a_resource_is_as_many_rules_as_it_has_limits_or_has_faults_with_their_fields() {
    run::mutated(
        "xds",
        &["\u{a}\u{1}d", "\u{12}\u{1}d", "\u{1a}\u{3}\u{a}\u{1}k", "\u{8}\u{2}", "\u{8}\u{7}"],
        20_000,
        |bytes| {
            let Some(resource) = fuzzing::resource(bytes) else { return false };
            match resource.loaded {
                Ok(loaded) => assert_eq!(loaded.rules.len(), resource.limits),
                Err(fields) => {
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
