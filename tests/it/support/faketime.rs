//! A wall clock that a test sets while a process runs under it, by Debian's libfaketime.

use std::path::PathBuf;

use tempfile::TempDir;

/// The wall clock of some processes. Their monotonic clock stays true.
pub(crate) struct FakeClock {
    dir: TempDir,
}

// === impl FakeClock ===

impl FakeClock {
    /// A clock with the true time until it is set.
    pub(crate) fn new() -> Self {
        let clock = Self { dir: TempDir::new().expect("a temporary directory") };
        clock.set(0.0);
        clock
    }

    /// Sets the clock this many seconds ahead of the true time, or behind it if negative.
    pub(crate) fn set(&self, ahead: f64) {
        let next = self.dir.path().join("next");
        std::fs::write(&next, format!("{ahead:+.3}")).expect("a written file");
        std::fs::rename(&next, self.file()).expect("a renamed file");
    }

    /// The environment that puts a process under the clock.
    pub(crate) fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            // libc comes after it: the allocator of Debian's Redis, which would otherwise be found
            // first, asks for the time before libfaketime can provide it.
            ("LD_PRELOAD", format!("{} libc.so.6", library().display())),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }

    /// The same, but the monotonic clock is set too: on a suspended machine it stands still.
    #[allow(dead_code)] // not all of the test binaries suspend a machine
    pub(crate) fn env_of_both(&self) -> Vec<(&'static str, String)> {
        let both = |(name, _): &(&str, String)| !name.ends_with("DONT_FAKE_MONOTONIC");
        self.env().into_iter().filter(both).collect()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("clock")
    }
}

/// The library for programs with threads.
fn library() -> PathBuf {
    let places = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = places.map(|place| place.path().join("faketime/libfaketimeMT.so.1"));
    found
        .find(|path| path.is_file())
        .expect("no libfaketime: run scripts/test, or apt-get install faketime")
}
