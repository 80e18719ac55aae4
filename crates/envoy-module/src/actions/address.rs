//! The client's address: its text without the port, masked, and within ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use envoy_types::pb::envoy::config::route::v3::rate_limit::action::MaskedRemoteAddress;
use envoy_types::pb::envoy::r#type::matcher::v3 as pb;
use envoy_types::pb::xds::core::v3::CidrRange;

use super::Stream;
use super::fault::{Faults, Place, each};

/// Bits of an IPv4 address.
const V4_BITS: u8 = 32;

/// Bits of an IPv6 address.
const V6_BITS: u8 = 128;

/// How many leading bits of an address are kept.
#[derive(Debug, Clone, Copy)]
pub struct MaskLengths {
    v4: u8,
    v6: u8,
}

/// Whether an address lies in one of some ranges.
#[derive(Debug)]
pub struct AddressMatcher {
    /// The first address of each range, and how many of its bits count.
    ranges: Vec<(IpAddr, u8)>,
    invert_match: bool,
}

/// The client's address without its port, as Envoy writes it; none for a pipe.
pub fn without_port(stream: &impl Stream) -> Option<&[u8]> {
    let address = stream.source_address()?;
    let host = &address[..address.iter().rposition(|byte| *byte == b':')?];
    let host = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host);
    parse(host).map(|_| host)
}

fn parse(host: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(host).ok()?.parse().ok()
}

fn address(stream: &impl Stream) -> Option<IpAddr> {
    parse(without_port(stream)?)
}

/// The address with only its first `bits` bits.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(u32::from(V4_BITS.saturating_sub(bits))).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(u32::from(V6_BITS.saturating_sub(bits))).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

/// The text of an address as `inet_ntop` of glibc writes it: it shows the last 32 bits as an IPv4
/// address also if all bits before them are zero.
fn text(address: IpAddr) -> String {
    match address {
        IpAddr::V6(v6) if v6.to_bits() >> 32 == 0 && v6.to_bits() > 0xffff => {
            format!("::{}", Ipv4Addr::from_bits(u32::try_from(v6.to_bits()).unwrap_or_default()))
        }
        address => address.to_string(),
    }
}

// === impl MaskLengths ===

impl MaskLengths {
    pub fn compile(
        message: &MaskedRemoteAddress,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let mut length = |given: Option<u32>, field, max: u8| match given.map(u8::try_from) {
            None => Some(max),
            Some(Ok(bits)) if bits <= max => Some(bits),
            Some(_) => {
                let given = given.unwrap_or_default();
                faults.add(place.field(field), format!("{given}; expected 0 to {max}"));
                None
            }
        };
        let v4 = message.v4_prefix_mask_len.map(|it| it.value);
        let v6 = message.v6_prefix_mask_len.map(|it| it.value);
        let v4 = length(v4, "v4_prefix_mask_len", V4_BITS);
        let v6 = length(v6, "v6_prefix_mask_len", V6_BITS);
        Some(Self { v4: v4?, v6: v6? })
    }

    /// The client's address masked, with the length of the mask: `10.0.0.0/8`.
    pub fn mask(self, stream: &impl Stream) -> Option<String> {
        let address = address(stream)?;
        let bits = if address.is_ipv4() { self.v4 } else { self.v6 };
        Some(format!("{}/{bits}", text(masked(address, bits))))
    }
}

// === impl AddressMatcher ===

impl AddressMatcher {
    pub fn compile(
        message: &pb::AddressMatcher,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let ranges = each(&message.ranges, &place.field("ranges"), faults, range_of)?;
        Some(Self { ranges, invert_match: message.invert_match })
    }

    /// A stream without an address matches neither way.
    pub fn matches(&self, stream: &impl Stream) -> bool {
        let Some(address) = address(stream) else { return false };
        let lies_in = |(first, bits): &(IpAddr, u8)| {
            first.is_ipv4() == address.is_ipv4() && masked(address, *bits) == *first
        };
        self.ranges.iter().any(lies_in) != self.invert_match
    }
}

fn range_of(range: &CidrRange, place: &Place<'_>, faults: &mut Faults) -> Option<(IpAddr, u8)> {
    let Some(first) = parse(range.address_prefix.as_bytes()) else {
        let text = "no address; expected one such as 10.0.0.0 or 2001:db8::";
        faults.add(place.field("address_prefix"), text);
        return None;
    };
    let max = if first.is_ipv4() { V4_BITS } else { V6_BITS };
    let length = range.prefix_len.map_or(0, |it| it.value);
    let bits = u8::try_from(length).ok().filter(|bits| *bits <= max);
    if bits.is_none() {
        faults.add(place.field("prefix_len"), format!("{length}; expected 0 to {max}"));
    }
    Some((masked(first, bits?), bits?))
}
