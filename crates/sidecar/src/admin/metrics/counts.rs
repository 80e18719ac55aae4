//! The counts of the status page as metrics.

use std::collections::BTreeMap;

use ratelease_server::metrics::counter::Counter;
use ratelease_server::metrics::family::{Family, Kind, Labels, Value};

/// Returns `counts` as metrics, except those that are reported by shard.
pub(super) fn families(counts: &BTreeMap<Counter, u64>) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (counter, value) in counts.iter().filter(|(counter, _)| !counter.is_by_shard()) {
        let value = Value::Count(*value);
        let Some(metric) = counter.metric() else {
            let (name, kind) = (counter.name(), Kind::Counter);
            let help = format!("As `{name}` of the status page.");
            families.push(Family::single(format!("ratelease_{name}_total"), kind, help, value));
            continue;
        };
        let labels: Labels =
            metric.label.iter().map(|(label, of)| (*label, (*of).into())).collect();
        let known = families.iter().position(|family| family.name == metric.name);
        match known.and_then(|at| families.get_mut(at)) {
            Some(family) => family.push(labels, value),
            None => {
                let mut family = Family::new(metric.name, metric.kind, metric.help);
                family.push(labels, value);
                families.push(family);
            }
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use ratelease_engine::counter::{self, RedisCounter, RedisFailure};

    use super::*;
    use ratelease_server::metrics::counter::ListenerName;

    #[test]
    fn every_count_has_a_metric_and_those_of_one_name_are_one_family() {
        let counts = [
            (Counter::Connections(ListenerName::Grpc), 2),
            (Counter::Connections(ListenerName::Http), 3),
            (counter::Counter::Keys.into(), 4),
            (counter::Counter::Redis(RedisCounter::Failure(RedisFailure::OutOfMemory)).into(), 5),
            (counter::Counter::BreakerOpened.into(), 6),
            (counter::Counter::UnmeteredHits.into(), 7),
        ];
        let shown = families(&counts.into_iter().collect());
        let text = ratelease_server::metrics::text::write(&shown);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "ratelease_connections{listener=\"grpc\"} 2",
            "ratelease_connections{listener=\"http\"} 3",
            "ratelease_buffer_keys 4",
            "ratelease_redis_oom_total 5",
            "ratelease_unmetered_total{mode=\"allow\"} 7",
        ];
        assert_eq!(lines, expected);
    }
}
