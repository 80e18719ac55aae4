//! From the end of a span to the collector: the SDK's batches and OpenTelemetry's exporters, with
//! counts of what becomes of the spans.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    Compression, Protocol, RetryPolicy, SpanExporter as OtlpExporter, WithExportConfig,
    WithHttpConfig, WithTonicConfig,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span, SpanData,
    SpanExporter, SpanLimits, SpanProcessor,
};
use prost::Message;
use ratelease_cli::settings::{Otlp, OtlpCompression, OtlpProtocol};
use ratelease_engine::time::Clock;

use crate::failure_log::{ENDPOINT, FailureLog};
use crate::origin::{Origin, SCOPE, VERSION};
use crate::transport::{self, Poster};

/// Maximum number of queued spans: OpenTelemetry's default.
const QUEUE_MAX: usize = 2048;

/// Maximum number of spans in a batch: OpenTelemetry's default.
const BATCH_MAX: usize = 512;

/// Time between batches that are not full: OpenTelemetry's default.
const DELAY: Duration = Duration::from_secs(5);

const _: () = assert!(BATCH_MAX <= QUEUE_MAX);

/// Maximum time of the last export. The caller waits less: the process has to end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(60);

/// The last attribute of a span that is not exported.
const DISCARDED: &str = "ratelease.discarded";

/// The way of spans to their collector.
#[derive(Debug)]
pub struct SpanPipeline {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    counts: Arc<Counters>,
}

/// Numbers of spans that ended, since the pipeline was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Spans that the collector accepted.
    pub sent: u64,
    /// Spans that found the queue full.
    pub dropped: u64,
    /// Spans that the collector did not accept, after several attempts where those may help.
    pub failed: u64,
}

/// Counts of the spans that ended.
#[derive(Debug, Default)]
struct Counters {
    /// Spans that wait to be exported.
    queued: AtomicUsize,
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Drops spans that find the queue full, and counts them: the SDK's processor, whose queue is as
/// long, keeps its count to itself. Leaves out spans that were discarded.
#[derive(Debug)]
struct Bounded<P> {
    inner: P,
    counts: Arc<Counters>,
}

/// Counts exported spans, and logs failures. The SDK's processor calls it on a thread of its own.
struct Counted<E> {
    inner: E,
    /// Spans that the collector rejected of the export under way, without an error.
    rejected: Arc<AtomicU64>,
    counts: Arc<Counters>,
    log: Arc<FailureLog>,
}

// === impl SpanPipeline ===

impl SpanPipeline {
    /// Starts a pipeline, with its thread. It must be called in a runtime, which sends the batches.
    ///
    /// # Errors
    ///
    /// Returns an error if the exporter rejects its configuration.
    pub fn start(origin: &Origin, otlp: &Otlp, clock: Clock) -> Result<Self, Box<dyn Error>> {
        let log = Arc::new(FailureLog::new("spans", ENDPOINT, clock));
        let rejected = Arc::<AtomicU64>::default();
        let inner = exporter(otlp, &log, &rejected)?;
        let counts = Arc::<Counters>::default();
        let exporter = Counted { inner, rejected, counts: Arc::clone(&counts), log };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(DELAY)
            .build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        Ok(Self::counting(batches, counts, origin))
    }

    /// Creates a pipeline that ends in `processor` in place of an exporter, as tests need it.
    pub fn to(processor: impl SpanProcessor + 'static, origin: &Origin) -> Self {
        Self::counting(processor, Arc::default(), origin)
    }

    fn counting(
        processor: impl SpanProcessor + 'static,
        counts: Arc<Counters>,
        origin: &Origin,
    ) -> Self {
        let attributes = origin.attributes().iter().cloned();
        let attributes = attributes.map(|(key, value)| KeyValue::new(key, value));
        let provider = SdkTracerProvider::builder()
            // Requests are sampled before they have a span.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_limits(SpanLimits::default())
            .with_resource(Resource::builder_empty().with_attributes(attributes).build())
            .with_span_processor(Bounded { inner: processor, counts: Arc::clone(&counts) })
            .build();
        let scope = InstrumentationScope::builder(SCOPE).with_version(VERSION).build();
        Self { tracer: provider.tracer_with_scope(scope), provider, counts }
    }

    /// Begins spans that go down this pipeline when they end.
    pub fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }

