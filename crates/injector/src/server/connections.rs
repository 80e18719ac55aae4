//! The open connections, in the order of their last use: when there are too many, a new one closes
//! the one that was idle for longest, of the client that has the most. So a client that opens many
//! closes its own, and not those of the API server.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// All open connections.
#[derive(Debug)]
pub(super) struct Connections {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The next place in the order.
    next: u64,
    /// By the place in the order of use.
    open: BTreeMap<u64, Open>,
}

/// A connection that has its place.
#[derive(Debug)]
struct Open {
    client: IpAddr,
    unwanted: watch::Sender<bool>,
}

/// One connection, whose place is free once this is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    place: Mutex<u64>,
    is_unwanted: watch::Receiver<bool>,
    has_called: watch::Sender<bool>,
}

// === impl Connections ===

impl Connections {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default() })
    }

    /// Takes a place for a connection from this address; if none is free, that of another one.
    pub(super) fn open(self: &Arc<Self>, from: IpAddr) -> Arc<Connection> {
        let (unwanted, is_unwanted) = watch::channel(false);
        let mut state = self.state.lock();
        while state.open.len() >= self.max {
            let Some(oldest) = state.take_unwanted() else { break };
            // The connection may be ending by itself.
            let _ = oldest.unwanted.send(true);
        }
        let place = Mutex::new(state.insert(Open { client: client(from), unwanted }));
        drop(state);
        let all = Arc::clone(self);
        Arc::new(Connection { all, place, is_unwanted, has_called: watch::Sender::new(false) })
    }
}

// === impl State ===

impl State {
    fn insert(&mut self, open: Open) -> u64 {
        let place = self.next;
        self.next += 1;
        self.open.insert(place, open);
        place
    }

    /// Takes the connection whose last use is the oldest, of the clients that have the most.
    fn take_unwanted(&mut self) -> Option<Open> {
        let mut numbers = HashMap::<IpAddr, usize>::new();
        self.open.values().for_each(|it| *numbers.entry(it.client).or_default() += 1);
        let most = numbers.values().max().copied()?;
        let mut all = self.open.iter();
        let place = *all.find(|(_, it)| numbers.get(&it.client) == Some(&most))?.0;
        self.open.remove(&place)
    }
}

// === impl Connection ===

impl Connection {
    /// Notes that a call has arrived.
    pub(super) fn used(&self) {
        let mut state = self.all.state.lock();
        let mut place = self.place.lock();
        if let Some(open) = state.open.remove(&place) {
            *place = state.insert(open);
        }
        self.has_called.send_replace(true);
    }

    /// Whether a call has arrived.
    pub(super) fn has_called(&self) -> bool {
        *self.has_called.borrow()
    }

    /// Resolves once the place belongs to another connection.
    pub(super) async fn lost(&self) {
        // An error means the same: the place was given up.
        let _ = self.is_unwanted.clone().wait_for(|is_unwanted| *is_unwanted).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        state.open.remove(self.place.get_mut());
    }
}

/// The client of an address: of IPv6 the network, because a host may use any address in it.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_client_with_many_connections_closes_its_own() {
        let all = Connections::new(4);
        let api_server = all.open(from(1));
        let of_client: Vec<_> = (0..40).map(|_| all.open(from(2))).collect();
        let is_lost = |one: &Connection| *one.is_unwanted.borrow();
        assert!(!is_lost(&api_server), "its last use is the oldest");
        assert_eq!(of_client.iter().filter(|it| !is_lost(it)).count(), 3);
        let v6 = |last| IpAddr::from([0x2001, 0xdb8, 1, 2, 3, 4, 5, last]);
        assert_eq!(client(v6(1)), client(v6(2)), "a host has a whole network");
    }

    #[test]
    fn the_connection_that_was_used_last_keeps_its_place() {
        let all = Connections::new(2);
        let (first, second) = (all.open(from(1)), all.open(from(1)));
        first.used();
        let third = all.open(from(1));
        let is_lost = |one: &Connection| *one.is_unwanted.borrow();
        assert_eq!((is_lost(&first), is_lost(&second), is_lost(&third)), (false, true, false));
        drop(third);
        let _fourth = all.open(from(1));
        assert!(!is_lost(&first), "a place was free");
        let (_fifth, _sixth) = (all.open(from(1)), all.open(from(1)));
        assert!(is_lost(&first));
        first.used();
        assert!(is_lost(&first), "it is not taken back");
    }
}
