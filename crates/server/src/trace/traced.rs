//! A store whose asks are traced: one span for each ask sent to a shard.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::counter::Count;
use ratelease_engine::store::{Ask, GrantFuture, Heartbeat, PodCountFuture, ReadyFuture, Store};

use super::{Outcome, Tracer};

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

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        let Some(span) = self.tracer.begin_exchange(ask, || self.inner.shard(ask)) else {
            return self.inner.lend(ask);
        };
        Box::pin(async move {
            let reply = self.inner.lend(ask).await;
            span.end(Outcome::Failed(usize::from(reply.is_err())));
            reply
        })
    }

    fn ready(&self) -> ReadyFuture<'_> {
        self.inner.ready()
    }

    fn silence(&self, shard: usize) -> Option<Duration> {
        self.inner.silence(shard)
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        self.inner.beat(beat)
    }

    fn counts(&self) -> Vec<Count> {
        self.inner.counts()
    }

    fn owner(&self, ask: &Ask) -> Option<String> {
        self.inner.owner(ask)
    }

    fn store_name(&self, shard: usize) -> String {
        self.inner.store_name(shard)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
