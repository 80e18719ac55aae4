//! Cheap random numbers: for samples, for the ids of spans, and to choose which keys get a counter;
//! never for values that must be unpredictable.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

thread_local! {
    /// Each thread draws from its own sequence, so that none waits for another.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(()));
}

/// A random number: SplitMix64, seeded once for each thread from the system's randomness.
#[inline]
pub fn next_u64() -> u64 {
    STATE.with(|state| {
        // 2^64 / golden ratio: odd, so that every number occurs once before any repeats.
        let next = state.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        state.set(next);
        mixed(next)
    })
}

/// A random number below `count`, uniform to within 1 in 2^32; 0 if `count` is 0.
#[inline]
pub fn below(count: u32) -> u32 {
    // The product of two 32-bit numbers fits, and its upper half is below `count`: no division.
    let scaled = (next_u64() >> 32) * u64::from(count);
    u32::try_from(scaled >> 32).unwrap_or_default()
}

/// True with probability `share`: always for 1, never for 0.
#[inline]
pub fn chance(share: f32) -> bool {
    // 24 bits: each is exact in the fraction of an `f32`.
    #[allow(clippy::cast_precision_loss, reason = "24 bits fit")]
    let fraction = (next_u64() >> 40) as f32 / (1_u32 << 24) as f32;
    fraction < share
}

/// Makes this thread continue from `seed`, so that a test can be repeated.
#[doc(hidden)]
pub fn seed(seed: u64) {
    STATE.with(|state| state.set(seed));
}

/// The upper half of `bits` as a fraction, from 0 to 1.
pub fn fraction(bits: u64) -> f64 {
    (bits >> 32) as f64 / f64::from(u32::MAX)
}

/// Between half of `wait` and all of it, chosen by `bits`, so that pods do not act in step.
pub fn shortened(wait: Duration, bits: u64) -> Duration {
    wait.mul_f64(0.5 + fraction(bits) / 2.0)
}

/// Mixes `bits` over the whole word: the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
#[inline]
pub fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_lands_as_often_as_it_says() {
        const ROLLS: u32 = 100_000;
        let landed = |share| (0..ROLLS).filter(|_| chance(share)).count();
        assert_eq!((landed(0.0), landed(1.0)), (0, ROLLS as usize));
        // 3 sigma are 95 of 1000, and 10 sigma are allowed, so that a failure by chance will not
        // happen.
        let hundredth = landed(0.01);
        assert!((680..1320).contains(&hundredth), "{hundredth}");
    }

    #[test]
    fn each_number_below_a_count_comes_as_often_as_any() {
        const ROLLS: u32 = 100_000;
        assert_eq!((below(0), below(1)), (0, 0));
        let mut drawn = [0_u32; 5];
        (0..ROLLS).for_each(|_| drawn[below(5) as usize] += 1);
        // 10 sigma are 1265.
        assert!(drawn.iter().all(|count| (18_735..21_265).contains(count)), "{drawn:?}");
        assert!((0..100).any(|_| below(u32::MAX) > u32::MAX / 2));
    }

    #[test]
    fn threads_draw_different_numbers() {
        let draw = || (0..4).map(|_| next_u64()).collect::<Vec<_>>();
        let other = std::thread::spawn(draw).join().expect("no panic");
        assert!(draw().iter().all(|number| !other.contains(number)));
    }
}
