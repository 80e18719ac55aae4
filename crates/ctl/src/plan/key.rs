//! One key in one window, under a steady demand that is spread evenly over the pods: how often the
//! fleet asks for it, and how many requests wait for these asks. The sizes of leases are those of
//! `lease::size`; `docs/capacity.md` derives the formulas.

use ratelease_engine::lease::size::UNSPENT_ALLOWANCE;
use ratelease_rules::LeaseTerms;

/// φ: the rules of a plan have the default terms.
const FRACTION: f64 = LeaseTerms::FRACTION as f64;

/// The intended duration of a lease for each range of the limit: each range reaches down to the
/// given remaining part.
const SPANS: [(f64, f64); 3] = [(0.5, 2.0), (0.2, 0.25), (0.0, 0.05)];

/// Minimum use of a key, in hits a second, for which a pod asks ahead. A key below it is idle
/// between two hits, and its pod holds at most the number of tokens that may stay unspent.
const WARM: f64 = 5.0;

/// The whole fleet probes a denied key once in this part of its window, within the bounds below.
const PROBES: f64 = 100.0;
const PROBE_SECONDS: (f64, f64) = (0.05, 1.0);

/// Number of terms of a sum that are added one by one; an integral approximates the rest.
const TERMS: u32 = 1_000;

/// The demand for a key, and its limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    /// Hits per window, of all pods.
    pub(super) offered: f64,
    /// Tokens per window.
    pub(super) limit: f64,
    /// Length of the window in seconds.
    pub(super) window: f64,
    pub(super) pods: f64,
}

/// The cost of one key in one window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    pub(super) admitted: f64,
    /// Number of asks of all pods.
    pub(super) asks: f64,
    /// Number of requests that wait for an answer of Redis.
    pub(super) waits: f64,
    /// Number of pods that see the key at all.
    pub(super) holders: f64,
}

impl Demand {
    pub(super) fn cost(self) -> Cost {
        let Self { offered, limit, .. } = self;
        let holders = self.holders_after(self.window);
        let admitted = offered.min(limit);
        let denied = offered - admitted;
        // Each holder asks at least once.
        let least = holders.min(admitted);
        let lent = self.lent(holders.max(1.0), admitted).clamp(least, admitted.max(least));
        let refused = if denied > 0.0 { (holders + self.probes(denied)).min(denied) } else { 0.0 };
        let waits = if self.is_warm() {
            (holders + near_end(limit, admitted, holders)).min(lent)
        } else {
            lent
        };
        Cost { admitted, asks: lent + refused, waits: waits + refused, holders }
    }

    /// Returns the number of pods that see the key within `seconds`: hits reach pods at random.
    pub(super) fn holders_after(self, seconds: f64) -> f64 {
        let hits = self.offered * seconds / self.window;
        -self.pods * (-hits / self.pods).exp_m1()
    }

    /// Returns the hits a second of one pod.
    fn rate(self) -> f64 {
        self.offered / self.window / self.pods
    }

    fn is_warm(self) -> bool {
        self.rate() >= WARM
    }

    /// Returns the number of asks that lease `tokens` out of a full window.
    fn lent(self, holders: f64, tokens: f64) -> f64 {
        let last = self.limit - tokens;
        let mut from = self.limit;
        let mut asks = 0.0;
        for (above, span) in SPANS {
            let to = last.max(above * self.limit);
            if to < from {
                let demand =
                    if self.is_warm() { self.rate() * span.min(self.window / 4.0) } else { 0.0 };
                let most = demand.max(UNSPENT_ALLOWANCE * self.limit / holders).floor().max(1.0);
                asks += draws(from, to, most, holders / FRACTION);
                from = to;
            }
        }
        asks
    }

    /// Returns the number of asks for a key while it is used up.
    fn probes(self, denied: f64) -> f64 {
        let (least, most) = PROBE_SECONDS;
        let each = (self.window / PROBES).clamp(least, most);
        self.window * denied / self.offered / each
    }
}

/// Returns the number of asks that reduce the remaining tokens from `from` to `to`, each for ⌊left
/// / `parts`⌋ tokens, from 1 to `most`.
fn draws(from: f64, to: f64, most: f64, parts: f64) -> f64 {
    // First asks for `most` tokens each while enough are left, then for fewer and fewer.
    let enough = most * parts;
    let full = (from - to.max(enough)).max(0.0) / most;
    let (from, to) = (from.min(enough), to.min(enough));
    let mut asks = full;
    // Asks for one token, below 2 · parts.
    asks += (from.min(2.0 * parts) - to.min(2.0 * parts)) * 1.0;
    let mut size = 2.0;
    while size < most && size * parts < from && size <= f64::from(TERMS) {
        let (low, high) = ((size * parts).max(to), ((size + 1.0) * parts).min(from));
        asks += (high - low).max(0.0) / size;
        size += 1.0;
    }
    let low = (size * parts).max(to);
    if size < most && low < from {
        asks += parts * (from / low).ln();
    }
    asks
}

/// Returns the number of tokens that are not leased ahead of a request: the last ones, when a pod's
/// part of the remaining tokens is below one.
fn near_end(limit: f64, admitted: f64, holders: f64) -> f64 {
    (limit.min(holders / FRACTION) - (limit - admitted)).max(0.0)
}
