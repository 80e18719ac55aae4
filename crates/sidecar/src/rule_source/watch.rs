//! Watches the rules directory and keeps the last good rules in force.
//!
//! ```text
//!  event that matters ─▶ 200 ms of quiet, 600 ms at most ─▶ arm the watches ─▶ read, until two
//!  30 s without one ────────────────────────────────────▶ readings agree ─▶ known? nothing
//!                                                            ├─ good ─▶ publish
//!                                                            └─ bad ──▶ refuse, log once
//! ```
//! Good rules are also written to a snapshot, from which a start takes rules when it finds none to
//! load. Whatever happens to the directory (files renamed into place, a ConfigMap's `..data`
//! swapped, the directory or a link on the way to it replaced or removed), the next reading finds
//! it; events only make that reading happen sooner. The work has a thread of its own: it blocks,
//! and compiling takes a while.

mod change_times;
mod load;
mod old_rules;
#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;

use ratelease_rules::Source;
use tokio::sync::oneshot;
use tracing::{debug, dispatcher, error, info, warn};

use super::snapshot::{Snapshot, digest};
use crate::file_watch::{Cause, FsWatch, WatchSet, next_cause};
use crate::file_watch::{PUSHED, Timing, WATCHED};
use change_times::ChangeTimes;
pub use load::{Compiled, Load, Terms};
use load::{Digest, LoadError, LoadOutcome, Loaded};
use old_rules::OldRules;
use ratelease_server::current_rules::CurrentRules;

/// Niceness of the watcher's thread, in favour of threads that answer requests: it gets about a
/// tenth of a core when they want all cores.
const NICE: i32 = 10;
/// Maximum number of faults or warnings of one load that are logged, one line each.
const LINES_LOGGED_MAX: usize = 20;

/// The paths to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchPaths {
    /// The directory with the rules. It need not exist yet.
    pub dir: PathBuf,
    /// A directory above `dir`: this directory and each one on the way down to `dir` may be
    /// replaced at any time. Links are watched in any case.
    pub root: Option<PathBuf>,
}

/// A running watch; dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    wake: SyncSender<()>,
    is_stopping: Arc<AtomicBool>,
}

/// The result of the first load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstLoad {
    /// Rule files read.
    pub files: usize,
    /// Number of warnings about them, which have been logged.
    pub warnings: usize,
}

/// Receives the sources of the rules that a watch began with.
pub type SourcesReceiver = oneshot::Receiver<Vec<Arc<Source>>>;

/// The first load found no usable rules. It is not logged: the caller decides what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", faults.join("\n"))]
pub struct FirstLoadFailed {
    /// One line for each fault, with its place.
    pub faults: Vec<String>,
    /// Nothing could be read, which may be a mistake in the settings.
    pub is_unread: bool,
}

struct Watch<L> {
    /// What to watch; `None` if changes are pushed.
    paths: Option<WatchPaths>,
    load: L,
    published: Arc<CurrentRules>,
    snapshot: Option<Arc<Snapshot>>,
    timing: Timing,
    fs_watch: FsWatch,
    wake: Receiver<()>,
    is_stopping: Arc<AtomicBool>,
    /// What was last read, good or not.
    known: Option<Digest>,
    /// The state of the directory that the rules in force were read from.
    in_force: Option<Digest>,
    old_rules: OldRules,
    change_times: ChangeTimes,
}

// === impl Watcher ===

impl Watcher {
    /// Loads the rules, then watches them. Returns after that first load, with its result. If it
    /// fails, the watch goes on, so that later rules are found, and the rules of `snapshot` are put
    /// in force, if it has any.
    ///
    /// # Errors
    /// Fails if the thread cannot be started, or if the working directory that a relative path
    /// starts from is gone.
    pub async fn spawn<L: Load>(
        paths: WatchPaths,
        load: L,
        published: Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
    ) -> io::Result<(Self, Result<FirstLoad, FirstLoadFailed>)> {
        Self::spawn_with(paths, load, published, snapshot, WATCHED, FsWatch::new).await
    }

    async fn spawn_with<L: Load>(
        paths: WatchPaths,
        load: L,
        published: Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
        timing: Timing,
        fs_watch: fn(SyncSender<()>) -> FsWatch,
    ) -> io::Result<(Self, Result<FirstLoad, FirstLoadFailed>)> {
        let paths = WatchPaths {
            dir: std::path::absolute(paths.dir)?,
            root: paths.root.map(std::path::absolute).transpose()?,
        };
        let (waker, wake) = sync_channel(1);
        let watch = Watch::new(
            Some(paths),
            load,
            published,
            snapshot,
            timing,
            fs_watch(waker.clone()),
            wake,
        );
        let (report_first, first) = oneshot::channel();
        let watcher = watch.spawn(waker, |watch| watch.run(report_first))?;
        let first = first.await.map_err(|_| io::Error::other("the rules watcher ended"))?;
        Ok((watcher, first))
    }

