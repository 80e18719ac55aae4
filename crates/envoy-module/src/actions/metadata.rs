//! Where a value lies in metadata, as far as a module can reach: a namespace, a key, and an item of
//! a list.

use envoy_types::pb::envoy::r#type::metadata::v3 as pb;

use super::fault::{Faults, Place, expect_text};
use super::{MetadataSource, Stream};

use pb::metadata_key::path_segment::Segment;

/// The place of a value.
#[derive(Debug)]
pub(super) struct MetadataKey {
    source: MetadataSource,
    namespace: String,
    key: String,
    index: Option<u32>,
}

impl MetadataKey {
    /// Of a namespace and a key of the dynamic metadata.
    pub(super) const fn dynamic(namespace: String, key: String) -> Self {
        Self { source: MetadataSource::Dynamic, namespace, key, index: None }
    }

    pub(super) fn compile(
        message: &pb::MetadataKey,
        source: MetadataSource,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let namespace = expect_text(&message.key, place, "key", faults);
        let segments: Vec<_> = message.path.iter().map(|it| it.segment.as_ref()).collect();
        let (key, index) = match segments[..] {
            [Some(Segment::Key(key))] if !key.is_empty() => (key, None),
            [Some(Segment::Key(key)), Some(Segment::Index(index))] if !key.is_empty() => {
                (key, Some(*index))
            }
            _ => {
                let text = "a module of Envoy reaches a key of the namespace, and an item of a \
                            list there; expected [{key: …}] or [{key: …}, {index: …}]";
                faults.add(place.field("path"), text);
                return None;
            }
        };
        Some(Self { source, namespace: namespace?, key: key.clone(), index })
    }

    /// The value if it is a string.
    pub(super) fn string<'s>(&self, stream: &'s impl Stream) -> Option<&'s [u8]> {
        stream.metadata_string(self.source, &self.namespace, &self.key, self.index)
    }

    /// The value if it is a number.
    pub(super) fn number(&self, stream: &impl Stream) -> Option<f64> {
        stream.metadata_number(self.source, &self.namespace, &self.key, self.index)
    }
}
