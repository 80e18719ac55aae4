//! A wall clock that a test sets while a process runs under it, by Debian's libfaketime.

use std::path::PathBuf;

use tempfile::TempDir;

/// What the clock of some processes says. Their monotonic clock stays true.
pub(crate) struct FakeClock {
    dir: TempDir,
}

// === impl FakeClock ===

impl FakeClock {
    /// A clock that tells the true time until it is set.
    pub(crate) fn new() -> Self {
        let clock = Self { dir: TempDir::new().expect("a temporary directory") };
        clock.set(0.0);
        clock
    }

    /// Ahead of the true time by so many seconds, or behind it, from now on.
    pub(crate) fn set(&self, ahead: f64) {
        let next = self.dir.path().join("next");
        std::fs::write(&next, format!("{ahead:+.3}")).expect("a written file");
        std::fs::rename(&next, self.file()).expect("a renamed file");
    }

    /// What puts a process under it.
    pub(crate) fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            // libc behind it: the allocator that Debian's Redis would use in its place asks for
            // the time before libfaketime can tell it.
            ("LD_PRELOAD", format!("{} libc.so.6", library().display())),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("clock")
    }
}

/// The one for programs with threads.
fn library() -> PathBuf {
    let places = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1"));
    found
        .find(|path| path.is_file())
        .expect("no libfaketime: run scripts/test, or apt-get install faketime")
}
