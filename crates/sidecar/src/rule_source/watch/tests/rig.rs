//! A temporary directory, a loader that records its calls, and waits for the results.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::Source;
use tempfile::TempDir;
use tokio::time::timeout;
use tracing::subscriber::DefaultGuard;

use super::super::*;
use ratelease_server::current_rules::Loads;

/// A file with this text is refused.
pub(super) const BAD: &str = "bad";
/// A file with this text makes the loader panic.
pub(super) const PANIC: &str = "panic";
/// Longest wait for any result: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Rig {
    temp: TempDir,
    below: PathBuf,
    pub(super) root: Option<PathBuf>,
    pub(super) published: Arc<CurrentRules>,
    seen: Arc<Mutex<Seen>>,
    pub(super) snapshot: Option<Arc<Snapshot>>,
    watcher: Option<Watcher>,
    log: Option<DefaultGuard>,
}

/// The calls of the loader.
#[derive(Default)]
struct Seen {
    readings: u64,
    /// Every good set, as `name=text name=text`.
    compiled: Vec<String>,
}

/// Reads `*.yaml` below a directory, through links, except names that begin with a dot.
struct Files {
    dir: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

/// Lines that were logged.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

// === impl Files ===

impl Load for Files {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        self.seen.lock().readings += 1;
        let mut files = Vec::new();
        read_below(&self.dir, "", &mut files)
            .map_err(|error| format!("{}: {error}", self.dir.display()))?;
        files.sort();
        Ok(files.into_iter().map(|(name, text)| Arc::new(Source { name, text })).collect())
    }

    fn compile(&mut self, files: &[Arc<Source>], _: &Pace) -> Result<Compiled, Vec<String>> {
        let text = |file: &Arc<Source>| String::from_utf8_lossy(&file.text).into_owned();
        assert!(!files.iter().any(|file| text(file) == PANIC), "deliberate");
        let is_bad = |text: &str| text == BAD || text.ends_with("trunc");
        let bad = files.iter().filter(|file| is_bad(&text(file)));
        let faults: Vec<_> = bad.map(|file| format!("{}:1:1: bad", file.name)).collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        let odd = files.iter().filter(|file| text(file).ends_with("odd"));
        let warnings = odd.map(|file| format!("{}:1:3: odd", file.name)).collect();
        let all: Vec<_> =
            files.iter().map(|file| format!("{}={}", file.name, text(file))).collect();
        self.seen.lock().compiled.push(all.join(" "));
        Ok(Compiled { warnings, ..Compiled::default() })
    }
}

fn read_below(dir: &Path, prefix: &str, files: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            read_below(&path, &format!("{prefix}{name}/"), files)?;
        } else if name.ends_with(".yaml") {
            // A file that has been removed is ignored.
            if let Ok(text) = fs::read(&path) {
                files.push((format!("{prefix}{name}"), text));
            }
        }
    }
    Ok(())
}

// === impl Log ===

impl Log {
    pub(super) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock()).lines().map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Rig ===

impl Rig {
    /// Creates a rig with an empty rules directory.
    pub(super) fn new() -> Self {
        let rig = Self::below("rules");
        fs::create_dir(rig.path("")).expect("directory");
        rig
    }

    /// Creates a rig with a rules directory that does not exist yet.
    pub(super) fn below(below: &str) -> Self {
        Self {
            temp: tempfile::tempdir().expect("directory"),
            below: below.into(),
            root: None,
            published: Arc::default(),
            seen: Arc::default(),
            snapshot: None,
            watcher: None,
            log: None,
        }
    }

