//! **Work of requests** on threads that may block. It goes on when its request is dropped, so it
//! holds all that the request held, such as its permits, until it ends.
//!
//! A client that sends a request and closes the connection, again and again, would otherwise have
//! any number of compilers at work, whatever the number of requests at a time is bounded to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::task_local;

use crate::store::{StoreError, StoreResult};

task_local! {
    /// The request that the present task handles.
    static REQUEST: Arc<RequestWork>;
}

/// What a request and its work share.
#[derive(Default)]
struct RequestWork {
    /// Dropped when the request is answered or dropped, and its work has ended.
    held: Mutex<Vec<Box<dyn Send>>>,
    is_cancelled: AtomicBool,
}

/// Tells work whether its request was dropped: its client has gone, or its time is over.
pub struct Cancel(Arc<RequestWork>);

/// Cancels the work when it is dropped.
struct CancelOnDrop(Arc<RequestWork>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }
}

// === impl Cancel ===

impl Cancel {
    /// Whether the work is to end: its result is not awaited any more.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Relaxed)
    }
}

/// Handles a request, whose work is cancelled when this future is dropped.
pub async fn of_request<T>(request: impl Future<Output = T>) -> T {
    let work = Arc::new(RequestWork::default());
    let _cancel = CancelOnDrop(Arc::clone(&work));
    REQUEST.scope(work, request).await
}

/// Keeps `permit` until the present request is answered or dropped, and all of its work has ended.
/// Outside of a request it is dropped at once.
pub fn hold(permit: impl Send + 'static) {
    let _ = REQUEST.try_with(|work| work.held.lock().push(Box::new(permit)));
}

/// Does work of the present request that takes a thread for more than some milliseconds. Work in
/// several steps looks at [`Cancel`] between them; what has not begun when the request is dropped
/// is not done.
///
/// # Errors
/// Fails if the work panics.
pub async fn heavy<T: Send + 'static>(
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> StoreResult<T> {
    let cancel = Cancel(REQUEST.try_with(Arc::clone).unwrap_or_default());
    let done = spawn_blocking(move || {
        // The permits outlive what the work returns, which may be large.
        (!cancel.is_cancelled()).then(|| work(&cancel)).map(|done| (done, cancel))
    });
    match done.await {
        Ok(Some((done, _))) => Ok(done),
        Ok(None) => Err(StoreError::Internal("the request was dropped".to_owned())),
        Err(error) => Err(StoreError::Internal(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[tokio::test(flavor = "multi_thread")]
    async fn a_permit_is_held_until_the_work_of_a_dropped_request_ends() {
        let permits = Arc::new(Semaphore::new(1));
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (end, ended) = mpsc::channel::<()>();
        let all = Arc::clone(&permits);
        let request = tokio::spawn(of_request(async move {
            hold(all.acquire_owned().await.unwrap());
            heavy(move |cancel| {
                begun.send(()).unwrap();
                ended.recv_timeout(SOON).unwrap();
                assert!(cancel.is_cancelled());
            })
            .await
        }));
        timeout(SOON, has_begun).await.unwrap().unwrap();
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert_eq!(permits.available_permits(), 0, "the work goes on");
        end.send(()).unwrap();
        let free = timeout(SOON, permits.acquire()).await;
        assert!(free.is_ok(), "the work has ended");
    }

    #[tokio::test]
    async fn a_permit_is_free_when_the_request_is_answered() {
        let permits = Arc::new(Semaphore::new(1));
        let all = Arc::clone(&permits);
        let answered = of_request(async move {
            hold(all.try_acquire_owned().unwrap());
            heavy(|cancel| cancel.is_cancelled()).await.unwrap()
        });
        assert!(!answered.await, "a request that is awaited goes on");
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn work_that_has_not_begun_is_not_done_for_a_dropped_request() {
        let (sender, done) = mpsc::channel();
        let mut request = Box::pin(of_request(async {
            let cancelled = Cancel(REQUEST.with(Arc::clone));
            cancelled.0.is_cancelled.store(true, Ordering::Relaxed);
            heavy(move |_| sender.send(())).await.map(drop)
        }));
        while (&mut request).now_or_never().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(done.recv_timeout(SOON).is_err());
    }
}
