//! One load: read, see whether anything is new, compile.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::rules::Rules;

/// Readings of one load at most.
const READINGS_MAX: usize = 4;

/// How rules are read and compiled: the seam to `rules` and the file system. It may block; it is
/// called from the watcher's own thread.
pub trait Load: Send + 'static {
    /// One rule file.
    type File;

    /// Every rule file, in an order that depends on nothing but their names.
    ///
    /// # Errors
    /// A line saying what could not be read, and why.
    fn read(&mut self) -> Result<Vec<Self::File>, String>;

    /// A file's name, as faults show it, and its bytes.
    fn parts<'f>(&self, file: &'f Self::File) -> (&'f str, &'f [u8]);

    /// The rules of `files`.
    ///
    /// # Errors
    /// Every fault, each a line with its place; at least one.
    fn compile(&mut self, files: &[Self::File]) -> Result<Compiled, Vec<String>>;
}

/// Good rules, with what is odd about them.
#[derive(Debug, Default)]
pub struct Compiled {
    /// The rules.
    pub rules: Rules,
    /// A line each, with its place.
    pub warnings: Vec<String>,
}

/// Tells two states of the directory apart.
pub(super) type Digest = blake3::Hash;

/// What a load found.
pub(super) enum Found {
    /// What was known.
    Known,
    /// Another state, with the rules in it or its faults.
    New { digest: Digest, files: usize, result: Result<Compiled, Vec<String>> },
}

/// Loads, unless what is there is `known`. A panic is a fault as any other: it must not end the
/// watch.
pub(super) fn load<L: Load>(load: &mut L, known: Option<Digest>) -> Found {
    catch_unwind(AssertUnwindSafe(|| attempt(load, known))).unwrap_or_else(|_| {
        let fault =
            "the rules could not be read: the loader panicked (a fault of the program's own)";
        refused(fault.to_owned(), known)
    })
}

fn attempt<L: Load>(load: &mut L, known: Option<Digest>) -> Found {
    let mut last = None;
    // A link swapped between the reading of two files would mix two versions of the rules, so a
    // reading counts once another has found the same. Under change without end the last one counts:
    // an event follows it.
    for reading in 1..=READINGS_MAX {
        let files = match load.read() {
            Ok(files) => files,
            Err(fault) => return refused(fault, known),
        };
        let digest = digest(load, &files);
        if known == Some(digest) {
            return Found::Known;
        }
        if last == Some(digest) || reading == READINGS_MAX {
            return Found::New { digest, files: files.len(), result: load.compile(&files) };
        }
        last = Some(digest);
    }
    Found::Known
}

fn refused(fault: String, known: Option<Digest>) -> Found {
    let digest = blake3::hash(fault.as_bytes());
    if known == Some(digest) {
        return Found::Known;
    }
    Found::New { digest, files: 0, result: Err(vec![fault]) }
}

/// Of names and bytes with their lengths, so that no two states hash alike.
fn digest<L: Load>(load: &L, files: &[L::File]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let (name, text) = load.parts(file);
        for part in [name.as_bytes(), text] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Finds one text after another in its only file.
    struct Script {
        readings: VecDeque<&'static str>,
        compiled: Vec<&'static str>,
    }

    impl Load for Script {
        type File = &'static str;

        fn read(&mut self) -> Result<Vec<&'static str>, String> {
            self.readings.pop_front().map(|text| vec![text]).ok_or("gone".to_owned())
        }

        fn parts<'f>(&self, file: &'f &'static str) -> (&'f str, &'f [u8]) {
            ("a.yaml", file.as_bytes())
        }

        fn compile(&mut self, files: &[&'static str]) -> Result<Compiled, Vec<String>> {
            self.compiled.extend(files);
            Ok(Compiled::default())
        }
    }

    /// What was compiled of these readings where `known` was known; `None` if nothing was found
    /// new.
    fn check(known: Option<&'static str>, readings: &[&'static str], expected: Option<&str>) {
        let mut script =
            Script { readings: readings.iter().copied().collect(), compiled: Vec::new() };
        let known = known.map(|text| digest(&script, &[text]));
        let found = load(&mut script, known);
        assert_eq!(script.readings.len(), 0, "all of {readings:?} is read");
        assert_eq!(script.compiled.first().copied(), expected, "{readings:?}");
        assert_eq!(matches!(found, Found::Known), expected.is_none(), "{readings:?}");
    }

    #[test]
    fn a_reading_counts_once_another_has_found_the_same() {
        check(None, &["new", "new"], Some("new"));
        check(Some("old"), &["mixed", "new", "new"], Some("new"));
        check(Some("old"), &["half", "mixed", "new", "new"], Some("new"));
    }

    #[test]
    fn what_is_known_is_neither_read_twice_nor_compiled() {
        check(Some("old"), &["old"], None);
        check(Some("old"), &["mixed", "old"], None);
    }

    #[test]
    fn under_change_without_end_the_last_reading_counts() {
        check(Some("old"), &["1", "2", "3", "4"], Some("4"));
    }

    #[test]
    fn an_error_is_known_once_it_has_been_told() {
        let mut script = Script { readings: VecDeque::new(), compiled: Vec::new() };
        let Found::New { digest, result, .. } = load(&mut script, None) else { panic!("not new") };
        assert_eq!(result.err(), Some(vec!["gone".to_owned()]));
        assert!(matches!(load(&mut script, Some(digest)), Found::Known));
    }
}
