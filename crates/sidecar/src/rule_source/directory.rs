//! The rules directory as the watcher reads it.

use std::fs;
use std::sync::Arc;
use std::time::SystemTime;

use ratelease_cli::settings::RulesSource;
use ratelease_rules::{self as rules, Keeps, RulesCache, Source};

use crate::rule_source::watch::{Compiled, Load};

/// Reads and compiles every rule file of a directory.
pub struct Directory {
    settings: RulesSource,
    cache: RulesCache,
}

// === impl Directory ===

impl Directory {
    /// Creates a source for the directory of `settings`.
    pub fn new(settings: RulesSource) -> Self {
        let cache = RulesCache::new(settings.options.clone(), Keeps::Hashes);
        Self { settings, cache }
    }
}

impl Load for Directory {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let RulesSource { dir, dotfiles, .. } = &self.settings;
        let sources = rules::read_directory(dir, *dotfiles).map_err(|error| error.to_string())?;
        Ok(sources.into_iter().map(Arc::new).collect())
    }

    fn compile(&mut self, sources: &[Arc<Source>]) -> Result<Compiled, Vec<String>> {
        match self.cache.load(sources) {
            Ok((loaded, compilation)) => {
                let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
                Ok(Compiled { rules: loaded.rules, warnings, compilation })
            }
            Err(faults) => Err(faults.to_string().lines().map(str::to_owned).collect()),
        }
    }

    fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
        fs::metadata(self.settings.dir.join(&source.name)).ok()?.modified().ok()
    }
}
