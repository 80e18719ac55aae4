//! Addresses as Redis writes them.

use crate::store::redis::settings::{Address, parse_host};

impl Address {
    /// Parses `host:port` as Redis writes it in redirects, where an IPv6 address has no brackets.
    pub(super) fn parse_redirect(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Self::of_node(host, port.parse().ok()?)
    }

    /// A node by the host that a server names: a name, an IP address, or nothing. `None` if the
    /// host is not one of these, since it is displayed and looked up.
    pub(super) fn of_node(host: &str, port: u16) -> Option<Self> {
        let host = if host.is_empty() { String::new() } else { parse_host(host)? };
        Some(Address::Tcp(host, port))
    }

    /// Returns this address, with the host of `other` if this one has none: a node that does not
    /// know the name by which clients reach it omits its host.
    pub(super) fn or_host_of(self, other: &Address) -> Self {
        match (self, other) {
            (Address::Tcp(host, port), Address::Tcp(other, _)) if host.is_empty() => {
                Address::Tcp(other.clone(), port)
            }
            (address, _) => address,
        }
    }

    /// Whether both addresses are ports of the same host.
    pub(super) fn is_on_the_host_of(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Tcp(host, _), Address::Tcp(other, _)) => host == other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_names_its_node() {
        let node = Address::parse_redirect("10.0.0.7:7001").unwrap();
        assert_eq!(node, Address::Tcp("10.0.0.7".into(), 7001));
        assert_eq!(Address::parse_redirect("::1:7001"), Some(Address::Tcp("::1".into(), 7001)));
        for text in ["nonsense", "a b:1", "\u{1b}[31m:1", &format!("{}:1", "a".repeat(300))] {
            assert_eq!(Address::parse_redirect(text), None, "{text:?}");
        }
        let here = Address::parse_redirect(":7002").unwrap().or_host_of(&node);
        assert_eq!(here, Address::Tcp("10.0.0.7".into(), 7002));
    }
}
