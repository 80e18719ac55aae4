//! **Permits** bound what is handled at a time: of all clients together, and of each. Requests of tokens
//! take them, and the bytes that are on their way to pods.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Permits, which clients named by `K` take. Who finds none waits, and one client keeps none from
/// others. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct Permits<K: Eq + Hash = String>(Arc<PermitState<K>>);

#[derive(Debug)]
struct PermitState<K> {
    all: Arc<Semaphore>,
    of_each_max: u32,
    /// By client, while it has permits or waits for some.
    of_each: Mutex<HashMap<K, Arc<Semaphore>>>,
    /// How many wait for others to give permits back, and not for their own client.
    waiting: watch::Sender<usize>,
}

/// One that waits for permits of others, until this is dropped.
struct Waits<K: Eq + Hash>(Arc<PermitState<K>>);

/// Permits of a client, which are free again when this is dropped.
#[derive(Debug)]
pub struct Permit<K: Eq + Hash = String> {
    shared: Arc<PermitState<K>>,
    of: K,
    held: Option<[OwnedSemaphorePermit; 2]>,
}

// === impl Permits ===

impl<K: Eq + Hash + Clone> Permits<K> {
    /// At most `max` permits, of which a client may have `of_each_max`.
    pub fn new(max: usize, of_each_max: u32) -> Self {
        let all = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        let waiting = watch::Sender::default();
        Self(Arc::new(PermitState { all, of_each_max, of_each: Mutex::default(), waiting }))
    }

    /// How many wait while their own client has permits left: for permits that others have.
    pub fn waiting(&self) -> watch::Receiver<usize> {
        self.0.waiting.subscribe()
    }

    /// Waits for a permit of this client. The caller bounds the time.
    pub async fn take<'k, Q: ?Sized>(&self, of: &'k Q) -> Permit<K>
    where
        K: From<&'k Q>,
    {
        self.take_many(of.into(), 1).await
    }

    /// Waits for so many permits of this client, or for all that it may have if that is less.
    pub fn take_many(&self, of: K, number: u32) -> impl Future<Output = Permit<K>> + use<K> {
        let max = self.0.of_each_max;
        let number = number.min(max);
        let own = Arc::clone(
            self.0
                .of_each
                .lock()
                .entry(of.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(max as usize))),
        );
        let all = Arc::clone(&self.0.all);
        let mut permit = Permit { shared: Arc::clone(&self.0), of, held: None };
        async move {
            // The permits of the client come first: while it waits for them, it holds none that
            // others could have. Semaphores are never closed.
            let Ok(own) = own.acquire_many_owned(number).await else { return permit };
            let any = match Arc::clone(&all).try_acquire_many_owned(number) {
                Ok(any) => Ok(any),
                Err(_) => {
                    let _waits = Waits::begin(&permit.shared);
                    all.acquire_many_owned(number).await
                }
            };
            permit.held = any.ok().map(|any| [own, any]);
            permit
        }
    }
}

// === impl Waits ===

impl<K: Eq + Hash> Waits<K> {
    fn begin(shared: &Arc<PermitState<K>>) -> Self {
        shared.waiting.send_modify(|number| *number += 1);
        Self(Arc::clone(shared))
    }
}

impl<K: Eq + Hash> Drop for Waits<K> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|number| *number -= 1);
    }
}

// === impl Permit ===

impl<K: Eq + Hash> Drop for Permit<K> {
    fn drop(&mut self) {
        self.held = None;
        let mut of_each = self.shared.of_each.lock();
        // One reference is the map's: the client has no other permit, and waits for none.
        if of_each.get(&self.of).is_some_and(|it| Arc::strong_count(it) == 1) {
            of_each.remove(&self.of);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_token_leaves_places_to_others() {
        let permits = Permits::<String>::new(3, 2);
        let (first, _second) = (permits.take("a").await, permits.take("a").await);
        let mut third = Box::pin(permits.take("a"));
        assert!((&mut third).now_or_never().is_none());
        let other = permits.take("b").await;
        drop(first);
        let _third = third.await;
        assert!(permits.take("c").now_or_never().is_none(), "all permits are taken");
        drop(other);
        drop(permits.take("c").await);
        assert_eq!(permits.0.of_each.lock().len(), 1, "tokens without requests are forgotten");
    }
}