    /// Loads whenever the returned sender wakes it. Begins with the rules of `snapshot`, if it has
    /// any, whose sources the receiver gets.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn spawn_pushed<L: Load>(
        load: L,
        published: Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
    ) -> io::Result<(Self, SyncSender<()>, SourcesReceiver)> {
        let (waker, wake) = sync_channel(1);
        let fs_watch = FsWatch::new(waker.clone());
        let watch = Watch::new(None, load, published, snapshot, PUSHED, fs_watch, wake);
        let (keep, kept) = oneshot::channel();
        let watcher = watch.spawn(waker.clone(), |watch| watch.run_pushed(keep))?;
        Ok((watcher, waker, kept))
    }

    /// Ends the watch: its thread closes what it holds and ends, while the caller goes on.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // If a wake-up is pending already, it serves for this one too.
        let _ = self.wake.try_send(());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl Watch ===

impl<L: Load> Watch<L> {
    fn new(
        paths: Option<WatchPaths>,
        load: L,
        published: Arc<CurrentRules>,
        snapshot: Option<Arc<Snapshot>>,
        timing: Timing,
        fs_watch: FsWatch,
        wake: Receiver<()>,
    ) -> Self {
        Self {
            paths,
            load,
            published,
            snapshot,
            timing,
            fs_watch,
            wake,
            is_stopping: Arc::default(),
            known: None,
            in_force: None,
            old_rules: OldRules::default(),
            change_times: ChangeTimes::default(),
        }
    }

    /// Runs in a thread of its own.
    fn spawn(
        self,
        wake: SyncSender<()>,
        run: impl FnOnce(Self) + Send + 'static,
    ) -> io::Result<Watcher> {
        let is_stopping = Arc::clone(&self.is_stopping);
        // The thread logs to the same subscriber as its starter.
        let log = dispatcher::get_default(Clone::clone);
        thread::Builder::new().name("ratelease-rules".to_owned()).spawn(move || {
            // Where that is not allowed, loading may show in the tail of the latencies of answers.
            let _ = rustix::process::nice(NICE);
            dispatcher::with_default(&log, || run(self));
        })?;
        Ok(Watcher { wake, is_stopping })
    }

    /// Begins with the snapshot: nothing was pushed yet.
    fn run_pushed(mut self, keep: oneshot::Sender<Vec<Arc<Source>>>) {
        // An error means that the start was cancelled.
        let _ = keep.send(self.use_snapshot());
        self.follow();
    }

    fn run(mut self, report_first: oneshot::Sender<Result<FirstLoad, FirstLoadFailed>>) {
        let first = self.reload(Cause::Event, |_| {}).unwrap_or_else(|| {
            // No state was known before.
            Err(LoadError::Unread("the rules were not read".to_owned()))
        });
        if first.is_err() {
            self.use_snapshot();
        }
        let first = first.map_err(|error| FirstLoadFailed {
            faults: error.lines(),
            is_unread: matches!(error, LoadError::Unread(_)),
        });
        if report_first.send(first).is_err() {
            return; // the start was cancelled, so the watch could not be ended later
        }
        self.follow();
    }

    /// Loads whenever something may have changed, until it is stopped.
    fn follow(mut self) {
        loop {
            let waited = self.wait();
            let next = next_cause(waited, &self.wake, self.timing, &self.is_stopping);
            let Some(cause) = next else { return };
            let result = catch_unwind(AssertUnwindSafe(|| self.reload(cause, log_faults)));
            if result.is_err() {
                // Panics of the loader are caught in `load`. Whatever this panic was, the watch
                // goes on, so that later rules are found.
                self.published.note_panic();
                let fault = "internal error: the rules could not be put in force";
                self.load.note_outcome(Some(Err(vec![fault.to_owned()])));
            }
        }
    }

