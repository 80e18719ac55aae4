//! Counts the results of a replay, in bounded memory.

use foldhash::HashMap;
use ratelease_engine::verdict::{Code, Modes, Verdict};
use ratelease_rules::Rules;
use ratelease_rules::key::{Key, KeyHasher};
use ratelease_rules::request::{Descriptor, Request};
use serde::Serialize;

use crate::exact_limiter::ExactLimiter;
use crate::line_format::STEP_WORK;

/// Maximum number of keys whose denials are counted at once. Beyond it, the keys with the fewest
/// denials are dropped.
const KEYS_MAX: usize = 100_000;

/// Maximum bytes of the entries of these keys. One of them may have a megabyte.
const KEY_BYTES_MAX: usize = 16 << 20;

/// Number of unreadable lines for which the reason is shown.
const UNREADABLE_SHOWN: usize = 5;

/// Counts of a whole replay.
#[derive(Debug, Default, Serialize)]
pub struct ReplayCounts {
    /// Lines read, without blank ones.
    pub lines: u64,
    /// Requests decided.
    pub requests: u64,
    /// Requests that passed.
    pub ok: u64,
    /// Requests that were denied.
    pub over_limit: u64,
    /// Requests that no rule limits.
    pub unlimited: u64,
    /// Lines that produce no descriptor.
    pub without_descriptor: u64,
    /// Requests that could not be counted for lack of memory; they count as passed.
    pub uncounted: u64,
    /// Lines that could not be read.
    pub unreadable: u64,
    /// The first of them.
    pub first_unreadable: Vec<Unreadable>,
    /// Lines that are older than one before them.
    pub out_of_order: u64,
    /// Maximum lateness of such a line, in microseconds.
    pub late_us_max: u64,
    /// Times of the first and the last request, in microseconds since the Unix epoch.
    #[serde(skip)]
    pub span: Option<(u64, u64)>,
    #[serde(skip)]
    by_rule: HashMap<Box<str>, RuleCounts>,
    #[serde(skip)]
    by_key: HashMap<Key, KeyDenials>,
    #[serde(skip)]
    key_bytes: usize,
    /// Maximum number of denials that a key may have had before it was dropped.
    pub key_counts_low_by: u64,
}

/// A line that could not be read.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// Name of the log.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// The reason why the line cannot be read.
    pub why: String,
}

/// Counts of one rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RuleCounts {
    /// Descriptors within the limit.
    pub ok: u64,
    /// Descriptors that were denied.
    pub over_limit: u64,
    /// Over the limit, but passed because of shadow mode.
    pub shadow: u64,
}

/// Denials of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyDenials {
    /// Path of the rule.
    pub rule: Box<str>,
    /// The entries of the first descriptor that was denied.
    pub entries: Box<str>,
    /// Number of denials.
    pub over_limit: u64,
}

// === impl ReplayCounts ===

impl ReplayCounts {
    /// Records a request's time. Decision time does not run backwards: a late line is decided as if
    /// it came now.
    pub fn note_time(&mut self, unix_us: u64) {
        let (first, last) = self.span.unwrap_or((unix_us, unix_us));
        if unix_us < last {
            self.out_of_order += 1;
            self.late_us_max = self.late_us_max.max(last - unix_us);
        }
        self.span = Some((first.min(unix_us), last.max(unix_us)));
    }

    /// Counts a line that could not be read.
    pub fn note_unreadable(&mut self, file: &str, line: u64, why: impl FnOnce() -> String) {
        self.lines += 1;
        self.unreadable += 1;
        if self.first_unreadable.len() < UNREADABLE_SHOWN {
            let file = file.to_owned();
            let why = why();
            self.first_unreadable.push(Unreadable { file, line, why });
        }
    }

