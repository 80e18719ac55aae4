//! The rules directory as the watcher reads it, and the rules that a process gives beside it.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};
use ratelease_cli::settings::{Reading, RulesSource};
use ratelease_rules::{self as rules, Endings, Faults, Found, Source};
use tracing::warn;

use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::{Compiled, Load, Terms};

/// Reads and compiles every rule file of a directory, and the given rules.
pub struct Directory {
    settings: RulesSource,
    given: Arc<GivenRules>,
    /// How many changes of the given rules the last reading has seen.
    given_changes: u64,
    memory: MemoryLeft,
    /// What the last reading left out, one line each.
    left_out: Vec<String>,
    /// What of that was logged.
    logged: Vec<String>,
    /// Whether the last reading found no rules.
    is_empty: bool,
    /// Whether rules of files were in force.
    had_rules: bool,
    /// Whether the last load had too little memory.
    lacked_memory: bool,
}

// === impl Directory ===

impl Directory {
    /// Creates a source for the directory of `settings`, and for what is given beside it.
    pub fn new(settings: RulesSource, given: Arc<GivenRules>) -> Self {
        Self {
            settings,
            given,
            given_changes: 0,
            memory: MemoryLeft::of_process(),
            left_out: Vec::new(),
            logged: Vec::new(),
            is_empty: false,
            had_rules: false,
            lacked_memory: false,
        }
    }

    /// That there are no rule files, as a fault.
    fn nothing(&self) -> String {
        let dir = self.settings.dir.display();
        format!("{dir}: has no rule files; put the rules there, in files that end in .yaml or .yml")
    }
}

impl Load for Directory {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let RulesSource { dir, reading: Reading { dotfiles, endings, .. }, .. } = &self.settings;
        let (changes, given) = self.given.now();
        self.given_changes = changes;
        let has_no_directory = !given.is_empty() && !self.had_rules && !dir.exists();
        let Found { sources, left_out } = match has_no_directory {
            true => Found::default(),
            false => {
                rules::read_directory(dir, *dotfiles, *endings).map_err(|it| it.to_string())?
            }
        };
        let line = |(name, why): (String, &str)| format!("{}: {why}", dir.join(name).display());
        self.left_out = left_out.into_iter().map(line).collect();
        self.is_empty = sources.is_empty() && given.is_empty();
        Ok(sources.into_iter().map(Arc::new).chain(given).collect())
    }

    fn compile(&mut self, sources: &[Arc<Source>]) -> Result<Compiled, Vec<String>> {
        // Files that are gone are no rules that take the place of those in force. The reference
        // takes them for that.
        let has_files = sources.iter().any(|source| !source.name.starts_with(GIVEN));
        if !has_files && self.had_rules && self.settings.reading.endings == Endings::Yaml {
            return Err(vec![self.nothing()]);
        }
        let options = &self.settings.reading.options;
        let load = |memory| rules::load_within(sources, options.clone(), memory);
        let loaded = self.memory.load(load);
        self.lacked_memory = loaded.as_ref().is_err_and(Faults::exceeds_memory);
        match loaded {
            Ok(loaded) => {
                self.had_rules |= has_files;
                let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
                Ok(Compiled { rules: loaded.rules, warnings })
            }
            Err(faults) => Err(faults.to_string().lines().map(str::to_owned).collect()),
        }
    }

    fn terms(&self) -> Terms {
        let nothing = self.is_empty.then(|| self.nothing());
        Terms { nothing, is_for_now: self.lacked_memory, ..Terms::default() }
    }

    fn note_outcome(&mut self, _: Option<Result<(), Vec<String>>>) {
        let new = self.left_out.iter().filter(|line| !self.logged.contains(line));
        new.for_each(|line| warn!("rules: {line}"));
        self.logged.clone_from(&self.left_out);
        self.given.note_loaded(self.given_changes);
    }

    fn left_out(&self) -> usize {
        self.left_out.len()
    }

    fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
        fs::metadata(self.settings.dir.join(&source.name)).ok()?.modified().ok()
    }
}

// Rules without a file.

/// How the names of given sources begin; none has the name of a file.
const GIVEN: &str = "rules given for ";

