//! Asks that are dropped before they are sent.

use super::*;

fn ask_for(purpose: Purpose) -> Ask {
    Ask { purpose, ..ask(1, 0) }
}

#[tokio::test(start_paused = true)]
async fn over_its_budget_a_shard_gets_requests_and_returns_alone() {
    let mut rig = Rig::new(|_| Fate::After(Duration::ZERO));
    rig.client.set_pods(1_000); // 10 at once
    let sent = |rig: &mut Rig, purpose| {
        (0..20).for_each(|_| rig.client.queue(ask_for(purpose)));
        let mut shed = 0;
        while let Ok(reply) = rig.replies.try_recv() {
            assert_eq!(reply.outcome, Err(StoreError::Shed), "at once");
            shed += 1;
        }
        20 - shed
    };
    assert_eq!(sent(&mut rig, Purpose::Ahead), 6, "until less than half is left");
    rig.replies(6).await;
    assert_eq!(sent(&mut rig, Purpose::Probe), 4);
    rig.replies(4).await;
    for purpose in [Purpose::Request, Purpose::Return] {
        assert_eq!(sent(&mut rig, purpose), 20);
        assert!(rig.replies(20).await.iter().all(|reply| reply.outcome.is_ok()));
    }
    assert_eq!(
        (rig.count(Counter::AsksShed), rig.count(Counter::AsksRejectedOpen), rig.opened()),
        (30, 0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_ask_ahead_that_gives_tokens_back_is_not_dropped() {
    let mut rig = Rig::new(|_| Fate::After(Duration::ZERO));
    rig.client.set_pods(1_000);
    let back = Some(crate::store::Return { tokens: 1, epoch: None });
    for _ in 0..20 {
        rig.client.queue(Ask { back, ..ask_for(Purpose::Ahead) });
    }
    assert!(rig.replies(20).await.iter().all(|reply| reply.outcome.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn a_shard_whose_budget_is_spent_is_probed_all_the_same_after_an_outage() {
    let mut rig = Rig::new(|ask| {
        let fails = ask.key == Key::for_test(9);
        let error = StoreError::Unreachable("gone".into());
        if fails { Fate::Fails(Duration::ZERO, error) } else { Fate::After(Duration::ZERO) }
    });
    rig.client.set_pods(1_000);
    (0..100).for_each(|_| rig.client.queue(ask(9, 0)));
    rig.replies(100).await;
    assert_eq!(rig.opened(), 1);
    tokio::time::advance(ms(100)).await;
    rig.client.queue(ask_for(Purpose::Ahead));
    assert!(rig.replies(1).await[0].outcome.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_desk_takes_what_it_would_send() {
    let mut rig = Rig::new(|ask| if ask.want == 0 { Fate::Never } else { Fate::Gated });
    assert!(rig.client.takes(&ask(0, 0)), "a shard that was never asked");
    rig.client.queue(ask(0, 0));
    rig.start(1).await;
    assert!(rig.client.takes(&ask(0, 0)));
    tokio::time::sleep(ms(60)).await;
    assert!(!rig.client.takes(&ask(0, 0)), "its breaker is open");
    *rig.store.silence.lock() = Some(Duration::ZERO);
    for key in 0..(QUEUE_MAX + 4 * BATCH_MAX) as u64 {
        assert!(rig.client.takes(&ask(0, 1)));
        rig.client.queue(ask(key, 1));
        yield_now().await;
        if key < 4 * BATCH_MAX as u64 {
            rig.start(1).await;
        }
    }
    assert!(!rig.client.takes(&ask(0, 1)), "its queue is full");
    rig.client.wait_for_replies().await;
    assert!(rig.client.takes(&ask(0, 1)));
    rig.store.gate.add_permits(10_000);
    rig.client.close().await;
    assert!(!rig.client.takes(&ask(0, 2)), "it is closed");
}
