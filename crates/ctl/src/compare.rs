//! `ratectl compare`: sends the same requests to two rate limit servers and reports where their
//! answers differ, such as a reference server and the ratelease that is to replace it.

mod difference;
mod report;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use clap::{Args, ValueEnum, ValueHint};
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use ratelease_cli::client::{Target, TlsFlags};
use ratelease_cli::out::{CliError, CliResult, Completion, Interrupt, Out, OutFlags, eprint_line};
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{Flags, Role, RulesDir};
use ratelease_cli::source;
use ratelease_engine::time::Clock;
use ratelease_rules::parse_duration;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::yaml::Yaml;
use ratelease_rules::{Rules, Source};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::server::UnaryService;
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Extensions, Response, Status};
use tower_service::Service;

use crate::compare::difference::Causes;
use crate::compare::report::Counts;
use crate::progress_line::ProgressLine;
use crate::replay::{LineFlags, Lines, Next};
use crate::signals::Signals;
use crate::yaml_documents::{field, items, text};
use crate::{query, yaml_documents};

/// Compares, and prints the differences. One without an explanation is a finding.
pub fn run(flags: &CompareFlags, role: Role, out: &mut Out) -> CliResult {
    flags.check()?;
    let dir = flags.rules.read(|values, faults| RulesDir::read(role, values, faults))?;
    let sources = source::read(std::slice::from_ref(&dir.dir), &dir.reading)?;
    let rules = source::load(std::slice::from_ref(&dir.dir), &dir.reading)?;
    let Compared { counts, interrupted } = run_sources(flags, &sources, rules)?;
    if flags.out.json {
        out.json(&report::json(&counts, flags, interrupted.is_some()))?;
    } else {
        report::text(&counts, flags, out)?;
    }
    let is_clean = counts.unexplained() == 0;
    Ok(interrupted.map_or(Completion::clean_if(is_clean), Completion::Interrupted))
}

// === Flags ===
//
// The command line of `compare`.

/// Maximum timeout of a call.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Maximum duration of a mirror.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum distance from the edge of a window.
const EDGE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of requests for each rule.
const GENERATED_MAX: i64 = 1_000_000;

/// Default of `--within` for requests that are sent one by one.
const WITHIN: u64 = 0;

/// Default of `--within` for requests of a mirror, which the two servers receive in different
/// orders.
const WITHIN_MIRRORED: u64 = 16;

pub const NOTES: &str = "\
Requests come from one of three sources:
  - LOGs, in the forms that `ratectl replay` reads; they are sent as fast as they are answered, and
    the times in them do not count;
  - --generate COUNT: so many requests for each rule, with a value of this run where the rule takes
    any, so that counts begin at zero;
  - --listen ADDRESS: what a client, such as Envoy, sends there. Each call is answered by one server
    (--answer-from) and mirrored to the other through a bounded queue, which never delays the
    answer: if it is full, the call is not compared. Other unary calls, such as health checks, go to
    that server alone.

Both servers count what they are sent. A call is sent to both at the same time; each answer is
compared: errors, code, and for each descriptor code, limit, remaining tokens and reset; headers,
metadata and body. A difference has one of three causes:
  - timing: its window begins or ends within --edge, or the tokens that remain differ by --within at
    most; and in the same window, what follows from that;
  - by design: ratelease does not charge the other rules of a request that one rule denies, the
    reference does (docs/differences.md);
  - unexplained: a finding.
A reset that differs by a second is no difference. Rules are those of --rules; each difference
counts for the rule that its descriptor finds there. Flags of TLS concern --against.

A signal, such as Ctrl-C, ends the run; what was compared until then is reported.

Exit status: 0 no unexplained difference, 1 some, 2 an error, or 128 plus the number of the signal
that ended it.

Examples:
  ratectl compare --against ratelimit:8081 --rules config/rules --generate 20
  ratectl compare --against ratelimit:8081 access.log --domain shop \\
      --descriptor path=%path_without_query%
  ratectl compare --against ratelimit:8081 --listen 127.0.0.1:9081 --duration 10m --json";

