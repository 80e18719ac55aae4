//! A cluster whose slots move and whose shards fail.

use ratelease_engine::counter::{RedisCounter, RedisFailure};
use ratelease_engine::store::{Ask, Store};

use std::time::Duration;

use super::{
    ask, connected, connected_under, count, exchange, granted, one, patient, until_granted,
};
use crate::support::redis::{Cluster, Server};
use crate::support::{now, wait_for};

/// Fresh asks: a key for each master.
fn one_of_each(store: &dyn Store, shards: usize) -> Vec<Ask> {
    let mut found: Vec<Option<Ask>> = vec![None; shards];
    while found.iter().any(Option::is_none) {
        let ask = ask(1_000, 1, 0);
        found[store.shard(&ask)].get_or_insert(ask);
    }
    found.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_the_master_that_owns_the_slot() {
    let cluster = Cluster::shared();
    let store = connected(patient(cluster.config())).await;
    let mut owners = std::collections::BTreeMap::new();
    for _ in 0..200 {
        let ask = ask(10, 1, 0);
        let owner = cluster.slot_owner(0, &ask.key.in_store(""));
        let known = *owners.entry(store.shard(&ask)).or_insert(owner);
        assert_eq!(known, owner, "{:?}", ask.key);
    }
    assert_eq!(owners.len(), 3, "{owners:?}");
}

/// 200 asks for absent keys of a moving slot, among as many for the target's own keys, whose
/// commands would use up an ASKING that was sent separately.
#[tokio::test(flavor = "multi_thread")]
async fn asks_follow_a_slot_on_the_move_to_a_node_without_the_script() {
    // A cluster of its own: other tests that ask a node would load the script again.
    let cluster = Cluster::start(3, 0);
    // All keys of this store fall into the slot of this tag.
    let moving = connected_under(patient(cluster.config()), "{on the move}").await;
    let others = connected(patient(cluster.config())).await;
    let slot = cluster.slot("{on the move}");
    let from = cluster.slot_owner(0, "{on the move}");
    let to = (from + 1) % 3;
    let old: Vec<_> = (0..20).map(|_| ask(10, 4, 0)).collect();
    for reply in exchange(&*moving, &old).await {
        assert_eq!(reply.unwrap().left, 6);
    }

    cluster.begin_move(slot, from, to);
    cluster.nodes[to].command::<()>(&["SCRIPT", "FLUSH"]);
    let asking = cluster.nodes[to].calls("asking");
    let new: Vec<_> = (0..200).map(|_| ask(10, 3, 0)).collect();
    let busy: Vec<_> = (0..200).map(|_| ask(10, 1, 0)).collect();
    let (replies, _) = tokio::join!(exchange(&*moving, &new), exchange(&*others, &busy));
    for reply in replies {
        assert_eq!(reply.unwrap().tokens, 3);
    }
    assert!(cluster.nodes[to].calls("asking") >= asking + 200, "the way by ASK was not taken");
    let met = |counter: RedisCounter| count(&*moving, counter);
    // The first store whose asks reach the node loads the script there.
    let noscripts = met(RedisFailure::NoScript.into()) + count(&*others, RedisFailure::NoScript);
    assert!(met(RedisFailure::AskRedirect.into()) >= 200 && noscripts > 0, "{:?}", moving.counts());
    for reply in exchange(&*moving, &old).await {
        assert_eq!(reply.unwrap().left, 2, "a key that has not moved is still at home");
    }

    cluster.finish_move(slot, from, to);
    for (asks, left) in [(&old, 0), (&new, 4)] {
        for reply in exchange(&*moving, asks).await {
            assert_eq!(reply.unwrap().left, left, "a count was lost or charged twice on the way");
        }
    }
    assert_eq!(
        (met(RedisCounter::Errors), met(RedisFailure::Moved.into()) > 0),
        (0, true),
        "{:?}",
        moving.counts()
    );
}

/// CLUSTER SLOTS does not list the node, since it has no slot yet.
#[tokio::test(flavor = "multi_thread")]
async fn asks_follow_the_first_slot_of_a_node_that_has_joined() {
    let cluster = Cluster::start(3, 0);
    let store = connected_under(cluster.config(), "{on the move}").await;
    let slot = cluster.slot("{on the move}").to_string();
    let from = &cluster.nodes[cluster.slot_owner(0, "{on the move}")];
    let options = ["--cluster-enabled yes", "--cluster-port {free}", "--cluster-node-timeout 2000"];
    let options: Vec<&str> = options.iter().flat_map(|option| option.split(' ')).collect();
    let joined = Server::start(&options);
    let bus: Vec<String> = joined.command(&["CONFIG", "GET", "cluster-port"]);
    from.command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &joined.port().to_string(), &bus[1]]);
    let id = |node: &Server| node.command::<String>(&["CLUSTER", "MYID"]);
    let knows = |node: &Server, id: &str| {
        let known = node.command::<String>(&["CLUSTER", "NODES"]);
        known.lines().any(|line| line.starts_with(id) && line.contains(" master - "))
    };
    let (old, new) = (id(from), id(&joined));
    wait_for("all nodes know the new one, and it knows them", Duration::from_secs(30), || {
        let is_known = cluster.nodes.iter().all(|node| knows(node, &new));
        let info = joined.command::<String>(&["CLUSTER", "INFO"]);
        (is_known && info.contains("cluster_state:ok")).then_some(())
    });
    joined.command::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old]);
    from.command::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new]);
    // The first asks may time out before the list of nodes is there.
    until_granted(&*store, ask(10, 1, 0), 10).await;
    for reply in exchange(&*store, &(0..20).map(|_| ask(10, 1, 0)).collect::<Vec<_>>()).await {
        assert_eq!(reply.unwrap().tokens, 1);
    }
    assert!(count(&*store, RedisFailure::AskRedirect) > 20 && joined.calls("asking") > 20);
}

