//! Decides requests of one descriptor, as most requests are: by the same steps as for several,
//! without the lists that those need.

use ratelease_rules::Rules;
use ratelease_rules::request::Descriptor;
use smallvec::smallvec;

use super::attempt::Attempt;
use super::resolve::{self, Resolved};
use super::transaction::status;
use super::{Request, Shared, TableFull, Time, Verdict};

impl Shared {
    /// As [`super::Limiter::decide_at_once`], for the only descriptor of `request`. `None` means
    /// that nothing is charged.
    pub(super) fn decide_one<'r>(
        &self,
        rules: &'r Rules,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        now: Time,
    ) -> Option<Verdict<'r>> {
        let resolved = resolve::resolve_one(rules, request, descriptor, &self.options.hasher);
        let attempt = match &resolved {
            Resolved::Free | Resolved::Unlimited => None,
            Resolved::Charged(charge) => {
                let mut attempt = match self.attempt(charge, now) {
                    Ok(attempt) => attempt,
                    // The refund has to be sent, and its reply awaited.
                    Err(TableFull) if charge.refund => return None,
                    Err(TableFull) => Attempt::shed(charge),
                };
                if !attempt.is_settled() {
                    return None;
                }
                if attempt.slot_after(now).is_some() {
                    self.undo(charge, &mut attempt); // the slot has to be waited for
                    return None;
                }
                if charge.refund {
                    self.refund(charge, now); // nothing else can deny the request
                }
                Some(attempt)
            }
        };
        let statuses = smallvec![status(&resolved, attempt.as_ref())];
        Some(Verdict::new(request, statuses, self.options.modes))
    }
}
