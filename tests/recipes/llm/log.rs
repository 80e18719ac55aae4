//! A server that records Envoy's access log, in place of ratelease.

use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::data::accesslog::v3::{AccessLogType, HttpAccessLogEntry};
use envoy_types::pb::envoy::service::accesslog::v3 as proto;
use proto::access_log_service_server::{AccessLogService, AccessLogServiceServer};
use proto::stream_access_logs_message::LogEntries;
use proto::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// Entries of all streams, in the order in which they arrived.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<LogEntry>>>);

/// The fields of an entry that ratelease reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The custom tag `ratelease.id`.
    pub id: Option<String>,
    /// The custom tag `ratelease.hits`, or 0 if nothing was sent upstream.
    pub hits: Option<u64>,
    /// Whether the request has ended. False for a sign of life.
    pub is_end: bool,
}

/// The maximum size of a message. Envoy writes its whole buffer as one message.
const MESSAGE_MAX: usize = 128 << 20;

// === impl Log ===

impl Log {
    /// The service, to be served beside another one.
    pub fn routes(&self) -> Routes {
        let service = AccessLogServiceServer::new(self.clone());
        Routes::new(service.max_decoding_message_size(MESSAGE_MAX))
    }

    /// Entries so far.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.0.lock().unwrap().clone()
    }

    /// Entries of ended requests so far.
    pub fn ends(&self) -> Vec<LogEntry> {
        self.entries().into_iter().filter(|entry| entry.is_end).collect()
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

#[tonic::async_trait]
impl AccessLogService for Log {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let mut messages = request.into_inner();
        while let Some(message) = messages.message().await? {
            if let Some(identifier) = message.identifier {
                assert_eq!(identifier.log_name, "ratelease");
            }
            let Some(LogEntries::HttpLogs(entries)) = message.log_entries else { continue };
            self.0.lock().unwrap().extend(entries.log_entry.into_iter().map(LogEntry::of));
        }
        Ok(Response::new(StreamAccessLogsResponse {}))
    }
}

// === impl LogEntry ===

impl LogEntry {
    fn of(entry: HttpAccessLogEntry) -> Self {
        let common = entry.common_properties.expect("properties");
        let tag = |name: &str| common.custom_tags.get(name).filter(|value| *value != "-");
        let hits = match common.upstream_request_attempt_count {
            0 => Some(0),
            _ => tag("ratelease.hits").map(|hits| hits.parse().expect("a whole number")),
        };
        let is_end = match common.access_log_type() {
            AccessLogType::DownstreamEnd => true,
            AccessLogType::DownstreamPeriodic => false,
            other => panic!("an entry of another type: {other:?}"),
        };
        Self { id: tag("ratelease.id").cloned(), hits, is_end }
    }
}
