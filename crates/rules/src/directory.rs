//! Reads the rule files of a directory.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::source::Source;
use crate::text::SOURCE_BYTES_MAX;

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
    /// A symlink leads back to a directory that contains it.
    #[error("{}: leads back to a directory above it; remove the link", .0.display())]
    Loop(PathBuf),
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

/// What becomes of files and directories whose name begins with a dot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dotfiles {
    /// They are read like others.
    Read,
    /// They are left out.
    Skip,
}

/// Reads every `*.yaml` and `*.yml` file under `dir`, in order of its path below `dir`, which
/// becomes its name. Follows symlinks. Skips names that start with `..`, which Kubernetes uses for
/// its own entries, and, with [`Dotfiles::Skip`], all names that start with `.`. Of a file that is
/// too large to load, reads only one byte more than the maximum.
///
/// # Errors
/// The first path that cannot be read, or the ceiling that was exceeded. Finding no file is not an
/// error.
pub fn read_directory(dir: &Path, dotfiles: Dotfiles) -> Result<Vec<Source>, ReadError> {
    let mut walk = Walk { dir, dotfiles, above: Vec::new(), entries: 0, files: Vec::new() };
    walk.directory(dir, "")?;
    let Walk { mut files, .. } = walk;
    files.sort();
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
    Ok(sources)
}

/// Reads the path that a user named: the rule files of a directory, as [`read_directory`] does, or
/// one file of any name. The name of each source is the path of its file, relative to the current
/// directory unless `path` is absolute.
///
/// # Errors
/// As [`read_directory`].
pub fn read_path(path: &Path, dotfiles: Dotfiles) -> Result<Vec<Source>, ReadError> {
    let metadata = fs::metadata(path).map_err(|error| ReadError::at(path, error))?;
    if metadata.is_dir() {
        let mut sources = read_directory(path, dotfiles)?;
        for source in &mut sources {
            source.name = path.join(&source.name).to_string_lossy().into_owned();
        }
        return Ok(sources);
    }
    let text = read_file(path).map_err(|error| ReadError::at(path, error))?;
    Ok(vec![Source { name: path.to_string_lossy().into_owned(), text }])
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
    /// Device and inode of the enclosing directories, outermost first.
    above: Vec<(u64, u64)>,
    entries: usize,
    /// Name and path of each file found.
    files: Vec<(String, PathBuf)>,
}

// === impl Walk ===

impl Walk<'_> {
    /// Collects the files under `path`; their names start with `prefix`.
    fn directory(&mut self, path: &Path, prefix: &str) -> Result<(), ReadError> {
        let metadata = fs::metadata(path).map_err(|error| ReadError::at(path, error))?;
        let identity = (metadata.dev(), metadata.ino());
        if self.above.contains(&identity) {
            return Err(ReadError::Loop(path.to_owned()));
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
        let is_rules = name.ends_with(".yaml") || name.ends_with(".yml");
        let kind = match fs::metadata(path) {
            Ok(metadata) => Some(metadata).filter(|m: &Metadata| m.is_dir() || m.is_file()),
            // A dangling link, or a file that was removed meanwhile. It matters only for a rule
            // file.
            Err(_) if !is_rules => None,
            Err(error) => return Err(ReadError::at(path, error)),
        };
        let name = format!("{prefix}{name}");
        match kind {
            Some(metadata) if metadata.is_dir() => self.directory(path, &format!("{name}/")),
            Some(_) if is_rules && self.files.len() == FILES_MAX => {
                Err(too_large(self.dir, format!("{FILES_MAX} rule files")))
            }
            Some(_) if is_rules => {
                self.files.push((name, path.to_owned()));
                Ok(())
            }
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
