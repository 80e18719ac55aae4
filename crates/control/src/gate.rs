//! Whether the chosen pods of a rollout have shown enough for its next step.
//!
//! A step without evidence is inconclusive: it is neither refused for denied hits nor taken. The
//! stage `shadow` begins with empty counts, so that it tells nothing before the longest window of
//! the changed limits has turned once.

use std::collections::BTreeMap;

use crate::store::{
    Bound, CountKey, HitCount, Hits, PodRow, Rollout, RolloutStep, Stage, StepHits, percent, share,
};

/// Domains that a reason names.
const NAMED_MAX: usize = 5;

/// The largest share of requests that may be left out of the comparison with the draft, and of pods
/// that may be. If each of
/// these would be denied, or none, the counted share is wrong by as much.
const LEFT_OUT_MAX: f64 = 0.05;

/// The evidence of the chosen pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gate {
    /// The next step may be taken.
    Open,
    /// They deny more than the bound allows, or would; in words.
    Exceeded(String),
    /// They show too little to tell; in words.
    Inconclusive(String),
}

// === impl Gate ===

impl Gate {
    /// Judges the hits of the rollout's present step at the time `now`, in milliseconds since the
    /// Unix epoch. `rows` has the connected pods that serve its domains.
    pub fn of(rollout: &Rollout, rows: &[PodRow], hits: &StepHits, now: i64) -> Self {
        let exceeded = rollout.bound.and_then(|bound| {
            let exceeding = |hits| exceeding(&bound, rollout, hits);
            // Shares of counts that began empty are too small, and say only that more is denied.
            let early = || window_not_turned(rollout, now).and_then(|_| exceeding(&hits.early));
            exceeding(&hits.weighed).or_else(early)
        });
        if let Some(why) = exceeded {
            return Self::Exceeded(why);
        }
        inconclusive(rollout, rows, hits, now).map_or(Self::Open, Self::Inconclusive)
    }

    /// Why the next step is not to be taken.
    pub fn why(self) -> Option<String> {
        match self {
            Self::Open => None,
            Self::Exceeded(why) | Self::Inconclusive(why) => Some(why),
        }
    }
}

/// Whether the rollout chose one of these pods.
pub fn has_chosen(rollout: &Rollout, rows: &[PodRow]) -> bool {
    rows.iter().any(|row| row.chosen_by.contains(&rollout.id))
}

/// When the candidate rules have counted for a whole window, in milliseconds since the Unix epoch.
pub fn shadow_tells_at(rollout: &Rollout) -> i64 {
    let began = rollout.steps.first().map_or(0, |it| it.at);
    began.saturating_add(rollout.longest_window.saturating_mul(1000))
}

/// Warns that the longest window has not turned since the counts of the stage `shadow` began;
/// `None` if it has.
pub fn window_not_turned(rollout: &Rollout, now: i64) -> Option<String> {
    let left = shadow_tells_at(rollout) - now;
    (rollout.last().stage == Stage::Shadow && left > 0).then(|| {
        format!(
            "the counts of the draft began empty, and the longest window of its limits, {} s, ends \
             in {} s",
            rollout.longest_window,
            left.div_euclid(1000) + 1
        )
    })
}

/// Names the domains that deny more on the chosen pods than the bound allows, or would deny more
/// once these enforce the rules; `None` if there are none.
fn exceeding(bound: &Bound, rollout: &Rollout, hits: &Hits) -> Option<String> {
    let share = bound.denied_share;
    let (domains, verb) = match rollout.last().stage {
        // A hit may be denied by the limit in force and by the one that replaces it.
        Stage::Shadow => (bound.exceeded(hits, |it| it.denied.max(it.shadow))?, "would deny"),
        _ => (bound.exceeded(hits, |it| it.denied)?, "deny"),
    };
    Some(format!("the chosen pods {verb} more than the share {share}: {domains}"))
}

/// Why the chosen pods show too little of a rollout for its next step, in words; `None` if they show
/// enough. Without a bound a person looks at the hits, of which there have to be some.
fn inconclusive(rollout: &Rollout, rows: &[PodRow], hits: &StepHits, now: i64) -> Option<String> {
    if !has_chosen(rollout, rows) {
        return Some("no chosen pod is connected".to_owned());
    }
    few(rollout, rows, hits, now).or_else(|| {
        let is_left_out = |it: &HitCount| {
            let share = share(it.left_out, it.hits.saturating_add(it.left_out))?;
            (share > LEFT_OUT_MAX).then(|| percent(share))
        };
        let named = named(rollout, &hits.weighed, is_left_out)?;
        Some(format!("too many requests were left out of the comparison: {named}"))
    })
}

