//! Decisions, as `/status` shows them.

use std::collections::HashSet;

use ratelease_engine::lease::ShardCounters;
use ratelease_rules::{Allowance, Limit, Rule};
use serde_json::{Value, json};

use super::Status;
use crate::admin::history::micros;
use ratelease_server::hot_keys::{HotKey, HottestKeys, RuleHotKeys};
use ratelease_server::metrics::{Calls, RuleTotals};

/// Maximum number of rules listed. A page shows no more in one view, and they are sent each second.
const RULES_MAX: usize = 200;

/// Number of keys in each list of hot keys.
const HOT_KEYS_MAX: usize = 10;

// === impl Status ===

impl Status {
    /// The number of decisions and how they were made; how long those of the last minute took.
    pub(super) fn decisions(&self) -> Value {
        let calls = self.stats.calls();
        let is_counted = calls.is_some();
        let (ok, over_limit, errors) = match calls {
            Some(Calls { ok, over_limit, errors, .. }) => (ok, over_limit, errors),
            None => Default::default(),
        };
        let by_how =
            self.stats.by_how().into_iter().map(|(name, count)| (name.to_owned(), count.into()));
        let recently = self.history.recently();
        json!({
            "counted": is_counted,
            "ok": ok,
            "over_limit": over_limit,
            "errors": errors,
            "by_how": Value::Object(by_how.collect()),
            "p50_us": recently.as_ref().and_then(|took| micros(took, 0.5)),
            "p99_us": recently.as_ref().and_then(|took| micros(took, 0.99)),
        })
    }

    /// The asks of all shards together, and their results.
    pub(super) fn leases(&self) -> Value {
        let shard_counters = self.stats.leases();
        let sum = |of: fn(&ShardCounters) -> u64| shard_counters.iter().map(of).sum::<u64>();
        json!({
            "asks": sum(|tally| tally.asks),
            "grants": sum(|tally| tally.grants),
            "returns": sum(|tally| tally.returns),
            "failures": sum(|tally| tally.failures),
            "tokens_granted": sum(|tally| tally.tokens_granted),
            "tokens_returned": sum(|tally| tally.tokens_returned),
        })
    }

    /// The rules that decided most; if there is room, also those that decided nothing yet.
    pub(super) fn rules_busiest(&self) -> Value {
        let rules = self.published.current().unwrap_or_default();
        let busiest = self.stats.rules(RULES_MAX);
        let listed: HashSet<_> = busiest.iter().map(|counts| counts.rule.as_str()).collect();
        let idle = rules.iter().filter(|rule| !listed.contains(&*rule.path));
        let idle =
            idle.take(RULES_MAX.saturating_sub(busiest.len())).map(|rule| rule_json(rule, None));
        let seen = busiest.iter().map(|counts| match rules.by_path(&counts.rule) {
            Some(rule) => rule_json(rule, Some(counts)),
            None => counts_json(&counts.rule, Some(counts)),
        });
        seen.chain(idle).collect()
    }

    pub(super) fn hot_keys(&self) -> Value {
        let HottestKeys { requested, denied } = self.stats.hot_keys(HOT_KEYS_MAX);
        json!({"requested": hot_keys(&requested), "denied": hot_keys(&denied)})
    }

    /// The object of `/hotkeys`. Separate from `/status`, which is sent each second.
    pub(in crate::admin) fn hot_keys_by_rule(&self) -> Value {
        let rules = self.stats.hot_keys_by_rule(HOT_KEYS_MAX);
        let of_rule = |RuleHotKeys { rule, requests, denials, top }: &RuleHotKeys| {
            json!({
                "rule": rule,
                "requests": requests,
                "denials": denials,
                "requested": hot_keys(&top.requested),
                "denied": hot_keys(&top.denied),
            })
        };
        json!({"all": self.hot_keys(), "rules": rules.iter().map(of_rule).collect::<Value>()})
    }

    pub(super) fn settings_json(&self) -> Value {
        let rule_json = self.settings.iter();
        rule_json
            .map(|it| json!({"name": it.name, "value": it.value, "default": it.is_default}))
            .collect()
    }
}

fn hot_keys(hot: &[HotKey]) -> Value {
    hot.iter().map(hot_key).collect()
}

