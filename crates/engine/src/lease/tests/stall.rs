//! Tests which events open a breaker.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_thousand_asks_at_a_slow_shard_that_replies_do_not_open_its_breaker() {
    // One reply each millisecond; the last ones are too late for the store's own deadline.
    let mut rig = Rig::new(|ask| match ask.key.bits() % 1_000 {
        late if late >= 800 => Fate::Fails(ms(800), StoreError::TimedOut),
        at => Fate::After(ms(at + 1)),
    });
    let mut late = 0;
    for key in 0..1_000 {
        let mut ask = ask(key, 0);
        let bits = |key: u64| Key::for_test(key).bits() % 1_000;
        ask.key = Key::for_test((key * 1_000..).find(|other| bits(*other) == key).unwrap());
        rig.client.queue(ask);
        late += usize::from(key >= 800);
    }
    let replies = rig.replies(1_000).await;
    let failed = replies.iter().filter(|reply| reply.outcome.is_err()).count();
    assert_eq!((rig.opened(), failed), (0, late));
}

#[tokio::test(start_paused = true)]
async fn a_silent_shard_stalls_and_asks_that_queued_are_answered_at_once() {
    let mut rig = Rig::new(|_| Fate::Never);
    let out = 4 * BATCH_MAX;
    for key in 0..out as u64 {
        rig.client.queue(ask(key, 0));
    }
    rig.start(out).await;
    (0..10).for_each(|key| rig.client.queue(ask(key, 0)));
    let begun = Clock::start();
    for reply in rig.replies(10).await {
        assert_eq!(reply.outcome, Err(StoreError::Unavailable));
    }
    assert!(begun.now().since(Time::default()) <= ms(52), "{:?}", begun.now());
    assert_eq!(rig.opened(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_probe_leaves_while_the_asks_of_before_the_stall_are_out() {
    let mut rig =
        Rig::new(|ask| if ask.key == Key::for_test(0) { Fate::Never } else { Fate::After(ms(1)) });
    rig.client.queue(ask(0, 0));
    rig.start(1).await;
    tokio::time::sleep(ms(60)).await;
    assert_eq!(rig.opened(), 1);
    tokio::time::sleep(ms(100)).await;
    rig.client.queue(ask(1, 0));
    let probe = rig.replies(1).await.pop().unwrap();
    assert!(probe.ask == ask(1, 0) && probe.outcome.is_ok(), "{probe:?}");
    assert_eq!(rig.client.shards()[0].breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_waits_for_another_server_is_no_stall() {
    let elsewhere = || StoreError::RedirectFailed("gone".into());
    let mut rig = Rig::new(move |_| Fate::Fails(ms(250), elsewhere()));
    *rig.store.silence.lock() = Some(Duration::ZERO);
    for key in 0..10 {
        rig.client.queue(ask(key, 0));
        assert_eq!(rig.replies(1).await[0].outcome, Err(elsewhere()));
    }
    assert_eq!(rig.opened(), 0);
    *rig.store.silence.lock() = Some(ms(60));
    rig.client.queue(ask(0, 0));
    rig.replies(1).await;
    assert_eq!(rig.opened(), 1);
}

/// A process that was stopped finds its timers due and its replies unread, in any order.
#[tokio::test(start_paused = true)]
async fn a_reply_that_this_process_was_too_late_to_read_is_no_stall() {
    let mut rig = Rig::new(gated);
    for (held_up, opened) in [(true, 0), (false, 1)] {
        rig.client.queue(ask(0, 0));
        rig.start(1).await;
        let span = if held_up { 1_000 } else { 51 };
        tokio::time::advance(ms(span)).await;
        yield_now().await;
        rig.store.gate.add_permits(1);
        rig.replies(1).await;
        assert_eq!(rig.opened(), opened, "held up: {held_up}");
        // A long round trip was measured; short ones reduce it again.
        for _ in 0..100 {
            rig.store.gate.add_permits(1);
            rig.client.queue(ask(0, 0));
            rig.start(1).await;
            rig.replies(1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_finds_no_room_in_the_queue_is_no_probe() {
    let gone = || StoreError::Unreachable("gone".into());
    let fails = [0, 1, 2, 3, 4].map(Key::for_test);
    let mut rig = Rig::new(move |ask| {
        if fails.contains(&ask.key) { Fate::Fails(ms(1), gone()) } else { Fate::After(ms(1)) }
    });
    (0..5).for_each(|key| rig.client.queue(ask(key, 0)));
    rig.replies(5).await;
    assert_eq!(rig.opened(), 1);
    tokio::time::sleep(ms(100)).await; // until a probe may leave
    let ShardSender { sender, .. } = rig.client.sender_of(&ask(5, 0)).unwrap();
    let all = sender.try_reserve_many(QUEUE_MAX).unwrap();
    rig.client.queue(ask(5, 0));
    assert_eq!(rig.replies(1).await[0].outcome, Err(StoreError::Unavailable));
    drop(all);
    rig.client.queue(ask(5, 0));
    assert!(rig.replies(1).await[0].outcome.is_ok(), "the probe");
    assert_eq!(rig.client.shards()[0].breaker, BreakerState::Closed);
    assert_eq!(rig.count(Counter::AsksRejectedOpen), 1);
}
