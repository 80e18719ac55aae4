//! What the process counts about itself, for the status page and as metrics. Each part reports its
//! own counters; `docs/metrics.md` says what each means. To add one, add its row to `counters!`.

use std::borrow::Cow;
use std::cmp::Ordering;

use ratelease_engine::counter::{self as engine, HoldCounter};

use super::family::Kind;
use ratelease_listener::tls::HandshakeFailure;

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

/// Makes the counters. The row of one of the engine says how it is shown as a metric; that of any
/// other begins with the name on the status page. A metric is called `ratelease_<name>`, with the
/// suffix of counters, unless its row says otherwise.
macro_rules! counters {
    (
        engine {$(
            $of:ident $(($which:pat))?:
                $of_kind:ident($($of_help:literal)?) $(.$of_with:ident($($of_value:literal),+))*;
        )+}
        $(
            $Counter:ident = $name:literal:
                $kind:ident($($help:literal)?) $(.$with:ident($($value:literal),+))*;
        )+
    ) => {
        /// A counter of the process, or a level that it reports. Ordered by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Counter {
            /// A counter of the engine.
            Engine(engine::Counter),
            $( #[doc = concat!("`", $name, "`", $(": ", $help)?)] $Counter, )+
        }

        impl Counter {
            /// The name on the status page, unique and in `snake_case`.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Engine(counter) => counter.name(),
                    $( Self::$Counter => $name, )+
                }
            }

            /// The metric of the counter; `None` for one that is reported by shard instead.
            pub fn metric(self) -> Option<Metric> {
                Some(match self {
                    Self::Engine(engine::Counter::BreakerOpened) => return None,
                    $( Self::Engine(engine::Counter::$of $(($which))?) => {
                        self.$of_kind($($of_help)?) $(.$of_with($($of_value),+))*
                    } )+
                    $( Self::$Counter => self.$kind($($help)?) $(.$with($($value),+))*, )+
                })
            }
        }
    };
}

