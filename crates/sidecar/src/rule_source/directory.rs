//! The rules directory as the watcher reads it, and the rules that a process gives beside it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};
use ratelease_cli::settings::{Reading, RulesSource};
use ratelease_rules::{self as rules, Endings, Faults, Found, Loaded, Options, Pace, Source};
use tracing::warn;

use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::{Compiled, Load, Terms};

/// Reads and compiles every rule file of a directory, and the rules that are given beside them.
pub struct Directory {
    settings: RulesSource,
    memory: MemoryLeft,
    /// `None` if none can be given.
    beside: Option<Beside>,
    /// What the last reading left out, one line each.
    left_out: Vec<String>,
    /// What of that was logged.
    logged: Vec<String>,
    /// Whether the last reading found no rules.
    is_empty: bool,
    /// Whether the last good load had rules of files.
    had_rules: bool,
    /// Whether the last load had too little memory.
    lacked_memory: bool,
}

// === impl Directory ===

impl Directory {
    /// Creates a source for the directory of `settings`, and for what is given beside it.
    pub fn new(settings: RulesSource, given: Option<Arc<GivenRules>>) -> Self {
        Self {
            settings,
            memory: MemoryLeft::of_process(),
            beside: given.map(Beside::new),
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

    fn read_files(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let RulesSource { dir, reading: Reading { dotfiles, endings, .. }, .. } = &self.settings;
        // A process that gives rules may run without a rules directory.
        if self.beside.is_some() && self.settings.has_default_directory() && !dir.exists() {
            return Ok(Vec::new());
        }
        let found = rules::read_directory(dir, *dotfiles, *endings);
        let Found { sources, left_out } = found.map_err(|error| error.to_string())?;
        let line = |(name, why): (String, &str)| format!("{}: {why}", dir.join(name).display());
        self.left_out = left_out.into_iter().map(line).collect();
        Ok(sources.into_iter().map(Arc::new).collect())
    }

    fn load(&self, sources: &[Arc<Source>]) -> Result<Loaded, Faults> {
        self.load_at(&Pace::default(), sources)
    }

    fn load_at(&self, pace: &Pace, sources: &[Arc<Source>]) -> Result<Loaded, Faults> {
        let options = &self.settings.reading.options;
        self.memory.load(pace, |bounds| rules::load_within(sources, options.clone(), bounds))
    }

    /// Loads the files, and the given rules of domains that no file has: the others must not keep a
    /// change of any rule from being in force. Returns the names of those left out too. `faults` are
    /// those of all together.
    fn load_apart(
        &self,
        sources: &[Arc<Source>],
        faults: Faults,
    ) -> Result<(Loaded, Vec<String>), Faults> {
        let (given, files): (Vec<_>, Vec<_>) = sources.iter().cloned().partition(is_given);
        let of_files = self.load(&files)?;
        let domains: HashSet<_> = of_files.rules.domains().map(name_of_given).collect();
        drop(of_files);
        let (clashing, apart): (Vec<_>, Vec<_>) =
            given.into_iter().partition(|source| domains.contains(&source.name));
        if clashing.is_empty() {
            return Err(faults);
        }
        let loaded = self.load(&files.into_iter().chain(apart).collect::<Vec<_>>())?;
        Ok((loaded, clashing.into_iter().map(|source| source.name.clone()).collect()))
    }

    /// Leaves out the files that stand in for files that are gone, if rules of their domains are
    /// given now.
    fn without_moved(&mut self, sources: Vec<Arc<Source>>) -> Vec<Arc<Source>> {
        let (given, files): (Vec<_>, Vec<_>) = sources.into_iter().partition(is_given);
        let names: HashSet<_> = given.iter().map(|source| &source.name).collect();
        let has_moved = |file: &Arc<Source>| {
            let loaded = self.load(std::slice::from_ref(file));
            let domains =
                |it: Loaded| it.rules.domains().all(|it| names.contains(&name_of_given(it)));
            loaded.is_ok_and(domains)
        };
        let (moved, left): (Vec<_>, Vec<_>) = files.into_iter().partition(has_moved);
        if let Some(beside) = self.beside.as_mut().filter(|_| !moved.is_empty()) {
            if left.is_empty() {
                self.had_rules = false;
                beside.stand_in = None;
            }
            beside.moved = moved;
        }
        left.into_iter().chain(given).collect()
    }
}

impl Load for Directory {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let files = self.read_files();
        let nothing = self.nothing();
        let sources = match &mut self.beside {
            None => files?,
            Some(beside) => {
                let are_gone = files.as_ref().is_ok_and(Vec::is_empty);
                let sources = beside.join(files, nothing)?;
                if are_gone { self.without_moved(sources) } else { sources }
            }
        };
        self.is_empty = sources.is_empty();
        Ok(sources)
    }

    fn compile(&mut self, sources: &[Arc<Source>], pace: &Pace) -> Result<Compiled, Vec<String>> {
        // Files that are gone are no rules that take the place of those in force. The reference
        // takes them for that.
        let files = sources.iter().filter(|source| !is_given(source)).count();
        if files == 0 && self.had_rules && self.settings.reading.endings == Endings::Yaml {
            return Err(vec![self.nothing()]);
        }
        // A caller that gives rules waits for the load that is under way.
        let full = Pace::default();
        let pace = if self.beside.is_some() { &full } else { pace };
        let loaded = match self.load_at(pace, sources) {
            Err(faults) if files < sources.len() => self.load_apart(sources, faults),
            loaded => loaded.map(|loaded| (loaded, Vec::new())),
        };
        self.lacked_memory = loaded.as_ref().is_err_and(Faults::exceeds_memory);
        match loaded {
            Ok((loaded, clashing)) => {
                self.had_rules = files > 0;
                if let Some(beside) = &mut self.beside {
                    beside.keep(sources, clashing);
                }
                let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
                Ok(Compiled { rules: loaded.rules, warnings })
            }
            Err(faults) => Err(faults.to_string().lines().map(str::to_owned).collect()),
        }
    }

    fn has_given(&self) -> bool {
        self.beside.as_ref().is_some_and(Beside::has_changed)
    }

    fn terms(&self) -> Terms {
        let nothing = self.is_empty.then(|| self.nothing());
        let left_out = self.beside.as_ref().map(Beside::faults).unwrap_or_default();
        Terms { nothing, is_for_now: self.lacked_memory, left_out, ..Terms::default() }
    }

    fn note_outcome(&mut self, outcome: Option<Result<(), Vec<String>>>) {
        let outcome = outcome.map(|it| it.is_ok());
        let faults = outcome.and_then(|_| self.beside.as_ref().map(Beside::faults));
        let lines = self.left_out.iter().chain(faults.iter().flatten());
        lines
            .clone()
            .filter(|line| !self.logged.contains(line))
            .for_each(|it| warn!("rules: {it}"));
        self.logged = lines.cloned().collect();
        self.beside.iter().for_each(|beside| beside.note_loaded(outcome));
    }

    fn left_out(&self) -> usize {
        self.left_out.len()
    }

    fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
        if source.name.starts_with(GIVEN) {
            return None;
        }
        fs::metadata(self.settings.dir.join(&source.name)).ok()?.modified().ok()
    }
}

