//! Clients that repeat one action without end, each on a connection of its own: the pod closes the
//! connection or absorbs the load, memory stays flat, and a neighbour is served meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{good, pod};
use crate::support::cores::{all_cores, one_core};
use crate::support::frames::*;
use crate::support::now;
use crate::support::raw_grpc::{Connection, SHOULD_RATE_LIMIT};

const MIB: u64 = 1 << 20;

/// Duration of each flood.
const SPAN: Duration = Duration::from_millis(300);

/// Maximum duration of a flood whose connection must be closed, on a machine that also compiles.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);

/// Maximum memory that one flood may leave behind, in a build with debug assertions. Allocators
/// keep some.
const LEFT_MAX: u64 = 12 * MIB;

/// Maximum latency of an answer during a flood, on a machine that also compiles; milliseconds are
/// usual.
const NEIGHBOUR_MAX: Duration = Duration::from_secs(10);

/// Twice as many parts a second as are served of any kind.
const FLOOD_MIN: f64 = 32.0 * 1024.0;

/// Minimum calls of the neighbour during each flood.
const CALLS_MIN: u32 = 20;

/// A flood: its name, the bytes before it, and a function that builds its `n`th part.
struct Flood {
    name: &'static str,
    settings: Vec<(u16, u32)>,
    first: Vec<u8>,
    part: Box<dyn Fn(u32) -> Vec<u8> + Send>,
    /// Whether the connection is closed, if that does not depend on the speed of both ends.
    is_closed: Option<bool>,
}

impl Flood {
    fn of(name: &'static str, part: impl Fn(u32) -> Vec<u8> + Send + 'static) -> Self {
        let part = Box::new(part);
        Self { name, settings: vec![], first: vec![], part, is_closed: Some(false) }
    }

    fn after(self, first: Vec<u8>) -> Self {
        Self { first, ..self }
    }

    fn closed(self) -> Self {
        Self { is_closed: Some(true), ..self }
    }

    /// How long to wait for an event, or for its absence.
    fn patience(&self) -> Duration {
        if self.is_closed == Some(true) { CLOSED_WITHIN } else { SPAN }
    }

