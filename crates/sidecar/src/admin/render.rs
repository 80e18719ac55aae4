//! Renders pages that take milliseconds and megabytes: on blocking threads, so that decisions do
//! not wait, and few at a time.

use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Maximum number of pages rendered at once. Others wait, for no longer than a request may take; a
/// scrape of ten thousand rules takes some 10 MB while it is written.
const CONCURRENT_MAX: usize = 2;

static RENDERERS: Semaphore = Semaphore::const_new(CONCURRENT_MAX);

/// The response if a page was not rendered.
pub(super) type RenderError = (StatusCode, &'static str);

const RENDER_ERROR: RenderError =
    (StatusCode::INTERNAL_SERVER_ERROR, "internal error: the page was not rendered; see the log\n");

/// Runs `make` on a blocking thread, and returns its result.
pub(super) async fn render<T: Send + 'static>(
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RenderError> {
    // The semaphore is never closed.
    let room = RENDERERS.acquire().await.map_err(|_| RENDER_ERROR)?;
    let make = move || {
        // Released when the work is done: the client may be gone before.
        let _room = room;
        make()
    };
    spawn_blocking(make).await.map_err(|_| RENDER_ERROR)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn few_pages_are_rendered_at_once_and_a_panic_is_an_error() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let pages = (0..8 * CONCURRENT_MAX).map(|number| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            render(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(5));
                now.fetch_sub(1, Ordering::SeqCst);
                number
            })
        });
        let made_all: Vec<_> = join_all(pages).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(made_all, (0..8 * CONCURRENT_MAX).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= CONCURRENT_MAX);
        let failed = render(move || assert!(now.load(Ordering::SeqCst) > 9, "deliberate")).await;
        assert_eq!(failed, Err(RENDER_ERROR));
        assert_eq!(render(|| 7).await, Ok(7), "a panic releases the permit");
    }
}
