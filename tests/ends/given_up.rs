//! Starts that their caller gives up while Redis is slow, each followed by its end on the same
//! connection, as Envoy does when its time-out has passed.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::stand::{NOTHING, Plan, is_full};
use crate::support::frames::{DATA, Frame, HEADERS, RST_STREAM, Raw, call, frame};
use crate::support::now;
use crate::support::proxy::Fault;
use crate::support::raw_grpc::{bytes_field, number_field, request};
use crate::support::rng::Rng;

/// Time until Redis answers.
const DISTANCE: Duration = Duration::from_millis(10);

/// When starts are given up, in microseconds after they were sent: around the answer of Redis.
const GIVEN_UP: std::ops::Range<u64> = 6_000..16_000;

/// Connections that give starts up at the same time.
const CONNECTIONS: u64 = 8;

/// Error code of a client that no longer wants an answer (RFC 9113, section 7).
const CANCEL: u32 = 8;

/// No answer takes this long: a test fails instead of hanging.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Entries of a call, before those that name the request.
const RECIPES: [(&str, &[(&str, &str)]); 2] =
    [("llm-concurrency", &[]), ("llm-holds", &[("model", "large")])];

/// The message of a call of a user of its own, as the recipe `of` sends it.
fn message(of: usize, user: &str, hits: u64, is_end: bool) -> Vec<u8> {
    let (domain, more) = RECIPES[of];
    let settle: &[(&str, &str)] = if is_end { &[("ratelease.settle", "end")] } else { &[] };
    let entries = [&[("user", user)], more, &[("request_id", user)], settle].concat();
    let entry = |(key, value): &(&str, &str)| [bytes_field(1, key), bytes_field(2, value)].concat();
    let entries = entries.iter().flat_map(|it| bytes_field(1, entry(it)));
    // `hits_addend` of a descriptor is a message.
    let hits = bytes_field(3, number_field(1, hits));
    request(domain, &[entries.chain(hits).collect()])
}

/// Reads answers until the last end is answered; returns the frames of DATA of each stream.
async fn answers(mut from: OwnedReadHalf, last: u32) -> BTreeMap<u32, u64> {
    let mut answered = BTreeMap::new();
    let mut frame = Frame::default();
    loop {
        let read = timeout(ANSWER_MAX, frame.read(&mut from)).await.expect("a frame in time");
        assert!(read, "the connection ends before stream {last} is answered: {answered:?}");
        match frame.kind {
            DATA => *answered.entry(frame.stream).or_default() += 1,
            HEADERS if frame.stream == last && frame.flags & 1 == 1 => return answered,
            _ => {}
        }
    }
}

/// Gives starts up on one connection; returns how many had no answer when they were given up, and
/// how many ends were answered.
async fn give_up(to: std::net::SocketAddr, starts: u32, mut rng: Rng) -> (u64, u64) {
    let (read, mut write) = Raw::open(to, &[]).await.stream.into_split();
    let last = 4 * starts - 1;
    let reading = tokio::spawn(answers(read, last));
    for at in 0..starts {
        let (start, end) = (4 * at + 1, 4 * at + 3);
        let (of, user) = (rng.pick(&[0, 1]), format!("{:x}", rng.next_u64()));
        write.write_all(&call(start, &message(of, &user, 1, false))).await.unwrap();
        let span = GIVEN_UP.start + rng.below(GIVEN_UP.end - GIVEN_UP.start);
        sleep(Duration::from_micros(span)).await;
        let reset = frame(RST_STREAM, 0, start, &CANCEL.to_be_bytes());
        let ends = call(end, &message(of, &user, 0, true));
        write.write_all(&[reset, ends].concat()).await.unwrap();
    }
    let answered = reading.await.unwrap();
    let count = |is: fn(u32) -> bool| answered.keys().filter(|stream| is(**stream)).count() as u64;
    (u64::from(starts) - count(|stream| stream % 4 == 1), count(|stream| stream % 4 == 3))
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_given_up_while_redis_is_slow_hold_nothing() {
    let starts = if is_full() { 500 } else { 125 };
    let plan = Plan { with: &["llm-holds"], ..Plan::of("llm-concurrency") };
    let stand = plan.start().await;
    stand.redis_at(Fault::Latency { delay: DISTANCE, jitter: Duration::ZERO });
    let mut rng = Rng::new();
    let mut callers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let rng = Rng::seeded(rng.next_u64());
        callers.spawn(give_up(stand.pod.grpc, starts, rng));
    }
    let counted = callers.join_all().await;
    let ended = now();
    let given_up: u64 = counted.iter().map(|(given_up, _)| given_up).sum();
    let answered: u64 = counted.iter().map(|(_, answered)| answered).sum();
    let all = CONNECTIONS * u64::from(starts);
    println!("{all} starts, of which {given_up} had no answer; {answered} ends were answered");
    assert!(given_up >= all / 10 && answered == all, "{given_up}, {answered} of {all}");
    let left = stand.left_of(ended).await;
    assert!(left == NOTHING, "{left}, of {given_up} starts that were given up");
    stand.pod.is_unharmed();
}
