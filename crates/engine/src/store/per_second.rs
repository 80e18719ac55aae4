//! Combines two stores: limits by the second have a store of their own (`REDIS_PERSECOND`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::{Ask, GrantFuture, Heartbeat, PodCountFuture, ReadyFuture, SHARDS_MAX, Store};
use crate::counter::Count;

/// Sends asks whose limit is by the second to `second`, and all others to `main`.
pub struct PerSecond {
    main: Arc<dyn Store>,
    second: Arc<dyn Store>,
}

/// Number of shards of each store, so that each shard number belongs to one store.
const SHARDS_EACH: usize = SHARDS_MAX / 2;

// === impl PerSecond ===

impl PerSecond {
    /// Joins the two stores.
    pub fn new(main: Arc<dyn Store>, second: Arc<dyn Store>) -> Self {
        Self { main, second }
    }
}

impl Store for PerSecond {
    fn shard(&self, ask: &Ask) -> usize {
        if is_by_second(ask) {
            SHARDS_EACH + self.second.shard(ask) % SHARDS_EACH
        } else {
            self.main.shard(ask) % SHARDS_EACH
        }
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        if is_by_second(ask) { self.second.lend(ask) } else { self.main.lend(ask) }
    }

    fn ready(&self) -> ReadyFuture<'_> {
        Box::pin(async move {
            join(self.main.ready(), self.second.ready()).await;
        })
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        match shard.checked_sub(SHARDS_EACH) {
            Some(second) => self.second.silence(second),
            None => self.main.silence(shard),
        }
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.main.beat(beat)
    }

    fn counts(&self) -> Vec<Count> {
        let mut counts = self.main.counts();
        for (counter, more) in self.second.counts() {
            match counts.iter_mut().find(|(other, _)| *other == counter) {
                Some((_, count)) => *count += more,
                None => counts.push((counter, more)),
            }
        }
        counts
    }

    fn owner(&self, ask: &Ask) -> Option<String> {
        if is_by_second(ask) { self.second.owner(ask) } else { self.main.owner(ask) }
    }

    fn describe(&self) -> String {
        format!("{}, by the second {}", self.main.describe(), self.second.describe())
    }
}

fn is_by_second(ask: &Ask) -> bool {
    ask.limit.window_seconds() == 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::store::{Grant, StoreError};
    use ratelease_rules::key::Key;
    use ratelease_rules::{Limit, Unit};

    fn ask(key: u64, unit: Unit, want: u64) -> Ask {
        let limit = Limit::fixed_window(100, unit);
        Ask { want, charge_denied: true, ..Ask::look(Key::for_test(key), limit) }
    }

    fn memory() -> Arc<MemoryStore> {
        Arc::new(MemoryStore::new(Arc::new(|| Duration::from_secs(90)), 100))
    }

    #[tokio::test]
    async fn each_ask_reaches_its_store_and_replies_keep_their_order() {
        let (main, second) = (memory(), memory());
        let both = PerSecond::new(main.clone(), second.clone());
        let asks = [
            ask(1, Unit::Second, 1),
            ask(2, Unit::Hour, 2),
            ask(3, Unit::Second, 3),
            ask(4, Unit::Day, 4),
        ];
        let tokens = |replies: Vec<Result<Grant, StoreError>>| {
            replies.into_iter().map(|reply| reply.unwrap().tokens).collect::<Vec<_>>()
        };
        assert_eq!(tokens(both.exchange(&asks).await), [1, 2, 3, 4]);
        assert_eq!((main.keys(), second.keys()), (2, 2));
        assert_eq!(tokens(both.exchange(&asks[..1]).await), [1]);
        assert_eq!(tokens(both.exchange(&asks[1..2]).await), [2]);
        for (ask, expected) in asks.iter().zip(1..) {
            assert_eq!(both.lend(ask).await.unwrap().tokens, expected);
        }
        assert_eq!((main.keys(), second.keys()), (2, 2));
    }

    #[test]
    fn the_two_share_no_shard() {
        let both = PerSecond::new(memory(), memory());
        assert_ne!(both.shard(&ask(1, Unit::Second, 1)), both.shard(&ask(1, Unit::Minute, 1)));
        assert!(both.shard(&ask(1, Unit::Second, 1)) < SHARDS_MAX);
    }
}
