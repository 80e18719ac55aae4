//! Watches files and directories for changes. The watches are set again before each reading: a
//! directory may have been replaced by another one since.
//!
//! Uses nothing else of this crate; `rule_source` watches the rules with it, and `certificates` the
//! files of TLS.

pub(crate) mod timing;
mod watch_set;

use std::collections::HashMap;
use std::fs;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Instant;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tracing::warn;

use timing::Timing;
pub(crate) use watch_set::{DIRECTORIES_MAX, WatchSet};

/// Maximum number of times that the file system is scanned until two scans agree; if they never
/// agree, an event follows.
const SCANS_MAX: usize = 4;

/// Why files are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An event of the file system, or the start.
    Event,
    /// No event came for [`Timing::poll`].
    Poll,
}

/// Sends to `wake` on each relevant event. Without a watcher it reports nothing, and only the
/// periodic reading finds changes.
pub(crate) struct FsWatch {
    wake: SyncSender<()>,
    watcher: Option<RecommendedWatcher>,
    /// The paths that matter now; the event handler reads them.
    watch_set: Arc<Mutex<WatchSet>>,
    /// Each watched directory and its identity: another directory may have replaced it since.
    watched: HashMap<PathBuf, Identity>,
    /// The result of the last call of [`FsWatch::arm`], so that each error is logged once.
    last: Result<(), String>,
    /// Set by tests, to watch nothing.
    is_disabled: bool,
}

/// Returns why files are read again, after a wait for `wake` with this result. After an event it
/// returns once the change is complete. `None` if the watch is to end.
pub(crate) fn next_cause(
    waited: Result<(), RecvTimeoutError>,
    wake: &Receiver<()>,
    timing: Timing,
    is_stopping: &AtomicBool,
) -> Option<Cause> {
    let cause = match waited {
        Ok(()) => Cause::Event,
        Err(RecvTimeoutError::Timeout) => Cause::Poll,
        Err(RecvTimeoutError::Disconnected) => return None,
    };
    if cause == Cause::Event {
        settle(wake, timing, is_stopping);
    }
    Some(cause).filter(|_| !is_stopping.load(Ordering::Relaxed))
}

/// Waits until a change is complete: until no wake-up has come for the quiet time, at most the
/// longest time in all, or until `is_stopping`.
#[allow(clippy::disallowed_methods)] // the edge: the clock is used only for how long to wait
fn settle(wake: &Receiver<()>, timing: Timing, is_stopping: &AtomicBool) {
    let start = Instant::now();
    while !is_stopping.load(Ordering::Relaxed) {
        let left = timing.settle_max.saturating_sub(start.elapsed());
        if left.is_zero() || wake.recv_timeout(left.min(timing.quiet)).is_err() {
            return;
        }
    }
}

/// Device and inode.
type Identity = (u64, u64);

// === impl FsWatch ===

impl FsWatch {
    pub(crate) fn new(wake: SyncSender<()>) -> Self {
        Self {
            wake,
            watcher: None,
            watch_set: Arc::default(),
            watched: HashMap::new(),
            last: Ok(()),
            is_disabled: false,
        }
    }

    /// Creates a watch that reports no event.
    #[cfg(test)]
    pub(crate) fn disabled(wake: SyncSender<()>) -> Self {
        Self { is_disabled: true, ..Self::new(wake) }
    }

    /// Watches what `scan` finds now. Call this before reading, so that a later change is either
    /// read or sends a wake-up.
    ///
    /// For a poll that finds the watched directories in their places, nothing is set again: an idle
    /// pod makes few system calls. A watch that ended with a directory whose inode number another
    /// one got is then missed; a poll that finds a change must be followed by a call for an event.
    pub(crate) fn arm(&mut self, cause: Cause, scan: impl Fn() -> WatchSet) {
        if self.is_disabled {
            return;
        }
        // `notify` panics once its own thread has ended.
        let result =
            catch_unwind(AssertUnwindSafe(|| self.try_arm(cause, scan))).unwrap_or_else(|_| {
                // Dropping the watcher would panic as well.
                mem::forget(self.watcher.take());
                self.watched.clear();
                Err("the file watcher panicked".to_owned())
            });
        if let Err(error) = &result
            && result != self.last
        {
            warn!("{error}; changes are still found by reading every 30 s");
        }
        self.last = result;
    }

    fn try_arm(&mut self, cause: Cause, scan: impl Fn() -> WatchSet) -> Result<(), String> {
        self.open().map_err(|error| format!("the file watcher cannot start: {error}"))?;
        let mut result = self.last.clone();
        for attempt in 0..SCANS_MAX {
            let watch_set = scan();
            // A path that appeared after the first scan and before its watch was set has caused no
            // event, so a second scan has to find the same paths.
            let may_agree = attempt > 0 || cause == Cause::Poll;
            if may_agree && watch_set == *self.watch_set.lock() && self.is_watching(&watch_set) {
                break;
            }
            result = self.watch(watch_set);
        }
        result
    }

    fn open(&mut self) -> notify::Result<()> {
        if self.watcher.is_some() {
            return Ok(());
        }
        let (wake, watch_set) = (self.wake.clone(), Arc::clone(&self.watch_set));
        let handler = move |event: notify::Result<notify::Event>| {
            let is_relevant = match event {
                Ok(event) => watch_set.lock().is_relevant(&event),
                Err(error) => {
                    warn!("the file watcher reports an error: {error}; reading again");
                    true
                }
            };
            if is_relevant {
                // A pending wake-up serves for this event too.
                let _ = wake.try_send(());
            }
        };
        self.watcher = Some(notify::recommended_watcher(handler)?);
        Ok(())
    }

    fn is_watching(&self, watch_set: &WatchSet) -> bool {
        self.watched.len() == watch_set.directories.len()
            && self.watched.iter().all(|(path, &was)| identity(path) == Some(was))
    }

    /// Sets every watch again, even an existing one: it may have ended with a directory that was in
    /// the same place before, under the same inode number.
    fn watch(&mut self, watch_set: WatchSet) -> Result<(), String> {
        let Some(watcher) = &mut self.watcher else { return Ok(()) };
        self.watched.retain(|path, was| {
            let keep = watch_set.directories.contains(path) && identity(path) == Some(*was);
            if !keep {
                // The watch may have ended by itself.
                let _ = watcher.unwatch(path);
            }
            keep
        });
        let mut result = Ok(());
        if watch_set.is_truncated {
            result = Err(format!("there are more than {DIRECTORIES_MAX} directories to watch"));
        }
        *self.watch_set.lock() = watch_set.clone();
        for path in watch_set.directories {
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
