//! OpenTelemetry's exporter of spans, with the settings of this process in place of what it would
//! read from the environment itself.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    Compression, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use ratelease_cli::settings::{Otlp, OtlpCompression, OtlpProtocol};

use crate::failure_log::FailureLog;
use crate::transport::{self, Poster};

/// Retries of a batch, and the waits before them if the collector names none: 15 s in total, enough
/// for the restart of a collector.
const RETRIES_MAX: u32 = 4;
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_LAST: Duration = Duration::from_secs(8);

/// Maximum wait if the collector names one: a bound of the exporter's.
const WAIT_ASKED_MAX: Duration = Duration::from_secs(30);

/// Creates the exporter. Spans that the collector rejects without an error are added to `rejected`;
/// only the exporter over HTTP shows them.
///
/// # Errors
///
/// Returns an error if the exporter rejects its configuration.
pub(crate) fn build(
    otlp: &Otlp,
    log: &Arc<FailureLog>,
    rejected: &Arc<AtomicU64>,
) -> Result<SpanExporter, Box<dyn Error>> {
    let retries = RetryPolicy::recommended()
        .with_max_retries(RETRIES_MAX as usize)
        .with_initial_delay(WAIT_FIRST)
        .with_max_delay(WAIT_LAST)
        .with_max_jitter(WAIT_FIRST);
    // Of a batch with all its retries: the connections limit each attempt.
    let limit = otlp.timeout * (RETRIES_MAX + 1) + WAIT_ASKED_MAX * RETRIES_MAX;
    let exporter = match otlp.protocol {
        OtlpProtocol::Grpc => {
            let metadata = transport::metadata(otlp);
            let exporter = SpanExporter::builder()
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
            let exporter = SpanExporter::builder()
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