counters! {
    engine {
        Keys: gauge("Keys held.").named("ratelease_buffer_keys");
        BufferBytes: gauge("Memory that keys take.");
        BufferBudgetBytes: gauge("Memory that keys may take.");
        BufferWaitingBytes:
            gauge("Memory beside that, of what few keys have, such as requests that wait.");
        BufferEvictions: counter("Keys that were given up for others; their tokens went back.");
        BufferOverflows: counter("Charges of keys without room, to a count that they share.");
        TokensExpired: counter("Tokens that ended with their lease, unspent.");
        FailureMode(_):
            counter("Charges that this failure mode answered, since the store did not.");
        UnmeteredHits: counter("Hits that a failure mode let pass without counting them.")
            .named("ratelease_unmetered_total").labelled("mode", "allow");
        Holds(HoldCounter::InForce): gauge("Requests that hold hits until they are settled.");
        Holds(HoldCounter::Hits): gauge("Hits that requests hold.");
        Holds(HoldCounter::Bytes): gauge("Memory of what requests hold.");
        Holds(HoldCounter::Settled): counter("Holds that were settled.");
        Holds(HoldCounter::Expired): counter("Holds that ended because their time was over.");
        Holds(HoldCounter::OwnerGone):
            counter("Holds that were released because the Envoy of their request was gone.");
        Holds(HoldCounter::Silent):
            counter("Holds that were released because their request gave no more signs of life.");
        Holds(HoldCounter::EndedBefore):
            counter("Starts that took nothing because their end had come before them.");
        Holds(HoldCounter::NotKept):
            counter("Requests that were charged and hold nothing, because there was no room.");
        Holds(HoldCounter::WithoutHold):
            counter("Settlements of requests that hold nothing, which count whole.");
        Holds(HoldCounter::WithoutId): counter("Requests and settlements with an empty id.");
        Holds(HoldCounter::OverEstimated): counter("Hits that were held and not used.");
        Holds(HoldCounter::UnderEstimated): counter("Hits that were used beyond what was held.");
        AsksRejectedOpen: counter("Asks that an open breaker refused.");
        AsksShed:
            counter("Probes and asks ahead that were dropped, since the shard's budget of asks was \
                spent.");
        HotKeyRelieved:
            counter("Asks of the hot key of their shard, which is asked for larger leases, less \
                often.");
        LeasePanics: counter("Exchanges and replies that panicked.");
        Redis(_): of_status_page();
    }
    TaskRestarts = "task_restarts": counter("Background tasks that were started again.");
    TasksReady = "tasks_ready": gauge("Tasks that another thread has woken.");
    LoaderPanics = "loader_panics": counter("Loads of rules that panicked.");
    GrpcConnections = "grpc_connections": connections("grpc");
    HttpConnections = "http_connections": connections("http");
    DebugConnections = "debug_connections": connections("debug");
    MetricsConnections = "metrics_connections": connections("metrics");
    ConnectionsRefused = "connections_refused":
        counter("Connections beyond what open files allow.");
    ConnectionsEvicted = "connections_evicted":
        counter("Idle connections that were closed to make room for others.");
    ConnectionsThrottled = "connections_calmed":
        counter("Connections that were closed because their client did more than it may.");
    CallsUnderWay = "calls_under_way": gauge("Calls that wait.");
    MessageBytes = "message_bytes": gauge("Memory that unfinished messages take.");
    Shed = "shed": counter("Calls refused above MAX_IN_FLIGHT, or without room.");
    RequestPanics = "request_panics": counter("Calls that panicked.");
    StartsUndone = "starts_undone":
        counter("Starts of requests that were undone: their calls were reset, or their connections \
            lost, before the answers were read.");
    LogStreams = "log_streams": gauge("Open streams of Envoys' access logs.");
    LogStreamsRefused = "log_streams_refused":
        counter("Streams of access logs that were refused: there were too many.");
    LogStreamsMalformed = "log_streams_malformed":
        counter("Streams of access logs that were ended because they could not be read.");
    LogEnds = "log_entries_end": log_entries("end");
    LogEndsUnknown = "log_entries_end_unknown": log_entries("end_unknown");
    LogSigns = "log_entries_alive": log_entries("alive");
    LogSignsUnknown = "log_entries_alive_unknown": log_entries("alive_unknown");
    LogEntriesDenied = "log_entries_denied": log_entries("denied");
    LogEntriesWithoutId = "log_entries_without_id": log_entries("without_id");
    LogEntriesBadId = "log_entries_bad_id": log_entries("bad_id");
    LogEntriesOtherType = "log_entries_other_type": log_entries("other_type");
    LogEntriesOtherLog = "log_entries_other_log": log_entries("other_log");
    LogEntriesTcp = "log_entries_tcp": log_entries("tcp");
    SnapshotsWritten = "snapshots_written": of_status_page();
    SnapshotFailures = "snapshot_failures": of_status_page();
    LogLinesLost = "log_lines_lost": counter("Log lines that were not read in time.");
    DecisionSamplesLeftOut = "decision_samples_left_out":
        counter("Decision samples above what the log takes in a second.");
    Handshakes = "tls_handshakes": counter("TLS handshakes of the gRPC port that were completed.");
    HandshakesNotTls = "tls_handshakes_not_tls": failed_handshakes("not_tls");
    HandshakesNoCertificate = "tls_handshakes_no_certificate": failed_handshakes("no_certificate");
    HandshakesBadCertificate = "tls_handshakes_bad_certificate":
        failed_handshakes("bad_certificate");
    HandshakesNotTrusted = "tls_handshakes_not_trusted": failed_handshakes("not_trusted");
    HandshakesIncompatible = "tls_handshakes_incompatible": failed_handshakes("incompatible");
    HandshakesAbandoned = "tls_handshakes_abandoned": failed_handshakes("abandoned");
    HandshakesOther = "tls_handshakes_other": failed_handshakes("other");
    CertificatesReplaced = "tls_certificates_replaced":
        counter("Certificates of the gRPC port that took the place of others.");
    CertificatesRefused = "tls_certificates_refused":
        counter("Certificates of the gRPC port that could not be used when their files changed.");
    CertificateNotAfter = "tls_certificate_not_after":
        gauge("Until when the certificate of the gRPC port is valid, since the Unix epoch.")
        .named("ratelease_tls_certificate_not_after_seconds");
    XdsConnected = "xds_connected": gauge("1 while there is a stream to the xDS server.");
    XdsStreams = "xds_streams": counter("Streams to the xDS server that were opened.");
    XdsFailures = "xds_failures":
        counter("Streams to the xDS server that ended, and attempts that failed.");
    XdsAccepted = "xds_accepted": xds_responses("accepted");
    XdsRefused = "xds_refused": xds_responses("refused");
    SpansSent = "spans_sent": counter("Spans that the collector took.");
    SpansDropped = "spans_dropped": counter("Spans that found the queue full.");
    SpansFailed = "spans_failed": counter("Spans that the collector did not take.");
}

// === impl Counter ===

impl Counter {
    /// The count of handshakes that failed for `reason`.
    pub const fn failed(reason: HandshakeFailure) -> Self {
        match reason {
            HandshakeFailure::NotTls => Self::HandshakesNotTls,
            HandshakeFailure::NoCertificate => Self::HandshakesNoCertificate,
            HandshakeFailure::BadCertificate => Self::HandshakesBadCertificate,
            HandshakeFailure::NotTrusted => Self::HandshakesNotTrusted,
            HandshakeFailure::Incompatible => Self::HandshakesIncompatible,
            HandshakeFailure::Abandoned => Self::HandshakesAbandoned,
            HandshakeFailure::Other => Self::HandshakesOther,
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

    fn connections(self, listener: &'static str) -> Metric {
        self.gauge("Open connections, by listener.")
            .named("ratelease_connections")
            .labelled("listener", listener)
    }

    fn failed_handshakes(self, reason: &'static str) -> Metric {
        self.counter("TLS handshakes of the gRPC port that failed, by reason.")
            .named("ratelease_tls_handshakes_failed_total")
            .labelled("reason", reason)
    }

    fn log_entries(self, result: &'static str) -> Metric {
        self.counter("Entries of Envoys' access logs, by what came of them.")
            .named("ratelease_log_entries_total")
            .labelled("result", result)
    }

    fn xds_responses(self, result: &'static str) -> Metric {
        self.counter("Responses of the xDS server, by outcome.")
            .named("ratelease_xds_responses_total")
            .labelled("result", result)
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

// === impl Metric ===

impl Metric {
    fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    fn labelled(self, label: &'static str, value: &'static str) -> Self {
        Self { label: Some((label, value)), ..self }
    }
}
