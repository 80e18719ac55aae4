//! TCP ports that no other process takes between the moment a test picks one and the moment its
//! child listens on it.
//!
//! The ports lie below the range that the kernel assigns to outgoing connections. Test processes
//! divide them in blocks: a process owns a block while it holds a socket with an abstract name,
//! which the kernel frees when the process ends, however it ends.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use tokio::net::TcpSocket;

const FIRST_PORT: u16 = 20_000;
const BLOCK_PORTS: u16 = 100;
const BLOCKS: u16 = 120;

/// First port of the kernel's default range of ephemeral ports.
const EPHEMERAL_MIN: u16 = 32_768;
const _: () = assert!(FIRST_PORT + BLOCKS * BLOCK_PORTS <= EPHEMERAL_MIN);

/// The ports of this process: those of the blocks that it owns.
struct Ports {
    /// Held for as long as the process runs, one for each block.
    locks: Vec<UnixListener>,
    blocks: Vec<u16>,
    /// Number of ports of the last block that were returned.
    used: u16,
    /// The next port once no block is left to own: a position among the ports of all own blocks.
    reused: u16,
}

static PORTS: Mutex<Ports> =
    Mutex::new(Ports { locks: Vec::new(), blocks: Vec::new(), used: BLOCK_PORTS, reused: 0 });

/// A port without a listener on any address, which this process has not used yet. The first ports
/// are returned again when all have been used.
pub(crate) fn free_port() -> u16 {
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    let tries = 2 * BLOCKS * BLOCK_PORTS;
    (0..tries)
        .map(|_| ports.next())
        .find(|&port| bind(port).is_ok())
        .expect("a free port between 20000 and 31999")
}

/// Fails if a socket listens on the port. Binds without listening: a child that another thread
/// starts at this moment inherits the socket until it executes its program, and a socket that
/// listened would keep the port from the caller for as long.
fn bind(port: u16) -> io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(std::net::SocketAddr::from(([0, 0, 0, 0], port)))
}

// === impl Ports ===

impl Ports {
    fn next(&mut self) -> u16 {
        if self.used == BLOCK_PORTS && !self.own_another_block() {
            return self.next_used_one();
        }
        let block = *self.blocks.last().expect("a block is owned");
        self.used += 1;
        FIRST_PORT + block * BLOCK_PORTS + self.used - 1
    }

    fn own_another_block(&mut self) -> bool {
        // Processes start their search at different blocks.
        let start = u16::try_from(std::process::id() % u32::from(BLOCKS)).expect("below BLOCKS");
        let found = (0..BLOCKS).map(|step| (start + step) % BLOCKS).find_map(|block| {
            let name = SocketAddr::from_abstract_name(format!("ratelease-test-ports-{block}"));
            let lock = UnixListener::bind_addr(&name.expect("a short name")).ok()?;
            Some((block, lock))
        });
        let Some((block, lock)) = found else { return false };
        self.locks.push(lock);
        self.blocks.push(block);
        self.used = 0;
        true
    }

    fn next_used_one(&mut self) -> u16 {
        assert!(!self.blocks.is_empty(), "other test processes own every port of the tests");
        let at = usize::from(self.reused / BLOCK_PORTS) % self.blocks.len();
        let port = FIRST_PORT + self.blocks[at] * BLOCK_PORTS + self.reused % BLOCK_PORTS;
        self.reused = (self.reused + 1) % (BLOCKS * BLOCK_PORTS);
        port
    }
}
