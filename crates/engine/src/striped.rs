//! Counters that cores do not share: each thread adds to a stripe of its own, and readers add the
//! stripes up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread::available_parallelism;

use crate::stripe;

/// Stripes at most. Threads beyond that share them, which costs time and no count.
const STRIPES_MAX: usize = 16;

/// As many as there are cores; a power of two.
static STRIPES: LazyLock<usize> = LazyLock::new(|| {
    available_parallelism().map_or(1, usize::from).clamp(1, STRIPES_MAX).next_power_of_two()
});

/// `N` counters that go together. A stripe is made when its first thread comes, since most series
/// are seen by few of them.
#[derive(Debug)]
pub struct Striped<const N: usize> {
    stripes: Box<[OnceLock<Box<Stripe<N>>>]>,
}

/// The counters of one stripe, on cache lines of their own.
#[derive(Debug)]
#[repr(align(64))]
pub struct Stripe<const N: usize>([AtomicU64; N]);

// === impl Striped ===

impl<const N: usize> Striped<N> {
    /// Counters at 0.
    pub fn new() -> Self {
        Self { stripes: (0..*STRIPES).map(|_| OnceLock::new()).collect() }
    }

    /// This thread's stripe.
    #[inline]
    pub fn mine(&self) -> &Stripe<N> {
        // There is a power of two of them, so that this is the remainder.
        let stripe = &self.stripes[stripe::mine() & (self.stripes.len() - 1)];
        stripe.get_or_init(|| Box::new(Stripe(std::array::from_fn(|_| AtomicU64::new(0)))))
    }

    /// What each counter has come to. Counters that are added to meanwhile may differ in what of
    /// that they show.
    pub fn sums(&self) -> [u64; N] {
        let mut sums = [0_u64; N];
        for stripe in self.stripes.iter().filter_map(OnceLock::get) {
            for (sum, counter) in sums.iter_mut().zip(&stripe.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        sums
    }
}

impl<const N: usize> Default for Striped<N> {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Stripe ===

impl<const N: usize> Stripe<N> {
    /// Adds to the counter `at`, which is below `N`.
    #[inline]
    pub fn add(&self, at: usize, more: u64) {
        self.0[at].fetch_add(more, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_add_is_all_there() {
        let counters = Striped::<3>::new();
        let threads = 2 * STRIPES_MAX;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..1000).for_each(|_| counters.mine().add(1, 2)));
            }
        });
        assert_eq!(counters.sums(), [0, 2000 * threads as u64, 0]);
        let used = counters.stripes.iter().filter(|stripe| stripe.get().is_some()).count();
        assert!(used > 1 || *STRIPES == 1, "{used} of {} stripes were used", *STRIPES);
    }

    #[test]
    fn a_counter_that_one_thread_adds_to_takes_one_stripe() {
        let counters = Striped::<1>::new();
        (0..10).for_each(|_| counters.mine().add(0, 1));
        assert_eq!(counters.stripes.iter().filter(|stripe| stripe.get().is_some()).count(), 1);
        assert_eq!(counters.sums(), [10]);
    }
}
