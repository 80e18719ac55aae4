//! What `push` must do.

use std::time::Duration;

use super::*;

fn family(name: &'static str, kind: Kind, samples: u64) -> Family {
    let mut family = Family::new(name, kind, "help");
    (0..samples).for_each(|n| family.push(vec![("n", n.to_string().into())], Value::Count(n)));
    family
}

#[test]
fn every_series_is_in_one_batch_and_none_is_too_large() {
    let families =
        [family("a", Kind::Counter, 7), family("b", Kind::Gauge, 0), family("c", Kind::Gauge, 5)];
    let batches = batches(&families, 1, 2, 4);
    let sizes = |batch: &Vec<Metric>| batch.iter().map(count).collect::<Vec<_>>();
    assert_eq!(batches.iter().map(sizes).collect::<Vec<_>>(), [vec![4], vec![3, 1], vec![4]]);
    assert_eq!(batches[1][1].name, "c");
}

#[test]
fn a_counter_is_a_growing_sum_and_a_gauge_is_not() {
    let [counter, gauge] = [Kind::Unsuffixed, Kind::Gauge].map(|kind| {
        let family = family("a", kind, 1);
        metric(&family, &family.samples, Span { begun: 1, now: 2 })
    });
    let Some(Data::Sum(sum)) = counter.data else { panic!("{counter:?}") };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
    let point = &sum.data_points[0];
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
    assert_eq!(point.attributes, [text("n", "0")]);
    assert!(matches!(gauge.data, Some(Data::Gauge(_))), "{gauge:?}");
}

#[test]
fn a_distribution_keeps_its_buckets_in_seconds() {
    let buckets = Buckets {
        bounds: vec![Duration::from_micros(25), Duration::from_secs(1)],
        counts: vec![3, 2, 1],
        sum: Duration::from_millis(1500),
    };
    let family = Family::single("a_seconds", Kind::Histogram, "help", Value::Buckets(buckets));
    let metric = metric(&family, &family.samples, Span { begun: 1, now: 2 });
    assert_eq!(metric.unit, "s");
    let Some(Data::Histogram(histogram)) = metric.data else { panic!("{metric:?}") };
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.sum), (6, Some(1.5)));
    assert_eq!(point.bucket_counts, [3, 2, 1]);
    assert_eq!(point.explicit_bounds, [0.000_025, 1.0]);
}
