//! The meters of rules: one for each path, so that counts continue when rules are reloaded.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::series::{RuleMeter, RuleSums};

/// Maximum number of meters searched for one whose rule is gone, before a rule is folded.
const LOOKS_MAX: usize = 64;

/// Number of meters read before the lock is released, so that a new rule can be added.
const READ_AT_ONCE: usize = 256;

/// A meter for each rule that was hit, up to a maximum. The other rules share one.
#[derive(Debug)]
pub(super) struct Registry {
    max: usize,
    held: Mutex<Held>,
    folded: Arc<RuleMeter>,
}

#[derive(Debug, Default)]
struct Held {
    by_path: HashMap<Box<str>, usize>,
    meters: Vec<Arc<RuleMeter>>,
    /// Where the next search for a meter whose rule is gone begins.
    hand: usize,
    /// Sums of the meters whose places were given to other rules.
    retired: RuleSums,
}

// === impl Registry ===

impl Registry {
    /// Creates a registry for `max` rules.
    pub(super) fn new(max: usize) -> Self {
        Self { max, held: Mutex::default(), folded: Arc::new(RuleMeter::folded()) }
    }

    /// The meter of the rule at `path`; `make` creates it if it is new.
    pub(super) fn meter(&self, path: &str, make: impl FnOnce() -> RuleMeter) -> Arc<RuleMeter> {
        let mut held = self.held.lock();
        if let Some(meter) = held.by_path.get(path).and_then(|at| held.meters.get(*at)) {
            return Arc::clone(meter);
        }
        if held.meters.len() < self.max {
            let at = held.meters.len();
            let meter = Arc::new(make());
            held.by_path.insert(path.into(), at);
            held.meters.push(Arc::clone(&meter));
            return meter;
        }
        match held.abandoned() {
            Some(at) => held.replace(at, Arc::new(make())),
            None => Arc::clone(&self.folded),
        }
    }

    /// The meter of all rules that find no room.
    pub(super) fn folded(&self) -> &RuleMeter {
        &self.folded
    }

    /// Whether `meter` is the meter of all rules that find no room.
    #[inline]
    pub(super) fn is_folded(&self, meter: &RuleMeter) -> bool {
        std::ptr::eq(meter, &*self.folded)
    }

    /// Every meter, that of the folded rules last. A rule that has to be added meanwhile waits for
    /// few reads.
    pub(super) fn meters(&self) -> Vec<Arc<RuleMeter>> {
        let mut meters = Vec::new();
        loop {
            let held = self.held.lock();
            let rest = held.meters.get(meters.len()..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            meters.extend(rest.iter().take(READ_AT_ONCE).cloned());
        }
        meters.push(Arc::clone(&self.folded));
        meters
    }

    pub(super) fn len(&self) -> usize {
        self.held.lock().meters.len()
    }

    /// The sums of rules whose meters were given to other rules.
    pub(super) fn retired(&self) -> RuleSums {
        self.held.lock().retired
    }
}

// === impl Held ===

impl Held {
    /// Finds a meter that no rule in force has: none has bound it since the rules were loaded.
    fn abandoned(&mut self) -> Option<usize> {
        for _ in 0..LOOKS_MAX.min(self.meters.len()) {
            let at = self.hand % self.meters.len();
            self.hand = at + 1;
            if self.meters.get(at).is_some_and(|meter| Arc::strong_count(meter) == 1) {
                return Some(at);
            }
        }
        None
    }

    fn replace(&mut self, at: usize, meter: Arc<RuleMeter>) -> Arc<RuleMeter> {
        if let Some(place) = self.meters.get_mut(at) {
            let gone = std::mem::replace(place, Arc::clone(&meter));
            self.by_path.remove(&gone.path);
            self.retired.add(&gone.sums());
        }
        self.by_path.insert(meter.path.clone(), at);
        meter
    }
}

#[cfg(test)]
mod tests {
    use super::super::hits::Hits;
    use super::super::series::Keys;
    use super::*;
    use ratelease_engine::verdict::DecisionSource;

    fn meter(registry: &Registry, path: &str) -> Arc<RuleMeter> {
        registry.meter(path, || RuleMeter::new(path, "d", Keys::of(path)))
    }

    fn note(meter: &RuleMeter) {
        meter.note(DecisionSource::Local, false, Hits::default(), false);
    }

    #[test]
    fn a_path_keeps_its_meter_and_one_too_many_is_folded() {
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
    fn a_rule_that_is_gone_gives_its_place_and_what_it_came_to_is_kept() {
        let registry = Registry::new(2);
        let (a, b) = (meter(&registry, "d.a"), meter(&registry, "d.b"));
        note(&b);
        drop(b);
        let c = meter(&registry, "d.c");
        assert!(!registry.is_folded(&c), "it has b's place");
        assert_eq!(registry.retired().by_verdict(), [1, 0]);
        note(&a);
        drop((a, c));
        let again = meter(&registry, "d.a");
        assert_eq!(again.sums().by_verdict(), [1, 0], "a rule that comes back counts on");
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn all_meters_are_read_however_many() {
        let registry = Registry::new(3 * READ_AT_ONCE + 1);
        for at in 0..=3 * READ_AT_ONCE {
            meter(&registry, &format!("d.{at}"));
        }
        assert_eq!(registry.meters().len(), 3 * READ_AT_ONCE + 2);
    }
}
