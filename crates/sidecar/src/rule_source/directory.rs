//! The rules directory as the watcher reads it.

use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use ratelease_cli::settings::{Reading, RulesSource};
use ratelease_rules::{self as rules, Endings, Faults, Found, Source};
use tracing::warn;

use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::{Compiled, Load, Terms};

/// Reads and compiles every rule file of a directory.
pub struct Directory {
    settings: RulesSource,
    memory: MemoryLeft,
    /// What the last reading left out, one line each.
    left_out: Vec<String>,
    /// What of that was logged.
    logged: Vec<String>,
    /// Whether the last reading found no file.
    is_empty: bool,
    /// Whether rules of files were in force.
    had_rules: bool,
    /// Whether the last load had too little memory.
    lacked_memory: bool,
}

// === impl Directory ===

impl Directory {
    /// Creates a source for the directory of `settings`.
    pub fn new(settings: RulesSource) -> Self {
        Self {
            settings,
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
        let found = rules::read_directory(dir, *dotfiles, *endings);
        let Found { sources, left_out } = found.map_err(|error| error.to_string())?;
        let line = |(name, why): (String, &str)| format!("{}: {why}", dir.join(name).display());
        self.left_out = left_out.into_iter().map(line).collect();
        self.is_empty = sources.is_empty();
        Ok(sources.into_iter().map(Arc::new).collect())
    }

    fn compile(&mut self, sources: &[Arc<Source>]) -> Result<Compiled, Vec<String>> {
        // Files that are gone are no rules that take the place of those in force. The reference
        // takes them for that.
        if sources.is_empty() && self.had_rules && self.settings.reading.endings == Endings::Yaml {
            return Err(vec![self.nothing()]);
        }
        let options = &self.settings.reading.options;
        let load = |memory| rules::load_within(sources, options.clone(), memory);
        let loaded = self.memory.load(load);
        self.lacked_memory = loaded.as_ref().is_err_and(Faults::exceeds_memory);
        match loaded {
            Ok(loaded) => {
                self.had_rules |= !sources.is_empty();
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
    }

    fn left_out(&self) -> usize {
        self.left_out.len()
    }

    fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
        fs::metadata(self.settings.dir.join(&source.name)).ok()?.modified().ok()
    }
}

#[cfg(test)]
mod tests {
    use ratelease_cli::settings::HealthyWith;
    use ratelease_rules::{Dotfiles, Options};
    use tempfile::TempDir;

    use super::*;

    fn directory(dir: &TempDir, endings: Endings) -> Directory {
        Directory::new(RulesSource {
            dir: dir.path().to_owned(),
            watch_root: None,
            reading: Reading { dotfiles: Dotfiles::Skip, endings, options: Options::default() },
            healthy_with: HealthyWith::Rules,
            force_start: false,
            snapshot: None,
        })
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
}