/// Why there are too few hits, in words; `None` if there are enough.
fn few(rollout: &Rollout, rows: &[PodRow], hits: &StepHits, now: i64) -> Option<String> {
    let Some(bound) = rollout.bound else { return unheard(rollout, rows, hits) };
    let hits_min = u64::try_from(bound.hits_min).unwrap_or_default();
    let is_few = |it: &HitCount| (it.hits < hits_min).then(|| it.hits.to_string());
    window_not_turned(rollout, now).or_else(|| uncounted(rollout, rows)).or_else(|| {
        let named = named(rollout, &hits.weighed, is_few)?;
        Some(format!("the chosen pods had fewer than the {hits_min} hits of the bound: {named}"))
    })
}

/// Names the domains that chosen pods, which report their hits, had none of; `None` if there are none.
fn unheard(rollout: &Rollout, rows: &[PodRow], hits: &StepHits) -> Option<String> {
    let reports = |row: &PodRow| row.reports && row.chosen_by.contains(&rollout.id);
    if !rows.iter().any(reports) {
        return None;
    }
    let named = named(rollout, &hits.all, |it| (it.hits == 0).then(String::new))?;
    Some(format!("the chosen pods had no hits since the step began: {named}"))
}

/// Says how many pods count nothing for the stage `shadow`, which takes the limits of the draft for
/// wider than they are then; `None` if there are few: of the pods, and of their origins, of which each
/// counts once, so that one address with many ids that count hides no pod that does not.
fn uncounted(rollout: &Rollout, rows: &[PodRow]) -> Option<String> {
    let RolloutStep { stage, version, .. } = *rollout.last();
    let is_silent = |row: &&PodRow| !row.reports || row.accepted < version;
    let silent = rows.iter().filter(is_silent).count();
    let mut origins = BTreeMap::<_, (u64, u64)>::new();
    for row in rows {
        let (silent, all) = origins.entry(row.origin()).or_default();
        (*silent, *all) = (*silent + u64::from(is_silent(&row)), *all + 1);
    }
    let parts = origins.values().filter_map(|(silent, all)| share(*silent, *all));
    let count = f64::from(u32::try_from(origins.len()).unwrap_or(u32::MAX));
    let of_origins = parts.sum::<f64>() > LEFT_OUT_MAX * count;
    let of_pods = share(silent as u64, rows.len() as u64).is_some_and(|it| it > LEFT_OUT_MAX);
    (stage == Stage::Shadow && (of_pods || of_origins)).then(|| {
        format!(
            "{silent} of {} pods count nothing for the draft: they report no hits, or do not run \
             the version {version}",
            rows.len()
        )
    })
}

