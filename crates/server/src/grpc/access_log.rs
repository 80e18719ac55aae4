//! Envoy's access log, `StreamAccessLogs`, reports the end of each request, and that it runs. A log is a
//! stream that both ends keep open; each worker of an Envoy has one.
//!
//! A log is read as fast as it arrives, and nothing is awaited for it: Envoy drops entries that it has
//! to keep for long. Entries hold paths and addresses of clients, which are neither kept nor logged.
//!
//! When the connection is to end, the calls on it finish first. Then the log is answered, and read on
//! until its client has closed it, so that entries on their way are not lost.

mod reader;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use ratelease_engine::limiter::owners::ClosedBy;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::PREFIX_BYTES;
use super::call::Call;
use super::context::CallContext;
use super::reply::{send_message, send_status};
use crate::request::Transport;
use crate::starts::{LogEntry, OpenLog, Starts};
use ratelease_listener::{ConnectionHandle, EndlessStream};

pub use self::reader::{Entry, EntryId, Fault, Reader, Report, Sink};

/// The `log_name` that Envoy has to be configured with: entries of other logs mean nothing here.
pub(crate) const LOG_NAME: &[u8] = b"ratelease";

/// How long a log that was answered is read on, at most, for its client to close it: Envoy does so as
/// soon as it has read the answer.
const LAST_ENTRIES_MAX: Duration = Duration::from_secs(1);

/// `StreamAccessLogsResponse`, which is empty, as a gRPC frame.
const ANSWER: &[u8] = &[0; PREFIX_BYTES];

/// An access log.
pub(super) struct AccessLog {
    body: RecvStream,
    respond: SendResponse<Bytes>,
    context: Arc<CallContext>,
    handle: ConnectionHandle,
    /// Cancelled when the log is to end.
    end: CancellationToken,
    stream: EndlessStream,
}

/// Why a log is read no further.
enum Ended {
    /// The client has finished the log.
    Finished,
    /// The client has reset the stream, or the connection is lost.
    Lost(ClosedBy),
    /// The connection is to end.
    Leaving,
    /// A message cannot be read.
    Faulty(Fault),
}

/// The state of a log, by the messages that were read.
struct Log {
    context: Arc<CallContext>,
    stage: Stage,
    /// The end that has closed the stream; `None` for the one that has closed the connection.
    closed_by: Option<ClosedBy>,
}

enum Stage {
    /// No identifier was read.
    New,
    /// The log has the name that is read.
    Ours(OpenLog),
    /// The log has another name.
    Other,
}

// === impl AccessLog ===

impl AccessLog {
    /// Begins to read the log that `call` has opened, until `end` is cancelled. Refuses it if there
    /// are too many.
    pub(super) fn begin(
        call: Call,
        context: &Arc<CallContext>,
        handle: &ConnectionHandle,
        end: &CancellationToken,
    ) -> Option<Self> {
        let (request, mut respond) = call.into_parts();
        let Some(stream) = handle.register_endless() else {
            context.service.starts().note_refused_log();
            send_status(&mut respond, Status::resource_exhausted("too many access logs are open"));
            return None;
        };
        // Also an Envoy whose calls have all ended is there as long as it sends its log.
        context.owner();
        let (context, handle, end) = (Arc::clone(context), handle.clone(), end.clone());
        Some(Self { body: request.into_body(), respond, context, handle, end, stream })
    }

    /// Reads the log until it ends.
    pub(super) async fn read(self) {
        let context = Arc::clone(&self.context);
        // A panic is counted there, and resets the stream.
        let _ = context.service.catch_panic(Transport::Grpc, self.read_and_answer()).await;
    }

    async fn read_and_answer(mut self) {
        let mut log = Log::new(&self.context);
        let mut reader = Reader::new();
        let ended = self.read_entries(&mut reader, &mut log).await;
        let Self { mut respond, stream, .. } = self;
        match ended {
            Ended::Lost(by) => log.closed_by = Some(by),
            Ended::Finished => {
                log.closed_by = Some(ClosedBy::Client);
                send_message(&mut respond, Bytes::from_static(ANSWER));
            }
            Ended::Leaving => {
                log.closed_by = Some(ClosedBy::Server);
                send_message(&mut respond, Bytes::from_static(ANSWER));
                drop(stream);
                let rest = read_rest(&mut self.body, &mut reader, &mut log);
                let _ = timeout(LAST_ENTRIES_MAX, rest).await;
            }
            Ended::Faulty(fault) => {
                log.closed_by = Some(ClosedBy::Server);
                self.context.service.starts().note_malformed_log();
                send_status(&mut respond, status_of(fault));
            }
        }
    }