/// Rules that the process around an embedded app gives, beside those of files. Of those for one
/// domain, the last that were given count.
#[derive(Debug, Default)]
pub struct GivenRules {
    state: Mutex<GivenState>,
    /// Notified after each load.
    loaded: Condvar,
}

#[derive(Debug, Default)]
struct GivenState {
    /// In the order in which they were given.
    given: Vec<(u64, Arc<Source>)>,
    next_id: u64,
    /// How many times those that count have changed, and how many of these changes are loaded.
    changes: u64,
    loaded: u64,
    wake: Option<SyncSender<()>>,
}

/// Rules that are given until this is dropped.
#[derive(Debug)]
pub struct Given {
    id: u64,
    rules: Arc<GivenRules>,
}

// === impl GivenRules ===

impl GivenRules {
    /// Gives the text of a rule file for `domain`, which has been checked.
    pub fn give(self: &Arc<Self>, domain: &str, text: Vec<u8>) -> Given {
        let source = Arc::new(Source { name: format!("{GIVEN}{domain}"), text });
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.change(|given| given.push((id, source)));
        Given { id, rules: Arc::clone(self) }
    }

    /// Waits until a load has ended, well or not, that knew of all that is given now; at most `max`.
    /// Returns whether there was one.
    pub fn wait_until_loaded(&self, max: Duration) -> bool {
        let mut state = self.state.lock();
        let changes = state.changes;
        let is_unknown = |state: &mut GivenState| state.loaded < changes;
        !self.loaded.wait_while_for(&mut state, is_unknown, max).timed_out()
    }

    /// Sends to `wake` when what is given changes.
    pub(crate) fn wake_by(&self, wake: SyncSender<()>) {
        let mut state = self.state.lock();
        // A change since the first reading has woken nobody.
        let _ = wake.try_send(());
        state.wake = Some(wake);
    }

    /// How many changes there were, and the sources that count, in order of their names.
    fn now(&self) -> (u64, Vec<Arc<Source>>) {
        let state = self.state.lock();
        (state.changes, last_of_each(&state.given))
    }

    fn note_loaded(&self, changes: u64) {
        self.state.lock().loaded = changes;
        self.loaded.notify_all();
    }
}

// === impl GivenState ===

impl GivenState {
    /// Changes the list, and has it loaded if other sources count now.
    fn change(&mut self, change: impl FnOnce(&mut Vec<(u64, Arc<Source>)>)) {
        let before = last_of_each(&self.given);
        change(&mut self.given);
        if last_of_each(&self.given) != before {
            self.changes += 1;
            if let Some(wake) = &self.wake {
                // If a wake-up is pending already, it serves for this one too.
                let _ = wake.try_send(());
            }
        }
    }
}

fn last_of_each(given: &[(u64, Arc<Source>)]) -> Vec<Arc<Source>> {
    let by_name = given.iter().map(|(_, source)| (&source.name, source));
    by_name.collect::<BTreeMap<_, _>>().into_values().cloned().collect()
}

// === impl Given ===

impl Drop for Given {
    fn drop(&mut self) {
        self.rules.state.lock().change(|given| given.retain(|(id, _)| *id != self.id));
    }
}

#[cfg(test)]
mod tests {
    use ratelease_cli::settings::HealthyWith;
    use ratelease_rules::{Dotfiles, Options};
    use tempfile::TempDir;

    use super::*;

    fn directory(dir: &TempDir, endings: Endings) -> Directory {
        directory_with(dir, endings, &Arc::default())
    }

    fn directory_with(dir: &TempDir, endings: Endings, given: &Arc<GivenRules>) -> Directory {
        let settings = RulesSource {
            dir: dir.path().to_owned(),
            watch_root: None,
            reading: Reading { dotfiles: Dotfiles::Skip, endings, options: Options::default() },
            healthy_with: HealthyWith::Rules,
            force_start: false,
            snapshot: None,
        };
        Directory::new(settings, Arc::clone(given))
    }

    /// Loads the directory: the number of domains, or the faults; and why there is nothing.
    fn load(directory: &mut Directory) -> (Result<usize, Vec<String>>, Option<String>) {
        let sources = directory.read().unwrap();
        let compiled = directory.compile(&sources);
        (compiled.map(|it| it.rules.domains().count()), directory.terms().nothing)
    }

