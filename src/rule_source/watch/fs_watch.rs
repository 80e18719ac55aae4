//! The file system watches: set anew before each load, since the load may find other directories.

use std::collections::HashMap;
use std::fs;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tracing::warn;

use super::WatchPaths;
use super::watch_paths::{DIRECTORIES_MAX, Places};

/// Maximum number of times that the file system is scanned until two scans agree; if they never
/// agree, an event follows.
const LOOKS_MAX: usize = 4;

/// Rings `bell` on each relevant event. Without a watcher it reports nothing, and only the periodic
/// reading finds changes.
pub(super) struct FsWatch {
    bell: SyncSender<()>,
    watcher: Option<RecommendedWatcher>,
    /// The places that matter now; the event handler reads them.
    places: Arc<Mutex<Places>>,
    /// Each watched directory and its identity: another directory may have replaced it since.
    watched: HashMap<PathBuf, Identity>,
    /// The last error logged, so that each is logged once.
    trouble: String,
    /// Set by tests, to watch nothing.
    is_shut: bool,
}

/// Device and inode.
type Identity = (u64, u64);

// === impl FsWatch ===

impl FsWatch {
    pub(super) fn new(bell: SyncSender<()>) -> Self {
        Self {
            bell,
            watcher: None,
            places: Arc::default(),
            watched: HashMap::new(),
            trouble: String::new(),
            is_shut: false,
        }
    }

    /// Creates eyes that report no event.
    #[cfg(test)]
    pub(super) fn shut(bell: SyncSender<()>) -> Self {
        Self { is_shut: true, ..Self::new(bell) }
    }

    /// Watches the places that exist now. Call this before reading, so that a later change is
    /// either read or rings the bell.
    pub(super) fn arm(&mut self, paths: &WatchPaths) {
        if self.is_shut {
            return;
        }
        // `notify` panics once its own thread has ended.
        let trouble = catch_unwind(AssertUnwindSafe(|| self.try_arm(paths))).unwrap_or_else(|_| {
            // Dropping the watcher would panic as well.
            mem::forget(self.watcher.take());
            self.watched.clear();
            Err("the file watcher panicked".to_owned())
        });
        let trouble = trouble.err().unwrap_or_default();
        if !trouble.is_empty() && trouble != self.trouble {
            warn!("{trouble}; changes that go unseen are found when the rules are read again");
        }
        self.trouble = trouble;
    }

    fn try_arm(&mut self, paths: &WatchPaths) -> Result<(), String> {
        self.open().map_err(|error| format!("the file watcher cannot start: {error}"))?;
        let mut result = Ok(());
        for look in 0..LOOKS_MAX {
            let places = Places::look(&paths.dir, paths.root.as_deref());
            // A place that appeared after the first scan and before its watch was set has caused no
            // event, so a second scan has to find the same places.
            if look > 0 && places == *self.places.lock() && self.is_watching(&places) {
                break;
            }
            result = self.watch(places);
        }
        result
    }

    fn open(&mut self) -> notify::Result<()> {
        if self.watcher.is_some() {
            return Ok(());
        }
        let (bell, places) = (self.bell.clone(), Arc::clone(&self.places));
        let handler = move |event: notify::Result<notify::Event>| {
            let is_concern = match event {
                Ok(event) => places.lock().concern(&event),
                Err(error) => {
                    warn!("the file watcher reports an error: {error}; reading the rules again");
                    true
                }
            };
            if is_concern {
                // A bell that has rung already need not ring again.
                let _ = bell.try_send(());
            }
        };
        self.watcher = Some(notify::recommended_watcher(handler)?);
        Ok(())
    }

    fn is_watching(&self, places: &Places) -> bool {
        self.watched.len() == places.directories.len()
            && self.watched.iter().all(|(path, &was)| identity(path) == Some(was))
    }

    /// Sets every watch again, even an existing one: it may have ended with a directory that was in
    /// the same place before, under the same inode number.
    fn watch(&mut self, places: Places) -> Result<(), String> {
        let Some(watcher) = &mut self.watcher else { return Ok(()) };
        self.watched.retain(|path, was| {
            let keep = places.directories.contains(path) && identity(path) == Some(*was);
            if !keep {
                // The watch may have ended by itself.
                let _ = watcher.unwatch(path);
            }
            keep
        });
        let mut result = Ok(());
        if places.is_cut {
            result = Err(format!("there are more than {DIRECTORIES_MAX} directories to watch"));
        }
        *self.places.lock() = places.clone();
        for path in places.directories {
            let Some(identity) = identity(&path) else { continue };
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path, identity);
                }
                Err(error) => result = Err(format!("cannot watch {}: {error}", path.display())),
            }
        }
        result
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}
