//! Reads the rule files of a directory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::compile::Source;
use crate::node::SOURCE_BYTES_MAX;

/// Maximum depth of nested directories.
const DIRECTORY_DEPTH_MAX: usize = 16;
/// Maximum number of directory entries that are looked at, rule files or not.
const ENTRIES_MAX: usize = 100_000;
/// Maximum number of rule files.
const FILES_MAX: usize = 10_000;
/// Maximum size of all rule files together, in bytes.
const FILES_BYTES_MAX: usize = 512 << 20;

/// The reason why rule files could not be read. Its message names the path and suggests a remedy.
#[derive(Debug, Error)]
pub enum ReadError {
    /// There is nothing at the path.
    #[error("{}: does not exist, or is a link to nothing; create it", .0.display())]
    Missing(PathBuf),
    /// A file stands where the directory should.
    #[error("{}: is not a directory; name the directory that holds the rule files", .0.display())]
    NotADirectory(PathBuf),
    /// This process has no permission to read the path.
    #[error("{}: permission denied; let the user of this process read it", .0.display())]
    Denied(PathBuf),
    /// Directories are nested more than 16 deep.
    #[error("{}: lies deeper than {DIRECTORY_DEPTH_MAX} directories; move it up", .0.display())]
    TooDeep(PathBuf),
    /// More than 10 000 rule files, 100 000 names, or 512 MiB.
    #[error("{}: holds more than {what}; move what is not rules elsewhere", path.display())]
    TooLarge {
        /// The directory that was to be read.
        path: PathBuf,
        /// The ceiling that was exceeded.
        what: String,
    },
    /// Any other I/O error.
    #[error("{}: cannot be read: {error}", path.display())]
    Io {
        /// The path that was being read.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
}

/// The endings of names that make a file a rule file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endings {
    /// `.yaml` and `.yml`.
    Yaml,
    /// All endings, as for the reference.
    Any,
}

/// The contents of a directory.
#[derive(Debug, Default)]
pub struct Found {
    /// The rule files, in order of their names.
    pub sources: Vec<Source>,
    /// Files that are not loaded though their author may have meant them to be: the path below the
    /// directory, and the reason. At most 100.
    pub left_out: Vec<(String, &'static str)>,
}

/// The treatment of files and directories whose name begins with a dot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dotfiles {
    /// They are read like others.
    Read,
    /// They are left out.
    Skip,
}

/// Maximum number of files whose reason for not being loaded is reported.
const LEFT_OUT_MAX: usize = 100;
/// Reason for a file that is not loaded because of its name.
const OTHER_ENDING: &str =
    "is not loaded: the names of rule files end in .yaml or .yml; rename it, or move it elsewhere";
/// Reason for a link that leads nowhere.
const DANGLING: &str = "is a link to nothing, or to itself, and is not loaded; remove it";
/// Reason for a link that leads back.
const LOOP: &str = "leads back to a directory above it, and is not followed; remove the link";

/// Reads every rule file under `dir`, in order of its path below `dir`, which becomes its name.
/// Follows symlinks; those that lead nowhere, or back, are left out. Skips names that start with
/// `..`, which Kubernetes uses for its own entries, and, with [`Dotfiles::Skip`], all names that
/// start with `.`. Of a file that is too large to load, reads only one byte more than the maximum.
///
/// # Errors
/// The first path that cannot be read, or the ceiling that was exceeded. Finding no file is not an
/// error.
pub fn read_directory(
    dir: &Path,
    dotfiles: Dotfiles,
    endings: Endings,
) -> Result<Found, ReadError> {
    let files = Vec::new();
    let left_out = Vec::new();
    let mut walk = Walk { dir, dotfiles, endings, above: Vec::new(), entries: 0, files, left_out };
    walk.directory(dir, "")?;
    let Walk { mut files, mut left_out, .. } = walk;
    files.sort();
    left_out.sort();
    left_out.truncate(LEFT_OUT_MAX);
    let mut bytes = 0;
    let mut sources = Vec::with_capacity(files.len());
    for (name, path) in files {
        let text = read_file(&path).map_err(|error| ReadError::at(&path, error))?;
        bytes += text.len();
        if bytes > FILES_BYTES_MAX {
            return Err(too_large(dir, format!("{} MiB of rules", FILES_BYTES_MAX >> 20)));
        }
        sources.push(Source { name, text });
    }
    Ok(Found { sources, left_out })
}

