//! A stream of Envoy as the actions read it.

use ratelease_envoy_abi::{Attribute, Headers, Metadata, Module, Stream};

use crate::actions::{self, Count, MetadataSource};

impl<M: Module> actions::Stream for Stream<'_, M> {
    fn request_header(&self, name: &str, index: usize) -> Option<&[u8]> {
        self.header(Headers::Request, name.as_bytes(), index)
    }

    fn request_headers(&self, name: &str) -> Vec<&[u8]> {
        self.headers(Headers::Request, name.as_bytes())
    }

    fn response_header(&self, name: &str) -> Option<&[u8]> {
        self.header(Headers::Response, name.as_bytes(), 0)
    }

    fn source_address(&self) -> Option<&[u8]> {
        self.attribute(Attribute::SourceAddress)
    }

    fn destination_cluster(&self) -> Option<&[u8]> {
        self.cluster()
    }

    fn metadata_string(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<&[u8]> {
        self.metadata_text(of(source), namespace, key, index.map(|index| index as usize))
    }

    fn metadata_number(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<f64> {
        let index = index.map(|index| index as usize);
        Stream::metadata_number(self, of(source), namespace, key, index)
    }

    fn count(&self, count: Count) -> Option<u64> {
        self.number(match count {
            Count::BytesReceived => Attribute::RequestSize,
            Count::BytesSent => Attribute::ResponseSize,
            Count::ResponseCode => Attribute::ResponseCode,
        })
    }
}

fn of(source: MetadataSource) -> Metadata {
    match source {
        MetadataSource::Dynamic => Metadata::Dynamic,
        MetadataSource::Route => Metadata::Route,
        MetadataSource::Cluster => Metadata::Cluster,
        MetadataSource::Locality => Metadata::Locality,
    }
}
