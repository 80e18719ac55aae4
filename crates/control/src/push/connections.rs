//! State that the streams of a connection share: its client, and the rate at which they are read.

use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};
use ratelease_listener::{Client, Peer};
use tokio::time::sleep;
use tonic::Streaming;

use super::selection::{CertifiedNodes, Selection};
use crate::store::positive;

/// The context of the hash that is the origin of a pod. Another text would choose other pods.
const ORIGIN_CONTEXT: &str = "ratelease 2026-11 origins of pods";

/// Messages that a connection may send at once. A pod sends a report each second, and answers.
const MESSAGES_AT_ONCE: u32 = 64;

/// Time after which a connection may send another message.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(250);

/// Number of further messages that a response permits: its answer, and a message that crosses the
/// response.
const MESSAGES_OF_RESPONSE: u32 = 2;

/// Messages beyond that which are counted: streams of a connection that wait together each read
/// one, and streams that end without a message count too. More are forgotten, so that a pod behind
/// the same proxy is read again within seconds.
const MESSAGES_OWED_MAX: u32 = 16;

/// A stream's handle of its connection.
#[derive(Debug, Clone)]
pub struct ConnectedPod {
    pub client: Client,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The nodes that its certificate is for.
    certified: OnceLock<Arc<CertifiedNodes>>,
    /// A hash of the id of the first node that reported hits.
    node: OnceLock<blake3::Hash>,
    clock: Clock,
    messages: Mutex<MessageBudget>,
}

/// When the connection may send as many messages at once as the bound allows.
#[derive(Debug, Default)]
struct MessageBudget {
    full_at: Time,
}

// === impl ConnectedPod ===

impl ConnectedPod {
    pub fn new(client: Client) -> Self {
        let shared = Shared {
            certified: OnceLock::new(),
            node: OnceLock::new(),
            clock: Clock::start(),
            messages: Mutex::default(),
        };
        Self { client, shared: Arc::new(shared) }
    }

    /// The nodes that its certificate is for; none without TLS.
    pub fn certified(&self, selection: &Selection) -> Arc<CertifiedNodes> {
        let of = || self.client.certificate.as_ref().map(|it| selection.certified_by(it));
        Arc::clone(self.shared.certified.get_or_init(|| Arc::new(of().unwrap_or_default())))
    }

    /// Identifies the pod by facts that it cannot choose: its certificate and its address. All
    /// clients of a proxy on this machine have a loopback address. There the id of the node counts
    /// too, although the pod chooses it: the first id of the connection.
    pub fn identity<'p>(&'p self, node: &str) -> impl Hash + use<'p> {
        let Client { address, certificate, .. } = &self.client;
        let first = || self.shared.node.get_or_init(|| blake3::hash(node.as_bytes()));
        let node = address.ip().is_loopback().then(first);
        (certificate.as_deref(), Peer::of(Some(address.ip())), node)
    }

    /// The origin of a pod with this node's id: a hash of its address and of the nodes that its
    /// certificate is for (not of the certificate, which is renewed). Each replica finds the same.
    /// Never 0.
    pub fn origin(&self, certified: &CertifiedNodes, node: &str) -> i64 {
        let mut hasher = blake3::Hasher::new_derive_key(ORIGIN_CONTEXT);
        let ip = self.client.address.ip().to_canonical();
        let node = if ip.is_loopback() { node } else { "" };
        let names = certified.names().iter().map(String::as_str);
        let address = if ip.is_loopback() { String::new() } else { ip.to_string() };
        for part in [address.as_str(), node].into_iter().chain(names) {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        positive(&hasher.finalize()).max(1)
    }

    /// Reads the next message of a stream, once the budget of the connection allows one. `None` at
    /// the end of the stream. Cancel safe: a message is counted when it is returned.
    pub async fn message<M>(&self, stream: &mut Streaming<M>) -> Option<M> {
        loop {
            let wait = self.shared.messages.lock().wait(self.shared.clock.now());
            if wait.is_zero() {
                break;
            }
            sleep(wait).await;
        }
        let message = stream.message().await.ok().flatten();
        self.shared.messages.lock().note_message(self.shared.clock.now());
        message
    }

    /// Notes that a response is sent, which permits messages.
    pub fn note_response(&self) {
        self.shared.messages.lock().note_response();
    }
}

// === impl MessageBudget ===