// Rules without a file.

/// How the names of given sources begin. Those of files are relative.
const GIVEN: &str = "/rules given for ";

fn name_of_given(domain: &str) -> String {
    format!("{GIVEN}{domain}")
}

fn is_given(source: &Arc<Source>) -> bool {
    source.name.starts_with(GIVEN)
}

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
    /// The names of those that the last load left out.
    clashing: Vec<String>,
    /// Those of the last good load, if there was one.
    in_force: Option<Vec<Arc<Source>>>,
    /// A wait has timed out; until the next load ends, `wait` returns at once.
    is_late: bool,
    wake: Option<SyncSender<()>>,
}

/// Rules that are given until this is dropped.
#[derive(Debug)]
pub struct Given {
    id: u64,
    name: String,
    rules: Arc<GivenRules>,
}

/// What became of given rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenOutcome {
    /// They are in force; or there are no rules, since the files have faults, which are logged.
    Loaded,
    /// They are not, since the rules together were refused; earlier ones are in force.
    KeptBack,
    /// A file has rules of their domain, so they are left out.
    Clashes,
    /// They are not loaded yet.
    Late,
}

/// Checks the text of a rule file, within the memory that is left.
///
/// # Errors
/// All faults.
pub fn check(name: &str, text: &str, options: &Options) -> Result<Loaded, Faults> {
    let source = [Source { name: name.to_owned(), text: text.as_bytes().to_vec() }];
    let load = |bounds| rules::load_within(&source, options.clone(), bounds);
    MemoryLeft::of_process().load(&Pace::default(), load)
}

// === impl GivenRules ===

impl GivenRules {
    /// Gives the text of a rule file for `domain`, which has been checked.
    pub fn give(self: &Arc<Self>, domain: &str, text: Vec<u8>) -> Given {
        let name = name_of_given(domain);
        let source = Arc::new(Source { name: name.clone(), text });
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.change(|given| given.push((id, source)));
        Given { id, name, rules: Arc::clone(self) }
    }

