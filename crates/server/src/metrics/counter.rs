//! What the process counts about itself, for the status page and as metrics. Each part reports its
//! own counters; `docs/metrics.md` says what each means.

use std::borrow::Cow;
use std::cmp::Ordering;

use ratelease_engine::counter::{self as engine, HoldCounter};

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
    pub name: String,
    /// How the value behaves.
    pub kind: Kind,
    /// The label of the series, if the family has several.
    pub label: Option<(&'static str, &'static str)>,
    /// The meaning.
    pub help: Cow<'static, str>,
}

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

    /// The metric of the counter; `None` for one that is reported by shard instead. It is called
    /// `ratelease_<name>`, with the suffix of counters, unless it says otherwise.
    pub fn metric(self) -> Option<Metric> {
        let metric = match self {
            Self::Engine(counter) => return self.of_engine(counter),
            Self::TaskRestarts => self.counter("Background tasks that were started again."),
            Self::TasksReady => self.gauge("Tasks that another thread has woken."),
            Self::LoaderPanics => self.counter("Loads of rules that panicked."),
            Self::Connections(listener) => self
                .gauge("Open connections, by listener.")
                .named("ratelease_connections")
                .labelled("listener", listener.name()),
            Self::ConnectionsRefused => self.counter("Connections beyond what open files allow."),
            Self::ConnectionsEvicted => {
                self.counter("Idle connections that were closed to make room for others.")
            }
            Self::ConnectionsThrottled => self
                .counter("Connections that were closed because their client did more than it may."),
            Self::CallsUnderWay => self.gauge("Calls that wait."),
            Self::MessageBytes => self.gauge("Memory that unfinished messages take."),
            Self::Shed => self.counter("Calls refused above MAX_IN_FLIGHT, or without room."),
            Self::RequestPanics => self.counter("Calls that panicked."),
            Self::SnapshotsWritten | Self::SnapshotFailures => self.of_status_page(),
            Self::LogLinesLost => self.counter("Log lines that were not read in time."),
            Self::DecisionSamplesLeftOut => {
                self.counter("Decision samples above what the log takes in a second.")
            }
            Self::SpansSent => self.counter("Spans that the collector took."),
            Self::SpansDropped => self.counter("Spans that found the queue full."),
            Self::SpansFailed => self.counter("Spans that the collector did not take."),
            Self::Handshakes => {
                self.counter("TLS handshakes of the gRPC port that were completed.")
            }
            Self::HandshakesFailed(reason) => self
                .counter("TLS handshakes of the gRPC port that failed, by reason.")
                .named("ratelease_tls_handshakes_failed_total")
                .labelled("reason", reason.name()),
            Self::CertificatesReplaced => {
                self.counter("Certificates of the gRPC port that took the place of others.")
            }
            Self::CertificatesRefused => self.counter(
                "Certificates of the gRPC port that could not be used when their files changed.",
            ),
            Self::CertificateNotAfter => self
                .gauge(
                    "Until when the certificate of the gRPC port is valid, since the Unix epoch.",
                )
                .named("ratelease_tls_certificate_not_after_seconds"),
            Self::XdsConnected => self.gauge("1 while there is a stream to the xDS server."),
            Self::XdsStreams => self.counter("Streams to the xDS server that were opened."),
            Self::XdsFailures => {
                self.counter("Streams to the xDS server that ended, and attempts that failed.")
            }
            Self::XdsAccepted => self.xds_responses("accepted"),
            Self::XdsRefused => self.xds_responses("refused"),
        };
        Some(metric)
    }

    fn of_engine(self, of: engine::Counter) -> Option<Metric> {
        use engine::Counter;
        let metric = match of {
            Counter::BreakerOpened => return None,
            Counter::Redis(_) => self.of_status_page(),
            Counter::Keys => self.gauge("Keys held.").named("ratelease_buffer_keys"),
            Counter::BufferBytes => self.gauge("Memory that keys take."),
            Counter::BufferBudgetBytes => self.gauge("Memory that keys may take."),
            Counter::BufferWaitingBytes => {
                self.gauge("Memory beside that, of what few keys have, such as requests that wait.")
            }
            Counter::BufferEvictions => {
                self.counter("Keys that were given up for others; their tokens went back.")
            }
            Counter::BufferOverflows => {
                self.counter("Charges of keys without room, to a count that they share.")
            }
            Counter::TokensExpired => self.counter("Tokens that ended with their lease, unspent."),
            Counter::FailureMode(_) => {
                self.counter("Charges that this failure mode answered, since the store did not.")
            }
            Counter::UnmeteredHits => self
                .counter("Hits that a failure mode let pass without counting them.")
                .named("ratelease_unmetered_total")
                .labelled("mode", "allow"),
            Counter::Holds(of) => self.of_holds(of),
            Counter::AsksRejectedOpen => self.counter("Asks that an open breaker refused."),
            Counter::AsksShed => self.counter(
                "Probes and asks ahead that were dropped, since the shard's budget of asks was \
                 spent.",
            ),
            Counter::HotKeyRelieved => self.counter(
                "Asks of the hot key of their shard, which is asked for larger leases, less often.",
            ),
            Counter::LeasePanics => self.counter("Exchanges and replies that panicked."),
        };
        Some(metric)
    }

    fn of_holds(self, of: HoldCounter) -> Metric {
        match of {
            HoldCounter::InForce => self.gauge("Requests that hold hits until they are settled."),
            HoldCounter::Hits => self.gauge("Hits that requests hold."),
            HoldCounter::Bytes => self.gauge("Memory of what requests hold."),
            HoldCounter::Settled => self.counter("Holds that were settled."),
            HoldCounter::Expired => self.counter("Holds that ended before they were settled."),
            HoldCounter::NotKept => self
                .counter("Requests that were charged and hold nothing, because there was no room."),
            HoldCounter::WithoutHold => {
                self.counter("Settlements of requests that hold nothing, which count whole.")
            }
            HoldCounter::WithoutId => self.counter("Requests and settlements with an empty id."),
            HoldCounter::OverEstimated => self.counter("Hits that were held and not used."),
            HoldCounter::UnderEstimated => {
                self.counter("Hits that were used beyond what was held.")
            }
        }
    }

    fn counter(self, help: impl Into<Cow<'static, str>>) -> Metric {
        let name = format!("ratelease_{}_total", self.name());
        Metric { name, kind: Kind::Counter, label: None, help: help.into() }
    }

    fn gauge(self, help: &'static str) -> Metric {
        let name = format!("ratelease_{}", self.name());
        Metric { name, kind: Kind::Gauge, label: None, help: help.into() }
    }

    fn of_status_page(self) -> Metric {
        self.counter(format!("As `{}` of the status page.", self.name()))
    }

    fn xds_responses(self, result: &'static str) -> Metric {
        self.counter("Responses of the xDS server, by outcome.")
            .named("ratelease_xds_responses_total")
            .labelled("result", result)
    }
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
    fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    fn labelled(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }
}