    /// Counts the verdict on `request`.
    pub fn note(&mut self, request: &Request<'_>, verdict: &Verdict<'_>) {
        self.requests += 1;
        match verdict.code {
            Code::Ok => self.ok += 1,
            Code::OverLimit => self.over_limit += 1,
        }
        self.unlimited += u64::from(verdict.statuses.iter().all(|status| status.limit.is_none()));
        for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
            let (Some(applied), Some(trace)) = (status.limit, status.counted) else { continue };
            let rule = applied.rule_path();
            self.count(rule, |counts| match (trace.over, status.code) {
                (false, _) => counts.ok += 1,
                (true, Code::Ok) => counts.shadow += 1,
                (true, Code::OverLimit) => counts.over_limit += 1,
            });
            if status.code == Code::OverLimit {
                let entries = descriptor.entries.iter().map(|e| (e.key, e.value));
                self.deny(trace.key, rule, entries);
            }
        }
    }

    /// Counts a request that could not be counted for lack of memory.
    pub fn note_uncounted(&mut self) {
        self.requests += 1;
        self.ok += 1;
        self.uncounted += 1;
    }

    /// Returns the rules that limited a request, those with the most denials first.
    pub fn rules(&self) -> Vec<(&str, &RuleCounts)> {
        let mut rules: Vec<_> =
            self.by_rule.iter().map(|(path, counts)| (&**path, counts)).collect();
        rules.sort_by_key(|(path, counts)| {
            let RuleCounts { ok, over_limit, shadow } = counts;
            (std::cmp::Reverse((*over_limit, *shadow, *ok)), *path)
        });
        rules
    }

    /// Returns the `most` keys with the most denials.
    pub fn keys(&self, most: usize) -> Vec<&KeyDenials> {
        let mut keys: Vec<_> = self.by_key.values().collect();
        keys.sort_by(|a, b| {
            let order = b.over_limit.cmp(&a.over_limit);
            order.then_with(|| (&a.rule, &a.entries).cmp(&(&b.rule, &b.entries)))
        });
        keys.truncate(most);
        keys
    }

    fn count(&mut self, rule: &str, count: impl FnOnce(&mut RuleCounts)) {
        // Usually the rule is there already, and nothing is allocated.
        if let Some(counts) = self.by_rule.get_mut(rule) {
            count(counts);
        } else {
            count(self.by_rule.entry(rule.into()).or_default());
        }
    }

    fn deny<'a>(
        &mut self,
        key: Key,
        rule: &str,
        entries: impl Iterator<Item = (&'a str, &'a str)>,
    ) {
        if let Some(known) = self.by_key.get_mut(&key) {
            known.over_limit += 1;
            return;
        }
        let entries: Vec<_> = entries.map(|(key, value)| format!("{key}={value}")).collect();
        let entries: Box<str> = entries.join(", ").into();
        if self.by_key.len() >= KEYS_MAX || self.key_bytes + entries.len() > KEY_BYTES_MAX {
            self.give_way();
        }
        self.key_bytes += entries.len();
        self.by_key.insert(key, KeyDenials { rule: rule.into(), entries, over_limit: 1 });
    }

    /// Drops the half of the keys with the fewest denials.
    fn give_way(&mut self) {
        let mut counts: Vec<_> = self.by_key.values().map(|counts| counts.over_limit).collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable(middle);
        let median = *median;
        self.key_counts_low_by += median;
        self.by_key.retain(|_, counts| counts.over_limit > median);
        self.key_bytes = self.by_key.values().map(|it| it.entries.len()).sum();
    }
}

// === Replayed ===
//
// A replay of a log under one set of rules.

/// Maximum number of keys that are counted at once, about 100 bytes each; keys whose windows have
/// ended are evicted.
const LIMITER_KEYS_MAX: usize = 1 << 20;

/// Units of work for each descriptor: its rule is found, and its key looked at and charged.
const DESCRIPTOR_WORK: u64 = 512;

/// Decides requests at their logged times, and counts the results.
pub struct Replay<'r> {
    rules: &'r Rules,
    exact: ExactLimiter,
    /// The results so far.
    pub counts: ReplayCounts,
    /// The work of deciding so far: a unit for each byte of keys and values, and more for each
    /// entry and descriptor. One takes some nanoseconds.
    pub work: u64,
}

