//! The rules directory as the watcher reads it.

use std::fs;
use std::time::SystemTime;

use ratelease_cli::settings::RulesSource;
use ratelease_rules::{self as rules, Source};

use crate::rule_source::watch::{Compiled, Load};

/// Reads and compiles every rule file of a directory.
pub struct Directory {
    settings: RulesSource,
}

// === impl Directory ===

impl Directory {
    /// Creates a source for the directory of `settings`.
    pub fn new(settings: RulesSource) -> Self {
        Self { settings }
    }
}

impl Load for Directory {
    fn read(&mut self) -> Result<Vec<Source>, String> {
        let RulesSource { dir, dotfiles, .. } = &self.settings;
        rules::read_directory(dir, *dotfiles).map_err(|error| error.to_string())
    }

    fn compile(&mut self, sources: &[Source]) -> Result<Compiled, Vec<String>> {
        match rules::load(sources, self.settings.options.clone()) {
            Ok(loaded) => {
                let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
                Ok(Compiled { rules: loaded.rules, warnings })
            }
            Err(faults) => Err(faults.to_string().lines().map(str::to_owned).collect()),
        }
    }

    fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
        fs::metadata(self.settings.dir.join(&source.name)).ok()?.modified().ok()
    }
}
