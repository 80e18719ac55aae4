//! **Connections**: how many are open, and how many of them are of one client, so that no client
//! keeps others out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use ratelease_listener::Peer;

/// The open connections of a listener, by client. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: usize,
    of_peer_max: usize,
    peers: Mutex<HashMap<Peer, usize>>,
}

/// A place among the connections, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    all: Connections,
    peer: Peer,
}

// === impl Connections ===

impl Connections {
    /// At most so many connections, and so many of one client.
    pub(crate) fn new(max: usize, of_peer_max: usize) -> Self {
        Self(Arc::new(Shared { max, of_peer_max, peers: Mutex::default() }))
    }

    /// Takes a place; `None` if there are too many connections, or too many of this client.
    pub(crate) fn admit(&self, address: SocketAddr) -> Option<ConnectionPlace> {
        let peer = Peer::of(Some(address.ip()));
        let mut peers = self.0.peers.lock();
        let all: usize = peers.values().sum();
        let own = peers.get(&peer).copied().unwrap_or_default();
        if all >= self.0.max || own >= self.0.of_peer_max {
            return None;
        }
        peers.insert(peer, own + 1);
        drop(peers);
        Some(ConnectionPlace { all: self.clone(), peer })
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut peers = self.all.0.peers.lock();
        if let Some(own) = peers.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_connections_to_others() {
        let (all, at) = (Connections::new(9, 4), |text: &str| text.parse().unwrap());
        let mut held: Vec<_> =
            (0..4).map(|port| all.admit(SocketAddr::new(at("10.0.0.1"), port))).collect();
        assert!(held.iter().all(Option::is_some));
        let [first, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| SocketAddr::new(at(ip), 1));
        assert!(all.admit(first).is_none() && all.admit(other).is_some());
        held.pop();
        assert!(all.admit(first).is_some());
        held.extend((0..6).map(|_| all.admit(other)));
        assert_eq!(held.iter().flatten().count(), 7, "four of the other");
        drop(held);
        assert!(all.0.peers.lock().is_empty(), "clients without connections are forgotten");
    }

    #[test]
    fn all_clients_together_have_a_maximum() {
        let all = Connections::new(3, 2);
        let held: Vec<_> =
            (1..=4).map(|last| all.admit(SocketAddr::from(([10, 0, 0, last], 1)))).collect();
        assert_eq!(held.iter().flatten().count(), 3);
    }
}
