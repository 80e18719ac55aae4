//! One exact server over virtual time: the limiter's resolving, the store's arithmetic and the
//! verdict's own code, without leases between them.

use std::collections::HashMap;

use crate::algorithm::{State, step};
use crate::key::{Key, KeyHasher};
use crate::limiter::{Charge, Resolved, resolve};
use crate::request::Request;
use crate::rules::Rules;
use crate::store::Ask;
use crate::verdict::{self, Code, Counted, How, Modes, Outcome, Trace, Verdict};

/// Counts of one case.
pub(super) struct Server<'r> {
    rules: &'r Rules,
    hasher: KeyHasher,
    states: HashMap<Key, State>,
}

/// What a charge came to, and what there was before it.
struct Charged<'r> {
    counted: Counted<'r>,
    key: Key,
    before: Option<State>,
    /// Tokens taken; given back if the request is denied elsewhere.
    tokens: u64,
    /// What it did to its key stays, though the request is denied.
    stays: bool,
}

// === impl Server ===

impl<'r> Server<'r> {
    /// One at which nothing was counted yet.
    pub(super) fn new(rules: &'r Rules) -> Self {
        Self { rules, hasher: KeyHasher::new(""), states: HashMap::new() }
    }

    /// The verdict on `request`, so long after the Unix epoch, where all windows begin. As
    /// `Limiter::decide`: where it denies, only keys that it overran stay charged.
    pub(super) fn decide(&mut self, request: &Request<'_>, now_us: u64) -> Verdict<'r> {
        let modes = Modes::default();
        let resolved = resolve(self.rules, request, &self.hasher);
        let mut charged: Vec<Option<Charged<'r>>> = Vec::with_capacity(resolved.len());
        for one in &resolved {
            charged.push(match one {
                Resolved::Charged(charge) => Some(self.charge(charge, now_us)),
                Resolved::Free | Resolved::Unlimited => None,
            });
        }
        if verdict::code(&outcomes(&resolved, &charged), modes) == Code::OverLimit {
            self.release(&mut charged);
        }
        Verdict::new(request, &outcomes(&resolved, &charged), modes)
    }

    fn charge(&mut self, charge: &Charge<'r>, now_us: u64) -> Charged<'r> {
        let Charge { own: key, applied, hits, .. } = *charge;
        let charge_denied = charge.charge_denied();
        let ask = Ask { need: hits, charge_denied, ..Ask::look(key, applied.limit) };
        let before = self.states.remove(&key);
        let (state, grant) = step(before.clone(), now_us, &ask);
        self.states.insert(key, state);
        let over = if hits == 0 { grant.overdrawn } else { grant.tokens < hits };
        let counted = Counted {
            applied,
            trace: Trace { key, hits, over, how: How::Leased },
            remaining: grant.left,
            reset_after: Some(grant.reset_after),
        };
        let stays = over && hits > 0 && charge_denied;
        Charged { counted, key, before, tokens: grant.tokens, stays }
    }

    /// Takes back, last first, what was charged to keys that were not overrun.
    fn release(&mut self, charged: &mut [Option<Charged<'r>>]) {
        let staying: Vec<Key> =
            charged.iter().flatten().filter(|one| one.stays).map(|one| one.key).collect();
        for one in charged.iter_mut().rev().flatten() {
            if staying.contains(&one.key) {
                continue;
            }
            match one.before.take() {
                Some(state) => self.states.insert(one.key, state),
                None => self.states.remove(&one.key),
            };
            one.counted.remaining += std::mem::take(&mut one.tokens);
        }
    }
}

fn outcomes<'r>(resolved: &[Resolved<'r>], charged: &[Option<Charged<'r>>]) -> Vec<Outcome<'r>> {
    let each = resolved.iter().zip(charged).map(|(resolved, charged)| match (resolved, charged) {
        (_, Some(charged)) => Outcome::Counted(charged.counted),
        (Resolved::Unlimited, None) => Outcome::Unlimited,
        (Resolved::Free | Resolved::Charged(_), None) => Outcome::Free,
    });
    each.collect()
}
