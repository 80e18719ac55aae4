//! Compiles the `rate_limit` of a descriptor to a `Rule`.

use std::sync::Arc;

use serde_json::Map;

use super::limit::CompiledLimit;
use super::path::RulePath;
use super::{Compiler, PATH_BYTES_MAX};
use crate::attachment::Attachment;
use crate::fault::{Place, excerpt};
use crate::memory::{ARC, boxed};
use crate::metadata;
use crate::options::{Descriptor, RateLimit};
use crate::parsed::Parsed;
use crate::rule::{Level, LevelMatch, Rule};

/// Bytes of a replaced name while it is read, in a list that doubles.
const REPLACED_BYTES: usize = 128;

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns `None` if the `rate_limit` is faulty, after reporting the fault.
    pub(super) fn rule(
        &mut self,
        descriptor: &Descriptor<'_>,
        limit: &RateLimit<'_>,
        rule_path: &RulePath,
    ) -> Option<Arc<Rule>> {
        self.warn_of_name(limit);
        let replaces = self.replaces(limit);
        let counted = self.compiled_limit(limit, &descriptor.flags)?;
        let CompiledLimit { allowance, leasing, shards, flags, failure_mode } = counted;
        self.take_room(descriptor, limit, rule_path)?;
        let (path, levels) = self.identity(rule_path, limit.place)?;
        let rule = Arc::new(Rule {
            path,
            name: limit.name.text().into(),
            allowance,
            replaces,
            flags,
            leasing,
            failure_mode,
            shards,
            metadata: descriptor
                .metadata
                .value()
                .filter(|map: &&Map<_, _>| !map.is_empty())
                .cloned(),
            levels,
            meter: Attachment::default(),
        });
        if let Some(places) = &mut self.places {
            places.note(&rule.path, &self.findings.file(), descriptor.place);
        }
        self.paths.take(Arc::clone(&rule));
        self.rules.push(Arc::clone(&rule));
        Some(rule)
    }

    /// Takes the memory of a rule.
    fn take_room(
        &self,
        descriptor: &Descriptor<'_>,
        limit: &RateLimit<'_>,
        rule_path: &RulePath,
    ) -> Option<()> {
        let memory = &self.findings.memory;
        let replaced = limit.replaces.iter().map(|it| it.name.text().len());
        let replaces: usize = replaced.map(|len| size_of::<Box<str>>() + boxed(len)).sum();
        let metadata = descriptor.metadata.value().map_or(0, metadata::bytes);
        let name = boxed(limit.name.text().len());
        memory.take(ARC + size_of::<Rule>() + name + replaces + metadata)?;
        // The descriptor has both too, with places.
        memory.pass(metadata + limit.replaces.len() * REPLACED_BYTES)?;
        memory.take_growth(&self.rules)?;
        self.paths.take_room(&rule_path.path, memory)
    }

    fn replaces(&mut self, limit: &RateLimit<'_>) -> Box<[Box<str>]> {
        for replaced in &limit.replaces {
            let place = replaced.name.place_or(replaced.place);
            match replaced.name.text() {
                _ if replaced.name.is_faulty() => {}
                "" => {
                    let message = "should not have an empty replaces entry; write '- name: …'";
                    self.findings.fault(place, message);
                }
                name if name == limit.name.text() => {
                    let message = format!(
                        "replaces should not contain name of same descriptor; '{}' is this one",
                        excerpt(name)
                    );
                    self.findings.fault(place, message);
                }
                _ => {}
            }
        }
        limit.replaces.iter().map(|replaced| replaced.name.text().into()).collect()
    }

    fn warn_of_name(&mut self, limit: &RateLimit<'_>) {
        if let Parsed::As(place, name) = limit.name
            && name.contains(['"', '\\'])
        {
            let shown = excerpt(name);
            let message =
                format!("name '{shown}' has a quote or backslash, which Envoy does not escape");
            self.findings.warn(place, message);
        }
    }

    /// Returns the path, made unique, and its levels. If the text that rules hold exceeds
    /// its ceiling, reports that and returns `None`.
    fn identity(&mut self, rule_path: &RulePath, place: Place) -> Option<(Box<str>, Arc<[Level]>)> {
        self.path_bytes += rule_path.path.len();
        if *self.levels != *rule_path.levels {
            self.path_bytes += rule_path.levels.iter().map(Level::bytes).sum::<usize>();
            let bytes = rule_path.levels.iter().map(Level::bytes).sum::<usize>();
            self.findings.memory.take(ARC + bytes)?;
            self.levels = rule_path.levels.as_slice().into();
        }
        if self.path_bytes > PATH_BYTES_MAX {
            let mib = PATH_BYTES_MAX >> 20;
            let message =
                format!("keys and values of all rules exceed {mib} MiB together; shorten them");
            self.fault_once(place, message);
            return None;
        }
        Some((self.paths.unique(&rule_path.path), Arc::clone(&self.levels)))
    }
}

// === impl Level ===

impl Level {
    /// Returns its size in bytes, including its text.
    fn bytes(&self) -> usize {
        let pattern = match &self.matched {
            LevelMatch::Wildcard(pattern) => pattern.len(),
            LevelMatch::Key | LevelMatch::Value => 0,
        };
        size_of::<Level>() + pattern + self.shared.as_ref().map_or(0, |shared| shared.len())
    }
}
