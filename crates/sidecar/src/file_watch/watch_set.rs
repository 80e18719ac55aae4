//! Finds the directories to watch so that no change of a file is missed.
//!
//! Only directories are watched, never files: a watch on a file stays on that file when another
//! replaces it, and then reports nothing more. The way to a file is walked link by link, since each
//! link on it may be swapped: the event comes from the directory that contains the link.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use notify::{Event, EventKind};

/// Maximum number of watched directories. Changes in others are found by the periodic reading.
pub(crate) const DIRECTORIES_MAX: usize = 256;
/// Maximum number of entries of a directory that are checked for links and directories.
const ENTRIES_MAX: usize = 20_000;
/// Maximum number of links on one path, the same as in Linux.
const LINKS_MAX: usize = 40;

/// What to watch, found by one scan of the file system. Paths are canonical.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WatchSet {
    /// Every directory to watch.
    pub(crate) directories: BTreeSet<PathBuf>,
    /// Watched directories in which every entry matters: one that is watched as a whole, and those
    /// below it.
    whole: HashSet<PathBuf>,
    /// Names that matter in the other directories: links, targets of links, and missing names.
    names: HashSet<PathBuf>,
    /// Some directories were left out because of the maximum.
    pub(crate) is_truncated: bool,
}

// === impl WatchSet ===

impl WatchSet {
    /// Finds the places to watch for changes in and below `dir`; if `root` is given, that path and
    /// each directory from it down to `dir` may also be replaced. Both are absolute.
    pub(crate) fn directory(dir: &Path, root: Option<&Path>) -> Self {
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
    pub(crate) fn files<'p>(files: impl Iterator<Item = &'p Path>) -> Self {
        let mut watch_set = Self::default();
        for file in files {
            watch_set.add_entry(file);
            watch_set.add_target(file);
        }
        watch_set
    }

    /// Whether `event` may mean that a file changed. Reading a file is an event as well, and
    /// does not.
    pub(crate) fn is_relevant(&self, event: &Event) -> bool {
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
