//! What a source takes of the ceilings of a load. From the weights of sources that were compiled one
//! by one, a process knows whether one load of all would succeed, and an upper bound of its memory,
//! without that load.

use crate::compile::{DESCRIPTORS_MAX, PATH_BYTES_MAX, Paths};
use crate::memory::{MemoryUse, boxed};

/// What a load takes of the ceilings of all loads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weight {
    /// Its memory, of which it takes an upper bound.
    pub memory: MemoryUse,
    /// What is taken when all of its sources are read, without the table of paths.
    pub(crate) read: usize,
    pub(crate) descriptors: usize,
    pub(crate) rules: usize,
    pub(crate) path_bytes: usize,
    /// Paths that several of its rules wanted.
    pub(crate) wanted: usize,
}

// === impl Weight ===

impl Weight {
    /// An upper bound of the memory of one load of sources, if that is sure to succeed; `None` if
    /// only the load itself can tell. Each source is of one domain, by which it is named, and was
    /// loaded alone with the default options. They are in the order of their names.
    pub fn together<'w>(all: impl Iterator<Item = (&'w str, Self)>) -> Option<MemoryUse> {
        let mut sum = Self::default();
        let mut reading = 0;
        let mut contested = 0;
        let mut outer: Vec<&str> = Vec::new();
        for (domain, weight) in all {
            sum.add(weight);
            reading = reading.max(weight.memory.peak.saturating_sub(weight.read));
            // Rules of `shop` and of `shop.eu` may want one path, and the latter get another one.
            while outer.pop_if(|it| !domain.starts_with(*it)).is_some() {}
            if outer.iter().any(|it| domain.as_bytes().get(it.len()) == Some(&b'.')) {
                sum.wanted += weight.rules;
                contested += weight.path_bytes + boxed(1) * weight.rules;
            }
            outer.push(domain);
        }
        if sum.descriptors > DESCRIPTORS_MAX || sum.path_bytes > PATH_BYTES_MAX {
            return None;
        }
        let [taken, wanted] = Paths::growth(sum.rules, sum.wanted);
        let held = sum.memory.held + contested + wanted;
        let peak = (sum.read + reading + taken + contested + wanted).max(held);
        Some(MemoryUse { peak, held })
    }

    fn add(&mut self, other: Self) {
        let Self { memory, read, descriptors, rules, path_bytes, wanted } = other;
        self.memory.held += memory.held;
        // What a domain takes while others are read, or are finished.
        self.read += read.max(memory.held);
        self.descriptors += descriptors;
        self.rules += rules;
        self.path_bytes += path_bytes;
        self.wanted += wanted;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Loaded, Options, Source, load};

    /// A domain, and its descriptors: the key, the number of values below it, and whether it has
    /// what the compiler warns of.
    type Domain = (String, Vec<(String, usize, bool)>);

    fn domains() -> impl Strategy<Value = Vec<Domain>> {
        let name =
            prop::sample::select(vec!["a", "a.b", "a.b.c", "a-b", "ab", "b", "b.a", "a.b#2"]);
        let key =
            prop::sample::select(vec!["a", "b", "b.c", "b.c.d", "c", "d_v1", "long-key-of-a-rule"]);
        let descriptor = (key.prop_map(str::to_owned), 0_usize..40, any::<bool>());
        let domain = (name.prop_map(str::to_owned), prop::collection::vec(descriptor, 0..6));
        prop::collection::vec(domain, 0..9).prop_map(|mut all| {
            all.sort();
            all.dedup_by(|a, b| a.0 == b.0);
            all
        })
    }

    fn source((domain, descriptors): &Domain) -> Source {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1";
        let mut text = format!("domain: {domain}\ndescriptors:\n");
        let mut seen = std::collections::BTreeSet::new();
        for (key, values, warns) in descriptors.iter().filter(|it| seen.insert(&it.0)) {
            let name = if *warns { ", name: 'a\"b'}" } else { "}" };
            text += &format!("- {{key: {key}, {limit}{name}, descriptors: [");
            (0..*values).for_each(|at| text += &format!("{{key: c, value: v{at}, {limit}}}}},"));
            text += "]}\n";
        }
        if descriptors.is_empty() {
            text += "- {key: none}\n";
        }
        Source { name: domain.clone(), text: text.into_bytes() }
    }

    fn load_of(sources: &[Source]) -> Loaded {
        load(sources, Options::default()).unwrap()
    }

    /// What a load takes, and what it takes at most by the weights of its sources.
    fn both(sources: &[Source]) -> (MemoryUse, MemoryUse) {
        let alone = sources.iter().map(|it| (&*it.name, load_of(std::slice::from_ref(it)).weight));
        (load_of(sources).weight.memory, Weight::together(alone).unwrap())
    }

    proptest! {
        #[test]
        fn a_load_takes_no_more_than_the_weights_of_its_sources(domains in domains()) {
            let sources: Vec<_> = domains.iter().map(source).collect();
            let (taken, bound) = both(&sources);
            prop_assert!(taken.peak <= bound.peak, "{taken:?} {bound:?}");
            prop_assert!(taken.held <= bound.held, "{taken:?} {bound:?}");
        }
    }

    #[test]
    fn the_bound_of_many_domains_is_near_to_what_they_take() {
        let domain = |at: usize| (format!("tenant-{at:05}"), vec![("user".to_owned(), 3, false)]);
        let sources: Vec<_> = (0..2000).map(|at| source(&domain(at))).collect();
        let (taken, bound) = both(&sources);
        assert_eq!(taken.held, bound.held);
        assert!(bound.peak <= taken.peak + taken.peak / 8, "{taken:?} {bound:?}");
    }

    #[test]
    fn what_may_exceed_a_ceiling_has_no_bound() {
        let half = Weight { descriptors: DESCRIPTORS_MAX / 2 + 1, ..Weight::default() };
        assert!(Weight::together([("a", half)].into_iter()).is_some());
        assert_eq!(Weight::together([("a", half), ("b", half)].into_iter()), None);
        let half = Weight { path_bytes: PATH_BYTES_MAX / 2 + 1, ..Weight::default() };
        assert_eq!(Weight::together([("a", half), ("b", half)].into_iter()), None);
    }
}