impl MessageBudget {
    /// Time until a message may be read.
    fn wait(&self, now: Time) -> Duration {
        self.full_at.since(now).saturating_sub(MESSAGE_INTERVAL * (MESSAGES_AT_ONCE - 1))
    }

    fn note_message(&mut self, now: Time) {
        let latest = now + MESSAGE_INTERVAL * (MESSAGES_AT_ONCE + MESSAGES_OWED_MAX);
        self.full_at = (self.full_at.max(now) + MESSAGE_INTERVAL).min(latest);
    }

    fn note_response(&mut self) {
        let permitted = MESSAGE_INTERVAL * MESSAGES_OF_RESPONSE;
        self.full_at = Time::default() + self.full_at.since(Time::default() + permitted);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};
    use std::net::SocketAddr;

    use ratelease_listener::Connection;
    use tokio::io::duplex;

    use super::*;

    #[test]
    fn messages_beyond_the_answers_to_responses_are_read_at_a_bounded_rate() {
        let mut budget = MessageBudget::default();
        let start = Time::from_nanos(1_000_000_000);
        let mut read_at = |now: Time, most: u32| {
            (0..most)
                .take_while(|_| {
                    let may = budget.wait(now).is_zero();
                    if may {
                        budget.note_message(now);
                    }
                    may
                })
                .count()
        };
        assert_eq!(read_at(start, 1000), 64);
        assert_eq!(read_at(start + Duration::from_secs(10), 1000), 40);
        budget.note_response();
        let mut read_at = |now: Time| (budget.wait(now).is_zero(), budget.note_message(now)).0;
        let now = start + Duration::from_secs(10);
        assert_eq!([read_at(now), read_at(now), read_at(now)], [true, true, false]);
    }

    #[test]
    fn a_connection_is_read_again_within_seconds_whatever_it_has_sent() {
        let mut budget = MessageBudget::default();
        let now = Time::from_nanos(1_000_000_000);
        for _ in 0..100_000 {
            budget.note_message(now);
        }
        let wait = budget.wait(now);
        assert!(wait > Duration::from_secs(3) && wait < Duration::from_secs(6), "{wait:?}");
    }

    #[tokio::test]
    async fn a_connection_reports_as_one_pod_whatever_its_nodes_are_called() {
        let connection = |ip: [u8; 4]| {
            let connection = Connection::standalone(duplex(1).0).handle();
            let address = SocketAddr::from((ip, 1));
            ConnectedPod::new(Client { connection, address, certificate: None })
        };
        let hasher = RandomState::new();
        let identity = |of: &ConnectedPod, node: &str| hasher.hash_one(of.identity(node));
        let (one, other) = (connection([127, 0, 0, 1]), connection([127, 0, 0, 1]));
        let first = identity(&one, "a");
        assert_eq!(identity(&one, "b"), first);
        assert_ne!(identity(&other, "b"), first, "another pod behind a proxy of this machine");
        let again = connection([127, 0, 0, 1]);
        assert_eq!(identity(&again, "a"), first, "a pod that connects again");
        let (far, far_again) = (connection([10, 0, 0, 1]), connection([10, 0, 0, 1]));
        assert_eq!(identity(&far, "a"), identity(&far_again, "b"), "its address is its own");
    }

    #[tokio::test]
    async fn the_origin_of_a_pod_is_its_address_and_what_its_certificate_is_for() {
        let origin = |ip: [u8; 4], port: u16, node: &str, names: &[&str]| {
            let connection = Connection::standalone(duplex(1).0).handle();
            let address = SocketAddr::from((ip, port));
            let pod = ConnectedPod::new(Client { connection, address, certificate: None });
            pod.origin(&CertifiedNodes::named(names), node)
        };
        let first = origin([10, 0, 0, 1], 1, "a", &[]);
        assert_eq!(origin([10, 0, 0, 1], 2, "b", &[]), first);
        assert_ne!(origin([10, 0, 0, 2], 1, "a", &[]), first);
        let named = origin([10, 0, 0, 1], 1, "a", &["edge.shop"]);
        assert!(named != first && named == origin([10, 0, 0, 1], 2, "b", &["edge.shop"]));
        // Clients of this machine may use any address of loopback.
        let local = origin([127, 0, 0, 1], 1, "a", &[]);
        assert_eq!(origin([127, 0, 0, 2], 2, "a", &[]), local);
        assert_ne!(origin([127, 0, 0, 1], 1, "b", &[]), local);
        assert_eq!(first, 1_719_218_470_608_639_767, "another hash chooses other pods");
    }
}
