//! A Redis that does not answer, or answers late: the client notices by its own clock, and never
//! waits without end.

use std::time::{Duration, Instant};

use ratelease_engine::counter::{RedisCounter, RedisFailure};
use ratelease_engine::store::redis::{RedisSettings, RedisStore};
use ratelease_engine::store::{Ask, Store, StoreError};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected, count, exchange, granted, one, patient, until, until_granted, within};
use crate::support::now;
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis::{Cluster, Single, tcp};

/// From the first command without an answer to the new connection that replaces the old one.
const REPLACED_WITHIN: Duration = Duration::from_millis(500);
/// A machine that also compiles may slow a round down, and never speeds it up.
const ROUNDS: usize = 5;

async fn behind_proxy(single: &Single, timeout: Duration) -> (Proxy, std::sync::Arc<RedisStore>) {
    let proxy = Proxy::start().leading_to(single.server.port());
    let addresses = vec![tcp(proxy.port())];
    let config = RedisSettings { addresses, timeout, ..single.config() };
    let store = connected(config).await;
    (proxy, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_replaced_within_half_a_second() {
    let single = Single::start();
    let (proxy, store) = behind_proxy(&single, single.config().timeout).await;
    let mut took = Vec::new();
    while took.len() < ROUNDS && took.last().is_none_or(|took| *took > REPLACED_WITHIN) {
        until_granted(&*store, ask(10, 1, 0), 10).await;
        let before = proxy.accepted();
        proxy.set_so_far(Fault::Hole);
        let sent = now();
        assert_eq!(one(&*store, ask(10, 1, 0)).await, Err(StoreError::TimedOut));
        let replaced = within(20, "a new connection", proxy.connection_after(before)).await;
        took.push(replaced.duration_since(sent));
    }
    println!("replaced after {took:?}");
    assert!(took.iter().any(|took| *took <= REPLACED_WITHIN), "{took:?}");
}

/// Both wait on one connection. When the first times out, the second has time left, and then its
/// reply arrives. The time is long, so that a busy machine sends both before it is over.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_the_connection_was_given_up_is_not_used() {
    let single = Single::start();
    let (proxy, store) = behind_proxy(&single, Duration::from_secs(2)).await;
    let lent = ask(100, 10, 0);
    granted(&*store, lent).await;
    // The server accepts the commands, and its replies are held back.
    proxy.set_so_far(Fault::Deaf);
    let first = async {
        let reply = one(&*store, lent).await;
        proxy.set(Fault::None);
        reply
    };
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        one(&*store, lent).await
    };
    assert_eq!(tokio::join!(first, second), (Err(StoreError::TimedOut), Err(StoreError::TimedOut)));
    let look = until_granted(&*store, Ask { want: 0, ..lent }, 10).await;
    assert_eq!(look.left, 70, "each was taken once, and is lost");
    assert_eq!(granted(&*store, Ask { want: 5, ..lent }).await.left, 65);
    assert_eq!(count(&*store, RedisFailure::TimedOut), 2);
}

/// Row R4: a login that has waited since before the server resumed is answered then; and asks sent
/// meanwhile are charged at most once.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_used_again_as_soon_as_it_goes_on() {
    let single = Single::start();
    let store = connected(single.config()).await;
    let lent = ask(1_000, 1, 0);
    granted(&*store, lent).await;
    single.server.stop();
    let end = now() + Duration::from_secs(3);
    while now() < end {
        one(&*store, lent).await.expect_err("it is frozen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    single.server.cont();
    let goes_on = now();
    let look = until_granted(&*store, Ask { want: 0, ..lent }, 10).await;
    println!("used again after {:?}", goes_on.elapsed());
    assert!(goes_on.elapsed() < Duration::from_secs(1), "{:?}", goes_on.elapsed());
    let unanswered = count(&*store, RedisFailure::TimedOut);
    assert!((999 - unanswered..=999).contains(&look.left), "{look:?} {:?}", store.counts());
}

/// Row R6: the answers arrive late.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_half_a_second_away_lends_steadily() {
    let single = Single::start();
    let proxy = Proxy::start().leading_to(single.server.port());
    let slow = Fault::Latency { delay: Duration::from_millis(500), jitter: Duration::ZERO };
    for is_slow_from_the_start in [true, false] {
        proxy.set(if is_slow_from_the_start { slow } else { Fault::None });
        let mut config = single.config();
        config.addresses = vec![tcp(proxy.port())];
        let store = RedisStore::spawn(config, "");
        until_granted(&*store, ask(10, 1, 0), 10).await;
        let before = count(&*store, RedisCounter::Connects);
        proxy.set(slow);
        within(15, "it is learnt", async {
            // Five in a row: until then a connection or two is given up.
            let mut in_a_row = 0;
            while in_a_row < 5 {
                let is_granted = one(&*store, ask(10, 1, 0)).await.is_ok();
                in_a_row = if is_granted { in_a_row + 1 } else { 0 };
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let learnt = count(&*store, RedisCounter::Connects);
        println!("learnt after {} connections, {:?}", learnt - before, store.counts());
        assert!(learnt <= before + 4, "{:?}", store.counts());
        let asks: Vec<_> = (0..20).map(|_| ask(10, 1, 0)).collect();
        for _ in 0..2 {
            assert!(exchange(&*store, &asks).await.iter().all(Result::is_ok));
        }
        assert_eq!(count(&*store, RedisCounter::Connects), learnt, "the connection holds");
    }
}

/// One reply each second: the last arrives long after the time-out of a silent connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_something_comes_is_not_given_up() {
    let act = |_| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Act::Say(grant_of(5))
    };
    let server = Scripted::start(act).await;
    let timeout = Duration::from_millis(2_500);
    let store = connected(RedisSettings { timeout, ..server.config() }).await;
    let asks: Vec<_> = (0..4).map(|_| ask(10, 5, 0)).collect();
    let sent = now();
    for reply in exchange(&*store, &asks).await {
        reply.unwrap();
    }
    assert!(sent.elapsed() >= Duration::from_secs(4), "{:?}", sent.elapsed());
    assert_eq!(server.connections(), 1);
}

/// A listener whose queue is full answers no SYN.
#[tokio::test(flavor = "multi_thread")]
async fn no_ask_waits_for_a_server_that_accepts_no_connection() {
    let single = Single::start();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    let patience = Duration::from_millis(300);
    while let Ok(client) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        queued.push(client.unwrap());
        assert!(queued.len() < 100, "the queue never fills");
    }
    let mut config = single.config();
    config.addresses = vec![tcp(address.port())];
    let store = RedisStore::spawn(config, "");
    for _ in 0..3 {
        let sent = now();
        let refused = one(&*store, ask(10, 1, 0)).await;
        assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
        assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
    }
    until(10, "it knocks again", async || count(&*store, RedisCounter::Connects) >= 3).await;
    drop(queued);
    let listener = listener.into_std().unwrap();
    let _proxy = Proxy::on(listener, single.server.port());
    until_granted(&*store, ask(10, 1, 0), 15).await;
}

