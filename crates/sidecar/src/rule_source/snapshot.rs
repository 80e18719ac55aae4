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

use std::borrow::Borrow;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use parking_lot::Mutex;
use ratelease_engine::store::PODS_MAX;
use ratelease_rules::Source;
use ratelease_server::metrics::counter::{Count, Counter};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

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
        let written = AtomicU64::new(0);
        let failed = AtomicU64::new(0);
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
        decode(&bytes)
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
            let writer = Arc::clone(&self);
            let writes = next.clone();
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
            Some(sources) => encode(sources, &next.pods)?,
            None => match self.read_all() {
                Ok(kept) => encode(&kept.sources, &next.pods)?,
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

// The byte format of a snapshot.

/// The first bytes of every snapshot, in any format.
const MAGIC: &[u8] = b"ratelease-rules ";

/// The first bytes of the pod counts.
const PODS_MAGIC: &[u8] = b"ratelease-pods ";

/// The format that is written. Format 1, without pod counts, can be read too.
const FORMAT: u64 = 2;

/// Size in bytes of a length.
const LENGTH_BYTES: usize = size_of::<u64>();

/// The content of a snapshot.
#[derive(Debug, PartialEq, Eq)]
struct SnapshotContent {
    sources: Vec<Source>,
    /// Pods of each domain; `None` if that part is damaged.
    pods: Option<Pods>,
}

/// Hash of names and texts with their lengths, so that different lists hash differently.
pub(super) fn digest<S: Borrow<Source>>(sources: &[S]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in sources.iter().flat_map(|source| parts(source.borrow())) {
        hasher.update(&length(part));
        hasher.update(part);
    }
    hasher.finalize()
}

/// Returns the bytes of a snapshot that holds `sources` and, if there is room left, `pods`.
fn encode<S: Borrow<Source>>(
    sources: &[S],
    pods: &[(Box<str>, u32)],
) -> Result<Vec<u8>, SnapshotError> {
    let hash = digest(sources).to_hex();
    let parts = || sources.iter().flat_map(|source| parts(source.borrow()));
    let body: usize = parts().map(|part| LENGTH_BYTES + part.len()).sum();
    let mut bytes = [MAGIC, format!("{FORMAT} {hash} {body}\n").as_bytes()].concat();
    if bytes.len() + body > SNAPSHOT_BYTES_MAX {
        return Err(SnapshotError::TooLarge);
    }
    let pods = encode_pods(pods);
    bytes.reserve_exact(body + pods.len());
    for part in parts() {
        bytes.extend_from_slice(&length(part));
        bytes.extend_from_slice(part);
    }
    if bytes.len() + pods.len() <= SNAPSHOT_BYTES_MAX {
        bytes.extend_from_slice(&pods);
    }
    Ok(bytes)
}

/// Decodes a snapshot. Checks the format first: the rest may be anything in another format.
fn decode(bytes: &[u8]) -> Result<SnapshotContent, SnapshotError> {
    let rest = match bytes.strip_prefix(MAGIC) {
        Some(rest) => rest,
        // The file ends within the magic bytes.
        None if MAGIC.starts_with(bytes) => return Err(SnapshotError::Damaged),
        None => return Err(SnapshotError::NotASnapshot),
    };
    let (format, rest) = split_at_byte(rest, b' ').ok_or(SnapshotError::Damaged)?;
    let format: u64 = format.parse().map_err(|_| SnapshotError::Damaged)?;
    if !(1..=FORMAT).contains(&format) {
        return Err(SnapshotError::UnknownFormat(format, FORMAT));
    }
    let (head, rest) = split_at_byte(rest, b'\n').ok_or(SnapshotError::Damaged)?;
    let (hash, body, pods) = if format == 1 {
        (head, rest, Some(Pods::new()))
    } else {
        let (hash, body, pods) = split_sections(head, rest).ok_or(SnapshotError::Damaged)?;
        (hash, body, decode_pods(pods))
    };
    let hash = blake3::Hash::from_hex(hash).map_err(|_| SnapshotError::Damaged)?;
    let sources = split(body).ok_or(SnapshotError::Damaged)?;
    if digest(&sources) != hash {
        return Err(SnapshotError::Damaged);
    }
    Ok(SnapshotContent { sources, pods })
}

/// Splits a snapshot of format 2 into the hash in its `head`, the sources, whose length is in the
/// head, and the counts.
fn split_sections<'b>(head: &'b str, rest: &'b [u8]) -> Option<(&'b str, &'b [u8], &'b [u8])> {
    let (hash, length) = head.split_once(' ')?;
    let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
    let length = length.parse().ok().filter(|_| is_number)?;
    let (body, pods) = rest.split_at_checked(length)?;
    Some((hash, body, pods))
}

/// Encodes counts with a hash of their own, so that damaged counts are ignored. Values out of
/// bounds are left out.
fn encode_pods(pods: &[(Box<str>, u32)]) -> Vec<u8> {
    let mut body = Vec::new();
    let valid = pods.iter().filter(|(domain, count)| is_valid(domain, *count));
    for (domain, count) in valid.take(DOMAINS_MAX) {
        body.extend_from_slice(&length(domain.as_bytes()));
        body.extend_from_slice(domain.as_bytes());
        body.extend_from_slice(&count.to_le_bytes());
    }
    let hash = blake3::hash(&body).to_hex();
    [PODS_MAGIC, hash.as_bytes(), b"\n", &body].concat()
}

