//! Converts metrics to OTLP messages.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};
use ratelease_engine::buckets::Buckets;

use ratelease_server::metrics::family::{Family, Kind, Labels, Sample, Value};

/// When a point's count began, and when it was read; nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Span {
    begun: u64,
    now: u64,
}

/// Converts all `families`, in batches of at most `points_max` series.
pub(super) fn batches(
    families: &[Family],
    begun: u64,
    now: u64,
    points_max: usize,
) -> Vec<Vec<Metric>> {
    let span = Span { begun, now };
    let (mut batches, mut batch, mut room) = (Vec::new(), Vec::new(), points_max);
    for family in families {
        let mut samples = family.samples.as_slice();
        while !samples.is_empty() {
            if room == 0 {
                batches.push(std::mem::take(&mut batch));
                room = points_max;
            }
            let (taken, rest) = samples.split_at(room.min(samples.len()));
            batch.push(metric(family, taken, span));
            room -= taken.len();
            samples = rest;
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// Number of series of a metric.
pub(super) fn count(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        Some(Data::ExponentialHistogram(_) | Data::Summary(_)) | None => 0,
    }
}

fn metric(family: &Family, samples: &[Sample], span: Span) -> Metric {
    let numbers = || samples.iter().filter_map(|sample| number_point(sample, span)).collect();
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let (data, unit) = match family.kind {
        Kind::Counter | Kind::Unsuffixed => {
            let data_points = numbers();
            (Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true }), "")
        }
        Kind::Gauge => (Data::Gauge(Gauge { data_points: numbers() }), ""),
        Kind::Histogram => {
            let points = samples.iter().filter_map(|sample| histogram_point(sample, span));
            let data_points = points.collect();
            (Data::Histogram(Histogram { data_points, aggregation_temporality }), "s")
        }
    };
    Metric {
        name: family.name.clone().into_owned(),
        description: family.help.clone().into_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// `None` for a distribution, which a family of numbers never contains.
fn number_point(sample: &Sample, span: Span) -> Option<NumberDataPoint> {
    let value = match &sample.value {
        Value::Count(count) => Number::AsInt(i64::try_from(*count).unwrap_or(i64::MAX)),
        Value::Number(number) => Number::AsDouble(*number),
        Value::Buckets(_) => return None,
    };
    Some(NumberDataPoint {
        start_time_unix_nano: span.begun,
        time_unix_nano: span.now,
        value: Some(value),
        attributes: attributes(&sample.labels),
        ..NumberDataPoint::default()
    })
}

/// `None` for a number, which a family of distributions never contains.
fn histogram_point(sample: &Sample, span: Span) -> Option<HistogramDataPoint> {
    let Value::Buckets(buckets) = &sample.value else { return None };
    let Buckets { bounds, counts, sum } = buckets;
    Some(HistogramDataPoint {
        start_time_unix_nano: span.begun,
        time_unix_nano: span.now,
        count: buckets.count(),
        sum: Some(sum.as_secs_f64()),
        bucket_counts: counts.clone(),
        explicit_bounds: bounds.iter().map(|bound| bound.as_secs_f64()).collect(),
        attributes: attributes(&sample.labels),
        ..HistogramDataPoint::default()
    })
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| text(name, value.as_ref())).collect()
}

/// An attribute whose value is a text.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Any::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn family(name: &'static str, kind: Kind, samples: u64) -> Family {
        let mut family = Family::new(name, kind, "help");
        (0..samples).for_each(|n| family.push(vec![("n", n.to_string().into())], Value::Count(n)));
        family
    }

    #[test]
    fn every_series_is_in_one_batch_and_none_is_too_large() {
        let families = [
            family("a", Kind::Counter, 7),
            family("b", Kind::Gauge, 0),
            family("c", Kind::Gauge, 5),
        ];
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
}
