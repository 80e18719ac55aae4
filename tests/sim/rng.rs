//! Seeded randomness: everything that a seed decides is drawn here.

use std::ops::Range;

/// A generator (splitmix64). Each part of a simulation has a generator of its own, so that the
/// order in which the parts run within one instant changes nothing.
#[derive(Debug, Clone)]
pub struct Rng(u64);

// === impl Rng ===

impl Rng {
    /// The generator of one part of a seed; `of` names the part.
    pub fn new(seed: u64, of: &[u64]) -> Self {
        Self(of.iter().fold(mix(seed), |state, part| mix(state ^ mix(*part))))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number from 0 up to, but not including, `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    /// An index below `weights.len()`, with a probability proportional to its weight.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if at < *weight {
                return index;
            }
            at -= weight;
        }
        0
    }
}

/// The finalizer of splitmix64: spreads any difference over all bits.
pub fn mix(bits: u64) -> u64 {
    let z = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
