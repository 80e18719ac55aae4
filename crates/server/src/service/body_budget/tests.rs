//! Which messages keep their reservation, and which lose it.

use std::future::poll_fn;

use futures_util::{FutureExt, poll};

use super::*;

const KIB: usize = 1024;

/// Number of messages that fit if they have no bytes.
const MESSAGES: usize = 16;

fn budget() -> BodyBudget {
    BodyBudget::new(MESSAGES * MESSAGE_BYTES_MIN)
}

fn is_revoked(message: &BodyReservation) -> bool {
    poll_fn(|cx| message.poll_revoked(cx)).now_or_never().is_some()
}

/// Begins `count` incomplete messages of one connection.
fn begun(budget: &BodyBudget, peer: &Peer, count: usize) -> Vec<BodyReservation> {
    let begun = |_| {
        let message = budget.reserve(peer);
        assert_eq!(message.grow(0), Ok(()));
        message
    };
    (0..count).map(begun).collect()
}

#[test]
fn one_connection_has_half_of_the_budget_and_loses_its_own_oldest() {
    let (budget, peer) = (budget(), Peer::new());
    let messages = begun(&budget, &peer, MESSAGES);
    let (oldest, newest) = messages.split_at(MESSAGES / 2);
    assert!(oldest.iter().all(is_revoked));
    assert!(!newest.iter().any(is_revoked));
    assert_eq!(budget.refused(), (MESSAGES / 2) as u64);
    assert_eq!(oldest[0].grow(1), Err(RequestError::NoRoom));
    assert_eq!(oldest[1].complete(), Err(RequestError::NoRoom));
    drop(messages);
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn where_each_connection_has_one_message_the_oldest_yields_to_a_larger_one() {
    let budget = budget();
    let crowd: Vec<_> = (0..MESSAGES).map(|_| begun(&budget, &Peer::new(), 1)).collect();
    let honest = budget.reserve(&Peer::new());
    assert_eq!((honest.grow(0), honest.grow(300)), (Ok(()), Ok(())));
    assert!(!is_revoked(&honest));
    assert_eq!(honest.complete(), Ok(()));
    let revoked: Vec<_> = crowd.iter().flatten().map(is_revoked).collect();
    assert!(revoked[..2].iter().all(|it| *it) && !revoked[2..].contains(&true), "{revoked:?}");
}

#[test]
fn when_the_budget_is_used_up_the_largest_connection_yields_to_the_others() {
    let budget = budget();
    let (large, small) = (Peer::new(), Peer::new());
    let others: Vec<_> = (0..4).map(|_| begun(&budget, &Peer::new(), MESSAGES / 8)).collect();
    let crowd = begun(&budget, &large, MESSAGES / 2);
    for _ in 0..1_000 {
        let honest = budget.reserve(&small);
        assert_eq!(honest.grow(300), Ok(()));
        assert!(!is_revoked(&honest));
        assert_eq!(honest.complete(), Ok(()));
    }
    assert!(is_revoked(&crowd[0]));
    assert_eq!(
        crowd.iter().filter(|message| is_revoked(message)).count(),
        2,
        "honest ones fit then"
    );
    assert!(!others.iter().flatten().any(is_revoked));
    assert!(budget.bytes() <= (MESSAGES * MESSAGE_BYTES_MIN) as u64);
}

#[tokio::test]
async fn a_reader_that_waits_is_woken_when_its_message_is_revoked() {
    let (budget, peer) = (budget(), Peer::new());
    let first = budget.reserve(&peer);
    first.grow(0).unwrap();
    let mut revoked = Box::pin(poll_fn(|cx| first.poll_revoked(cx)));
    assert!(poll!(&mut revoked).is_pending());
    let large = budget.reserve(&peer);
    assert_eq!(large.grow(MESSAGES / 2 * MESSAGE_BYTES_MIN - MESSAGE_BYTES_MIN), Ok(()));
    revoked.await;
    assert!(!is_revoked(&large));
}

#[test]
fn a_complete_long_message_keeps_its_reservation_and_long_ones_have_half_the_budget() {
    let budget = budget();
    let short = budget.reserve(&Peer::new());
    short.grow(MESSAGE_BYTES_MIN).unwrap();
    assert_eq!(short.complete(), Ok(()));
    assert_eq!(budget.bytes(), 0);
    let long = |bytes: usize| {
        let message = budget.reserve(&Peer::new());
        message.grow(bytes).unwrap();
        message.complete().map(|()| message)
    };
    let kept: Vec<_> = (0..2).map(|_| long(MESSAGES / 4 * MESSAGE_BYTES_MIN).unwrap()).collect();
    assert_eq!(budget.bytes(), (MESSAGES / 2 * MESSAGE_BYTES_MIN) as u64);
    assert_eq!(long(9 * KIB).map(drop), Err(RequestError::NoRoom));
    let others = begun(&budget, &Peer::new(), MESSAGES / 2);
    assert!(!others.iter().any(is_revoked), "half is left for incomplete messages");
    let clone = kept[0].clone();
    drop(kept);
    assert_eq!(budget.bytes(), (MESSAGES * 3 / 4 * MESSAGE_BYTES_MIN) as u64);
    drop((clone, others));
    assert_eq!(budget.bytes(), 0);
}

mod partial_message {
    use proptest::prelude::*;

    use super::super::*;

    proptest! {
        #[test]
        fn parts_are_joined_in_order_and_take_little_more_memory_than_the_message(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..8),
        ) {
            let reservation = BodyBudget::new(usize::MAX).reserve(&Peer::new());
            let mut message = PartialMessage::new(&reservation);
            for piece in &pieces {
                message.push(piece).unwrap();
            }
            let sent = pieces.concat();
            prop_assert_eq!(message.bytes(), sent.len());
            let taken: usize = message.parts.iter().map(BytesMut::capacity).sum();
            prop_assert!(taken <= sent.len() + PART_BYTES_MAX, "{} bytes", taken);
            prop_assert_eq!(&message.into_bytes()[..], &sent[..]);
        }
    }

    #[test]
    fn a_message_that_arrives_byte_by_byte_has_few_parts() {
        let reservation = BodyBudget::new(usize::MAX).reserve(&Peer::new());
        let mut message = PartialMessage::new(&reservation);
        for _ in 0..PART_BYTES_MAX {
            message.push(b"v").unwrap();
        }
        assert!(message.parts.len() < 12, "{} parts", message.parts.len());
        assert_eq!(message.into_bytes().len(), PART_BYTES_MAX);
    }

    #[test]
    fn bytes_beyond_the_budget_are_not_kept() {
        let reservation = BodyBudget::new(64 * 1024).reserve(&Peer::new());
        let mut message = PartialMessage::new(&reservation);
        message.push(&[7; 1000]).unwrap();
        assert_eq!(message.push(&[7; 64 * 1024]), Err(RequestError::NoRoom));
        assert_eq!(message.bytes(), 1000);
    }
}
