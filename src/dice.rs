//! Random numbers that cost next to nothing: for samples and for the ids of spans, never for what
//! nobody may guess.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    /// Each thread draws from a sequence of its own, so that none waits for another.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(()));
}

/// A random number: SplitMix64, seeded once for each thread from the system's randomness.
pub(super) fn roll() -> u64 {
    STATE.with(|state| {
        // 2^64 / golden ratio: odd, so that every number comes once before one comes again.
        let next = state.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        state.set(next);
        mixed(next)
    })
}

/// True in `share` of the rolls: always for 1, never for 0.
pub(super) fn lands(share: f32) -> bool {
    // 24 bits: each is exact in the fraction of an `f32`.
    #[allow(clippy::cast_precision_loss, reason = "24 bits fit")]
    let fraction = (roll() >> 40) as f32 / (1_u32 << 24) as f32;
    fraction < share
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
fn mixed(mut bits: u64) -> u64 {
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
        let landed = |share| (0..ROLLS).filter(|_| lands(share)).count();
        assert_eq!((landed(0.0), landed(1.0)), (0, ROLLS as usize));
        // 3 sigma are 95 of 1000, and 10 are allowed: one failure in more runs than there will be.
        let hundredth = landed(0.01);
        assert!((680..1320).contains(&hundredth), "{hundredth}");
    }

    #[test]
    fn threads_draw_different_numbers() {
        let draw = || (0..4).map(|_| roll()).collect::<Vec<_>>();
        let other = std::thread::spawn(draw).join().expect("no panic");
        assert!(draw().iter().all(|number| !other.contains(number)));
    }
}
