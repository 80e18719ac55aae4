//! Valid and invalid framing of a server's replies.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

const SMALL: Limit = Limit { bytes: 64, values: 8 };

fn follow(text: &str) -> Result<ReplyCounter, Excess> {
    let mut counter = ReplyCounter::default();
    counter.follow(text.as_bytes(), SMALL).map(|()| counter)
}

/// Whether the counter is between two replies.
fn is_idle(counter: &ReplyCounter) -> bool {
    matches!(counter.state, State::Type) && (counter.bytes, counter.values) == (0, 0)
}

#[test]
fn each_kind_of_value_ends_where_redis_ends_it() {
    for reply in [
        "+OK\r\n",
        "-ERR a\rb\nc\r\r\n",
        ":-17\r\n",
        "$0\r\n\r\n",
        "$5\r\na\r\nbc\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "$-0\r\n\r\n",
        "*-0\r\n",
        "%-0\r\n",
        "|-00\r\n:1\r\n",
        "*0\r\n",
        "*2\r\n:1\r\n*2\r\n$1\r\nx\r\n_\r\n",
        "%1\r\n+a\r\n:1\r\n",
        "%0\r\n",
        "~2\r\n#t\r\n,1.5\r\n",
        ">2\r\n+invalidate\r\n_\r\n",
        "|1\r\n+ttl\r\n:3\r\n:42\r\n",
        "!5\r\nERR x\r\n",
        "=7\r\ntxt:abc\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
    ] {
        let counter = follow(reply).unwrap_or_else(|excess| panic!("{reply:?}: {excess}"));
        assert!(is_idle(&counter), "{reply:?}: {counter:?}");
        let parsed = redis::parse_redis_value(reply.as_bytes());
        assert!(parsed.is_ok(), "{reply:?}: {parsed:?}");
    }
}

#[test]
fn a_head_that_announces_too_much_is_refused_by_itself() {
    for (head, excess) in [
        ("$2000000000\r\n", Excess::Bytes(64)),
        ("$99999999999999999999999999999999\r\n", Excess::Bytes(64)),
        ("!63\r\n", Excess::Bytes(64)),
        ("=63\r\n", Excess::Bytes(64)),
        ("*8\r\n", Excess::Values(8)),
        ("~2000000000\r\n", Excess::Values(8)),
        (">8\r\n", Excess::Values(8)),
        ("%4\r\n", Excess::Values(8)),
        ("|4\r\n", Excess::Values(8)),
        ("*4\r\n*4\r\n", Excess::Values(8)),
        ("%-1\r\n", Excess::Length),
        ("!-1\r\n", Excess::Length),
        ("$+5\r\n", Excess::Length),
        ("$ 5\r\n", Excess::Length),
        ("$?\r\n", Excess::Length),
        ("*5\rx", Excess::Length),
    ] {
        assert_eq!(follow(head).map(|_| ()), Err(excess), "{head:?}");
    }
    assert!(follow("*7\r\n").is_ok() && follow("$50\r\n").is_ok());
}

#[test]
fn a_line_without_end_is_refused_at_the_limit() {
    assert!(follow(&format!("-{}", "x".repeat(63))).is_ok());
    assert_eq!(follow(&format!("-{}", "x".repeat(64))).map(|_| ()), Err(Excess::Bytes(64)));
}

#[test]
fn each_reply_has_the_limit_to_itself() {
    let counter = follow(&"$40\r\n0123456789012345678901234567890123456789\r\n".repeat(9));
    assert!(is_idle(&counter.unwrap()));
}

#[test]
fn only_a_list_that_is_awaited_may_be_long() {
    let (limit, mut counter) = (ReplyLimit::default(), ReplyCounter::default());
    let awaited = limit.await_list();
    assert_eq!(limit.check(&mut counter, b"$100000\r\n"), Ok(()));
    drop(awaited);
    assert!(!limit.is_exceeded());
    let mut counter = ReplyCounter::default();
    assert_eq!(limit.check(&mut counter, b"$100000\r\n"), Err(Excess::Bytes(ORDINARY.bytes)));
    assert!(limit.is_exceeded());
}

/// Yields one byte at a time, so that a parser takes no more than it needs.
struct OneByOne<'a>(&'a [u8]);

impl Read for OneByOne<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(1);
        self.0.read(&mut buffer[..length])
    }
}

/// Uses the same replies each time, many of which parse.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 4096, rng_seed: RngSeed::Fixed(14), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// For any input, a reply ends here exactly where it ends for redis-rs.
    #[test]
    fn a_reply_ends_where_redis_rs_ends_it(
        replies in "([+$*%|~>!=:-](-?[0-9]{1,2}|-0|[a-z]{0,3})\r\n){1,9}",
    ) {
        let mut left = OneByOne(replies.as_bytes());
        if redis::Parser::new().parse_value(&mut left).is_err() {
            return Ok(());
        }
        let taken = replies.len() - left.0.len();
        let limit = Limit { bytes: 1 << 20, values: 1 << 20 };
        let mut counter = ReplyCounter::default();
        for (at, byte) in replies.bytes().take(taken).enumerate() {
            prop_assert!(at == 0 || !is_idle(&counter), "{replies:?} ended before {at}");
            prop_assert_eq!(counter.follow(&[byte], limit), Ok(()));
        }
        prop_assert!(is_idle(&counter), "{replies:?}, {taken} taken: {counter:?}");
    }
}

#[tokio::test]
async fn all_addresses_of_a_name_are_tried_and_four_at_a_time() {
    let address = |last| SocketAddr::from(([127, 0, 0, last], 1));
    let last = address(99);
    let (open, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let connect = async |address: SocketAddr| {
        most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        open.fetch_sub(1, Ordering::Relaxed);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        if address == last { Ok(address) } else { Err(refused) }
    };
    let addresses: Vec<_> = (0..=99).map(address).collect();
    assert_eq!(first_of(addresses, connect).await.unwrap(), last);
    assert_eq!(most.load(Ordering::Relaxed), 4);
    let refused = first_of(vec![address(1)], connect).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn work_that_was_given_up_has_its_thread_until_it_ends() {
    let threads = Threads::new(1);
    let (end, wait) = mpsc::channel::<()>();
    let mut given_up = Box::pin(threads.run(move || wait.recv()));
    assert!(futures_util::poll!(&mut given_up).is_pending());
    drop(given_up);
    let mut next = Box::pin(threads.run(|| 7));
    assert!(futures_util::poll!(&mut next).is_pending());
    assert_eq!(threads.0.available_permits(), 0);
    drop(end);
    assert_eq!(next.await.unwrap(), 7);
}