    /// Sends to `wake` when what is given changes.
    pub(crate) fn wake_by(&self, wake: SyncSender<()>) {
        let mut state = self.state.lock();
        // The first reading may have missed a change that came before `wake` was set.
        let _ = wake.try_send(());
        state.wake = Some(wake);
    }
}

// === impl GivenState ===

impl GivenState {
    /// Changes the list, and has it loaded if other sources count now, or one was left out whose file
    /// may be gone.
    fn change(&mut self, change: impl FnOnce(&mut Vec<(u64, Arc<Source>)>)) {
        let before = last_of_each(&self.given);
        change(&mut self.given);
        if last_of_each(&self.given) != before || !self.clashing.is_empty() {
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

impl Given {
    /// Waits until a load has ended, well or not, that knew of all that is given now; at most `max`,
    /// and not at all while a wait of before has found no end.
    pub fn wait(&self, max: Duration) -> GivenOutcome {
        let mut state = self.rules.state.lock();
        let changes = state.changes;
        let is_unknown = |state: &mut GivenState| state.loaded < changes;
        let max = if state.is_late { Duration::ZERO } else { max };
        if self.rules.loaded.wait_while_for(&mut state, is_unknown, max).timed_out() {
            state.is_late = true;
            return GivenOutcome::Late;
        }
        if state.clashing.contains(&self.name) {
            return GivenOutcome::Clashes;
        }
        let counts = state.given.iter().rfind(|(_, source)| source.name == self.name);
        match (&state.in_force, counts) {
            (Some(in_force), Some((_, it))) if !in_force.contains(it) => GivenOutcome::KeptBack,
            _ => GivenOutcome::Loaded,
        }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.rules.state.lock().change(|given| given.retain(|(id, _)| *id != self.id));
    }
}

// The given rules as a reading finds them.

struct Beside {
    rules: Arc<GivenRules>,
    /// How many of their changes the last reading has seen.
    changes: u64,
    /// The files of the last good load, and those whose rules have moved to given ones.
    files: Vec<Arc<Source>>,
    moved: Vec<Arc<Source>>,
    /// What was given, of the last good load.
    in_force: Vec<Arc<Source>>,
    /// Why these stand in for the files of now.
    stand_in: Option<String>,
    /// Names of given rules that the last load left out, since a file has their domain.
    clashing: Vec<String>,
}

// === impl Beside ===

impl Beside {
    fn new(rules: Arc<GivenRules>) -> Self {
        Self {
            rules,
            changes: 0,
            files: Vec::new(),
            moved: Vec::new(),
            in_force: Vec::new(),
            stand_in: None,
            clashing: Vec::new(),
        }
    }

    /// Whether something has changed that no load knows of.
    fn has_changed(&self) -> bool {
        let state = self.rules.state.lock();
        state.loaded < state.changes
    }

    /// The files and what is given. A change of that is not kept back by files that are gone or
    /// cannot be read: the last good ones stand in for them.
    fn join(
        &mut self,
        files: Result<Vec<Arc<Source>>, String>,
        nothing: String,
    ) -> Result<Vec<Arc<Source>>, String> {
        let (has_changed, given) = {
            let state = self.rules.state.lock();
            self.changes = state.changes;
            (state.loaded < state.changes, last_of_each(&state.given))
        };
        self.stand_in = None;
        // The file that given rules clashed with may be gone.
        let are_free = !self.clashing.is_empty() && files.as_ref().is_ok_and(Vec::is_empty);
        let may_stand_in = (has_changed || are_free) && !self.files.is_empty();
        let lack = match &files {
            Ok(files) => files.is_empty().then_some(nothing),
            Err(error) => Some(error.clone()),
        };
        if may_stand_in || lack.is_none() {
            self.moved.clear();
        }
        let files = match lack.filter(|_| may_stand_in) {
            Some(lack) => {
                self.stand_in = Some(lack);
                self.files.clone()
            }
            None => files?,
        };
        Ok(files.into_iter().chain(given).collect())
    }

    /// Keeps the sources of a good load. Files whose rules have moved stay, for when what gives them
    /// ends.
    fn keep(&mut self, sources: &[Arc<Source>], clashing: Vec<String>) {
        self.clashing = clashing;
        let (given, files): (Vec<_>, Vec<_>) = sources.iter().cloned().partition(is_given);
        self.in_force = given.into_iter().filter(|it| !self.clashing.contains(&it.name)).collect();
        self.files = files.into_iter().chain(self.moved.iter().cloned()).collect();
    }

    /// What is wrong beside the rules in force, a line each.
    fn faults(&self) -> Vec<String> {
        let clash = |name: &String| format!("{name}: a file has rules of this domain, which count");
        self.stand_in.iter().cloned().chain(self.clashing.iter().map(clash)).collect()
    }

    /// `outcome` is whether the load was good, if there was something new to load.
    fn note_loaded(&self, outcome: Option<bool>) {
        let mut state = self.rules.state.lock();
        if outcome == Some(true) {
            state.in_force = Some(self.in_force.clone());
        }
        state.loaded = self.changes;
        state.clashing.clone_from(&self.clashing);
        state.is_late &= state.loaded < state.changes;
        self.rules.loaded.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ratelease_cli::settings::HealthyWith;
    use ratelease_rules::Dotfiles;
    use tempfile::TempDir;

    use super::*;

    fn directory(dir: &TempDir, endings: Endings) -> Directory {
        Directory::new(settings(dir.path(), endings), None)
    }

    fn directory_with(dir: &TempDir, given: &Arc<GivenRules>) -> Directory {
        Directory::new(settings(dir.path(), Endings::Yaml), Some(Arc::clone(given)))
    }

    fn settings(dir: &Path, endings: Endings) -> RulesSource {
        RulesSource {
            dir: dir.to_owned(),
            watch_root: None,
            reading: Reading { dotfiles: Dotfiles::Skip, endings, options: Options::default() },
            healthy_with: HealthyWith::Rules,
            force_start: false,
            snapshot: None,
        }
    }

    /// Loads the directory: the number of domains, or the faults; and why there is nothing.
    fn load(directory: &mut Directory) -> (Result<usize, Vec<String>>, Option<String>) {
        let sources = directory.read().unwrap();
        let compiled = directory.compile(&sources, &Pace::default());
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
        let mut directory = directory_with(&dir, &given);
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

    /// Reads and loads once, as a watch does: what was found, or the faults.
    fn load_once(directory: &mut Directory) -> Result<Vec<String>, Vec<String>> {
        let loaded = directory.read().map_err(|error| vec![error]);
        let loaded = loaded.and_then(|sources| directory.compile(&sources, &Pace::default()));
        let names = |it: &Compiled| it.rules.domains().map(str::to_owned).collect();
        let found = loaded.as_ref().map(names).map_err(Clone::clone);
        directory.note_outcome(Some(loaded.map(drop)));
        found
    }

    #[test]
    fn given_rules_need_no_directory_if_none_is_named() {
        let given = Arc::default();
        let mut of_default = settings(Path::new("config/rules"), Endings::Yaml);
        assert!(of_default.has_default_directory() && !of_default.dir.exists());
        let mut directory = Directory::new(of_default.clone(), Some(Arc::clone(&given)));
        assert_eq!(load_once(&mut directory), Ok(vec![]));
        assert!(directory.terms().nothing.is_some());
        let b = given.give("b", b"domain: b".to_vec());
        assert_eq!(load_once(&mut directory), Ok(vec!["b".to_owned()]));
        drop(b);
        assert_eq!(load_once(&mut directory), Ok(vec![]), "they end with what gave them");
        of_default.dir = "/of/nobody".into();
        let mut directory = Directory::new(of_default, Some(given));
        assert!(load_once(&mut directory).is_err());
    }

    #[test]
    fn files_that_are_gone_stay_in_force_beside_rules_that_are_given_then() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, &given);
        assert_eq!(load_once(&mut directory), Ok(vec!["a".to_owned()]));
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        let fault = load_once(&mut directory).unwrap_err();
        let _b = given.give("b", b"domain: b".to_vec());
        assert!(directory.has_given());
        assert_eq!(load_once(&mut directory), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(directory.terms().left_out, fault);
        assert_eq!(load_once(&mut directory), Err(fault), "until the files are back");
        fs::write(dir.path().join("c.yaml"), "domain: c").unwrap();
        assert_eq!(load_once(&mut directory), Ok(vec!["b".to_owned(), "c".to_owned()]));
        assert!(directory.terms().left_out.is_empty());
    }

    #[test]
    fn given_rules_of_a_domain_that_a_file_has_are_left_out_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, &given);
        let a = given.give("a", b"domain: a".to_vec());
        let b = given.give("b", b"domain: b".to_vec());
        assert_eq!(load_once(&mut directory), Ok(vec!["a".to_owned(), "b".to_owned()]));
        let outcome = |given: &Given| given.wait(Duration::ZERO);
        assert_eq!((outcome(&a), outcome(&b)), (GivenOutcome::Clashes, GivenOutcome::Loaded));
        assert!(directory.terms().left_out[0].starts_with("/rules given for a: a file has"));
        directory.read().unwrap();
        directory.note_outcome(None);
        assert_eq!(outcome(&a), GivenOutcome::Clashes, "nothing has changed since");
        drop(a);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        let a = given.give("a", b"domain: a".to_vec());
        assert!(directory.has_given(), "its file may be gone");
        assert_eq!(load_once(&mut directory), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(outcome(&a), GivenOutcome::Loaded);
    }

    #[test]
    fn given_rules_that_files_with_faults_keep_back_are_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "domain: [").unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, &given);
        let outcome = |given: &Given| given.wait(Duration::ZERO);
        let b = given.give("b", b"domain: b".to_vec());
        load_once(&mut directory).unwrap_err();
        assert_eq!(outcome(&b), GivenOutcome::Loaded, "there are no rules, so each request fails");
        fs::write(&file, "domain: a").unwrap();
        assert_eq!(load_once(&mut directory).unwrap(), ["a", "b"]);
        fs::write(&file, "domain: [").unwrap();
        load_once(&mut directory).unwrap_err();
        let c = given.give("c", b"domain: c".to_vec());
        assert!(load_once(&mut directory).unwrap_err()[0].starts_with("a.yaml:"));
        assert_eq!(outcome(&c), GivenOutcome::KeptBack, "requests of c would be unlimited");
        assert_eq!(outcome(&b), GivenOutcome::Loaded, "these are in force");
        fs::write(&file, "domain: a").unwrap();
        assert_eq!(load_once(&mut directory).unwrap(), ["a", "b", "c"]);
        assert_eq!(outcome(&c), GivenOutcome::Loaded);
    }

