//! Counters that cores do not share: each thread adds to its own stripe, and readers sum the
//! stripes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread::available_parallelism;

/// The largest number of stripes. Threads beyond that share stripes, which costs time but loses no
/// count.
const STRIPES_MAX: usize = 16;

/// The number of cores, rounded up to a power of two, at most `STRIPES_MAX`.
static STRIPES: LazyLock<usize> = LazyLock::new(|| {
    available_parallelism().map_or(1, usize::from).clamp(1, STRIPES_MAX).next_power_of_two()
});

/// `N` counters that belong together. A stripe is made when its first thread uses it, since most
/// series are used by few threads.
#[derive(Debug)]
pub struct Striped<const N: usize> {
    stripes: Box<[OnceLock<Box<Stripe<N>>>]>,
}

/// The counters of one stripe, on their own cache lines.
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
        // The length is a power of two, so this is the remainder.
        let stripe = &self.stripes[mine() & (self.stripes.len() - 1)];
        stripe.get_or_init(|| Box::new(Stripe(std::array::from_fn(|_| AtomicU64::new(0)))))
    }

    /// The sum of each counter. Concurrent additions may be included in some sums and not in
    /// others.
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
    /// Adds `more` to the counter `at`, which is below `N`.
    #[inline]
    pub fn add(&self, at: usize, more: u64) {
        self.0[at].fetch_add(more, Ordering::Relaxed);
    }
}

// === Threads have numbers, so that they write to separate cache lines ===

/// The next thread's number.
static NEXT: AtomicUsize = AtomicUsize::new(0);

const UNKNOWN: usize = usize::MAX;

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(UNKNOWN) };
}

/// The number of this thread; its remainder selects a stripe. Threads are numbered from 0 in the
/// order of their first call, so that up to as many threads as there are stripes share none.
#[inline]
pub fn mine() -> usize {
    let mine = MINE.get();
    if mine == UNKNOWN { number() } else { mine }
}

#[cold]
fn number() -> usize {
    let mine = NEXT.fetch_add(1, Ordering::Relaxed);
    MINE.set(mine);
    mine
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

    #[test]
    fn a_thread_keeps_its_number_and_no_other_has_it() {
        let numbers = || [mine(), mine()];
        let [one, other] = [(); 2].map(|()| std::thread::spawn(numbers).join().unwrap());
        assert_eq!((one[0], other[0]), (one[1], other[1]));
        assert_ne!(one, other);
    }
}
