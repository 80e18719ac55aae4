//! How each request that a rule holds something for ends: by an access log of its connection
//! manager, by a second call, or not at all.

use std::collections::BTreeSet;
use std::time::Duration;

use ratelease_rules::Rule;

use super::Sent;
use super::access_log::AccessLog;
use super::action::Origin;
use super::config::{Config, HttpFilter, LimitFilter, Manager, TIMEOUT_DEFAULT};
use super::finding::{At, Finding, Findings, own_default};

/// The shortest time-out by which two thousand second calls at once all arrived.
const TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// How an id has to be made.
const ID_FIX: &str = "let Envoy make the id, as the recipe llm-concurrency does: set_filter_state of \
                       %UNIQUE_ID% before the rate limit filter, and the expression \
                       filter_state['ratelease.id']";

/// Adds faults by which requests of these descriptors do not end, or end late.
pub(super) fn review(config: &Config, sent: &[Sent<'_>], findings: &mut Findings) {
    for manager in config.managers() {
        let is_here = |sent: &&Sent<'_>| {
            !sent.site.is_in_module()
                && config.managers_of(sent.site).iter().any(|it| std::ptr::eq(*it, manager))
        };
        let here: Vec<_> = sent.iter().filter(is_here).collect();
        let of = |is_end: bool, needs_end: fn(&Rule) -> bool| -> Vec<_> {
            let here = here.iter().copied().filter(|it| it.site.is_end == is_end);
            here.filter(|it| it.rules().iter().any(|rule| needs_end(rule))).collect()
        };
        let listener = Listener {
            config,
            manager,
            asking: here.iter().copied().filter(|it| !it.site.is_end).collect(),
            starts: of(false, |rule| rule.hold.is_some()),
            ends: of(true, |rule| rule.hold.is_some() || rule.flags.settle),
        };
        listener.review(findings);
    }
}

/// A connection manager, with its descriptors of rules that need an end.
struct Listener<'s, 'r> {
    config: &'r Config,
    manager: &'r Manager,
    /// All descriptors that are sent at the start.
    asking: Vec<&'s Sent<'r>>,
    /// Descriptors that are sent at the start, of rules that hold.
    starts: Vec<&'s Sent<'r>>,
    /// Descriptors of second calls.
    ends: Vec<&'s Sent<'r>>,
}

// === impl Listener ===

impl Listener<'_, '_> {
    fn review(&self, findings: &mut Findings) {
        let clusters = self.clusters();
        let is_ours = |log: &&AccessLog| log.is_ours(&clusters);
        let logs: Vec<_> = self.manager.logs.iter().filter(is_ours).collect();
        for start in &self.starts {
            self.review_id(start, findings);
            if logs.is_empty() {
                self.require_second_call(start, findings);
            }
        }
        if !self.starts.is_empty() {
            logs.iter().for_each(|log| self.review_log(log, &clusters, findings));
        }
        self.review_calls(&clusters, findings);
    }

