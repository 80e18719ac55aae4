//! Executes a run: a trial, then connections on several threads that start together, then the sum
//! of their counts.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::task::AtomicWaker;
use ratelease_cli::client::Target;
use ratelease_cli::out::Interrupt;
use ratelease_engine::time::{Clock, Time};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time::timeout;

use super::client::{self, Call, CallCounts, CallResult, Client, Failure, Link, Shared};
use super::flags::Plan;
use super::report::Report;
use super::requests::{self, Requests, Zipf};
use super::schedule::{self, Pace, RunTimes};

/// Time from the start signal to the first request, so that every thread has received the signal.
const HEAD_START: Duration = Duration::from_millis(20);

/// A thread of a run; returns the counts of its connections.
type Worker = JoinHandle<Result<CallCounts, String>>;

/// Executes `plan`, until its end or until `stop` has a signal.
///
/// # Errors
///
/// The run could not begin. The error is one line with the reason and the advice.
pub(crate) fn run(plan: Plan, stop: &mpsc::Receiver<Interrupt>) -> Result<Report, String> {
    let shared = Arc::new(prepare(plan)?);
    let Plan { connections, threads, rate, warmup, duration, .. } = shared.plan;
    runtime()?.block_on(trial(&shared))?;
    schedule::reduce_timer_slack();
    let (ready, connected) = mpsc::sync_channel(threads as usize);
    let (begin, begun) = watch::channel(None);
    let mut workers = Vec::new();
    for thread in 0..threads {
        let indexes: Vec<u32> =
            (0..connections).filter(|index| index % threads == thread).collect();
        let (shared, ready, begun) = (Arc::clone(&shared), ready.clone(), begun.clone());
        workers.push(thread::spawn(move || work(&shared, &indexes, &ready, begun)));
    }
    drop(ready);
    connected.iter().take(threads as usize).collect::<Result<(), String>>()?;
    let start = shared.clock.now() + HEAD_START;
    let span = RunTimes { start, warm: start + warmup, end: start + warmup + duration };
    begin.send_replace(Some(span));
    if let Some(rate) = rate {
        let shared = Arc::clone(&shared);
        let pace = Pace { rate, connections };
        thread::spawn(move || schedule::wake_when_due(&shared.due, pace, span, shared.clock));
    }
    let interrupted = stop.recv_timeout(span.end.since(shared.clock.now())).ok();
    if interrupted.is_some() {
        shared.stop(shared.clock.now());
    }
    let counts = gather(workers)?;
    let measured = shared.end(span.end).since(span.warm);
    Ok(Report::new(&shared.plan, &counts, measured, interrupted))
}

fn prepare(plan: Plan) -> Result<Shared, String> {
    Ok(Shared {
        head: requests::head(&plan.target)?,
        requests: Requests::encode(&plan.shape)?,
        zipf: Zipf::new(plan.shape.keys, plan.zipf),
        clock: Clock::start(),
        due: (0..plan.connections).map(|_| AtomicWaker::new()).collect(),
        stopped_at: AtomicU64::new(u64::MAX),
        plan,
    })
}

/// The work of one thread: connects, reports that, waits for the start and drives its connections.
fn work(
    shared: &Arc<Shared>,
    indexes: &[u32],
    ready: &mpsc::SyncSender<Result<(), String>>,
    mut begun: watch::Receiver<Option<RunTimes>>,
) -> Result<CallCounts, String> {
    runtime()?.block_on(async {
        let links = connect_all(shared, indexes.len()).await;
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
        for (link, index) in links.into_iter().zip(indexes) {
            let client = Client::new(Arc::clone(shared), *index, span)?;
            tasks.push(tokio::spawn(client.run(link)));
        }
        let mut all = CallCounts::new()?;
        for counts in join_all(tasks).await {
            all.merge(&counts.map_err(|error| error.to_string())?)?;
        }
        Ok(all)
    })
}

async fn connect_all(shared: &Shared, count: usize) -> Result<Vec<Link>, String> {
    let Plan { target, tls, .. } = &shared.plan;
    let mut links = Vec::with_capacity(count);
    for _ in 0..count {
        let link = client::connect(target, tls.as_ref()).await;
        links.push(link.map_err(|error| unreachable(target, &error))?);
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

// === Trial ===

/// Maximum time to connect and get an answer.
const TRIAL_MAX: Duration = Duration::from_secs(5);

/// The gRPC code for a method that a server does not implement.
const UNIMPLEMENTED: u16 = 12;

/// Sends one request before the run, to check that there is a rate limit server. Accepts any answer
/// that a rate limit server may give, including errors.
///
/// # Errors
///
/// The target gave another answer. The error is one line with that answer and the advice.
async fn trial(shared: &Shared) -> Result<(), String> {
    let target = &shared.plan.target;
    match timeout(TRIAL_MAX, ask(shared)).await {
        Ok(answered) => answered,
        Err(_) => Err(format!(
            "{target} did not answer within {TRIAL_MAX:?}; name the server's gRPC port with \
             --target"
        )),
    }
}

async fn ask(shared: &Shared) -> Result<(), String> {
    let Plan { target, tls, .. } = &shared.plan;
    let connected = client::connect(target, tls.as_ref()).await;
    let (send, connection) = connected.map_err(|error| unreachable(target, &error))?;
    let driver = tokio::spawn(connection);
    let not_grpc = |found: String| {
        format!("{target} {found}; name the server's gRPC port with --target, 8081 by default")
    };
    let strange = |error: h2::Error| not_grpc(format!("does not speak HTTP/2: {error}"));
    let mut send = send.ready().await.map_err(strange)?;
    let (response, mut body) = send.send_request(shared.head.clone(), false).map_err(strange)?;
    body.send_data(shared.requests.get(0), true).map_err(strange)?;
    let (_, outcome) = Call::new(Time::default(), response).await;
    drop((send, body));
    match outcome {
        CallResult::Failed(Failure::Grpc(UNIMPLEMENTED)) => Err(not_grpc(
            "is a gRPC server without envoy.service.ratelimit.v3.RateLimitService".into(),
        )),
        CallResult::Failed(Failure::NotGrpc(status)) => {
            Err(not_grpc(format!("answers HTTP {status} and not gRPC")))
        }
        CallResult::Failed(Failure::Lost) => {
            let why = driver.await.ok().and_then(Result::err).map(|error| format!(": {error}"));
            let why = why.unwrap_or_default();
            Err(not_grpc(format!("closed the connection, it does not speak HTTP/2{why}")))
        }
        _ => {
            driver.abort();
            Ok(())
        }
    }
}

/// Describes a failure to connect, with a hint.
fn unreachable(target: &Target, error: &std::io::Error) -> String {
    format!("cannot connect to {target}: {error}; start the server, or correct --target")
}
