//! The map of which master owns which slot, as reported by one node of the cluster.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::store::SHARDS_MAX;
use crate::store::redis::settings::Address;

/// Slots of a cluster; the specification fixes the number.
pub const SLOTS: usize = 16_384;

/// Owners of the slots.
#[derive(Debug, PartialEq, Eq)]
pub struct Slots {
    /// For each slot the position of its owner in `masters`; [`NOBODY`] if it has none.
    owners: Box<[u16]>,
    /// `None` in the place of a master that is gone.
    masters: Vec<Option<Address>>,
}

const NOBODY: u16 = u16::MAX;

/// Maximum number of slots in all ranges of a map. Each slot has one owner, so that there are
/// [`SLOTS`] at most; a map of thousands of whole ranges would take long to read.
const NAMED_MAX: usize = 4 * SLOTS;

/// The largest number of masters in one cluster: Redis's specification recommends at most about a
/// thousand nodes, and it is the number of the lease client's queues that one store may have. Each
/// master takes a connection.
const MASTERS_MAX: usize = 1024;
const _: () = assert!(MASTERS_MAX * 2 <= SHARDS_MAX);

/// The slot of a key: the CRC-16 (XMODEM) of its hash tag, which is the part in the first braces,
/// if there is one.
pub fn slot_of(key: &[u8]) -> usize {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')? + 1;
        let rest = key.get(open..)?;
        let tag = rest.get(..rest.iter().position(|byte| *byte == b'}')?)?;
        (!tag.is_empty()).then_some(tag)
    };
    usize::from(crc16(tag().unwrap_or(key))) % SLOTS
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let [high, low] = crc.to_be_bytes();
        u16::from_be_bytes([low, 0]) ^ CRC16_OF_BYTE[usize::from(high ^ byte)]
    })
}

/// The checksum of each single byte. An ask computes two checksums, each of some twenty bytes.
static CRC16_OF_BYTE: [u16; 256] = {
    const POLYNOMIAL: u16 = 0x1021;
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

// === impl Slots ===

impl Slots {
    /// Reads the reply to CLUSTER SLOTS from the node at `from`. Masters that `before` contains
    /// keep their position, and new ones take the positions of masters that are gone, so that a
    /// shard keeps its number across a failover.
    pub fn parse(reply: &Value, from: &Address, before: Option<&Slots>) -> Result<Self, String> {
        let Value::Array(ranges) = reply else { return Err("no list of slots".into()) };
        let ranges: Vec<_> = ranges.iter().filter_map(|range| read_range(range, from)).collect();
        if ranges.is_empty() {
            return Err("no node of the cluster owns a slot yet".into());
        }
        let named = ranges.iter().map(|(first, last, _)| last - first + 1).sum::<usize>();
        if named > NAMED_MAX {
            return Err(format!("ranges of {named} slots in all, where a cluster has {SLOTS}"));
        }
        let named: BTreeSet<&Address> = ranges.iter().map(|(_, _, master)| master).collect();
        if named.len() > MASTERS_MAX {
            return Err(format!("more than {MASTERS_MAX} masters, which Redis does not support"));
        }
        let masters = arrange(named.into_iter().collect(), before);
        let positions: HashMap<_, _> = masters
            .iter()
            .zip(0_u16..)
            .filter_map(|(master, at)| Some((master.as_ref()?, at)))
            .collect();
        let mut owners = vec![NOBODY; SLOTS];
        for (first, last, master) in &ranges {
            let Some(&owner) = positions.get(master) else { continue };
            if let Some(slots) = owners.get_mut(*first..=*last) {
                slots.fill(owner);
            }
        }
        Ok(Self { owners: owners.into(), masters })
    }

    /// The position of the master that owns `slot`.
    pub fn owner(&self, slot: usize) -> Option<usize> {
        self.owners.get(slot).filter(|owner| **owner != NOBODY).map(|owner| usize::from(*owner))
    }

    /// The masters by position.
    pub fn masters(&self) -> &[Option<Address>] {
        &self.masters
    }
}

/// The masters in use, each at its previous position if it had one.
fn arrange(mut named: Vec<&Address>, before: Option<&Slots>) -> Vec<Option<Address>> {
    let mut places = before.map_or_else(Vec::new, |before| before.masters.clone());
    for place in &mut places {
        match place.as_ref().and_then(|old| named.iter().position(|new| *new == old)) {
            Some(at) => drop(named.remove(at)),
            None => *place = None,
        }
    }
    for new in named {
        match places.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(new.clone()),
            None => places.push(Some(new.clone())),
        }
    }
    places
}

/// Reads `[first, last, [host, port, …], replicas…]`.
fn read_range(range: &Value, from: &Address) -> Option<(usize, usize, Address)> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        // The node does not know its own name: use the address that we asked.
        Value::Nil => "",
        _ => return None,
    };
    let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
    if first > last || last >= SLOTS {
        return None;
    }
    // A node writes `?` for a host that it does not know.
    let master = Address::of_node(host, u16::try_from(*port).ok()?)?.or_host_of(from);
    Some((first, last, master))
}

#[cfg(test)]
mod tests;