    /// The rate limit filters that send these descriptors.
    fn limits(&self, sent: &[&Sent<'_>]) -> Vec<&LimitFilter> {
        let limits = sent.iter().flat_map(|sent| self.manager.limits_of(sent.site));
        limits.map(|(_, limit)| limit).collect()
    }

    /// The clusters of ratelease.
    fn clusters(&self) -> Vec<&str> {
        let limits = [self.limits(&self.starts), self.limits(&self.ends)].concat();
        let clusters = limits.iter().filter_map(|limit| limit.cluster.as_deref());
        clusters.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// A start needs a second call for each rule that holds for it.
    fn require_second_call(&self, start: &Sent<'_>, findings: &mut Findings) {
        if self.manager.limits_of(start.site).is_empty() {
            return; // the connection manager is in another file
        }
        let is_ended = |rule: &Rule| {
            self.ends.iter().any(|end| end.rules().iter().any(|it| it.path == rule.path))
        };
        let rules = holding(start).filter(|(rule, _)| !is_ended(rule));
        for (rule, lasts) in rules {
            let problem = format!(
                "nothing tells ratelease that a request of {} has ended: what it holds comes back \
                 after {lasts:?} (`for`)",
                rule.path
            );
            let fix = "add the gRPC access log of the recipe llm-concurrency to the connection \
                        manager";
            findings.add(Finding::error(start.site.at.clone(), problem, fix));
        }
    }

    fn review_log(&self, log: &AccessLog, clusters: &[&str], findings: &mut Findings) {
        log.findings.iter().cloned().for_each(|finding| findings.add(finding));
        if log.drops_denied && self.is_asked_again() {
            findings.add(Finding::error(
                log.at.clone(),
                "a request that a later rate limit filter denies gets no entry, and what an earlier \
                 one holds for it does not end",
                "filter by the expression \"'ratelease.id' in filter_state\", or not at all",
            ));
        }
        if let Some(cluster) = log.cluster.as_deref().filter(|own| clusters.contains(own)) {
            findings.add(Finding::warning(
                log.at.clone(),
                format!(
                    "the log shares the cluster '{cluster}' with calls, which its entries wait for"
                ),
                "give it a cluster of its own, ratelease-ends, to the same address",
            ));
        }
        let shortest = self.starts.iter().flat_map(|start| holding(start)).min_by_key(|it| it.1);
        let Some((rule, lasts)) = shortest else { return };
        if self.manager.sign_of_life.is_none_or(|interval| interval >= lasts) {
            findings.add(Finding::warning(
                self.manager.at.clone().unwrap_or_else(|| log.at.clone()),
                format!(
                    "a request of {} gives no sign of life: after {lasts:?} (`for`) it counts as \
                     ended, though it runs",
                    rule.path
                ),
                "set access_log_options: {access_log_flush_interval: 10s}, shorter than `for`",
            ));
        }
        for start in &self.starts {
            for (rule, _) in holding(start) {
                if let Some(finding) = unlike(start, rule, log) {
                    findings.add(finding);
                }
            }
        }
    }

    /// Whether a rate limit filter behind one that holds asks too, and so may deny.
    fn is_asked_again(&self) -> bool {
        let positions = |sent: &[&Sent<'_>]| -> Vec<usize> {
            let limits = sent.iter().flat_map(|sent| self.manager.limits_of(sent.site));
            limits.map(|(position, _)| position).collect()
        };
        let first = positions(&self.starts).into_iter().min();
        let last = positions(&self.asking).into_iter().max();
        first < last
    }

    /// Whether bursts of calls arrive.
    fn review_calls(&self, clusters: &[&str], findings: &mut Findings) {
        let reviewed = self.config.clusters.iter().filter(|it| clusters.contains(&&*it.name));
        let reviewed: Vec<_> = reviewed.flat_map(|cluster| cluster.review()).collect();
        reviewed.into_iter().for_each(|finding| findings.add(finding));
        for limit in self.limits(&self.ends) {
            if limit.timeout < TIMEOUT_MIN {
                let timeout = limit.timeout;
                let is_default = own_default(timeout == TIMEOUT_DEFAULT);
                findings.add(Finding::warning(
                    limit.at.clone(),
                    format!(
                        "the time-out of calls at the end is {timeout:?}{is_default}: too short for two \
                         thousand at once"
                    ),
                    "set timeout: 5s, or send ends by the access log of the recipe llm-concurrency",
                ));
            }
        }
    }

    /// Whether only Envoy chooses the id of a request.
    fn review_id(&self, start: &Sent<'_>, findings: &mut Findings) {
        for (rule, _) in holding(start) {
            let Some(origin) = id_of(start, rule) else { continue };
            let at = || start.site.at.clone();
            let limit = self.manager.limits_of(start.site).into_iter().next();
            let Some((before, _)) = limit else {
                if matches!(origin, Origin::Header(_) | Origin::Query(_)) {
                    findings.add(chosen(at(), origin, Finding::warning));
                }
                continue;
            };
            match (self.set_before(origin, before), origin) {
                (Some((_, Origin::Unique | Origin::Other)), _) => {}
                (Some((at, made)), _) => self.review_made_id(at.clone(), made, findings),
                (None, Origin::FilterState(object)) => findings.add(self.unset(start, object)),
                (None, origin) => self.review_made_id(at(), origin, findings),
            }
        }
    }

    fn review_made_id(&self, at: At, origin: &Origin, findings: &mut Findings) {
        match origin {
            Origin::Header(name) if name == "x-request-id" && self.manager.makes_request_id => {}
            // The connection manager is in none of the files.
            Origin::Header(name) if name == "x-request-id" && self.manager.at.is_none() => {
                findings.add(chosen(at, origin, Finding::warning));
            }
            Origin::Header(_) | Origin::Query(_) | Origin::Path => {
                findings.add(chosen(at, origin, Finding::error));
            }
            Origin::Fixed => findings.add(Finding::error(at, "all requests have one id", ID_FIX)),
            Origin::Unique => {
                let problem = "the id is new at each reading, so that no end has that of its start";
                findings.add(Finding::error(at, problem, ID_FIX));
            }
            Origin::FilterState(_) | Origin::FilterStateAsJson(_) | Origin::Other => {}
        }
    }

    /// The filter before a position that sets `target`, and the origin of the new text.
    fn set_before(&self, target: &Origin, before: usize) -> Option<(&At, &Origin)> {
        let filters = self.manager.filters.iter().take(before).rev();
        filters.filter_map(|filter| set_by(filter, target)).next()
    }

    fn unset(&self, start: &Sent<'_>, object: &str) -> Finding {
        let target = Origin::FilterState(object.to_owned());
        let after = self.manager.filters.iter().find_map(|filter| set_by(filter, &target));
        let at = after.map_or(&start.site.at, |(at, _)| at).clone();
        let problem = match after {
            Some(_) => format!(
                "the filter that sets '{object}' comes after the rate limit filter: Envoy leaves \
                 the descriptor out, and nothing is limited"
            ),
            None => format!(
                "no filter sets '{object}': Envoy leaves the descriptor out, and nothing is limited"
            ),
        };
        Finding::error(at, problem, ID_FIX)
    }
}

fn set_by<'f>(filter: &'f HttpFilter, of: &Origin) -> Option<(&'f At, &'f Origin)> {
    match filter {
        HttpFilter::Sets { at, target, origin } if target == of => Some((at, origin)),
        HttpFilter::Sets { .. } | HttpFilter::Limit(_) => None,
    }
}

/// The rules of a descriptor that hold, and for how long.
fn holding<'r>(sent: &Sent<'r>) -> impl Iterator<Item = (&'r Rule, Duration)> {
    sent.rules().to_vec().into_iter().filter_map(|rule| Some((rule, rule.hold?.lasts())))
}