/// Decodes the counts in `section`, which may be empty; returns `None` if they are damaged or out
/// of bounds.
fn decode_pods(section: &[u8]) -> Option<Pods> {
    if section.is_empty() {
        return Some(Pods::new());
    }
    let (hash, mut body) = split_at_byte(section.strip_prefix(PODS_MAGIC)?, b'\n')?;
    if blake3::Hash::from_hex(hash).ok()? != blake3::hash(body) {
        return None;
    }
    let mut pods = Pods::new();
    while !body.is_empty() {
        let domain = std::str::from_utf8(take(&mut body)?).ok()?;
        let (count, rest) = body.split_first_chunk()?;
        let count = u32::from_le_bytes(*count);
        if !is_valid(domain, count) || pods.len() == DOMAINS_MAX {
            return None;
        }
        pods.push((domain.into(), count));
        body = rest;
    }
    Some(pods)
}

fn parts(source: &Source) -> [&[u8]; 2] {
    [source.name.as_bytes(), &source.text]
}

fn length(part: &[u8]) -> [u8; LENGTH_BYTES] {
    (part.len() as u64).to_le_bytes()
}

/// Splits `bytes` into the text before the first `mark` and the rest.
fn split_at_byte(bytes: &[u8], mark: u8) -> Option<(&str, &[u8])> {
    let at = bytes.iter().position(|byte| *byte == mark)?;
    Some((std::str::from_utf8(bytes.get(..at)?).ok()?, bytes.get(at + 1..)?))
}

fn split(mut body: &[u8]) -> Option<Vec<Source>> {
    let mut sources = Vec::new();
    while !body.is_empty() {
        let name = take(&mut body)?;
        let text = take(&mut body)?.to_vec();
        sources.push(Source { name: std::str::from_utf8(name).ok()?.to_owned(), text });
    }
    Some(sources)
}

/// Removes a length from the front of `body`, and then that many bytes. Returns `None` if they are
/// not there, so that a wrong length allocates nothing.
fn take<'b>(body: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = body.split_first_chunk::<LENGTH_BYTES>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *body = rest;
    Some(part)
}

// The number of pods of each domain as the store last reported it, kept beside the rules: a pod
// that starts without the store derives its share of a limit from it.

/// Pods of each domain.
pub type Pods = Vec<(Box<str>, u32)>;

/// Maximum number of domains that are kept.
pub const DOMAINS_MAX: usize = 1024;

/// Maximum length in bytes of a domain that is kept.
const DOMAIN_BYTES_MAX: usize = 1024;

/// Valid range of a count: a store counts no more.
#[allow(clippy::cast_possible_truncation, reason = "10 000")]
const PODS_RANGE: RangeInclusive<u32> = 1..=PODS_MAX as u32;

/// Interval between reads of the counts, and so between writes because of them.
const PODS_INTERVAL: Duration = Duration::from_secs(10);

// === impl Snapshot ===

impl Snapshot {
    /// Reads the counts in the file, sets them as those to be kept, and returns them. Returns none
    /// if there is no file, or it is damaged, which is logged. Blocks.
    pub fn load_pods(&self) -> Pods {
        let pods = match self.read_all() {
            Ok(kept) => kept.pods.ok_or(SnapshotError::Damaged),
            Err(error) => Err(error),
        };
        let pods = pods.unwrap_or_else(|error| {
            if !matches!(error, SnapshotError::Missing) {
                let path = self.path.display();
                warn!("the snapshot's counts of pods are not used: {path}: {error}");
            }
            Pods::new()
        });
        self.pending.lock().pods = Arc::new(pods.clone());
        pods
    }

    /// Keeps the counts that `counts` returns, reading them every 10 s; never returns.
    pub async fn track_pods(&self, counts: impl Fn() -> Pods) {
        loop {
            tokio::time::sleep(PODS_INTERVAL).await;
            self.set_pods(counts());
        }
    }

    /// Sets `counts` as those to be kept from now on, in addition to earlier ones of other domains.
    /// [`Snapshot::run`] writes them if they are new. Never waits.
    fn set_pods(&self, counts: Pods) {
        let mut pending = self.pending.lock();
        let counts = merge(counts, &pending.pods);
        if counts != *pending.pods {
            pending.pods = Arc::new(counts);
            pending.has_new_pods = true;
            drop(pending);
            self.wake.notify_one();
        }
    }
}

/// Whether a count may be kept.
fn is_valid(domain: &str, count: u32) -> bool {
    domain.len() <= DOMAIN_BYTES_MAX && PODS_RANGE.contains(&count)
}

/// Merges `counts` with those of `earlier` for other domains, in order of the domains. Above the
/// maximum, earlier ones are left out.
fn merge(mut counts: Pods, earlier: &[(Box<str>, u32)]) -> Pods {
    counts.retain(|(domain, count)| is_valid(domain, *count));
    counts.sort_unstable();
    counts.dedup_by(|later, kept| later.0 == kept.0);
    counts.truncate(DOMAINS_MAX);
    let is_new = |domain: &str| counts.binary_search_by(|(it, _)| (**it).cmp(domain)).is_err();
    let rest: Pods = earlier.iter().filter(|(domain, _)| is_new(domain)).cloned().collect();
    counts.extend(rest.into_iter().take(DOMAINS_MAX - counts.len()));
    counts.sort_unstable();
    counts
}

#[cfg(test)]
mod tests;
