//! Configurations of the module in Envoy, and streams of any bytes: faults with their places, or
//! descriptors within their bounds.

use std::time::Instant;

use envoy_types::pb::envoy::extensions::filters::http::ratelimit::v3::RateLimitPerRoute;
use prost::Message;
use ratelease::actions::{Actions, Count, Faults, MetadataSource, Phase, STAGE_MAX, Stream};

use crate::run;

/// A stream whose every value is a part of the input.
struct Hostile<'i>(&'i [u8]);

impl Hostile<'_> {
    /// A part that depends on `of`, or none.
    fn part(&self, of: &[u8]) -> Option<&[u8]> {
        let hash = of.iter().fold(7_usize, |hash, byte| hash.wrapping_mul(31) ^ usize::from(*byte));
        let length = self.0.len();
        (hash % 4 > 0 && length > 0).then(|| &self.0[hash % length..])
    }
}

impl Stream for Hostile<'_> {
    fn request_header(&self, name: &str, index: usize) -> Option<&[u8]> {
        (index < 3).then_some(())?;
        if name == ":path" { Some(self.0) } else { self.part(&[name.as_bytes(), &[3]].concat()) }
    }

    fn request_headers(&self, name: &str) -> Vec<&[u8]> {
        (0..).map_while(|at| self.request_header(name, at)).collect()
    }

    fn response_header(&self, name: &str) -> Option<&[u8]> {
        self.part(name.as_bytes())
    }

    fn source_address(&self) -> Option<&[u8]> {
        static ADDRESSES: [&[u8]; 4] = [b"10.1.2.3:80", b"[2001:db8::1]:80", b"/run/a:1", b"::"];
        Some(
            *self
                .0
                .first()
                .and_then(|byte| ADDRESSES.get(usize::from(*byte) % 5))
                .unwrap_or(&self.0),
        )
    }

    fn destination_cluster(&self) -> Option<&[u8]> {
        Some(b"web")
    }

    fn metadata_string(
        &self,
        _: MetadataSource,
        namespace: &str,
        key: &str,
        _: Option<u32>,
    ) -> Option<&[u8]> {
        self.part(&[namespace.as_bytes(), key.as_bytes()].concat())
    }

    fn metadata_number(
        &self,
        _: MetadataSource,
        _: &str,
        key: &str,
        _: Option<u32>,
    ) -> Option<f64> {
        let bytes = self.part(key.as_bytes())?.first_chunk()?;
        Some(f64::from_le_bytes(*bytes))
    }

    fn count(&self, _: Count) -> Option<u64> {
        self.0.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

#[test]
fn a_configuration_makes_descriptors_of_any_stream_or_has_faults_with_their_places() {
    run::mutated(
        "actions",
        &["\u{1a}\u{4}\u{1a}\u{2}\u{22}\0", "(?i)[^a-z\\d]", "%REQ(a)%", ".*", "\u{2a}\u{3}"],
        20_000,
        |bytes| {
            let Ok(config) = RateLimitPerRoute::decode(bytes) else { return false };
            let mut faults = Faults::default();
            let limits = &config.rate_limits;
            let actions = Actions::compile(limits, "rate_limits", &mut faults);
            assert!(faults.iter().all(|fault| fault.place.starts_with("rate_limits")), "{faults}");
            for phase in [Phase::Start, Phase::Done] {
                for stage in 0..=STAGE_MAX {
                    let stream = Hostile(bytes);
                    let drafts = actions.descriptors(&stream, phase, stage);
                    let request = drafts.request("d", 1);
                    assert!(request.descriptors.len() <= limits.len());
                    for descriptor in &request.descriptors {
                        assert!(descriptor.hits_addend.is_none_or(|hits| hits <= 1_000_000_000));
                        assert!(descriptor.entries.iter().all(|entry| !entry.key.is_empty()));
                    }
                }
            }
            faults.is_empty()
        },
    );
}

#[test]
#[allow(clippy::disallowed_methods, reason = "it is the time that is checked")]
fn a_header_of_a_mebibyte_takes_no_longer_than_its_length() {
    let config = include_bytes!("../corpus/actions/all");
    let config = RateLimitPerRoute::decode(&config[..]).expect("a message");
    let mut faults = Faults::default();
    let actions = Actions::compile(&config.rate_limits, "rate_limits", &mut faults);
    assert!(faults.is_empty(), "{faults}");
    for byte in [b'a', b'%', b'&', b'-', 0xff, b'9'] {
        let header = vec![byte; 1 << 20];
        let began = Instant::now();
        let stream = Hostile(&header);
        let drafts = actions.descriptors(&stream, Phase::Start, 0);
        assert!(drafts.iter().count() <= config.rate_limits.len());
        assert!(began.elapsed().as_secs() < 10, "{byte}: {:?}", began.elapsed());
    }
}