/// The domains of a rollout of whose hits on the chosen pods `what` says something, with that; `None`
/// if there are none.
fn named(
    rollout: &Rollout,
    hits: &Hits,
    what: impl Fn(&HitCount) -> Option<String>,
) -> Option<String> {
    let version = rollout.last().version;
    let of = |domain: &str| {
        let key = CountKey { version, domain: domain.to_owned(), is_chosen: true };
        hits.get(&key).copied().unwrap_or_default()
    };
    let all = rollout.domains.iter().filter_map(|it| Some((&*it.domain, what(&of(&it.domain))?)));
    let all: Vec<_> = all.collect();
    let named = all.iter().take(NAMED_MAX).map(|(domain, what)| {
        let domain = ratelease_rules::excerpt(domain);
        format!("'{domain}' {what}").trim_end().to_owned()
    });
    let named: Vec<_> = named.collect();
    let others = all.len() - named.len();
    let others = if others > 0 { format!(" and {others} others") } else { String::new() };
    (!all.is_empty()).then(|| format!("{}{others}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Choice, RolloutDomain, plan_of_one_stage};

    const BEGAN: i64 = 1_000_000;

    fn row(node: &str, chosen_by: &[i64]) -> PodRow {
        let (node, chosen_by) = (node.to_owned(), chosen_by.to_vec());
        PodRow { node, chosen_by, reports: true, accepted: 9, ..PodRow::default() }
    }

    /// A rollout at a stage, of the domain `shop` with a limit a minute.
    fn rollout(stage: Stage, hits_min: i64) -> Rollout {
        let choice = Choice::Percent(50);
        Rollout {
            id: 7,
            plan: plan_of_one_stage(stage, &choice),
            choice,
            bound: Some(Bound { denied_share: 0.05, hits_min }),
            time_limit: None,
            longest_window: 60,
            seed: None,
            domains: vec![RolloutDomain {
                domain: "shop".to_owned(),
                changed: 1,
                shadow: None,
                others: None,
                hash: None,
            }],
            steps: vec![RolloutStep {
                stage,
                version: 9,
                at: BEGAN,
                author: String::new(),
                reason: String::new(),
                number: Some(1),
                percent: Some(50),
                shares: Vec::new(),
            }],
        }
    }

    fn counted(hits: u64, denied: u64, shadow: u64, left_out: u64) -> StepHits {
        let key = CountKey { version: 9, domain: "shop".to_owned(), is_chosen: true };
        let counts: Hits = [(key, HitCount { hits, denied, shadow, left_out })].into();
        StepHits { weighed: counts.clone(), all: counts, ..StepHits::default() }
    }

    fn kind(rollout: &Rollout, rows: &[PodRow], hits: &StepHits, seconds: i64) -> &'static str {
        match Gate::of(rollout, rows, hits, BEGAN + seconds * 1000) {
            Gate::Open => "open",
            Gate::Exceeded(_) => "exceeded",
            Gate::Inconclusive(_) => "inconclusive",
        }
    }

    #[test]
    fn a_gate_without_evidence_does_not_open() {
        let chosen = [row("a", &[7])];
        for stage in [Stage::Shadow, Stage::Enforced] {
            let it = rollout(stage, 100);
            let kind = |rows: &[PodRow], hits: StepHits| kind(&it, rows, &hits, 60);
            assert_eq!(kind(&[], counted(900, 0, 0, 0)), "inconclusive");
            assert_eq!(kind(&[row("b", &[8])], counted(900, 0, 0, 0)), "inconclusive");
            assert_eq!(kind(&chosen, StepHits::default()), "inconclusive");
            assert_eq!(kind(&chosen, counted(99, 0, 0, 0)), "inconclusive");
            assert_eq!(kind(&chosen, counted(100, 5, 0, 0)), "open");
            assert_eq!(kind(&chosen, counted(100, 6, 0, 0)), "exceeded");
        }
        let shadow = rollout(Stage::Shadow, 100);
        assert_eq!(kind(&shadow, &chosen, &counted(100, 0, 6, 0), 60), "exceeded");
        // A person who set no bound looks at the hits.
        let unbound = Rollout { bound: None, ..shadow };
        assert_eq!(kind(&unbound, &chosen, &counted(1, 1, 1, 0), 60), "open");
        assert_eq!(kind(&unbound, &chosen, &StepHits::default(), 60), "inconclusive");
        let silent = [PodRow { reports: false, ..row("a", &[7]) }];
        assert_eq!(kind(&unbound, &silent, &StepHits::default(), 60), "open", "none can report");
        assert_eq!(kind(&unbound, &[], &StepHits::default(), 60), "inconclusive");
    }

    #[test]
    fn a_shadow_tells_nothing_before_its_longest_window_has_turned() {
        let (chosen, hits) = ([row("a", &[7])], counted(900, 0, 0, 0));
        let of = |stage, seconds| kind(&rollout(stage, 100), &chosen, &hits, seconds);
        assert_eq!((of(Stage::Shadow, 59), of(Stage::Shadow, 60)), ("inconclusive", "open"));
        assert_eq!(of(Stage::Enforced, 0), "open", "what is denied is denied");
    }

    #[test]
    fn hits_before_the_window_has_turned_refuse_until_then_and_open_nothing() {
        let chosen = [row("a", &[7])];
        let early =
            |shadow| StepHits { early: counted(900, 0, shadow, 0).weighed, ..StepHits::default() };
        let of =
            |shadow, seconds| kind(&rollout(Stage::Shadow, 100), &chosen, &early(shadow), seconds);
        assert_eq!((of(300, 59), of(300, 60)), ("exceeded", "inconclusive"));
        assert_eq!((of(0, 59), of(0, 60)), ("inconclusive", "inconclusive"));
    }

    #[test]
    fn a_shadow_that_lacks_the_counts_of_many_pods_is_inconclusive() {
        let row = |at: usize| row(&format!("pod-{at}"), &[7][..usize::from(at < 2)]);
        let mut rows: Vec<_> = (0..20).map(row).collect();
        let of =
            |stage, rows: &[PodRow]| kind(&rollout(stage, 100), rows, &counted(900, 0, 0, 0), 60);
        rows[19].reports = false;
        assert_eq!(of(Stage::Shadow, &rows), "open", "a twentieth");
        rows[18].accepted = 8;
        assert_eq!(of(Stage::Shadow, &rows), "inconclusive");
        assert_eq!(of(Stage::Enforced, &rows), "open");
    }

    #[test]
    fn many_ids_of_one_address_do_not_hide_pods_that_count_nothing() {
        let honest =
            (2..22).map(|origin| PodRow { origin, ..row("", &[7][..usize::from(origin < 4)]) });
        let mut rows: Vec<_> = honest.collect();
        rows[18].reports = false;
        rows[19].reports = false;
        rows.extend((0..1000).map(|at| PodRow { origin: 1, ..row(&at.to_string(), &[]) }));
        let it = rollout(Stage::Shadow, 100);
        assert_eq!(kind(&it, &rows, &counted(900, 0, 0, 0), 60), "inconclusive");
    }

    #[test]
    fn a_comparison_that_leaves_out_many_requests_is_inconclusive() {
        let chosen = [row("a", &[7])];
        let bound = rollout(Stage::Shadow, 100);
        for it in [Rollout { bound: None, ..bound.clone() }, bound] {
            let of = |left_out| kind(&it, &chosen, &counted(950, 0, 0, left_out), 60);
            assert_eq!((of(50), of(51)), ("open", "inconclusive"));
        }
    }
}
