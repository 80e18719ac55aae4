//! A memory budget for large answers that their clients do not read.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;

use ratelease_listener::ConnectionHandle;

/// Answers smaller than this are not counted: the limits on streams and connections bound their
/// number.
const LARGE: u64 = 4 * 1024;

/// Maximum number of bytes of large answers that are not read yet, over all servers that share the
/// budget. A page of ten thousand rules has 10 MB.
const UNREAD_MAX: usize = 8 * 1024 * 1024;

/// A page counts for no more bytes than this, so that there is room for others beside the largest.
const COUNTED_MAX: usize = UNREAD_MAX / 4;

/// Counts the bytes of large answers as long as they are held. When there are too many, closes the
/// connections whose answers have been unread the longest: the answer of a client that reads is the
/// newest. A cheap handle: clones share the count.
#[derive(Debug, Clone, Default)]
pub struct UnreadPages(Arc<Mutex<Unread>>);

#[derive(Debug, Default)]
struct Unread {
    bytes: usize,
    /// Oldest first.
    pages: VecDeque<Unsent>,
    last: u64,
}

/// A large answer that was not read yet.
#[derive(Debug)]
struct Unsent {
    number: u64,
    /// The bytes that it counts for.
    bytes: usize,
    connection: ConnectionHandle,
}

/// A large answer; its bytes are released when the last of them has been sent.
struct Page {
    bytes: Bytes,
    number: u64,
    budget: UnreadPages,
}

// === impl UnreadPages ===

impl UnreadPages {
    /// Returns the same response, whose body is counted if it is large and complete.
    pub(super) fn count(&self, response: Response, handle: ConnectionHandle) -> Response {
        let size = response.body().size_hint().exact().unwrap_or_default();
        if size < LARGE {
            return response;
        }
        response.map(|body| {
            let mut pieces = body.into_data_stream();
            match pieces.next().now_or_never() {
                // Bodies made by this crate are in one piece.
                Some(Some(Ok(bytes))) if bytes.len() as u64 == size => {
                    Body::from(Bytes::from_owner(self.enter(bytes, handle)))
                }
                Some(Some(first)) => Body::from_stream(stream::iter([first]).chain(pieces)),
                Some(None) | None => Body::from_stream(pieces),
            }
        })
    }

    fn enter(&self, bytes: Bytes, handle: ConnectionHandle) -> Page {
        let counted = bytes.len().min(COUNTED_MAX);
        let mut unread = self.0.lock();
        while unread.bytes + counted > UNREAD_MAX
            && let Some(oldest) = unread.pages.pop_front()
        {
            unread.bytes -= oldest.bytes;
            oldest.connection.close();
        }
        unread.last += 1;
        let number = unread.last;
        unread.bytes += counted;
        unread.pages.push_back(Unsent { number, bytes: counted, connection: handle });
        drop(unread);
        Page { bytes, number, budget: self.clone() }
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut unread = self.budget.0.lock();
        if let Ok(at) = unread.pages.binary_search_by_key(&self.number, |unsent| unsent.number) {
            let counted = unread.pages.remove(at).map_or(0, |unsent| unsent.bytes);
            unread.bytes -= counted;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use ratelease_listener::Connection;

    fn connection() -> Connection<tokio::io::DuplexStream> {
        Connection::standalone(duplex(1).0)
    }

    fn is_closed(connection: &Connection<tokio::io::DuplexStream>) -> bool {
        connection.handle().close_requested().now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_long_page_leaves_room_for_others() {
        let budget = UnreadPages::default();
        let (long, short) = (connection(), connection());
        let page = Bytes::from(vec![b'x'; 2 * UNREAD_MAX]);
        let _long = budget.enter(page, long.handle());
        let _short: Vec<_> = (0..3)
            .map(|_| budget.enter(Bytes::from(vec![b'x'; COUNTED_MAX]), short.handle()))
            .collect();
        assert!(!is_closed(&long) && !is_closed(&short), "all of them fit");
        let _more = budget.enter(Bytes::from(vec![b'x'; COUNTED_MAX]), short.handle());
        assert!(is_closed(&long) && !is_closed(&short), "the oldest is closed");
    }

    #[tokio::test]
    async fn a_page_that_was_read_is_no_longer_counted() {
        let budget = UnreadPages::default();
        let reader = connection();
        for _ in 0..100 {
            drop(budget.enter(Bytes::from(vec![b'x'; COUNTED_MAX]), reader.handle()));
        }
        assert!(!is_closed(&reader));
        assert_eq!(budget.0.lock().bytes, 0);
    }
}
