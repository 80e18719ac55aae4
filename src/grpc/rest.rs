//! Everything but the plain call: tonic's routes, over a stream of `h2`.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::timeout;
use tonic::body::Body as TonicBody;
use tonic::codegen::StdError;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower_service::Service;

use super::call::Rest;
use super::{deadline, status_of};
use crate::intake::Held;

/// A call's answer begins within this whatever happens; a verdict takes a few milliseconds at most.
/// It bounds clients that open a call and never finish their message.
const CALL_MAX: Duration = Duration::from_secs(10);

/// The message of a call as tonic reads it.
pub(super) struct Body {
    /// What was read of it already.
    read: Option<Bytes>,
    rest: RecvStream,
    held: Held,
}

/// Sees `call` through, until its client gives it up.
pub(super) async fn serve(call: Rest, mut routes: Routes) {
    let Rest { request, mut respond } = call;
    let limit = deadline::timeout(request.headers()).unwrap_or(CALL_MAX).min(CALL_MAX);
    let answered = async {
        match refused(&request) {
            Some(response) => Ok(Ok(response)),
            None => timeout(limit, routes.call(request)).await,
        }
    };
    let answered = tokio::select! {
        answered = answered => answered,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    let response = match answered {
        Ok(Ok(response)) => mended(response),
        Ok(Err(never)) => match never {},
        Err(_) => Status::deadline_exceeded("Timeout expired").into_http(),
    };
    send(response, respond).await;
}

/// The answer to what is no call of gRPC at all, which tonic would take for one. The status of HTTP
/// says so as well, for clients that know no other (gRPC over HTTP/2, Requests).
fn refused<B>(request: &Request<B>) -> Option<Response<TonicBody>> {
    let is_post = request.method() == Method::POST;
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_grpc = content_type
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')));
    let (code, reason) = match (is_post, is_grpc) {
        (true, true) => return None,
        (false, _) => (StatusCode::METHOD_NOT_ALLOWED, "calls of gRPC are made with POST"),
        _ => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content-type has to be application/grpc"),
    };
    let mut response = Status::internal(reason).into_http();
    *response.status_mut() = code;
    if !is_post {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    Some(response)
}

/// tonic says OUT_OF_RANGE of a message that is too long, where gRPC's own table of statuses has
/// RESOURCE_EXHAUSTED, as the reference does. Nothing else here says the former.
fn mended(mut response: Response<TonicBody>) -> Response<TonicBody> {
    if let Some(status) = response.headers_mut().get_mut("grpc-status")
        && Code::from_bytes(status.as_bytes()) == Code::OutOfRange
    {
        *status = HeaderValue::from(i32::from(Code::ResourceExhausted));
    }
    response
}

/// Sends `response` as far as its client takes it.
async fn send(response: Response<TonicBody>, mut respond: SendResponse<Bytes>) {
    let (head, mut body) = response.into_parts();
    let is_over = body.is_end_stream();
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), is_over) else {
        return;
    };
    if is_over {
        return;
    }
    loop {
        let frame = tokio::select! {
            frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => frame,
            _ = poll_fn(|cx| stream.poll_reset(cx)) => return,
        };
        let sent = match frame.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => send_data(&mut stream, data).await,
            Some(Ok(Err(frame))) => {
                let trailers = frame.into_trailers().unwrap_or_default();
                let _ = stream.send_trailers(trailers);
                return;
            }
            Some(Err(_)) => return stream.send_reset(h2::Reason::INTERNAL_ERROR),
            None => {
                let _ = stream.send_data(Bytes::new(), true);
                return;
            }
        };
        if sent.is_none() {
            return;
        }
    }
}

/// Sends `data` in the pieces that the client has room for; `None` once it is gone.
async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Option<()> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, false).ok()?;
    }
    Some(())
}

// === impl Body ===

impl Body {
    /// What is read of it counts as `held` for as long as it lives.
    pub(super) fn new(read: Option<Bytes>, rest: RecvStream, held: Held) -> Self {
        Self { read, rest, held }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if let Some(read) = self.read.take() {
            return Poll::Ready(Some(Ok(read)));
        }
        let polled = ready!(self.rest.poll_data(cx));
        if let Some(Ok(data)) = &polled {
            // Fails only on a stream that is over, which the next read tells.
            let _ = self.rest.flow_control().release_capacity(data.len());
        }
        Poll::Ready(polled)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        match ready!(self.poll_data(cx)) {
            Some(Ok(data)) => {
                let held = self.held.take(data.len()).map_err(|refusal| status_of(&refusal));
                Poll::Ready(Some(held.map(|()| Frame::data(data)).map_err(StdError::from)))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error.into()))),
            None => {
                let trailers = ready!(self.rest.poll_trailers(cx))?;
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
