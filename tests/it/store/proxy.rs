//! A TCP proxy in front of one server, for connections that stall, fall silent or are slow.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::support::now;

/// Its tasks end with the test's runtime.
pub(super) struct Proxy {
    port: u16,
    mood: watch::Sender<Mood>,
    accepted: watch::Receiver<Vec<Instant>>,
}

/// What befalls the connections, numbered from 0 in the order in which they came.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mood {
    /// Each reply comes so much later.
    pub(super) latency: Duration,
    /// The first so many connections carry nothing either way.
    pub(super) stuck: usize,
    /// The first so many carry no replies.
    pub(super) deaf: usize,
}

/// Chunks that are delayed at once.
const DELAYED_MAX: usize = 1024;

// === impl Proxy ===

impl Proxy {
    pub(super) async fn start(server: u16) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), server)
    }

    pub(super) fn on(listener: TcpListener, server: u16) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (mood, moods) = watch::channel(Mood::default());
        let (count, accepted) = watch::channel(Vec::new());
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((client, _)) = listener.accept().await else { break };
                count.send_modify(|times| times.push(now()));
                tokio::spawn(carry(client, server, number, moods.clone()));
            }
        });
        Self { port, mood, accepted }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// When each connection so far came.
    pub(super) fn accepted(&self) -> Vec<Instant> {
        self.accepted.borrow().clone()
    }

    /// Waits for the connection of this number; when it came.
    pub(super) async fn connection(&self, number: usize) -> Instant {
        let mut accepted = self.accepted.clone();
        accepted.wait_for(|times| times.len() > number).await.unwrap()[number]
    }
}

async fn carry(client: TcpStream, server: u16, number: usize, moods: watch::Receiver<Mood>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let asks = pass(from_client, to_server, moods.clone(), move |mood| {
        (number >= mood.stuck).then_some(Duration::ZERO)
    });
    let replies = pass(from_server, to_client, moods, move |mood| {
        (number >= mood.stuck && number >= mood.deaf).then_some(mood.latency)
    });
    tokio::select! { () = asks => {} () = replies => {} }
}

/// Passes on what comes after the delay that the mood has for it, or none while it has none.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut moods: watch::Receiver<Mood>,
    delay: impl Fn(&Mood) -> Option<Duration>,
) {
    let (delayed, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(DELAYED_MAX);
    let reading = async move {
        let mut buffer = [0; 4096];
        while let Ok(size @ 1..) = from.read(&mut buffer).await {
            let came = now();
            let mood = moods.wait_for(|mood| delay(mood).is_some()).await.map(|mood| *mood);
            let Ok(mood) = mood else { break };
            let at = came + delay(&mood).unwrap_or_default();
            if delayed.send((at, buffer[..size].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((at, bytes)) = due.recv().await {
            tokio::time::sleep_until(at.into()).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(reading, writing);
}
