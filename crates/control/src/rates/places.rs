//! Requests that are handled at a time: of all tokens together, and of each.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for requests. Those that find none wait, and those of one token keep none from others.
#[derive(Debug)]
pub struct Places {
    all: Arc<Semaphore>,
    of_token_max: usize,
    /// By token, while it has requests that are handled or wait.
    of_tokens: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The place of a request, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place<'p> {
    places: &'p Places,
    token: String,
    permits: Option<[OwnedSemaphorePermit; 2]>,
}

// === impl Places ===

impl Places {
    /// At most `max` places, of which a token may have `of_token_max`.
    pub fn new(max: usize, of_token_max: usize) -> Self {
        let all = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { all, of_token_max, of_tokens: Mutex::default() }
    }

    /// Waits for a place for a request of this token. The caller bounds the time.
    pub async fn take(&self, token: &str) -> Place<'_> {
        let of_token = Arc::clone(
            self.of_tokens
                .lock()
                .entry(token.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(self.of_token_max))),
        );
        let mut place = Place { places: self, token: token.to_owned(), permits: None };
        // They are never closed.
        if let Ok(own) = of_token.acquire_owned().await
            && let Ok(any) = Arc::clone(&self.all).acquire_owned().await
        {
            place.permits = Some([own, any]);
        }
        place
    }
}

// === impl Place ===

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.permits = None;
        let mut of_tokens = self.places.of_tokens.lock();
        // One reference is the map's: no other request of this token has a place or waits.
        if of_tokens.get(&self.token).is_some_and(|it| Arc::strong_count(it) == 1) {
            of_tokens.remove(&self.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_token_leaves_places_to_others() {
        let places = Places::new(3, 2);
        let (first, _second) = (places.take("a").await, places.take("a").await);
        let mut third = Box::pin(places.take("a"));
        assert!((&mut third).now_or_never().is_none());
        let other = places.take("b").await;
        drop(first);
        let _third = third.await;
        assert!(places.take("c").now_or_never().is_none(), "all places are taken");
        drop(other);
        drop(places.take("c").await);
        assert_eq!(places.of_tokens.lock().len(), 1, "tokens without requests are forgotten");
    }
}
