//! Watches the rules directory and keeps the last good rules in force.
//!
//! ```text
//!  event that matters ─▶ 200 ms of quiet, 600 ms at most ─▶ arm the watches ─▶ read, until two
//!  30 s without one ────────────────────────────────────▶ readings agree ─▶ known? nothing
//!                                                            ├─ good ─▶ publish
//!                                                            └─ bad ──▶ refuse, log once
//! ```
//! Good rules are kept as a snapshot, which a start takes when it finds none to load.
//! Whatever happens to the directory (files renamed into place, a ConfigMap's `..data` swapped, the
//! directory or a link on the way to it replaced or gone), the next reading finds it; events only
//! make that soon. The work has a thread of its own: it blocks, and compiling takes a while.

mod eyes;
mod load;
mod places;
mod retired;
#[cfg(test)]
mod tests;
mod times;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{dispatcher, error, info, warn};

use super::Published;
use super::snapshot::{Snapshot, digest};
use eyes::Eyes;
pub use load::{Compiled, Load};
use load::{Digest, Found, Trouble};
use retired::Retired;
use times::Times;

/// A change is over once nothing has happened for so long. Writing a file is several events.
const QUIET: Duration = Duration::from_millis(200);
/// Under change without end, what there is by then is read; leaves time to be live within 1 s.
const SETTLE_MAX: Duration = Duration::from_millis(600);
/// The rules are read at least so often: network file systems send no events, and a kernel whose
/// queue overflows loses some.
const POLL: Duration = Duration::from_secs(30);
/// How far the watcher's thread stands back for those that answer requests: some tenth of a core
/// is left to it where they want all of them.
const NICE: i32 = 10;
/// Faults or warnings of one load that are logged, a line each.
const LINES_LOGGED_MAX: usize = 20;

const _: () = assert!(QUIET.as_millis() < SETTLE_MAX.as_millis());

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchPaths {
    /// The directory with the rules. It need not exist yet.
    pub dir: PathBuf,
    /// A directory above `dir`: it, and each on the way down, may be replaced at any time. Links
    /// are watched in any case.
    pub root: Option<PathBuf>,
}

/// A running watch; it ends when this is dropped.
#[derive(Debug)]
pub struct Watcher {
    bell: SyncSender<()>,
    is_stopping: Arc<AtomicBool>,
}

/// What the first load came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstLoad {
    /// Rule files read.
    pub files: usize,
    /// Warnings about them, which have been logged.
    pub warnings: usize,
}

/// Nothing to take was found at first. Not logged: what to do about it is the caller's to say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", faults.join("\n"))]
pub struct FirstLoadFailed {
    /// A line each, with its place.
    pub faults: Vec<String>,
    /// There was nothing that could be read, which may be a mistake in the settings.
    pub is_unread: bool,
}

/// How soon and how often.
#[derive(Debug, Clone, Copy)]
struct Pace {
    quiet: Duration,
    settle_max: Duration,
    poll: Duration,
}

struct Watch<L> {
    paths: WatchPaths,
    load: L,
    published: Arc<Published>,
    snapshot: Option<Arc<Snapshot>>,
    pace: Pace,
    eyes: Eyes,
    bell: Receiver<()>,
    is_stopping: Arc<AtomicBool>,
    /// What was read last, good or not.
    known: Option<Digest>,
    /// What the rules in force were read from.
    in_force: Option<Digest>,
    retired: Retired,
    times: Times,
}

// === impl Watcher ===

impl Watcher {
    /// Loads the rules, then watches them. Returns after that first load, with what it came to; a
    /// failed one leaves the watch running, so that rules which come later are found, and puts
    /// those of `snapshot` in force, if it has any.
    ///
    /// # Errors
    /// If there can be no thread, or the working directory that a relative path begins at is gone.
    pub async fn spawn<L: Load>(
        paths: WatchPaths,
        load: L,
        published: Arc<Published>,
        snapshot: Option<Arc<Snapshot>>,
    ) -> io::Result<(Self, Result<FirstLoad, FirstLoadFailed>)> {
        let pace = Pace { quiet: QUIET, settle_max: SETTLE_MAX, poll: POLL };
        Self::spawn_with(paths, load, published, snapshot, pace, Eyes::new).await
    }

    async fn spawn_with<L: Load>(
        paths: WatchPaths,
        load: L,
        published: Arc<Published>,
        snapshot: Option<Arc<Snapshot>>,
        pace: Pace,
        eyes: fn(SyncSender<()>) -> Eyes,
    ) -> io::Result<(Self, Result<FirstLoad, FirstLoadFailed>)> {
        let paths = WatchPaths {
            dir: std::path::absolute(paths.dir)?,
            root: paths.root.map(std::path::absolute).transpose()?,
        };
        let (ring, bell) = sync_channel(1);
        let is_stopping = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            paths,
            load,
            published,
            snapshot,
            pace,
            eyes: eyes(ring.clone()),
            bell,
            is_stopping: Arc::clone(&is_stopping),
            known: None,
            in_force: None,
            retired: Retired::default(),
            times: Times::default(),
        };
        let (tell, first) = oneshot::channel();
        // The thread logs where its starter does.
        let log = dispatcher::get_default(Clone::clone);
        thread::Builder::new().name("rules-watch".to_owned()).spawn(move || {
            // Where that is not allowed, loading may show in the answers' tail.
            let _ = rustix::process::nice(NICE);
            dispatcher::with_default(&log, || watch.run(tell));
        })?;
        let first = first.await.map_err(|_| io::Error::other("the rules watcher ended"))?;
        Ok((Self { bell: ring, is_stopping }, first))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // One that has rung already wakes it as well.
        let _ = self.bell.try_send(());
    }
}

