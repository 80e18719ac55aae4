//! Watches files and directories for changes. The watches are set again before each reading: a
//! directory may have been replaced by another one since.
//!
//! Uses nothing else of this crate; `rule_source` watches the rules with it, and `certificates` the
//! files of TLS.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};
use std::{fs, io, mem};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tracing::warn;

/// Maximum number of times that the file system is scanned until two scans agree; if they never
/// agree, an event follows.
const SCANS_MAX: usize = 4;

/// Why files are read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// An event of the file system, or the start.
    Event,
    /// No event came for [`Timing::poll`].
    Poll,
}

/// Sends to `wake` on each relevant event. Without a watcher it reports nothing, and only the
/// periodic reading finds changes.
pub struct FsWatch {
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
pub fn next_cause(
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
    pub fn new(wake: SyncSender<()>) -> Self {
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
    pub fn disabled(wake: SyncSender<()>) -> Self {
        Self { is_disabled: true, ..Self::new(wake) }
    }

    /// Watches what `scan` finds now. Call this before reading, so that a later change is either
    /// read or sends a wake-up.
    ///
    /// For a poll that finds the watched directories in their places, nothing is set again: an idle
    /// pod makes few system calls. A watch that ended with a directory whose inode number another
    /// one got is then missed; a poll that finds a change must be followed by a call for an event.
    pub fn arm(&mut self, cause: Cause, scan: impl Fn() -> WatchSet) {
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
        let wake = self.wake.clone();
        let watch_set = Arc::clone(&self.watch_set);
        let handler = move |event: notify::Result<Event>| {
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

// When files are read again. Used by the watch of the rules and by that of the certificate.

/// A change is complete once there has been no event for this long. Writing a file causes several
/// events, and a certificate and its key may be written one after the other.
const QUIET: Duration = Duration::from_millis(200);
/// If events do not stop, the files are read after this long. A change is in force within 1 s.
const SETTLE_MAX: Duration = Duration::from_millis(600);
/// The files are read at least this often: network file systems send no events, and a kernel whose
/// queue overflows drops some.
const POLL: Duration = Duration::from_secs(30);

/// For files.
pub const WATCHED: Timing = Timing { quiet: QUIET, settle_max: SETTLE_MAX, poll: POLL };
/// For rules that a server sends. Each set comes with one wake-up, and its sender waits for the
/// outcome.
pub const PUSHED: Timing =
    Timing { quiet: Duration::ZERO, settle_max: Duration::ZERO, poll: Duration::MAX };

const _: () = assert!(QUIET.as_millis() < SETTLE_MAX.as_millis());

/// The timing of readings.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Without an event for this long, a change is complete.
    pub quiet: Duration,
    /// However many events there are, no reading waits longer.
    pub settle_max: Duration,
    /// Without an event, the next reading comes after this long.
    pub poll: Duration,
}

// Finds the directories to watch so that no change of a file is missed.
//
// Only directories are watched, never files: a watch on a file stays on that file when another
// replaces it, and then reports nothing more. The way to a file is walked link by link, since each
// link on it may be swapped: the event comes from the directory that contains the link.

/// Maximum number of watched directories. Changes in others are found by the periodic reading.
pub const DIRECTORIES_MAX: usize = 256;
/// Maximum number of entries of a directory that are checked for links and directories.
const ENTRIES_MAX: usize = 20_000;
/// Maximum number of links on one path, the same as in Linux.
const LINKS_MAX: usize = 40;

/// What to watch, found by one scan of the file system. Paths are canonical.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchSet {
    /// Every directory to watch.
    pub directories: BTreeSet<PathBuf>,
    /// Watched directories in which every entry matters: one that is watched as a whole, and those
    /// below it.
    whole: HashSet<PathBuf>,
    /// Names that matter in the other directories: links, targets of links, and missing names.
    names: HashSet<PathBuf>,
    /// Some directories were left out because of the maximum.
    pub is_truncated: bool,
}

// === impl WatchSet ===

impl WatchSet {
    /// Finds the places to watch for changes in and below `dir`; if `root` is given, that path and
    /// each directory from it down to `dir` may also be replaced. Both are absolute.
    pub fn directory(dir: &Path, root: Option<&Path>) -> Self {
        let mut watch_set = Self::default();
        if let Some(root) = root {
            for part in dir.ancestors().filter(|part| part.starts_with(root)) {
                watch_set.add_entry(part);
            }
        }
        watch_set.add_entry(dir);
        if let Some(dir) = watch_set.follow(dir) {
            watch_set.add_tree(dir);
        }
        watch_set
    }

    /// Finds the places to watch for changes of each of `files`, by their absolute paths.
    pub fn files<'p>(files: impl Iterator<Item = &'p Path>) -> Self {
        let mut watch_set = Self::default();
        for file in files {
            watch_set.add_entry(file);
            watch_set.add_target(file);
        }
        watch_set
    }

    /// Whether `event` may mean that a file changed. Reading a file is an event as well, and
    /// does not.
    pub fn is_relevant(&self, event: &Event) -> bool {
        !matches!(event.kind, EventKind::Access(_))
            && (event.need_rescan() || event.paths.is_empty() || self.is_any_relevant(&event.paths))
    }

    fn is_any_relevant(&self, paths: &[PathBuf]) -> bool {
        paths.iter().any(|path| {
            self.names.contains(path)
                // A watched directory itself was removed or moved away.
                || self.directories.contains(path)
                || path.parent().is_some_and(|parent| self.whole.contains(parent))
        })
    }

    /// Watches for a replacement of `path`.
    fn add_entry(&mut self, path: &Path) {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
        if let Some(parent) = self.follow(parent) {
            self.add_name(&parent, &parent.join(name));
        }
    }

    fn add_name(&mut self, parent: &Path, path: &Path) {
        if self.add_directory(parent) {
            self.names.insert(path.to_owned());
        }
    }

    fn add_directory(&mut self, path: &Path) -> bool {
        if self.directories.contains(path) {
            return true;
        }
        let has_room = self.directories.len() < DIRECTORIES_MAX;
        if has_room {
            self.directories.insert(path.to_owned());
        }
        self.is_truncated |= !has_room;
        has_room
    }

    /// Walks to `path` and returns its target, without links. Watches each link on the way, and the
    /// first name that is missing.
    fn follow(&mut self, path: &Path) -> Option<PathBuf> {
        let mut place = PathBuf::from("/");
        let mut ahead = steps(path);
        let mut links = 0;
        while let Some(step) = ahead.pop() {
            if step == ".." {
                place.pop();
                continue;
            }
            let next = place.join(&step);
            let is_link = match fs::symlink_metadata(&next) {
                Ok(meta) => meta.file_type().is_symlink(),
                Err(error) => {
                    if error.kind() == io::ErrorKind::NotFound {
                        self.add_name(&place, &next);
                    }
                    return None;
                }
            };
            if !is_link {
                place = next;
                continue;
            }
            self.add_name(&place, &next);
            links += 1;
            let target = fs::read_link(&next).ok().filter(|_| links <= LINKS_MAX)?;
            if target.is_absolute() {
                place = PathBuf::from("/");
            }
            ahead.extend(steps(&target));
        }
        Some(place)
    }

    /// Everything in and below `dir` matters, and so do the targets of the links there.
    fn add_tree(&mut self, dir: PathBuf) {
        let mut ahead = vec![dir];
        let mut entries = 0;
        while let Some(dir) = ahead.pop() {
            if self.whole.contains(&dir) || !self.add_directory(&dir) {
                continue;
            }
            let listing = fs::read_dir(&dir);
            self.whole.insert(dir);
            for entry in listing.into_iter().flatten().flatten() {
                entries += 1;
                if entries > ENTRIES_MAX {
                    self.is_truncated = true;
                    return;
                }
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    ahead.push(entry.path());
                } else if kind.is_symlink() {
                    ahead.extend(self.add_target(&entry.path()));
                }
            }
        }
    }

    /// Watches the target of a path: returns a directory; for a file, watches the directory that
    /// holds the file.
    fn add_target(&mut self, path: &Path) -> Option<PathBuf> {
        let end = self.follow(path)?;
        if end.is_dir() {
            return Some(end);
        }
        self.add_name(end.parent()?, &end);
        None
    }
}

/// The components of a path in reverse: the first one is last. An absolute path includes the root.
fn steps(path: &Path) -> Vec<OsString> {
    let steps = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    steps.collect()
}
