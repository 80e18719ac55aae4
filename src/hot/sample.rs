//! Which decisions of a thread are sampled, and which stripe the thread counts on.

use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a thread knows of its samples.
struct Seat {
    /// Decisions until the next sample, that one included; 0 for a thread that has no seat yet.
    left: Cell<u32>,
    /// Number of the seat.
    at: Cell<usize>,
    /// State of the generator.
    dice: Cell<u64>,
}

/// The seat of the next thread.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SEAT: Seat =
        const { Seat { left: Cell::new(0), at: Cell::new(0), dice: Cell::new(0) } };
}

/// The thread's seat, if its present decision is one in `sample`.
#[inline]
pub(super) fn sampled(sample: NonZeroU32) -> Option<usize> {
    SEAT.with(|seat| match seat.left.get() {
        left @ 2.. => {
            seat.left.set(left - 1);
            None
        }
        left => seat.draw(left, sample),
    })
}

// === impl Seat ===

impl Seat {
    /// The sample is due, or the thread is new.
    #[cold]
    fn draw(&self, left: u32, sample: NonZeroU32) -> Option<usize> {
        if left == 0 {
            self.at.set(NEXT.fetch_add(1, Ordering::Relaxed));
            self.dice.set(self.at.get() as u64);
            self.left.set(self.roll(sample));
            // It may be the first that is sampled.
            return sampled(sample);
        }
        self.left.set(self.roll(sample));
        Some(self.at.get())
    }

    /// From 1 to twice `sample` less 1, so `sample` on average: a fixed stride could keep step with
    /// traffic that repeats itself.
    fn roll(&self, sample: NonZeroU32) -> u32 {
        // Knuth's linear congruential generator (MMIX); its high bits are the good ones.
        let dice = self.dice.get().wrapping_mul(6_364_136_223_846_793_005);
        let dice = dice.wrapping_add(1_442_695_040_888_963_407);
        self.dice.set(dice);
        let span = 2 * u64::from(sample.get()) - 1;
        u32::try_from((dice >> 33) % span + 1).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_decision_in_so_many_is_sampled_and_not_every_so_manyth() {
        for sample in [1, 2, 4, 100] {
            let sample = NonZeroU32::new(sample).unwrap();
            let decisions = 100_000 * sample.get();
            let mut gaps = std::collections::BTreeSet::new();
            let (mut samples, mut last) = (0_u32, 0);
            for at in 0..decisions {
                if sampled(sample).is_some() {
                    gaps.insert(at - last);
                    (samples, last) = (samples + 1, at);
                }
            }
            assert!((99_000..=101_000).contains(&samples), "{samples} of {decisions}");
            let most = usize::try_from(2 * sample.get() - 1).unwrap();
            assert!(gaps.len() >= most, "{gaps:?}");
        }
    }

    #[test]
    fn threads_have_seats_of_their_own() {
        let seat = || std::thread::spawn(|| sampled(NonZeroU32::MIN).unwrap()).join().unwrap();
        assert_ne!(seat(), seat());
    }
}
