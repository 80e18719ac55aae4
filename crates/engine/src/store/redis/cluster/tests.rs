//! Slot maps as nodes report them.

use super::*;
use futures_util::FutureExt;
use proptest::prelude::*;

fn node(port: u16) -> Address {
    Address::Tcp("10.0.0.1".into(), port)
}

fn nodes(ports: &[u16]) -> Vec<Option<Address>> {
    ports.iter().map(|port| (*port > 0).then(|| node(*port))).collect()
}

fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
    let master = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
    Value::Array(vec![Value::Int(first), Value::Int(last), master.clone(), master])
}

fn slots(ranges: &[(i64, i64, u16)], before: Option<&Slots>) -> Slots {
    let host = || Value::BulkString(b"10.0.0.1".to_vec());
    let ranges =
        ranges.iter().map(|(first, last, port)| range(*first, *last, host(), (*port).into()));
    Slots::parse(&Value::Array(ranges.collect()), &node(1), before).unwrap()
}

#[test]
fn known_keys_fall_into_their_slots() {
    // From the cluster specification, and from CLUSTER KEYSLOT.
    assert_eq!(crc16(b"123456789"), 0x31C3);
    assert_eq!(slot_of(b"foo"), 12_182);
    assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
    assert_eq!(slot_of(b"foo{}{bar}"), 8_363);
    assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
    assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
    assert_eq!(slot_of(b"foo{bar"), slot_of(b"foo{bar"));
}

#[test]
fn each_slot_has_the_owner_of_its_range() {
    let slots = slots(&[(0, 99, 7), (100, 16_383, 8), (0, 0, 8)], None);
    assert_eq!(slots.masters(), nodes(&[7, 8]));
    assert_eq!([0, 1, 99, 100, 16_383].map(|slot| slots.owner(slot).unwrap()), [1, 0, 0, 1, 1]);
    assert_eq!(slots.owner(SLOTS), None);
}

#[test]
fn a_map_that_names_each_slot_many_times_is_refused() {
    let whole = || range(0, 16_383, Value::BulkString(b"10.0.0.1".to_vec()), 7);
    for (ranges, is_read) in [(4, true), (5, false)] {
        let reply = Value::Array((0..ranges).map(|_| whole()).collect());
        assert_eq!(Slots::parse(&reply, &node(1), None).is_ok(), is_read, "{ranges}");
    }
}

#[test]
fn an_unowned_slot_has_no_owner() {
    assert_eq!(slots(&[(0, 9, 7)], None).owner(10), None);
}

#[test]
fn a_shard_keeps_its_number_through_a_failover() {
    let before = slots(&[(0, 9, 7), (10, 19, 8), (20, 29, 9)], None);
    let after = slots(&[(0, 9, 7), (10, 19, 3), (20, 29, 9)], Some(&before));
    assert_eq!(after.masters(), nodes(&[7, 3, 9]));
    let grown = slots(&[(0, 9, 7), (10, 14, 3), (15, 19, 2), (20, 29, 9)], Some(&after));
    assert_eq!(grown.masters(), nodes(&[7, 3, 9, 2]));
}

#[test]
fn a_shard_keeps_its_number_when_another_leaves() {
    let before = slots(&[(0, 9, 7), (10, 19, 8), (20, 29, 9)], None);
    let after = slots(&[(0, 19, 7), (20, 29, 9)], Some(&before));
    assert_eq!(after.owner(25), Some(2));
    assert_eq!(after.masters(), nodes(&[7, 0, 9]));
}

#[test]
fn a_node_without_a_name_is_where_it_was_asked() {
    let ask = |host| {
        let reply = Value::Array(vec![range(0, 5, host, 7)]);
        Slots::parse(&reply, &node(1), None)
    };
    assert_eq!(ask(Value::Nil).unwrap().masters(), nodes(&[7]));
    assert_eq!(ask(Value::BulkString(Vec::new())).unwrap().masters(), nodes(&[7]));
    assert!(ask(Value::BulkString(b"?".to_vec())).is_err());
}

