//! Seeded randomness, so that a failing test can be repeated.

/// The seed, unless `RATELEASE_TEST_SEED` names another: the same on each run, so that a failure
/// comes from the change under test.
const SEED: u64 = 15;

/// A generator (splitmix64) whose only state is one number.
pub(crate) struct Rng(u64);

impl Rng {
    /// Takes the seed of `RATELEASE_TEST_SEED`, or else the usual one; prints which.
    pub(crate) fn new() -> Self {
        let seed = match std::env::var("RATELEASE_TEST_SEED") {
            Ok(text) => text.parse().expect("RATELEASE_TEST_SEED is a number below 2^64"),
            Err(_) => SEED,
        };
        println!("run again with RATELEASE_TEST_SEED={seed}");
        Self::seeded(seed)
    }

    /// Takes the given seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The current state; before the first roll, the seed that makes another generator roll the
    /// same.
    pub(crate) fn seed(&self) -> u64 {
        self.0
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, but not including, `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// A number from 0 up to, but not including, 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}
