//! Runs a comparison: connects to both servers, and sends what its source has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use ratelease_cli::out::{CliError, Interrupt, eprint_line};
use ratelease_engine::time::Clock;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Rules, Source};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::transport::server::TcpIncoming;

use super::call::Server;
use super::cause::Causes;
use super::counts::Counts;
use super::flags::CompareFlags;
use super::generate::{self, Generated};
use super::mirror;
use crate::progress_line::ProgressLine;
use crate::query::wire;
use crate::replay::{Lines, Next};
use crate::signals::Signals;

/// Maximum time for calls in flight at the end of a mirror.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a signal: without `--duration` a mirror runs until one arrives.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Number of requests between drawings of the progress.
const REQUESTS_PER_DRAW: u64 = 256;

/// What was compared.
pub(super) struct Compared {
    pub(super) counts: Counts,
    pub(super) interrupted: Option<Interrupt>,
}

/// Sends requests one by one.
struct Sequence<'a> {
    target: Server,
    against: Server,
    counts: Counts,
    clock: Clock,
    progress: ProgressLine,
    signals: &'a Signals,
}

/// Runs the comparison that `flags` ask for, until its end or a signal.
///
/// # Errors
/// A server cannot be reached, a log cannot be read, or there is nothing to send.
pub(super) fn run(
    flags: &CompareFlags,
    sources: &[Source],
    rules: Rules,
) -> Result<Compared, CliError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| {
        CliError::new(format_args!("cannot start: {error}; raise the limit on open files"))
    })?;
    let counts = Counts::new(rules, Causes::new(flags.edge, flags.within()));
    let signals = Signals::listen(|| ProgressLine::stderr().clear(), None)?;
    let compared = runtime.block_on(async {
        let within = flags.timeout;
        let target = flags.target.connect(None, within).await?;
        let against = flags.against.connect(flags.tls.config()?, within).await?;
        let [target, against] =
            [target, against].map(|channel| Server { channel, timeout: within });
        if flags.listen.is_some() {
            return mirrored(flags, (target, against), counts, signals).await;
        }
        let (clock, progress) = (Clock::start(), ProgressLine::stderr());
        let signals = &signals;
        let mut sequence = Sequence { target, against, counts, clock, progress, signals };
        let sent = sequence.send(flags, sources).await;
        sequence.progress.clear();
        sent?;
        let interrupted = signals.first();
        Ok(Compared { counts: sequence.counts, interrupted })
    })?;
    let Counts { requests, skipped, .. } = compared.counts;
    if requests == 0 && flags.listen.is_none() && compared.interrupted.is_none() {
        return Err(CliError::new(match skipped {
            0 => "there is nothing to send: no line, or no rule".to_owned(),
            lines => format!("none of {lines} lines has a request; `ratectl replay` says why"),
        }));
    }
    Ok(compared)
}

// === impl Sequence ===

impl Sequence<'_> {
    async fn send(&mut self, flags: &CompareFlags, sources: &[Source]) -> Result<(), CliError> {
        if let Some(count) = flags.generate {
            let unique = format!("ratectl-{:016x}", fastrand::u64(..));
            for generated in generate::requests(sources, &unique)? {
                let message = message_of(&generated);
                for _ in 0..count {
                    self.one(message.clone()).await;
                }
            }
        }
        for log in &flags.logs {
            self.log(log, flags).await?;
        }
        Ok(())
    }

    async fn log(&mut self, name: &str, flags: &CompareFlags) -> Result<(), CliError> {
        let failed = |error| CliError::new(format_args!("{name}: cannot be read: {error}"));
        let mut lines = Lines::open(name, self.signals).map_err(failed)?;
        let mut number = 0;
        while let Some(line) = lines.next().map_err(failed)? {
            number += 1;
            let message = match &line {
                Next::Line(line) if line.trim().is_empty() => continue,
                Next::Line(line) => {
                    let take = |_, request: &Request<'_>| {
                        (!request.descriptors.is_empty()).then(|| wire::message(request))
                    };
                    flags.lines.request((name, number), line.trim(), false, take)?.ok().flatten()
                }
                Next::TooLong => None,
            };
            match message {
                Some(message) => self.one(message).await,
                None => self.counts.skipped += 1,
            }
        }
        Ok(())
    }

    /// Sends one request to both servers at the same time, unless a signal has arrived.
    async fn one(&mut self, message: Bytes) {
        if self.signals.first().is_some() {
            return;
        }
        let (target, against) =
            tokio::join!(self.target.ask(message.clone()), self.against.ask(message.clone()));
        self.counts.note(message, target, against, self.clock.now());
        let (requests, differing) = (self.counts.requests, self.counts.unexplained());
        if requests % REQUESTS_PER_DRAW == 1 {
            self.progress.draw("", &format!("{requests} requests, {differing} unexplained"));
        }
    }
}

fn message_of(generated: &Generated) -> Bytes {
    let entries = generated.entries.iter().map(|(key, value)| Entry { key, value });
    let descriptor = Descriptor { entries: entries.collect(), ..Descriptor::default() };
    let descriptors = std::iter::once(descriptor).collect();
    wire::message(&Request { domain: &generated.domain, descriptors, hits_addend: 0 })
}

/// Mirrors calls until the duration is over or a signal arrives.
async fn mirrored(
    flags: &CompareFlags,
    servers: (Server, Server),
    counts: Counts,
    signals: Signals,
) -> Result<Compared, CliError> {
    let Some(address) = flags.listen else { return Err(CliError::new("--listen is missing")) };
    let failed = |error: &dyn std::fmt::Display| CliError::new(format_args!("{address}: {error}"));
    let listener = TcpListener::bind(address).await.map_err(|error| failed(&error))?;
    let bound = listener.local_addr().map_err(|error| failed(&error))?;
    let counts = Arc::new(Mutex::new(counts));
    let dropped = Arc::new(AtomicU64::new(0));
    let (service, mirroring) =
        mirror::mirror(servers, flags.answer_from, Arc::clone(&counts), Arc::clone(&dropped));
    let mirroring = tokio::spawn(mirroring.run());
    let (end, ended) = oneshot::channel::<()>();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let serving = tonic::transport::Server::builder().serve_with_incoming_shutdown(
        service,
        incoming,
        async { drop(ended.await) },
    );
    let mut serving = tokio::spawn(serving);
    eprint_line(format_args!("ratectl compare: listening on {bound}"));
    let duration = flags.duration.unwrap_or(WAIT_MAX);
    let waited = tokio::task::spawn_blocking(move || (signals.wait(duration), signals)).await;
    let (interrupted, _signals) = waited.map_err(|error| failed(&error))?;
    let _ = end.send(());
    // A client that keeps a call open must not keep this process.
    if timeout(DRAIN_MAX, &mut serving).await.is_err() {
        serving.abort();
    }
    let _ = timeout(DRAIN_MAX, mirroring).await;
    let rules = Rules::default();
    let mut counts = std::mem::replace(
        &mut *counts.lock(),
        Counts::new(rules, Causes::new(flags.edge, flags.within())),
    );
    counts.dropped = dropped.load(Ordering::Relaxed);
    Ok(Compared { counts, interrupted })
}
