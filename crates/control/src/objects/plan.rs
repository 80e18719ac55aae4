//! Compares the objects with the database: which object defines each domain, which domains to
//! publish or remove, and which verdict each object gets. Pure.
//!
//! - **A namespace defines the domains of its name**: `shop`, and all that begin with `shop.` or
//!   `shop/`. No name of a namespace has either character, so that no domain is of two. Objects of
//!   the namespaces that the operator lists may define any domain, and these alone `default`.
//! - **Of two objects for one domain the older one counts**, also while it has faults.
//! - **A domain of the database stays the database's**, until its published rules equal those of
//!   the object: then the object takes it over, and nothing changes.
//! - **A domain that asks for approvals is no object's**: it would be published without them.
//! - **Faults change nothing**: the rules in force stay, until the object is good or deleted.

use std::collections::{BTreeMap, BTreeSet};

use ratelease_rules::request::scoped;

use super::object::{Key, Object};
use super::tries::Tries;
use crate::store::DraftDomain;

/// The verdict on an object, from which its status is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The object defines its domain, and is published.
    Published,
    /// The object defines its domain, and is about to be published.
    Due,
    /// The rules of the object have faults.
    Invalid,
    /// The namespace of the object may not define the domain.
    NotAllowed,
    /// An older object defines its domain.
    OlderObject(Key),
    /// The database has other rules for its domain.
    Database,
    /// The object defines its domain, and is in a rollout; the text says at which step.
    RollingOut(String),
    /// The rollout of the object was aborted or rolled back, for this reason.
    Stopped(String),
    /// The domain asks for approvals, which an object has none of.
    Approvals,
}

/// A change of a domain that is to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub domain: String,
    /// The object that defines it from then on; `None` if none does.
    pub by: Option<Key>,
    /// The namespace whose share of the pods' memory the domain takes: the namespace of the object.
    pub namespace: String,
}

/// The changes and verdicts that follow from objects and domains.
#[derive(Debug, Default)]
pub struct Plan {
    pub changes: Vec<Change>,
    pub verdicts: BTreeMap<Key, Verdict>,
}

/// Whether objects of this namespace may define this domain. The namespace `default`, in which
/// people leave things, does not get the domain of everybody's scopes (`/v1/policies`).
fn may_define(namespace: &str, domain: &str, any_domain: &BTreeSet<String>) -> bool {
    let rest = domain.strip_prefix(namespace).filter(|_| domain != scoped::DOMAIN);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
        || any_domain.contains(namespace)
}

/// Compares all objects with the domains of the database.
pub fn plan(
    objects: &BTreeMap<Key, Object>,
    domains: &BTreeMap<String, DraftDomain>,
    any_domain: &BTreeSet<String>,
    tries: &Tries,
) -> Plan {
    let mut plan = Plan::default();
    let winners = winners(objects, any_domain, &mut plan.verdicts);
    for (domain, object) in &winners {
        let verdict = verdict(object, domains.get(*domain), tries);
        if verdict == Verdict::Due {
            plan.changes.push(Change {
                domain: (*domain).to_owned(),
                by: Some(object.key.clone()),
                namespace: object.key.namespace.clone(),
            });
        }
        plan.verdicts.insert(object.key.clone(), verdict);
    }
    for domain in domains.values() {
        let Some(owner) = &domain.owner else { continue };
        if !winners.contains_key(&*domain.name) {
            let namespace = namespace_of(owner).to_owned();
            plan.changes.push(Change { domain: domain.name.clone(), by: None, namespace });
        }
    }
    plan
}

/// The namespace of an owner as the database has it.
pub fn namespace_of(owner: &str) -> &str {
    owner.split_once('/').map_or(owner, |(namespace, _)| namespace)
}

/// The object that defines each domain. Of the others it says why they do not.
fn winners<'o>(
    objects: &'o BTreeMap<Key, Object>,
    any_domain: &BTreeSet<String>,
    verdicts: &mut BTreeMap<Key, Verdict>,
) -> BTreeMap<&'o str, &'o Object> {
    let mut all: Vec<_> = objects.values().collect();
    all.sort_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)));
    let mut winners: BTreeMap<&str, &Object> = BTreeMap::new();
    for object in all {
        let verdict = match winners.get(&*object.domain) {
            // Without a domain nothing is defined, which is a fault.
            _ if object.domain.is_empty() => Verdict::Invalid,
            _ if !may_define(&object.key.namespace, &object.domain, any_domain) => {
                Verdict::NotAllowed
            }
            Some(older) => Verdict::OlderObject(older.key.clone()),
            None => {
                winners.insert(&object.domain, object);
                continue;
            }
        };
        verdicts.insert(object.key.clone(), verdict);
    }
    winners
}

