//! What the process counts about itself, for the status page and as metrics. Each part reports its
//! own counters; `docs/metrics.md` says what each means.

use std::cmp::Ordering;

use ratelease_engine::counter as engine;
use ratelease_rules::FailureMode;

use super::family::Kind;

/// A counter of the process, or a level that it reports. Ordered by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// A counter of the engine.
    Engine(engine::Counter),
    /// Background tasks that were started again.
    TaskRestarts,
    /// Tasks that wait for a thread.
    TasksReady,
    /// Loads of rules that panicked.
    LoaderPanics,
    /// Open connections of a listener.
    Connections(ListenerName),
    /// Connections beyond what open files allow.
    ConnectionsRefused,
    /// Idle connections that were closed to make room for others.
    ConnectionsEvicted,
    /// Connections that were closed because their client exceeded its budgets.
    ConnectionsThrottled,
    /// Calls that wait.
    CallsUnderWay,
    /// Memory that unfinished messages take.
    MessageBytes,
    /// Calls that were refused for lack of room.
    Shed,
    /// Calls that panicked.
    RequestPanics,
    /// Snapshots of the rules that were written.
    SnapshotsWritten,
    /// Snapshots of the rules that could not be written.
    SnapshotFailures,
    /// Log lines that were not written in time.
    LogLinesLost,
    /// Decision samples above what the log takes in a second.
    DecisionSamplesLeftOut,
    /// Spans that the collector accepted.
    SpansSent,
    /// Spans that found the queue full.
    SpansDropped,
    /// Spans that the collector did not accept.
    SpansFailed,
}

/// A listener, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerName {
    /// The gRPC listener.
    Grpc,
    /// The listener of `/json` and the probes.
    Http,
    /// The debug listener.
    Debug,
    /// The listener of the metrics.
    Metrics,
}

/// A counter and its value: the number of events since the process began, or the present level.
pub type Count = (Counter, u64);

/// How a counter is shown as a metric.
pub struct Metric {
    /// The name of the family.
    pub name: &'static str,
    /// How the value behaves.
    pub kind: Kind,
    /// The label of the series, if the family has several.
    pub label: Option<(&'static str, &'static str)>,
    /// The meaning.
    pub help: &'static str,
}

const ANSWERED: &str = "Charges that this failure mode answered, since the store did not.";

// === impl Counter ===

impl Counter {
    /// The name on the status page, unique and in `snake_case`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine(counter) => counter.name(),
            Self::TaskRestarts => "task_restarts",
            Self::TasksReady => "tasks_ready",
            Self::LoaderPanics => "loader_panics",
            Self::Connections(ListenerName::Grpc) => "grpc_connections",
            Self::Connections(ListenerName::Http) => "http_connections",
            Self::Connections(ListenerName::Debug) => "debug_connections",
            Self::Connections(ListenerName::Metrics) => "metrics_connections",
            Self::ConnectionsRefused => "connections_refused",
            Self::ConnectionsEvicted => "connections_evicted",
            Self::ConnectionsThrottled => "connections_calmed",
            Self::CallsUnderWay => "calls_under_way",
            Self::MessageBytes => "message_bytes",
            Self::Shed => "shed",
            Self::RequestPanics => "request_panics",
            Self::SnapshotsWritten => "snapshots_written",
            Self::SnapshotFailures => "snapshot_failures",
            Self::LogLinesLost => "log_lines_lost",
            Self::DecisionSamplesLeftOut => "decision_samples_left_out",
            Self::SpansSent => "spans_sent",
            Self::SpansDropped => "spans_dropped",
            Self::SpansFailed => "spans_failed",
        }
    }

    /// The metric of the counter. `None` for one that is called `ratelease_<name>_total` and
    /// described by its name.
    pub const fn metric(self) -> Option<Metric> {
        let metric = match self {
            Self::Engine(counter) => return of_engine(counter),
            Self::SnapshotsWritten | Self::SnapshotFailures => return None,
            Self::TaskRestarts => counter(
                "ratelease_task_restarts_total",
                "Background tasks that were started again.",
            ),
            Self::TasksReady => {
                gauge("ratelease_tasks_ready", "Tasks that another thread has woken.")
            }
            Self::LoaderPanics => {
                counter("ratelease_loader_panics_total", "Loads of rules that panicked.")
            }
            Self::Connections(listener) => {
                gauge("ratelease_connections", "Open connections, by listener.")
                    .labelled("listener", listener.name())
            }
            Self::ConnectionsRefused => counter(
                "ratelease_connections_refused_total",
                "Connections beyond what open files allow.",
            ),
            Self::ConnectionsEvicted => counter(
                "ratelease_connections_evicted_total",
                "Idle connections that were closed to make room for others.",
            ),
            Self::ConnectionsThrottled => counter(
                "ratelease_connections_calmed_total",
                "Connections that were closed because their client did more than it may.",
            ),
            Self::CallsUnderWay => gauge("ratelease_calls_under_way", "Calls that wait."),
            Self::MessageBytes => {
                gauge("ratelease_message_bytes", "Memory that unfinished messages take.")
            }
            Self::Shed => counter(
                "ratelease_shed_total",
                "Calls refused above MAX_IN_FLIGHT, or without room.",
            ),
            Self::RequestPanics => {
                counter("ratelease_request_panics_total", "Calls that panicked.")
            }
            Self::LogLinesLost => {
                counter("ratelease_log_lines_lost_total", "Log lines that were not read in time.")
            }
            Self::DecisionSamplesLeftOut => counter(
                "ratelease_decision_samples_left_out_total",
                "Decision samples above what the log takes in a second.",
            ),
            Self::SpansSent => {
                counter("ratelease_spans_sent_total", "Spans that the collector took.")
            }
            Self::SpansDropped => {
                counter("ratelease_spans_dropped_total", "Spans that found the queue full.")
            }
            Self::SpansFailed => {
                counter("ratelease_spans_failed_total", "Spans that the collector did not take.")
            }
        };
        Some(metric)
    }

    /// Whether the counter is reported by shard instead.
    pub const fn is_by_shard(self) -> bool {
        matches!(self, Self::Engine(engine::Counter::BreakerOpened))
    }
}