    /// Sends without reading until the time is over, the connection is closed, or the server no
    /// longer reads. Also returns the number of parts sent per second.
    async fn run(&self, server: std::net::SocketAddr) -> (Raw, f64) {
        let mut raw = Raw::open(server, &self.settings).await;
        raw.send(&self.first).await;
        let (start, mut n) = (now(), 0);
        while start.elapsed() < self.patience() {
            // In batches, so that this client is not the bottleneck.
            let parts: Vec<_> = (n..n + 64).flat_map(&self.part).collect();
            n += 64;
            match timeout(self.patience(), raw.stream.write_all(&parts)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        (raw, f64::from(n) / start.elapsed().as_secs_f64())
    }
}

/// The identifier of the `n`th stream, after the first few.
fn stream(n: u32) -> u32 {
    2 * n + 11
}

fn reset(n: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream(n), &[0, 0, 0, 8])
}

fn floods() -> Vec<Flood> {
    let ping = |n: u32| frame(PING, 0, 0, &u64::from(n).to_be_bytes());
    let whole = |n: u32| call(stream(n), &good());
    let too_much = |n: u32| frame(WINDOW_UPDATE, 0, stream(n), &[0x7f, 0xff, 0xff, 0xff]);
    let continued = |payload: Vec<u8>| move |_| frame(CONTINUATION, 0, 1, &payload);
    let half = || frame(HEADERS, 0, 1, &block(SHOULD_RATE_LIMIT));
    // The header enters the table once, and each further reference to it takes one byte.
    let large = [&[0x40, 1, b'x', 0x7f, 0x81, 0x1e][..], &[b'v'; 4_000]].concat();
    let bomb = move |n| {
        let block = [&block(SHOULD_RATE_LIMIT)[..], &large, &[0xbe; 8_000]].concat();
        frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &block)
    };
    let windows = |n: u32| settings(&[(INITIAL_WINDOW_SIZE, 60_000 + n % 2)]);
    let hundred: Vec<_> = (1..200).step_by(2).flat_map(begun).collect();
    let unread = Flood::of("answers that have no room", whole).closed();
    // Calls that are answered before their reset arrives count, and are charged, as other calls.
    let answered = Flood::of("whole calls that are reset", move |n| [whole(n), reset(n)].concat());
    let answered = Flood { is_closed: None, ..answered };
    vec![
        Flood::of("pings", ping).closed(),
        Flood::of("settings", |_| settings(&[])).closed(),
        Flood::of("settings of windows", windows).after(hundred).closed(),
        Flood::of("priorities", |n| frame(PRIORITY, 0, stream(n), &[0; 5])).closed(),
        // At 2048 a second, which is more than is served: a busy machine may not read 32 MiB, but
        // reads 2 MiB.
        Flood::of("unknown kinds", |_| frame(0xbe, 0, 0, &[0; 1_024])).closed(),
        Flood::of("empty data", |_| frame(DATA, 0, 1, &[])).after(begun(1)).closed(),
        Flood::of("data byte by byte", |_| frame(DATA, 0, 1, &[0])).after(begun(1)).closed(),
        Flood::of("more room", |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]))
            .after(begun(1))
            .closed(),
        Flood::of("empty continuations", continued(vec![])).after(half()).closed(),
        Flood::of("continuations", continued(field("x-any", &"v".repeat(100)).repeat(100)))
            .after(half())
            .closed(),
        Flood::of("headers that grow", bomb).closed(),
        Flood::of("calls that are reset", move |n| [begun(stream(n)), reset(n)].concat()).closed(),
        answered,
        Flood::of("faults that have us reset", move |n| [begun(stream(n)), too_much(n)].concat())
            .closed(),
        Flood::of("calls above the ceiling", |n| begun(stream(n))).closed(),
        Flood { settings: vec![(INITIAL_WINDOW_SIZE, 0)], ..unread },
    ]
}

/// The error code with which the connection was closed; `None` if nothing more arrives on it.
async fn reason(raw: &mut Raw, patience: Duration) -> Option<u32> {
    loop {
        match timeout(patience, raw.next()).await {
            Ok(Some(frame)) if frame.kind == GOAWAY => return Some(frame.reason()),
            Ok(Some(_)) => {}
            Ok(None) => panic!("closed without a reason"),
            Err(_) => return None,
        }
    }
}

