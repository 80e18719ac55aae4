//! The field names of rule files.

use crate::fault::Findings;

/// A field name of a rule file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Domain,
    Descriptors,
    Key,
    Value,
    RateLimit,
    ShadowMode,
    QuotaMode,
    DetailedMetric,
    ValueToMetric,
    ShareThreshold,
    Metadata,
    Unit,
    RequestsPerUnit,
    Unlimited,
    Name,
    Replaces,
    ChargeDenied,
    UnitMultiplier,
    Algorithm,
    Burst,
    MaxDelay,
    Lease,
    Shards,
    FailureMode,
    Defaults,
    Fraction,
    Max,
    Ttl,
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
    /// Every name as it is written, in the order of the enum.
    const NAMES: [(Field, &'static str); 28] = [
        (Field::Domain, "domain"),
        (Field::Descriptors, "descriptors"),
        (Field::Key, "key"),
        (Field::Value, "value"),
        (Field::RateLimit, "rate_limit"),
        (Field::ShadowMode, "shadow_mode"),
        (Field::QuotaMode, "quota_mode"),
        (Field::DetailedMetric, "detailed_metric"),
        (Field::ValueToMetric, "value_to_metric"),
        (Field::ShareThreshold, "share_threshold"),
        (Field::Metadata, "metadata"),
        (Field::Unit, "unit"),
        (Field::RequestsPerUnit, "requests_per_unit"),
        (Field::Unlimited, "unlimited"),
        (Field::Name, "name"),
        (Field::Replaces, "replaces"),
        (Field::ChargeDenied, "charge_denied"),
        (Field::UnitMultiplier, "unit_multiplier"),
        (Field::Algorithm, "algorithm"),
        (Field::Burst, "burst"),
        (Field::MaxDelay, "max_delay"),
        (Field::Lease, "lease"),
        (Field::Shards, "shards"),
        (Field::FailureMode, "failure_mode"),
        (Field::Defaults, "defaults"),
        (Field::Fraction, "fraction"),
        (Field::Max, "max"),
        (Field::Ttl, "ttl"),
    ];

    /// Returns the name as rule files write it.
    pub(crate) const fn name(self) -> &'static str {
        Field::NAMES[self as usize].1
    }

    /// Returns the field of this name; names are case-sensitive.
    pub(crate) fn parse(name: &str) -> Option<Field> {
        Field::NAMES.into_iter().find(|(_, other)| *other == name).map(|(field, _)| field)
    }

    /// Returns whether the field has a meaning in a `map` of this kind.
    pub(crate) fn belongs_to(self, map: MapKind) -> bool {
        map.fields().contains(&self)
    }

    /// Returns whether the reference knows the field. The reference ignores known fields in a wrong
    /// place and refuses unknown ones everywhere.
    pub(crate) const fn is_known_to_reference(self) -> bool {
        !matches!(
            self,
            Field::ChargeDenied
                | Field::UnitMultiplier
                | Field::Algorithm
                | Field::Burst
                | Field::MaxDelay
                | Field::Lease
                | Field::Shards
                | Field::FailureMode
                | Field::Defaults
                | Field::Fraction
                | Field::Max
                | Field::Ttl
        )
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
            MapKind::Root => &[Field::Domain, Field::Descriptors, Field::Defaults],
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
        let all = Field::NAMES.map(|(_, name)| name);
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
        for (field, _) in Field::NAMES {
            assert_eq!(Field::parse(field.name()), Some(field));
            assert!(MapKind::ALL.iter().any(|map| field.belongs_to(*map)), "{field:?}");
        }
        assert_eq!(Field::parse("Domain"), None);
    }
}
