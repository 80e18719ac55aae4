//! The flag that says how skewed a demand is: the k-th key has weight 1/k^S.

/// Maximum skew: above it nearly every request is for the first key.
const SKEW_MAX: f64 = 10.0;

/// Parses the exponent S; 0 makes all keys alike.
pub(super) fn parse(text: &str) -> Result<f64, String> {
    let skew = text.parse().ok().filter(|skew| (0.0..=SKEW_MAX).contains(skew));
    skew.ok_or_else(|| format!("expected a number from 0 to {SKEW_MAX}, as in 1.0"))
}