/// Row R3, and worse: a slot gone for good, then all of them.
#[tokio::test(flavor = "multi_thread")]
async fn lost_servers_are_connected_to_ten_times_a_second_at_most() {
    let cluster = Cluster::start(3, 0);
    // Long time-outs: a stall of the machine must not break other connections.
    let store = connected(patient(cluster.config())).await;
    let asks: Vec<_> = (0..30).map(|_| ask(1_000, 1, 0)).collect();
    assert!(exchange(&*store, &asks).await.iter().all(Result::is_ok));
    let (lost, rest) = cluster.nodes.split_last().unwrap();
    lost.kill();
    let knocks = Knocks::default();
    knocks.listen(lost.port()).await;
    let seen = || rest.iter().map(|node| node.info("stats")["total_connections_received"].clone());
    let seen = || seen().map(|count| count.parse().unwrap()).collect::<Vec<u64>>();
    let (before, refreshes) = (seen(), cluster_slots_calls(rest));
    hammer(&*store, &asks).await;
    // Each inspection opens two connections of its own, this one and that for the commands.
    let ours = |before: &u64| before + 2;
    assert_eq!(seen(), before.iter().map(ours).collect::<Vec<_>>(), "the rest is left alone");
    let refreshes = cluster_slots_calls(rest) - refreshes;
    println!("{} knocks, {refreshes} refreshes", knocks.times().len());
    assert!((1..=20).contains(&refreshes), "{refreshes} in four seconds");
    knocks.assert_seldom();

    for node in rest {
        node.kill();
        knocks.listen(node.port()).await;
    }
    hammer(&*store, &asks).await;
    println!("{} knocks in all", knocks.times().len());
    knocks.assert_seldom();
}

fn cluster_slots_calls(nodes: &[crate::support::redis::Server]) -> u64 {
    nodes.iter().map(|node| node.calls("cluster|slots")).sum()
}

/// Asks repeatedly for four seconds.
async fn hammer(store: &dyn Store, asks: &[Ask]) {
    let end = now() + Duration::from_secs(4);
    while now() < end {
        exchange(store, asks).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Listeners that close every connection at once, and the times of the connections.
#[derive(Clone, Default)]
struct Knocks(std::sync::Arc<std::sync::Mutex<Vec<Instant>>>);

// === impl Knocks ===

impl Knocks {
    async fn listen(&self, port: u16) {
        let free = async {
            loop {
                match TcpListener::bind(("127.0.0.1", port)).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let listener = within(10, "the server that was killed has gone", free).await;
        let knocks = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                knocks.0.lock().unwrap().push(now());
                drop(client);
            }
        });
    }

    fn times(&self) -> Vec<Instant> {
        self.0.lock().unwrap().clone()
    }

    fn assert_seldom(&self) {
        let times = self.times();
        assert!(times.len() >= 3, "it does knock");
        for thirty_one in times.windows(31) {
            let within = thirty_one[30].duration_since(thirty_one[0]);
            // Half a second of tolerance: a busy machine may accept the first of them late.
            assert!(within >= Duration::from_millis(2_500), "31 within {within:?}");
        }
    }
}
