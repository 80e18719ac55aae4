//! The stores that count limits: their names, and which of them counts a limit.

use std::num::NonZeroU8;
use std::sync::Arc;

/// Maximum number of named stores, besides the default one.
pub const STORES_MAX: usize = 8;

/// Maximum length of the name of a store, in bytes.
pub const STORE_NAME_BYTES_MAX: usize = 32;

/// The name of the store that counts the limits that name no store.
pub const DEFAULT_STORE: &str = "default";

/// Names that no store may have: they belong to the stores that need no name.
const RESERVED: [&str; 2] = [DEFAULT_STORE, "persecond"];

/// Ends of names that are refused: the variables of the store `a-sentinel` could have the same
/// names as variables of the store `a`.
const AMBIGUOUS_ENDS: [&str; 2] = ["-sentinel", "-socket"];

/// A store, by its number: 0 is the default one, and the named ones follow in the order of
/// [`StoreNames`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(NonZeroU8);

/// The names of the stores besides the default one, in the order of their numbers. Clones share
/// the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreNames(Option<Arc<[Box<str>]>>);

/// The stores of domains whose rules name none. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainStores(Option<Arc<[DomainStore]>>);

/// The store of one domain.
#[derive(Debug, PartialEq, Eq)]
struct DomainStore {
    domain: Box<str>,
    store: StoreId,
}

// === impl StoreId ===

impl StoreId {
    /// The store that needs no name.
    pub const DEFAULT: Self = Self(NonZeroU8::MIN);

    /// Returns the store of this number, at most [`STORES_MAX`].
    pub fn from_number(number: usize) -> Option<Self> {
        let number = u8::try_from(number).ok().filter(|number| usize::from(*number) <= STORES_MAX);
        NonZeroU8::MIN.checked_add(number?).map(Self)
    }

    /// Returns the number: 0 for the default store, at most [`STORES_MAX`].
    #[inline]
    pub const fn number(self) -> usize {
        self.0.get() as usize - 1
    }
}

// === impl StoreNames ===

impl StoreNames {
    /// No store has a name.
    pub const NONE: Self = Self(None);

    /// Parses names separated by commas, as `REDIS_STORES` has them. Spaces around a name and empty
    /// items are left out.
    ///
    /// # Errors
    /// Returns the fault of the first name that has one, or of their number.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut names: Vec<Box<str>> = Vec::new();
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            check(name)?;
            if names.iter().any(|known| **known == *name) {
                return Err(format!("'{name}' stands twice"));
            }
            names.push(name.into());
        }
        if names.len() > STORES_MAX {
            return Err(format!("{} names are more than {STORES_MAX}", names.len()));
        }
        Ok(Self((!names.is_empty()).then(|| names.into())))
    }

    /// Returns the names, without the name of the default store.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|names| names.iter()).map(AsRef::as_ref)
    }

    /// Returns whether no store has a name.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns all names that a rule may use, the default one first.
    pub fn all(&self) -> Vec<&str> {
        std::iter::once(DEFAULT_STORE).chain(self.iter()).collect()
    }

    /// Returns the store of this name; names are case-sensitive.
    pub fn find(&self, name: &str) -> Option<StoreId> {
        StoreId::from_number(self.all().iter().position(|known| *known == name)?)
    }

    /// Returns the name of a store; `?` for a number that has none here.
    pub fn name(&self, store: StoreId) -> &str {
        match store.number() {
            0 => DEFAULT_STORE,
            number => self.iter().nth(number - 1).unwrap_or("?"),
        }
    }
}

// === impl DomainStores ===

impl DomainStores {
    /// No domain has a store of its own.
    pub const NONE: Self = Self(None);

    /// Parses `domain=store`, separated by commas, as `STORE_OF_DOMAIN` has them. The domain ends
    /// at the last `=`.
    ///
    /// # Errors
    /// Returns the fault of the first item that has one.
    pub fn parse(list: &str, names: &StoreNames) -> Result<Self, String> {
        let mut stores: Vec<DomainStore> = Vec::new();
        for item in list.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let shown = item.escape_debug();
            let pair = item.rsplit_once('=').map(|(domain, store)| (domain.trim(), store));
            let Some((domain, store)) = pair.filter(|(domain, _)| !domain.is_empty()) else {
                return Err(format!("'{shown}' is not domain=store"));
            };
            if stores.iter().any(|known| *known.domain == *domain) {
                return Err(format!("'{}' stands twice", domain.escape_debug()));
            }
            let store = named(store.trim(), names)?;
            stores.push(DomainStore { domain: domain.into(), store });
        }
        Ok(Self((!stores.is_empty()).then(|| stores.into())))
    }

    /// Returns the store of a domain.
    pub fn find(&self, domain: &str) -> StoreId {
        let found = self.iter().find(|(known, _)| *known == domain);
        found.map_or(StoreId::DEFAULT, |(_, store)| store)
    }

    /// Returns the domains with their stores, in the order of the setting.
    pub fn iter(&self) -> impl Iterator<Item = (&str, StoreId)> {
        let all = self.0.iter().flat_map(|all| all.iter());
        all.map(|DomainStore { domain, store }| (&**domain, *store))
    }
}

