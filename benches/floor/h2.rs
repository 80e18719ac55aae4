//! A server directly on HTTP/2: a request whose message has already arrived is answered in the
//! connection's own task. That takes no task, no allocation and no lock beyond those in `h2`.

use std::io;
use std::task::Poll;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use ratelease_listener::{OpenConnections, connections};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

/// `overall_code: OK` behind gRPC's prefix.
pub(super) const OK: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

/// Streams of a connection at a time, as in `crates/server/src/grpc/connection.rs`.
const STREAMS_MAX: u32 = 1024;

/// Resets that a connection tolerates, as in that file.
const RESETS_MAX: usize = 1024;

/// Bytes of a request's headers, as in that file.
const HEADER_BYTES_MAX: u32 = 16 * 1024;

/// The parts of every answer.
struct Answer {
    head: Response<()>,
    trailers: HeaderMap,
}

/// A request whose message is not complete yet.
struct Call {
    body: RecvStream,
    respond: SendResponse<Bytes>,
}

pub(crate) async fn serve(listener: TcpListener) -> io::Result<()> {
    let mut incoming = Box::pin(connections(listener, None, OpenConnections::default()));
    while let Some(accepted) = incoming.next().await {
        tokio::spawn(connection(accepted.register()?));
    }
    Ok(())
}

/// Serves until the client disconnects, for any reason.
pub(crate) async fn connection(
    socket: impl AsyncRead + AsyncWrite + Unpin,
) -> Result<(), h2::Error> {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(Some(RESETS_MAX))
        .max_header_list_size(HEADER_BYTES_MAX);
    let mut connection = builder.handshake(socket).await?;
    let answer = Answer::new();
    let mut waiting = FuturesUnordered::new();
    std::future::poll_fn(|cx| {
        loop {
            while let Poll::Ready(Some(call)) = waiting.poll_next_unpin(cx) {
                answer.send(call);
            }
            match connection.poll_accept(cx) {
                Poll::Ready(Some(accepted)) => {
                    let (request, respond): (Request<RecvStream>, _) = accepted?;
                    let mut call = Some(Call { body: request.into_body(), respond });
                    match Call::poll_read(&mut call, cx) {
                        Poll::Ready(read) => answer.send(read),
                        Poll::Pending => waiting
                            .push(std::future::poll_fn(move |cx| Call::poll_read(&mut call, cx))),
                    }
                }
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

// === impl Call ===

impl Call {
    /// Returns the call once its message has arrived.
    fn poll_read(call: &mut Option<Self>, cx: &mut std::task::Context<'_>) -> Poll<Option<Self>> {
        let Some(Self { body, .. }) = call else { return Poll::Ready(None) };
        while let Some(data) = std::task::ready!(body.poll_data(cx)) {
            let Ok(data) = data else { return Poll::Ready(None) };
            // Fails if the stream is reset, which the answer detects too.
            let _ = body.flow_control().release_capacity(data.len());
        }
        Poll::Ready(call.take())
    }
}

// === impl Answer ===

impl Answer {
    fn new() -> Self {
        let mut head = Response::new(());
        let grpc = HeaderValue::from_static("application/grpc");
        head.headers_mut().insert(header::CONTENT_TYPE, grpc);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Self { head, trailers }
    }

    fn send(&self, call: Option<Call>) {
        let Some(Call { mut respond, .. }) = call else { return };
        let sent = respond.send_response(self.head.clone(), false).and_then(|mut body| {
            body.send_data(Bytes::from_static(OK), false)?;
            body.send_trailers(self.trailers.clone())
        });
        if sent.is_err() {
            respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}
