//! How long, and by which seed: `RATELEASE_FUZZ_SEED`, `RATELEASE_FUZZ_FOR`,
//! `RATELEASE_FUZZ_CASES`.

/// Fixed, so that a failure can be had again; another day brings others to the long run.
const SEED: u64 = 14;

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    number("RATELEASE_FUZZ_SEED").unwrap_or(SEED)
}

/// A variable that is a number.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
