//! Each reply of Redis is classified correctly and counted separately; the store recovers by
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ratelease_engine::counter::{RedisCounter, RedisFailure};
use ratelease_engine::secret::Secret;
use ratelease_engine::store::{Ask, Store, StoreError};

use super::scripted::{Act, Scripted, grant_of};
use super::{ask, connected, count, granted, one, patient, until, until_granted, within};
use crate::support::redis::{Cluster, Server, Single};
use crate::support::wait_for;

const PATIENCE: Duration = Duration::from_secs(20);

/// Asks until an ask fails with these words, and `counter` has increased.
async fn until_refused(store: &dyn Store, words: &str, counter: impl Into<RedisCounter>) {
    let refused = async || {
        let reply = one(store, ask(10, 1, 0)).await;
        reply.is_err_and(|why| why.to_string().contains(words))
    };
    until(20, words, refused).await;
    assert!(count(store, counter) > 0, "{:?}", store.counts());
}

async fn until_connected_anew(store: &dyn Store) {
    until(10, "the store reconnects", async || count(store, RedisCounter::Connects) >= 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_to_a_full_server_is_refused_without_a_repeat() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let lent = ask(100, 10, 0);
    granted(&*store, lent).await;
    let calls = single.server.calls("evalsha");
    single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(matches!(one(&*store, lent).await, Err(StoreError::Refused(_))));
    assert_eq!(single.server.calls("evalsha"), calls + 1, "sent once");
    assert_eq!(
        (count(&*store, RedisFailure::OutOfMemory), count(&*store, RedisCounter::Errors)),
        (1, 1)
    );
    single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(granted(&*store, Ask { want: 0, ..lent }).await.left, 90);
    assert_eq!(count(&*store, RedisCounter::Connects), 1, "the connection is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_to_a_server_that_runs_a_long_script_is_refused_and_not_repeated() {
    let single = Single { server: Server::start(&["--busy-reply-threshold", "20"]) };
    let store = connected(patient(single.config())).await;
    let lent = ask(100, 10, 0);
    granted(&*store, lent).await;
    let mut other = single.server.connect();
    let script = thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut other).unwrap_err()
    });
    wait_for("the server is busy", PATIENCE, || {
        let why = single.server.try_command::<String>(&["GET", "any"]).err()?;
        why.to_string().contains("BUSY").then_some(())
    });
    let busy = count(&*store, RedisFailure::Busy);
    assert_eq!(busy, 0);
    until_refused(&*store, "BUSY", RedisFailure::Busy).await;
    assert_eq!(count(&*store, RedisFailure::Busy), 1, "not repeated");
    single.server.command::<()>(&["SCRIPT", "KILL"]);
    script.join().unwrap();
    assert_eq!(until_granted(&*store, lent, 10).await.left, 80);
}

/// Without permission the connection is closed, since a new one may have the permission.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_right_is_logged_in_anew_until_it_has_it() {
    let single = Single::start();
    let set_user = |rights: &str| {
        let words = ["ACL", "SETUSER", "pod"].into_iter().chain(rights.split(' '));
        single.server.command::<()>(&words.collect::<Vec<_>>());
    };
    set_user("on >pw ~* +@all");
    let mut config = single.config();
    (config.login.auth.username, config.login.auth.password) =
        (Some("pod".into()), Some(Secret::from("pw")));
    let store = connected(patient(config)).await;
    let lent = ask(100, 10, 0);
    granted(&*store, lent).await;

    set_user("-evalsha");
    until_refused(&*store, "refused the ask: NOPERM", RedisFailure::Denied).await;
    until_refused(&*store, "cannot be reached", RedisFailure::NotSent).await;
    until_connected_anew(&*store).await;
    set_user("+evalsha");
    assert_eq!(until_granted(&*store, lent, 10).await.left, 80);

    let denied = count(&*store, RedisFailure::Denied);
    single.server.command::<()>(&["ACL", "DELUSER", "pod"]);
    until_refused(&*store, "WRONGPASS", RedisCounter::ConnectErrors).await;
    assert!(count(&*store, RedisFailure::Denied) > denied, "{:?}", store.counts());
    set_user("on >pw ~* +@all");
    assert_eq!(until_granted(&*store, lent, 10).await.left, 70);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_set_at_run_time_locks_the_store_out_until_it_is_unset() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    // A connection opened before the password was set.
    let mut inside = single.server.connect();
    let mut command = |words: &str| {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>()).exec(&mut inside).unwrap();
    };
    command("CONFIG SET requirepass sesame");
    command("CLIENT KILL TYPE normal SKIPME yes");
    until_refused(&*store, "NOAUTH", RedisFailure::Denied).await;
    single_dial_waits(&*store).await;
    redis::cmd("CONFIG").arg(&["SET", "requirepass", ""]).exec(&mut inside).unwrap();
    until_granted(&*store, ask(10, 1, 0), 10).await;
}