    #[test]
    fn the_rules_of_files_that_are_gone_move_to_what_gives_them_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        for domain in ["a", "b"] {
            fs::write(dir.path().join(format!("{domain}.yaml")), format!("domain: {domain}"))
                .unwrap();
        }
        let given = Arc::default();
        let mut directory = directory_with(&dir, &given);
        assert_eq!(load_once(&mut directory).unwrap(), ["a", "b"]);
        for file in ["a.yaml", "b.yaml"] {
            fs::remove_file(dir.path().join(file)).unwrap();
        }
        load_once(&mut directory).unwrap_err();
        let mut giving = Vec::new();
        for (domain, text) in [("a", "domain: a # moved"), ("b", "domain: b # moved")] {
            let moved = given.give(domain, text.as_bytes().to_vec());
            assert!(directory.has_given());
            assert!(texts(&mut directory).iter().any(|it| it == text));
            assert_eq!(load_once(&mut directory).unwrap(), ["a", "b"]);
            assert_eq!(moved.wait(Duration::ZERO), GivenOutcome::Loaded);
            giving.push(moved);
        }
        assert_eq!(texts(&mut directory), ["domain: a # moved", "domain: b # moved"]);
        assert_eq!(load_once(&mut directory).unwrap(), ["a", "b"]);
        assert!(directory.terms().left_out.is_empty(), "no file is missed");
        giving.pop();
        assert_eq!(
            texts(&mut directory),
            ["domain: b", "domain: a # moved"],
            "as the last good file"
        );
        assert_eq!(load_once(&mut directory).unwrap(), ["a", "b"]);
        giving.pop();
        assert_eq!(load_once(&mut directory).unwrap(), ["a", "b"]);
        assert_eq!(texts(&mut directory), Vec::<String>::new());
        load_once(&mut directory).expect_err("the last good ones stay in force");
    }

    #[test]
    fn a_file_that_clashed_may_go_and_its_domain_be_that_of_given_rules() {
        let dir = tempfile::tempdir().unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, &given);
        let _a = given.give("a", b"domain: a # given".to_vec());
        load_once(&mut directory).unwrap();
        fs::write(dir.path().join("a.yaml"), "domain: a").unwrap();
        load_once(&mut directory).unwrap();
        assert_eq!(directory.terms().left_out.len(), 1);
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        assert_eq!(texts(&mut directory), ["domain: a # given"]);
        assert_eq!(load_once(&mut directory).unwrap(), ["a"]);
        assert!(directory.terms().left_out.is_empty());
    }

    #[test]
    fn what_is_given_is_waited_for_until_a_load_knows_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let given = Arc::default();
        let mut directory = directory_with(&dir, &given);
        let b = given.give("b", b"domain: b".to_vec());
        assert_eq!(b.wait(Duration::ZERO), GivenOutcome::Late);
        assert_eq!(
            b.wait(Duration::MAX),
            GivenOutcome::Late,
            "a wait that timed out is not repeated"
        );
        load_once(&mut directory).unwrap();
        assert_eq!(b.wait(Duration::MAX), GivenOutcome::Loaded);
    }
}
