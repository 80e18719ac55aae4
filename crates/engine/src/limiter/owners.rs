//! The Envoys that own what their requests have started: by their connections, and by the name that
//! they have in their access logs.

use std::net::IpAddr;

use super::Limiter;

/// The Envoy that a call came from, as far as its connections tell: a number of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Owner(u32);

/// An Envoy that sends its access log, by the `node.id` of its bootstrap: a number of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Node(u32);

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A TCP connection from this address, whatever its port.
    Address(IpAddr),
    /// A Unix socket.
    Socket,
}

/// Which end closed a connection or a stream first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// The client, which may be gone.
    Client,
    /// This process: the client may be there, and come back when it needs to.
    Server,
}

/// Names a start, so that it can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StartId(u64, u32);

impl Owner {
    /// Nobody is known to have asked: what starts lives until its end, or for its time.
    pub const UNKNOWN: Self = Self(0);
}

impl Limiter {
    /// Notes that a connection from `origin` is open; returns who owns what its calls start.
    pub fn connect(&self, origin: Origin) -> Owner {
        let _ = origin;
        Owner::UNKNOWN
    }

    /// Notes that a connection of `owner` is closed.
    pub fn disconnect(&self, owner: Owner, by: ClosedBy) {
        let _ = (owner, by);
    }

    /// Notes that the Envoy of this `node.id` has a stream of its access log open.
    pub fn connect_node(&self, id: &str) -> Node {
        let _ = id;
        Node(0)
    }

    /// Notes that a stream of the access log of `node` is closed.
    pub fn disconnect_node(&self, node: Node, by: ClosedBy) {
        let _ = (node, by);
    }

    /// Ends the request of this id, which has cost `cost` hits; `None` if that is not known. Returns
    /// whether a start of it is open. The end of an unknown one is remembered for some seconds, since
    /// it may come before its start.
    pub fn end_start(&self, id: &str, cost: Option<u64>, node: Node) -> bool {
        let _ = (id, cost, node);
        false
    }

    /// Notes that the request of this id runs. Returns whether a start of it is open.
    pub fn note_alive(&self, id: &str, node: Node) -> bool {
        let _ = (id, node);
        false
    }

    /// Undoes a start whose answer has not reached its Envoy: all that it holds goes back.
    pub fn undo_start(&self, start: StartId) {
        let _ = start;
    }
}
