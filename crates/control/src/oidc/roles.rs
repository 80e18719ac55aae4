//! Roles: the access and the domains that claims of a person give. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::auth::{Access, Rights};

/// The rights that one value of a claim gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Role {
    access: Access,
    /// `None` for all.
    #[serde(default)]
    domains: Option<BTreeSet<String>>,
}

/// A role for values of claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles(BTreeMap<String, BTreeMap<String, Role>>);

/// Maximum number of domains of one person: conditions of the database name each of them.
const DOMAINS_MAX: usize = 256;

// === impl Roles ===

impl Roles {
    /// Reads them from JSON.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let roles: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let all = roles.0.values().flatten();
        for (value, role) in all.clone() {
            if role.access == Access::Admin && role.domains.is_some() {
                return Err(format!("'{value}': access admin is for all domains; leave them out"));
            }
        }
        let named: BTreeSet<_> = all.filter_map(|(_, it)| it.domains.as_ref()).flatten().collect();
        if named.len() > DOMAINS_MAX || named.iter().any(|it| it.is_empty() || it.contains('\0')) {
            return Err(format!("expected at most {DOMAINS_MAX} domains, each with a name"));
        }
        Ok(roles)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(BTreeMap::is_empty)
    }

    /// The claims that they look at.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The rights of these claims together; `None` if they have no role. A role that only reads adds
    /// nothing to the domains that may be changed.
    pub fn rights(&self, claims: &Map<String, Value>) -> Option<Rights> {
        let mut given = Vec::new();
        for (claim, roles) in &self.0 {
            let values = find(claims, claim).map(texts).unwrap_or_default();
            given.extend(values.into_iter().filter_map(|value| roles.get(value)));
        }
        let access = given.iter().map(|role| role.access).max()?;
        let writers = given.iter().filter(|role| role.access >= Access::Write);
        Some(Rights {
            access,
            domains: union(given.iter().copied()),
            writable: union(writers.copied()),
        })
    }

    /// Identifies them, so that a session ends if they change.
    pub fn fingerprint(&self, issuer: &str, client: &str) -> String {
        let text = serde_json::json!([issuer, client, self]).to_string();
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}

/// The domains of these roles; `None` for all.
fn union<'r>(roles: impl Iterator<Item = &'r Role>) -> Option<Vec<String>> {
    let mut all = BTreeSet::new();
    for role in roles {
        all.extend(role.domains.as_ref()?.iter().cloned());
    }
    Some(all.into_iter().collect())
}

/// A claim: one of this name, or by its path, as in `realm_access.roles`.
pub fn find<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(found) = claims.get(name) {
        return Some(found);
    }
    let (first, rest) = name.split_once('.')?;
    find(claims.get(first)?.as_object()?, rest)
}

/// The texts of a claim: itself, or the items of its list.
fn texts(claim: &Value) -> Vec<&str> {
    match claim {
        Value::String(text) => vec![text],
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Names of domains; `None` for all.
    type Names = Option<Vec<String>>;

    fn rights(claims: Value) -> Option<(Access, Names, Names)> {
        let roles = json!({
            "groups": {
                "sre": {"access": "admin"},
                "all": {"access": "read"},
                "shop": {"access": "write", "domains": ["shop", "cart"]},
                "bank": {"access": "read", "domains": ["bank"]}
            },
            "realm_access.roles": {"geo": {"access": "write", "domains": ["geo"]}}
        });
        let roles = Roles::parse(&roles.to_string()).unwrap();
        let found = roles.rights(claims.as_object().unwrap());
        found.map(|it| (it.access, it.domains, it.writable))
    }

    fn list(names: &[&str]) -> Option<Vec<String>> {
        Some(names.iter().map(|it| (*it).to_owned()).collect())
    }

    #[test]
    fn roles_add_up_and_reading_everything_gives_nothing_to_change() {
        let shop = list(&["cart", "shop"]);
        assert_eq!(
            rights(json!({"groups": "shop"})),
            Some((Access::Write, shop.clone(), shop.clone()))
        );
        let both = list(&["bank", "cart", "shop"]);
        let found = rights(json!({"groups": ["bank", "shop", "x"]}));
        assert_eq!(found, Some((Access::Write, both, shop.clone())));
        let found = rights(json!({"groups": ["all", "shop"]}));
        assert_eq!(found, Some((Access::Write, None, shop)));
        let found = rights(json!({"groups": ["bank"], "realm_access": {"roles": ["geo"]}}));
        assert_eq!(found, Some((Access::Write, list(&["bank", "geo"]), list(&["geo"]))));
        assert_eq!(rights(json!({"groups": ["bank", "sre"]})), Some((Access::Admin, None, None)));
        assert_eq!(
            rights(json!({"groups": ["bank"]})),
            Some((Access::Read, list(&["bank"]), list(&[])))
        );
    }

    #[test]
    fn claims_of_another_form_give_nothing() {
        for claims in [
            json!({}),
            json!({"groups": []}),
            json!({"groups": ["SRE", "sre "]}),
            json!({"groups": {"sre": true}}),
            json!({"groups": [["sre"]]}),
            json!({"roles": ["sre"]}),
            json!({"realm_access": "geo"}),
        ] {
            assert_eq!(rights(claims.clone()), None, "{claims}");
        }
    }

    #[test]
    fn faulty_roles_are_refused() {
        for text in [
            "groups=sre",
            r#"{"groups": {"sre": {"access": "root"}}}"#,
            r#"{"groups": {"sre": {"access": "admin", "domains": ["shop"]}}}"#,
            r#"{"groups": {"sre": {"access": "read", "domain": "shop"}}}"#,
            r#"{"groups": {"sre": {"access": "read", "domains": [""]}}}"#,
        ] {
            assert!(Roles::parse(text).is_err(), "{text}");
        }
    }
}