    /// Exports the spans that have ended so far, and stops. Spans that end later are dropped.
    pub async fn shut_down(&self) {
        let provider = self.provider.clone();
        // Blocks until the thread is done. Its errors have been logged.
        let stopping = move || provider.shutdown_with_timeout(SHUTDOWN_MAX);
        let _ = tokio::task::spawn_blocking(stopping).await;
    }

    /// Counts of the spans that left the queue or found it full.
    pub fn counts(&self) -> SpanCounts {
        let Counters { sent, dropped, failed, .. } = &*self.counts;
        let [sent, dropped, failed] = [sent, dropped, failed].map(|it| it.load(Ordering::Relaxed));
        SpanCounts { sent, dropped, failed }
    }
}

// === impl Counters ===

impl Counters {
    /// Takes a place in the queue; returns false if there is none.
    fn enter_queue(&self) -> bool {
        let one_more = |queued: usize| (queued < QUEUE_MAX).then_some(queued + 1);
        self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }
}

impl<P: SpanProcessor> SpanProcessor for Bounded<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if is_discarded(&span) {
            return;
        }
        if self.counts.enter_queue() {
            self.inner.on_end(span);
        } else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let items = batch.len() as u64;
        self.counts.queued.fetch_sub(spans, Ordering::Relaxed);
        let exported = self.inner.export(batch).await;
        let rejected = self.rejected.swap(0, Ordering::Relaxed).min(items);
        let failed = match &exported {
            Ok(()) => {
                self.log.succeeded(items, rejected);
                rejected
            }
            Err(error) => {
                self.log.failed(&shown(error));
                items
            }
        };
        self.counts.failed.fetch_add(failed, Ordering::Relaxed);
        self.counts.sent.fetch_add(items - failed, Ordering::Relaxed);
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl<E> fmt::Debug for Counted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// Marks `span` so that it is left out: the SDK ends and exports every span that is dropped.
pub fn discard(span: &mut impl opentelemetry::trace::Span) {
    span.set_attribute(KeyValue::new(DISCARDED, true));
    span.end();
}

fn is_discarded(span: &SpanData) -> bool {
    span.attributes.last().is_some_and(|it| it.key.as_str() == DISCARDED)
}

fn shown(error: &OTelSdkError) -> String {
    match error {
        OTelSdkError::InternalFailure(why) => why.clone(),
        other => other.to_string(),
    }
}

/// Maximum number of retries of a batch. If the collector names no waits, the waits take 15 s in
/// total, which is enough for the restart of a collector.
const RETRIES_MAX: u32 = 4;

/// Wait before the first retry, if the collector names none.
const WAIT_FIRST: Duration = Duration::from_secs(1);

/// Maximum wait before a retry, if the collector names none.
const WAIT_LAST: Duration = Duration::from_secs(8);

/// Maximum wait if the collector names one: a bound of the exporter's.
const WAIT_ASKED_MAX: Duration = Duration::from_secs(30);

/// Creates OpenTelemetry's exporter with the settings of this process, so that it does not read its
/// own from the environment. Spans that the collector rejects without an error are added to
/// `rejected`; only the exporter over HTTP shows them.
///
/// # Errors
///
/// Returns an error if the exporter rejects its configuration.
fn exporter(
    otlp: &Otlp,
    log: &Arc<FailureLog>,
    rejected: &Arc<AtomicU64>,
) -> Result<OtlpExporter, Box<dyn Error>> {
    let retries = RetryPolicy::recommended()
        .with_max_retries(RETRIES_MAX as usize)
        .with_initial_delay(WAIT_FIRST)
        .with_max_delay(WAIT_LAST)
        .with_max_jitter(WAIT_FIRST);
    // The limit of a batch with all its retries: the connections limit each attempt.
    let limit = otlp.timeout * (RETRIES_MAX + 1) + WAIT_ASKED_MAX * RETRIES_MAX;
    let exporter = match otlp.protocol {
        OtlpProtocol::Grpc => {
            let metadata = transport::metadata(otlp);
            let exporter = OtlpExporter::builder()
                .with_tonic()
                .with_channel(transport::channel(otlp, log))
                // Replaces the headers that the exporter read from the environment: they are not
                // marked as sensitive, so that logs of connections would show them.
                .with_interceptor(move |mut request: tonic::Request<()>| {
                    *request.metadata_mut() = metadata.clone();
                    Ok(request)
                })
                .with_retry_policy(retries)
                .with_timeout(limit);
            match otlp.compression {
                OtlpCompression::None => exporter,
                OtlpCompression::Gzip => exporter.with_compression(Compression::Gzip),
            }
            .build()?
        }
        OtlpProtocol::Http => {
            let poster = Poster::new(otlp, log);
            let exporter = OtlpExporter::builder()
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(otlp.endpoint.to_string())
                .with_http_client(Rejections { poster, rejected: Arc::clone(rejected) })
                .with_retry_policy(retries)
                .with_timeout(limit);
            match otlp.compression {
                OtlpCompression::None => exporter,
                OtlpCompression::Gzip => exporter.with_compression(Compression::Gzip),
            }
            .build()?
        }
    };
    Ok(exporter)
}