/// The verdict on an object that defines its domain. `known` is the domain in the database, if it
/// is there.
fn verdict(object: &Object, known: Option<&DraftDomain>, tries: &Tries) -> Verdict {
    let Ok(rules) = &object.rules else { return Verdict::Invalid };
    let Some(known) = known else { return Verdict::Due };
    // An object is published without approvals: its writer could do without a second person.
    if known.approvals > 0 {
        return Verdict::Approvals;
    }
    let is_same = known.hash == rules.hash && !known.is_changed;
    let is_own = known.owner.as_ref().is_some_and(|it| *it == object.key.to_string());
    let tried = tries.of(known, rules.hash.as_deref());
    match tried.filter(|_| is_own && object.rollout.is_some()) {
        Some(tried) if tried.is_open => return Verdict::RollingOut(tried.words.clone()),
        Some(tried) => return Verdict::Stopped(tried.words.clone()),
        None => {}
    }
    match &known.owner {
        Some(owner) if is_same && *owner == object.key.to_string() => Verdict::Published,
        Some(_) => Verdict::Due,
        // A domain of which all was removed keeps its row.
        None if is_same || known.hash.is_none() && known.rules == 0 => Verdict::Due,
        None => Verdict::Database,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::fault::Faults;
    use crate::objects::object::Rules;

    fn key(name: &str) -> Key {
        let (namespace, name) = name.split_once('/').unwrap();
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// An object with these rules; faulty without.
    fn object(name: &str, created: i64, domain: &str, text: &str) -> (Key, Object) {
        let hash = Some(text.to_owned());
        let rules = Rules { text: text.to_owned(), hash, count: 1 };
        let object = Object {
            key: key(name),
            uid: name.to_owned(),
            created,
            generation: 1,
            domain: domain.to_owned(),
            rules: if text.is_empty() { Err(Faults::one("spec", "x")) } else { Ok(rules) },
            rollout: None,
            status: Default::default(),
        };
        (object.key.clone(), object)
    }

    fn domain(name: &str, owner: Option<&str>, hash: &str) -> DraftDomain {
        DraftDomain {
            name: name.to_owned(),
            changed: 1,
            rules: 1,
            is_changed: false,
            changed_at: None,
            changed_by: Vec::new(),
            approvals: 0,
            owner: owner.map(str::to_owned),
            hash: Some(hash.to_owned()),
        }
    }

    fn planned(
        objects: &BTreeMap<Key, Object>,
        domains: &[DraftDomain],
        any_domain: &BTreeSet<String>,
    ) -> Plan {
        let domains = domains.iter().map(|it| (it.name.clone(), it.clone())).collect();
        plan(objects, &domains, any_domain, &Tries::default())
    }

    fn changes(plan: &Plan) -> Vec<(&str, Option<String>)> {
        plan.changes.iter().map(|it| (&*it.domain, it.by.as_ref().map(Key::to_string))).collect()
    }

    #[test]
    fn a_namespace_defines_the_domains_of_its_name_and_no_others() {
        let any = BTreeSet::from(["platform".to_owned()]);
        for domain in ["shop", "shop.eu", "shop/gateway/http", "shop."] {
            assert!(may_define("shop", domain, &any), "{domain}");
        }
        for domain in ["", "shops", "shop-eu", "sho", "bank", "bank.shop", "Shop", " shop"] {
            assert!(!may_define("shop", domain, &any), "{domain}");
            assert!(may_define("platform", domain, &any), "{domain}");
        }
        // A domain that one namespace may define is closed to all others.
        for other in ["shop-eu", "sho", "shops", "eu"] {
            assert!(!may_define(other, "shop.eu", &any), "{other}");
        }
    }

    #[test]
    fn the_namespace_default_defines_the_domain_of_scopes_only_if_it_is_listed() {
        let objects = BTreeMap::from([
            object("default/a", 1, "default", "text"),
            object("default/b", 2, "default.shop", "text"),
        ]);
        let found = planned(&objects, &[], &BTreeSet::new());
        assert_eq!(changes(&found), [("default.shop", Some("default/b".to_owned()))]);
        assert_eq!(found.verdicts[&key("default/a")], Verdict::NotAllowed);
        let found = planned(&objects, &[], &BTreeSet::from(["default".to_owned()]));
        assert_eq!(found.verdicts[&key("default/a")], Verdict::Due);
    }

    #[test]
    fn the_older_object_defines_a_domain_and_the_other_one_is_told_which() {
        let any = BTreeSet::new();
        let mut objects = BTreeMap::from([
            object("shop/b", 1, "shop", "old"),
            object("shop/a", 2, "shop", "new"),
            object("bank/a", 0, "shop", "theirs"),
        ]);
        let found = planned(&objects, &[], &any);
        assert_eq!(changes(&found), [("shop", Some("shop/b".to_owned()))]);
        assert_eq!(found.verdicts[&key("shop/b")], Verdict::Due);
        assert_eq!(found.verdicts[&key("shop/a")], Verdict::OlderObject(key("shop/b")));
        assert_eq!(found.verdicts[&key("bank/a")], Verdict::NotAllowed);
        // When it leaves, the other one follows without a moment that has no rules.
        objects.remove(&key("shop/b"));
        let found = planned(&objects, &[domain("shop", Some("shop/b"), "old")], &any);
        assert_eq!(changes(&found), [("shop", Some("shop/a".to_owned()))]);
    }

    #[test]
    fn objects_of_one_age_are_ordered_by_their_names() {
        let objects =
            BTreeMap::from([object("shop/b", 1, "shop", "b"), object("shop/a", 1, "shop", "a")]);
        let found = planned(&objects, &[], &BTreeSet::new());
        assert_eq!(found.verdicts[&key("shop/b")], Verdict::OlderObject(key("shop/a")));
    }

    #[test]
    fn faults_change_nothing_and_keep_their_place() {
        let any = BTreeSet::new();
        let objects =
            BTreeMap::from([object("shop/a", 1, "shop", ""), object("shop/b", 2, "shop", "good")]);
        for owner in ["shop/a", "shop/b", "shop/gone"] {
            let found = planned(&objects, &[domain("shop", Some(owner), "before")], &any);
            assert_eq!(changes(&found), [], "{owner}");
            assert_eq!(found.verdicts[&key("shop/a")], Verdict::Invalid);
            assert_eq!(found.verdicts[&key("shop/b")], Verdict::OlderObject(key("shop/a")));
        }
    }

    #[test]
    fn a_domain_of_the_database_is_taken_over_only_if_nothing_changes() {
        let any = BTreeSet::new();
        let objects = BTreeMap::from([object("shop/a", 1, "shop", "text")]);
        let verdict = |domain: DraftDomain| {
            let found = planned(&objects, &[domain], &any);
            (found.verdicts[&key("shop/a")].clone(), found.changes.len())
        };
        let of_database = |hash: &str| domain("shop", None, hash);
        assert_eq!(verdict(of_database("other")), (Verdict::Database, 0));
        assert_eq!(verdict(of_database("text")), (Verdict::Due, 1));
        let changed = DraftDomain { is_changed: true, ..of_database("text") };
        assert_eq!(verdict(changed), (Verdict::Database, 0));
        let draft = DraftDomain { hash: None, is_changed: true, ..of_database("") };
        assert_eq!(verdict(draft), (Verdict::Database, 0));
        let removed = DraftDomain { hash: None, rules: 0, ..of_database("") };
        assert_eq!(verdict(removed), (Verdict::Due, 1));
    }

    #[test]
    fn what_is_published_already_is_left_alone_and_a_deleted_object_takes_its_domain_along() {
        let objects = BTreeMap::from([object("shop/a", 1, "shop", "text")]);
        let domains = [
            domain("bank", Some("bank/a"), "text"),
            domain("shop", Some("shop/a"), "text"),
            domain("of the database", None, "text"),
        ];
        let found = planned(&objects, &domains, &BTreeSet::new());
        assert_eq!(changes(&found), [("bank", None)]);
        assert_eq!(found.verdicts[&key("shop/a")], Verdict::Published);
        assert_eq!(found.changes[0].namespace, "bank");
    }
}