/// Sends calls one after the other until `flood` is over and some have been answered. Returns the
/// latency of the slowest.
async fn beside<T>(neighbour: &Connection, flood: impl Future<Output = T>) -> (T, Duration) {
    let is_over = AtomicBool::new(false);
    let flood = async {
        let sent = flood.await;
        is_over.store(true, Ordering::Relaxed);
        sent
    };
    let served = async {
        let (mut slowest, mut calls) = (Duration::ZERO, 0);
        while calls < CALLS_MIN || !is_over.load(Ordering::Relaxed) {
            let asked = now();
            let reply = neighbour.call(&good()).await;
            assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
            slowest = slowest.max(asked.elapsed());
            calls += 1;
        }
        slowest
    };
    tokio::join!(flood, served)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_ends_its_own_connection_or_nothing_at_all() {
    let _core = all_cores().await;
    let (pod, _rules) = pod().await;
    let neighbour = Connection::open(pod.grpc).await;
    for _ in 0..100 {
        neighbour.call(&good()).await;
    }
    for flood in floods() {
        let before = pod.process.memory("VmRSS");
        let ((mut raw, rate), slowest) = beside(&neighbour, flood.run(pod.grpc)).await;
        let after = pod.process.memory("VmRSS");
        let name = flood.name;
        let more = after.saturating_sub(before) / 1024;
        println!("{name}: {rate:.0} a second, slowest answer {slowest:?}, {more} KiB more");
        match reason(&mut raw, flood.patience()).await {
            Some(reason) => {
                assert_eq!(reason, ENHANCE_YOUR_CALM, "{name}");
                assert_ne!(flood.is_closed, Some(false), "{name}: closed");
            }
            // A very busy machine may be too slow to make a flood of it.
            None => assert!(flood.is_closed != Some(true) || rate < FLOOD_MIN, "{name}: goes on"),
        }
        assert!(after < before + LEFT_MAX, "{name}: {before} to {after} bytes");
        assert!(slowest < NEIGHBOUR_MAX, "{name}: {slowest:?}");
        pod.is_unharmed();
    }
}

/// A client that respects its flow control windows, and begins more messages than it ends.
struct Sender {
    raw: Raw,
    /// Windows of the connection (as stream 0) and of the open streams.
    room: HashMap<u32, i64>,
}

impl Sender {
    /// The initial window: the protocol's for the connection, the server's settings for streams.
    const ROOM: i64 = 65_535;

    async fn open(server: std::net::SocketAddr) -> Self {
        Self { raw: Raw::open(server, &[]).await, room: HashMap::from([(0, Self::ROOM)]) }
    }

    async fn begin(&mut self, stream: u32) {
        self.raw.send(&begun(stream)).await;
        self.room.insert(stream, Self::ROOM);
    }

    /// Sends data once the window has room for it, unless the call has been answered.
    async fn send(&mut self, stream: u32, data: &[u8]) {
        let length = i64::try_from(data.len()).unwrap();
        while self.room.get(&stream).is_some_and(|room| (*room).min(self.room[&0]) < length) {
            let frame = self.raw.next().await.expect("the connection lives");
            match frame.kind {
                WINDOW_UPDATE => {
                    let more = u32::from_be_bytes(frame.payload[..].try_into().unwrap());
                    let room = self.room.entry(frame.stream);
                    room.and_modify(|room| *room += i64::from(more));
                }
                HEADERS if frame.flags & END_STREAM != 0 => {
                    self.room.remove(&frame.stream);
                }
                other => assert!([SETTINGS, RST_STREAM].contains(&other), "{frame:?}"),
            }
        }
        if self.room.contains_key(&stream) {
            self.raw.send(&frame(DATA, 0, stream, data)).await;
            for of in [0, stream] {
                self.room.entry(of).and_modify(|room| *room -= length);
            }
        }
    }
}

/// Each call may send a MiB, and each connection may have 1024 calls: the memory of all is bounded.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_never_end_take_no_more_room_than_there_is_for_them() {
    const CALLS: u32 = 200;
    const ROOM: u64 = 8 * MIB;
    let _core = one_core().await;
    let (pod, _rules) = pod().await;
    let neighbour = Connection::open(pod.grpc).await;
    neighbour.call(&good()).await;
    let before = pod.process.memory("VmRSS");
    let mut sender = Sender::open(pod.grpc).await;
    let length = u32::try_from(MIB).unwrap().to_be_bytes();
    for n in 0..CALLS {
        sender.begin(stream(n)).await;
        sender.send(stream(n), &[&[0], &length[..]].concat()).await;
    }
    let part = vec![b'x'; 16_000];
    for _ in 0..MIB / 16_000 - 1 {
        for n in 0..CALLS {
            sender.send(stream(n), &part).await;
        }
    }
    let grown = pod.process.memory("VmHWM") - before;
    println!("{} MiB more for {CALLS} messages of nearly a MiB", grown / MIB);
    assert!(grown < 2 * ROOM, "{grown} bytes");
    assert!(pod.count("shed") > 0, "they had room");
    assert_eq!(neighbour.call(&good()).await.is_over_limit(), Some(false));
    drop(sender);
    let idle = async || pod.count("calls_under_way") == 0;
    pod.process.until("done with the calls", NEIGHBOUR_MAX, idle).await;
    pod.is_unharmed();
}
