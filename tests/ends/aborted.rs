//! Requests that are aborted: while ratelease is asked, while the application answers, and after.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::application::{AFTER, Application, BEFORE, HELD, RUN};
use crate::client::{
    Connection, Ending, Stream, USER, get_frame, number, send_plain, sleep_exactly,
};
use crate::stand::{NOTHING, Plan, Stand, freeze, is_full};
use crate::support::frames::{RST_STREAM, Raw, frame};
use crate::support::http::Client;
use crate::support::now;
use crate::support::rng::Rng;

/// Error code of a client that no longer wants an answer (RFC 9113, section 7).
const CANCEL: u32 = 8;

/// Requests of as many users, more than there are slots.
const REQUESTS: usize = 13;

/// Clients that send and reset at the same time.
const CLIENTS: u32 = 4;

fn rst_stream(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
}

/// Sends requests while ratelease is frozen, and waits until Envoy has asked for all of them.
async fn asked(stand: &Stand) -> Vec<Client> {
    freeze(&stand.pod.process).await;
    let mut clients = Vec::new();
    for at in 0..REQUESTS {
        let headers = [(USER, &*format!("user-{at}")), (BEFORE, HELD)];
        let client = send_plain(stand.envoy.ingress, Ending::Reset, &headers).await;
        clients.push(client.expect("Envoy takes connections"));
    }
    stand.until_called(REQUESTS as u64).await;
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reset_while_ratelease_is_asked_leave_no_slot_taken() {
    let stand = Plan { is_patient: true, ..Plan::of("llm-concurrency") }.start().await;
    let clients = asked(&stand).await;
    drop(clients);
    let name = "cluster.ratelease.upstream_rq_tx_reset";
    let cancelled = async || stand.envoy.stat(name).await == Some(REQUESTS as u64);
    stand.envoy.until("giving up all calls", cancelled).await;
    stand.pod.process.signal("CONT");
    let ended = now();
    println!("{REQUESTS} requests are reset, and then ratelease reads the calls for them");
    stand.frees_all(ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reset_before_envoy_reads_the_answer_leave_no_slot_taken() {
    let stand = Plan { is_patient: true, ..Plan::of("llm-concurrency") }.start().await;
    let clients = asked(&stand).await;
    freeze(stand.envoy.process()).await;
    drop(clients);
    stand.pod.process.signal("CONT");
    let answered = async || stand.decided().await >= 2 * REQUESTS as u64;
    stand.pod.process.until("answering all calls", Duration::from_secs(10), answered).await;
    println!("{REQUESTS} requests are reset while their answers are on the way");
    stand.envoy.process().signal("CONT");
    stand.frees_all(now()).await;
}

/// Sends requests of users of its own one after another, each reset within `span`.
async fn send_and_reset(to: SocketAddr, requests: u32, span: Duration, mut rng: Rng) {
    let mut raw = Raw::open(to, &[]).await;
    for at in 0..requests {
        let user = format!("user-{:x}", rng.next_u64());
        let headers = [(USER, &*user), (BEFORE, HELD)];
        let after = span.mul_f64(rng.fraction());
        if at % 2 == 0 {
            let client = send_plain(to, Ending::Reset, &headers).await.unwrap();
            sleep_exactly(after);
            drop(client);
        } else {
            raw.stream.write_all(&get_frame(at, &headers)).await.unwrap();
            sleep_exactly(after);
            raw.stream.write_all(&rst_stream(at)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_reset_within_a_round_trip_leave_no_slot_taken() {
    let requests = if is_full() { 400 } else { 100 };
    let stand = Plan::of("llm-concurrency").start().await;
    let mut rng = Rng::new();
    // The duration of a whole request: ratelease answers somewhere within it.
    let round_trip = stand.round_trip().await;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let rng = Rng::seeded(rng.next_u64());
        clients.spawn(send_and_reset(stand.envoy.ingress, requests, round_trip, rng));
    }
    clients.join_all().await;
    let ended = now();
    let all = CLIENTS * requests;
    println!("{all} requests, each reset up to {round_trip:.1?} after it was sent");
    stand.frees_all(ended).await;
}

/// Sends requests with one id, in turn of as many users, and returns how many run then.
async fn run_with_one_id(users: usize) -> usize {
    const REQUESTS: usize = 30;
    // As in the sidecar of a mesh, and behind another proxy: clients choose their request ids.
    const REPLACED: [(&str, &str); 1] = [("use_remote_address: true", "use_remote_address: false")];
    let plan = Plan { replaced: &REPLACED, is_patient: true, ..Plan::of("llm-concurrency") };
    let stand = plan.start().await;
    let connection = Connection::open(stand.envoy.ingress, Ending::Close).await.unwrap();
    let mut streams = Vec::new();
    for at in 0..REQUESTS {
        let user = format!("user-{}", at % users);
        let headers = [(USER, &*user), ("x-request-id", "chosen"), (AFTER, HELD)];
        let mut stream = connection.get(&headers).await.unwrap();
        let status = stream.status().await.unwrap();
        assert!([200, 429].contains(&status), "{status}");
        streams.push(stream);
    }
    let running = stand.app.running();
    println!("{REQUESTS} requests with one id, of {users} users: {running} run");
    drop((streams, connection));
    let left = stand.left_of(now()).await;
    assert_eq!(left, NOTHING, "in use once all have ended");
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_id_for_all_runs_no_more_than_the_limit() {
    let running = [run_with_one_id(1).await, run_with_one_id(30).await];
    assert!(running[0] <= 2 && running[1] <= 5, "{running:?} run, where 2 and 5 may");
}

/// When and how a client aborts a request.
#[derive(Debug, Clone, Copy)]
struct Abort {
    how: How,
    /// After the request was sent; `None` for a request whose answer is read to its end.
    after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// HTTP/1.1, whose connection ends.
    Plain(Ending),
    /// RST_STREAM on a connection that goes on.
    Stream,
    /// HTTP/2, whose connection ends.
    Connection(Ending),
}

const HOWS: [How; 5] = [
    How::Plain(Ending::Close),
    How::Plain(Ending::Reset),
    How::Stream,
    How::Connection(Ending::Close),
    How::Connection(Ending::Reset),
];

/// Requests at a time, more than twice as many as may run.
const AT_A_TIME: usize = 48;

/// Users that send them, each of which has more requests under way than may run.
const USERS: u64 = 12;

/// Limits of a user, and of the upstream.
const LIMITS: [u64; 2] = [3, 20];

impl Abort {
    fn random(rng: &mut Rng) -> Self {
        let micros = match rng.below(4) {
            0 => None,
            1 => Some(rng.below(20_000)),
            _ => Some(rng.below(3_000)),
        };
        Self { how: rng.pick(&HOWS), after: micros.map(Duration::from_micros) }
    }

    /// Sends a request and aborts it, or reads its answer. The application knows before the client
    /// leaves.
    async fn run(self, to: SocketAddr, shared: &Connection, app: &Application, request: &Run) {
        let (number, headers) = (request.number, &request.headers());
        match self.how {
            How::Plain(ending) => {
                let mut client = send_plain(to, ending, headers).await.expect("Envoy listens");
                match self.after {
                    None => drop(client.answer().await.expect("an answer")),
                    Some(after) => sleep_exactly(after),
                }
                app.leaves(number);
            }
            How::Stream => {
                let stream = shared.get(headers).await.expect("a connection that goes on");
                self.finish(stream, number, app).await;
            }
            How::Connection(ending) => {
                let own = Connection::open(to, ending).await.expect("Envoy listens");
                let stream = own.get(headers).await.expect("a new connection");
                if let Some(stream) = self.finish_or_keep(stream, number, app).await {
                    own.end().await;
                    drop(stream);
                }
            }
        }
    }

    async fn finish(self, stream: Stream, number: u64, app: &Application) {
        if let Some(stream) = self.finish_or_keep(stream, number, app).await {
            stream.reset();
        }
    }

    /// Reads the answer, or waits until the client is to leave and returns the stream then.
    async fn finish_or_keep(
        self,
        mut stream: Stream,
        number: u64,
        app: &Application,
    ) -> Option<Stream> {
        let Some(after) = self.after else {
            stream.status().await.expect("an answer");
            stream.end().await.expect("a whole answer");
            return None;
        };
        sleep_exactly(after);
        app.leaves(number);
        Some(stream)
    }
}

/// One request.
struct Run {
    number: u64,
    texts: [String; 4],
}

impl Run {
    fn random(rng: &mut Rng) -> Self {
        let number = number();
        let user = format!("user-{}", rng.below(USERS));
        let texts = [user, number.to_string(), rng.below(4).to_string(), rng.below(12).to_string()];
        Self { number, texts }
    }

    fn headers(&self) -> [(&str, &str); 4] {
        let [user, run, before, after] = &self.texts;
        [(USER, user), (RUN, run), (BEFORE, before), (AFTER, after)]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_aborted_at_random_moments_leave_no_slot_taken() {
    let requests = if is_full() { 20_000 } else { 2_000 };
    let plan = Plan { limits: &LIMITS, workers: 2, ..Plan::of("llm-concurrency") };
    let stand = Arc::new(plan.start().await);
    let mut rng = Rng::new();
    let mut tasks = JoinSet::new();
    let begun = now();
    for at in 0..AT_A_TIME {
        let (stand, mut rng) = (Arc::clone(&stand), Rng::seeded(rng.next_u64()));
        tasks.spawn(async move {
            let to = stand.envoy.ingress;
            let shared = Connection::open(to, Ending::Close).await.expect("Envoy listens");
            for _ in 0..requests / AT_A_TIME + usize::from(at < requests % AT_A_TIME) {
                let (abort, run) = (Abort::random(&mut rng), Run::random(&mut rng));
                abort.run(to, &shared, &stand.app, &run).await;
            }
        });
    }
    tasks.join_all().await;
    let ended = now();
    let (most, seen) = (stand.app.most(), stand.app.seen());
    println!(
        "{requests} requests in {:.1?}; {seen} passed, at most {most} at a time",
        begun.elapsed()
    );
    let left = stand.left_of(ended).await;
    assert!(seen >= requests as u64 / 50, "{seen} of {requests} passed: slots are lost for good");
    assert!(most <= 20, "{most} ran at a time, where 20 may");
    stand.passes_after(left).await;
}
