//! Full pools: which connections close, and which stay.

use std::net::Ipv6Addr;

use futures_util::FutureExt;

use super::*;

fn addresses(last: u8) -> Option<IpAddr> {
    Some(Ipv4Addr::new(10, 0, 0, last).into())
}

fn is_asked_to_close(guard: &ConnectionGuard) -> bool {
    *guard.handle.member.close.borrow() > Close::No
}

/// The indexes of the connections that were asked to close.
fn asked_to_close(guards: &[ConnectionGuard]) -> Vec<usize> {
    (0..guards.len()).filter(|at| is_asked_to_close(&guards[*at])).collect()
}

/// A connection that has been idle long enough to be asked to go away.
fn admit(open: &OpenConnections, address: Option<IpAddr>) -> ConnectionGuard {
    let guard = open.admit(address).expect("room");
    note_answer(&guard);
    guard
}

/// Like [`admit`], after an answer.
fn note_answer(guard: &ConnectionGuard) {
    guard.handle.note_answer();
    guard.handle.member.second.fetch_add(IDLE_MIN, Ordering::Relaxed);
}

#[test]
fn active_connections_that_nearly_fill_a_pool_stay_open() {
    let open = OpenConnections::new(64);
    let fleet: Vec<_> = (0..64).map(|_| open.admit(None).expect("room")).collect();
    fleet.iter().for_each(|guard| guard.handle.note_answer());
    assert_eq!((asked_to_close(&fleet), open.evicted()), (vec![], 0));
    assert!(open.admit(None).is_err(), "the pool is full");
    assert_eq!(asked_to_close(&fleet), [0]);
}

#[test]
fn the_connection_idle_the_longest_closes() {
    let open = OpenConnections::new(16);
    let mut guards: Vec<_> = (0..14).map(|_| Some(admit(&open, None))).collect();
    for used in [3, 0, 1, 5, 4, 2] {
        open.0.accepted.fetch_add(1, Ordering::Relaxed);
        note_answer(guards[used].as_ref().unwrap());
    }
    for goes in (6..14).chain([3, 0, 1, 5, 4, 2]) {
        let new = admit(&open, None);
        let asked = guards.iter().position(|guard| guard.as_ref().is_some_and(is_asked_to_close));
        assert_eq!(asked, Some(goes));
        guards[goes] = None;
        guards.push(Some(new));
    }
}

#[test]
fn a_full_pool_closes_one_connection_for_each_new_one() {
    let open = OpenConnections::new(16);
    let mut guards: Vec<_> = (0..14).map(|_| admit(&open, None)).collect();
    for came in 0..200 {
        guards.push(admit(&open, None));
        let asked = asked_to_close(&guards);
        assert_eq!(asked, [0], "{came}: the oldest");
        drop(guards.remove(0));
        assert_eq!(open.count(), 14);
    }
    assert_eq!((open.evicted(), open.refused()), (200, 0));
}

#[test]
fn a_full_pool_closes_a_group_that_was_never_answered_once() {
    const MAX: usize = 64;
    let open = OpenConnections::new(MAX);
    let guards: Vec<_> = (0..MAX).map(|_| open.admit(None).expect("room")).collect();
    guards.iter().step_by(2).for_each(|guard| guard.handle.note_answer());
    assert!(open.admit(None).is_err());
    assert_eq!(asked_to_close(&guards), [1, 3, 5, 7], "the oldest of those without an answer");
    assert!(open.admit(None).is_err());
    assert_eq!(asked_to_close(&guards).len(), 5, "one more, while the group still closes");
    drop(guards);
    assert_eq!((open.evicted(), open.count()), (5, 0));
}

#[test]
fn a_new_connection_whose_first_call_waits_outlasts_idle_ones() {
    const MAX: usize = 64;
    let open = OpenConnections::new(MAX);
    let idle: Vec<_> = (1..MAX).map(|_| open.admit(None).expect("room")).collect();
    idle.iter().for_each(|guard| guard.handle.note_answer());
    let waiting = open.admit(None).expect("room");
    for closed in 1..10 {
        assert!(open.admit(None).is_err());
        assert_eq!(asked_to_close(&idle).len(), closed);
        assert!(!is_asked_to_close(&waiting));
    }
}

#[test]
fn a_connection_with_answers_outlasts_idle_ones() {
    let open = OpenConnections::new(64);
    let envoy = admit(&open, None);
    let mut crowd: Vec<_> = (0..55).map(|_| admit(&open, None)).collect();
    for n in 0..1000 {
        note_answer(&envoy);
        crowd.push(admit(&open, None));
        // Some connections of the crowd are answered as well.
        if n % 3 == 0 {
            note_answer(crowd.last().unwrap());
        }
        crowd.retain(|guard| !is_asked_to_close(guard));
        assert!(!is_asked_to_close(&envoy), "{n}");
    }
}

