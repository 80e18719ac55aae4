//! Files that a program watches while a test changes them: no reader sees a half-written file.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

/// Creates a directory with these files, by name and content.
pub(crate) fn dir_of(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("a written file");
    }
    dir
}

/// Creates or replaces a file atomically.
pub(crate) fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let path = path.as_ref();
    // Rule files whose name begins with a dot are not read.
    let passing = path.with_file_name(".passing");
    fs::write(&passing, bytes).expect("a written file");
    fs::rename(passing, path).expect("a renamed file");
}
