//! Every option of every map, taken from the table.

use super::*;
use crate::options::{MapKind, OptionRow};

/// Returns a file in which a `map` of this kind holds `pairs`.
fn file(map: MapKind, pairs: &str) -> String {
    let limit =
        |pairs: &str| format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{pairs}}}}}]\n");
    match map {
        MapKind::Root => format!("{{{pairs}}}\n"),
        MapKind::Descriptor => format!("domain: d\ndescriptors: [{{{pairs}}}]\n"),
        MapKind::RateLimit => limit(pairs),
        MapKind::Replaced => limit(&format!("replaces: [{{{pairs}}}]")),
        MapKind::Defaults => format!("domain: d\ndefaults: {{{pairs}}}\n"),
        MapKind::Lease => limit(&format!("lease: {{{pairs}}}")),
        MapKind::Anchor => limit(&format!("anchor: {{{pairs}}}")),
        MapKind::Hold => limit(&format!("hold: {{{pairs}}}")),
    }
}

#[test]
fn every_option_refuses_a_value_of_a_wrong_type() {
    for map in MapKind::ALL {
        for option in map.options() {
            let name = option.name;
            let wrong = if ["descriptors", "replaces"].contains(&name) { "{}" } else { "[]" };
            let found = refusal(&[source(&file(map, &format!("{name}: {wrong}")))], NO_MERGE);
            let refused = format!("'{name}' must be ");
            assert!(
                found.iter().any(|fault| fault.contains(&refused)),
                "'{name}' of {} is not read: {found:#?}",
                map.describe()
            );
        }
    }
}

/// Returns the options of the map that take whole numbers, with the ranges that their refusals
/// name.
pub(super) fn ranges(map: MapKind) -> Vec<(&'static str, [u64; 2])> {
    let range = |option: &'static OptionRow| {
        let pairs = format!("{}: -1", option.name);
        let Err(faults) = load(&[source(&file(map, &pairs))], NO_MERGE) else { return None };
        let (_, named) =
            faults.iter().find_map(|it| it.message.split_once("whole number from "))?;
        let (ends, _) = named.split_once(" without quotes")?;
        let (least, most) = ends.split_once(" to ")?;
        Some((option.name, [least, most].map(|end| end.parse().unwrap())))
    };
    map.options().filter_map(range).collect()
}

#[test]
fn a_range_that_a_refusal_names_is_taken_from_end_to_end() {
    let limits = ranges(MapKind::RateLimit);
    assert!(limits.len() >= 4, "{limits:?}");
    for (name, ends) in limits {
        for end in ends {
            // An option that stands twice has its last value.
            let pairs = format!(
                "unit: second, requests_per_unit: 4294967295, algorithm: token_bucket, \
                 {name}: {end}"
            );
            load(&[source(&file(MapKind::RateLimit, &pairs))], NO_MERGE).expect(&pairs);
        }
    }
    for (name, ends) in ranges(MapKind::Lease) {
        for end in ends {
            let pairs = format!("unit: second, requests_per_unit: 9, lease: {{{name}: {end}}}");
            load(&[source(&file(MapKind::RateLimit, &pairs))], NO_MERGE).expect(&pairs);
        }
    }
    for (name, ends) in ranges(MapKind::Anchor) {
        for end in ends {
            let pairs =
                format!("unit: calendar_year, requests_per_unit: 9, anchor: {{{name}: {end}}}");
            load(&[source(&file(MapKind::RateLimit, &pairs))], NO_MERGE).expect(&pairs);
        }
    }
}

#[test]
fn every_option_that_the_reference_lacks_warns_beside_unlimited() {
    for option in MapKind::RateLimit.options().filter(|it| !it.is_known_to_reference()) {
        let name = option.name;
        let of_type = |value: &&str| {
            let text = file(MapKind::RateLimit, &format!("unlimited: true, {name}: {value}"));
            load(&[source(&text)], NO_MERGE).ok()
        };
        let loaded = ["1", "1s", "off", "{}"].iter().find_map(of_type).expect(name);
        let warning = format!("'{name}' has no effect with 'unlimited'");
        assert!(loaded.warnings.iter().any(|it| it.message == warning), "{name}");
    }
}
