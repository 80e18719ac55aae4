//! Reads `metadata`: any map, as JSON that a protobuf Struct can hold.

use serde_json::{Map, Number, Value};

use crate::fault::{Place, excerpt};
use crate::memory::boxed;
use crate::node::{Kind, Meaning, Node};
use crate::reader::{Entry, Parsed, Reader};

/// Maximum depth of nested maps and lists. Each level is about three protobuf messages deep, and
/// protobuf readers, Envoy's included, stop at 100.
const METADATA_DEPTH_MAX: usize = 24;
/// Maximum size of one descriptor's metadata: its text, plus 32 bytes for each value. It is sent
/// with every request that passes.
const METADATA_BYTES_MAX: usize = 64 << 10;

/// Reads `node` into the map that is already there, so that a descriptor's own map adds to one
/// merged in by `<<`.
pub(crate) fn read<'d>(
    reader: &mut Reader<'d, '_>,
    node: &'d Node<'d>,
    metadata: &mut Parsed<Map<String, Value>>,
) {
    let mut bounds = Bounds { bytes: METADATA_BYTES_MAX, levels: METADATA_DEPTH_MAX };
    match &node.kind {
        Kind::Scalar(_, Meaning::Null) => *metadata = Parsed::Absent,
        Kind::Map(pairs) => {
            let entries = reader.entries(pairs);
            let mut map = match std::mem::take(metadata) {
                Parsed::As(_, map) => map,
                _ => Map::new(),
            };
            *metadata = match bounds.fill(reader, entries, &mut map) {
                Ok(()) => Parsed::As(node.place, map),
                Err((place, why)) => {
                    reader.fault(place, format!("error parsing metadata: {why}"));
                    Parsed::Faulty
                }
            };
        }
        _ => {
            reader.refuse_type(node, "'metadata'", "a map");
            *metadata = Parsed::Faulty;
        }
    }
}

/// Bytes of a leaf of a map, which has room for 11 entries and mostly has 5 of them.
const LEAF_BYTES: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 112;

/// The memory that a map takes.
pub(crate) fn bytes(map: &Map<String, Value>) -> usize {
    let entries = map.iter().map(|(name, value)| boxed(name.len()) + bytes_below(value));
    let leaves = if map.is_empty() { 0 } else { 1 + map.len() / 5 };
    leaves * LEAF_BYTES + entries.sum::<usize>()
}

fn bytes_below(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => boxed(text.len()),
        Value::Array(items) => {
            boxed(items.capacity() * size_of::<Value>())
                + items.iter().map(bytes_below).sum::<usize>()
        }
        Value::Object(map) => bytes(map),
    }
}

/// The remaining room for one descriptor's metadata.
struct Bounds {
    bytes: usize,
    levels: usize,
}

type Refusal = (Place, String);

// === impl Bounds ===

impl Bounds {
    fn fill<'d>(
        &mut self,
        reader: &mut Reader<'d, '_>,
        entries: Vec<Entry<'d>>,
        map: &mut Map<String, Value>,
    ) -> Result<(), Refusal> {
        let mut seen: std::collections::HashMap<&str, Entry<'d>> = std::collections::HashMap::new();
        for entry in entries {
            let Kind::Scalar(name, _) = &entry.key.kind else {
                let why = format!("a key must be text, found {}", entry.key.describe());
                return Err((entry.key.place, why));
            };
            self.spend(entry.key)?;
            if let Some(earlier) = seen.insert(name, entry) {
                reader.warn_of_duplicate(name, earlier, entry);
            }
            let value = self.value(reader, entry.value)?;
            map.insert(name.to_string(), value);
        }
        Ok(())
    }

    fn value<'d>(
        &mut self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
    ) -> Result<Value, Refusal> {
        self.spend(node)?;
        Ok(match &node.kind {
            Kind::Scalar(text, meaning) => {
                scalar(text, *meaning).map_err(|why| (node.place, why))?
            }
            Kind::List(ids) => {
                let items = reader.items(ids);
                self.inside(node, |bounds| {
                    items.into_iter().map(|item| bounds.value(reader, item)).collect()
                })
                .map(Value::Array)?
            }
            Kind::Map(pairs) => {
                let entries = reader.entries(pairs);
                let mut map = Map::new();
                self.inside(node, |bounds| bounds.fill(reader, entries, &mut map))?;
                Value::Object(map)
            }
            Kind::Alias(_) => Value::Null,
        })
    }

    fn spend(&mut self, node: &Node<'_>) -> Result<(), Refusal> {
        let left = self.bytes.checked_sub(node.cost());
        let why = || format!("larger than {} KiB; shorten it", METADATA_BYTES_MAX >> 10);
        self.bytes = left.ok_or_else(|| (node.place, why()))?;
        Ok(())
    }

    fn inside<T>(
        &mut self,
        node: &Node<'_>,
        read: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let why = || format!("nested deeper than {METADATA_DEPTH_MAX} levels");
        self.levels = self.levels.checked_sub(1).ok_or_else(|| (node.place, why()))?;
        let read = read(self);
        self.levels += 1;
        read
    }
}

/// The value of a scalar; an error if JSON has no such number.
pub(crate) fn scalar(text: &str, meaning: Meaning) -> Result<Value, String> {
    Ok(match meaning {
        Meaning::Null => Value::Null,
        Meaning::Bool(value) => Value::Bool(value),
        Meaning::Int(number) => Value::Number(number.into()),
        Meaning::Big(number) => Value::Number(number.into()),
        Meaning::Float(number) => Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| format!("{} is no number that JSON has", excerpt(text)))?,
        Meaning::Text | Meaning::Merge => Value::String(text.to_owned()),
    })
}
