//! The duration and the seed of each target: `RATELEASE_FUZZ_SEED`, `RATELEASE_FUZZ_FOR` (such as
//! `30s`) or `RATELEASE_FUZZ_CASES`.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::mutate::Mutator;
use crate::rng::Rng;

/// Fixed, so that a failure can be reproduced; long runs use others.
const SEED: u64 = 14;

/// Maximum duration of one execution: a thousand times that of the slowest. A target that hangs
/// fails.
const HANG: Duration = Duration::from_secs(20);

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    number("RATELEASE_FUZZ_SEED").unwrap_or(SEED)
}

/// A variable that is a number.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = variable(name)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// The duration of a target that the environment sets.
fn lasts() -> Option<Duration> {
    let text = variable("RATELEASE_FUZZ_FOR")?;
    let units = [('s', 1), ('m', 60), ('h', 3600)];
    let seconds = units.into_iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * seconds)
    });
    let seconds = seconds.unwrap_or_else(|| panic!("RATELEASE_FUZZ_FOR={text}: as in 30s or 10m"));
    Some(Duration::from_secs(seconds))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Runs `target` on mutations of its corpus with `words`, as [`generated`] does.
pub(crate) fn mutated(
    name: &str,
    words: &'static [&'static str],
    executions: u64,
    target: impl Fn(&[u8]) -> bool,
) {
    let mutator = Mutator::new(corpus(name), words);
    generated(name, executions, |rng| mutator.make(rng), |input| target(input));
}

/// Runs `target` on inputs from `make`, `most` times unless the environment sets another number.
/// `target` returns whether its input was valid.
#[allow(clippy::disallowed_methods, reason = "a run ends when its time is over")]
pub(crate) fn generated<T: AsRef<[u8]>>(
    name: &str,
    most: u64,
    make: impl Fn(&mut Rng) -> T,
    target: impl Fn(&T) -> bool,
) {
    let (seed, lasts) = (seed(), lasts());
    let most = number("RATELEASE_FUZZ_CASES").unwrap_or(most);
    let start = Instant::now();
    let (mut executions, mut good) = (0, 0);
    while lasts.map_or(executions < most, |lasts| start.elapsed() < lasts) {
        let input = make(&mut Rng::new(seed, &[executions]));
        let began = Instant::now();
        let ran = panic::catch_unwind(AssertUnwindSafe(|| target(&input)));
        let took = began.elapsed();
        good += match ran {
            Ok(is_good) if took < HANG => u64::from(is_good),
            Ok(_) => fail(name, seed, executions, input.as_ref(), &format!("took {took:?}")),
            Err(_) => fail(name, seed, executions, input.as_ref(), "panicked"),
        };
        executions += 1;
    }
    println!("fuzz {name}: {executions} executions, {good} accepted, seed {seed}, 0 failures");
}

/// Saves the input, and fails the test.
fn fail(name: &str, seed: u64, execution: u64, input: &[u8], why: &str) -> ! {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    let file = directory.join(format!("{name}-{seed}-{execution}"));
    fs::create_dir_all(&directory).and_then(|()| fs::write(&file, input)).unwrap();
    panic!(
        "fuzz {name}: execution {execution} of seed {seed} {why}; its input is in {}: put it into \
         tests/fuzz/corpus/{name} once it is fixed\n{}",
        file.display(),
        String::from_utf8_lossy(input)
    );
}

/// The inputs in the repository, in the order of their paths: those of the target's own directory,
/// if it has one, and for rules the files of the other tests.
pub(crate) fn corpus(name: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = match name {
        "rules" => &["tests/rules/bad", "tests/rules/ok"][..],
        _ => &[],
    };
    let own = Some(root.join("tests/fuzz/corpus").join(name)).filter(|own| own.is_dir());
    let mut files = Vec::new();
    for directory in shared.iter().map(|shared| root.join(shared)).chain(own) {
        files.extend(fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()));
    }
    assert!(!files.is_empty(), "{name} has no corpus");
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}