/// Flags of `compare`.
#[derive(Debug, Args)]
pub struct CompareFlags {
    /// Logs, in order; - for standard input
    #[arg(value_name = "LOG", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["generate", "listen"])]
    pub logs: Vec<String>,
    /// The server to compare with, such as the reference: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", value_parser = Target::parse)]
    pub against: Target,
    /// The server that is to answer the same, ratelease: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", default_value = "127.0.0.1:8081",
          value_parser = Target::parse)]
    pub target: Target,
    /// Send this many requests for each rule
    #[arg(long, value_name = "COUNT", conflicts_with = "listen",
          value_parser = clap::value_parser!(u32).range(1..=GENERATED_MAX))]
    pub generate: Option<u32>,
    /// Address at which to take calls, and mirror them
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// The server that answers the calls of --listen
    #[arg(long, value_name = "SERVER", default_value = "target", requires = "listen")]
    answer_from: AnswerFrom,
    /// Time after which --listen ends, a duration [default: at a signal]
    #[arg(long, value_name = "SPAN", requires = "listen", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Distance from the edge of a window at which servers may count in different windows
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = edge)]
    pub edge: Duration,
    /// Difference of remaining tokens that the order of requests may cause [default: 0, or 16 with
    /// --listen]
    #[arg(long, value_name = "COUNT")]
    within: Option<u64>,
    /// Maximum time for connecting, and for each answer, a duration
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = parse_timeout)]
    pub timeout: Duration,
    #[command(flatten)]
    pub lines: LineFlags,
    #[command(flatten)]
    pub rules: Flags<RulesDir>,
    #[command(flatten)]
    pub tls: TlsFlags,
    #[command(flatten)]
    pub out: OutFlags,
}

/// A server that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AnswerFrom {
    /// That of --target
    Target,
    /// That of --against
    Against,
}

// === impl CompareFlags ===

impl CompareFlags {
    /// Checks the flags together.
    ///
    /// # Errors
    /// There is no source of requests.
    pub fn check(&self) -> Result<(), CliError> {
        if self.logs.is_empty() && self.generate.is_none() && self.listen.is_none() {
            return Err(CliError::new(
                "no requests: name a LOG, or set --generate COUNT or --listen ADDRESS",
            ));
        }
        self.lines.check()
    }

    /// The difference of remaining tokens that the order of requests may cause.
    pub fn within(&self) -> u64 {
        let default = if self.listen.is_some() { WITHIN_MIRRORED } else { WITHIN };
        self.within.unwrap_or(default)
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= TIMEOUT_MAX);
    span.ok_or_else(|| "expected a duration of at most 1h with its unit, as in 5s".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= DURATION_MAX);
    span.ok_or_else(|| "expected a duration of at most 720h with its unit, as in 10m".to_owned())
}

fn edge(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| *span <= EDGE_MAX);
    span.ok_or_else(|| "expected a duration of at most 60s with its unit, as in 1s".to_owned())
}

// === Run ===
//
// Runs a comparison: connects to both servers, and sends the requests of its source.

/// Maximum time for calls in flight at the end of a mirror.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a signal: without `--duration` a mirror runs until one arrives.
const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Number of requests between drawings of the progress.
const REQUESTS_PER_DRAW: u64 = 256;

