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
    /// because of the machine: none if it delayed no PING by half of what the limit leaves.
    pub(crate) fn late_of(&self, requests: u64, limit: Duration) -> u64 {
        let trips = self.0.len() as u64;
        let late = self.0.iter().filter(|trip| **trip > limit).count() as u64;
        let stalled = (HOPS * late * requests).div_ceil(trips);
        stalled.max((self.late_pairs(limit) * requests).div_ceil(trips * trips))
    }

    /// Number of pairs of trips whose delays, together, make a trip late: one delay stands for the
    /// way to Redis, the other for the client, Envoy and the pod. Many small delays are found by
    /// this, few long ones by the count of late trips.
    fn late_pairs(&self, limit: Duration) -> u64 {
        let usual = self.0[self.0.len() / 2];
        let late_with = |one: &Duration| {
            let rest = (limit + usual).saturating_sub(*one);
            self.0.len() - self.0.partition_point(|other| *other <= rest)
        };
        self.0.iter().map(late_with).sum::<usize>() as u64
    }
}

impl fmt::Display for Trips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [half, most] = [50, 99].map(|percent| self.0[self.0.len() * percent / 100]);
        write!(f, "a bare PING takes {half:.1?} (p99 {most:.1?}, {} of them)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trips of these milliseconds.
    fn trips(mut all: Vec<u64>) -> Trips {
        all.sort_unstable();
        Trips(all.into_iter().map(Duration::from_millis).collect())
    }

    #[test]
    fn only_what_the_machine_delays_is_excused() {
        let limit = Duration::from_millis(15);
        let late_of = |all| trips(all).late_of(100, limit);
        assert_eq!(late_of(vec![10; 100]), 0);
        // Delays of half of what is left: two of them are not above the limit.
        assert_eq!(late_of([vec![10; 80], vec![12; 20]].concat()), 0);
        // A fifth of a fifth.
        assert_eq!(late_of([vec![10; 80], vec![13; 20]].concat()), 4);
        // One late trip of a hundred, for each hop.
        assert_eq!(late_of([vec![10; 99], vec![50; 1]].concat()), HOPS);
    }
}
