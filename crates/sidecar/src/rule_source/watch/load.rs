//! One load: read, check whether there are changes, compile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
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
    /// The source that could not be read, and why: a line for each.
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String>;

    /// Compiles the rules of `sources`.
    ///
    /// # Errors
    /// Every fault, one line each with its place; at least one.
    fn compile(&mut self, sources: &[Arc<Source>]) -> Result<Compiled, Vec<String>>;

    /// Whether the sources of one reading are always of one version, so that no second reading has
    /// to agree with it.
    fn is_atomic(&self) -> bool {
        false
    }

    /// What the last reading is for.
    fn terms(&self) -> Terms {
        Terms::default()
    }

    /// Number of files that the last reading did not take for rules though they may be meant so.
    fn left_out(&self) -> usize {
        0
    }

    /// Receives the outcome of the last reading: success if its rules are in force, otherwise all
    /// its faults; `None` if nothing had changed.
    fn note_outcome(&mut self, _outcome: Option<Result<(), Vec<String>>>) {}

    /// When `source` was last changed, if that is known.
    fn changed_at(&mut self, _source: &Source) -> Option<SystemTime> {
        None
    }
}

/// What a reading is for; by default, to be in force if it is good, and to be reported if not.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Faults are the reader's business alone: it has other sources to try.
    pub is_trial: bool,
    /// Good rules are not in force yet: the reader waits for more sources.
    pub is_partial: bool,
    /// Faults are only about this moment, as a lack of memory is: the same sources are loaded again
    /// at the next poll.
    pub is_for_now: bool,
    /// Why good rules are none at all, if they are not meant to be: reported as a failed load too.
    pub nothing: Option<String>,
    /// The faults of sources that the reader left out: they stay the last fault beside good rules.
    pub left_out: Vec<String>,
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
pub(super) enum LoadOutcome {
    /// The state is the known one.
    Unchanged,
    /// Another state, with its rules or its faults.
    Changed(Box<Loaded>),
}

/// What a load found.
pub(super) struct Loaded {
    /// Identifies the state.
    pub(super) digest: Digest,
    /// The files; none if they could not be read.
    pub(super) sources: Vec<Arc<Source>>,
    /// Their rules, or why there are none.
    pub(super) result: Result<Compiled, LoadError>,
}

/// Why a load found no usable rules.
pub(super) enum LoadError {
    /// Nothing could be read.
    Unread(String),
    /// One line for each fault.
    Faults(Vec<String>),
    /// The loader panicked.
    Panicked,
}

/// Loads the rules, unless the state of the directory is `known`. A panic is a fault like any
/// other: it must not end the watch.
pub(super) fn load<L: Load>(load: &mut L, known: Option<Digest>) -> LoadOutcome {
    catch_unwind(AssertUnwindSafe(|| attempt(load, known)))
        .unwrap_or_else(|_| refused(LoadError::Panicked, known))
}

/// Compiles `sources` that do not come from a reading. Here too a panic is a fault.
pub(super) fn compile<L: Load>(
    load: &mut L,
    sources: &[Arc<Source>],
) -> Result<Compiled, LoadError> {
    let compiled = catch_unwind(AssertUnwindSafe(|| load.compile(sources)));
    compiled.map_err(|_| LoadError::Panicked)?.map_err(LoadError::Faults)
}

fn attempt<L: Load>(load: &mut L, known: Option<Digest>) -> LoadOutcome {
    let mut last = None;
    // A link swapped between the reading of two files would mix two versions of the rules, and a
    // file that is removed between being found and being read is an error, so a reading is used
    // only if the next one finds the same. If changes never stop, the last reading is used: an
    // event follows it.
    for reading in 1..=READINGS_MAX {
        let read = load.read().map_err(LoadError::Unread);
        let digest = read.as_ref().map_or_else(LoadError::digest, |sources| digest(sources));
        if known == Some(digest) {
            return LoadOutcome::Unchanged;
        }
        if last == Some(digest) || reading == READINGS_MAX || load.is_atomic() {
            return match read {
                Ok(sources) => {
                    let result = load.compile(&sources).map_err(LoadError::Faults);
                    LoadOutcome::Changed(Box::new(Loaded { digest, sources, result }))
                }
                Err(error) => refused(error, known),
            };
        }
        last = Some(digest);
    }
    LoadOutcome::Unchanged
}

fn refused(error: LoadError, known: Option<Digest>) -> LoadOutcome {
    let digest = error.digest();
    if known == Some(digest) {
        return LoadOutcome::Unchanged;
    }
    LoadOutcome::Changed(Box::new(Loaded { digest, sources: Vec::new(), result: Err(error) }))
}

// === impl LoadError ===

impl LoadError {
    fn digest(&self) -> Digest {
        blake3::hash(self.lines().concat().as_bytes())
    }

    /// Lines for people, one for each fault; at least one.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Unread(faults) => faults.lines().map(str::to_owned).collect(),
            Self::Faults(faults) => faults.clone(),
            Self::Panicked => {
                let fault = "internal error: the rules could not be read: the loader panicked";
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
        fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
            let text = self.readings.pop_front().filter(|text| *text != GONE);
            text.map(|text| vec![source(text)]).ok_or("gone".to_owned())
        }

        fn compile(&mut self, sources: &[Arc<Source>]) -> Result<Compiled, Vec<String>> {
            let texts = sources.iter().map(|it| String::from_utf8(it.text.clone()).unwrap());
            self.compiled.extend(texts);
            Ok(Compiled::default())
        }
    }

    fn source(text: &str) -> Arc<Source> {
        Arc::new(Source { name: "a.yaml".to_owned(), text: text.into() })
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
        assert_eq!(matches!(found, LoadOutcome::Unchanged), expected.is_none(), "{readings:?}");
    }

    #[test]
    fn a_reading_is_used_once_the_next_one_agrees() {
        check(None, &["new", "new"], Some("new"));
        check(Some("old"), &["mixed", "new", "new"], Some("new"));
        check(Some("old"), &["half", "mixed", "new", "new"], Some("new"));
    }

    #[test]
    fn a_file_removed_while_it_is_read_is_not_a_fault() {
        check(None, &[GONE, "new", "new"], Some("new"));
        check(Some("old"), &[GONE, "new", "new"], Some("new"));
        check(Some("old"), &["new", GONE, "newer", "newer"], Some("newer"));
        check(Some("old"), &[GONE, "old"], None);
    }

    #[test]
    fn a_known_state_is_neither_read_twice_nor_compiled() {
        check(Some("old"), &["old"], None);
        check(Some("old"), &["mixed", "old"], None);
    }

    #[test]
    fn under_continuous_changes_the_last_reading_is_used() {
        check(Some("old"), &["1", "2", "3", "4"], Some("4"));
    }

    #[test]
    fn a_reported_error_is_a_known_state() {
        let mut script = Script { readings: VecDeque::new(), compiled: Vec::new() };
        let LoadOutcome::Changed(loaded) = load(&mut script, None) else { panic!("not new") };
        let Loaded { digest, result, .. } = *loaded;
        let Err(LoadError::Unread(message)) = result else { panic!("read") };
        assert_eq!(message, "gone");
        assert!(matches!(load(&mut script, Some(digest)), LoadOutcome::Unchanged));
    }
}
