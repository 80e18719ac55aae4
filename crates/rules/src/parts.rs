//! Loads a set of sources of which most were in the previous set: only the others are compiled.
//!
//! Compiling a source alone gives the same rules as one load of all, with two exceptions: a rule
//! has the path of a rule of another domain, or all sources together exceed a ceiling. In both
//! cases all are compiled in one load. When one of several changed sources has faults, all are
//! compiled too, so that the faults of all are found.

use std::sync::Arc;

use crate::compile::{Loaded, Options, Source, Weight, load_within, version};
use crate::fault::{Fault, Faults};
use crate::memory::LoadBounds;
use crate::rules::{DomainRules, Rules};

/// Maximum number of warnings of sources that are compiled one by one.
const WARNINGS_MAX: usize = 1000;

/// The compiled sources of the last good load, in the order of their names.
#[derive(Debug, Default)]
pub struct Parts(Vec<Part>);

/// A source, and its domain, whose rules sets share.
#[derive(Debug, Clone)]
struct Part {
    source: Arc<Source>,
    domain: Arc<str>,
    rules: Arc<DomainRules>,
    weight: Weight,
    /// Whether it is compiled again in any case, since its warnings are not kept.
    has_warnings: bool,
}

// === impl Parts ===

impl Parts {
    /// Loads the same rules as [`load_within`]; of the weight it has the memory alone. The memory
    /// of `bounds` is for compiling: the results of the last good load exist already. The options
    /// are always the same.
    ///
    /// # Errors
    /// As [`load_within`].
    pub fn load(
        &mut self,
        sources: &[Arc<Source>],
        options: &Options,
        bounds: impl Into<LoadBounds>,
    ) -> Result<Loaded, Faults> {
        let bounds = bounds.into();
        let mut sources: Vec<_> = sources.iter().collect();
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some((loaded, parts)) = self.load_changed(&sources, options, &bounds)? {
            self.0 = parts;
            return Ok(loaded);
        }
        let loaded = load_within(&borrowed(&sources), options.clone(), bounds)?;
        self.0 = Vec::new(); // these rules are no longer in force
        Ok(loaded)
    }

    /// Loads sources, in the order of their names, of which those that are known are not compiled.
    /// `None` if all have to be compiled in one load.
    ///
    /// # Errors
    /// All faults, if one source alone is not known: they are not looked for twice.
    fn load_changed(
        &self,
        sources: &[&Arc<Source>],
        options: &Options,
        bounds: &LoadBounds,
    ) -> Result<Option<(Loaded, Vec<Part>)>, Faults> {
        if options.merge_domains {
            return Ok(None);
        }
        let changed = sources.iter().filter(|it| self.find(it).is_none()).count();
        let mut left = bounds.clone();
        let mut warnings = Vec::new();
        let mut parts = Vec::with_capacity(sources.len());
        for source in sources {
            let part = match self.find(source) {
                Some(known) => known.clone(),
                None => {
                    let (part, found) = match Part::compile(source, options, left.clone()) {
                        Ok(Some(compiled)) => compiled,
                        Err(faults) if changed == 1 => return Err(faults),
                        Ok(None) | Err(_) => return Ok(None),
                    };
                    left.memory = left.memory.saturating_sub(part.weight.memory.held);
                    warnings.extend(found);
                    part
                }
            };
            if warnings.len() > WARNINGS_MAX {
                return Ok(None);
            }
            parts.push(part);
        }
        let version = version(&borrowed(sources), options);
        let Some((rules, weight)) = together(&parts, version, options) else { return Ok(None) };
        parts.retain(|it| !it.has_warnings);
        Ok(Some((Loaded { rules, warnings, weight }, parts)))
    }

    /// The part of a source, if it is known.
    fn find(&self, source: &Source) -> Option<&Part> {
        let at = self.0.binary_search_by(|it| it.source.name.cmp(&source.name)).ok()?;
        self.0.get(at).filter(|it| *it.source == *source)
    }
}

fn borrowed<'s>(sources: &[&'s Arc<Source>]) -> Vec<&'s Source> {
    sources.iter().map(|it| &***it).collect()
}

// === impl Part ===

impl Part {
    /// Compiles a source alone; `None` if it has no domain.
    fn compile(
        source: &Arc<Source>,
        options: &Options,
        bounds: LoadBounds,
    ) -> Result<Option<(Self, Vec<Fault>)>, Faults> {
        let Loaded { rules, warnings, weight } =
            load_within(&[&**source], options.clone(), bounds)?;
        let Some((domain, rules)) = rules.only_domain() else { return Ok(None) };
        let source = Arc::clone(source);
        let has_warnings = !warnings.is_empty();
        let part = Self { source, domain: domain.into(), rules, weight, has_warnings };
        Ok(Some((part, warnings)))
    }

    /// Whether a rule of this domain has the path of one of another domain.
    fn has_path_of(&self, other: &Self) -> bool {
        let others = &other.rules.rules;
        let has = |path: &str| others.binary_search_by(|it| (*it.path).cmp(path)).is_ok();
        self.rules.rules.iter().any(|it| has(&it.path))
    }
}

