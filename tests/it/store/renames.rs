//! Counts that move to their name under a new secret, while stores of pods with either secret ask.

use std::sync::Arc;

use ratelease_engine::counter::{RedisCounter, RedisFailure};
use ratelease_engine::lease::BreakerState;
use ratelease_engine::secret::Secret;
use ratelease_engine::store::redis::{Auth, Login, RedisSettings, RedisStore};
use ratelease_engine::store::{Ask, Return, Slots, Store, StoreError};
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

use super::redirected::{Desk, desk};
use super::redis::{RIGHTS, RIGHTS_LOG};
use super::{ALGORITHMS, ask, ask_by, connected, count, fresh_key, granted, one, patient, until};
use crate::support::redis::{Cluster, Single};
use crate::support::redis_server::Server;

/// Stores of a pod with the old secret and of one with both, and an ask of each for one count.
struct Change {
    old: Arc<RedisStore>,
    new: Arc<RedisStore>,
    /// Under the old name.
    before: Ask,
    /// Under the new name, told the old one.
    after: Ask,
}

impl Change {
    async fn of(settings: &RedisSettings, before: Ask) -> Self {
        let [old, new] = [connected(settings.clone()).await, connected(settings.clone()).await];
        let after = Ask { key: fresh_key(), previous: Some(before.key), ..before };
        Self { old, new, before, after }
    }

    async fn left(&self) -> [u64; 2] {
        let look = |ask| Ask { want: 0, ..ask };
        let old = granted(&*self.old, look(self.before)).await;
        [old.left, granted(&*self.new, look(self.after)).await.left]
    }
}

const LOG: (Algorithm, Unit) = (Algorithm::SlidingLog, Unit::Year);