fn hot_key(hot: &HotKey) -> Value {
    let HotKey { key, rule, count, share, values } = hot;
    json!({"key": key, "rule": rule, "count": count, "share": share, "values": values})
}

/// A rule and its counts.
fn rule_json(rule: &Rule, counts: Option<&RuleTotals>) -> Value {
    let mut object = counts_json(&rule.path, counts);
    object["path"] = rule.path_parts().collect();
    object["shadow_mode"] = rule.flags.shadow_mode.into();
    (object["limit"], object["algorithm"]) = match rule.allowance {
        Allowance::Limited(limit) => (limit_text(limit).into(), limit.algorithm.name().into()),
        Allowance::Unlimited => ("unlimited".into(), Value::Null),
    };
    object
}

/// The counts of a path that belongs to no rule, or to none that is in force.
fn counts_json(path: &str, counts: Option<&RuleTotals>) -> Value {
    let of = |count: fn(&RuleTotals) -> u64| counts.map_or(0, count);
    json!({
        "rule": path,
        "ok": of(|counts| counts.ok),
        "over_limit": of(|counts| counts.over_limit),
        "near_limit": of(|counts| counts.near_limit),
        "shadow": of(|counts| counts.shadow),
    })
}

/// Formats a limit, such as `100 / 5 minutes`.
fn limit_text(limit: Limit) -> String {
    let unit = limit.unit.name().to_ascii_lowercase();
    match limit.unit_multiplier.get() {
        1 => format!("{} / {unit}", limit.requests_per_unit),
        many => format!("{} / {many} {unit}s", limit.requests_per_unit),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{Fixed, status_of};
    use super::*;
    use ratelease_rules::{Options, Rules, Source, load};

    fn rules(text: &str) -> Arc<Rules> {
        let source = Source { name: "a.yaml".to_owned(), text: text.as_bytes().to_vec() };
        Arc::new(load(&[source], Options::default()).unwrap().rules)
    }

    fn counts(path: &str, ok: u64) -> RuleTotals {
        RuleTotals { rule: path.to_owned(), ok, over_limit: 2, near_limit: 3, shadow: 1 }
    }

    #[test]
    fn rules_are_sorted_by_decisions() {
        let status = status_of(Fixed {
            rules: vec![counts("shop.path_/x.pdf", 5), counts("override", 4)],
            ..Fixed::default()
        });
        let text = "domain: shop\ndescriptors:\n  - key: idle\n    shadow_mode: true\n    \
                    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 100, \
                    algorithm: token_bucket}\n  - key: path\n    value: /x.pdf\n    rate_limit: \
                    {unlimited: true}\n";
        status.published.publish(rules(text));
        let expected = json!([
            {
                "rule": "shop.path_/x.pdf", "path": ["shop", "path_/x.pdf"], "ok": 5,
                "over_limit": 2, "near_limit": 3, "shadow": 1, "shadow_mode": false,
                "limit": "unlimited", "algorithm": null,
            },
            {"rule": "override", "ok": 4, "over_limit": 2, "near_limit": 3, "shadow": 1},
            {
                "rule": "shop.idle", "path": ["shop", "idle"], "ok": 0, "over_limit": 0,
                "near_limit": 0, "shadow": 0, "shadow_mode": true, "limit": "100 / 5 minutes",
                "algorithm": "token_bucket",
            },
        ]);
        assert_eq!(status.json()["rules_busiest"], expected);
    }

    #[test]
    fn the_list_of_rules_is_bounded() {
        let text: String = (0..=RULES_MAX)
            .map(|n| {
                format!("  - key: k{n}\n    rate_limit: {{unit: day, requests_per_unit: 1}}\n")
            })
            .collect();
        let busiest = |count| (0..count).map(|n| counts(&format!("shop.k{n}"), 1)).collect();
        for count in [0, 7, RULES_MAX] {
            let status = status_of(Fixed { rules: busiest(count), ..Fixed::default() });
            status.published.publish(rules(&format!("domain: shop\ndescriptors:\n{text}")));
            let listed = status.json()["rules_busiest"].clone();
            assert_eq!(listed.as_array().map(Vec::len), Some(RULES_MAX), "{count} busy");
        }
    }
}
