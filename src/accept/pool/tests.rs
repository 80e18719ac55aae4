//! Full pools: which connections close, and which stay.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::members::IDLE_MIN;
use super::*;
use crate::accept::waiting::{ARRIVING_FACTOR, UNREAD_MAX};

fn addresses(last: u8) -> Option<IpAddr> {
    Some(Ipv4Addr::new(10, 0, 0, last).into())
}

fn is_told(guard: &ConnectionGuard) -> bool {
    *guard.handle.member.close.borrow() > Close::No
}

/// The indexes of the connections that were asked to close.
fn told(guards: &[ConnectionGuard]) -> Vec<usize> {
    (0..guards.len()).filter(|at| is_told(&guards[*at])).collect()
}

/// A connection that has been idle long enough to be asked to go away.
fn admit(open: &OpenConnections, address: Option<IpAddr>) -> ConnectionGuard {
    let guard = open.admit(address).expect("room");
    note_use(&guard);
    guard
}

/// Like [`admit`], after an answer.
fn note_use(guard: &ConnectionGuard) {
    guard.handle.note_use();
    guard.handle.member.second.fetch_add(IDLE_MIN, Ordering::Relaxed);
}

#[test]
fn a_fleet_that_nearly_fills_a_pool_and_calls_is_left_alone() {
    let open = OpenConnections::new(64);
    let fleet: Vec<_> = (0..64).map(|_| open.admit(None).expect("room")).collect();
    assert_eq!((told(&fleet), open.evicted()), (vec![], 0));
    assert!(open.admit(None).is_none(), "and one more has to have room made for it");
    assert_eq!(told(&fleet), [0]);
}

#[test]
fn the_longest_idle_goes() {
    let open = OpenConnections::new(16);
    let mut guards: Vec<_> = (0..14).map(|_| Some(admit(&open, None))).collect();
    for used in [3, 0, 1, 5, 4, 2] {
        open.0.came.fetch_add(1, Ordering::Relaxed);
        note_use(guards[used].as_ref().unwrap());
    }
    for goes in (6..14).chain([3, 0, 1, 5, 4, 2]) {
        let new = admit(&open, None);
        let told = guards.iter().position(|guard| guard.as_ref().is_some_and(is_told));
        assert_eq!(told, Some(goes));
        guards[goes] = None;
        guards.push(Some(new));
    }
}

#[test]
fn a_full_pool_tells_one_for_each_that_comes() {
    let open = OpenConnections::new(16);
    let mut guards: Vec<_> = (0..14).map(|_| admit(&open, None)).collect();
    for came in 0..200 {
        guards.push(admit(&open, None));
        let told = told(&guards);
        assert_eq!(told, [0], "{came}: the oldest");
        drop(guards.remove(0));
        assert_eq!(open.count(), 14);
    }
    assert_eq!((open.evicted(), open.refused()), (200, 0));
}

#[test]
fn an_envoy_that_is_answered_outlasts_any_crowd() {
    let open = OpenConnections::new(64);
    let envoy = admit(&open, None);
    let mut crowd: Vec<_> = (0..55).map(|_| admit(&open, None)).collect();
    for n in 0..1000 {
        note_use(&envoy);
        crowd.push(admit(&open, None));
        // Some connections of the crowd are answered as well.
        if n % 3 == 0 {
            note_use(crowd.last().unwrap());
        }
        crowd.retain(|guard| !is_told(guard));
        assert!(!is_told(&envoy), "{n}");
    }
}

