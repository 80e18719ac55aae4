//! What a descriptor allows: its `rate_limit` as a `Rule`.

use std::sync::Arc;

use serde_json::Map;

use super::limit::Counting;
use super::{Compiler, PATH_BYTES_MAX, Trail};
use crate::metrics::Anchor;
use crate::rules::fault::{Place, excerpt};
use crate::rules::file::{Descriptor, Given, RateLimit};
use crate::rules::{Level, Matched, Rule};

// === impl Compiler ===

impl Compiler {
    /// `None` if it is faulty, which is reported.
    pub(super) fn rule(
        &mut self,
        descriptor: &Descriptor<'_>,
        limit: &RateLimit<'_>,
        trail: &Trail,
    ) -> Option<Arc<Rule>> {
        self.warn_of_name(limit);
        let replaces = self.replaces(limit);
        let counted = self.counting(limit)?;
        let Counting { allowance, leasing, shards, charge_denied, failure_mode } = counted;
        let rule = Arc::new(Rule {
            path: self.unique_path(trail, limit.place)?,
            name: limit.name.text().into(),
            allowance,
            replaces,
            shadow_mode: descriptor.shadow_mode.is_true(),
            quota_mode: descriptor.quota_mode.is_true(),
            detailed_metric: descriptor.detailed_metric.is_true(),
            charge_denied,
            leasing,
            failure_mode,
            shards,
            metadata: descriptor
                .metadata
                .value()
                .filter(|map: &&Map<_, _>| !map.is_empty())
                .cloned(),
            levels: trail.levels.as_slice().into(),
            meter: Anchor::default(),
        });
        if let Some(places) = &mut self.places {
            places.note(&rule.path, self.findings.file(), descriptor.place);
        }
        self.rules.push(Arc::clone(&rule));
        Some(rule)
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
        if let Given::As(place, name) = limit.name
            && name.contains(['"', '\\'])
        {
            let shown = excerpt(name);
            let message =
                format!("name '{shown}' has a quote or backslash, which Envoy does not escape");
            self.findings.warn(place, message);
        }
    }

    /// The trail's path. `_` and `.` may occur in keys and values too, so two rules can come to one
    /// path; the second, in order of the files, gets `#2`. `None`, and reported, if paths grow too
    /// large.
    fn unique_path(&mut self, trail: &Trail, place: Place) -> Option<Box<str>> {
        self.path_bytes += trail.path.len() + trail.levels.iter().map(Level::bytes).sum::<usize>();
        if self.path_bytes > PATH_BYTES_MAX {
            let mib = PATH_BYTES_MAX >> 20;
            let message =
                format!("keys and values of all rules exceed {mib} MiB together; shorten them");
            self.fault_once(place, message);
            return None;
        }
        let path: Box<str> = trail.path.as_str().into();
        let Some(uses) = self.paths.get(&path) else {
            self.paths.insert(path.clone(), 1);
            return Some(path);
        };
        let mut uses = *uses;
        let other = loop {
            uses += 1;
            let other: Box<str> = format!("{path}#{uses}").into();
            if !self.paths.contains_key(&other) {
                break other;
            }
        };
        // Remembered, so that a thousand rules of one path do not try a thousand suffixes each.
        self.paths.insert(path, uses);
        self.paths.insert(other.clone(), 1);
        Some(other)
    }
}

// === impl Level ===

impl Level {
    /// What its text takes.
    fn bytes(&self) -> usize {
        let pattern = match &self.matched {
            Matched::Wildcard(pattern) => pattern.len(),
            Matched::Key | Matched::Value => 0,
        };
        size_of::<Level>() + pattern + self.shared.as_ref().map_or(0, |shared| shared.len())
    }
}
