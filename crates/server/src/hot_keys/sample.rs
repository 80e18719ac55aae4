//! Selects the decisions of a thread that are sampled.

use std::cell::Cell;
use std::num::NonZeroU32;

use ratelease_engine::rng;

thread_local! {
    /// Number of decisions until the next sample, including that one; 0 in a new thread. A
    /// countdown is cheaper than a random number for each decision: most are not sampled.
    static REMAINING: Cell<u32> = const { Cell::new(0) };
}

/// Whether the thread's present decision is sampled, one in `sample` on average.
#[inline]
pub(super) fn is_due(sample: NonZeroU32) -> bool {
    REMAINING.with(|left| match left.get() {
        more @ 2.. => {
            left.set(more - 1);
            false
        }
        last => restart(left, last, sample),
    })
}

/// Called when the sample is due, or the thread is new.
#[cold]
fn restart(left: &Cell<u32>, last: u32, sample: NonZeroU32) -> bool {
    left.set(gap(sample));
    // The first decision of a thread may itself be sampled.
    last == 1 || is_due(sample)
}

/// A random number from 1 to `2 * sample - 1`, so `sample` on average: a fixed stride could be in
/// phase with traffic that repeats itself.
fn gap(sample: NonZeroU32) -> u32 {
    1 + rng::below(sample.get().saturating_mul(2) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_decision_in_so_many_is_sampled_and_not_every_so_manyth() {
        const SEED: u64 = 4;
        println!("seed {SEED}");
        rng::seed(SEED);
        for sample in [1, 2, 4, 100] {
            let sample = NonZeroU32::new(sample).unwrap();
            let decisions = 100_000 * sample.get();
            let mut gaps = std::collections::BTreeSet::new();
            let (mut samples, mut last) = (0_u32, 0);
            for at in 0..decisions {
                if is_due(sample) {
                    gaps.insert(at - last);
                    (samples, last) = (samples + 1, at);
                }
            }
            assert!((99_000..=101_000).contains(&samples), "{samples} of {decisions}");
            let most = usize::try_from(2 * sample.get() - 1).unwrap();
            assert!(gaps.len() >= most, "{gaps:?}");
        }
    }
}