    /// Waits for a wake-up, or until it is time to read again; frees former rules meanwhile.
    fn wait(&mut self) -> Result<(), RecvTimeoutError> {
        let mut left = self.timing.poll;
        loop {
            self.old_rules.free_unused();
            let wait =
                if self.old_rules.is_empty() { left } else { left.min(old_rules::CHECK_INTERVAL) };
            match self.wake.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) if wait < left => left -= wait,
                waited => return waited,
            }
        }
    }

    /// Reads the rules and puts them in force if they are new and good. `None` if they are not new.
    /// Results are logged before they are published, so that a task that waits for the publication
    /// finds them in the log.
    fn reload(
        &mut self,
        cause: Cause,
        log: impl FnOnce(&[String]),
    ) -> Option<Result<FirstLoad, LoadError>> {
        self.arm(cause);
        let outcome = load::load(&mut self.load, self.known);
        self.published.note_files_left_out(self.load.left_out());
        let LoadOutcome::Changed(loaded) = outcome else {
            self.load.note_outcome(None);
            return None;
        };
        let Loaded { digest, sources, result } = *loaded;
        let Terms { is_trial, is_partial, is_for_now, nothing, left_out } = self.load.terms();
        // What was neither put in force nor reported is loaded again when it is found again.
        let is_settled = if result.is_ok() { !is_partial } else { !is_trial && !is_for_now };
        self.known = is_settled.then_some(digest);
        if cause == Cause::Poll {
            // No event reported this change, so a watch may have ended.
            self.arm(Cause::Event);
        }
        let compiled = match result {
            Ok(compiled) => compiled,
            Err(error) => {
                if matches!(error, LoadError::Panicked) {
                    self.published.note_panic();
                }
                let faults = error.lines();
                if !is_trial {
                    self.refuse(&faults, !is_for_now, log);
                }
                self.load.note_outcome(Some(Err(faults)));
                return Some(Err(error));
            }
        };
        let files = sources.len();
        let warnings = compiled.warnings.len();
        if is_partial {
            debug!(files, warnings, "rules compiled; more are to come before they are in force");
        } else if self.in_force == Some(digest) {
            info!(files, "the source holds the rules in force again");
            self.published.restore();
        } else {
            let version = format_args!("{:016x}", compiled.rules.version());
            info!(files, warnings, version, "rules loaded");
            log_lines(&compiled.warnings, |warning| warn!("rules: {warning}"));
            self.in_force = Some(digest);
            self.old_rules.add(self.published.publish(Arc::new(compiled.rules)));
            if let Some(took) = self.change_times.note(&mut self.load, &sources) {
                self.published.note_propagation(took);
            }
            if let Some(snapshot) = &self.snapshot {
                snapshot.set_sources(sources);
            }
        }
        if let Some(fault) = nothing {
            warn!("rules: nothing is limited: {fault}");
            self.published.refuse(fault);
        }
        if !left_out.is_empty() {
            self.published.note_left_out(left_out.join("\n"));
        }
        self.load.note_outcome(Some(Ok(())));
        Some(Ok(FirstLoad { files, warnings }))
    }

    /// Reports faults: the rules in force stay.
    fn refuse(&self, faults: &[String], is_final: bool, log: impl FnOnce(&[String])) {
        let joined = faults.join("\n");
        // A set that is pushed may be refused again beside other sets, and what is refused for now
        // at each poll.
        let is_new = self.published.last_fault().as_ref() != Some(&joined);
        if (self.paths.is_some() && is_final) || is_new {
            log(faults);
        }
        self.published.refuse(joined);
    }

    fn arm(&mut self, cause: Cause) {
        if let Some(WatchPaths { dir, root }) = &self.paths {
            self.fs_watch.arm(cause, || WatchSet::directory(dir, root.as_deref()));
        }
    }

    /// Puts the rules of the snapshot in force, if it has any: the source has none that are usable.
    /// Returns its sources then.
    fn use_snapshot(&mut self) -> Vec<Arc<Source>> {
        let Some(snapshot) = self.snapshot.clone() else { return Vec::new() };
        let path = snapshot.path().display();
        let sources = match snapshot.read() {
            Ok(sources) => sources.into_iter().map(Arc::new).collect::<Vec<_>>(),
            Err(error) => {
                warn!("the snapshot of the rules is not used: {path}: {error}");
                return Vec::new();
            }
        };
        match load::compile(&mut self.load, &sources) {
            Ok(compiled) => {
                let version = format_args!("{:016x}", compiled.rules.version());
                warn!(version, "the rules of the snapshot are in force: {path}");
                self.in_force = Some(digest(&sources));
                self.published.publish_snapshot(Arc::new(compiled.rules));
                sources
            }
            Err(error) => {
                warn!("the snapshot of the rules is not used: {path}: its rules have faults");
                log_lines(&error.lines(), |fault| warn!("rules of the snapshot: {fault}"));
                Vec::new()
            }
        }
    }
}

fn log_faults(faults: &[String]) {
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
