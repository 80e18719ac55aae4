//! The delays of the network to Redis and of the machine alone, measured beside a test of time: a
//! busy machine stalls processes, which is not the product's fault.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::now;

/// Sends PING to a node through its proxy repeatedly, without using the product.
pub(crate) struct Probe {
    is_over: Arc<AtomicBool>,
    asking: thread::JoinHandle<Vec<Duration>>,
}

/// Round trips that a probe measured, the shortest first.
#[derive(Debug)]
pub(crate) struct Trips(Vec<Duration>);

/// Number of times that a request passes the scheduler for each time that a bare PING does: in
/// addition to Redis and the proxy it waits for a client, Envoy, and the pod, in both directions.
const HOPS: u64 = 4;

// === impl Probe ===

impl Probe {
    pub(crate) fn start(node: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let asking = thread::spawn(move || {
            let mut stream = TcpStream::connect(node).expect("the proxy takes a connection");
            stream.set_nodelay(true).expect("a socket without delay");
            let (mut trips, mut reply) = (Vec::new(), [0; b"+PONG\r\n".len()]);
            while !over.load(Ordering::Relaxed) {
                let asked = now();
                stream.write_all(b"PING\r\n").expect("the node lives");
                stream.read_exact(&mut reply).expect("the node answers");
                trips.push(asked.elapsed());
            }
            trips
        });
        Self { is_over, asking }
    }

    pub(crate) fn stop(self) -> Trips {
        self.is_over.store(true, Ordering::Relaxed);
        let mut trips = self.asking.join().expect("the probe does not panic");
        assert!(!trips.is_empty(), "the probe has measured nothing");
        trips.sort_unstable();
        Trips(trips)
    }
}

// === impl Trips ===

impl Trips {
    /// Number of requests, of `requests` that may wait for Redis up to `limit`, that are late
    /// because of the machine: none if no PING was late.
    pub(crate) fn late_of(&self, requests: u64, limit: Duration) -> u64 {
        let late = self.0.iter().filter(|trip| **trip > limit).count() as u64;
        (HOPS * late * requests).div_ceil(self.0.len() as u64)
    }
}

impl fmt::Display for Trips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most] = [50, 99].map(|percent| self.0[self.0.len() * percent / 100]);
        write!(f, "a bare PING takes {half:.1?} (p99 {most:.1?}, {} of them)", self.0.len())
    }
}
