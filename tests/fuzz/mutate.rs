//! Inputs derived from those of a corpus: bytes flipped, cut, repeated and moved, words inserted,
//! and two inputs joined.

use crate::rng::Rng;

/// Maximum bytes of an input. Other tests check the ceilings of sizes.
const BYTES_MAX: usize = 4096;

/// Bytes with a meaning in most formats: limits of numbers, and delimiters of texts.
const BYTES: [u8; 16] =
    [0, 1, 0x7f, 0x80, 0xff, b'\n', b'\r', b' ', b'"', b'\\', b'%', b'*', b'-', b'$', b':', b'_'];

/// Generates inputs.
pub(crate) struct Mutator {
    corpus: Vec<Vec<u8>>,
    words: &'static [&'static str],
}

// === impl Mutator ===

impl Mutator {
    /// Creates one from a corpus, which must not be empty, and words of the format.
    pub(crate) fn new(corpus: Vec<Vec<u8>>, words: &'static [&'static str]) -> Self {
        assert!(!corpus.is_empty(), "a corpus without inputs");
        Self { corpus, words }
    }

    pub(crate) fn make(&self, rng: &mut Rng) -> Vec<u8> {
        let mut input = self.pick(rng).to_vec();
        for _ in 0..rng.within(0..8) {
            self.change(rng, &mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn pick(&self, rng: &mut Rng) -> &[u8] {
        &self.corpus[rng.index(self.corpus.len())]
    }

    fn change(&self, rng: &mut Rng, input: &mut Vec<u8>) {
        let at = rng.index(input.len() + 1);
        let end = (at + rng.index(32)).min(input.len());
        match rng.below(9) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.pick(&BYTES),
            2 => input.truncate(at),
            3 => drop(input.drain(at..end)),
            4 => {
                let part = input[at..end].repeat(rng.index(20));
                input.splice(at..at, part);
            }
            5 => {
                let other = self.pick(rng);
                input.truncate(at);
                input.extend_from_slice(&other[rng.index(other.len() + 1)..]);
            }
            6 if !self.words.is_empty() => {
                let word = rng.pick(self.words).bytes();
                input.splice(at..at, word);
            }
            7 => {
                let number = rng.pick(&["0", "-1", "18446744073709551616", "1e308", "4294967296"]);
                input.splice(at..end, number.bytes());
            }
            _ => input.insert(at, rng.pick(&BYTES)),
        }
        // Growing inputs are cut here and not only at the end, so that repeats of repeats stay
        // small.
        input.truncate(2 * BYTES_MAX);
    }
}