/// The decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// The request passed, or there was no room for its key.
    Passed,
    /// The request was denied.
    Denied,
    /// The request has no descriptor, so that Envoy would not have asked.
    NotAsked,
}

// === impl Replay ===

impl<'r> Replay<'r> {
    /// A replay that has counted nothing yet.
    pub fn new(rules: &'r Rules) -> Self {
        Self::within(rules, LIMITER_KEYS_MAX)
    }

    /// Creates a replay with at most `keys_max` keys at once. Requests beyond them pass, and are
    /// counted as [`ReplayCounts::uncounted`].
    pub fn within(rules: &'r Rules, keys_max: usize) -> Self {
        let exact = ExactLimiter::new(keys_max, KeyHasher::new(""), Modes::default());
        Self { rules, exact, counts: ReplayCounts::default(), work: 0 }
    }

    /// Decides `request` at the time `at`, in microseconds since the Unix epoch, and counts the
    /// result. If `at` is before the newest time so far, the newest time counts.
    pub fn request(&mut self, at: u64, request: &Request<'_>) -> Decided {
        self.counts.lines += 1;
        self.counts.note_time(at);
        if request.descriptors.is_empty() {
            self.counts.without_descriptor += 1;
            return Decided::NotAsked;
        }
        self.work += work(request);
        self.exact.advance(at);
        match self.exact.decide(self.rules, request) {
            Ok(verdict) => {
                self.counts.note(request, &verdict);
                if verdict.code == Code::OverLimit { Decided::Denied } else { Decided::Passed }
            }
            Err(_) => {
                self.counts.note_uncounted();
                Decided::Passed
            }
        }
    }
}

fn work(request: &Request<'_>) -> u64 {
    let of_descriptor = |descriptor: &Descriptor<'_>| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|it| STEP_WORK + (it.key.len() + it.value.len()) as u64);
        DESCRIPTOR_WORK + entries.sum::<u64>()
    };
    request.descriptors.iter().map(of_descriptor).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deny(counts: &mut ReplayCounts, n: u64) {
        counts.deny(Key::for_test(n), "rule", [("k", n.to_string().as_str())].into_iter());
    }

    #[test]
    fn the_keys_that_are_denied_most_stay_however_many_there_are() {
        let mut counts = ReplayCounts::default();
        for n in 0..3 * KEYS_MAX as u64 {
            deny(&mut counts, n);
            if n % 3 == 0 {
                deny(&mut counts, 1_000_000_000 + n % 2);
            }
        }
        assert!(counts.by_key.len() <= KEYS_MAX);
        let top: Vec<_> =
            counts.keys(2).iter().map(|key| (&*key.entries, key.over_limit)).collect();
        assert_eq!(top, [("k=1000000000", 50_000), ("k=1000000001", 50_000)]);
        assert!(counts.key_counts_low_by > 0, "{}", counts.key_counts_low_by);
    }

    #[test]
    fn keys_with_the_same_count_are_all_dropped_and_the_loss_is_reported() {
        let mut counts = ReplayCounts::default();
        (0..=KEYS_MAX as u64).for_each(|n| deny(&mut counts, n));
        assert_eq!((counts.by_key.len(), counts.key_counts_low_by), (1, 1));
    }

    #[test]
    fn a_late_line_counts_and_the_span_is_of_all() {
        let mut counts = ReplayCounts::default();
        [5, 7, 4, 6, 9].into_iter().for_each(|at| counts.note_time(at));
        assert_eq!((counts.out_of_order, counts.late_us_max, counts.span), (2, 3, Some((4, 9))));
    }

    #[test]
    fn only_the_first_unreadable_lines_are_kept() {
        let mut counts = ReplayCounts::default();
        (1..=9).for_each(|line| counts.note_unreadable("a", line, || "why".to_owned()));
        assert_eq!((counts.unreadable, counts.first_unreadable.len()), (9, UNREADABLE_SHOWN));
        assert_eq!(counts.first_unreadable[0].line, 1);
    }
}