/// The origin of the id of a request.
fn id_of<'s>(sent: &'s Sent<'_>, rule: &Rule) -> Option<&'s Origin> {
    let level = usize::from(rule.hold?.level);
    sent.entries.get(level).map(|entry| &entry.origin)
}

fn chosen(at: At, origin: &Origin, level: fn(At, String, &'static str) -> Finding) -> Finding {
    let what = match origin {
        Origin::Header(name) if name == "x-request-id" => {
            "Envoy keeps a client's x-request-id without use_remote_address, as in a mesh"
                .to_owned()
        }
        Origin::Header(name) => format!("it is the header {name}"),
        Origin::Query(name) => format!("it is the parameter {name} of the query"),
        _ => "it is the path".to_owned(),
    };
    let problem = format!("a client chooses the id, and so ends requests of others: {what}");
    level(at, problem, ID_FIX)
}

/// Whether a log has another id than a start.
fn unlike(start: &Sent<'_>, rule: &Rule, log: &AccessLog) -> Option<Finding> {
    let (at, logged) = log.id.as_ref()?;
    let started = id_of(start, rule)?;
    let is_clear = |origin: &Origin| {
        matches!(origin, Origin::FilterState(_) | Origin::Header(_) | Origin::Query(_))
    };
    let differs = is_clear(logged) && is_clear(started) && logged != started;
    differs.then(|| {
        let problem = format!(
            "the tag has {}, and the descriptor of {} has {}: the entries end no such request",
            shown(logged),
            rule.path,
            shown(started)
        );
        Finding::error(at.clone(), problem, "have both read filter_state['ratelease.id']")
    })
}

fn shown(origin: &Origin) -> String {
    match origin {
        Origin::FilterState(object) => format!("filter_state['{object}']"),
        Origin::Header(name) => format!("the header {name}"),
        Origin::Query(name) => format!("the parameter {name}"),
        _ => "another text".to_owned(),
    }
}
