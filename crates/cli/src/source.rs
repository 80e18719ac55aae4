//! Reads rule files for the tools: all paths that the user named form one set of rules.

use std::io;
use std::path::{Path, PathBuf};

use ratelease_rules::{
    self as rules, Dotfiles, Endings, Faults as RuleFaults, Found, Options, ReadError,
    RuleLocations, Rules, Source,
};

use crate::out::{CliError, eprint_line};
use crate::safe::Safe;
use crate::settings::Reading;

/// The argument for standard input.
pub const STDIN: &str = "-";
/// The name of standard input in messages.
pub const STDIN_NAME: &str = "standard input";

/// Returns whether `path` stands for standard input. A file called `-` is written `./-`.
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == STDIN
}

/// Reads one file, or standard input.
pub fn read_file(path: &Path) -> Result<Source, CliError> {
    if is_stdin(path) {
        return Ok(rules::read_from(STDIN_NAME, io::stdin().lock())?);
    }
    let only = match path.is_dir() {
        true => None,
        false => rules::read_path(path, Dotfiles::Read, Endings::Any)?.sources.pop(),
    };
    only.ok_or_else(|| {
        CliError::new(format_args!(
            "{}: is a directory; name the files in it",
            Safe(path.display())
        ))
    })
}

/// Reads the rule files of all `paths`, which may include directories and standard input. The name
/// of each source is its path, relative to the current directory unless its argument is absolute.
/// Says on standard error what is left out.
pub fn read(paths: &[PathBuf], reading: &Reading) -> Result<Vec<Source>, CliError> {
    let Found { sources, left_out } = find(paths, reading)?;
    for (name, why) in left_out {
        eprint_line(format_args!("{}: {why}", Safe(name)));
    }
    Ok(sources)
}

/// As [`read`], and returns what is left out.
pub fn find(paths: &[PathBuf], reading: &Reading) -> Result<Found, CliError> {
    let Found { mut sources, mut left_out } = Found::default();
    for path in paths {
        if is_stdin(path) {
            sources.push(read_file(path)?);
        } else {
            let found = rules::read_path(path, reading.dotfiles, reading.endings)?;
            sources.extend(found.sources);
            left_out.extend(found.left_out);
        }
    }
    // A file that was named twice is read once.
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources.dedup_by(|a, b| a.name == b.name);
    if sources.is_empty() {
        let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(CliError::new(format_args!(
            "{}: no rule files; their names must end in .yaml or .yml",
            Safe(paths.join(", "))
        )));
    }
    left_out.sort();
    left_out.dedup();
    Ok(Found { sources, left_out })
}

/// Loads rules; any fault is an error.
pub fn load(paths: &[PathBuf], reading: &Reading) -> Result<Rules, CliError> {
    good(paths, reading, rules::load).map(|loaded| loaded.rules)
}

/// Like [`load`], and also returns where each rule is written.
pub fn load_with_locations(
    paths: &[PathBuf],
    reading: &Reading,
) -> Result<(Rules, RuleLocations), CliError> {
    let (loaded, places) = good(paths, reading, rules::load_with_locations)?;
    Ok((loaded.rules, places))
}

fn good<T>(
    paths: &[PathBuf],
    reading: &Reading,
    load: impl FnOnce(&[Source], Options) -> Result<T, RuleFaults>,
) -> Result<T, CliError> {
    let sources = read(paths, reading)?;
    load(&sources, reading.options.clone()).map_err(|faults| {
        CliError::new(format_args!(
            "the rules are faulty; `ratelease check` shows the places\n{}",
            Safe(faults)
        ))
    })
}

// === impl CliError ===

impl From<ReadError> for CliError {
    fn from(error: ReadError) -> Self {
        match error {
            // A server asks to create a missing path; a user has more likely mistyped it.
            ReadError::Missing(path) => Self::new(format_args!(
                "{}: does not exist, or is a link to nothing; name another path",
                Safe(path.display())
            )),
            other => Self::new(Safe(other)),
        }
    }
}
