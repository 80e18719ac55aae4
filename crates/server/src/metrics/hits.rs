//! Classifies the hits of a decision as the reference implementation does
//! (`src/limiter/base_limiter.go` at f2fb157). Pure.

use ratelease_engine::verdict::{Counted, Status};

/// The hits of one descriptor, by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Hits {
    /// All hits.
    pub(super) total: u64,
    /// Hits of a charge that was allowed.
    pub(super) within: u64,
    /// Hits that exceeded the limit.
    pub(super) over: u64,
    /// Hits between the near limit and the limit, whether or not their charge was allowed.
    pub(super) near: u64,
}

// === impl Hits ===

impl Hits {
    /// Classifies the hits of `counted`, whose descriptor has this `status`. Hits above `ratio` of
    /// the limit are near.
    ///
    /// The use before the charge is computed from what remains, or remained before a denied charge
    /// spent it: an estimate while several pods hold tokens.
    pub(super) fn of(status: &Status<'_>, counted: &Counted, ratio: f32) -> Self {
        let Some(applied) = status.limit else { return Self::default() };
        let limit = applied.limit.capacity();
        let left = u64::from(status.remaining).min(limit);
        let hits = counted.hits;
        let threshold = threshold(limit, ratio);
        if counted.over {
            let left = left.max(counted.fitted.into()).min(limit);
            let before = limit - left;
            let over = hits.saturating_sub(left);
            let near = if left > 0 && over > 0 { limit - threshold.max(before) } else { 0 };
            return Self { total: hits, within: 0, over, near };
        }
        let after = limit - left;
        let near = after.saturating_sub(threshold).min(hits);
        Self { total: hits, within: hits, over: 0, near }
    }
}

/// The number of hits below the near limit; like the reference, this multiplies in 32 bits.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "limits are 32 bits wide, and the ratio lies from 0 to 1"
)]
fn threshold(limit: u64, ratio: f32) -> u64 {
    f64::from(limit as f32 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_engine::verdict::{AppliedLimit, Code, DecisionSource};
    use ratelease_rules::key::KeyHasher;
    use ratelease_rules::{Limit, Unit};

    /// With a limit of 10 and a ratio of 0.8.
    fn hits(hits: u64, remaining: u32, over: bool) -> (u64, u64, u64, u64) {
        split(hits, remaining, 0, over)
    }

    fn split(hits: u64, remaining: u32, fitted: u32, over: bool) -> (u64, u64, u64, u64) {
        let key = KeyHasher::new("").key("d", 0, std::iter::empty());
        let counted = Counted { key, hits, fitted, over, how: DecisionSource::Local };
        let limit = Limit::fixed_window(10, Unit::Minute);
        let status = Status {
            code: if over { Code::OverLimit } else { Code::Ok },
            limit: Some(AppliedLimit { limit, rule: None }),
            remaining,
            reset_after: None,
            counted: Some(counted),
        };
        let Hits { total, within, over, near } = Hits::of(&status, &counted, 0.8);
        (total, within, over, near)
    }

    #[test]
    fn hits_are_split_as_the_reference_splits_them() {
        for ((count, remaining, over), expected) in [
            ((1, 9, false), (1, 1, 0, 0)),
            ((1, 2, false), (1, 1, 0, 0)),
            ((1, 1, false), (1, 1, 0, 1)),
            ((1, 0, false), (1, 1, 0, 1)),
            ((3, 1, false), (3, 3, 0, 1)),
            ((3, 0, false), (3, 3, 0, 2)),
            ((10, 0, false), (10, 10, 0, 2)),
            ((0, 0, false), (0, 0, 0, 0)),
            ((1, 0, true), (1, 0, 1, 0)),
            ((4, 0, true), (4, 0, 4, 0)),
            // With a rule that does not spend the rest on a denied charge: 7 used, then 9.
            ((5, 3, true), (5, 0, 2, 2)),
            ((5, 1, true), (5, 0, 4, 1)),
        ] {
            assert_eq!(hits(count, remaining, over), expected, "{count} {remaining} {over}");
        }
    }

    /// The reference's counter after 7 hits of a limit of 10, and after 5 more, twice.
    #[test]
    fn a_denied_charge_that_spends_what_was_left_counts_that_as_near() {
        for ((count, fitted), expected) in [
            ((5, 3), (5, 0, 2, 2)),
            ((5, 0), (5, 0, 5, 0)),
            ((15, 10), (15, 0, 5, 2)),
            ((u64::MAX, u32::MAX), (u64::MAX, 0, u64::MAX - 10, 2)),
        ] {
            assert_eq!(split(count, 0, fitted, true), expected, "{count} {fitted}");
        }
    }

    #[test]
    fn the_threshold_is_reckoned_in_32_bits() {
        for (limit, ratio, expected) in
            [(10, 0.8, 8), (20, 0.8, 16), (4, 0.8, 3), (1, 0.8, 0), (7, 0.0, 0), (7, 1.0, 7)]
        {
            assert_eq!(threshold(limit, ratio), expected, "{limit} {ratio}");
        }
        assert_eq!(threshold(u64::from(u32::MAX), 1.0), 1 << 32, "one above, as there");
    }
}
