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
        .map(|candidate| (strsim::osa_distance(&name, candidate), *candidate))
        .min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= candidate.len().max(3)).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

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
