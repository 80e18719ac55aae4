//! Slots whose owner redirects asks to a node that does not answer, and slots without an owner.

use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::lease::{BreakerState, LeaseClient, Reply, ShardSnapshot};
use ratelease_engine::store::redis::RedisSettings;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, SHARDS_MAX, Store, StoreError};
use ratelease_engine::time::Clock;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected};
use crate::support::now;

/// A node that owns the lower half of the slots, grants one token to each ask, and redirects asks
/// for the key `moving` to the node on port `to`.
async fn half_a_cluster(moving: String, to: u16) -> RedisSettings {
    let act_at = |port| {
        move |words: Vec<String>| {
            let text = match words.first().map(String::as_str) {
                Some("CLUSTER") if words.contains(&"NODES".to_owned()) => {
                    let line = format!("id 127.0.0.1:{to}@1 master - 0 0 1 connected\n");
                    format!("${}\r\n{line}\r\n", line.len())
                }
                Some("CLUSTER") => {
                    format!("*1\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
                }
                _ if words.contains(&moving) => format!("-ASK 1 127.0.0.1:{to}\r\n"),
                _ => grant_of(1),
            };
            async { Act::Say(text) }
        }
    };
    Scripted::at(act_at).await.of_cluster()
}

/// No silence below this is a stall here: the node shares a busy machine with the client, and may
/// need longer than the 50 ms of the default. It is less than a connection to the hole may take.
const STALL: Duration = Duration::from_millis(150);

/// A lease client with the replies to its asks.
pub struct Desk {
    client: LeaseClient,
    replies: mpsc::UnboundedReceiver<Reply>,
}

impl Desk {
    /// The reply to an ask, while no other is out.
    pub async fn reply(&mut self, ask: Ask) -> Reply {
        self.client.queue(ask);
        self.replies.recv().await.unwrap()
    }

    /// The state of the shard of `ask`.
    pub fn shard_of(&self, ask: &Ask) -> ShardSnapshot {
        let number = self.client.shard(ask);
        self.client.shards().into_iter().find(|shard| shard.shard == number).unwrap()
    }
}

pub fn desk(store: Arc<RedisStore>) -> Desk {
    let (reply, replies) = mpsc::unbounded_channel();
    let on_reply = Box::new(move |reported| reply.send(reported).unwrap());
    Desk { client: LeaseClient::open(store, Clock::start(), STALL, on_reply), replies }
}

/// A key of a slot that the node owns.
fn owned(store: &dyn Store) -> Ask {
    std::iter::repeat_with(|| ask(10, 1, 0))
        .find(|ask| store.server(store.shard(ask)).is_some())
        .unwrap()
}

/// The first ask waits a quarter of a second for the connection; no other ask is affected.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_moves_to_a_node_that_does_not_answer_fails_alone() {
    // It accepts connections, and never sends anything.
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probe = connected(half_a_cluster("none".into(), 1).await).await;
    let moving = owned(&*probe);
    let to = hole.local_addr().unwrap().port();
    let store = connected(half_a_cluster(moving.key.in_store(""), to).await).await;
    let mut desk = desk(Arc::clone(&store));
    let begun = now();
    let failed = desk.reply(moving).await;
    assert!(matches!(failed.outcome, Err(StoreError::RedirectFailed(_))), "{failed:?}");
    assert!(begun.elapsed() > Duration::from_millis(200), "longer than a stall takes");
    assert_eq!(desk.client.shards()[0].opened, 0);

    for _ in 0..20 {
        let failed = desk.reply(moving).await;
        assert!(matches!(failed.outcome, Err(StoreError::RedirectFailed(_))), "{failed:?}");
    }
    assert_eq!(desk.reply(owned(&*store)).await.outcome.unwrap().tokens, 1);
    assert_eq!(desk.client.shards()[0].opened, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_without_an_owner_open_no_masters_breaker() {
    let store = connected(half_a_cluster("none".into(), 1).await).await;
    let owned = owned(&*store);
    let is_unowned = |ask: &_| store.server(store.shard(ask)).is_none();
    let unowned = std::iter::repeat_with(|| ask(10, 1, 0)).find(is_unowned).unwrap();
    let mut desk = desk(Arc::clone(&store));
    for _ in 0..10 {
        assert!(desk.reply(unowned).await.outcome.is_err());
    }
    assert_eq!(desk.reply(owned).await.outcome.unwrap().tokens, 1);
    let breakers: Vec<_> = desk.client.shards().iter().map(|it| (it.shard, it.breaker)).collect();
    assert_eq!(breakers, [(0, BreakerState::Closed), (SHARDS_MAX - 1, BreakerState::Open)]);
}
