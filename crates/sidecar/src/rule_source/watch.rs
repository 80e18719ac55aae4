//! Loads rules when the rules directory changes, or when [`xds`](super::xds) pushes a set, and keeps
//! the last good ones in force.
//!
//! ```text
//!  event that matters ─▶ 200 ms of quiet, 600 ms at most ─▶ arm the watches ─▶ read, until two
//!  30 s without one ─▶ rest, if others were just compiled ─▶ readings agree ─▶ known? nothing
//!                                                            ├─ good ─▶ put in force
//!                                                            └─ bad ──▶ refuse, log once
//! ```
//! Good rules are also written to a snapshot, from which a start takes rules when it finds none to
//! load. Whatever happens to the directory (files renamed into place, a ConfigMap's `..data`
//! swapped, the directory or a link on the way to it replaced or removed), the next reading finds
//! it; events only make that reading happen sooner. The work has a thread of its own: it blocks,
//! and compiling takes a while.

mod rest;

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ratelease_rules::{Pace, Rules, Source};
use ratelease_server::current_rules::CurrentRules;
use tokio::sync::oneshot;
use tracing::{dispatcher, error, info, warn};

use super::snapshot::{Snapshot, digest};
use crate::file_watch::{Cause, FsWatch, PUSHED, Timing, WATCHED, WatchSet, next_cause};
use rest::Rest;

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
    /// What the rules in force were read from.
    in_force: Option<Digest>,
    old_rules: OldRules,
    change_times: ChangeTimes,
    rest: Rest,
    /// Whether the last reading had news, and was no step on the way to others.
    is_counted: bool,
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

    /// What has the rules read again.
    pub fn waker(&self) -> SyncSender<()> {
        self.wake.clone()
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
            rest: Rest::default(),
            is_counted: false,
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
        let first = self.reload(Cause::Event, &Pace::default(), |_| {}).unwrap_or_else(|| {
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
            // Given rules are complete when they arrive, and a caller waits until they are loaded.
            let timing = if self.load.has_given() { PUSHED } else { self.timing };
            let next = next_cause(waited, &self.wake, timing, &self.is_stopping);
            let Some(cause) = next else { return };
            if !self.load.has_given() {
                self.wait_for_rest();
            }
            // A start goes at full pace, and is not counted.
            let has_rules = self.in_force.is_some();
            let work = self.rest.begin(&self.is_stopping);
            let is_paced = has_rules && !self.load.has_given();
            let pace = if is_paced { work.pace() } else { Pace::default() };
            let result = catch_unwind(AssertUnwindSafe(|| self.reload(cause, &pace, log_faults)));
            if result.is_err() {
                // Panics of the loader are caught in `load`. Whatever this panic was, the watch
                // goes on, so that later rules are found.
                self.published.note_panic();
                let fault = "internal error: the rules could not be put in force";
                self.load.note_outcome(Some(Err(vec![fault.to_owned()])));
            }
            if has_rules && std::mem::take(&mut self.is_counted) {
                self.rest.note(&work);
            }
        }
    }

    /// Waits until rules may be compiled again. What comes meanwhile is read after that, together.
    #[allow(clippy::disallowed_methods)] // the edge: the clock is used only for how long to wait
    fn wait_for_rest(&mut self) {
        while let Some(left) = self.rest.left(Instant::now()) {
            self.old_rules.free_unused();
            let wait = if self.old_rules.is_empty() { left } else { left.min(CHECK_INTERVAL) };
            let waited = self.wake.recv_timeout(wait);
            let is_over = waited == Err(RecvTimeoutError::Disconnected);
            if is_over || self.is_stopping.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Waits for a wake-up, or until it is time to read again; frees former rules meanwhile.
    fn wait(&mut self) -> Result<(), RecvTimeoutError> {
        let mut left = self.timing.poll;
        loop {
            self.old_rules.free_unused();
            let wait = if self.old_rules.is_empty() { left } else { left.min(CHECK_INTERVAL) };
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
        pace: &Pace,
        log: impl FnOnce(&[String]),
    ) -> Option<Result<FirstLoad, LoadError>> {
        self.arm(cause);
        let outcome = load_unless_known(&mut self.load, self.known, pace);
        self.published.note_files_left_out(self.load.left_out());
        let LoadOutcome::Changed(loaded) = outcome else {
            self.load.note_outcome(None);
            return None;
        };
        let Loaded { digest, sources, result } = *loaded;
        let Terms { is_trial, is_for_now, nothing, left_out } = self.load.terms();
        self.is_counted = !is_trial;
        // What was neither put in force nor reported is loaded again when it is found again.
        let is_settled = result.is_ok() || !is_trial && !is_for_now;
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
        if self.in_force == Some(digest) {
            info!(files, "the source holds the rules in force again");
            self.published.restore();
        } else {
            let version = format_args!("{:016x}", compiled.rules.version());
            info!(files, warnings, version, "rules loaded");
            log_lines(&compiled.warnings, |warning| warn!("rules: {warning}"));
            self.in_force = Some(digest);
            self.old_rules.add(self.published.put_in_force(Arc::new(compiled.rules)));
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
        // A pushed set may be sent again, and a set that is refused for now is read at each poll.
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
        match compile_kept(&mut self.load, &sources) {
            Ok(compiled) => {
                let version = format_args!("{:016x}", compiled.rules.version());
                warn!(version, "the rules of the snapshot are in force: {path}");
                self.in_force = Some(digest(&sources));
                self.published.put_snapshot_in_force(Arc::new(compiled.rules));
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

// One load: read, check whether there are changes, compile.

/// Maximum number of readings of one load.
const READINGS_MAX: usize = 4;

/// Reads and compiles rules: separates the watch from `rules` and from their source. May block;
/// called from the watcher's own thread.
pub trait Load: Send + 'static {
    /// Reads every source of rules, in an order that depends only on their names.
    ///
    /// # Errors
    /// The source that could not be read, and why: a line for each.
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String>;

    /// Compiles the rules of `sources` at this pace.
    ///
    /// # Errors
    /// Every fault, one line each with its place; at least one.
    fn compile(&mut self, sources: &[Arc<Source>], pace: &Pace) -> Result<Compiled, Vec<String>>;

    /// Whether the sources of one reading are always of one version, so that no second reading has
    /// to agree with it.
    fn is_atomic(&self) -> bool {
        false
    }

    /// Whether rules were given, besides those of files, that no reading has found.
    fn has_given(&self) -> bool {
        false
    }

    /// What the last reading is for.
    fn terms(&self) -> Terms {
        Terms::default()
    }

    /// Number of files that the last reading did not take for rules though they may be meant so.
    fn left_out(&self) -> usize {
        0
    }

    /// Receives the outcome of the last reading: success if its rules are in force, otherwise all
    /// its faults; `None` if nothing had changed.
    fn note_outcome(&mut self, _outcome: Option<Result<(), Vec<String>>>) {}

    /// When `source` was last changed, if that is known.
    fn changed_at(&mut self, _source: &Source) -> Option<SystemTime> {
        None
    }
}

/// What a reading is for; by default, to be in force if it is good, and to be reported if not.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Faults are the reader's business alone: it has other sources to try.
    pub is_trial: bool,
    /// Faults are only about this moment, as a lack of memory is: the same sources are loaded again
    /// at the next poll.
    pub is_for_now: bool,
    /// Why good rules are none at all, if they are not meant to be: reported as a failed load too.
    pub nothing: Option<String>,
    /// The faults of sources that the reader left out: they stay the last fault beside good rules.
    pub left_out: Vec<String>,
}

/// Good rules, with their warnings.
#[derive(Debug, Default)]
pub struct Compiled {
    /// The rules.
    pub rules: Rules,
    /// One line for each warning, with its place.
    pub warnings: Vec<String>,
}

/// Identifies a state of the directory, or a set that was pushed.
type Digest = blake3::Hash;

/// The result of a load.
enum LoadOutcome {
    /// The state is the known one.
    Unchanged,
    /// Another state, with its rules or its faults.
    Changed(Box<Loaded>),
}

/// What a load found.
struct Loaded {
    /// Identifies the state.
    digest: Digest,
    /// The files; none if they could not be read.
    sources: Vec<Arc<Source>>,
    /// Their rules, or why there are none.
    result: Result<Compiled, LoadError>,
}

/// Why a load found no usable rules.
enum LoadError {
    /// Nothing could be read.
    Unread(String),
    /// One line for each fault.
    Faults(Vec<String>),
    /// The loader panicked.
    Panicked,
}

/// Loads the rules, unless the state of the directory is `known`. A panic is a fault like any
/// other: it must not end the watch.
fn load_unless_known<L: Load>(load: &mut L, known: Option<Digest>, pace: &Pace) -> LoadOutcome {
    catch_unwind(AssertUnwindSafe(|| attempt(load, known, pace)))
        .unwrap_or_else(|_| refused(LoadError::Panicked, known))
}

/// Compiles `sources` that do not come from a reading. Here too a panic is a fault.
fn compile_kept<L: Load>(load: &mut L, sources: &[Arc<Source>]) -> Result<Compiled, LoadError> {
    let compiled = catch_unwind(AssertUnwindSafe(|| load.compile(sources, &Pace::default())));
    compiled.map_err(|_| LoadError::Panicked)?.map_err(LoadError::Faults)
}

fn attempt<L: Load>(load: &mut L, known: Option<Digest>, pace: &Pace) -> LoadOutcome {
    let mut last = None;
    // A link swapped between the reading of two files would mix two versions of the rules, and a
    // file that is removed between being found and being read is an error, so a reading is used
    // only if the next one finds the same. If changes never stop, the last reading is used: an
    // event follows it.
    for reading in 1..=READINGS_MAX {
        let read = load.read().map_err(LoadError::Unread);
        let digest = read.as_ref().map_or_else(LoadError::digest, |sources| digest(sources));
        if known == Some(digest) {
            return LoadOutcome::Unchanged;
        }
        if last == Some(digest) || reading == READINGS_MAX || load.is_atomic() {
            return match read {
                Ok(sources) => {
                    let result = load.compile(&sources, pace).map_err(LoadError::Faults);
                    LoadOutcome::Changed(Box::new(Loaded { digest, sources, result }))
                }
                Err(error) => refused(error, known),
            };
        }
        last = Some(digest);
    }
    LoadOutcome::Unchanged
}

fn refused(error: LoadError, known: Option<Digest>) -> LoadOutcome {
    let digest = error.digest();
    if known == Some(digest) {
        return LoadOutcome::Unchanged;
    }
    LoadOutcome::Changed(Box::new(Loaded { digest, sources: Vec::new(), result: Err(error) }))
}

// === impl LoadError ===

impl LoadError {
    fn digest(&self) -> Digest {
        blake3::hash(self.lines().concat().as_bytes())
    }

    /// Lines for people, one for each fault; at least one.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Unread(faults) => faults.lines().map(str::to_owned).collect(),
            Self::Faults(faults) => faults.clone(),
            Self::Panicked => {
                let fault = "internal error: the rules could not be read: the loader panicked";
                vec![fault.to_owned()]
            }
        }
    }
}

// Former rules, kept until no answer uses them any more.
//
// The last holder of a version frees it, and freeing a million rules takes a good part of a
// second. The watcher therefore holds the versions that it has replaced: it has the time for that,
// and a thread that answers requests has not.

/// Maximum number of former versions held. An answer takes milliseconds and a load takes longer, so
/// there are more only if some other part keeps one; the oldest is then left to its other holder.
const RETIRED_MAX: usize = 4;

/// Interval between checks whether they are still used.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Former versions that may still be in use, oldest first.
#[derive(Debug, Default)]
struct OldRules(Vec<Arc<Rules>>);

// === impl OldRules ===

impl OldRules {
    fn add(&mut self, rules: Option<Arc<Rules>>) {
        self.0.extend(rules);
        if self.0.len() > RETIRED_MAX {
            self.0.remove(0);
        }
    }

    /// Frees the versions that have no other holder: no new holder can appear.
    fn free_unused(&mut self) {
        self.0.retain(|rules| Arc::strong_count(rules) > 1);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

// When rule files were changed, and how long it took until the change was in force.

/// The time of change of each source that the rules in force were read from; never more than there
/// are sources.
#[derive(Debug, Default)]
struct ChangeTimes {
    known: Option<HashMap<String, SystemTime>>,
}

// === impl ChangeTimes ===

impl ChangeTimes {
    /// Notes that the rules of `sources` are in force. Returns the age of the newest change that
    /// this put in force; `None` at the start, which follows no change, and if no file has a time.
    #[allow(clippy::disallowed_methods, reason = "files tell the time of day; only to be shown")]
    fn note<L: Load>(&mut self, load: &mut L, sources: &[Arc<Source>]) -> Option<Duration> {
        let change_times = sources.iter().filter_map(|source| {
            let changed = load.changed_at(source)?;
            Some((source.name.clone(), changed))
        });
        let change_times: HashMap<_, _> = change_times.collect();
        let before = self.known.replace(change_times)?;
        let changed =
            self.known.iter().flatten().filter(|(name, at)| before.get(*name) != Some(at));
        let newest = changed.map(|(_, at)| *at).max()?;
        // If the clock was set back meanwhile, there is no age to return.
        SystemTime::now().duration_since(newest).ok()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod load_tests {
    use std::collections::VecDeque;

    use super::*;

    /// The file is not there.
    const GONE: &str = "gone";

    /// Returns the given texts one after another as its only file.
    struct Script {
        readings: VecDeque<&'static str>,
        compiled: Vec<String>,
    }

    impl Load for Script {
        fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
            let text = self.readings.pop_front().filter(|text| *text != GONE);
            text.map(|text| vec![source(text)]).ok_or("gone".to_owned())
        }

        fn compile(&mut self, sources: &[Arc<Source>], _: &Pace) -> Result<Compiled, Vec<String>> {
            let texts = sources.iter().map(|it| String::from_utf8(it.text.clone()).unwrap());
            self.compiled.extend(texts);
            Ok(Compiled::default())
        }
    }

    fn source(text: &str) -> Arc<Source> {
        Arc::new(Source { name: "a.yaml".to_owned(), text: text.into() })
    }

    /// Checks what is compiled from these readings while `known` is known; `None` if nothing new
    /// was found.
    fn check(known: Option<&'static str>, readings: &[&'static str], expected: Option<&str>) {
        let mut script =
            Script { readings: readings.iter().copied().collect(), compiled: Vec::new() };
        let known = known.map(|text| digest(&[source(text)]));
        let found = load_unless_known(&mut script, known, &Pace::default());
        assert_eq!(script.readings.len(), 0, "all of {readings:?} is read");
        assert_eq!(script.compiled.first().map(String::as_str), expected, "{readings:?}");
        assert_eq!(matches!(found, LoadOutcome::Unchanged), expected.is_none(), "{readings:?}");
    }

    #[test]
    fn a_reading_is_used_once_the_next_one_agrees() {
        check(None, &["new", "new"], Some("new"));
        check(Some("old"), &["mixed", "new", "new"], Some("new"));
        check(Some("old"), &["half", "mixed", "new", "new"], Some("new"));
    }

    #[test]
    fn a_file_removed_while_it_is_read_is_not_a_fault() {
        check(None, &[GONE, "new", "new"], Some("new"));
        check(Some("old"), &[GONE, "new", "new"], Some("new"));
        check(Some("old"), &["new", GONE, "newer", "newer"], Some("newer"));
        check(Some("old"), &[GONE, "old"], None);
    }

    #[test]
    fn a_known_state_is_neither_read_twice_nor_compiled() {
        check(Some("old"), &["old"], None);
        check(Some("old"), &["mixed", "old"], None);
    }

    #[test]
    fn under_continuous_changes_the_last_reading_is_used() {
        check(Some("old"), &["1", "2", "3", "4"], Some("4"));
    }

    #[test]
    fn a_reported_error_is_a_known_state() {
        let mut script = Script { readings: VecDeque::new(), compiled: Vec::new() };
        let pace = Pace::default();
        let LoadOutcome::Changed(loaded) = load_unless_known(&mut script, None, &pace) else {
            panic!("not new")
        };
        let Loaded { digest, result, .. } = *loaded;
        let Err(LoadError::Unread(message)) = result else { panic!("read") };
        assert_eq!(message, "gone");
        assert!(matches!(
            load_unless_known(&mut script, Some(digest), &pace),
            LoadOutcome::Unchanged
        ));
    }
}

#[cfg(test)]
mod rest_tests {
    use parking_lot::Mutex;

    use super::rest::PARTS;
    use super::*;

    /// Has other rules at each reading, which take a while to compile.
    struct Changing(Arc<Mutex<Vec<String>>>);

    const TAKES: Duration = Duration::from_millis(20);

    impl Load for Changing {
        fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
            let text = self.0.lock().len().to_string().into_bytes();
            Ok(vec![Arc::new(Source { name: "a.yaml".to_owned(), text })])
        }

        fn compile(&mut self, sources: &[Arc<Source>], _: &Pace) -> Result<Compiled, Vec<String>> {
            thread::sleep(TAKES);
            self.0.lock().push(String::from_utf8(sources[0].text.clone()).unwrap());
            Ok(Compiled::default())
        }

        fn is_atomic(&self) -> bool {
            true
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // measures real time
    fn rules_that_change_all_the_time_are_compiled_a_tenth_of_it() {
        let compiled = Arc::new(Mutex::new(Vec::new()));
        let load = Changing(Arc::clone(&compiled));
        let (_watcher, wake, _) = Watcher::spawn_pushed(load, Arc::default(), None).unwrap();
        let began = Instant::now();
        while began.elapsed() < 60 * TAKES {
            let _ = wake.try_send(());
            thread::sleep(TAKES / 10);
        }
        // The first one is a start, the second one has no rest before it, nor has one that is under way.
        let count = compiled.lock().len();
        let most = began.elapsed().div_duration_f64(PARTS * TAKES) + 3.0;
        assert!(count >= 3 && count as f64 <= most, "{count} of at most {most}");
    }
}

#[cfg(test)]
mod old_rules_tests {
    use super::*;

    #[test]
    fn old_rules_are_freed_by_the_watcher() {
        let mut old_rules = OldRules::default();
        let used = Arc::new(Rules::default());
        let seen = Arc::downgrade(&used);
        old_rules.add(Some(Arc::clone(&used)));
        old_rules.free_unused();
        assert!(!old_rules.is_empty(), "an answer is still computed under them");
        drop(used);
        assert!(seen.upgrade().is_some(), "the reader has not freed them");
        old_rules.free_unused();
        assert!(seen.upgrade().is_none() && old_rules.is_empty());
    }

    #[test]
    fn only_a_few_old_rules_are_held() {
        let mut old_rules = OldRules::default();
        let used: Vec<_> = (0..=RETIRED_MAX).map(|_| Arc::new(Rules::default())).collect();
        used.iter().for_each(|rules| old_rules.add(Some(Arc::clone(rules))));
        let held: Vec<_> = used.iter().map(|rules| Arc::strong_count(rules) > 1).collect();
        assert_eq!(held, [false, true, true, true, true]);
        old_rules.add(None);
        assert_eq!(old_rules.0.len(), RETIRED_MAX);
    }
}

#[cfg(test)]
mod change_times_tests {
    use super::*;

    /// Files by name, and how many seconds ago each was changed.
    struct Files(HashMap<String, u64>);

    impl Load for Files {
        fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
            Ok(Vec::new())
        }

        fn compile(&mut self, _: &[Arc<Source>], _: &Pace) -> Result<Compiled, Vec<String>> {
            Ok(Compiled::default())
        }

        fn changed_at(&mut self, source: &Source) -> Option<SystemTime> {
            let ago = self.0.get(&source.name)?;
            Some(SystemTime::UNIX_EPOCH + Duration::from_secs(10_000 - ago))
        }
    }

    #[test]
    fn only_files_changed_since_the_last_load_count() {
        let source = |name: &str| Arc::new(Source { name: name.to_owned(), text: Vec::new() });
        let sources = [source("a.yaml"), source("b.yaml")];
        let mut change_times = ChangeTimes::default();
        let files = |a, b| Files([("a.yaml".into(), a), ("b.yaml".into(), b)].into());
        assert_eq!(change_times.note(&mut files(50, 10), &sources), None, "the start");
        assert_eq!(change_times.note(&mut files(50, 10), &sources), None, "no file has changed");
        let took = change_times.note(&mut files(20, 10), &sources).expect("a.yaml has changed");
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let expected = since_epoch - Duration::from_secs(10_000 - 20);
        assert!(expected.abs_diff(took) < Duration::from_secs(60), "{took:?}, not {expected:?}");
    }
}
