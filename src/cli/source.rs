//! Rule files as the tools read them: all that the user named, as one set of rules.

use std::path::{Path, PathBuf};

use super::out::Trouble;
use super::safe::Safe;
use crate::rules::{self, Loaded, Options, ReadError, Source};
use crate::settings::{Faults, Role, RulesDir, RulesDirFlags};

/// Where the rules lie, as the flags say.
pub(super) fn resolve(flags: &RulesDirFlags, role: Role) -> Result<RulesDir, Trouble> {
    let mut faults = Faults::default();
    match flags.resolve(role, &mut faults) {
        Some(dir) if faults.is_empty() => Ok(dir),
        _ => Err(faults.into()),
    }
}

/// The files of all `paths`, or of the directory of `dir` where there are none. Their names lead
/// to them from here.
pub(super) fn read(paths: &[PathBuf], dir: &RulesDir) -> Result<Vec<Source>, Trouble> {
    let only = [dir.dir.clone()];
    let paths = if paths.is_empty() { &only } else { paths };
    let mut sources = Vec::new();
    for path in paths {
        sources.extend(rules::read_path(path, dir.ignore_dotfiles)?);
    }
    // A file that was named twice is one file.
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources.dedup_by(|a, b| a.name == b.name);
    if sources.is_empty() {
        let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(Trouble::new(format_args!(
            "{}: no rule files there; their names end in .yaml or .yml",
            Safe(paths.join(", "))
        )));
    }
    Ok(sources)
}

/// Rules that have to be good, of a file or directory.
pub(super) fn load(path: &Path, dir: &RulesDir) -> Result<Loaded, Trouble> {
    let sources = read(&[path.to_owned()], dir)?;
    rules::load(&sources, Options { merge_domains: dir.merge_domains }).map_err(|faults| {
        Trouble::new(format_args!(
            "the rules are faulty; `ratelease check` shows the places\n{}",
            Safe(faults)
        ))
    })
}

// === impl Trouble ===

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Self {
        Self::new(Safe(error))
    }
}
