//! Everything but the plain call: tonic's routes, over a stream of `h2`.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::timeout;
use tonic::Status;
use tonic::service::Routes;
use tower_service::Service;

use super::call::Rest;

/// A call's answer begins within this whatever happens; a verdict takes a few milliseconds at most.
/// It bounds clients that open a call and never finish their message.
const CALL_MAX: Duration = Duration::from_secs(10);

/// The message of a call as tonic reads it.
pub(super) struct Body {
    /// What was read of it already.
    read: Option<Bytes>,
    rest: RecvStream,
}

/// Sees `call` through, until its client gives it up.
pub(super) async fn serve(call: Rest, mut routes: Routes) {
    let Rest { request, mut respond } = call;
    let limit = deadline(request.headers()).map_or(CALL_MAX, |asked| asked.min(CALL_MAX));
    let answered = tokio::select! {
        answered = timeout(limit, routes.call(request)) => answered,
        _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
    };
    let response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => Status::deadline_exceeded("Timeout expired").into_http(),
    };
    send(response, respond).await;
}

/// Sends `response` as far as its client takes it.
async fn send(response: Response<tonic::body::Body>, mut respond: SendResponse<Bytes>) {
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

/// `grpc-timeout`: up to eight digits and a unit (gRPC over HTTP/2, Requests).
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_amount = digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let amount: u64 = digits.parse().ok().filter(|_| is_amount)?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

// === impl Body ===

impl Body {
    pub(super) fn new(read: Option<Bytes>, rest: RecvStream) -> Self {
        Self { read, rest }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if let Some(read) = self.read.take() {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        match ready!(self.rest.poll_data(cx)) {
            Some(Ok(data)) => {
                // Fails only on a stream that is over, which the next read tells.
                let _ = self.rest.flow_control().release_capacity(data.len());
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_has_digits_and_a_unit() {
        let read = |text: &'static str| {
            deadline(&HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-timeout"),
                http::HeaderValue::from_static(text),
            )]))
        };
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(read("1n"), Some(Duration::from_nanos(1)));
        for bad in ["", "m", "20", "123456789S", "-1S", "+1S", "1x"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
