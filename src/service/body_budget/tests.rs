//! Which messages keep their room, and which lose it.

use std::future::poll_fn;

use futures_util::{FutureExt, poll};

use super::*;

const KIB: usize = 1024;

/// Number of messages that fit if they have no bytes.
const MESSAGES: usize = 16;

fn room() -> BodyBudget {
    BodyBudget::new(MESSAGES * MESSAGE_BYTES_MIN)
}

fn is_given_up(held: &Held) -> bool {
    poll_fn(|cx| held.poll_given_up(cx)).now_or_never().is_some()
}

/// Begins `count` incomplete messages of one connection.
fn begun(room: &BodyBudget, peer: &Peer, count: usize) -> Vec<Held> {
    let begun = |_| {
        let held = room.hold(peer);
        assert_eq!(held.take(0), Ok(()));
        held
    };
    (0..count).map(begun).collect()
}

#[test]
fn one_connection_has_half_of_the_room_and_loses_its_own_oldest() {
    let (room, peer) = (room(), Peer::new());
    let messages = begun(&room, &peer, MESSAGES);
    let (oldest, newest) = messages.split_at(MESSAGES / 2);
    assert!(oldest.iter().all(is_given_up));
    assert!(!newest.iter().any(is_given_up));
    assert_eq!(room.refused(), (MESSAGES / 2) as u64);
    assert_eq!(oldest[0].take(1), Err(RequestError::NoRoom));
    assert_eq!(oldest[1].finish(), Err(RequestError::NoRoom));
    drop(messages);
    assert_eq!(room.bytes(), 0);
}

#[test]
fn where_each_connection_has_one_message_the_oldest_makes_room_for_a_larger_one() {
    let room = room();
    let crowd: Vec<_> = (0..MESSAGES).map(|_| begun(&room, &Peer::new(), 1)).collect();
    let honest = room.hold(&Peer::new());
    assert_eq!((honest.take(0), honest.take(300)), (Ok(()), Ok(())));
    assert!(!is_given_up(&honest));
    assert_eq!(honest.finish(), Ok(()));
    let given_up: Vec<_> = crowd.iter().flatten().map(is_given_up).collect();
    assert!(given_up[..2].iter().all(|it| *it) && !given_up[2..].contains(&true), "{given_up:?}");
}

#[test]
fn when_the_room_is_full_the_largest_connection_makes_room_for_the_others() {
    let room = room();
    let (large, small) = (Peer::new(), Peer::new());
    let others: Vec<_> = (0..4).map(|_| begun(&room, &Peer::new(), MESSAGES / 8)).collect();
    let crowd = begun(&room, &large, MESSAGES / 2);
    for _ in 0..1_000 {
        let honest = room.hold(&small);
        assert_eq!(honest.take(300), Ok(()));
        assert!(!is_given_up(&honest));
        assert_eq!(honest.finish(), Ok(()));
    }
    assert!(is_given_up(&crowd[0]));
    assert_eq!(crowd.iter().filter(|held| is_given_up(held)).count(), 2, "honest ones fit then");
    assert!(!others.iter().flatten().any(is_given_up));
    assert!(room.bytes() <= (MESSAGES * MESSAGE_BYTES_MIN) as u64);
}

#[tokio::test]
async fn a_reader_that_waits_is_woken_when_its_message_is_given_up() {
    let (room, peer) = (room(), Peer::new());
    let first = room.hold(&peer);
    first.take(0).unwrap();
    let mut given_up = Box::pin(poll_fn(|cx| first.poll_given_up(cx)));
    assert!(poll!(&mut given_up).is_pending());
    let large = room.hold(&peer);
    assert_eq!(large.take(MESSAGES / 2 * MESSAGE_BYTES_MIN - MESSAGE_BYTES_MIN), Ok(()));
    given_up.await;
    assert!(!is_given_up(&large));
}

#[test]
fn a_whole_message_keeps_its_room_if_it_is_long_and_long_ones_have_half() {
    let room = room();
    let short = room.hold(&Peer::new());
    short.take(MESSAGE_BYTES_MIN).unwrap();
    assert_eq!(short.finish(), Ok(()));
    assert_eq!(room.bytes(), 0);
    let long = |bytes: usize| {
        let held = room.hold(&Peer::new());
        held.take(bytes).unwrap();
        held.finish().map(|()| held)
    };
    let kept: Vec<_> = (0..2).map(|_| long(MESSAGES / 4 * MESSAGE_BYTES_MIN).unwrap()).collect();
    assert_eq!(room.bytes(), (MESSAGES / 2 * MESSAGE_BYTES_MIN) as u64);
    assert_eq!(long(9 * KIB).map(drop), Err(RequestError::NoRoom));
    let others = begun(&room, &Peer::new(), MESSAGES / 2);
    assert!(!others.iter().any(is_given_up), "half is left for what is not whole");
    let clone = kept[0].clone();
    drop(kept);
    assert_eq!(room.bytes(), (MESSAGES * 3 / 4 * MESSAGE_BYTES_MIN) as u64);
    drop((clone, others));
    assert_eq!(room.bytes(), 0);
}
