//! Compiles the names of stores.

use super::{Compiler, Domain};
use crate::fault::{Place, excerpt};
use crate::options::{File, RateLimit};
use crate::parsed::Parsed;
use crate::store::StoreId;

// === impl Compiler ===

impl Compiler<'_> {
    /// Returns the store of a limit: its own, or that of its domain. `None` if it is faulty, after
    /// reporting the fault.
    pub(super) fn store_of_limit(&mut self, limit: &RateLimit<'_>) -> Option<StoreId> {
        match self.named(&limit.store) {
            Parsed::Absent => Some(self.store),
            Parsed::Faulty | Parsed::Refused(..) => None,
            Parsed::As(_, store) => Some(store),
        }
    }

    /// Returns the store of the domain that `file` configures, or adds to. All files of a domain
    /// have one store: overrides belong to no file.
    pub(super) fn store_of_file(
        &mut self,
        file: &File<'_>,
        is_new: bool,
        domain: &Domain,
    ) -> StoreId {
        let Parsed::As(place, store) = self.named(&file.store) else { return domain.store };
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

    fn named(&mut self, name: &Parsed<&str>) -> Parsed<StoreId> {
        match name {
            Parsed::Absent => Parsed::Absent,
            Parsed::Faulty | Parsed::Refused(..) => Parsed::Faulty,
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