/// The result of the comparison.
struct Compared {
    counts: Counts,
    interrupted: Option<Interrupt>,
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
fn run_sources(
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
        let clock = Clock::start();
        let progress = ProgressLine::stderr();
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
            for generated in requests(sources, &unique)? {
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
                        (!request.descriptors.is_empty()).then(|| query::message(request))
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
        let requests = self.counts.requests;
        let differing = self.counts.unexplained();
        if requests % REQUESTS_PER_DRAW == 1 {
            self.progress.draw("", &format!("{requests} requests, {differing} unexplained"));
        }
    }
}

fn message_of(generated: &Generated) -> Bytes {
    let entries = generated.entries.iter().map(|(key, value)| Entry { key, value });
    let descriptor = Descriptor { entries: entries.collect(), ..Descriptor::default() };
    let descriptors = std::iter::once(descriptor).collect();
    query::message(&Request { domain: &generated.domain, descriptors, hits_addend: 0 })
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
        mirror(servers, flags.answer_from, Arc::clone(&counts), Arc::clone(&dropped));
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

// === Call ===
//
// Calls of a server whose messages are bytes, so that nothing that a newer server adds is lost on
// the way.

/// The call of Envoy.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The message of an answer, or the error that came in its place.
pub type Answer = Result<Bytes, (Code, String)>;

/// A server, connected.
#[derive(Debug, Clone)]
struct Server {
    channel: Channel,
    /// Maximum time for an answer.
    timeout: Duration,
}

/// Passes messages through unchanged.
#[derive(Debug, Clone, Copy, Default)]
struct Unchanged;

// === impl Server ===

impl Server {
    /// Sends `message` in a rate limit call.
    async fn ask(&self, message: Bytes) -> Answer {
        let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
        answer(&self.call(path, MetadataMap::new(), message).await)
    }

    /// Sends a unary call of any path.
    async fn call(
        &self,
        path: PathAndQuery,
        metadata: MetadataMap,
        message: Bytes,
    ) -> Result<Response<Bytes>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let request = tonic::Request::from_parts(metadata, Extensions::new(), message);
        let call = async {
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.unary(request, path, Unchanged).await
        };
        match timeout(self.timeout, call).await {
            Ok(answered) => answered,
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }
}

/// The part of an answer that is compared.
fn answer(answered: &Result<Response<Bytes>, Status>) -> Answer {
    match answered {
        Ok(response) => Ok(response.get_ref().clone()),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

// === impl Unchanged ===

impl Codec for Unchanged {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Unchanged {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Unchanged {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

// === Generate ===
//
// Makes requests from rule files: for each rule, the descriptor that finds it.

/// Takes the place of `*` in a pattern.
const ANY: &str = "any";

/// A request with one descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Generated {
    domain: String,
    /// Keys and values, in order.
    entries: Vec<(String, String)>,
}

/// Returns a request for each `rate_limit` of the files. `unique` is the value where a rule takes
/// any.
///
/// # Errors
/// A file is not YAML.
fn requests(sources: &[Source], unique: &str) -> Result<Vec<Generated>, CliError> {
    let mut generated = Vec::new();
    for source in sources {
        let documents = yaml_documents::read(source);
        let documents = documents.map_err(|faults| CliError::new(Safe(faults)))?;
        // Only the first document of a rule file counts.
        let Some(root) = documents.first().map(|document| &document.root) else { continue };
        let domain = field(root, "domain").and_then(text).unwrap_or_default();
        visit(
            root,
            &mut Generated { domain: domain.to_owned(), entries: Vec::new() },
            unique,
            &mut generated,
        );
    }
    Ok(generated)
}

/// Visits the descriptors below `node`, which `path` leads to. The recursion is as deep as the
/// parser allows.
fn visit(node: &Yaml, path: &mut Generated, unique: &str, generated: &mut Vec<Generated>) {
    for descriptor in items(field(node, "descriptors")) {
        let Some(key) = field(descriptor, "key").and_then(text) else { continue };
        let value = field(descriptor, "value").and_then(text).filter(|value| !value.is_empty());
        let value = value.map_or_else(|| unique.to_owned(), |value| value.replace('*', ANY));
        path.entries.push((key.replace('*', ANY), value));
        if field(descriptor, "rate_limit").is_some() {
            generated.push(path.clone());
        }
        visit(descriptor, path, unique, generated);
        path.entries.pop();
    }
}

// === Mirror ===
//
// Takes the calls of a client, has one server answer them, and mirrors them to the other.
//
// The answer waits for nothing but the server that gives it: a rate limit call is put into a queue
// of a fixed length, or is not compared if that is full. A task takes calls from the queue, asks
// the other server, and compares once both have answered.

/// Calls that wait to be mirrored.
const QUEUE_MAX: usize = 1024;
/// Calls in flight to the server that does not answer.
const MIRRORED_MAX: usize = 64;

/// A call that was answered, or is about to be.
struct Mirrored {
    message: Bytes,
    metadata: MetadataMap,
    answer: oneshot::Receiver<Answer>,
}

/// The service that clients call.
#[derive(Clone)]
struct Mirror {
    answering: Server,
    queue: mpsc::Sender<Mirrored>,
    dropped: Arc<AtomicU64>,
}

/// The other end of the queue.
struct Mirroring {
    queue: mpsc::Receiver<Mirrored>,
    other: Server,
    from: AnswerFrom,
    counts: Arc<Mutex<Counts>>,
    clock: Clock,
}

/// One call.
struct Call {
    mirror: Mirror,
    path: PathAndQuery,
}

/// Makes a service that answers calls from the one server, and the part that mirrors the calls to
/// the other.
fn mirror(
    (target, against): (Server, Server),
    from: AnswerFrom,
    counts: Arc<Mutex<Counts>>,
    dropped: Arc<AtomicU64>,
) -> (Mirror, Mirroring) {
    let (answering, other) = match from {
        AnswerFrom::Target => (target, against),
        AnswerFrom::Against => (against, target),
    };
    let (sender, queue) = mpsc::channel(QUEUE_MAX);
    let mirroring = Mirroring { queue, other, from, counts, clock: Clock::start() };
    (Mirror { answering, queue: sender, dropped }, mirroring)
}

// === impl Mirror ===

impl Mirror {
    /// Puts a call into the queue, and returns where its answer has to be sent to. `None` if it is
    /// not to be compared.
    fn begin(
        &self,
        path: &str,
        request: &tonic::Request<Bytes>,
    ) -> Option<oneshot::Sender<Answer>> {
        if path != SHOULD_RATE_LIMIT {
            return None;
        }
        let Ok(place) = self.queue.try_reserve() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let (sender, answer) = oneshot::channel();
        let message = request.get_ref().clone();
        let metadata = request.metadata().clone();
        place.send(Mirrored { message, metadata, answer });
        Some(sender)
    }
}

type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl UnaryService<Bytes> for Call {
    type Response = Bytes;
    type Future = Answering<Response<Bytes>, Status>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let Self { mirror, path } = self;
        let mirror = mirror.clone();
        let path = path.clone();
        Box::pin(async move {
            let told = mirror.begin(path.path(), &request);
            let (metadata, _, message) = request.into_parts();
            let answered = mirror.answering.call(path, metadata, message).await;
            if let Some(told) = told {
                // The receiver is gone only if the run has ended.
                let _ = told.send(answer(&answered));
            }
            answered
        })
    }
}

impl Service<http::Request<Body>> for Mirror {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let call = Call { mirror: self.clone(), path };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Unchanged);
            Ok(grpc.unary(call, request).await)
        })
    }
}

// === impl Mirroring ===

impl Mirroring {
    /// Mirrors calls until the service is gone and the queue is empty.
    async fn run(mut self) {
        let room = Arc::new(Semaphore::new(MIRRORED_MAX));
        while let Some(mirrored) = self.queue.recv().await {
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            let other = self.other.clone();
            let counts = Arc::clone(&self.counts);
            let from = self.from;
            let clock = self.clock;
            tokio::spawn(async move {
                compare(mirrored, &other, from, &counts, clock).await;
                drop(place);
            });
        }
        // All places are free again once the last call is compared.
        let _ = room.acquire_many(u32::try_from(MIRRORED_MAX).unwrap_or(u32::MAX)).await;
    }
}

async fn compare(
    mirrored: Mirrored,
    other: &Server,
    from: AnswerFrom,
    counts: &Mutex<Counts>,
    clock: Clock,
) {
    let Mirrored { message, metadata, answer: first } = mirrored;
    let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
    let second = other.call(path, metadata, message.clone());
    let (first, second) = tokio::join!(first, second);
    // A call that its client gave up has no answer.
    let Ok(first) = first else { return };
    let second = answer(&second);
    let (target, against) = match from {
        AnswerFrom::Target => (first, second),
        AnswerFrom::Against => (second, first),
    };
    counts.lock().note(message, target, against, clock.now());
}

#[cfg(test)]
mod tests {
    use ratelease_rules::request::Entry;
    use ratelease_rules::{Lookup, Options, load};

    use super::*;

    #[test]
    fn each_rule_is_found_by_its_request() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/rules");
        let skip = ratelease_rules::Dotfiles::Skip;
        let yaml = ratelease_rules::Endings::Yaml;
        let sources = ratelease_rules::read_path(dir.as_ref(), skip, yaml).unwrap().sources;
        let rules = load(&sources, Options::default()).unwrap().rules;
        let requests = requests(&sources, "unique").unwrap();
        let mut found: Vec<_> = requests
            .iter()
            .map(|Generated { domain, entries }| {
                let entries: Vec<_> =
                    entries.iter().map(|(key, value)| Entry { key, value }).collect();
                match rules.find(domain, &entries) {
                    Lookup::Rule(rule) => rule.path.to_string(),
                    other => panic!("{other:?} for {domain} {entries:?}"),
                }
            })
            .collect();
        found.sort_unstable();
        let all: Vec<_> = rules.iter().map(|rule| rule.path.to_string()).collect();
        assert_eq!(found, all);
    }
}