/// The metric of a counter of the engine.
const fn of_engine(of: engine::Counter) -> Option<Metric> {
    use engine::Counter;
    let metric = match of {
        Counter::BreakerOpened | Counter::Redis(_) => return None,
        Counter::Keys => gauge("ratelease_buffer_keys", "Keys held."),
        Counter::BufferBytes => gauge("ratelease_buffer_bytes", "Memory that keys take."),
        Counter::BufferBudgetBytes => {
            gauge("ratelease_buffer_budget_bytes", "Memory that keys may take.")
        }
        Counter::BufferWaitingBytes => gauge(
            "ratelease_buffer_waiting_bytes",
            "Memory beside that, of what few keys have, such as requests that wait.",
        ),
        Counter::BufferEvictions => counter(
            "ratelease_buffer_evictions_total",
            "Keys that were given up for others; their tokens went back.",
        ),
        Counter::BufferOverflows => counter(
            "ratelease_buffer_overflows_total",
            "Charges of keys without room, to a count that they share.",
        ),
        Counter::TokensExpired => counter(
            "ratelease_tokens_expired_total",
            "Tokens that ended with their lease, unspent.",
        ),
        Counter::FailureMode(mode) => counter(answered_by(mode), ANSWERED),
        Counter::UnmeteredHits => counter(
            "ratelease_unmetered_total",
            "Hits that a failure mode let pass without counting them.",
        )
        .labelled("mode", "allow"),
        Counter::AsksRejectedOpen => {
            counter("ratelease_asks_kept_back_total", "Asks that an open breaker refused.")
        }
        Counter::AsksShed => counter(
            "ratelease_asks_shed_total",
            "Probes and asks ahead that were dropped, since the shard's budget of asks was spent.",
        ),
        Counter::HotKeyRelieved => counter(
            "ratelease_hot_key_relieved_total",
            "Asks of the hot key of their shard, which is asked for larger leases, less often.",
        ),
        Counter::LeasePanics => {
            counter("ratelease_lease_panics_total", "Exchanges and replies that panicked.")
        }
    };
    Some(metric)
}

const fn answered_by(mode: FailureMode) -> &'static str {
    match mode {
        FailureMode::Local => "ratelease_failure_mode_local_total",
        FailureMode::Allow => "ratelease_failure_mode_allow_total",
        FailureMode::Deny => "ratelease_failure_mode_deny_total",
        FailureMode::Error => "ratelease_failure_mode_error_total",
    }
}

impl From<engine::Counter> for Counter {
    fn from(counter: engine::Counter) -> Self {
        Self::Engine(counter)
    }
}

impl PartialOrd for Counter {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Counter {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(other.name())
    }
}

// === impl ListenerName ===

impl ListenerName {
    const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Http => "http",
            Self::Debug => "debug",
            Self::Metrics => "metrics",
        }
    }
}

// === impl Metric ===

impl Metric {
    const fn labelled(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, label: None, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, label: None, help }
}
