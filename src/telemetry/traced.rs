//! A store whose asks are traced: one span for each ask sent to a shard, or for a batch of them.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::store::{Ask, Beaten, Count, Heartbeat, Lent, Ready, Replies, Store};

use super::trace::{Outcome, Tracer};

/// Passes all calls on to another store, and times those that are to be traced.
pub struct Traced {
    inner: Arc<dyn Store>,
    tracer: Tracer,
}

// === impl Traced ===

impl Traced {
    /// Creates a store that passes calls to `inner`, and makes its exchanges spans of `tracer`.
    pub fn new(inner: Arc<dyn Store>, tracer: Tracer) -> Self {
        Self { inner, tracer }
    }
}

impl Store for Traced {
    fn shard(&self, ask: &Ask) -> usize {
        self.inner.shard(ask)
    }

    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
        let shard = asks.first().map_or(0, |first| self.inner.shard(first));
        let Some(span) = self.tracer.begin_exchange(shard, asks) else {
            return self.inner.exchange(asks);
        };
        Box::pin(async move {
            let replies = self.inner.exchange(asks).await;
            span.end(Outcome::Failed(replies.iter().filter(|reply| reply.is_err()).count()));
            replies
        })
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> Lent<'a> {
        let asks = std::slice::from_ref(ask);
        let Some(span) = self.tracer.begin_exchange(self.inner.shard(ask), asks) else {
            return self.inner.lend(ask);
        };
        Box::pin(async move {
            let reply = self.inner.lend(ask).await;
            span.end(Outcome::Failed(usize::from(reply.is_err())));
            reply
        })
    }

    fn ready(&self) -> Ready<'_> {
        self.inner.ready()
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        self.inner.silence(shard)
    }

    fn beat(&self, beat: Heartbeat) -> Beaten<'_> {
        self.inner.beat(beat)
    }

    fn counts(&self) -> Vec<Count> {
        self.inner.counts()
    }

    fn owner(&self, ask: &Ask) -> Option<String> {
        self.inner.owner(ask)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
