//! Sends metrics: over gRPC by the client that OpenTelemetry generates, or in the body of a POST by
//! the client that sends spans.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Uri};
use opentelemetry_http::HttpClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse, metrics_service_client,
};
use prost::Message;
use ratelease_cli::settings::{Otlp, OtlpCompression, OtlpProtocol};
use tokio::task::spawn_blocking;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Response, Status};
use tonic_types::StatusExt;

use metrics_service_client::MetricsServiceClient;

use crate::failure_log::{FailureLog, causes};
use crate::transport::{self, Poster};

/// Maximum delay that a collector can ask for.
const DELAY_MAX: Duration = Duration::from_secs(300);

/// Why metrics did not arrive, or were rejected as a whole.
#[derive(Debug)]
pub struct ExportError {
    /// The reason, as text, without the values of headers.
    pub why: String,
    /// The delay before the next push that the collector asked for; zero for none.
    pub delay: Duration,
}

/// Sends metrics to a collector.
pub struct MetricsClient(Transport);

enum Transport {
    Grpc(Box<MetricsServiceClient<Channel>>, MetadataMap),
    Http(Box<Poster>, Uri, OtlpCompression),
}

// === impl MetricsClient ===

impl MetricsClient {
    /// Creates a client that connects when it is first used. It must be called in a runtime.
    pub fn new(otlp: &Otlp, log: &Arc<FailureLog>) -> Self {
        Self(match otlp.protocol {
            OtlpProtocol::Grpc => {
                let client = MetricsServiceClient::new(transport::channel(otlp, log));
                let client = match otlp.compression {
                    OtlpCompression::None => client,
                    OtlpCompression::Gzip => client.send_compressed(CompressionEncoding::Gzip),
                };
                Transport::Grpc(Box::new(client), transport::metadata(otlp))
            }
            OtlpProtocol::Http => {
                let poster = Box::new(Poster::new(otlp, log));
                Transport::Http(poster, otlp.endpoint.clone(), otlp.compression)
            }
        })
    }

    /// Sends `message` and waits for the answer; returns how many of its points were rejected.
    ///
    /// # Errors
    /// Returns an error if the collector did not get the message, or did not take it.
    pub async fn send(&self, message: ExportMetricsServiceRequest) -> Result<u64, ExportError> {
        let answer = match &self.0 {
            Transport::Grpc(client, metadata) => {
                let mut request = tonic::Request::new(message);
                *request.metadata_mut() = metadata.clone();
                let answer = client.clone().export(request).await;
                answer.map(Response::into_inner).map_err(|status| refusal(&status))?
            }
            Transport::Http(poster, endpoint, compression) => {
                post(poster, endpoint, *compression, message).await?
            }
        };
        let partial = answer.partial_success;
        Ok(partial.map_or(0, |it| u64::try_from(it.rejected_data_points).unwrap_or(0)))
    }
}

async fn post(
    poster: &Poster,
    endpoint: &Uri,
    compression: OtlpCompression,
    message: ExportMetricsServiceRequest,
) -> Result<ExportMetricsServiceResponse, ExportError> {
    let unsent = |why| ExportError { why, delay: Duration::ZERO };
    // Not on a worker: compression takes some milliseconds.
    let body = spawn_blocking(move || match compression {
        OtlpCompression::None => Ok(message.encode_to_vec()),
        OtlpCompression::Gzip => gzip(&message.encode_to_vec()),
    });
    let body = body.await.map_err(io::Error::other).flatten();
    let body = body.map_err(|error| unsent(error.to_string()))?;
    let mut request = Request::post(endpoint.clone())
        .header(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"))
        .body(body.into())
        .map_err(|error| unsent(error.to_string()))?;
    if compression == OtlpCompression::Gzip {
        request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let answer = poster.send_bytes(request).await.map_err(|error| unsent(causes(&*error)))?;
    if !answer.status().is_success() {
        let why = format!("it answered {}", answer.status());
        return Err(ExportError { why, delay: retry_after(answer.headers()) });
    }
    // An answer that cannot be decoded does not mean that points were rejected.
    Ok(ExportMetricsServiceResponse::decode(answer.into_body()).unwrap_or_default())
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The delay that `Retry-After` asks for in seconds. A date is ignored.
fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok()?.trim().parse().ok());
    seconds.map_or(Duration::ZERO, Duration::from_secs).min(DELAY_MAX)
}

/// Returns the error that follows from a gRPC status. The message of the status is left out, since
/// it may quote the data sent; its sources are the errors of the connection.
fn refusal(status: &Status) -> ExportError {
    let mut why = format!("gRPC status {:?}", status.code());
    if let Some(source) = std::error::Error::source(status) {
        why = format!("{why}: {}", causes(source));
    }
    let asked = status.get_details_retry_info().and_then(|info| info.retry_delay);
    ExportError { why, delay: asked.unwrap_or_default().min(DELAY_MAX) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use tonic::Code;
    use tonic_types::ErrorDetails;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_delay_that_the_collector_asks_for_is_bounded() {
        let after = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]))
        };
        assert_eq!(after("7"), Duration::from_secs(7));
        assert_eq!(after("86400"), DELAY_MAX);
        assert_eq!(after("Fri, 31 Dec 2027 23:59:59 GMT"), Duration::ZERO);
        assert_eq!(retry_after(&HeaderMap::new()), Duration::ZERO);
        for (asked, delay) in [(Some(HOUR), DELAY_MAX), (None, Duration::ZERO)] {
            let details = ErrorDetails::with_retry_info(asked);
            let status = Status::with_error_details(Code::Unavailable, "later", details);
            assert_eq!(refusal(&status).delay, delay);
        }
    }

    #[test]
    fn an_error_names_the_code_and_not_the_message_of_the_collector() {
        assert_eq!(refusal(&Status::unauthenticated("s3cret")).why, "gRPC status Unauthenticated");
    }

    #[test]
    fn gzip_is_reversible() {
        let mut decoded = Vec::new();
        let encoded = gzip(&[7; 1000]).expect("gzip");
        GzDecoder::new(encoded.as_slice()).read_to_end(&mut decoded).expect("gzip");
        assert_eq!(decoded, [7; 1000]);
    }
}