#[test]
fn the_peer_that_has_most_of_all_makes_room_for_the_others() {
    let open = OpenConnections::new(32);
    let few: Vec<_> = (0..8).map(|n| admit(&open, addresses(n))).collect();
    let crowd: Vec<_> = (0..20).map(|_| admit(&open, addresses(99))).collect();
    // The crowd is used, and the few are not.
    crowd.iter().for_each(note_use);
    let _new = admit(&open, addresses(9));
    assert_eq!((told(&few), told(&crowd)), (vec![], vec![0]));
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
fn when_all_places_are_taken_those_that_were_told_to_go_are_cut_off() {
    let open = OpenConnections::new(8);
    let guards: Vec<_> = (0..8).map(|_| admit(&open, None)).collect();
    assert_eq!(told(&guards), [0]);
    assert!(open.admit(None).is_none());
    assert_eq!(*guards[0].handle.member.close.borrow(), Close::AtOnce);
    assert!(open.admit(None).is_none());
    assert_eq!(*guards[1].handle.member.close.borrow(), Close::AtOnce);
    drop(guards);
    assert!(open.admit(None).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_told_to_go_unless_a_stream_is_to_last() {
    for lasts in [false, true] {
        let guard = OpenConnections::default().admit(None).unwrap();
        let handle = guard.handle().clone();
        let lasting = lasts.then(|| handle.lasting(1).unwrap());
        let seconds = tokio::spawn({
            let handle = handle.clone();
            async move { handle.count_seconds().await }
        });
        let idle = Duration::from_secs(IDLE_MAX.into());
        tokio::time::sleep(idle / 2).await;
        handle.note_use();
        tokio::time::sleep(idle - Duration::from_secs(2)).await;
        assert!(!is_told(&guard));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(is_told(&guard), !lasts);
        drop(lasting);
        seconds.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_told_to_go_has_some_time_and_no_more() {
    let guard = OpenConnections::default().admit(None).unwrap();
    let handle = guard.handle();
    assert!(futures_util::poll!(std::pin::pin!(handle.told_to_go())).is_pending());
    handle.member.ask_to_close(Close::Gracefully);
    handle.told_to_go().await;
    assert!(timeout(LEAVE_MAX / 2, handle.cut()).await.is_err());
    assert!(timeout(LEAVE_MAX * 2, handle.cut()).await.is_ok());
    handle.close();
    assert!(timeout(LEAVE_MAX / 2, handle.cut()).await.is_ok());
}

#[test]
fn streams_that_wait_are_bounded_over_all_connections_and_a_few_of_each_are_always_well() {
    let none = Waiting::default();
    let unfinished = |unfinished| Waiting { unfinished, ..none };
    let arriving = |arriving| Waiting { arriving, ..none };
    let unread = |unread| Waiting { unread, ..none };
    let kinds: [(&dyn Fn(usize) -> Waiting, usize); 3] = [
        (&unfinished, UNFINISHED_MAX),
        (&arriving, ARRIVING_FACTOR * UNFINISHED_MAX),
        (&unread, UNREAD_MAX),
    ];
    for (waiting, max) in kinds {
        let open = OpenConnections::default();
        let mut guards: Vec<_> = (0..20).map(|_| open.admit(None).unwrap()).collect();
        let mut is_well = guards.iter_mut().map(|guard| guard.note_waiting(waiting(255)));
        assert_eq!(is_well.position(|is_well| !is_well), Some(max / 255));
        assert!(guards[19].note_waiting(waiting(2)), "an honest one");
        drop(guards);
        let mut guards: Vec<_> = (0..4096).map(|_| open.admit(None).unwrap()).collect();
        let well = guards.iter_mut().map(|guard| guard.note_waiting(waiting(9)));
        assert!(9 * well.filter(|it| *it).count() <= 4 * max, "in all");
        drop(guards);
        assert_eq!(open.0.waiting.count(), Waiting::default());
    }
}

#[test]
fn requests_that_are_not_whole_are_bounded_and_each_connection_has_a_few() {
    let open = OpenConnections::default();
    let guards: Vec<_> = (0..4).map(|_| open.admit(None).unwrap()).collect();
    let of = |at: usize| guards[at].handle.half();
    let greedy: Vec<_> = (0..2 * HALVES_MAX).filter_map(|_| of(0)).collect();
    assert_eq!(greedy.len(), HALVES_MAX);
    let few: Vec<_> = (0..100).filter_map(|_| of(1)).collect();
    assert_eq!(few.len(), HALVES_OWN);
    drop(greedy);
    assert!(of(1).is_some());
    drop(few);
    assert_eq!(open.0.halves.load(Ordering::Relaxed), 0);
}
