//! The hits of a descriptor (`hits_addend`): a number, or what one operator finds in the stream.

use envoy_types::pb::envoy::config::route::v3::rate_limit::HitsAddend;

use super::Stream;
use super::fault::{Faults, Place};
use super::format::{Format, Number, Operator};

/// Maximum hits of one descriptor, as in Envoy.
const HITS_MAX: u64 = 1_000_000_000;

/// How many hits a descriptor adds.
#[derive(Debug)]
pub(super) enum Hits {
    /// As many as the request.
    OfRequest,
    Fixed(u64),
    Found(Operator),
}

impl Hits {
    pub(super) fn compile(
        message: Option<&HitsAddend>,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let Some(HitsAddend { number, format, .. }) = message else {
            return Some(Self::OfRequest);
        };
        match number.map(|number| number.value) {
            Some(_) if !format.is_empty() => faults.add(place, "number and format; expected one"),
            Some(number) if number > HITS_MAX => {
                let text = format!("{number}; expected at most {HITS_MAX}");
                faults.add(place.field("number"), text);
            }
            Some(number) => return Some(Self::Fixed(number)),
            None if format.is_empty() => faults.add(place, "empty; expected number or format"),
            None => {
                let place = place.field("format");
                return match Format::parse(format, &place, faults)?.into_operator() {
                    Some(operator) => Some(Self::Found(operator)),
                    None => {
                        let text = "expected one operator, such as %BYTES_RECEIVED%";
                        faults.add(place, text);
                        None
                    }
                };
            }
        }
        None
    }

    /// The hits for a stream: `None` if what is found is no number from 0 to 10^9, and the
    /// descriptor is left out; `Some(None)` for those of the request.
    #[expect(clippy::option_option, reason = "two ways to have no hits")]
    pub(super) fn of(&self, stream: &impl Stream) -> Option<Option<u64>> {
        match self {
            Self::OfRequest => Some(None),
            Self::Fixed(hits) => Some(Some(*hits)),
            Self::Found(operator) => match operator.number(stream)? {
                Number::Whole(hits) => (hits <= HITS_MAX).then_some(Some(hits)),
                Number::Real(hits) => whole(hits).map(Some),
            },
        }
    }
}

/// The number without its fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "is in the range")]
fn whole(hits: f64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
    const MAX: f64 = HITS_MAX as f64;
    (0.0..=MAX).contains(&hits).then_some(hits as u64)
}
