//! Rule files as the tools read them: all that the user named, as one set of rules.

use std::path::PathBuf;

use super::out::Trouble;
use super::safe::Safe;
use crate::rules::{self, Loaded, Options, ReadError, Source};
use crate::settings::{Faults, Reading};

/// What `resolve` makes of flags, or all that is wrong with them.
pub(super) fn resolved<T>(resolve: impl FnOnce(&mut Faults) -> Option<T>) -> Result<T, Trouble> {
    let mut faults = Faults::default();
    match resolve(&mut faults) {
        Some(resolved) if faults.is_empty() => Ok(resolved),
        _ => Err(faults.into()),
    }
}

/// The rule files of all `paths`, directories among them. Their names lead to them from here.
pub(super) fn read(paths: &[PathBuf], reading: Reading) -> Result<Vec<Source>, Trouble> {
    let mut sources = Vec::new();
    for path in paths {
        sources.extend(rules::read_path(path, reading.ignore_dotfiles)?);
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

/// Rules that have to be good.
pub(super) fn load(paths: &[PathBuf], reading: Reading) -> Result<Loaded, Trouble> {
    let sources = read(paths, reading)?;
    rules::load(&sources, Options { merge_domains: reading.merge_domains }).map_err(|faults| {
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