    #[test]
    fn a_directory_without_rule_files_is_reported_and_takes_no_rules_away() {
        for endings in [Endings::Yaml, Endings::Any] {
            let dir = tempfile::tempdir().unwrap();
            let mut directory = directory(&dir, endings);
            let (found, nothing) = load(&mut directory);
            assert_eq!(found, Ok(0), "as for the reference, at the start");
            assert!(nothing.is_some_and(|it| it.contains(": has no rule files; put the rules")));
            fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
            assert_eq!(load(&mut directory), (Ok(1), None));
            fs::remove_file(dir.path().join("a.yaml")).unwrap();
            let (found, nothing) = load(&mut directory);
            assert!(nothing.is_some());
            match endings {
                Endings::Yaml => assert!(found.is_err(), "the last good rules stay"),
                Endings::Any => assert_eq!(found, Ok(0), "as for the reference"),
            }
        }
    }

    #[test]
    fn files_of_other_names_are_counted_and_are_rules_for_the_reference() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config"), "domain: a").unwrap();
        fs::write(dir.path().join("b.yaml"), "domain: b").unwrap();
        let mut own = directory(&dir, Endings::Yaml);
        assert_eq!(load(&mut own), (Ok(1), None));
        assert_eq!(own.left_out(), 1);
        let mut reference = directory(&dir, Endings::Any);
        assert_eq!(load(&mut reference), (Ok(2), None));
        assert_eq!(reference.left_out(), 0);
    }

    fn texts(directory: &mut Directory) -> Vec<String> {
        let text = |source: &Arc<Source>| String::from_utf8(source.text.clone()).unwrap();
        directory.read().unwrap().iter().map(text).collect()
    }

    #[test]
    fn the_rules_given_last_for_a_domain_count_beside_files_until_they_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, Endings::Yaml, &given);
        let (wake, woken) = std::sync::mpsc::sync_channel(1);
        given.wake_by(wake);
        woken.try_recv().expect("what was given before is loaded");
        let first = given.give("b", b"domain: b".to_vec());
        woken.try_recv().expect("a change wakes");
        assert_eq!(texts(&mut directory), ["domain: a", "domain: b"]);
        let again = given.give("b", b"domain: b".to_vec());
        let second = given.give("b", b"domain: b # 2".to_vec());
        woken.try_recv().expect("one change of two wakes");
        assert_eq!(texts(&mut directory), ["domain: a", "domain: b # 2"]);
        drop(first);
        woken.try_recv().expect_err("the last one counts still");
        drop(second);
        woken.try_recv().expect("a change wakes");
        assert_eq!(texts(&mut directory), ["domain: a", "domain: b"]);
        drop(again);
        assert_eq!(texts(&mut directory), ["domain: a"]);
    }

    #[test]
    fn given_rules_need_no_directory_but_do_not_take_its_files_away() {
        let parent = tempfile::tempdir().unwrap();
        let dir = TempDir::new_in(&parent).unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, Endings::Yaml, &given);
        let path = dir.path().to_owned();
        fs::remove_dir(&path).unwrap();
        assert!(directory.read().is_err());
        let _given = given.give("b", b"domain: b".to_vec());
        assert_eq!(load(&mut directory), (Ok(1), None));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), "domain: a").unwrap();
        assert_eq!(load(&mut directory), (Ok(2), None));
        fs::remove_file(path.join("a.yaml")).unwrap();
        assert!(load(&mut directory).0.is_err(), "no file is not an empty set of rules");
        fs::remove_dir(&path).unwrap();
        assert!(directory.read().is_err());
    }

    #[test]
    fn what_is_given_is_waited_for_until_a_load_knows_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, Endings::Yaml, &given);
        let _given = given.give("b", b"domain: b".to_vec());
        assert!(!given.wait_until_loaded(Duration::ZERO));
        load(&mut directory).0.unwrap();
        directory.note_outcome(Some(Ok(())));
        assert!(given.wait_until_loaded(Duration::ZERO));
    }
}
