//! Runs work that blocks a thread, such as name lookups, with limited concurrency.

use std::io;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// A share of the process's threads for blocking work.
#[derive(Debug)]
pub(super) struct Threads(Arc<Semaphore>);

// === impl Threads ===

impl Threads {
    /// At most `most` threads at a time.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most)))
    }

    /// Runs `work` when a thread is free and returns its result. Work that has begun continues if
    /// its caller gives up, and keeps its thread until it ends.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let place = Arc::clone(&self.0).acquire_owned().await.map_err(io::Error::other)?;
        let working = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        working.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn work_that_was_given_up_has_its_thread_until_it_ends() {
        let threads = Threads::new(1);
        let (end, wait) = mpsc::channel::<()>();
        let mut given_up = Box::pin(threads.run(move || wait.recv()));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop(given_up);
        let mut next = Box::pin(threads.run(|| 7));
        assert!(futures_util::poll!(&mut next).is_pending());
        assert_eq!(threads.0.available_permits(), 0);
        drop(end);
        assert_eq!(next.await.unwrap(), 7);
    }
}
