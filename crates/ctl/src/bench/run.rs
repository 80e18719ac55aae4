//! Executes a run: a trial, then connections on several threads that start together, then the sum
//! of their counts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::join_all;
use ratelease_engine::time::Clock;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::client::{Client, ConnectionState, Shared};
use super::counts::CallCounts;
use super::draw::Zipf;
use super::flags::Plan;
use super::link::{self, Link};
use super::pacer;
use super::progress::Progress;
use super::report::Report;
use super::request::{self, Requests};
use super::schedule::{Pace, RunTimes};
use super::trial;
use crate::progress_line::ProgressLine;
use crate::signals::Signals;

/// Time from the start signal to the first request, so that every thread has received the signal.
const HEAD_START: Duration = Duration::from_millis(20);

/// A thread of a run; returns the counts of its connections.
type Worker = JoinHandle<Result<CallCounts, String>>;

/// Executes `plan`, until its end or until a signal arrives.
///
/// # Errors
///
/// One line that says why the run could not begin, and what to do.
pub(super) fn run(plan: Plan) -> Result<Report, String> {
    let shared = Arc::new(prepare(plan)?);
    let Plan { connections, threads, rate, warmup, duration, .. } = shared.plan;
    runtime()?.block_on(trial::trial(&shared))?;
    pacer::reduce_timer_slack();
    let (ready, connected) = mpsc::sync_channel(threads as usize);
    let (begin, begun) = watch::channel(None);
    let mut workers = Vec::new();
    for thread in 0..threads {
        let states: Vec<u32> = (0..connections).filter(|state| state % threads == thread).collect();
        let (shared, ready, begun) = (Arc::clone(&shared), ready.clone(), begun.clone());
        workers.push(thread::spawn(move || work(&shared, &states, &ready, begun)));
    }
    drop(ready);
    connected.iter().take(threads as usize).collect::<Result<(), String>>()?;
    let signals = Signals::listen(|| ProgressLine::stderr().clear(), None)
        .map_err(|error| error.to_string())?;
    let start = shared.clock.now() + HEAD_START;
    let span = RunTimes { start, warm: start + warmup, end: start + warmup + duration };
    begin.send_replace(Some(span));
    if let Some(rate) = rate {
        let shared = Arc::clone(&shared);
        let pace = Pace { rate, connections };
        thread::spawn(move || pacer::wake_when_due(&shared.states, pace, span, shared.clock));
    }
    let is_over = || workers.iter().all(JoinHandle::is_finished);
    let interrupted = Progress::new(&shared, span).follow(&signals, is_over);
    let counts = gather(workers)?;
    let measured = shared.end(span.end).since(span.warm);
    Ok(Report::new(&shared.plan, &counts, measured, interrupted))
}

fn prepare(plan: Plan) -> Result<Shared, String> {
    Ok(Shared {
        head: request::head(&plan.target)?,
        requests: Requests::encode(&plan.shape)?,
        zipf: Zipf::new(plan.shape.keys, plan.zipf),
        clock: Clock::start(),
        states: (0..plan.connections).map(|_| ConnectionState::default()).collect(),
        stopped_at: AtomicU64::new(u64::MAX),
        plan,
    })
}

/// The work of one thread: connects, reports that, waits for the start and drives its connections.
fn work(
    shared: &Arc<Shared>,
    states: &[u32],
    ready: &mpsc::SyncSender<Result<(), String>>,
    mut begun: watch::Receiver<Option<RunTimes>>,
) -> Result<CallCounts, String> {
    runtime()?.block_on(async {
        let links = connect(shared, states.len()).await;
        let (said, links) = match links {
            Ok(links) => (Ok(()), links),
            Err(reason) => (Err(reason), Vec::new()),
        };
        // The receiver is gone if another thread has failed to connect.
        let _ = ready.send(said);
        let Ok(span) = begun.wait_for(Option::is_some).await.map(|span| *span) else {
            return CallCounts::new();
        };
        let Some(span) = span else { return CallCounts::new() };
        tokio::time::sleep_until(shared.clock.instant(span.start)).await;
        let mut tasks = Vec::new();
        for (link, state) in links.into_iter().zip(states) {
            let client = Client::new(Arc::clone(shared), *state, span)?;
            tasks.push(tokio::spawn(client.run(link)));
        }
        let mut all = CallCounts::new()?;
        for counts in join_all(tasks).await {
            all.merge(&counts.map_err(|error| error.to_string())?)?;
        }
        Ok(all)
    })
}

async fn connect(shared: &Shared, count: usize) -> Result<Vec<Link>, String> {
    let Plan { target, tls, .. } = &shared.plan;
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let link = link::connect(target, tls.as_ref()).await;
        links.push(link.map_err(|error| trial::unreachable(target, &error))?);
    }
    Ok(links)
}

fn gather(workers: Vec<Worker>) -> Result<CallCounts, String> {
    let mut all = CallCounts::new()?;
    for worker in workers {
        let counts =
            worker.join().map_err(|_| "a thread of the load generator failed".to_owned())?;
        all.merge(&counts?)?;
    }
    Ok(all)
}

fn runtime() -> Result<Runtime, String> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| format!("cannot start a runtime: {error}; raise the limit on open files"))
}