#[test]
fn each_connection_may_have_some_endless_streams_and_all_together_many() {
    let open = OpenConnections::default();
    let streams = |guard: &ConnectionGuard| {
        std::iter::from_fn(|| guard.handle.register_endless()).collect::<Vec<_>>()
    };
    let greedy: Vec<_> = (0..2 * ENDLESS_MAX / ENDLESS_PER_CONNECTION)
        .map(|_| open.admit(None).expect("room"))
        .collect();
    let kept: Vec<_> = greedy.iter().map(streams).collect();
    let all = ENDLESS_MAX / ENDLESS_PER_CONNECTION;
    assert!(kept[..all].iter().all(|own| own.len() == ENDLESS_PER_CONNECTION));
    assert!(kept[all..].iter().all(|own| own.len() == ENDLESS_FEW));
    let guard = &greedy[0];
    assert!(guard.handle.register_long_lived(1).is_some(), "others have a maximum of their own");
    drop(kept);
    assert_eq!((guard.handle.streams(), guard.handle.long_lived_streams()), (0, 0));
    assert_eq!(streams(guard).len(), ENDLESS_PER_CONNECTION);
}

#[test]
fn the_peer_with_most_of_all_connections_loses_one_first() {
    let open = OpenConnections::new(32);
    let few: Vec<_> = (0..8).map(|n| admit(&open, addresses(n))).collect();
    let crowd: Vec<_> = (0..20).map(|_| admit(&open, addresses(99))).collect();
    // The crowd is used, and the few are not.
    crowd.iter().for_each(note_answer);
    let _new = admit(&open, addresses(9));
    assert_eq!((asked_to_close(&few), asked_to_close(&crowd)), (vec![], vec![0]));
}

#[test]
fn the_processes_of_one_machine_and_the_addresses_of_one_host_are_one_peer() {
    assert_eq!(Peer::of(None), Peer::of(Some(Ipv4Addr::LOCALHOST.into())));
    assert_eq!(Peer::of(None), Peer::of(Some(Ipv6Addr::LOCALHOST.into())));
    let mapped = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
    assert_eq!(Peer::of(Some(mapped.into())), Peer::of(addresses(1)));
    let of = |last| Peer::of(Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last).into()));
    assert_eq!(of(1), of(2));
    assert_ne!(of(1), Peer::of(Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1).into())));
}

