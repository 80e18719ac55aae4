//! A memory budget for answers that their clients do not read.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::pool::{ConnectionHandle, Peer};

/// Answers smaller than this are not counted: the limits on streams and connections bound their
/// number.
const LARGE: usize = 4 * 1024;

/// Time for an answer in addition to the time for its bytes.
const PACE_GRACE: Duration = Duration::from_secs(15);

/// The bounds of answers that are not read.
#[derive(Debug, Clone, Copy)]
pub struct UnreadBounds {
    /// Maximum number of bytes of large answers that are not read yet, over all servers that share
    /// the budget.
    pub bytes_max: usize,
    /// An answer counts for no more bytes than this, so that there is room for others beside the
    /// largest.
    pub counted_max: usize,
    /// Maximum number of bytes of the answers of one client.
    pub of_client_max: usize,
    /// Bytes a second that a client has to take of an answer, after a grace of 15 s. Without one,
    /// the time of an answer is not bounded here.
    pub bytes_per_second_min: Option<u32>,
}

/// Counts the bytes of large answers as long as they are held, by client. When there are too many,
/// closes the connections of the client that has the most, whose answers have been unread the
/// longest: the answer of a client that reads is the newest. A cheap handle: clones share the
/// count.
#[derive(Debug)]
pub struct UnreadAnswers<K = Peer>(Arc<Shared<K>>);

#[derive(Debug)]
struct Shared<K> {
    bounds: UnreadBounds,
    unread: Mutex<Unread<K>>,
}

#[derive(Debug)]
struct Unread<K> {
    bytes: usize,
    of_client: HashMap<K, usize>,
    /// By number, so the oldest first.
    answers: BTreeMap<u64, Unsent<K>>,
    last: u64,
}

/// A large answer that was not read yet.
#[derive(Debug)]
struct Unsent<K> {
    client: K,
    /// The bytes that it counts for.
    bytes: usize,
    connection: ConnectionHandle,
    /// Closes the connection when the client has read too slowly.
    pace: Option<AbortHandle>,
}

/// The bytes of an answer, which are counted until the last of them has been sent, and the permit
/// of its request.
struct Held<K: Eq + Hash, P> {
    bytes: Bytes,
    counted: Option<(u64, UnreadAnswers<K>)>,
    _permit: P,
}

/// The body of an answer that may be counted.
#[derive(Debug)]
pub struct AnswerBody<B> {
    /// All of the answer, or the part that was read to find out whether it is all.
    first: Option<Frame<Bytes>>,
    rest: Option<B>,
}

// === impl UnreadAnswers ===

impl<K: Eq + Hash + Clone + Send + 'static> UnreadAnswers<K> {
    /// Counts from now on.
    pub fn new(bounds: UnreadBounds) -> Self {
        let unread =
            Unread { bytes: 0, of_client: HashMap::new(), answers: BTreeMap::new(), last: 0 };
        Self(Arc::new(Shared { bounds, unread: Mutex::new(unread) }))
    }

    /// Returns the same response to this client, whose body is counted if it is complete, and large
    /// or with a permit. The permit of its request is held until the last byte of a complete body
    /// has been sent.
    pub fn count<B, P>(
        &self,
        response: Response<B>,
        client: K,
        connection: &ConnectionHandle,
        permit: Option<P>,
    ) -> Response<AnswerBody<B>>
    where
        B: Body<Data = Bytes> + Unpin,
        P: Send + 'static,
    {
        response.map(|mut body| {
            let size = body.size_hint().exact().unwrap_or_default();
            if size == 0 || size < LARGE as u64 && permit.is_none() {
                return AnswerBody { first: None, rest: Some(body) };
            }
            let Some(Some(Ok(frame))) = body.frame().now_or_never() else {
                // A body that fails does so again when it is sent.
                return AnswerBody { first: None, rest: Some(body) };
            };
            match frame.into_data() {
                // Most bodies are in one piece.
                Ok(bytes) if bytes.len() as u64 == size => {
                    let counted = (bytes.len() >= LARGE || permit.is_some())
                        .then(|| (self.enter(bytes.len(), client, connection), self.clone()));
                    let held = Held { bytes, counted, _permit: permit };
                    let first = Frame::data(Bytes::from_owner(held));
                    AnswerBody { first: Some(first), rest: None }
                }
                Ok(bytes) => AnswerBody { first: Some(Frame::data(bytes)), rest: Some(body) },
                Err(frame) => AnswerBody { first: Some(frame), rest: Some(body) },
            }
        })
    }

    /// Counts an answer of this many bytes, and returns its number.
    fn enter(&self, bytes: usize, client: K, connection: &ConnectionHandle) -> u64 {
        let UnreadBounds { bytes_max, counted_max, of_client_max, bytes_per_second_min } =
            self.0.bounds;
        let counted = bytes.min(counted_max);
        let pace = bytes_per_second_min.map(|pace| {
            let time = PACE_GRACE + Duration::from_secs(bytes as u64 / u64::from(pace.max(1)));
            let connection = connection.clone();
            let late = async move {
                sleep(time).await;
                connection.close();
            };
            tokio::spawn(late).abort_handle()
        });
        let mut unread = self.0.unread.lock();
        while unread.of_client.get(&client).is_some_and(|own| own + counted > of_client_max) {
            unread.close_oldest_of(&client.clone());
        }
        while unread.bytes + counted > bytes_max
            && let Some(most) = unread.client_with_most()
        {
            unread.close_oldest_of(&most);
        }
        unread.last += 1;
        let number = unread.last;
        unread.bytes += counted;
        *unread.of_client.entry(client.clone()).or_default() += counted;
        let connection = connection.clone();
        unread.answers.insert(number, Unsent { client, bytes: counted, connection, pace });
        number
    }
}

