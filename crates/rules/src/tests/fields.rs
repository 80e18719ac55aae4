//! Every field of every map, taken from the lists of `field`: a field that is added there and not
//! read is found here.

use super::*;
use crate::field::{Field, MapKind};

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
    }
}

#[test]
fn every_field_refuses_a_value_of_a_wrong_type() {
    for map in MapKind::ALL {
        for field in map.fields() {
            let wrong = match field {
                Field::Descriptors | Field::Replaces => "{}",
                _ => "[]",
            };
            let name = field.name();
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
