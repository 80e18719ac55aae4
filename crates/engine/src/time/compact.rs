//! Compact spans and amounts, for values that are stored by the million. All round down.

use std::time::Duration;

use super::Time;

/// A span in four bytes: exact to the microsecond up to 17 minutes, to the millisecond up to 12
/// days, to the second up to 34 years, and to the minute beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactDuration(u32);

/// A number in two bytes: exact up to 4096, above that to one part in 2048, and at most 4.4 × 10¹²
/// (73 minutes of nanoseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactU64(u16);

/// The unit in which a [`CompactDuration`] counts, in nanoseconds, by its two highest bits.
const UNITS: [u64; 4] = [1_000, 1_000_000, 1_000_000_000, 60_000_000_000];
const UNIT_AT: u32 = 30;
const COUNT_MAX: u32 = (1 << UNIT_AT) - 1;

/// Bits of a [`CompactU64`] below its exponent.
const FRACTION_BITS: u32 = 11;

// === impl CompactDuration ===

impl CompactDuration {
    /// The empty span.
    pub const EMPTY: Self = Self(0);

    /// The longest value that is no longer than `span`.
    pub fn floor(span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        for (unit, at) in UNITS.iter().zip(0..) {
            if let Ok(count) = u32::try_from(nanos / unit)
                && count <= COUNT_MAX
            {
                return Self(at << UNIT_AT | count);
            }
        }
        Self(u32::MAX)
    }

    /// The end of the span if it began at `start`; time zero if it is empty.
    pub fn after(self, start: Time) -> Time {
        let unit = UNITS[(self.0 >> UNIT_AT) as usize];
        ends(start, u64::from(self.0 & COUNT_MAX).saturating_mul(unit))
    }
}

// === impl CompactU64 ===

impl CompactU64 {
    /// A marker that is not a number, with a meaning of the caller's choice. Greater than all
    /// numbers.
    pub const NONE: Self = Self(u16::MAX);

    /// The largest value that is no larger than `number`.
    pub fn floor(number: u64) -> Self {
        let shift = (u64::BITS - number.leading_zeros()).saturating_sub(FRACTION_BITS + 1);
        let code = (u64::from(shift) << FRACTION_BITS) + (number >> shift);
        Self(u16::try_from(code).unwrap_or(u16::MAX).min(u16::MAX - 1))
    }

    /// The number.
    pub fn get(self) -> u64 {
        let shift = (self.0 >> FRACTION_BITS).saturating_sub(1);
        u64::from(self.0 - (shift << FRACTION_BITS)) << shift
    }

    /// The time that many nanoseconds after `start`; time zero if there are none.
    pub fn nanos_after(self, start: Time) -> Time {
        ends(start, self.get())
    }
}

/// An empty span is over for every reader, also for one that read the clock before `start`.
fn ends(start: Time, nanos: u64) -> Time {
    if nanos == 0 { Time::default() } else { start + Duration::from_nanos(nanos) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every power of two with its neighbours, and some between.
    fn numbers() -> impl Iterator<Item = u64> {
        let around =
            |bit: u32| [-3_i64, -1, 0, 1, 5].map(|by| (1_u64 << bit).saturating_add_signed(by));
        (0..64).flat_map(around).flat_map(|n| [n, n / 3, n / 7 * 5])
    }

    #[test]
    fn a_span_never_grows_and_loses_less_than_its_unit() {
        let start = Time::from_nanos(12_345);
        for nanos in numbers().filter(|nanos| *nanos < u64::MAX / 2) {
            let kept =
                CompactDuration::floor(Duration::from_nanos(nanos)).after(start).since(start);
            let lost = Duration::from_nanos(nanos).checked_sub(kept).unwrap();
            let unit = match nanos / 1_000_000_000 {
                0..1_000 => Duration::from_micros(1),
                1_000..1_000_000 => Duration::from_millis(1),
                1_000_000..1_000_000_000 => Duration::from_secs(1),
                _ => Duration::from_secs(60),
            };
            assert!(lost < unit, "{nanos} lost {lost:?}");
            assert_eq!(
                CompactDuration::floor(kept),
                CompactDuration::floor(Duration::from_nanos(nanos))
            );
        }
        let longest = CompactDuration::floor(Duration::MAX).after(Time::default());
        assert!(Time::from_nanos(u64::MAX).since(longest) < Duration::from_secs(60));
    }

    #[test]
    fn an_empty_span_is_over_before_it_begins() {
        let start = Time::from_nanos(5_000);
        assert_eq!(CompactDuration::floor(Duration::from_nanos(999)).after(start), Time::default());
        assert_eq!(CompactU64::floor(0).nanos_after(start), Time::default());
        assert_eq!(CompactU64::floor(1).nanos_after(start), Time::from_nanos(5_001));
    }

    #[test]
    fn a_coarse_number_never_grows_and_keeps_one_part_in_2048() {
        for number in numbers() {
            let kept = CompactU64::floor(number).get();
            assert!(kept <= number, "{number} became {kept}");
            let most = 4_094 << 30;
            assert!(number - kept <= number / 2_048 || kept == most, "{number} became {kept}");
            assert_eq!(CompactU64::floor(kept).get(), kept);
        }
        assert!((0..4_096).all(|number| CompactU64::floor(number).get() == number));
        assert!(CompactU64::floor(u64::MAX) != CompactU64::NONE);
    }
}