/// Finds a store by name. The error is the fault of the name.
fn named(name: &str, names: &StoreNames) -> Result<StoreId, String> {
    if let Some((_, store)) = name.split_once('>') {
        return Err(format!(
            "a domain no longer moves from one store to another, as '{}' says; write '{}' alone, \
             and its windows restart",
            name.escape_debug(),
            store.trim().escape_debug()
        ));
    }
    names.find(name).ok_or_else(|| {
        format!("'{}' is none of the stores {}", name.escape_debug(), names.all().join(", "))
    })
}

/// Checks that `name` is one that variables and labels can contain.
fn check(name: &str) -> Result<(), String> {
    let shown: String = name.escape_debug().take(STORE_NAME_BYTES_MAX).collect();
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    if name.len() > STORE_NAME_BYTES_MAX || !begins || !name.bytes().all(is_plain) {
        return Err(format!(
            "'{shown}' is not a name of at most {STORE_NAME_BYTES_MAX} characters a-z, 0-9 and -, \
             the first of them a letter"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("'{shown}' is the name of a store that needs none"));
    }
    if AMBIGUOUS_ENDS.iter().any(|end| name.ends_with(end)) {
        let ends = AMBIGUOUS_ENDS.join(" or ");
        return Err(format!("'{shown}' ends in {ends}, as variables of other stores do"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_found_by_the_name_that_its_number_has() {
        let names = StoreNames::parse(" premium, ,batch-2 ,").unwrap();
        assert_eq!(names.all(), ["default", "premium", "batch-2"]);
        for (number, name) in names.all().into_iter().enumerate() {
            let store = names.find(name).unwrap();
            assert_eq!((store.number(), names.name(store)), (number, name));
        }
        assert_eq!(names.find("Premium"), None);
        assert_eq!(StoreNames::NONE.find("default"), Some(StoreId::DEFAULT));
        assert_eq!(StoreNames::parse(" , ").unwrap(), StoreNames::NONE);
    }

    #[test]
    fn only_as_many_stores_have_numbers_as_may_have_names() {
        assert_eq!(StoreId::from_number(STORES_MAX).map(StoreId::number), Some(STORES_MAX));
        assert_eq!(StoreId::from_number(STORES_MAX + 1), None);
        assert_eq!(StoreId::from_number(usize::MAX), None);
        let names = |count: usize| (0..count).map(|at| format!("s{at},")).collect::<String>();
        assert_eq!(StoreNames::parse(&names(STORES_MAX)).unwrap().iter().count(), STORES_MAX);
        let refused = StoreNames::parse(&names(STORES_MAX + 1)).unwrap_err();
        assert_eq!(refused, "9 names are more than 8");
    }

    #[test]
    fn a_faulty_name_is_refused() {
        let long = "a".repeat(STORE_NAME_BYTES_MAX + 1);
        for (list, problem) in [
            ("Premium", "is not a name"),
            ("a_b", "is not a name"),
            ("-a", "is not a name"),
            ("7", "is not a name"),
            (&long, "is not a name"),
            ("a,default", "needs none"),
            ("persecond", "needs none"),
            ("x-sentinel", "ends in"),
            ("a,b,a", "stands twice"),
        ] {
            let refused = StoreNames::parse(list).unwrap_err();
            assert!(refused.contains(problem), "{list}: {refused}");
        }
        assert!(StoreNames::parse(&"a".repeat(STORE_NAME_BYTES_MAX)).is_ok());
    }

    #[test]
    fn the_stores_of_domains_are_read_by_their_names() {
        let names = StoreNames::parse("premium,batch").unwrap();
        let stores = DomainStores::parse("a=premium, b=c= batch,", &names).unwrap();
        let read: Vec<_> =
            stores.iter().map(|(domain, store)| (domain, names.name(store))).collect();
        assert_eq!(read, [("a", "premium"), ("b=c", "batch")]);
        assert_eq!(stores.find("b"), StoreId::DEFAULT);
        for (list, problem) in [
            ("a", "'a' is not domain=store"),
            ("=premium", "'=premium' is not domain=store"),
            ("a=gold", "'gold' is none of the stores default, premium, batch"),
            ("a=premium,a=batch", "'a' stands twice"),
            (
                "a=batch>premium",
                "a domain no longer moves from one store to another, as 'batch>premium' says; \
                 write 'premium' alone, and its windows restart",
            ),
        ] {
            assert_eq!(DomainStores::parse(list, &names), Err(problem.to_owned()));
        }
    }

    #[test]
    fn the_store_of_a_limit_takes_a_byte() {
        assert_eq!(size_of::<StoreId>(), 1);
        assert_eq!(size_of::<crate::Limit>(), 32);
    }
}