impl<K> Clone for UnreadAnswers<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

// === impl Unread ===

impl<K: Eq + Hash + Clone> Unread<K> {
    /// The client that has the most; of several that have as much, the one whose oldest answer is
    /// the oldest.
    fn client_with_most(&self) -> Option<K> {
        let most = self.of_client.values().max();
        let mut clients = self.answers.values().map(|unsent| &unsent.client);
        clients.find(|client| self.of_client.get(*client) == most).cloned()
    }

    fn close_oldest_of(&mut self, client: &K) {
        let oldest = self.answers.iter().find(|(_, unsent)| unsent.client == *client);
        match oldest.map(|(number, _)| *number).and_then(|number| self.remove(number)) {
            Some(unsent) => unsent.connection.close(),
            // The client has no answers, so that nothing is left to be counted.
            None => drop(self.of_client.remove(client)),
        }
    }
}

impl<K: Eq + Hash> Unread<K> {
    fn remove(&mut self, number: u64) -> Option<Unsent<K>> {
        let unsent = self.answers.remove(&number)?;
        self.bytes -= unsent.bytes;
        if let Some(own) = self.of_client.get_mut(&unsent.client) {
            *own -= unsent.bytes;
            if *own == 0 {
                self.of_client.remove(&unsent.client);
            }
        }
        if let Some(pace) = &unsent.pace {
            pace.abort();
        }
        Some(unsent)
    }
}

// === impl Held ===

impl<K: Eq + Hash, P> AsRef<[u8]> for Held<K, P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<K: Eq + Hash, P> Drop for Held<K, P> {
    fn drop(&mut self) {
        if let Some((number, answers)) = &self.counted {
            answers.0.unread.lock().remove(*number);
        }
    }
}

// === impl AnswerBody ===

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(rest).poll_frame(cx));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len) as u64;
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(first + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(first + upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http_body_util::Full;
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::io::Connection;

    const MIB: usize = 1 << 20;

    fn answers() -> UnreadAnswers {
        UnreadAnswers::new(UnreadBounds {
            bytes_max: 8 * MIB,
            counted_max: 2 * MIB,
            of_client_max: 7 * MIB,
            bytes_per_second_min: Some(1 << 20),
        })
    }

    fn connection() -> Connection<DuplexStream> {
        Connection::standalone(duplex(1).0)
    }

    fn client(last: u8) -> Peer {
        Peer::of(Some(Ipv4Addr::new(10, 0, 0, last).into()))
    }

    fn is_closed(connection: &Connection<DuplexStream>) -> bool {
        connection.handle().close_requested().now_or_never().is_some()
    }

    /// An answer whose bytes are held until this is dropped.
    fn answer(
        answers: &UnreadAnswers,
        bytes: usize,
        of: u8,
        connection: &Connection<DuplexStream>,
    ) -> Bytes {
        let response = Response::new(Full::new(Bytes::from(vec![b'x'; bytes])));
        let counted = answers.count(response, client(of), &connection.handle(), None::<()>);
        let body = counted.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        assert_eq!(body.len(), bytes);
        body
    }

    #[tokio::test]
    async fn a_long_answer_leaves_room_for_others() {
        let (answers, long, short) = (answers(), connection(), connection());
        let _long = answer(&answers, 16 * MIB, 1, &long);
        let _short: Vec<_> = (2..5).map(|of| answer(&answers, 2 * MIB, of, &short)).collect();
        assert!(!is_closed(&long) && !is_closed(&short), "all of them fit");
        let other = connection();
        let _more = answer(&answers, 2 * MIB, 1, &other);
        assert!(is_closed(&long) && !is_closed(&short), "the oldest is closed");
    }

    #[tokio::test]
    async fn the_client_that_has_the_most_gives_way() {
        let (answers, honest, crowd) = (answers(), connection(), connection());
        let _honest = answer(&answers, 2 * MIB, 1, &honest);
        let held: Vec<_> = (0..9).map(|_| answer(&answers, MIB, 2, &crowd)).collect();
        assert!(is_closed(&crowd) && !is_closed(&honest));
        assert!(answers.0.unread.lock().of_client[&client(2)] <= 6 * MIB);
        drop(held);
        assert_eq!(answers.0.unread.lock().bytes, 2 * MIB);
    }

    #[tokio::test]
    async fn an_answer_that_was_read_is_no_longer_counted() {
        let (answers, reader) = (answers(), connection());
        for _ in 0..100 {
            drop(answer(&answers, 2 * MIB, 1, &reader));
        }
        assert!(!is_closed(&reader));
        let unread = answers.0.unread.lock();
        assert_eq!((unread.bytes, unread.of_client.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_too_slowly_is_closed() {
        let (answers, slow, fast) = (answers(), connection(), connection());
        let _slow = answer(&answers, 2 * MIB, 1, &slow);
        let read = answer(&answers, 2 * MIB, 2, &fast);
        sleep(PACE_GRACE + Duration::from_millis(1900)).await;
        assert!(!is_closed(&slow));
        drop(read);
        sleep(Duration::from_millis(200)).await;
        assert!(is_closed(&slow) && !is_closed(&fast));
    }

    #[tokio::test]
    async fn the_permit_of_a_request_is_held_until_its_answer_is_read() {
        let (answers, reader, permit) = (answers(), connection(), Arc::new(()));
        let response = Response::new(Full::new(Bytes::from_static(b"small")));
        let held = Some(Arc::clone(&permit));
        let counted = answers.count(response, client(1), &reader.handle(), held);
        let body = counted.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(Arc::strong_count(&permit), 2);
        drop(body);
        assert_eq!(Arc::strong_count(&permit), 1);
    }
}