    /// A path in the rules directory; the directory itself for an empty name.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        let dir = self.temp.path().join(&self.below);
        if name.is_empty() { dir } else { dir.join(name) }
    }

    /// A path in the temporary directory, which contains the rules directory.
    pub(super) fn above(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("write");
    }

    /// Records everything logged from now on, as long as the rig lives.
    pub(super) fn log(&mut self) -> Log {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        // Without a subscriber for all threads, an event that another test meets first is cached as
        // of interest to none. An error means that there is one.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
        self.log = Some(tracing::subscriber::set_default(subscriber));
        log
    }

    pub(super) async fn start(&mut self) -> Result<FirstLoad, FirstLoadFailed> {
        // The periodic reading must not hide an event that was missed.
        let poll = Duration::from_secs(3600);
        self.start_with(poll, FsWatch::new).await
    }

    /// Starts the watch without events.
    pub(super) async fn start_blind(
        &mut self,
        poll: Duration,
    ) -> Result<FirstLoad, FirstLoadFailed> {
        self.start_with(poll, FsWatch::disabled).await
    }

    async fn start_with(
        &mut self,
        poll: Duration,
        fs_watch: fn(SyncSender<()>) -> FsWatch,
    ) -> Result<FirstLoad, FirstLoadFailed> {
        let paths = WatchPaths { dir: self.path(""), root: self.root.clone() };
        let load = Files { dir: self.path(""), seen: Arc::clone(&self.seen) };
        let timing = Timing { poll, ..WATCHED };
        let published = Arc::clone(&self.published);
        let snapshot = self.snapshot.clone();
        let started = Watcher::spawn_with(paths, load, published, snapshot, timing, fs_watch).await;
        let (watcher, first) = started.expect("a thread");
        self.watcher = Some(watcher);
        first
    }

    pub(super) fn stop(&mut self) {
        self.watcher = None;
    }

    /// Every good set so far.
    pub(super) fn compiled(&self) -> Vec<String> {
        self.seen.lock().compiled.clone()
    }

    /// The set that was compiled last.
    pub(super) fn in_force(&self) -> String {
        assert!(self.published.current().is_some(), "no rules are in force");
        self.compiled().pop().expect("a good set")
    }

    pub(super) fn readings(&self) -> u64 {
        self.seen.lock().readings
    }

    /// Alive as long as the watcher's thread: the loader holds it.
    pub(super) fn loader_alive(&mut self) -> Weak<impl Sized + use<>> {
        let seen = std::mem::take(&mut self.seen);
        Arc::downgrade(&seen)
    }

    pub(super) async fn until_in_force(&self, set: &str) {
        let is_in_force = |loads: Loads| {
            let compiled = self.compiled();
            // A compiled set may not be published yet.
            let is_last = compiled.last().is_some_and(|last| last == set);
            is_last && loads.ok == compiled.len() as u64 && self.published.last_fault().is_none()
        };
        self.until_loads(&format!("{set:?} in force"), is_in_force).await;
    }

    pub(super) async fn until_failed(&self, failed: u64) {
        self.until_loads(&format!("{failed} failed"), |loads| loads.failed == failed).await;
    }

    pub(super) async fn until_ok(&self, ok: u64) {
        self.until_loads(&format!("{ok} ok"), |loads| loads.ok >= ok).await;
    }

    async fn until_loads(&self, what: &str, is_so: impl Fn(Loads) -> bool) {
        let mut loads = self.published.loads();
        let waited = timeout(PATIENCE, loads.wait_for(|loads| is_so(*loads))).await;
        let is_met = waited.is_ok();
        drop(waited);
        let (loads, compiled) = (*loads.borrow(), self.compiled());
        assert!(is_met, "timed out waiting for {what}: {loads:?}, {compiled:?}");
    }

    /// Polls, because a reading publishes nothing to wait for.
    pub(super) async fn until_readings(&self, readings: u64) {
        self.until("readings", || self.readings() >= readings).await;
    }

    pub(super) async fn until_gone<T>(&self, thing: &Weak<T>) {
        self.until("an end", || thing.upgrade().is_none()).await;
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        let looking = async {
            while !is_so() {
                ticks.tick().await;
            }
        };
        assert!(timeout(PATIENCE, looking).await.is_ok(), "timed out waiting for {what}");
    }
}
