//! A plain call that has to wait for a lease, or is to be refused. It waits in a task of its own,
//! beneath tonic: its message is complete, and its answer is sent as that of a call that does not
//! wait.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::answer::{send_message, send_status};
use super::deadline::{self, Deadline};
use super::rate_limit_service::unreadable;
use super::{status_of, wire};
use crate::service::{Answer, DecisionService, Peer};
use crate::trace::{Outcome, Span};
use crate::transport::Transport;

/// A call whose message is complete.
pub(super) struct WaitingCall {
    /// The message, without gRPC's prefix.
    pub(super) message: Bytes,
    pub(super) respond: SendResponse<Bytes>,
    pub(super) span: Option<Span>,
    pub(super) deadline: Option<Deadline>,
    /// Maximum time until its answer.
    pub(super) limit: Duration,
}

// === impl WaitingCall ===

impl WaitingCall {
    /// Answers the call, unless its client cancels it before.
    pub(super) async fn serve(self, service: DecisionService, peer: Peer) {
        let Self { message, mut respond, span, deadline, limit } = self;
        // Boxed, since each future around it would have room for it twice.
        let decided = Box::pin(decide(&service, &peer, &message, deadline, span.as_ref()));
        let decided = async {
            match &span {
                Some(span) => span.around(decided).await,
                None => decided.await,
            }
        };
        let mut answered = pin!(timeout(limit, decided));
        let answered = tokio::select! {
            answered = &mut answered => answered,
            _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
        };
        let code = match answered.unwrap_or_else(|_| Err(deadline::expired())) {
            Ok(answer) => {
                send_message(&mut respond, answer);
                Code::Ok
            }
            Err(status) => {
                let code = status.code();
                send_status(&mut respond, status);
                code
            }
        };
        if let Some(span) = &span {
            span.end(Outcome::Grpc(code.into()));
        }
    }
}

/// Returns the answer as a gRPC frame, or the status of an error.
async fn decide(
    service: &DecisionService,
    peer: &Peer,
    message: &[u8],
    deadline: Option<Deadline>,
    span: Option<&Span>,
) -> Result<Bytes, Status> {
    let request = wire::read(message).map_err(|fault| unreadable(fault, service))?;
    let made = |answer: Answer<'_>| {
        if let Some(span) = span {
            span.note(&request, &answer.verdict);
        }
        let mut frame = BytesMut::new();
        wire::frame(&answer, &mut frame);
        frame.freeze()
    };
    let deadline = deadline.map(|Deadline(deadline)| deadline);
    let answer = service.answer_by(deadline, &request, made);
    let passed = service.run(Transport::Grpc, peer, answer).await;
    passed.and_then(|answer| answer).map_err(|error| status_of(&error))
}