/// Reads the path that a user named: the rule files of a directory, as [`read_directory`] does, or
/// one file of any name. The name of each source is the path of its file, relative to the current
/// directory unless `path` is absolute.
///
/// # Errors
/// As [`read_directory`].
pub fn read_path(path: &Path, dotfiles: Dotfiles, endings: Endings) -> Result<Found, ReadError> {
    let metadata = fs::metadata(path).map_err(|error| ReadError::at(path, error))?;
    if metadata.is_dir() {
        let mut found = read_directory(path, dotfiles, endings)?;
        let sources = found.sources.iter_mut().map(|source| &mut source.name);
        for name in sources.chain(found.left_out.iter_mut().map(|(name, _)| name)) {
            *name = path.join(&*name).to_string_lossy().into_owned();
        }
        return Ok(found);
    }
    let text = read_file(path).map_err(|error| ReadError::at(path, error))?;
    let sources = vec![Source { name: path.to_string_lossy().into_owned(), text }];
    Ok(Found { sources, ..Found::default() })
}

/// Reads `from` to its end and returns it as a source called `name`. Of a text that is too large to
/// load, reads only one byte more than the maximum.
///
/// # Errors
/// `from` cannot be read.
pub fn read_from(name: &str, from: impl Read) -> Result<Source, ReadError> {
    let text = read_text(from).map_err(|error| ReadError::at(Path::new(name), error))?;
    Ok(Source { name: name.to_owned(), text })
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    read_text(File::open(path)?)
}

fn read_text(from: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(SOURCE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(text)
}

fn too_large(dir: &Path, what: String) -> ReadError {
    ReadError::TooLarge { path: dir.to_owned(), what }
}

struct Walk<'a> {
    dir: &'a Path,
    dotfiles: Dotfiles,
    endings: Endings,
    /// Device and inode of the enclosing directories, outermost first.
    above: Vec<(u64, u64)>,
    entries: usize,
    /// Name and path of each file found.
    files: Vec<(String, PathBuf)>,
    left_out: Vec<(String, &'static str)>,
}

// === impl Walk ===

impl Walk<'_> {
    /// Collects the files under `path`; their names start with `prefix`.
    fn directory(&mut self, path: &Path, prefix: &str) -> Result<(), ReadError> {
        let metadata = fs::metadata(path).map_err(|error| ReadError::at(path, error))?;
        let identity = (metadata.dev(), metadata.ino());
        if self.above.contains(&identity) {
            self.left_out.push((prefix.trim_end_matches('/').to_owned(), LOOP));
            return Ok(());
        }
        if self.above.len() == DIRECTORY_DEPTH_MAX {
            return Err(ReadError::TooDeep(path.to_owned()));
        }
        self.above.push(identity);
        for entry in fs::read_dir(path).map_err(|error| ReadError::at(path, error))? {
            let entry = entry.map_err(|error| ReadError::at(path, error))?;
            self.entry(&entry.path(), &entry.file_name().to_string_lossy(), prefix)?;
        }
        self.above.pop();
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &str, prefix: &str) -> Result<(), ReadError> {
        self.entries += 1;
        if self.entries > ENTRIES_MAX {
            return Err(too_large(self.dir, format!("{ENTRIES_MAX} names")));
        }
        if name.starts_with("..") || (self.dotfiles == Dotfiles::Skip && name.starts_with('.')) {
            return Ok(());
        }
        let is_rules =
            self.endings == Endings::Any || name.ends_with(".yaml") || name.ends_with(".yml");
        // Documentation beside rules is not meant to be loaded.
        let is_odd = !is_rules && !name.ends_with(".md");
        let name = format!("{prefix}{name}");
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => return self.unreadable(path, name, is_rules, error),
        };
        if metadata.is_dir() {
            return self.directory(path, &format!("{name}/"));
        }
        if metadata.is_file() && is_odd {
            self.left_out.push((name, OTHER_ENDING));
        } else if metadata.is_file() && is_rules {
            if self.files.len() == FILES_MAX {
                return Err(too_large(self.dir, format!("{FILES_MAX} rule files")));
            }
            self.files.push((name, path.to_owned()));
        }
        Ok(())
    }

    /// Leaves out a link that leads nowhere, and a file that was removed meanwhile.
    fn unreadable(
        &mut self,
        path: &Path,
        name: String,
        is_rules: bool,
        error: io::Error,
    ) -> Result<(), ReadError> {
        match fs::symlink_metadata(path) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(it) if it.is_symlink() && error.kind() != io::ErrorKind::PermissionDenied => {
                self.left_out.push((name, DANGLING));
                Ok(())
            }
            _ if is_rules => Err(ReadError::at(path, error)),
            _ => Ok(()),
        }
    }
}

// === impl ReadError ===

impl ReadError {
    fn at(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => ReadError::Missing(path),
            io::ErrorKind::NotADirectory => ReadError::NotADirectory(path),
            io::ErrorKind::PermissionDenied => ReadError::Denied(path),
            _ => ReadError::Io { path, error },
        }
    }
}

#[cfg(test)]
mod tests;