fn hex(key: Key) -> String {
    key.words().iter().map(|word| format!("{word:08x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_moves_with_what_it_was_and_pods_with_either_secret_share_it() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        let change = Change::of(&settings, ask_by(by, 4, 0)).await;
        let Change { old, new, before, after } = &change;
        assert_eq!(granted(&**old, *before).await.tokens, 4, "{by:?}");
        assert_eq!(granted(&**new, Ask { want: 2, ..*after }).await.tokens, 2, "{by:?}");
        assert_eq!(change.left().await, [4, 4], "{by:?}");
        assert_eq!(count(&**old, RedisFailure::Renamed), 1, "{by:?}: it remembers the way");
        assert_eq!(granted(&**old, Ask { want: 3, ..*before }).await.tokens, 3, "{by:?}");
        assert_eq!(granted(&**new, Ask { want: 3, ..*after }).await.tokens, 1, "{by:?}");
        assert_eq!(change.left().await, [0, 0], "{by:?}");
        let third = connected(settings.clone()).await;
        assert_eq!(granted(&*third, Ask { want: 9, ..*before }).await.tokens, 0, "{by:?}");
        assert_eq!(granted(&*third, Ask { want: 9, ..*after }).await.tokens, 0, "{by:?}");
    }
}

/// A change of the secret that was given up, and one to a third secret after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_went_to_another_secret_first_moves_on_from_there() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        let given_up = Change::of(&settings, ask_by(by, 4, 0)).await;
        assert_eq!(granted(&*given_up.new, given_up.after).await.tokens, 4, "{by:?}");
        let second = Change::of(&settings, given_up.before).await;
        let take = |ask: &Ask| Ask { want: 3, ..*ask };
        assert_eq!(granted(&*second.new, take(&second.after)).await.tokens, 3, "{by:?}");
        assert_eq!(granted(&*given_up.new, take(&given_up.after)).await.tokens, 3, "{by:?}");
        assert_eq!(granted(&*second.old, take(&second.before)).await.tokens, 0, "{by:?}");
        assert_eq!(second.left().await, [0, 0], "{by:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_begins_under_the_new_name_is_found_from_the_old_one() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        let change = Change::of(&settings, ask_by(by, 4, 0)).await;
        assert_eq!(granted(&*change.new, change.after).await.tokens, 4, "{by:?}");
        assert_eq!(change.left().await, [6, 6], "{by:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_a_pod_leased_under_the_old_name_return_to_the_new_one() {
    let settings = patient(Cluster::shared().config());
    let change = Change::of(&settings, ask_by(ALGORITHMS[0], 6, 0)).await;
    let grant = granted(&*change.old, change.before).await;
    assert_eq!(change.left().await, [4, 4]);
    let back = Some(Return { tokens: 5, epoch: Some(grant.epoch) });
    granted(&*change.old, Ask { want: 0, back, ..change.before }).await;
    assert_eq!(change.left().await, [9, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_pods_hold_under_either_name_are_counted_together() {
    let settings = patient(Cluster::shared().config());
    let limit =
        Limit { algorithm: Algorithm::Concurrency, ..Limit::fixed_window(10, Unit::Second) };
    let slots = |pod, held| Some(Slots { pod, held, order: 0, since: 0, received: 0 });
    let before = Ask { want: 6, slots: slots(1, 0), ..Ask::look(fresh_key(), limit) };
    let change = Change::of(&settings, before).await;
    assert_eq!(granted(&*change.old, change.before).await.tokens, 6);
    let of_new = Ask { want: 10, slots: slots(2, 0), ..change.after };
    assert_eq!(granted(&*change.new, of_new).await.tokens, 4);
    let states = Ask { want: 10, slots: slots(1, 6), ..change.before };
    assert_eq!(granted(&*change.old, states).await.tokens, 0);
}

/// The pod that moves a count may end before the new name has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_was_left_and_not_yet_begun_is_begun_by_whoever_asks_next() {
    let single = Single::start();
    let settings = patient(single.config());
    for asks_under_the_old_name in [true, false] {
        let change = Change::of(&settings, ask_by(ALGORITHMS[0], 4, 0)).await;
        granted(&*change.old, change.before).await;
        let name = change.before.key.in_store("");
        let value: String = single.server.command(&["GET", &name]);
        let far = "4000000000000";
        let mark = format!("moved {} {far} text {value}", hex(change.after.key));
        single.server.command::<()>(&["SET", &name, &mark, "PX", "600000"]);
        let first = if asks_under_the_old_name {
            granted(&*change.old, Ask { want: 1, ..change.before }).await
        } else {
            granted(&*change.new, Ask { want: 1, ..change.after }).await
        };
        assert_eq!(first.left, 5);
        assert_eq!(change.left().await, [5, 5]);
    }
}

/// A look of a store that has not asked for the count before: it reads the mark.
async fn left_by_a_fresh_pod(settings: &RedisSettings, ask: Ask) -> u64 {
    let pod = connected(settings.clone()).await;
    granted(&*pod, Ask { want: 0, need: 0, ..ask }).await.left
}

/// Waits until the count of `ask` has no key any more; a full bucket keeps it for a second.
async fn is_gone(single: &Single, ask: &Ask) {
    let name = ask.key.in_store("");
    let exists = || single.server.command::<i64>(&["EXISTS", &name]);
    until(10, "an empty count has no key", async || exists() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_has_become_empty_is_not_begun_again() {
    let single = Single::start();
    let settings = patient(single.config());
    for by in ALGORITHMS {
        if matches!(by.0, Algorithm::LeakyBucket { .. }) {
            continue; // its slots pass, and none comes back
        }
        let change = Change::of(&settings, ask_by(by, 4, 0)).await;
        granted(&*change.old, change.before).await;
        assert_eq!(change.left().await, [6, 6], "{by:?}");
        let back = Some(Return { tokens: 4, epoch: None });
        granted(&*change.new, Ask { want: 0, back, ..change.after }).await;
        if matches!(by.0, Algorithm::TokenBucket { .. } | Algorithm::SlidingLog) {
            is_gone(&single, &change.after).await;
        }
        for ask in [change.after, change.before, change.after] {
            assert_eq!(left_by_a_fresh_pod(&settings, ask).await, 10, "{by:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_were_given_back_are_not_lent_by_an_old_mark() {
    let settings = patient(Cluster::shared().config());
    let limit = Limit { algorithm: Algorithm::Concurrency, ..Limit::fixed_window(5, Unit::Second) };
    let states = |pod, held| Some(Slots { pod, held, order: 0, since: 0, received: 0 });
    let before = Ask { want: 5, slots: states(1, 0), ..Ask::look(fresh_key(), limit) };
    let change = Change::of(&settings, before).await;
    assert_eq!(granted(&*change.old, change.before).await.tokens, 5);
    let of_new = Ask { want: 1, slots: states(2, 0), ..change.after };
    assert_eq!(granted(&*change.new, of_new).await.tokens, 0);
    let ended = Ask { want: 0, slots: states(1, 0), ..change.before };
    assert_eq!(granted(&*change.old, ended).await.left, 5);
    let look = Ask { slots: None, ..change.after };
    assert_eq!(left_by_a_fresh_pod(&settings, look).await, 5);
}

/// A call that was on its way for long, and a mark of the version before, which has no number.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_begins_its_count_once() {
    let single = Single::start();
    let settings = patient(single.config());
    for has_number in [true, false] {
        let change = Change::of(&settings, ask_by(ALGORITHMS[1], 4, 0)).await;
        granted(&*change.old, change.before).await;
        let name = change.before.key.in_store("");
        let value: String = single.server.command(&["GET", &name]);
        let number = if has_number { "0 7 " } else { "" };
        let mark = format!("moved {} {number}4000000000000 text {value}", hex(change.after.key));
        single.server.command::<()>(&["SET", &name, &mark, "PX", "600000"]);
        assert_eq!(left_by_a_fresh_pod(&settings, change.after).await, 6, "{has_number}");
        let back = Some(Return { tokens: 4, epoch: None });
        granted(&*change.new, Ask { want: 0, back, ..change.after }).await;
        is_gone(&single, &change.after).await;
        assert_eq!(left_by_a_fresh_pod(&settings, change.after).await, 10, "{has_number}");
        assert_eq!(left_by_a_fresh_pod(&settings, change.before).await, 10, "{has_number}");
    }
}

/// Pods with the new secret alone, with the old one again and the new one before it, and with the old
/// one alone.
struct WayBack {
    new: Arc<RedisStore>,
    back: Arc<RedisStore>,
    after: Ask,
    again: Ask,
}

impl WayBack {
    async fn of(settings: &RedisSettings, change: &Change) -> Self {
        let [new, back] = [connected(settings.clone()).await, connected(settings.clone()).await];
        let after = Ask { previous: None, ..change.after };
        let again = Ask { previous: Some(after.key), ..change.before };
        Self { new, back, after, again }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_comes_back_in_the_way_in_which_it_was_replaced() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        let change = Change::of(&settings, ask_by(by, 2, 0)).await;
        assert_eq!(granted(&*change.old, change.before).await.tokens, 2, "{by:?}");
        assert_eq!(granted(&*change.new, change.after).await.tokens, 2, "{by:?}");
        let WayBack { new, back, after, again } = WayBack::of(&settings, &change).await;
        assert_eq!(granted(&*new, after).await.tokens, 2, "{by:?}");
        assert_eq!(granted(&*back, again).await.tokens, 2, "{by:?}");
        assert_eq!(granted(&*new, after).await.left, 0, "{by:?}: it follows");
        assert_eq!(left_by_a_fresh_pod(&settings, again).await, 0, "{by:?}");
        assert_eq!(left_by_a_fresh_pod(&settings, change.before).await, 0, "{by:?}: the old alone");
        assert_eq!(left_by_a_fresh_pod(&settings, after).await, 0, "{by:?}: the new alone");
        let forth = connected(settings.clone()).await;
        assert_eq!(granted(&*forth, Ask { want: 9, ..change.after }).await.tokens, 0, "{by:?}");
        assert_eq!(left_by_a_fresh_pod(&settings, again).await, 0, "{by:?}: once more");
    }
}

/// With a mark from before at the name to which it goes, and without.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_begun_under_the_new_secret_moves_to_the_old_one() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        for was_moved in [true, false] {
            let change = Change::of(&settings, ask_by(by, 4, 0)).await;
            if was_moved {
                change.left().await;
            }
            let WayBack { new, back, after, again } = WayBack::of(&settings, &change).await;
            assert_eq!(granted(&*new, after).await.tokens, 4, "{by:?}");
            assert_eq!(granted(&*back, again).await.tokens, 4, "{by:?}");
            assert_eq!(granted(&*new, after).await.tokens, 2, "{by:?}");
            assert_eq!(left_by_a_fresh_pod(&settings, again).await, 0, "{by:?}");
        }
    }
}

/// The marks of the change before are still there, and lead to a name that has nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_ended_meanwhile_begins_at_nothing_under_the_old_secret() {
    let single = Single::start();
    let settings = patient(single.config());
    for by in ALGORITHMS {
        for was_counted in [true, false] {
            let change = Change::of(&settings, ask_by(by, 4, 0)).await;
            if was_counted {
                granted(&*change.old, change.before).await;
            }
            change.left().await;
            single.server.command::<i64>(&["DEL", &change.after.key.in_store("")]);
            let WayBack { new, back, after, again } = WayBack::of(&settings, &change).await;
            assert_eq!(granted(&*back, again).await.tokens, 4, "{by:?}, {was_counted}");
            assert_eq!(granted(&*new, after).await.tokens, 4, "{by:?}, {was_counted}");
            assert_eq!(left_by_a_fresh_pod(&settings, again).await, 2, "{by:?}, {was_counted}");
        }
    }
}

/// Pods that end between their two steps, in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_at_no_name_is_begun_by_pods_that_move_it_back() {
    let single = Single::start();
    let settings = patient(single.config());
    for first_steps in [1, 2] {
        let change = Change::of(&settings, ask_by(ALGORITHMS[0], 4, 0)).await;
        let value = {
            granted(&*change.old, change.before).await;
            let name = change.before.key.in_store("");
            single.server.command::<String>(&["GET", &name])
        };
        let [old, new] = [change.before.key, change.after.key];
        let far = "4000000000000";
        let there = format!("moved {} 0 7 {far} text {value}", hex(new));
        single.server.command::<()>(&["SET", &old.in_store(""), &there, "PX", "600000"]);
        if first_steps == 2 {
            let back = format!("moved {} 0 8 0 ", hex(old));
            single.server.command::<()>(&["SET", &new.in_store(""), &back, "PX", "600000"]);
        }
        let WayBack { new, back, after, again } = WayBack::of(&settings, &change).await;
        assert_eq!(granted(&*back, Ask { want: 1, ..again }).await.left, 5, "{first_steps}");
        assert_eq!(granted(&*new, Ask { want: 1, ..after }).await.left, 4, "{first_steps}");
        assert_eq!(left_by_a_fresh_pod(&settings, again).await, 4, "{first_steps}");
        assert_eq!(left_by_a_fresh_pod(&settings, change.after).await, 4, "{first_steps}");
    }
}

/// A secret that is replaced and comes back, with the rights of `docs/operate.md`.
#[tokio::test(flavor = "multi_thread")]
async fn counts_move_there_and_back_with_the_fewest_rights() {
    let single = Single::start();
    for (by, of_algorithm) in [(ALGORITHMS[0], ""), (ALGORITHMS[1], ""), (LOG, RIGHTS_LOG)] {
        let rights = format!("reset {RIGHTS} +lrange +pttl +rpush +del {of_algorithm}");
        let words = ["ACL", "SETUSER", "ratelease"].into_iter().chain(rights.split_whitespace());
        single.server.command::<()>(&words.collect::<Vec<_>>());
        let auth = Auth { username: Some("ratelease".into()), password: Some("pw".into()) };
        let login = Login { auth, file: None };
        let settings = RedisSettings { login, ..patient(single.config()) };
        let change = Change::of(&settings, ask_by(by, 4, 0)).await;
        granted(&*change.old, change.before).await;
        assert_eq!(change.left().await, [6, 6], "{by:?}");
        let WayBack { back, again, .. } = WayBack::of(&settings, &change).await;
        assert_eq!(granted(&*back, again).await.left, 2, "{by:?}");
    }
}

/// Two changes in opposite directions at once, by pods that know nothing of each other.
#[tokio::test(flavor = "multi_thread")]
async fn opposite_changes_at_the_same_time_admit_the_limit_once() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        for nth in 0..20 {
            let change = Change::of(&settings, ask_by(by, 1, 0)).await;
            let (mut expected, is_new_known) = (10, nth % 3 == 2);
            if nth % 3 > 0 {
                expected -= granted(&*change.old, change.before).await.tokens;
            }
            if is_new_known {
                expected -= granted(&*change.new, change.after).await.tokens;
            }
            let WayBack { new, back, after, again } = WayBack::of(&settings, &change).await;
            let forth = connected(settings.clone()).await;
            let asks = async |store: &RedisStore, ask: Ask| {
                let mut tokens = 0;
                for _ in 0..12 {
                    tokens += granted(store, ask).await.tokens;
                }
                tokens
            };
            // A pod with the new secret alone moves no count, so it comes after the first moves.
            let by_new = async || if is_new_known { asks(&new, after).await } else { 0 };
            let all = tokio::join!(
                asks(&forth, change.after),
                asks(&back, again),
                by_new(),
                asks(&change.old, change.before),
            );
            assert_eq!(all.0 + all.1 + all.2 + all.3, expected, "{by:?}, {nth}: {all:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_moves_whole() {
    let single = Single::start();
    let limit =
        Limit { algorithm: Algorithm::SlidingLog, ..Limit::fixed_window(10_000, Unit::Year) };
    let before = Ask { want: 9_999, ..Ask::look(fresh_key(), limit) };
    let change = Change::of(&patient(single.config()), before).await;
    assert_eq!(granted(&*change.old, change.before).await.tokens, 9_999);
    assert_eq!(change.left().await, [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_outlives_the_count_and_each_pod_renews_it() {
    let single = Single::start();
    for (unit, least) in [(Unit::Second, 60), (Unit::Day, 3 * 86_400)] {
        let limit = Limit::fixed_window(10, unit);
        let before = Ask { want: 1, ..Ask::look(fresh_key(), limit) };
        let change = Change::of(&patient(single.config()), before).await;
        let name = change.before.key.in_store("");
        let lasts = || single.server.command::<i64>(&["TTL", &name]);
        granted(&*change.new, change.after).await;
        assert!((least - 2..=least).contains(&lasts()), "{unit:?}: {}", lasts());
        single.server.command::<()>(&["EXPIRE", &name, "9"]);
        granted(&*change.old, change.before).await;
        assert!((least - 2..=least).contains(&lasts()), "{unit:?}: {}", lasts());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_deletes_the_count_under_both_names_and_it_does_not_come_back() {
    let settings = patient(Cluster::shared().config());
    for has_both in [true, false] {
        for by in ALGORITHMS {
            let change = Change::of(&settings, ask_by(by, 8, 0)).await;
            granted(&*change.old, change.before).await;
            assert_eq!(change.left().await, [2, 2], "{by:?}");
            let cleared = match has_both {
                true => change.new.clear(&change.after).await,
                false => change.old.clear(&change.before).await,
            };
            cleared.expect("Redis answers");
            let later = connected(settings.clone()).await;
            let look = Ask { want: 0, ..change.after };
            assert_eq!(granted(&*later, look).await.left, 10, "{by:?}");
            assert_eq!(change.left().await, [10, 10], "{by:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_of_a_pod_that_no_longer_knows_the_old_name_changes_nothing() {
    let single = Single::start();
    let change = Change::of(&patient(single.config()), ask_by(ALGORITHMS[0], 4, 0)).await;
    granted(&*change.new, change.after).await;
    let known = Ask { previous: None, want: 1, ..change.after };
    assert_eq!(granted(&*change.new, known).await.left, 5, "it has just asked");
    let unknown = Ask { key: fresh_key(), ..known };
    let refused = one(&*change.new, unknown).await.unwrap_err();
    assert!(matches!(refused, StoreError::Elsewhere { is_not_applied: true, .. }), "{refused:?}");
    let name = unknown.key.in_store("");
    assert_eq!(single.server.command::<i64>(&["EXISTS", &name]), 0);
    assert_eq!(granted(&*change.old, known).await.left, 4, "a pod with one secret asks");
}

/// A shard that refuses to move counts away is not the shard that the ask queues for.
#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_the_shard_of_the_other_name_is_told_from_one_of_the_own_shard() {
    let cluster = Cluster::start(3, 0);
    let settings = patient(cluster.config());
    let before = ask_by(ALGORITHMS[0], 1, 0);
    let old = connected(settings.clone()).await;
    granted(&*old, before).await;
    let at = |key: Key| cluster.owner(&key.in_store("")).port();
    let other = loop {
        let key = fresh_key();
        if at(key) != at(before.key) {
            break key;
        }
    };
    for server in &cluster.nodes {
        let rights = if server.port() == at(before.key) { "-evalsha" } else { "+@all" };
        let user = ["ACL", "SETUSER", "pods", "on", ">secret", "~*", "+@all", rights];
        server.command::<String>(&user);
    }
    let auth = Auth { username: Some("pods".into()), password: Some(Secret::from("secret")) };
    let settings = RedisSettings { login: Login { auth, file: None }, ..settings };
    let store = connected(settings.clone()).await;
    let after = Ask { key: other, previous: Some(before.key), ..before };
    let refused = one(&*store, after).await.unwrap_err();
    assert!(matches!(refused, StoreError::Elsewhere { is_not_applied: true, .. }), "{refused:?}");
    assert!(refused.to_string().contains("NOPERM"), "{refused}");
    let store = connected(settings).await;
    let own = one(&*store, before).await.unwrap_err();
    assert!(matches!(own, StoreError::Refused(_)), "{own:?}");
    granted(&*store, Ask { key: other, ..before }).await;
}

/// A fresh key whose name is at this master.
fn key_at(cluster: &Cluster, at: &Server) -> Key {
    let owner = |key: &Key| cluster.owner(&key.in_store("")).port();
    std::iter::repeat_with(fresh_key).find(|key| owner(key) == at.port()).unwrap()
}

/// The number of asks, of 40 for the `asks` one after the other, that were sent to the store.
async fn sent(desk: &mut Desk, mut asks: impl FnMut() -> Ask) -> usize {
    let mut sent = 0;
    for _ in 0..40 {
        let outcome = desk.reply(asks()).await.outcome;
        assert!(outcome.is_err(), "a name of the count is at the shard that is frozen");
        sent += usize::from(outcome != Err(StoreError::Unavailable));
    }
    sent
}

/// Both ways: a pod with both secrets moves counts from the frozen shard, and one with the old secret
/// follows marks to it.
#[tokio::test(flavor = "multi_thread")]
async fn asks_whose_other_name_is_at_a_frozen_shard_soon_wait_no_longer_and_no_others_suffer() {
    let cluster = Cluster::start(2, 0);
    let [well, frozen] = [&cluster.nodes[0], &cluster.nodes[1]];
    let pair = || [key_at(&cluster, frozen), key_at(&cluster, well)];
    let mut moving: Vec<Ask> = Vec::new();
    let mut followed: Vec<Ask> = Vec::new();
    let from_old = connected(patient(cluster.config())).await;
    let new = connected(patient(cluster.config())).await;
    for _ in 0..40 {
        let [there, here] = pair();
        moving.push(Ask { key: here, previous: Some(there), ..ask(10, 1, 0) });
        let [there, here] = pair();
        let under_old = Ask { key: here, ..ask(10, 1, 0) };
        granted(&*new, Ask { key: there, previous: Some(here), ..under_old }).await;
        granted(&*from_old, under_old).await;
        followed.push(under_old);
    }
    let key_of_well = || key_at(&cluster, well);
    let of_both = connected(cluster.config()).await;
    let old = connected(cluster.config()).await;
    for (store, asks) in [(of_both, moving), (old, followed)] {
        let mut desk = desk(store);
        frozen.stop();
        let mut left = asks.iter().copied().cycle();
        println!("{} sent", sent(&mut desk, || left.next().unwrap()).await);
        let sent = sent(&mut desk, || left.next().unwrap()).await;
        assert!(sent <= 8, "{sent} of 40 asks were sent, and waited for the frozen shard");
        let alone = || {
            let previous = asks[0].previous.map(|_| key_of_well());
            Ask { key: key_of_well(), previous, ..ask(10, 1, 0) }
        };
        for _ in 0..20 {
            assert_eq!(desk.reply(alone()).await.outcome.map(|it| it.tokens), Ok(1));
        }
        let of_well = desk.shard_of(&alone());
        assert_eq!((of_well.breaker, of_well.opened), (BreakerState::Closed, 0));
        frozen.cont();
        until(10, "counts move again", async || desk.reply(asks[0]).await.outcome.is_ok()).await;
        for ask in &asks[1..] {
            assert!(desk.reply(*ask).await.outcome.is_ok());
        }
    }
}

/// No time passes between the two for a pod that asks at that moment.
#[tokio::test(flavor = "multi_thread")]
async fn asks_at_the_same_time_under_both_names_get_no_more_than_the_limit() {
    let settings = patient(Cluster::shared().config());
    for by in ALGORITHMS {
        for _ in 0..20 {
            let change = Change::of(&settings, ask_by(by, 1, 0)).await;
            let Change { old, new, before, after } = &change;
            let asks = async |store: &RedisStore, ask: Ask| {
                let mut tokens = 0;
                for _ in 0..12 {
                    tokens += granted(store, ask).await.tokens;
                }
                tokens
            };
            let (one, other) = tokio::join!(asks(old, *before), asks(new, *after));
            assert_eq!(one + other, 10, "{by:?}: {one} and {other}");
        }
    }
}

/// Any client of Redis may write a mark with a count that no reply has room for.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_with_a_huge_count_fails_alone() {
    let single = Single::start();
    let settings = patient(single.config());
    for by in [ALGORITHMS[0], LOG] {
        let change = Change::of(&settings, ask_by(by, 4, 0)).await;
        let Change { old, new, before, after } = &change;
        let name = before.key.in_store("");
        let mark =
            format!("moved {} 0 7 4000000000000 text {}", hex(after.key), "1".repeat(5 << 20));
        single.server.command::<()>(&["SET", &name, &mark, "PX", "600000"]);
        for (store, ask) in [(old, before), (new, after)] {
            let connects = count(&**store, RedisCounter::Connects);
            assert_eq!(store.lend(ask).await, Err(StoreError::ForeignValue), "{by:?}");
            let other = Ask { previous: ask.previous.map(|_| fresh_key()), ..ask_by(by, 1, 0) };
            assert_eq!(granted(&**store, other).await.tokens, 1, "{by:?}");
            assert_eq!(count(&**store, RedisFailure::Lost), 0, "{by:?}");
            assert_eq!(count(&**store, RedisCounter::Connects), connects, "{by:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_value_is_not_moved() {
    let single = Single::start();
    let settings = patient(single.config());
    let text = |name: &str| {
        single.server.command::<()>(&["SET", name, &"1".repeat(5 << 20)]);
    };
    let list = |name: &str| {
        let push = "for _ = 1, 200 do redis.call('RPUSH', KEYS[1], unpack(ARGV)) end";
        let entries = vec!["1700000000000000"; 1_000];
        let command = [&["EVAL", push, "1", name][..], &entries].concat();
        single.server.command::<()>(&command);
    };
    type Put<'a> = &'a dyn Fn(&str);
    let puts: [(_, Put<'_>); 2] = [(ALGORITHMS[0], &text), (LOG, &list)];
    for (by, put) in puts {
        let change = Change::of(&settings, ask_by(by, 4, 0)).await;
        let name = change.before.key.in_store("");
        put(&name);
        assert_eq!(change.new.lend(&change.after).await, Err(StoreError::ForeignValue), "{by:?}");
        assert_eq!(count(&*change.new, RedisFailure::Lost), 0, "{by:?}");
        let kind: String = single.server.command(&["TYPE", &name]);
        assert_eq!(kind, if by == LOG { "list" } else { "string" });
    }
}
