//! The last good rules, kept in a file: a process uses them at its start when its source has no
//! usable rules. The file also holds the number of pods of each domain.
//!
//! The file is replaced as a whole. Its rules are used only if they are intact: a line
//! `ratelease-rules 2 <BLAKE3> <bytes>`, then for each source the length of its name, the name, the
//! length of its text and the text; lengths are eight bytes, little-endian. The file holds sources
//! rather than compiled rules, so that it does not depend on where they came from or on the
//! program's data structures. The pod counts follow after that many bytes and are used only if they
//! are intact: a line `ratelease-pods <BLAKE3>`, then for each domain the length of its name, the
//! name, and its pods as four bytes. Format 1 has no counts, and no number of bytes in its first
//! line.

mod format;
mod pods;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::Source;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tracing::{error, info};

use format::SnapshotContent;
pub(super) use format::digest;
pub use pods::{DOMAINS_MAX, Pods};
use ratelease_server::metrics::counter::{Count, Counter};

/// Maximum size of a snapshot in bytes: some 600 000 rules. A larger snapshot is not written.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

/// Interval between attempts to write a snapshot that could not be written.
const RETRY_PAUSE: Duration = Duration::from_secs(30);

/// Keeps the last good rules in a file.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    pending: Mutex<Pending>,
    wake: Notify,
    written: AtomicU64,
    failed: AtomicU64,
}

/// The sources of a set.
type SharedSources = Arc<Vec<Arc<Source>>>;

/// Data to be written. Newer data replaces it, so that a disk that hangs delays nothing else.
#[derive(Debug, Default)]
struct Pending {
    /// `None` if the sources in the file are to stay.
    sources: Option<SharedSources>,
    /// The latest counts, written or not.
    pods: Arc<Pods>,
    has_new_pods: bool,
}

/// The data of one write.
#[derive(Debug, Clone)]
struct PendingWrite {
    sources: Option<SharedSources>,
    pods: Arc<Pods>,
}

/// Why there is no snapshot to use, or why one was not written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// There is no file.
    #[error("the file does not exist yet; it is written once good rules are loaded")]
    Missing,
    /// The file cannot be read.
    #[error("the file cannot be read: {0}; allow the user of this process to read it")]
    Unreadable(io::Error),
    /// The file cannot be written.
    #[error(
        "the file cannot be written: {0}; free disk space, and allow the user of this process to \
         write there"
    )]
    Unwritable(io::Error),
    /// The snapshot is larger than [`SNAPSHOT_BYTES_MAX`].
    #[error("the snapshot is larger than {} MiB; choose another file", SNAPSHOT_BYTES_MAX >> 20)]
    TooLarge,
    /// The file is not a snapshot.
    #[error("the file is not a snapshot of rules; choose another file")]
    NotASnapshot,
    /// The file was written in a newer format.
    #[error("the file has format {0}, and this version knows formats up to {1} only; remove it")]
    UnknownFormat(u64, u64),
    /// The content does not match its hash.
    #[error("the file is damaged or truncated; remove it")]
    Damaged,
}

// === impl Snapshot ===

impl Snapshot {
    /// Creates a snapshot at `path`; the file need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        let (written, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { path, pending: Mutex::default(), wake: Notify::new(), written, failed }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the rules that were last written. Blocks.
    ///
    /// # Errors
    ///
    /// Fails if there is no file, or none that is intact.
    pub fn read(&self) -> Result<Vec<Source>, SnapshotError> {
        Ok(self.read_all()?.sources)
    }