#[test]
fn a_full_pool_cuts_off_connections_that_were_asked_to_close() {
    let open = OpenConnections::new(8);
    let guards: Vec<_> = (0..8).map(|_| admit(&open, None)).collect();
    assert_eq!(asked_to_close(&guards), [0]);
    assert!(open.admit(None).is_err());
    assert_eq!(*guards[0].handle.member.close.borrow(), Close::Evicted);
    assert!(open.admit(None).is_err());
    assert_eq!(*guards[1].handle.member.close.borrow(), Close::Evicted);
    drop(guards);
    assert!(open.admit(None).is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_asked_to_close_unless_it_has_a_long_lived_stream() {
    for has_long_lived in [false, true] {
        let guard = OpenConnections::default().admit(None).unwrap();
        let handle = guard.handle().clone();
        let long_lived = has_long_lived.then(|| handle.register_long_lived(1).unwrap());
        let seconds = tokio::spawn({
            let handle = handle.clone();
            async move { handle.count_seconds().await }
        });
        let idle = Duration::from_secs(IDLE_MAX.into());
        tokio::time::sleep(idle / 2).await;
        handle.note_answer();
        tokio::time::sleep(idle - Duration::from_secs(2)).await;
        assert!(!is_asked_to_close(&guard));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(is_asked_to_close(&guard), !has_long_lived);
        drop(long_lived);
        seconds.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_asked_to_close_has_a_grace_period() {
    let guard = OpenConnections::default().admit(None).unwrap();
    let handle = guard.handle();
    assert!(futures_util::poll!(std::pin::pin!(handle.close_requested())).is_pending());
    handle.member.ask_to_close(Close::Gracefully);
    handle.close_requested().await;
    assert!(timeout(CLOSE_GRACE / 2, handle.close_deadline()).await.is_err());
    assert!(timeout(CLOSE_GRACE * 2, handle.close_deadline()).await.is_ok());
    handle.close();
    assert!(timeout(CLOSE_GRACE / 2, handle.close_deadline()).await.is_ok());
}

#[test]
fn pending_streams_are_bounded_over_all_connections_and_each_may_have_a_few() {
    let none = PendingStreams::default();
    let unfinished = |unfinished| PendingStreams { unfinished, ..none };
    let arriving = |arriving| PendingStreams { arriving, ..none };
    let unread = |unread| PendingStreams { unread, ..none };
    let kinds: [(&dyn Fn(usize) -> PendingStreams, usize); 3] = [
        (&unfinished, HTTP_PENDING_MAX.idle),
        (&arriving, HTTP_PENDING_MAX.unfinished),
        (&unread, HTTP_PENDING_MAX.unread),
    ];
    for (waiting, max) in kinds {
        let open = OpenConnections::default();
        let mut guards: Vec<_> = (0..20).map(|_| open.admit(None).unwrap()).collect();
        let mut is_within_limits = guards.iter_mut().map(|guard| guard.note_pending(waiting(255)));
        assert_eq!(
            is_within_limits.position(|is_within_limits| !is_within_limits),
            Some(max / 255)
        );
        assert!(guards[19].note_pending(waiting(2)), "an honest client");
        drop(guards);
        let mut guards: Vec<_> = (0..4096).map(|_| open.admit(None).unwrap()).collect();
        let within_limits = guards.iter_mut().map(|guard| guard.note_pending(waiting(9)));
        assert!(9 * within_limits.filter(|it| *it).count() <= 4 * max, "in all");
        drop(guards);
        assert_eq!(open.0.waiting.count(), PendingStreams::default());
    }
}

/// Before they have read of a larger window.
#[test]
fn four_new_connections_may_have_calls_whose_messages_have_no_room() {
    let open = OpenConnections::for_calls(CONNECTIONS_MAX);
    let mut guards: Vec<_> = (0..5).map(|_| open.admit(None).unwrap()).collect();
    let calls = |of| PendingStreams { unfinished: of, ..PendingStreams::default() };
    let are_kept: Vec<_> = guards.iter_mut().map(|it| it.note_pending(calls(1023))).collect();
    assert_eq!(are_kept, [true, true, true, true, false]);
}

#[test]
fn incomplete_requests_are_bounded_and_each_connection_may_have_a_few() {
    let open = OpenConnections::default();
    let guards: Vec<_> = (0..4).map(|_| open.admit(None).unwrap()).collect();
    let of = |at: usize| guards[at].handle.register_incomplete();
    let greedy: Vec<_> = (0..2 * INCOMPLETE_MAX).filter_map(|_| of(0)).collect();
    assert_eq!(greedy.len(), INCOMPLETE_MAX);
    let few: Vec<_> = (0..100).filter_map(|_| of(1)).collect();
    assert_eq!(few.len(), INCOMPLETE_PER_CONNECTION);
    drop(greedy);
    assert!(of(1).is_some());
    drop(few);
    assert_eq!(open.0.incomplete.load(Ordering::Relaxed), 0);
}

/// A pool of this size whose connections are used by requests.
fn of_known_clients(max: usize) -> OpenConnections {
    OpenConnections::for_known_clients(max, None, Duration::from_secs(10))
}

#[test]
fn a_crowd_without_requests_gives_way_to_any_other_client() {
    let open = of_known_clients(64);
    let honest = open.admit(addresses(9)).expect("room");
    drop(honest.handle.begin_request());
    // Two addresses, as many connections of each.
    let mut crowd: Vec<_> =
        (0..63).map(|at| open.admit(addresses(1 + at % 2)).expect("room")).collect();
    for _ in 0..100 {
        // Answers that no valid request caused, such as to a ping, are no use.
        crowd.iter().for_each(note_answer);
        let new = loop {
            if let Ok(new) = open.admit(addresses(3)) {
                break new;
            }
            assert!(!is_asked_to_close(&honest));
            crowd.retain(|guard| !is_asked_to_close(guard));
        };
        assert!(!is_asked_to_close(&new));
        crowd.extend((0..).map_while(|at| open.admit(addresses(1 + at % 2)).ok()));
        crowd.retain(|guard| !is_asked_to_close(guard));
        assert!(!is_asked_to_close(&new) && !is_asked_to_close(&honest));
    }
}

/// Where clients are not authenticated, one that makes requests on all its connections loses them
/// to others: a new client keeps its connection until its first request.
#[test]
fn a_client_that_asks_on_all_its_connections_gives_way_to_any_other() {
    let open = OpenConnections::for_any_clients(64, Duration::from_secs(10));
    let mut crowd: Vec<_> = (0..64).map(|_| open.admit(addresses(1)).expect("room")).collect();
    let ask = |guard: &ConnectionGuard| drop(guard.handle.begin_request());
    for _ in 0..100 {
        crowd.iter().for_each(ask);
        let new = loop {
            if let Ok(new) = open.admit(addresses(2)) {
                break new;
            }
            crowd.retain(|guard| !is_asked_to_close(guard));
        };
        // One more of the crowd, which asks before the new client does.
        let more = loop {
            if let Ok(more) = open.admit(addresses(1)) {
                break more;
            }
            assert!(!is_asked_to_close(&new));
            crowd.retain(|guard| !is_asked_to_close(guard));
        };
        ask(&more);
        crowd.push(more);
        assert!(!is_asked_to_close(&new));
    }
}

#[test]
fn a_full_pool_says_whether_it_is_making_room() {
    let open = of_known_clients(2);
    let guards: Vec<_> = (1..3).map(|last| open.admit(addresses(last)).expect("room")).collect();
    let mut requests: Vec<_> = guards.iter().map(|guard| guard.handle.begin_request()).collect();
    assert_eq!(open.admit(addresses(4)).unwrap_err(), PoolFull::AllInUse);
    requests.pop();
    assert_eq!(open.admit(addresses(4)).unwrap_err(), PoolFull::MakingRoom);
}

#[test]
fn a_connection_with_a_request_in_use_closes_for_no_other() {
    let open = of_known_clients(3);
    let guards: Vec<_> = (1..4).map(|last| open.admit(addresses(last)).expect("room")).collect();
    let mut requests: Vec<_> = guards.iter().map(|guard| guard.handle.begin_request()).collect();
    assert!(open.admit(addresses(4)).is_err());
    assert_eq!(asked_to_close(&guards), [] as [usize; 0]);
    drop(requests.remove(1));
    assert!(open.admit(addresses(4)).is_err());
    assert_eq!(asked_to_close(&guards), [1]);
}

#[tokio::test]
async fn a_request_that_begins_as_its_connection_has_to_make_room_keeps_it_open() {
    let open = of_known_clients(1);
    let guard = open.admit(addresses(1)).expect("room");
    assert_eq!(open.admit(addresses(2)).unwrap_err(), PoolFull::MakingRoom);
    let request = guard.handle.begin_request();
    assert!(guard.handle.run_until_closed().now_or_never().is_none());
    assert_eq!(open.admit(addresses(2)).unwrap_err(), PoolFull::AllInUse);
    drop(request);
    assert_eq!(open.admit(addresses(2)).unwrap_err(), PoolFull::MakingRoom);
    assert!(guard.handle.run_until_closed().now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_in_use_goes_after_seconds() {
    let open = of_known_clients(8);
    let (silent, busy) = (open.admit(None).expect("room"), open.admit(None).expect("room"));
    let request = busy.handle.begin_request();
    let (of_silent, of_busy) = (silent.handle.clone(), busy.handle.clone());
    let counting = tokio::spawn(async move {
        tokio::join!(of_silent.run_until_closed(), of_busy.run_until_closed());
    });
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(is_asked_to_close(&silent) && !is_asked_to_close(&busy));
    drop(request);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(!is_asked_to_close(&busy), "it is idle from the end of its request on");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(is_asked_to_close(&busy));
    counting.abort();
}

#[test]
fn a_peer_with_its_part_of_all_connections_is_given_no_further_one() {
    let open = OpenConnections::for_known_clients(9, Some(2), Duration::from_secs(10));
    let at = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
    let mut held: Vec<_> = (0..2).map(|_| open.admit(at(1))).collect();
    assert!(open.has_all_of_peer(at(1)) && !open.has_all_of_peer(at(2)));
    held.pop();
    assert!(!open.has_all_of_peer(at(1)), "one has ended");
}

#[tokio::test]
async fn a_stream_in_use_keeps_its_connection_and_its_end_is_seen() {
    let open = OpenConnections::for_known_clients(1, None, Duration::from_secs(10));
    let guard = open.admit(None).unwrap();
    let handle = guard.handle().clone();
    let stream = handle.begin_stream();
    assert!(open.admit(None).is_err() && handle.close_requested().now_or_never().is_none());
    assert_eq!(handle.streams(), 1);
    drop(stream);
    assert_eq!(handle.streams(), 0);
    assert!(open.admit(None).is_err() && handle.close_requested().now_or_never().is_some());
    assert!(handle.ended().now_or_never().is_none(), "it was only asked to close");
    drop(guard);
    handle.ended().await;
}
