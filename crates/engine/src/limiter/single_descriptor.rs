//! Decides requests of one descriptor, as most requests are: by the same steps as for several,
//! without the lists that those need.

use ratelease_rules::Rules;
use ratelease_rules::request::Descriptor;

use super::outcome::Attempt;
use super::resolve::{self, Resolved};
use super::transaction::outcome;
use super::{Request, Shared, StoreError, Time, Verdict};

impl Shared {
    /// As [`super::Limiter::decide_at_once`], for the only descriptor of `request`. `None` means
    /// that nothing has changed.
    pub(super) fn decide_one<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        now: Time,
    ) -> Option<Result<Verdict<'r>, StoreError>> {
        let resolved = resolve::resolve_one(rules, request, descriptor, &self.options.hasher);
        let attempt = match &resolved {
            Resolved::Free | Resolved::Unlimited => None,
            Resolved::Charged(charge) => {
                let mut settled = match self.attempt(charge, now) {
                    Ok(Attempt::Settled(settled)) => settled,
                    Ok(Attempt::Short(_)) => return None,
                    // The refund has to be sent, and its reply awaited.
                    Err(_) if charge.refund => return None,
                    Err(error) => match self.without_store(charge, now, error) {
                        Ok(settled) => settled,
                        Err(error) => return Some(Err(error)),
                    },
                };
                if settled.taken.starts > now && !settled.over {
                    self.undo(charge, &mut settled); // the slot has to be waited for
                    return None;
                }
                if charge.refund {
                    self.refund(charge, now); // nothing else can deny the request
                }
                Some(Attempt::Settled(settled))
            }
        };
        let outcomes = [outcome(&resolved, attempt.as_ref())];
        Some(Ok(Verdict::new(request, &outcomes, self.options.modes)))
    }
}
