//! Finds the known name that is nearest to a misspelt one.

/// Longer names get no suggestion: comparing them costs the product of the lengths.
const NAME_CHARS_MAX: usize = 32;

/// Returns the candidate nearest to `name`, if it is near enough: at most one edit for every three
/// characters. A difference in case does not count.
pub fn nearest<'c>(name: &str, candidates: &[&'c str]) -> Option<&'c str> {
    if name.chars().count() > NAME_CHARS_MAX {
        return None;
    }
    let name = name.to_lowercase();
    let (distance, candidate) = candidates
        .iter()
        .map(|candidate| (edit_distance(&name, candidate), *candidate))
        .min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= candidate.len().max(3)).then_some(candidate)
}

/// Returns the number of insertions, removals, replacements and swaps of neighbours that turn `a`
/// into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Row i + 1 holds, at j + 1, the distance between the first i + 1 characters of a and the first
    // j + 1 of b.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(from != to)).min(rows[i][j + 1] + 1);
            best = best.min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_single_slips() {
        let table = [
            ("", "", 0),
            ("", "abc", 3),
            ("ratelimit", "rate_limit", 1),
            ("kitten", "sitting", 3),
            ("kye", "key", 1),
            ("aé", "é", 1),
        ];
        for (a, b, distance) in table {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
            assert_eq!(edit_distance(b, a), distance, "{b} {a}");
        }
    }

    #[test]
    fn suggests_a_near_name_and_nothing_far() {
        let names =
            ["key", "rate_limit", "requests_per_unit", "algorithm", "max_delay", "metadata"];
        assert_eq!(nearest("ratelimit", &names), Some("rate_limit"));
        assert_eq!(nearest("requestsPerUnit", &names), Some("requests_per_unit"));
        assert_eq!(nearest("kye", &names), Some("key"));
        assert_eq!(nearest("keys", &names), Some("key"));
        assert_eq!(nearest("algoritm", &names), Some("algorithm"));
        assert_eq!(nearest("max_dealy", &names), Some("max_delay"));
        assert_eq!(nearest("on_redis_error", &names), None);
        assert_eq!(nearest(&"x".repeat(100_000), &names), None);
    }
}
