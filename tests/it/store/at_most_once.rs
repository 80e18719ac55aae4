//! An ask whose reply is lost was taken once or not at all, never twice.

use ratelease_engine::counter::RedisCounter;
use ratelease_engine::store::{Ask, Return, Store, StoreError};

use std::time::Duration;

use super::{ask, connected, count, granted, one, until, until_granted};
use crate::support::now;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::{Single, tcp};

#[tokio::test(flavor = "multi_thread")]
async fn a_late_reply_is_not_asked_for_again() {
    let single = Single::start();
    let store = connected(single.config()).await;
    let ask = ask(100, 50, 0);
    let lent = granted(&*store, ask).await;
    single.server.stop();
    let sent = now();
    let back = Some(Return { tokens: 10, epoch: Some(lent.epoch) });
    let late = one(&*store, Ask { want: 0, back, ..ask }).await;
    assert_eq!(late, Err(StoreError::TimedOut));
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    single.server.cont();
    let look = until_granted(&*store, Ask { want: 0, ..ask }, 5).await;
    assert_eq!(look.left, 60, "credited once");
}

/// The server takes the ask, and the connection breaks before the whole reply has arrived.
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_whose_connection_breaks_is_not_sent_again() {
    let single = Single::start();
    let proxy = Proxy::start().leading_to(single.server.port());
    let mut config = single.config();
    config.addresses = vec![tcp(proxy.port())];
    let store = connected(config).await;
    let ask = ask(100, 50, 0);
    let lent = granted(&*store, ask).await;
    let calls = single.server.calls("evalsha");
    proxy.set(Fault::Cut { after: 0 });
    let back = Some(Return { tokens: 10, epoch: Some(lent.epoch) });
    let lost = one(&*store, Ask { want: 0, back, ..ask }).await;
    assert!(matches!(lost, Err(StoreError::Unreachable(_))), "{lost:?}");
    proxy.set(Fault::None);
    let mut looks = 0;
    let mut look = None;
    until(5, "the store grants again", async || {
        looks += 1;
        look = one(&*store, Ask { want: 0, ..ask }).await.ok();
        look.is_some()
    })
    .await;
    assert_eq!(look.map(|grant| grant.left), Some(60), "credited once");
    // An ask for 0 tokens that is late or finds no connection is repeated, and may have been taken
    // or not.
    let made = single.server.calls("evalsha") - calls;
    assert!((2..=1 + looks).contains(&made), "{made} asks, of which {looks} are looks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_silent_is_connected_to_anew() {
    let single = Single::start();
    let store = connected(single.config()).await;
    granted(&*store, ask(10, 1, 0)).await;
    let connects = count(&*store, RedisCounter::Connects);
    single.server.stop();
    let is_given_up = async || match one(&*store, ask(10, 1, 0)).await {
        Err(StoreError::Unreachable(_)) => true,
        Err(StoreError::TimedOut) => false,
        other => panic!("{other:?}"),
    };
    until(10, "the connection is given up", is_given_up).await;
    single.server.cont();
    until_granted(&*store, ask(10, 1, 0), 10).await;
    assert!(count(&*store, RedisCounter::Connects) > connects, "{:?}", store.counts());
}
