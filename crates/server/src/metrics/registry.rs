//! The meters of rules: one for each path, so that counts continue when rules are reloaded.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::series::{RuleMeter, RuleSums};

/// Maximum number of meters searched for one whose rule is gone, before a rule is folded.
const SEARCH_MAX: usize = 64;

/// Number of meters read before the lock is released, so that a new rule can be added.
const READ_BATCH: usize = 256;

/// A meter for each rule that was hit, up to a maximum. The other rules share one.
#[derive(Debug)]
pub(super) struct Registry {
    max: usize,
    state: Mutex<State>,
    folded: Arc<RuleMeter>,
}

#[derive(Debug, Default)]
struct State {
    by_path: HashMap<Box<str>, usize>,
    meters: Vec<Arc<RuleMeter>>,
    /// Where the next search for a meter whose rule is gone begins.
    next_search: usize,
    /// Sums of the meters that were replaced by those of other rules.
    replaced_sums: RuleSums,
}

// === impl Registry ===

impl Registry {
    /// Creates a registry for `max` rules.
    pub(super) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default(), folded: Arc::new(RuleMeter::folded()) }
    }

    /// The meter of the rule at `path`; `make` creates it if it is new.
    pub(super) fn meter(&self, path: &str, make: impl FnOnce() -> RuleMeter) -> Arc<RuleMeter> {
        let mut state = self.state.lock();
        if let Some(meter) = state.by_path.get(path).and_then(|at| state.meters.get(*at)) {
            return Arc::clone(meter);
        }
        if state.meters.len() < self.max {
            let at = state.meters.len();
            let meter = Arc::new(make());
            state.by_path.insert(path.into(), at);
            state.meters.push(Arc::clone(&meter));
            return meter;
        }
        match state.find_unused() {
            Some(at) => state.replace(at, Arc::new(make())),
            None => Arc::clone(&self.folded),
        }
    }

    /// The meter of all rules without a meter of their own.
    pub(super) fn folded(&self) -> &RuleMeter {
        &self.folded
    }

    /// Whether `meter` is the meter of all rules without a meter of their own.
    #[inline]
    pub(super) fn is_folded(&self, meter: &RuleMeter) -> bool {
        std::ptr::eq(meter, &*self.folded)
    }

    /// Every meter, that of the folded rules last. A rule that has to be added meanwhile waits for
    /// few reads.
    pub(super) fn meters(&self) -> Vec<Arc<RuleMeter>> {
        let mut meters = Vec::new();
        loop {
            let state = self.state.lock();
            let rest = state.meters.get(meters.len()..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            meters.extend(rest.iter().take(READ_BATCH).cloned());
        }
        meters.push(Arc::clone(&self.folded));
        meters
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().meters.len()
    }

    /// The sums of the meters that were replaced by those of other rules.
    pub(super) fn replaced_sums(&self) -> RuleSums {
        self.state.lock().replaced_sums
    }
}

// === impl State ===

impl State {
    /// Finds a meter that no rule in force has: none has bound it since the rules were loaded.
    fn find_unused(&mut self) -> Option<usize> {
        for _ in 0..SEARCH_MAX.min(self.meters.len()) {
            let at = self.next_search % self.meters.len();
            self.next_search = at + 1;
            if self.meters.get(at).is_some_and(|meter| Arc::strong_count(meter) == 1) {
                return Some(at);
            }
        }
        None
    }

    fn replace(&mut self, at: usize, meter: Arc<RuleMeter>) -> Arc<RuleMeter> {
        if let Some(place) = self.meters.get_mut(at) {
            let old = std::mem::replace(place, Arc::clone(&meter));
            self.by_path.remove(&old.path);
            self.replaced_sums.add(&old.sums());
        }
        self.by_path.insert(meter.path.clone(), at);
        meter
    }
}

#[cfg(test)]
mod tests {
    use super::super::hits::Hits;
    use super::super::series::{Keys, Shadow};
    use super::*;
    use ratelease_engine::verdict::{Code, DecisionSource};

    fn meter(registry: &Registry, path: &str) -> Arc<RuleMeter> {
        registry.meter(path, || RuleMeter::new(path, "d", Keys::of(path)))
    }

    fn note(meter: &RuleMeter) {
        meter.note(DecisionSource::Local, Code::Ok, Hits::default(), Shadow::Off);
    }

    #[test]
    fn a_path_keeps_its_meter_and_one_above_the_maximum_is_folded() {
        let registry = Registry::new(2);
        let (a, b) = (meter(&registry, "d.a"), meter(&registry, "d.b"));
        assert!(Arc::ptr_eq(&a, &meter(&registry, "d.a")));
        let (c, d) = (meter(&registry, "d.c"), meter(&registry, "d.d"));
        assert!(registry.is_folded(&c) && registry.is_folded(&d));
        assert!(!registry.is_folded(&a) && !registry.is_folded(&b));
        let paths =
            registry.meters().iter().map(|meter| meter.path.to_string()).collect::<Vec<_>>();
        assert_eq!(paths, ["d.a", "d.b", "folded"]);
    }

    #[test]
    fn a_removed_rule_is_replaced_and_its_counts_are_kept() {
        let registry = Registry::new(2);
        let (a, b) = (meter(&registry, "d.a"), meter(&registry, "d.b"));
        note(&b);
        drop(b);
        let c = meter(&registry, "d.c");
        assert!(!registry.is_folded(&c), "it has b's place");
        assert_eq!(registry.replaced_sums().by_verdict(), [1, 0]);
        note(&a);
        drop((a, c));
        let again = meter(&registry, "d.a");
        assert_eq!(again.sums().by_verdict(), [1, 0], "a rule that comes back counts on");
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn all_meters_are_read_in_batches() {
        let registry = Registry::new(3 * READ_BATCH + 1);
        for at in 0..=3 * READ_BATCH {
            meter(&registry, &format!("d.{at}"));
        }
        assert_eq!(registry.meters().len(), 3 * READ_BATCH + 2);
    }
}