/// However often it is asked meanwhile: half the longest wait between attempts is a second.
async fn single_dial_waits(store: &dyn Store) {
    let connects = count(store, RedisCounter::Connects);
    for _ in 0..100 {
        one(store, ask(10, 1, 0)).await.expect_err("we are shut out");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let connects = count(store, RedisCounter::Connects) - connects;
    assert!(connects <= 10, "{connects} in about a second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_reads_its_data_is_waited_for() {
    // The server takes 10 ms for each key that it loads, and handles commands after each kilobyte.
    let slowly = ["--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024"];
    let arguments = [&slowly[..], &["--rdbcompression", "no"]].concat();
    let mut single = Single { server: Server::start(&arguments) };
    let store = connected(patient(single.config())).await;
    let lent = ask(100, 10, 0);
    granted(&*store, lent).await;
    let kilobytes = "x".repeat(2048);
    for at in 0..60 {
        single.server.command::<()>(&["SET", &format!("filler{at}"), &kilobytes]);
    }
    single.server.command::<()>(&["SAVE"]);
    single.server.start_again();
    until_refused(&*store, "LOADING", RedisFailure::Loading).await;
    assert_eq!(until_granted(&*store, Ask { want: 0, ..lent }, 20).await.left, 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_became_a_replica_is_left_until_it_is_one_again() {
    let (single, other) = (Single::start(), Single::start());
    let store = connected(patient(single.config())).await;
    granted(&*store, ask(10, 1, 0)).await;
    let port = other.server.port().to_string();
    single.server.command::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    until_refused(&*store, "READONLY", RedisFailure::ReadOnly).await;
    until_connected_anew(&*store).await;
    single.server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    until_granted(&*store, ask(10, 1, 0), 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lost_its_master_is_left_until_it_is_one() {
    let master = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let port = master.port().to_string();
    let follow = format!("127.0.0.1 {port}");
    let arguments = ["--replicaof", &follow, "--replica-serve-stale-data", "no"];
    let single = Single { server: Server::start(&arguments) };
    master.kill();
    wait_for("the replica has lost its master", PATIENCE, || {
        let replication = single.server.info("replication");
        (replication.get("master_link_status")? == "down").then_some(())
    });
    let store = connected(patient(single.config())).await;
    until_refused(&*store, "MASTERDOWN", RedisFailure::MasterDown).await;
    single.server.command::<()>(&["REPLICAOF", "NO", "ONE"]);
    until_granted(&*store, ask(10, 1, 0), 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_down_for_a_lost_slot_is_used_again_once_it_is_up() {
    let cluster = Cluster::start(3, 0);
    for node in &cluster.nodes {
        node.command::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    let store = connected(patient(cluster.config())).await;
    let lent = ask(100, 10, 0);
    granted(&*store, lent).await;
    let key = lent.key.in_store("");
    let owner = cluster.slot_owner(0, &key);
    // Any slot but that of the ask.
    let lost = if owner == 0 { 16_383 } else { 0 };
    let loser = if owner == 0 { 2 } else { 0 };
    for node in &cluster.nodes {
        node.command::<()>(&["CLUSTER", "DELSLOTS", &lost.to_string()]);
    }
    let is_down = async || {
        let _ = one(&*store, Ask { want: 0, ..lent }).await;
        count(&*store, RedisFailure::ClusterDown) > 0
    };
    until(20, "CLUSTERDOWN", is_down).await;
    cluster.nodes[loser].command::<()>(&["CLUSTER", "ADDSLOTS", &lost.to_string()]);
    assert_eq!(until_granted(&*store, Ask { want: 0, ..lent }, 20).await.left, 90);
}

/// With one key per command it never occurs (all keys of a command have moved, or none has), so the
/// test uses a server that only sends the error.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_between_two_nodes_is_tried_again_a_few_times() {
    const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
    for (times, is_granted) in [(2, true), (9, false)] {
        let asked = Arc::new(AtomicU64::new(0));
        let act = {
            let asked = Arc::clone(&asked);
            move |_| {
                let nth = asked.fetch_add(1, Ordering::Relaxed);
                let says = if nth < times { TRY_AGAIN.to_owned() } else { grant_of(5) };
                async { Act::Say(says) }
            }
        };
        let server = Scripted::start(act).await;
        let store = connected(patient(server.config())).await;
        let outcome = one(&*store, ask(10, 5, 0)).await;
        assert_eq!(outcome.is_ok(), is_granted, "{outcome:?}");
        let asked = asked.load(Ordering::Relaxed);
        assert_eq!(asked, if is_granted { 3 } else { 4 });
        assert_eq!(count(&*store, RedisFailure::TryAgain), times.min(asked));
        assert_eq!(server.connections(), 1, "the connection is kept");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_value_is_counted_and_costs_no_connection() {
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    let foreign = ask(10, 1, 0);
    single.server.command::<()>(&["SET", &foreign.key.in_store(""), "mine"]);
    for _ in 0..3 {
        assert_eq!(one(&*store, foreign).await, Err(StoreError::ForeignValue));
    }
    assert_eq!(
        (count(&*store, RedisFailure::ForeignValue), count(&*store, RedisFailure::Refused)),
        (3, 0)
    );
    assert_eq!(count(&*store, RedisCounter::Connects), 1);
}

/// Everything runs on this thread, so that the log belongs to this test.
#[tokio::test]
async fn the_log_says_once_what_is_wrong_and_how_to_fix_it() {
    let log = Log::default();
    let writer = log.clone();
    let logging = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    // With a single subscriber, tracing caches a call site as disabled forever if a thread without
    // one (another test's) reaches it first.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _until_the_end = tracing::subscriber::set_default(logging.finish());
    let single = Single::start();
    let store = connected(patient(single.config())).await;
    single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..20 {
        one(&*store, ask(10, 1, 0)).await.unwrap_err();
    }
    single.server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    single.server.command::<()>(&["ACL", "SETUSER", "default", "-evalsha"]);
    let has_tried = async || {
        let _ = one(&*store, ask(10, 1, 0)).await;
        count(&*store, RedisFailure::Denied) >= 3
    };
    until(10, "it has tried a few times", has_tried).await;
    single.server.command::<()>(&["ACL", "SETUSER", "default", "+evalsha"]);
    until_granted(&*store, ask(10, 1, 0), 10).await;
    within(5, "it says that all is well", async {
        while log.lines("connected to Redis again") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    for once in ["raise maxmemory", "NOPERM", "check the user's name", "again"] {
        assert_eq!(log.lines(once), 1, "{once}: {log:?}");
    }
}

#[derive(Debug, Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

// === impl Log ===

impl Log {
    fn lines(&self, with: &str) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(with)).count()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
