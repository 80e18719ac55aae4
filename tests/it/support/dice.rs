//! Seeded randomness, so that a failing test can be run again as it was.

/// The seed where `RATELEASE_TEST_SEED` names no other: the same on each run, so that a failure is
/// of the change that it came with.
const SEED: u64 = 15;

/// A generator (splitmix64) that remembers nothing but its state.
pub struct Dice(u64);

impl Dice {
    /// From the seed in `RATELEASE_TEST_SEED`, or from the usual one; prints which.
    pub fn new() -> Self {
        let seed = match std::env::var("RATELEASE_TEST_SEED") {
            Ok(text) => text.parse().expect("RATELEASE_TEST_SEED is a number below 2^64"),
            Err(_) => SEED,
        };
        println!("run again with RATELEASE_TEST_SEED={seed}");
        Self::seeded(seed)
    }

    /// From a seed that somebody else has told of.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// What it goes on from; before the first roll, what makes another one roll the same.
    pub fn seed(&self) -> u64 {
        self.0
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 0 up to `end`, without it.
    pub fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// From 0 up to 1, without it.
    pub fn fraction(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}