/// The rules of parts, and their memory. `None` if one load of all might make others, or refuse
/// them.
fn together(parts: &[Part], version: u64, options: &Options) -> Option<(Rules, Weight)> {
    let mut parts: Vec<_> = parts.iter().collect();
    parts.sort_by(|a, b| a.domain.cmp(&b.domain));
    let memory = Weight::together(parts.iter().map(|it| (&*it.domain, it.weight)))?;
    // Domains whose names the present one begins with: only their rules may have its paths.
    let mut outer: Vec<&Part> = Vec::new();
    for part in &parts {
        while outer.pop_if(|it| !part.domain.starts_with(&*it.domain)).is_some() {}
        if outer.iter().any(|it| it.domain == part.domain || part.has_path_of(it)) {
            return None;
        }
        outer.push(part);
    }
    let domains = parts.into_iter().map(|it| ((&*it.domain).into(), Arc::clone(&it.rules)));
    let (stores, calendar_months) = (options.stores.clone(), options.calendar_months);
    let rules = Rules::new(version, domains.collect(), stores, calendar_months);
    Some((rules, Weight { memory, ..Weight::default() }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(domain: &str, text: &str) -> Arc<Source> {
        let list = if text.is_empty() { "" } else { "descriptors:\n" };
        let text = format!("domain: {domain}\n{list}{text}").into_bytes();
        Arc::new(Source { name: format!("of {domain}"), text })
    }

    fn rule(key: &str, requests: u32) -> String {
        format!("- {{key: {key}, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n")
    }

    fn load(parts: &mut Parts, sources: &[Arc<Source>]) -> Result<Loaded, Faults> {
        parts.load(sources, &Options::default(), usize::MAX)
    }

    /// Whether two sets have the same rule of a path.
    fn shares(a: &Rules, b: &Rules, path: &str) -> bool {
        Arc::ptr_eq(a.by_path(path).unwrap(), b.by_path(path).unwrap())
    }

    #[test]
    fn only_the_domains_that_changed_are_compiled() {
        let mut parts = Parts::default();
        let sources = ["bank", "card", "shop"].map(|it| source(it, &rule("user", 5)));
        let before = load(&mut parts, &sources).unwrap().rules;
        // The source `bank` has its old text, in another object.
        let again = Arc::new(Source::clone(&sources[0]));
        let changed = [again, source("shop", &rule("user", 6)), source("user", &rule("a", 1))];
        let after = load(&mut parts, &changed).unwrap().rules;
        assert!(shares(&before, &after, "bank.user") && !shares(&before, &after, "shop.user"));
        assert_eq!(after.domains().collect::<Vec<_>>(), ["bank", "shop", "user"]);
        let last = load(&mut parts, &changed).unwrap().rules;
        assert!(["bank.user", "shop.user", "user.a"].iter().all(|it| shares(&after, &last, it)));
    }

    #[test]
    fn what_is_refused_leaves_the_parts_as_they_are() {
        let mut parts = Parts::default();
        let [bank, shop] = ["bank", "shop"].map(|it| source(it, &rule("user", 5)));
        let before = load(&mut parts, &[bank.clone(), shop]).unwrap().rules;
        let faulty = source("shop", "- {key: ''}\n");
        let faults = load(&mut parts, &[bank.clone(), faulty]).unwrap_err();
        assert!(faults.to_string().contains("of shop:3"), "{faults}");
        let second = Arc::new(Source { name: "second".to_owned(), text: bank.text.clone() });
        let faults = load(&mut parts, &[bank.clone(), second]).unwrap_err();
        assert!(faults.to_string().contains("duplicate domain 'bank'"), "{faults}");
        let lacking =
            parts.load(&[bank.clone(), source("a", &rule("a", 1))], &Options::default(), 9);
        assert!(lacking.unwrap_err().exceeds_memory());
        let after = load(&mut parts, &[bank]).unwrap().rules;
        assert!(shares(&before, &after, "bank.user"));
    }

    #[test]
    fn a_source_with_warnings_has_them_at_each_load() {
        let mut parts = Parts::default();
        let sources = [source("bank", "- {key: a, quota_mode: true}\n"), source("shop", "")];
        for _ in 0..2 {
            let warnings = load(&mut parts, &sources).unwrap().warnings;
            assert_eq!(warnings.len(), 1, "{warnings:?}");
        }
    }

    /// Domains, of which some begin with another one, and their keys, of which some have dots.
    fn sets() -> impl Strategy<Value = Vec<Vec<Arc<Source>>>> {
        let key = prop::sample::select(vec!["b", "b.c", "c", "b_v", "c#2"]);
        let domain = prop::sample::select(vec!["a", "a.b", "a.b.c", "a-b", "b"]);
        let rules = prop::collection::btree_map(key, 1_u32..3, 0..4);
        let domains = prop::collection::btree_map(domain, rules, 0..5);
        let set = domains.prop_map(|domains| {
            let text = |rules: std::collections::BTreeMap<&str, u32>| -> String {
                rules.into_iter().map(|(key, requests)| rule(key, requests)).collect()
            };
            domains.into_iter().map(|(domain, rules)| source(domain, &text(rules))).collect()
        });
        prop::collection::vec(set, 1..6)
    }

    proptest! {
        #[test]
        fn a_set_has_the_rules_of_one_load_of_all(sets in sets()) {
            let mut parts = Parts::default();
            for sources in sets {
                let found = load(&mut parts, &sources).unwrap().rules;
                let expected = crate::load(&sources, Options::default()).unwrap().rules;
                prop_assert_eq!(found.version(), expected.version());
                prop_assert_eq!(found.len(), expected.len());
                prop_assert!(found.domains().eq(expected.domains()));
                prop_assert!(found.iter().eq(expected.iter()));
            }
        }
    }
}
