//! H3b: an Envoy that resets each call at its timeout while the pod stalls. This looks like a rapid
//! reset attack, but the client is honest: its connection has to be kept.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::foe::Foes;
use crate::messages::message;
use crate::scene::{Plan, Scene};
use crate::support::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, GREETING, HEADERS, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, block, field, frame, settings,
};
use crate::support::now;
use crate::support::raw_grpc::{SHOULD_RATE_LIMIT, framed};

/// Interval at which calls are sent, and resets of overdue calls.
const TICK: Duration = Duration::from_millis(1);

/// Length of each of the pod's repeated stalls.
const STALL: Duration = Duration::from_millis(700);

/// Maximum number of calls under way: as Envoy does, the client respects the limit of streams.
const UNDER_WAY_MAX: usize = 200;

/// Streams whose answer is complete.
type Answered = Arc<Mutex<HashSet<u32>>>;

/// One connection with calls at a steady rate, each reset after `patience` unless it is answered.
struct Envoy {
    write: OwnedWriteHalf,
    /// Returns how the connection ended.
    reader: JoinHandle<String>,
    answered: Answered,
    rate: u32,
    patience: Duration,
    /// Calls that are not known to have been answered or reset, with the time of each.
    under_way: VecDeque<(u32, Instant)>,
    /// The frames of a call, without their stream identifier.
    block: Vec<u8>,
    body: Vec<u8>,
    calls: u32,
    resets: u32,
}

// === impl Envoy ===

impl Envoy {
    async fn open(foes: &Foes, rate: u32, patience: Duration) -> Self {
        let stream = TcpStream::connect(foes.grpc).await.expect("the pod takes a connection");
        stream.set_nodelay(true).expect("a socket that lives");
        let (read, mut write) = stream.into_split();
        let room = frame(WINDOW_UPDATE, 0, 0, &(u32::MAX / 2 - 65_535).to_be_bytes());
        let greeting = [GREETING, &settings(&[]), &frame(SETTINGS, ACK, 0, &[]), &room].concat();
        write.write_all(&greeting).await.expect("a connection that lives");
        let answered = Answered::default();
        let reader = tokio::spawn(read_answers(read, Arc::clone(&answered)));
        let block = [block(SHOULD_RATE_LIMIT), field("grpc-timeout", "20m")].concat();
        let body = framed(&message("plenty", "impatient"));
        let under_way = VecDeque::new();
        let (calls, resets) = (0, 0);
        Self { write, reader, answered, rate, patience, under_way, block, body, calls, resets }
    }

    /// Sends calls until the time is over. Returns how the connection ended, if it ended before.
    async fn run(&mut self, foes: &Foes) -> Option<String> {
        let start = now();
        while !foes.is_over() {
            if self.reader.is_finished() {
                return Some((&mut self.reader).await.expect("the reader does not panic"));
            }
            let mut bytes = self.overdue();
            bytes.extend(self.due(start));
            foes.note_sent(bytes.len());
            let written = timeout_at(foes.end.into(), self.write.write_all(&bytes)).await;
            if matches!(written, Ok(Err(_))) {
                return Some("a connection that takes no more".to_owned());
            }
            tokio::time::sleep(TICK).await;
        }
        self.reader.abort();
        None
    }

    /// Resets for the calls that have waited for too long.
    fn overdue(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.under_way.front().is_some_and(|(_, sent)| sent.elapsed() >= self.patience) {
            let Some((stream, _)) = self.under_way.pop_front() else { break };
            if !self.answered.lock().remove(&stream) {
                bytes.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
                self.resets += 1;
            }
        }
        bytes
    }

    /// The calls that are due by now.
    fn due(&mut self, start: Instant) -> Vec<u8> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wanted = (start.elapsed().as_secs_f64() * f64::from(self.rate)) as u32;
        let mut bytes = Vec::new();
        while self.calls < wanted && self.under_way.len() < UNDER_WAY_MAX {
            let stream = 2 * self.calls + 1;
            bytes.extend(frame(HEADERS, END_HEADERS, stream, &self.block));
            bytes.extend(frame(DATA, END_STREAM, stream, &self.body));
            self.under_way.push_back((stream, now()));
            self.calls += 1;
        }
        bytes
    }
}

/// Records the answers until the connection ends, or until the pod sends GOAWAY.
async fn read_answers(read: OwnedReadHalf, answered: Answered) -> String {
    let mut read = BufReader::new(read);
    let mut frame = Frame::default();
    while frame.read(&mut read).await {
        if frame.kind == GOAWAY {
            // The payload is the last stream, the reason, and a readable text.
            let text = String::from_utf8_lossy(frame.payload.get(8..).unwrap_or_default());
            return format!("GOAWAY {:?} {text}", frame.payload.get(4..8).unwrap_or_default());
        }
        if frame.kind == HEADERS && frame.flags & END_STREAM != 0 {
            answered.lock().insert(frame.stream);
        }
    }
    "a closed connection".to_owned()
}

async fn is_kept(name: &str, attack: &str, rate: u32, patience: Duration) {
    let scene = Scene::start(Plan::new(name, attack).lasting(Duration::from_secs(2))).await;
    let (mut calls, mut resets, mut end) = (0, 0, None);
    let attacked = scene.attack(async |foes, scene| {
        let stalls = async {
            while !foes.is_over() {
                scene.pod.process.signal("STOP");
                tokio::time::sleep(STALL).await;
                scene.pod.process.signal("CONT");
                tokio::time::sleep(STALL).await;
            }
        };
        let mut envoy = Envoy::open(foes, rate, patience).await;
        (end, ()) = tokio::join!(envoy.run(foes), stalls);
        (calls, resets) = (envoy.calls, envoy.resets);
    });
    let mut row = attacked.await.row;
    row.note(&format!("{calls} calls, of which {resets} were reset"));
    row.holds(resets > 100, "too few calls were reset for a stall");
    row.holds(end.is_none(), &format!("the connection of an honest Envoy was ended: {end:?}"));
    row.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn h3b_an_envoy_with_a_timeout_of_20_ms_is_kept_through_stalls() {
    let patience = Duration::from_millis(20);
    is_kept("H3b", "honest: resets at 20 ms, stalls, 2000/s", 2_000, patience).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h3c_an_envoy_with_a_timeout_of_1_ms_is_kept_through_stalls() {
    let patience = Duration::from_millis(1);
    is_kept("H3c", "honest: resets at 1 ms, stalls, 5000/s", 5_000, patience).await;
}
