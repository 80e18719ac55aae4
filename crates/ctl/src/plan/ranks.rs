//! The keys of a fleet by their part of the demand: Zipf's law, in groups of similar keys.

/// A group of similar keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Group {
    pub(super) keys: f64,
    /// The part of the whole demand for each of them.
    pub(super) weight: f64,
}

/// The first ranks form a group each; of the others, this ratio bounds a group's last rank relative
/// to its first.
const ALONE: u64 = 1_000;
const GROWTH: f64 = 1.01;

/// Groups `keys` keys, of which the k-th has weight 1/k^`skew`, hottest first. The weights add up
/// to 1.
pub(super) fn groups(keys: u64, skew: f64) -> Vec<Group> {
    if skew == 0.0 {
        let keys = keys as f64;
        return vec![Group { keys, weight: 1.0 / keys }];
    }
    let mut groups = Vec::new();
    let mut first = 1;
    while first <= keys {
        let last = if first < ALONE { first } else { after(first).min(keys) };
        groups.push(group(first, last, skew));
        first = last + 1;
    }
    let total: f64 = groups.iter().map(|group| group.keys * group.weight).sum();
    groups.into_iter().map(|group| Group { weight: group.weight / total, ..group }).collect()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
fn after(first: u64) -> u64 {
    (first as f64 * GROWTH) as u64
}

/// Groups the ranks `first` to `last`; their weight is the mean, computed as an integral.
fn group(first: u64, last: u64, skew: f64) -> Group {
    let keys = (last - first + 1) as f64;
    if first == last {
        return Group { keys, weight: (first as f64).powf(-skew) };
    }
    let (low, high) = (first as f64 - 0.5, last as f64 + 0.5);
    let sum = if skew == 1.0 {
        (high / low).ln()
    } else {
        (high.powf(1.0 - skew) - low.powf(1.0 - skew)) / (1.0 - skew)
    };
    Group { keys, weight: sum / keys }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_hold_every_key_and_all_demand() {
        for skew in [0.0, 0.5, 1.0, 1.2, 10.0] {
            for keys in [1, 2, 999, 1_000, 1_001, 123_456, 1_000_000_000_000] {
                let groups = groups(keys, skew);
                let held: f64 = groups.iter().map(|group| group.keys).sum();
                let weight: f64 = groups.iter().map(|group| group.keys * group.weight).sum();
                assert_eq!(held, keys as f64, "{skew}");
                assert!((weight - 1.0).abs() < 1e-9, "{weight} of {keys} by {skew}");
                assert!(groups.len() < 4_000, "{} groups of {keys}", groups.len());
            }
        }
    }

    #[test]
    fn a_group_has_the_weight_of_its_keys() {
        let exact: f64 = (1..=100_000).map(|rank| 1.0 / f64::from(rank)).sum();
        let groups = groups(100_000, 1.0);
        let hottest = groups[0].weight;
        assert!((hottest * exact - 1.0).abs() < 1e-6, "{hottest}, not 1/{exact}");
        let tail: f64 = groups.iter().skip(1_000).map(|group| group.keys * group.weight).sum();
        assert!((0.35..0.42).contains(&tail), "{tail}");
    }
}