    /// Reads what arrives, until the log ends.
    async fn read_entries(&mut self, reader: &mut Reader, log: &mut Log) -> Ended {
        loop {
            let data = tokio::select! {
                biased;
                data = self.body.data() => data,
                () = self.end.cancelled() => return Ended::Leaving,
            };
            match data {
                Some(Ok(data)) => {
                    self.handle.note_used();
                    if let Err(fault) = take(&mut self.body, &data, reader, log) {
                        return Ended::Faulty(fault);
                    }
                }
                Some(Err(error)) if error.is_reset() => return Ended::Lost(ClosedBy::Client),
                Some(Err(_)) => return Ended::Lost(self.context.closed_by()),
                None if reader.is_between_messages() => return Ended::Finished,
                None => return Ended::Faulty(Fault::Malformed("it ends within a message")),
            }
        }
    }
}

/// Reads the entries that were on their way when the log was answered.
async fn read_rest(body: &mut RecvStream, reader: &mut Reader, log: &mut Log) {
    while let Some(Ok(data)) = body.data().await {
        if take(body, &data, reader, log).is_err() {
            return;
        }
    }
}

/// Reads `data`, for which the client gets room again.
fn take(
    body: &mut RecvStream,
    data: &[u8],
    reader: &mut Reader,
    log: &mut Log,
) -> Result<(), Fault> {
    // Fails only on a stream that has ended; the next read reports that.
    let _ = body.flow_control().release_capacity(data.len());
    reader.read(data, log)
}

fn status_of(fault: Fault) -> Status {
    let reason = fault.to_string();
    match fault {
        Fault::Malformed(_) => Status::internal(reason),
        Fault::Compressed => Status::unimplemented(reason),
        Fault::Unidentified => Status::invalid_argument(reason),
    }
}

// === impl Log ===

impl Log {
    fn new(context: &Arc<CallContext>) -> Self {
        Self { context: Arc::clone(context), stage: Stage::New, closed_by: None }
    }

    fn starts(&self) -> &Starts {
        self.context.service.starts()
    }
}

impl Sink for Log {
    fn identify(&mut self, node: &[u8], log_name: &[u8]) -> Result<(), Fault> {
        if !matches!(self.stage, Stage::New) {
            return Ok(());
        }
        self.stage = if log_name == LOG_NAME {
            Stage::Ours(self.starts().open_log(&String::from_utf8_lossy(node)))
        } else {
            self.starts().note_other_log();
            Stage::Other
        };
        Ok(())
    }

    fn http_entry(&mut self, entry: &Entry) -> Result<(), Fault> {
        let log = match &self.stage {
            Stage::New => return Err(Fault::Unidentified),
            Stage::Other => {
                self.starts().note_entry(LogEntry::OtherLog);
                return Ok(());
            }
            Stage::Ours(log) => log,
        };
        let ignored = match (entry.id(), entry.report()) {
            (EntryId::Text(id), _) if entry.is_denied() => {
                log.end_denied(id);
                return Ok(());
            }
            _ if entry.is_denied() => LogEntry::Denied,
            (EntryId::Absent, _) => LogEntry::WithoutId,
            (EntryId::Bad, _) => LogEntry::BadId,
            (_, Report::Other) => LogEntry::OtherType,
            (EntryId::Text(id), Report::Alive) => {
                log.note_alive(id);
                return Ok(());
            }
            (EntryId::Text(id), Report::End) => {
                log.end(id, entry.cost());
                return Ok(());
            }
        };
        self.starts().note_entry(ignored);
        Ok(())
    }

    fn tcp_entry(&mut self) {
        self.starts().note_entry(LogEntry::Tcp);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Stage::Ours(log) = &mut self.stage {
            log.closed_by = self.closed_by.unwrap_or_else(|| self.context.closed_by());
        }
    }
}