// === impl Watch ===

impl<L: Load> Watch<L> {
    fn run(mut self, tell: oneshot::Sender<Result<FirstLoad, FirstLoadFailed>>) {
        let first = self.turn(|_| {}).unwrap_or_else(|| {
            Err(Trouble::Unread("the rules were not read".to_owned())) // nothing was known before
        });
        if first.is_err() {
            self.take_snapshot();
        }
        let first = first.map_err(|trouble| FirstLoadFailed {
            faults: trouble.lines(),
            is_unread: matches!(trouble, Trouble::Unread(_)),
        });
        if tell.send(first).is_err() {
            return; // the start was given up, and nobody could end the watch later
        }
        loop {
            match self.wait() {
                Ok(()) => self.settle(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.is_stopping.load(Ordering::Relaxed) {
                return;
            }
            let turned = catch_unwind(AssertUnwindSafe(|| self.turn(tell_faults)));
            if turned.is_err() {
                // The loader's panics are caught nearer to it; whatever this one was, rules that
                // come later are to be found.
                self.published.note_panic();
            }
        }
    }

    /// Waits for the bell, or until it is time to read again; frees former rules meanwhile.
    fn wait(&mut self) -> Result<(), RecvTimeoutError> {
        let mut left = self.pace.poll;
        loop {
            self.retired.free_unused();
            let wait = if self.retired.is_empty() { left } else { left.min(retired::LOOK) };
            match self.bell.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) if wait < left => left -= wait,
                waited => return waited,
            }
        }
    }

    /// Waits until a change is over.
    #[allow(clippy::disallowed_methods)] // the edge: only how long to wait is taken from the clock
    fn settle(&self) {
        let start = Instant::now();
        while !self.is_stopping.load(Ordering::Relaxed) {
            let left = self.pace.settle_max.saturating_sub(start.elapsed());
            if left.is_zero() || self.bell.recv_timeout(left.min(self.pace.quiet)).is_err() {
                return;
            }
        }
    }

    /// Reads the rules and takes what is new and good. `None` if nothing is new. What is to be told
    /// is told before it is published, so that who waits for that finds it in the log.
    fn turn(&mut self, tell: impl FnOnce(&[String])) -> Option<Result<FirstLoad, Trouble>> {
        self.eyes.arm(&self.paths);
        let Found::New { digest, sources, result } = load::load(&mut self.load, self.known) else {
            return None;
        };
        self.known = Some(digest);
        let compiled = match result {
            Ok(compiled) => compiled,
            Err(trouble) => {
                if matches!(trouble, Trouble::Panicked) {
                    self.published.note_panic();
                }
                let faults = trouble.lines();
                tell(&faults);
                self.published.refuse(faults.join("\n"));
                return Some(Err(trouble));
            }
        };
        let files = sources.len();
        let warnings = compiled.warnings.len();
        if self.in_force == Some(digest) {
            info!(files, "the rules are again those in force");
            self.published.restore();
        } else {
            let version = format_args!("{:016x}", compiled.rules.version());
            info!(files, warnings, version, "rules loaded");
            log_lines(&compiled.warnings, |warning| warn!("rules: {warning}"));
            self.in_force = Some(digest);
            self.retired.add(self.published.publish(Arc::new(compiled.rules)));
            if let Some(took) = self.times.note(&mut self.load, &sources) {
                self.published.note_propagation(took);
            }
            if let Some(snapshot) = &self.snapshot {
                snapshot.keep(sources);
            }
        }
        Some(Ok(FirstLoad { files, warnings }))
    }

    /// Puts the rules of the snapshot in force, if it has any: the source has none to take.
    fn take_snapshot(&mut self) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        let path = snapshot.path().display();
        let sources = match snapshot.read() {
            Ok(sources) => sources,
            Err(error) => return warn!("the snapshot of the rules is not used: {path}: {error}"),
        };
        match load::compile(&mut self.load, &sources) {
            Ok(compiled) => {
                let version = format_args!("{:016x}", compiled.rules.version());
                warn!(version, "the rules of the snapshot are in force: {path}");
                self.in_force = Some(digest(&sources));
                self.published.publish_snapshot(Arc::new(compiled.rules));
            }
            Err(trouble) => {
                warn!("the snapshot of the rules is not used: {path}: its rules have faults");
                log_lines(&trouble.lines(), |fault| warn!("rules of the snapshot: {fault}"));
            }
        }
    }
}

fn tell_faults(faults: &[String]) {
    let count = faults.len();
    error!("rules refused, the last good ones stay in force; faults: {count}");
    log_lines(faults, |fault| error!("rules: {fault}"));
}

fn log_lines(lines: &[String], log: impl Fn(&str)) {
    lines.iter().take(LINES_LOGGED_MAX).for_each(|line| log(line));
    if let Some(more) = lines.len().checked_sub(LINES_LOGGED_MAX).filter(|more| *more > 0) {
        log(&format!("and {more} more"));
    }
}