/// Counts the spans that answers reject.
#[derive(Debug)]
struct Rejections {
    poster: Poster,
    rejected: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl HttpClient for Rejections {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.poster.send_bytes(request).await?;
        if answer.status().is_success() {
            // An answer that cannot be decoded does not mean that spans were rejected.
            let decoded = ExportTraceServiceResponse::decode(answer.body().clone());
            let partial = decoded.unwrap_or_default().partial_success;
            let rejected = partial.map_or(0, |it| u64::try_from(it.rejected_spans).unwrap_or(0));
            self.rejected.fetch_add(rejected, Ordering::Relaxed);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use opentelemetry::trace::{Span as _, Tracer};
    use parking_lot::Mutex;
    use ratelease_cli::settings::Identity;

    use super::*;

    fn origin() -> Origin {
        let (name, namespace, instance, attributes) = Default::default();
        Origin::new(Identity { name, namespace, instance, attributes })
    }

    /// An exporter whose exports end with these results, in order, and then succeed.
    #[derive(Debug)]
    struct Scripted {
        results: Mutex<mpsc::Receiver<OTelSdkResult>>,
        rejected: Arc<AtomicU64>,
    }

    impl SpanExporter for Scripted {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            self.rejected.store(1, Ordering::Relaxed);
            self.results.lock().try_recv().unwrap_or(Ok(()))
        }
    }

    #[derive(Debug)]
    struct Forgetful;

    impl SpanProcessor for Forgetful {
        fn on_start(&self, _: &mut Span, _: &Context) {}
        fn on_end(&self, _: SpanData) {}
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[test]
    fn spans_that_find_the_queue_full_are_dropped_and_counted() {
        let pipeline = SpanPipeline::to(Forgetful, &origin());
        for _ in 0..QUEUE_MAX + 7 {
            pipeline.tracer.start("a span").end();
        }
        assert_eq!(pipeline.counts().dropped, 7);
        assert_eq!(pipeline.counts.queued.load(Ordering::Relaxed), QUEUE_MAX);
    }

    #[tokio::test]
    async fn exported_spans_leave_the_queue_and_are_counted_as_sent_or_failed() {
        let (results, receiver) = mpsc::channel();
        let (counts, rejected) = <(Arc<Counters>, Arc<AtomicU64>)>::default();
        let results_to = Mutex::new(receiver);
        let exporter = Counted {
            inner: Scripted { results: results_to, rejected: Arc::clone(&rejected) },
            rejected,
            counts: Arc::clone(&counts),
            log: Arc::new(FailureLog::new("spans", ENDPOINT, Clock::start())),
        };
        let batches = BatchSpanProcessor::builder(exporter).build();
        let pipeline = SpanPipeline::counting(batches, counts, &origin());
        let export = |spans: usize| {
            (0..spans).for_each(|_| pipeline.tracer.start("a span").end());
            pipeline.provider.force_flush()
        };
        assert!(export(5).is_ok());
        let counted = || (pipeline.counts().sent, pipeline.counts().failed);
        assert_eq!(counted(), (4, 1), "one was rejected");
        let lost = OTelSdkError::InternalFailure("no connection".to_owned());
        results.send(Err(lost)).expect("an exporter");
        assert!(export(3).is_err());
        assert_eq!(counted(), (4, 4));
        assert_eq!(pipeline.counts.queued.load(Ordering::Relaxed), 0);
        pipeline.shut_down().await;
        pipeline.tracer.start("a late span").end();
        assert_eq!(pipeline.counts.queued.load(Ordering::Relaxed), 0);
    }
}