/// Well above the latency on an idle machine (a millisecond), well below any time-out of ours.
const FAST: Duration = Duration::from_millis(200);
/// No single ask may take longer, however busy the machine is.
const STALLED: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_shard_fails_fast_and_leaves_the_others_alone() {
    let cluster = Cluster::start(3, 0);
    let store = connected(cluster.config()).await;
    let asks = one_of_each(&*store, 3);
    let lost = cluster.slot_owner(0, &asks[0].key.in_store(""));
    // First silence, as from a node whose machine is gone; then refused connections.
    cluster.nodes[lost].stop();
    slow_at_most(&*store, &asks, Duration::from_secs(1)).await;
    cluster.nodes[lost].kill();
    slow_at_most(&*store, &asks, Duration::from_secs(1)).await;
}

/// For two seconds: asks of the first shard fail within `most`, and those of the others are granted
/// at once, except for a stall of the machine now and then.
async fn slow_at_most(store: &dyn Store, asks: &[Ask], most: Duration) {
    let end = now() + Duration::from_secs(2);
    let lost = async {
        let mut took = Vec::new();
        while now() < end {
            let sent = now();
            one(store, asks[0]).await.expect_err("its master is gone");
            took.push(sent.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        took.sort_unstable();
        assert!(took[took.len() / 2] < most && took[took.len() - 1] < STALLED, "{took:?}");
    };
    let others = async {
        let (mut took, mut failed) = (Vec::new(), Vec::new());
        while now() < end {
            let sent = now();
            failed.extend(exchange(&*store, &asks[1..]).await.into_iter().filter_map(Result::err));
            took.push(sent.elapsed());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        took.sort_unstable();
        assert!(took[took.len() / 2] < FAST, "{took:?}");
        // A stall of 250 ms is a time-out at each of their shards.
        let asked = took.len() * (asks.len() - 1);
        assert!(failed.len() <= 4 + asked / 100, "of {asked}: {failed:?}");
    };
    tokio::join!(lost, others);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_from_a_master_that_died_or_hangs() {
    let cluster = Cluster::start(3, 1);
    let store = connected(cluster.config()).await;
    let asks = one_of_each(&*store, 3);
    let owner = |ask: &Ask| cluster.slot_owner(0, &ask.key.in_store(""));
    // Node 0 stays, since the test reads the owners of slots from it.
    let mut victims = asks.iter().filter(|ask| owner(ask) != 0);
    for hangs in [true, false] {
        let ask = *victims.next().unwrap();
        let (victim, shard) = (owner(&ask), store.shard(&ask));
        granted(&*store, ask).await;
        if hangs {
            cluster.nodes[victim].stop();
        } else {
            cluster.nodes[victim].kill();
        }
        until_granted(&*store, ask, 20).await;
        // The node that granted it owns the slot; node 0 learns that by gossip.
        wait_for("node 0 knows the new owner", Duration::from_secs(20), || {
            (owner(&ask) != victim).then_some(())
        });
        assert_eq!(store.shard(&ask), shard, "the shard keeps its number");
        if hangs {
            cluster.nodes[victim].cont();
            wait_for("the old master follows the new one", Duration::from_secs(20), || {
                let replication = cluster.nodes[victim].info("replication");
                (replication.get("master_link_status")? == "up").then_some(())
            });
        }
    }
}
