//! One load: read, check whether there are changes, compile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::SystemTime;

use ratelease_rules::{Rules, Source};

use crate::rule_source::snapshot::digest;

/// Maximum number of readings of one load.
const READINGS_MAX: usize = 4;

/// Reads and compiles rules: separates the watch from `rules` and from their source. May block;
/// called from the watcher's own thread.
pub trait Load: Send + 'static {
    /// Reads every source of rules, in an order that depends only on their names.
    ///
    /// # Errors
    /// One line: the source that could not be read, and why.
    fn read(&mut self) -> Result<Vec<Source>, String>;

    /// Compiles the rules of `sources`.
    ///
    /// # Errors
    /// Every fault, one line each with its place; at least one.
    fn compile(&mut self, sources: &[Source]) -> Result<Compiled, Vec<String>>;

    /// When `source` was last changed, if that is known.
    fn changed_at(&mut self, _source: &Source) -> Option<SystemTime> {
        None
    }
}

/// Good rules, with their warnings.
#[derive(Debug, Default)]
pub struct Compiled {
    /// The rules.
    pub rules: Rules,
    /// One line for each warning, with its place.
    pub warnings: Vec<String>,
}

/// Identifies a state of the directory.
pub(super) type Digest = blake3::Hash;

/// The result of a load.
pub(super) enum Found {
    /// The state is the known one.
    Known,
    /// Another state, with its rules or its faults.
    New { digest: Digest, sources: Vec<Source>, result: Result<Compiled, Trouble> },
}

/// Why a load found no usable rules.
pub(super) enum Trouble {
    /// Nothing could be read.
    Unread(String),
    /// One line for each fault.
    Faults(Vec<String>),
    /// The loader panicked.
    Panicked,
}

/// Loads the rules, unless the state of the directory is `known`. A panic is a fault like any
/// other: it must not end the watch.
pub(super) fn load<L: Load>(load: &mut L, known: Option<Digest>) -> Found {
    catch_unwind(AssertUnwindSafe(|| attempt(load, known)))
        .unwrap_or_else(|_| refused(Trouble::Panicked, known))
}

/// Compiles `sources` that do not come from a reading. Here too a panic is a fault.
pub(super) fn compile<L: Load>(load: &mut L, sources: &[Source]) -> Result<Compiled, Trouble> {
    let compiled = catch_unwind(AssertUnwindSafe(|| load.compile(sources)));
    compiled.map_err(|_| Trouble::Panicked)?.map_err(Trouble::Faults)
}

fn attempt<L: Load>(load: &mut L, known: Option<Digest>) -> Found {
    let mut last = None;
    // A link swapped between the reading of two files would mix two versions of the rules, and a
    // file that is removed between being found and being read is an error, so a reading is used
    // only if the next one finds the same. If changes never stop, the last reading is used: an
    // event follows it.
    for reading in 1..=READINGS_MAX {
        let read = load.read().map_err(Trouble::Unread);
        let digest = read.as_ref().map_or_else(Trouble::digest, |sources| digest(sources));
        if known == Some(digest) {
            return Found::Known;
        }
        if last == Some(digest) || reading == READINGS_MAX {
            return match read {
                Ok(sources) => {
                    let result = load.compile(&sources).map_err(Trouble::Faults);
                    Found::New { digest, sources, result }
                }
                Err(trouble) => refused(trouble, known),
            };
        }
        last = Some(digest);
    }
    Found::Known
}

fn refused(trouble: Trouble, known: Option<Digest>) -> Found {
    let digest = trouble.digest();
    if known == Some(digest) {
        return Found::Known;
    }
    Found::New { digest, sources: Vec::new(), result: Err(trouble) }
}

// === impl Trouble ===

impl Trouble {
    fn digest(&self) -> Digest {
        blake3::hash(self.lines().concat().as_bytes())
    }

    /// Lines for people, one for each fault; at least one.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Unread(fault) => vec![fault.clone()],
            Self::Faults(faults) => faults.clone(),
            Self::Panicked => {
                let fault = "the rules could not be read: the loader panicked (a fault of the \
                             program's own)";
                vec![fault.to_owned()]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The file is not there.
    const GONE: &str = "gone";

    /// Returns the given texts one after another as its only file.
    struct Script {
        readings: VecDeque<&'static str>,
        compiled: Vec<String>,
    }

    impl Load for Script {
        fn read(&mut self) -> Result<Vec<Source>, String> {
            let text = self.readings.pop_front().filter(|text| *text != GONE);
            text.map(|text| vec![source(text)]).ok_or("gone".to_owned())
        }

        fn compile(&mut self, sources: &[Source]) -> Result<Compiled, Vec<String>> {
            let texts = sources.iter().map(|it| String::from_utf8(it.text.clone()).unwrap());
            self.compiled.extend(texts);
            Ok(Compiled::default())
        }
    }

    fn source(text: &str) -> Source {
        Source { name: "a.yaml".to_owned(), text: text.into() }
    }

    /// Checks what is compiled from these readings while `known` is known; `None` if nothing new
    /// was found.
    fn check(known: Option<&'static str>, readings: &[&'static str], expected: Option<&str>) {
        let mut script =
            Script { readings: readings.iter().copied().collect(), compiled: Vec::new() };
        let known = known.map(|text| digest(&[source(text)]));
        let found = load(&mut script, known);
        assert_eq!(script.readings.len(), 0, "all of {readings:?} is read");
        assert_eq!(script.compiled.first().map(String::as_str), expected, "{readings:?}");
        assert_eq!(matches!(found, Found::Known), expected.is_none(), "{readings:?}");
    }

    #[test]
    fn a_reading_counts_once_another_has_found_the_same() {
        check(None, &["new", "new"], Some("new"));
        check(Some("old"), &["mixed", "new", "new"], Some("new"));
        check(Some("old"), &["half", "mixed", "new", "new"], Some("new"));
    }

    #[test]
    fn a_file_that_goes_away_while_it_is_read_is_no_fault() {
        check(None, &[GONE, "new", "new"], Some("new"));
        check(Some("old"), &[GONE, "new", "new"], Some("new"));
        check(Some("old"), &["new", GONE, "newer", "newer"], Some("newer"));
        check(Some("old"), &[GONE, "old"], None);
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
        let Err(Trouble::Unread(told)) = result else { panic!("read") };
        assert_eq!(told, "gone");
        assert!(matches!(load(&mut script, Some(digest)), Found::Known));
    }
}
