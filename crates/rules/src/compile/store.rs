//! Compiles the names of stores.

use super::{Compiler, Domain};
use crate::fault::{Place, excerpt};
use crate::file::{File, RateLimit, StoreFields};
use crate::limit::Algorithm;
use crate::parsed::Parsed;
use crate::store::{StoreId, StoreRef};

/// Two stores that count the same requests do not agree on their slots while pods differ.
const LEAKY_MOVES: &str = "leaky_bucket cannot move with 'store_from', that of its domain \
                           included; give this limit a 'store' alone";

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns the store of a limit: its own, or that of its domain. `None` if it is faulty, after
    /// reporting the fault.
    pub(super) fn store_of_limit(
        &mut self,
        limit: &RateLimit<'_>,
        kind: Option<Algorithm>,
    ) -> Option<StoreRef> {
        let store = match self.store(&limit.store) {
            Parsed::Absent => self.store,
            Parsed::Faulty => return None,
            Parsed::As(_, store) => store,
        };
        if store.from.is_some() && matches!(kind, Some(Algorithm::LeakyBucket { .. })) {
            let place = limit.store.store_from.place().unwrap_or(limit.place);
            self.findings.fault(place, LEAKY_MOVES);
            return None;
        }
        Some(store)
    }

    /// Returns the store of the domain that `file` configures, or adds to. All files of a domain
    /// have one store: overrides belong to no file.
    pub(super) fn store_of_file(
        &mut self,
        file: &File<'_>,
        is_new: bool,
        domain: &Domain,
    ) -> StoreRef {
        let Parsed::As(place, store) = self.store(&file.store) else { return domain.store };
        if !is_new && store != domain.store {
            let message = format!(
                "domain '{}' has another store in {}:{}; name the same one there and here",
                excerpt(file.domain.text()),
                excerpt(&domain.file),
                domain.line
            );
            self.findings.fault(place, message);
        }
        store
    }

    fn store(&mut self, fields: &StoreFields<'_>) -> Parsed<StoreRef> {
        let StoreFields { store, store_from } = fields;
        let owner = self.named(store);
        let from = self.named(store_from);
        match (owner, from) {
            (Parsed::As(place, owner), Parsed::Absent) => {
                Parsed::As(place, StoreRef { owner, from: None })
            }
            (Parsed::As(place, owner), Parsed::As(at, from)) => {
                if owner == from {
                    let message = "'store_from' names the store that the limit moves to; name the \
                                   one that counted it before, or remove it";
                    self.findings.fault(at, message);
                    return Parsed::Faulty;
                }
                Parsed::As(place, StoreRef { owner, from: Some(from) })
            }
            (Parsed::Absent, Parsed::As(at, _)) => {
                let message = "'store_from' needs 'store' beside it: the store to move to";
                self.findings.fault(at, message);
                Parsed::Faulty
            }
            (Parsed::Absent, Parsed::Absent) => Parsed::Absent,
            _ => Parsed::Faulty,
        }
    }

    fn named(&mut self, name: &Parsed<&str>) -> Parsed<StoreId> {
        match name {
            Parsed::Absent => Parsed::Absent,
            Parsed::Faulty => Parsed::Faulty,
            Parsed::As(place, name) => match self.options.stores.find(name) {
                Some(store) => Parsed::As(*place, store),
                None => self.refuse_store(*place, name),
            },
        }
    }

    fn refuse_store(&mut self, place: Place, name: &str) -> Parsed<StoreId> {
        let (shown, known) = (excerpt(name), self.options.stores.all());
        let meant = self.findings.suggestion(name, &[&known]);
        let message = format!(
            "unknown store '{shown}'; expected one of {}, as in REDIS_STORES{meant}",
            known.join(", ")
        );
        self.findings.fault(place, message);
        Parsed::Faulty
    }
}
