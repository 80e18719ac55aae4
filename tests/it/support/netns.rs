//! A network namespace with links to the machine that a test can cut and restore.

use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// A network namespace with two links: one for requests and one for Redis, so that the latter can
/// fail alone. Removed when dropped.
pub(crate) struct Namespace {
    name: String,
    /// Third byte of its addresses.
    net: u8,
}

// === impl Namespace ===

impl Namespace {
    /// Creates a namespace; returns the reason if this machine cannot (it takes root, and `ip`).
    pub(crate) fn make() -> Result<Self, String> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = std::process::id();
        // Test binaries that run at the same time differ in their ids, and so most likely here too.
        let net = u8::try_from((id.wrapping_mul(31) + u32::from(number)) % 250).unwrap_or(0);
        let namespace = Self { name: format!("ratelease-{id}-{number}"), net };
        ip(&["netns", "add", &namespace.name])?;
        namespace.link("a", 78)?;
        namespace.link("b", 79)?;
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn link(&self, way: &str, second: u8) -> Result<(), String> {
        let (outside, inside) = (self.outside(way), format!("rl{way}"));
        let Self { name, net } = self;
        let addr = |last: u8| format!("10.{second}.{net}.{last}/24");
        ip(&["link", "add", &outside, "type", "veth", "peer", "name", &inside, "netns", name])?;
        ip(&["addr", "add", &addr(1), "dev", &outside])?;
        ip(&["link", "set", &outside, "up"])?;
        ip(&["-n", name, "addr", "add", &addr(2), "dev", &inside])?;
        ip(&["-n", name, "link", "set", &inside, "up"])
    }

    /// Name of the machine's end of a link; at most 15 bytes.
    fn outside(&self, way: &str) -> String {
        format!("rl{way}{}", self.name.trim_start_matches("ratelease-").replace('-', "x"))
    }

    /// The namespace's own address, for requests.
    pub(crate) fn inside(&self) -> [u8; 4] {
        [10, 78, self.net, 2]
    }

    /// The machine's address on the link for Redis.
    pub(crate) fn redis(&self) -> [u8; 4] {
        [10, 79, self.net, 1]
    }

    /// Cuts or restores the link for Redis: while it is cut, packets are lost silently.
    pub(crate) fn cut(&self, is_cut: bool) {
        // The inner end: the outer one keeps its address, on which servers listen.
        let state = if is_cut { "down" } else { "up" };
        let _ = ip(&["-n", &self.name, "link", "set", "rlb", state]);
    }

    /// The words of a command that runs what follows in the namespace.
    pub(crate) fn words(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The kernel removes the links with the namespace, but only after its last socket: hence
        // both.
        let _ = ip(&["link", "del", &self.outside("a")]);
        let _ = ip(&["link", "del", &self.outside("b")]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    let reported = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    done.status.success().then_some(()).ok_or(format!("ip {}: {reported}", words.join(" ")))
}
