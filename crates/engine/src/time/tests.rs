//! Tests of time.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_next_multiple_is_the_same_whenever_it_is_asked_for() {
    const PERIOD: Duration = Duration::from_secs(1);
    let clock = Clock::start();
    for (begun, next) in [(0, 1), (300, 1), (999, 1), (1000, 2), (1999, 2)] {
        tokio::time::sleep_until(clock.instant(Time::from_nanos(begun * 1_000_000))).await;
        let since = clock.next_multiple(PERIOD) - clock.instant(Time::default());
        assert_eq!(since, PERIOD * next, "at {begun} ms");
    }
}

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
        let kept = CompactDuration::floor(Duration::from_nanos(nanos)).after(start).since(start);
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
