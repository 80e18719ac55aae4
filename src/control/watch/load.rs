//! One load: read, see whether anything is new, compile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::SystemTime;

use ratelease_rules::{Rules, Source};

use crate::control::snapshot::digest;

/// Readings of one load at most.
const READINGS_MAX: usize = 4;

/// How rules are read and compiled: the seam to `rules` and to where they come from. It may block;
/// it is called from the watcher's own thread.
pub trait Load: Send + 'static {
    /// Every source of rules, in an order that depends on nothing but their names.
    ///
    /// # Errors
    /// A line saying what could not be read, and why.
    fn read(&mut self) -> Result<Vec<Source>, String>;

    /// The rules of `sources`.
    ///
    /// # Errors
    /// Every fault, each a line with its place; at least one.
    fn compile(&mut self, sources: &[Source]) -> Result<Compiled, Vec<String>>;

    /// When `source` was last changed, where that is known.
    fn changed_at(&mut self, _source: &Source) -> Option<SystemTime> {
        None
    }
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
    /// Another state, with the rules in it or what is wrong with it.
    New { digest: Digest, sources: Vec<Source>, result: Result<Compiled, Trouble> },
}

/// Why a load found no rules to take.
pub(super) enum Trouble {
    /// There was nothing that could be read.
    Unread(String),
    /// A line each.
    Faults(Vec<String>),
    /// The loader panicked.
    Panicked,
}

/// Loads, unless what is there is `known`. A panic is a fault as any other: it must not end the
/// watch.
pub(super) fn load<L: Load>(load: &mut L, known: Option<Digest>) -> Found {
    catch_unwind(AssertUnwindSafe(|| attempt(load, known)))
        .unwrap_or_else(|_| refused(Trouble::Panicked, known))
}

/// The rules of `sources`, which no reading has found. A panic is a fault here too.
pub(super) fn compile<L: Load>(load: &mut L, sources: &[Source]) -> Result<Compiled, Trouble> {
    let compiled = catch_unwind(AssertUnwindSafe(|| load.compile(sources)));
    compiled.map_err(|_| Trouble::Panicked)?.map_err(Trouble::Faults)
}

fn attempt<L: Load>(load: &mut L, known: Option<Digest>) -> Found {
    let mut last = None;
    // A link swapped between the reading of two files would mix two versions of the rules, and a
    // file that goes away between being found and being read is an error, so a reading counts once
    // another has found the same. Under change without end the last one counts: an event follows
    // it.
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

    /// For people, a line each; at least one.
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

    /// Finds one text after another in its only file.
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

    /// What was compiled of these readings where `known` was known; `None` if nothing was found
    /// new.
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
