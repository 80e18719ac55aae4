//! Parts of all requests, which Envoy's runtime may set.
//!
//! Only Envoy's main thread can read its runtime. So a key is read when the configuration that
//! names it is made, and not again.

use std::sync::Once;

use ratelease_envoy_abi::runtime_integer;

/// A part of all requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fraction(
    /// 0 to 1.
    f64,
);

/// The key for the part of requests that are decided, where Envoy's filter names no key.
pub const ENABLED: &str = "ratelimit.http_filter_enabled";
/// The key for the part of denials that are enforced, where Envoy's filter names no key.
pub const ENFORCING: &str = "ratelimit.http_filter_enforcing";

// === impl Fraction ===

impl Fraction {
    /// Every request.
    pub const ALL: Self = Self(1.0);

    /// A part from 0 to 1, and all if it is larger.
    pub fn new(part: f64) -> Self {
        Self(part)
    }

    /// The percents at the key that a configuration names; `None` if there is no whole number. The
    /// first key is warned of.
    pub fn at(key: &str) -> Option<Self> {
        static WARNED: Once = Once::new();
        let found = Self::quietly_at(key);
        WARNED.call_once(|| {
            let now = match found {
                Some(Self(part)) => format!("{} %", part * 100.0),
                None => {
                    "no whole number is there, so the configuration's own value counts".to_owned()
                }
            };
            crate::warn(&format!(
                "a key of Envoy's runtime is read once, when the configuration that names it is \
                 made, and later changes are not seen; {key}: {now}"
            ));
        });
        found
    }

    /// The percents at a key that no configuration names; `None` if there is no whole number. The
    /// first key with a number is warned of.
    pub fn at_known(key: &str) -> Option<Self> {
        let found = Self::quietly_at(key)?;
        Self::at(key);
        Some(found)
    }

    fn quietly_at(key: &str) -> Option<Self> {
        let percent = u32::try_from(runtime_integer(key)?.min(100)).ok()?;
        Some(Self(f64::from(percent) / 100.0))
    }

    /// Whether a request belongs to the part, by a new random number for each call.
    pub fn draw(self) -> bool {
        self.0 >= 1.0 || (self.0 > 0.0 && fastrand::f64() < self.0)
    }
}