#[test]
fn a_thousand_and_twenty_four_masters_are_taken_and_one_more_is_a_fault() {
    let parse = |masters: u16| {
        let host = || Value::BulkString(b"10.0.0.1".to_vec());
        let ranges = (0..masters).map(|at| range(at.into(), at.into(), host(), i64::from(at) + 1));
        Slots::parse(&Value::Array(ranges.collect()), &node(1), None)
    };
    assert_eq!(parse(1024).unwrap().masters().len(), 1024);
    assert!(parse(1025).unwrap_err().contains("more than 1024 masters"));
}

#[test]
fn a_host_that_is_none_owns_nothing() {
    for host in ["a b", "\u{1b}[31m", "a/b", &"x".repeat(300)] {
        let reply = Value::Array(vec![range(0, 5, Value::BulkString(host.into()), 7)]);
        assert!(Slots::parse(&reply, &node(1), None).is_err(), "{host:?}");
    }
}

#[test]
fn a_reply_without_slots_is_an_error() {
    for reply in [Value::Nil, Value::Array(vec![]), Value::Array(vec![Value::Int(3)])] {
        assert!(Slots::parse(&reply, &node(1), None).is_err(), "{reply:?}");
    }
}

proptest! {
    #[test]
    fn every_slot_has_exactly_the_owner_named(
        maps in proptest::collection::vec(proptest::collection::vec(1..20u16, 1..12), 1..6),
    ) {
        let mut before = None;
        for owners in maps {
            let width = (SLOTS / owners.len()) as i64;
            let ranges: Vec<_> = owners.iter().enumerate().map(|(at, port)| {
                let first = at as i64 * width;
                (first, first + width - 1, *port)
            }).collect();
            let now = slots(&ranges, before.as_ref());
            for (first, last, port) in ranges {
                for slot in [first, last] {
                    let owner = now.owner(usize::try_from(slot).unwrap()).unwrap();
                    prop_assert_eq!(&now.masters()[owner], &Some(node(port)));
                }
            }
            before = Some(now);
        }
    }
}

#[test]
fn members_are_known_by_address_and_by_name() {
    let text = "07c3 10.0.0.4:7004@17004,node-4.local,shard-id=1 slave e7d1 0 1 4 connected\n\
                67ed 10.0.0.2:7002@17002 master - 0 1426238316232 2 connected 5461-10922\n\
                6ec2 ::1:7003@17003,,shard-id=2 myself,master - 0 1 1 connected 0-5460\n\
                bad1 \u{1b}[31m:1@1 master - 0 1 1 connected\n\
                \n";
    let members = members(&Value::BulkString(text.into())).unwrap();
    let node = |host: &str, port| Address::Tcp(host.into(), port);
    let expected = [
        node("10.0.0.4", 7004),
        node("node-4.local", 7004),
        node("10.0.0.2", 7002),
        node("::1", 7003),
    ];
    assert_eq!(members, HashSet::from(expected));
    assert!(super::members(&Value::Nil).is_err());
}

#[tokio::test]
async fn a_stranger_is_asked_for_once_and_a_member_not_at_all() {
    let (off_map, node) = (OffMap::default(), Address::Tcp("10.0.0.1".into(), 7000));
    let learn = |named: &[Address]| {
        off_map.learn(off_map.begin_read(), named.iter().cloned().collect());
    };
    assert!(!off_map.is_member(&node, false, || learn(&[])).await);
    assert!(!off_map.is_wanted());
    assert!(off_map.is_member(&node, false, || learn(std::slice::from_ref(&node))).await);
    assert!(off_map.is_member(&node, false, || panic!("it is known")).await);
    // The node is asked for while the list is read, which was answered before.
    let (begun, joined) = (off_map.begin_read(), Address::Tcp("10.0.0.2".into(), 7000));
    let mut asked = Box::pin(off_map.is_member(&joined, false, || ()));
    assert!(asked.as_mut().now_or_never().is_none());
    off_map.learn(begun, HashSet::from([node.clone()]));
    assert!(asked.as_mut().now_or_never().is_none() && off_map.is_wanted());
    learn(&[node.clone(), joined.clone()]);
    assert!(asked.await);
    let same_port = Address::Tcp("127.0.0.1".into(), 7000);
    assert!(off_map.is_member(&same_port, true, || panic!("it is known")).await);
    assert!(!off_map.is_member(&same_port, false, || learn(&[])).await);
}