    fn read_all(&self) -> Result<SnapshotContent, SnapshotError> {
        let metadata = fs::metadata(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => SnapshotError::Missing,
            _ => SnapshotError::Unreadable(error),
        })?;
        if !metadata.is_file() {
            return Err(SnapshotError::NotASnapshot); // opening a pipe might block without end
        }
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(SnapshotError::Unreadable)?;
        let mut file = file.take(SNAPSHOT_BYTES_MAX as u64 + 1);
        file.read_to_end(&mut bytes).map_err(SnapshotError::Unreadable)?;
        if bytes.len() > SNAPSHOT_BYTES_MAX {
            return Err(SnapshotError::TooLarge);
        }
        format::decode(&bytes)
    }

    /// Sets `sources` as the rules to be written from now on; [`Snapshot::run`] writes them. Never
    /// waits.
    pub fn set_sources(&self, sources: Vec<Arc<Source>>) {
        self.pending.lock().sources = Some(Arc::new(sources));
        self.wake.notify_one();
    }

    /// Writes new data whenever there is any; never returns. A failed write is logged once, and
    /// tried again.
    pub async fn run(self: Arc<Self>) {
        let mut last_error = String::new();
        loop {
            let next = self.pending.lock().take();
            let Some(next) = next else {
                self.wake.notified().await;
                continue;
            };
            let (writer, writes) = (Arc::clone(&self), next.clone());
            let written = spawn_blocking(move || writer.write(&writes)).await;
            let error = match written.map(|written| written.map_err(|error| error.to_string())) {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => error,
                Err(error) => error.to_string(),
            };
            self.log_change(&mut last_error, &error);
            if error.is_empty() {
                self.written.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.pending.lock().put_back(next);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Event counts since the process began.
    pub fn counts(&self) -> Vec<Count> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            (Counter::SnapshotsWritten, read(&self.written)),
            (Counter::SnapshotFailures, read(&self.failed)),
        ]
    }

    /// Logs an error once, and once that it is over.
    fn log_change(&self, last_error: &mut String, error: &str) {
        let path = self.path.display();
        if error.is_empty() && !last_error.is_empty() {
            info!("the snapshot of the rules is written again: {path}");
        } else if error != last_error {
            error!("the rules are in force, but not kept as a snapshot: {path}: {error}");
        }
        error.clone_into(last_error);
    }

    /// Replaces the file with `next`, completely or not at all. Counts need rules: without a file
    /// there is nothing to add them to, and they wait for the next rules.
    fn write(&self, next: &PendingWrite) -> Result<(), SnapshotError> {
        let bytes = match &next.sources {
            Some(sources) => format::encode(sources, &next.pods)?,
            None => match self.read_all() {
                Ok(kept) => format::encode(&kept.sources, &next.pods)?,
                Err(SnapshotError::Missing) => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        let temporary = self.temporary();
        let replaced = self.replace(&temporary, &bytes);
        if replaced.is_err() {
            // The temporary file may not exist; if it does, it is of no use.
            let _ = fs::remove_file(&temporary);
        }
        replaced.map_err(SnapshotError::Unwritable)
    }

    fn replace(&self, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = fs::remove_file(temporary)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        // Does not follow a link that someone else has put there.
        let mut file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(temporary, &self.path)?;
        // The new name is permanent once the directory is synced too.
        match self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => File::open(parent)?.sync_all(),
            None => File::open(".")?.sync_all(),
        }
    }

    /// In the same directory as the snapshot, so that one rename replaces it; its name is unique to
    /// this process.
    fn temporary(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        name.into()
    }
}

// === impl Pending ===

impl Pending {
    /// Takes the data to be written, if there is any.
    fn take(&mut self) -> Option<PendingWrite> {
        let has_new_pods = std::mem::take(&mut self.has_new_pods);
        let sources = self.sources.take();
        (sources.is_some() || has_new_pods)
            .then(|| PendingWrite { sources, pods: Arc::clone(&self.pods) })
    }

    /// Puts back data that could not be written, unless there is newer data, so that it is tried
    /// again.
    fn put_back(&mut self, failed: PendingWrite) {
        self.sources = self.sources.take().or(failed.sources);
        self.has_new_pods = true;
    }
}

#[cfg(test)]
mod tests;
