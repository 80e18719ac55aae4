//! The counts of the status page as metrics.

use std::collections::BTreeMap;

use crate::metrics::family::{Family, Kind, Labels, Value};

/// A count whose metric has another name than `ratelease_<name>_total`, or needs more description.
struct Named {
    count: &'static str,
    metric: &'static str,
    kind: Kind,
    label: Option<(&'static str, &'static str)>,
    help: &'static str,
}

const fn counter(count: &'static str, metric: &'static str, help: &'static str) -> Named {
    Named { count, metric, kind: Kind::Counter, label: None, help }
}

const fn gauge(count: &'static str, metric: &'static str, help: &'static str) -> Named {
    Named { count, metric, kind: Kind::Gauge, label: None, help }
}

const fn listener(count: &'static str, name: &'static str) -> Named {
    let label = Some(("listener", name));
    Named { label, ..gauge(count, "ratelease_connections", "Open connections, by listener.") }
}

/// Counts that are reported by shard instead.
const ELSEWHERE: [&str; 1] = ["breaker_opened"];

const NAMED: [Named; 35] = [
    gauge("keys", "ratelease_buffer_keys", "Keys held."),
    gauge("buffer_bytes", "ratelease_buffer_bytes", "Memory that keys take."),
    gauge("buffer_budget_bytes", "ratelease_buffer_budget_bytes", "Memory that keys may take."),
    gauge(
        "buffer_waiting_bytes",
        "ratelease_buffer_waiting_bytes",
        "Memory beside that, of what few keys have, such as requests that wait.",
    ),
    counter(
        "buffer_evictions",
        "ratelease_buffer_evictions_total",
        "Keys that were given up for others; their tokens went back.",
    ),
    counter(
        "buffer_overflows",
        "ratelease_buffer_overflows_total",
        "Charges of keys without room, to a count that they share.",
    ),
    Named {
        label: Some(("mode", "allow")),
        ..counter(
            "unmetered_hits",
            "ratelease_unmetered_total",
            "Hits that a failure mode let pass and nobody counted.",
        )
    },
    counter(
        "tokens_expired",
        "ratelease_tokens_expired_total",
        "Tokens that ended with their lease, unspent.",
    ),
    counter("failure_mode_local", "ratelease_failure_mode_local_total", ANSWERED),
    counter("failure_mode_allow", "ratelease_failure_mode_allow_total", ANSWERED),
    counter("failure_mode_deny", "ratelease_failure_mode_deny_total", ANSWERED),
    counter("failure_mode_error", "ratelease_failure_mode_error_total", ANSWERED),
    counter(
        "asks_kept_back",
        "ratelease_asks_kept_back_total",
        "Asks that an open breaker kept back.",
    ),
    counter(
        "asks_shed",
        "ratelease_asks_shed_total",
        "Probes and asks ahead that were dropped, since the shard's budget of asks was spent.",
    ),
    counter(
        "hot_key_relieved",
        "ratelease_hot_key_relieved_total",
        "Asks of the hot key of their shard, which is asked for larger leases, less often.",
    ),
    counter("shed", "ratelease_shed_total", "Calls refused above MAX_IN_FLIGHT, or without room."),
    counter("request_panics", "ratelease_request_panics_total", "Calls that panicked."),
    counter("lease_panics", "ratelease_lease_panics_total", "Exchanges and replies that panicked."),
    counter("loader_panics", "ratelease_loader_panics_total", "Loads of rules that panicked."),
    counter("task_restarts", "ratelease_task_restarts_total", "Background tasks begun anew."),
    counter(
        "log_lines_lost",
        "ratelease_log_lines_lost_total",
        "Log lines that nobody read in time.",
    ),
    counter(
        "decision_samples_left_out",
        "ratelease_decision_samples_left_out_total",
        "Decision samples above what the log takes in a second.",
    ),
    counter("spans_sent", "ratelease_spans_sent_total", "Spans that the collector took."),
    counter("spans_dropped", "ratelease_spans_dropped_total", "Spans that found the queue full."),
    counter(
        "spans_failed",
        "ratelease_spans_failed_total",
        "Spans that the collector did not take.",
    ),
    gauge("tasks_ready", "ratelease_tasks_ready", "Tasks that wait for a core."),
    gauge("calls_under_way", "ratelease_calls_under_way", "Calls that wait."),
    gauge("message_bytes", "ratelease_message_bytes", "Memory that unfinished messages take."),
    listener("grpc_connections", "grpc"),
    listener("http_connections", "http"),
    listener("debug_connections", "debug"),
    listener("metrics_connections", "metrics"),
    counter(
        "connections_refused",
        "ratelease_connections_refused_total",
        "Connections beyond what open files allow.",
    ),
    counter(
        "connections_evicted",
        "ratelease_connections_evicted_total",
        "Idle connections that were closed to make room for others.",
    ),
    counter(
        "connections_calmed",
        "ratelease_connections_calmed_total",
        "Connections that were closed because their client did more than it may.",
    ),
];

const ANSWERED: &str = "Charges that this failure mode answered, since the store did not.";

/// Returns `counts` as metrics: every count is included, whatever its name.
pub(super) fn families(counts: &BTreeMap<&'static str, u64>) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (count, value) in counts.iter().filter(|(count, _)| !ELSEWHERE.contains(count)) {
        let value = Value::Count(*value);
        let Some(named) = NAMED.iter().find(|named| named.count == *count) else {
            let help = format!("As `{count}` of the status page.");
            families.push(Family::single(
                format!("ratelease_{count}_total"),
                Kind::Counter,
                help,
                value,
            ));
            continue;
        };
        let labels: Labels = named.label.iter().map(|(label, of)| (*label, (*of).into())).collect();
        let known = families.iter().position(|family| family.name == named.metric);
        match known.and_then(|at| families.get_mut(at)) {
            Some(family) => family.push(labels, value),
            None => {
                let mut family = Family::new(named.metric, named.kind, named.help);
                family.push(labels, value);
                families.push(family);
            }
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_a_metric_and_those_of_one_name_are_one_family() {
        let counts = [
            ("grpc_connections", 2),
            ("http_connections", 3),
            ("keys", 4),
            ("redis_oom", 5),
            ("breaker_opened", 6),
            ("unmetered_hits", 7),
        ];
        let shown = families(&counts.into_iter().collect());
        let text = crate::metrics::text::write(&shown);
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
