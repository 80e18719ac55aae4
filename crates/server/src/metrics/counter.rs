//! What the process counts about itself, for the status page and as metrics. Each part reports its
//! own counters; `docs/metrics.md` says what each means.

use std::cmp::Ordering;

use ratelease_engine::counter as engine;
use ratelease_rules::FailureMode;

use super::family::Kind;
use ratelease_listener::tls::HandshakeFailure;

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
    /// TLS handshakes that were completed.
    Handshakes,
    /// TLS handshakes that failed, by reason.
    HandshakesFailed(HandshakeFailure),
    /// Certificates that took the place of others.
    CertificatesReplaced,
    /// Certificates that could not be used when their files changed.
    CertificatesRefused,
    /// Until when the certificate in force is valid, in seconds since 1970.
    CertificateNotAfter,
    /// Whether there is a stream to the xDS server, 0 or 1.
    XdsConnected,
    /// Streams to the xDS server that were opened.
    XdsStreams,
    /// Streams to the xDS server that ended, and attempts that failed.
    XdsFailures,
    /// Responses of the xDS server that were accepted.
    XdsAccepted,
    /// Responses of the xDS server that were refused.
    XdsRefused,
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

const XDS_RESPONSES: &str = "ratelease_xds_responses_total";
const XDS_RESPONSES_HELP: &str = "Responses of the xDS server, by outcome.";

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
            Self::Handshakes => "tls_handshakes",
            Self::HandshakesFailed(reason) => failed_by(reason),
            Self::CertificatesReplaced => "tls_certificates_replaced",
            Self::CertificatesRefused => "tls_certificates_refused",
            Self::CertificateNotAfter => "tls_certificate_not_after",
            Self::XdsConnected => "xds_connected",
            Self::XdsStreams => "xds_streams",
            Self::XdsFailures => "xds_failures",
            Self::XdsAccepted => "xds_accepted",
            Self::XdsRefused => "xds_refused",
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
            Self::Handshakes
            | Self::HandshakesFailed(_)
            | Self::CertificatesReplaced
            | Self::CertificatesRefused
            | Self::CertificateNotAfter => return self.of_tls(),
            Self::XdsConnected
            | Self::XdsStreams
            | Self::XdsFailures
            | Self::XdsAccepted
            | Self::XdsRefused => return self.of_xds(),
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

    /// The metric of a counter of TLS on the gRPC port.
    const fn of_tls(self) -> Option<Metric> {
        let metric = match self {
            Self::Handshakes => counter(
                "ratelease_tls_handshakes_total",
                "TLS handshakes of the gRPC port that were completed.",
            ),
            Self::HandshakesFailed(reason) => counter(
                "ratelease_tls_handshakes_failed_total",
                "TLS handshakes of the gRPC port that failed, by reason.",
            )
            .labelled("reason", reason.name()),
            Self::CertificatesReplaced => counter(
                "ratelease_tls_certificates_replaced_total",
                "Certificates of the gRPC port that took the place of others.",
            ),
            Self::CertificatesRefused => counter(
                "ratelease_tls_certificates_refused_total",
                "Certificates of the gRPC port that could not be used when their files changed.",
            ),
            Self::CertificateNotAfter => gauge(
                "ratelease_tls_certificate_not_after_seconds",
                "Until when the certificate of the gRPC port is valid, since the Unix epoch.",
            ),
            _ => return None,
        };
        Some(metric)
    }

    /// The metric of a counter of the xDS stream.
    const fn of_xds(self) -> Option<Metric> {
        let metric = match self {
            Self::XdsConnected => {
                gauge("ratelease_xds_connected", "1 while there is a stream to the xDS server.")
            }
            Self::XdsStreams => counter(
                "ratelease_xds_streams_total",
                "Streams to the xDS server that were opened.",
            ),
            Self::XdsFailures => counter(
                "ratelease_xds_failures_total",
                "Streams to the xDS server that ended, and attempts that failed.",
            ),
            Self::XdsAccepted => {
                counter(XDS_RESPONSES, XDS_RESPONSES_HELP).labelled("result", "accepted")
            }
            Self::XdsRefused => {
                counter(XDS_RESPONSES, XDS_RESPONSES_HELP).labelled("result", "refused")
            }
            _ => return None,
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

/// The name of a count of failed handshakes on the status page.
const fn failed_by(reason: HandshakeFailure) -> &'static str {
    match reason {
        HandshakeFailure::NotTls => "tls_handshakes_not_tls",
        HandshakeFailure::NoCertificate => "tls_handshakes_no_certificate",
        HandshakeFailure::BadCertificate => "tls_handshakes_bad_certificate",
        HandshakeFailure::NotTrusted => "tls_handshakes_not_trusted",
        HandshakeFailure::Incompatible => "tls_handshakes_incompatible",
        HandshakeFailure::Abandoned => "tls_handshakes_abandoned",
        HandshakeFailure::Other => "tls_handshakes_other",
    }
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
