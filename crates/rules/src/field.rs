//! The field names of rule files.

use crate::fault::Findings;

/// Defines [`Field`] from a table: each field, who knows it, and its name.
macro_rules! fields {
    ($($field:ident: $origin:ident, $name:literal;)+) => {
        /// A field name of a rule file.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Field {
            $($field,)+
        }

        impl Field {
            const ALL: &[Field] = &[$(Field::$field,)+];

            /// Returns the name as rule files write it.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Field::$field => $name,)+
                }
            }

            const fn origin(self) -> Origin {
                match self {
                    $(Field::$field => Origin::$origin,)+
                }
            }
        }
    };
}

fields! {
    Domain: Reference, "domain";
    Descriptors: Reference, "descriptors";
    Key: Reference, "key";
    Value: Reference, "value";
    RateLimit: Reference, "rate_limit";
    ShadowMode: Reference, "shadow_mode";
    QuotaMode: Reference, "quota_mode";
    DetailedMetric: Reference, "detailed_metric";
    ValueToMetric: Reference, "value_to_metric";
    ShareThreshold: Reference, "share_threshold";
    Metadata: Reference, "metadata";
    Unit: Reference, "unit";
    RequestsPerUnit: Reference, "requests_per_unit";
    Unlimited: Reference, "unlimited";
    Name: Reference, "name";
    Replaces: Reference, "replaces";
    ChargeDenied: Ratelease, "charge_denied";
    UnitMultiplier: Ratelease, "unit_multiplier";
    Algorithm: Ratelease, "algorithm";
    Burst: Ratelease, "burst";
    MaxDelay: Ratelease, "max_delay";
    Lease: Ratelease, "lease";
    Shards: Ratelease, "shards";
    FailureMode: Ratelease, "failure_mode";
    Defaults: Ratelease, "defaults";
    Fraction: Ratelease, "fraction";
    Max: Ratelease, "max";
    Ttl: Ratelease, "ttl";
    Store: Ratelease, "store";
}

/// A field of release 0.2. Files that still have it are loaded.
pub(crate) const STORE_FROM: &str = "store_from";

/// The warning for [`STORE_FROM`].
pub(crate) const STORE_FROM_HAS_GONE: &str = "'store_from' has no effect any more; remove it. \
    Only 'store' counts the limit: when it changes, windows restart, and up to twice the limit is \
    admitted in the window of the change";

/// Who knows a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The reference, and so ratelease.
    Reference,
    /// Only ratelease.
    Ratelease,
}

/// The kinds of map in a rule file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapKind {
    Root,
    Descriptor,
    RateLimit,
    Replaced,
    Defaults,
    Lease,
}

// === impl Field ===

impl Field {
    /// Returns the field of this name; names are case-sensitive.
    pub(crate) fn parse(name: &str) -> Option<Field> {
        Field::ALL.iter().copied().find(|field| field.name() == name)
    }

    /// Returns whether the field has a meaning in a `map` of this kind.
    pub(crate) fn belongs_to(self, map: MapKind) -> bool {
        map.fields().contains(&self)
    }

    /// Returns whether the reference knows the field. The reference ignores known fields in a wrong
    /// place and refuses unknown ones everywhere.
    pub(crate) const fn is_known_to_reference(self) -> bool {
        matches!(self.origin(), Origin::Reference)
    }
}

// === impl MapKind ===

impl MapKind {
    pub(crate) const ALL: [MapKind; 6] = [
        MapKind::Root,
        MapKind::Descriptor,
        MapKind::RateLimit,
        MapKind::Replaced,
        MapKind::Defaults,
        MapKind::Lease,
    ];

    /// Returns the fields that the map may hold.
    pub(crate) const fn fields(self) -> &'static [Field] {
        match self {
            MapKind::Root => &[Field::Domain, Field::Descriptors, Field::Defaults, Field::Store],
            MapKind::Descriptor => &[
                Field::Key,
                Field::Value,
                Field::RateLimit,
                Field::Descriptors,
                Field::ShadowMode,
                Field::QuotaMode,
                Field::DetailedMetric,
                Field::ValueToMetric,
                Field::ShareThreshold,
                Field::Metadata,
            ],
            MapKind::RateLimit => &[
                Field::Unit,
                Field::RequestsPerUnit,
                Field::Unlimited,
                Field::Name,
                Field::Replaces,
                Field::ChargeDenied,
                Field::UnitMultiplier,
                Field::Algorithm,
                Field::Burst,
                Field::MaxDelay,
                Field::Lease,
                Field::Shards,
                Field::FailureMode,
                Field::Store,
            ],
            MapKind::Replaced => &[Field::Name],
            MapKind::Defaults => &[
                Field::Algorithm,
                Field::MaxDelay,
                Field::Lease,
                Field::Shards,
                Field::ChargeDenied,
                Field::FailureMode,
            ],
            MapKind::Lease => &[Field::Fraction, Field::Max, Field::Ttl],
        }
    }

    /// Returns whether the reference knows this kind of map.
    pub(crate) const fn is_known_to_reference(self) -> bool {
        !matches!(self, MapKind::Defaults | MapKind::Lease)
    }

    /// Describes the map, for a message.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            MapKind::Root => "the file's top level",
            MapKind::Descriptor => "a descriptor",
            MapKind::RateLimit => "'rate_limit'",
            MapKind::Replaced => "an item of 'replaces'",
            MapKind::Defaults => "'defaults'",
            MapKind::Lease => "'lease'",
        }
    }

    /// Describes where `field` has a meaning, for a message.
    pub(crate) fn homes_of(field: Field) -> String {
        let maps = MapKind::ALL.into_iter().filter(|map| field.belongs_to(*map));
        maps.map(MapKind::describe).collect::<Vec<_>>().join(" or ")
    }

    /// Returns the message for a name that no map may hold.
    pub(crate) fn refusal(self, name: &str, findings: &Findings) -> String {
        let names: Vec<_> = self.fields().iter().map(|field| field.name()).collect();
        let all: Vec<_> = Field::ALL.iter().map(|field| field.name()).collect();
        let meant = findings.suggestion(name, &[&names, &all]);
        let shown = super::fault::excerpt(name);
        format!("unknown key '{shown}'; expected one of {}{meant}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_name_and_belongs_somewhere() {
        for field in Field::ALL {
            assert_eq!(Field::parse(field.name()), Some(*field));
            assert!(MapKind::ALL.iter().any(|map| field.belongs_to(*map)), "{field:?}");
        }
        assert_eq!(Field::parse("Domain"), None);
    }
}
