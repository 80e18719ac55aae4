//! What is wrong with a file.

use std::fmt;
use std::path::{Path, PathBuf};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// Our own certificate, followed by its intermediates.
    Certificate,
    /// The private key of that certificate.
    Key,
    /// The certificates that those of the other side must descend from.
    Roots,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// What it is for.
    pub role: FileRole,
    /// Its path, as given; `None` for the roots of the system.
    pub path: Option<PathBuf>,
    /// What is wrong, phrased to follow the words "the file". Quotes nothing of the file.
    pub problem: String,
}

/// The files that cannot be used, of all that one configuration needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileFaults(Vec<FileFault>);

// === impl FileFaults ===

impl FileFaults {
    /// Adds a fault of a file if reading it failed.
    pub(crate) fn note<T>(
        &mut self,
        read: Result<T, String>,
        role: FileRole,
        path: Option<&Path>,
    ) -> Option<T> {
        let add =
            |problem| self.0.push(FileFault { role, path: path.map(Path::to_owned), problem });
        read.map_err(add).ok()
    }
}

/// One line.
impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, fault) in self.0.iter().enumerate() {
            let separator = if nth == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileFaults {}

impl IntoIterator for FileFaults {
    type Item = FileFault;
    type IntoIter = std::vec::IntoIter<FileFault>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

// === impl FileFault ===

/// A line that names the file.
impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "the file {} {}", path.display(), self.problem),
            None => f.write_str(&self.problem),
        }
    }
}
