//! Takes the calls of a client, has one server answer them, and mirrors them to the other.
//!
//! The answer waits for nothing but the server that gives it: a rate limit call is put into a queue
//! of a fixed length, or is not compared if that is full. A task takes calls from the queue, asks
//! the other server, and compares once both have answered.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use ratelease_engine::time::Clock;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};
use tower_service::Service;

use super::call::{Answer, SHOULD_RATE_LIMIT, Server, Unchanged, answer};
use super::counts::Counts;
use super::flags::AnswerFrom;

/// Calls that wait to be mirrored.
const QUEUE_MAX: usize = 1024;
/// Calls in flight to the server that does not answer.
const MIRRORED_MAX: usize = 64;

/// A call that was answered, or is about to be.
struct Mirrored {
    message: Bytes,
    metadata: MetadataMap,
    answer: oneshot::Receiver<Answer>,
}

/// The service that clients call.
#[derive(Clone)]
pub(super) struct Mirror {
    answering: Server,
    queue: mpsc::Sender<Mirrored>,
    dropped: Arc<AtomicU64>,
}

/// The other end of the queue.
pub(super) struct Mirroring {
    queue: mpsc::Receiver<Mirrored>,
    other: Server,
    from: AnswerFrom,
    counts: Arc<Mutex<Counts>>,
    clock: Clock,
}

/// One call.
struct Call {
    mirror: Mirror,
    path: PathAndQuery,
}

/// Makes a service that answers calls from the one server, and what mirrors them to the other.
pub(super) fn mirror(
    (target, against): (Server, Server),
    from: AnswerFrom,
    counts: Arc<Mutex<Counts>>,
    dropped: Arc<AtomicU64>,
) -> (Mirror, Mirroring) {
    let (answering, other) = match from {
        AnswerFrom::Target => (target, against),
        AnswerFrom::Against => (against, target),
    };
    let (sender, queue) = mpsc::channel(QUEUE_MAX);
    let mirroring = Mirroring { queue, other, from, counts, clock: Clock::start() };
    (Mirror { answering, queue: sender, dropped }, mirroring)
}

// === impl Mirror ===

impl Mirror {
    /// Puts a call into the queue, and returns where its answer has to be sent to. `None` if it is
    /// not to be compared.
    fn begin(&self, path: &str, request: &Request<Bytes>) -> Option<oneshot::Sender<Answer>> {
        if path != SHOULD_RATE_LIMIT {
            return None;
        }
        let Ok(place) = self.queue.try_reserve() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let (sender, answer) = oneshot::channel();
        let (message, metadata) = (request.get_ref().clone(), request.metadata().clone());
        place.send(Mirrored { message, metadata, answer });
        Some(sender)
    }
}

type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl UnaryService<Bytes> for Call {
    type Response = Bytes;
    type Future = Answering<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let Self { mirror, path } = self;
        let (mirror, path) = (mirror.clone(), path.clone());
        Box::pin(async move {
            let told = mirror.begin(path.path(), &request);
            let (metadata, _, message) = request.into_parts();
            let answered = mirror.answering.call(path, metadata, message).await;
            if let Some(told) = told {
                // Its receiver is gone only if the run has ended.
                let _ = told.send(answer(&answered));
            }
            answered
        })
    }
}

impl Service<http::Request<Body>> for Mirror {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let call = Call { mirror: self.clone(), path };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Unchanged);
            Ok(grpc.unary(call, request).await)
        })
    }
}

// === impl Mirroring ===

impl Mirroring {
    /// Mirrors calls until the service is gone and the queue is empty.
    pub(super) async fn run(mut self) {
        let room = Arc::new(Semaphore::new(MIRRORED_MAX));
        while let Some(mirrored) = self.queue.recv().await {
            let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
            let (other, counts) = (self.other.clone(), Arc::clone(&self.counts));
            let (from, clock) = (self.from, self.clock);
            tokio::spawn(async move {
                compare(mirrored, &other, from, &counts, clock).await;
                drop(place);
            });
        }
        // All places are free again once the last call is compared.
        let _ = room.acquire_many(u32::try_from(MIRRORED_MAX).unwrap_or(u32::MAX)).await;
    }
}

async fn compare(
    mirrored: Mirrored,
    other: &Server,
    from: AnswerFrom,
    counts: &Mutex<Counts>,
    clock: Clock,
) {
    let Mirrored { message, metadata, answer: first } = mirrored;
    let path = PathAndQuery::from_static(SHOULD_RATE_LIMIT);
    let second = other.call(path, metadata, message.clone());
    let (first, second) = tokio::join!(first, second);
    // A call that its client gave up has no answer.
    let Ok(first) = first else { return };
    let second = answer(&second);
    let (target, against) = match from {
        AnswerFrom::Target => (first, second),
        AnswerFrom::Against => (second, first),
    };
    counts.lock().note(message, target, against, clock.now());
}
