//! **Tokens**: who may do what with which domains.
//!
//! A token is `rlc_ID_SECRET`. The secret has 256 random bits, so that its hash, which is all that
//! the database holds, cannot be guessed back; a slow hash would gain nothing.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::{Identity, NewSession, NewToken, Person, SessionRow, TokenRow};

/// What a token begins with, so that scanners for leaked secrets can find it.
const PREFIX: &str = "rlc";

/// Random bytes of an id, and of a secret.
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// Maximum bytes of a token that is looked at.
const TOKEN_BYTES_MAX: usize = 256;

/// What a token may do; each may do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Read rules, versions and pods.
    Read,
    /// Change, publish and roll back rules.
    Write,
    /// Also read the audit log; always for all domains.
    Admin,
}

/// A token as its owner has it. It is shown once, when it is made.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
}

/// The rights of a person, by the claims of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The highest access that any role gives.
    pub access: Access,
    /// The domains of all roles; `None` for all.
    pub domains: Option<Vec<String>>,
    /// The domains of the roles that may write; `None` for all.
    pub writable: Option<Vec<String>>,
}

/// Who calls, by a token or a session that is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name and the id of the token, as history and audit log show it.
    pub name: String,
    /// The id of the token, or of the person who signed in.
    pub id: String,
    /// The id of the session, of a person who signed in.
    pub session: Option<String>,
    /// Who is responsible: the one who had the API make the token, else the caller; as
    /// ISSUER#SUBJECT or the id of a token.
    pub person: String,
    access: Access,
    /// `None` for all.
    domains: Option<Vec<String>>,
    /// The domains that may be changed; `None` for all.
    writable: Option<Vec<String>>,
}

// === impl Rights ===

impl Rights {
    /// The domains that they name.
    pub fn all_domains(&self) -> impl Iterator<Item = &String> {
        self.domains.iter().chain(&self.writable).flatten()
    }
}

/// The text for the audit log: the access with the domains that may be changed, then the domains that
/// may be read if they differ.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |it: &Option<Vec<String>>| it.as_ref().map_or("all".to_owned(), |it| it.join(", "));
        let (access, domains) = (self.access.name(), of(&self.domains));
        if self.access == Access::Read || self.writable == self.domains {
            return write!(f, "{access} of {domains}");
        }
        write!(f, "{access} of {}; read of {domains}", of(&self.writable))
    }
}

// === impl Access ===

impl Access {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Read, Self::Write, Self::Admin];
        let found = all.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("'{text}': expected read, write or admin"))
    }
}

/// A token that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The name in history and audit log.
    pub name: String,
    /// The access.
    pub access: Access,
    /// The domains that it may use; `None` for all.
    pub domains: Option<Vec<String>>,
    /// Days for which it is valid; `None` for until it is revoked.
    pub days: Option<u32>,
    /// Who has it made; empty for the command line.
    pub made_by: Identity,
}

/// Maximum number of domains of a token: conditions of the database name each of them.
const DOMAINS_MAX: usize = 256;

/// Maximum bytes of its name.
const NAME_BYTES_MAX: usize = 128;

/// Maximum number of days for which a token is valid, unless it has no end: ten years.
const DAYS_MAX: u32 = 3650;

// === impl TokenRequest ===

impl TokenRequest {
    /// The faults, each with its field and the expected value.
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let Self { name, access, domains, days, .. } = self;
        if *access == Access::Admin && domains.is_some() {
            faults.push(("domains", "a token of access admin is for all domains".to_owned()));
        }
        if domains.as_ref().is_some_and(|all| all.len() > DOMAINS_MAX) {
            faults.push(("domains", format!("expected at most {DOMAINS_MAX} domains")));
        }
        if let Some(pattern) = domains.iter().flatten().find(|it| it.contains('*')) {
            let pattern = ratelease_rules::excerpt(pattern);
            let why = format!(
                "'{pattern}' has a '*', and a token has no patterns of domains: name each domain, or \
                 name none for all"
            );
            faults.push(("domains", why));
        }
        // A slash would make it the author of another one's name.
        let is_name = |it: char| it != '/' && !it.is_control();
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_name) {
            let expected = "expected 1 to 128 bytes, without slashes and control characters";
            faults.push(("name", expected.to_owned()));
        }
        if days.is_some_and(|days| days > DAYS_MAX) {
            faults.push(("days", format!("expected at most {DAYS_MAX} days")));
        }
        faults
    }

    /// The row of the database.
    pub fn row(&self, token: &Token) -> NewToken {
        let expires_at = self.days.map(|days| {
            let valid = i64::from(days) * 24 * 3600 * 1000;
            Timestamp::now().as_millisecond().saturating_add(valid)
        });
        let row = token.row(&self.name, self.access, self.domains.clone(), expires_at);
        let Identity { id, person } = self.made_by.clone();
        NewToken { made_by: person, maker: id, ..row }
    }

    /// The token and its rights, for the audit log.
    pub fn subject(&self, token: &Token) -> String {
        let domains = self.domains.as_ref().map_or_else(|| "all".to_owned(), |it| it.join(", "));
        format!("{}: {} of {domains}", token.id(), self.access.name())
    }
}

// === impl Token ===

impl Token {
    /// Makes a token of random bits.
    ///
    /// # Errors
    /// Fails if the system has no random bits.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut id = [0; ID_BYTES];
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut id)?;
        getrandom::fill(&mut secret)?;
        let id = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id, secret: URL_SAFE_NO_PAD.encode(secret) })
    }

    /// Reads a token; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = (text.len() <= TOKEN_BYTES_MAX).then(|| text.splitn(3, '_'))?;
        let prefix = parts.next()?;
        let id = parts.next()?;
        let secret = parts.next()?;
        let is_token = prefix == PREFIX
            && id.len() == 2 * ID_BYTES
            && id.bytes().all(|byte| byte.is_ascii_hexdigit())
            && URL_SAFE_NO_PAD.decode(secret).is_ok_and(|bytes| bytes.len() == SECRET_BYTES);
        is_token.then(|| Self { id: id.to_owned(), secret: secret.to_owned() })
    }

    /// The whole token, which is a secret.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}_{}_{}", self.id, self.secret)
    }

    /// The id, which is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the database holds of it.
    pub fn row(
        &self,
        name: &str,
        access: Access,
        domains: Option<Vec<String>>,
        expires_at: Option<i64>,
    ) -> NewToken {
        NewToken {
            id: self.id.clone(),
            name: name.to_owned(),
            hash: self.hash().to_hex().to_string(),
            access: access.name().to_owned(),
            domains,
            expires_at,
            made_by: String::new(),
            maker: String::new(),
        }
    }

    /// Who this is, if the database holds this token and it is valid.
    pub fn caller(&self, row: &TokenRow) -> Option<Caller> {
        let TokenRow { token, revoked_at, .. } = row;
        // Hashes are compared in constant time.
        let is_same = blake3::Hash::from_hex(&token.hash).is_ok_and(|hash| hash == self.hash());
        let now = Timestamp::now().as_millisecond();
        let is_valid = revoked_at.is_none() && token.expires_at.is_none_or(|until| now < until);
        let access = token.access.parse().ok().filter(|_| is_same && is_valid)?;
        let name = format!("{}/{}", token.name, token.id);
        let id = token.id.clone();
        let person = if token.made_by.is_empty() { id.clone() } else { token.made_by.clone() };
        let domains = token.domains.clone();
        Some(Caller { name, id, session: None, person, access, writable: domains.clone(), domains })
    }

    /// The row of a session with these rights, whose secret this is.
    pub fn session(&self, rights: &Rights, roles: &str, expires_at: i64) -> NewSession {
        NewSession {
            id: self.id.clone(),
            hash: self.hash().to_hex().to_string(),
            access: rights.access.name().to_owned(),
            domains: rights.domains.clone(),
            writable: rights.writable.clone(),
            roles: roles.to_owned(),
            expires_at,
        }
    }

    /// Who this is, if the database holds this session, and it has not ended. It has if the
    /// settings that its rights follow from, whose hash is `roles`, have changed.
    pub fn caller_of_session(&self, row: &SessionRow, roles: &str) -> Option<Caller> {
        let SessionRow { session, person, is_revoked } = row;
        let is_same = blake3::Hash::from_hex(&session.hash).is_ok_and(|hash| hash == self.hash());
        let is_valid = Timestamp::now().as_millisecond() < session.expires_at
            && !is_revoked
            && session.roles == roles;
        let access = session.access.parse().ok().filter(|_| is_same && is_valid)?;
        Some(Caller {
            name: person.author(),
            id: person.id.clone(),
            session: Some(session.id.clone()),
            person: person.identity(),
            access,
            domains: session.domains.clone(),
            writable: session.writable.clone(),
        })
    }

    fn hash(&self) -> blake3::Hash {
        blake3::Hasher::new_derive_key("ratelease 2026-11 token of the control plane")
            .update(self.secret.as_bytes())
            .finalize()
    }
}

/// Without the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

// === impl Person ===

impl Person {
    /// The person as an author: the name, the issuer and the subject.
    pub fn author(&self) -> String {
        format!("{}/{}", self.name, self.identity())
    }

    /// Who the person is, for good.
    pub fn identity(&self) -> String {
        format!("{}#{}", self.issuer, self.subject)
    }
}

// === impl Caller ===

impl Caller {
    /// What publishes objects of Kubernetes for these domains; `None` for all. It has no token.
    pub fn of_objects(domains: Option<Vec<String>>) -> Self {
        let (id, person) = (String::new(), String::new());
        let writable = domains.clone();
        let name = "kubernetes".to_owned();
        Self { name, id, session: None, person, access: Access::Write, domains, writable }
    }

    /// Narrows the caller to the domains that it may change.
    pub fn into_writer(self) -> Self {
        Self { domains: self.writable.clone(), ..self }
    }

    /// Whose domains share a part of the memory of pods, in words; and who has no such share.
    pub fn whose(&self) -> &'static str {
        if self.id.is_empty() { "namespace's" } else { "token's" }
    }

    pub fn who_has_no_share(&self) -> &'static str {
        match self.id.is_empty() {
            true => "list the namespace in CONTROL_KUBERNETES_ANY_DOMAIN",
            false => "have a token of all domains publish them",
        }
    }

    /// Who the caller is, whatever name is shown.
    pub fn identity(&self) -> Identity {
        Identity { id: self.id.clone(), person: self.person.clone() }
    }

    /// Whether the caller has at least this access.
    pub fn has(&self, access: Access) -> bool {
        self.access >= access
    }

    /// What the caller may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Whether the caller may do something with this domain.
    pub fn may_use(&self, domain: &str) -> bool {
        self.domains.as_ref().is_none_or(|domains| domains.iter().any(|it| it == domain))
    }

    /// The domains that the caller may change; `None` for all.
    pub fn writable(&self) -> Option<&[String]> {
        self.writable.as_deref()
    }

    /// The domains that the caller may use; `None` for all.
    pub fn domains(&self) -> Option<&[String]> {
        self.domains.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: &Token, access: Access, domains: Option<Vec<String>>) -> TokenRow {
        let token = token.row("ci", access, domains, None);
        let (issuer, subject) = (String::new(), String::new());
        let (revoked_at, writable) = (None, None);
        TokenRow { token, created_at: 0, revoked_at, written: 0, issuer, subject, writable }
    }

    #[test]
    fn a_token_is_read_again_and_known_by_its_hash_alone() {
        let token = Token::random().unwrap();
        let again = Token::parse(&token.reveal()).unwrap();
        assert_eq!(again, token);
        let row = row(&token, Access::Write, Some(vec!["shop".into()]));
        assert!(!format!("{row:?} {token:?}").contains(&token.secret), "{row:?}");
        let caller = again.caller(&row).unwrap();
        assert_eq!(caller.name, format!("ci/{}", token.id));
        assert!(caller.has(Access::Read) && caller.has(Access::Write));
        assert!(!caller.has(Access::Admin));
        assert!(caller.may_use("shop") && !caller.may_use("shop2"));
    }

    #[test]
    fn a_token_with_another_secret_or_that_has_ended_has_no_caller() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        let good = row(&token, Access::Admin, None);
        assert!(token.caller(&good).is_some());
        let forged = Token { id: token.id.clone(), secret: other.secret };
        assert_eq!(forged.caller(&good), None);
        assert_eq!(token.caller(&TokenRow { revoked_at: Some(1), ..good.clone() }), None);
        let expired = NewToken { expires_at: Some(1), ..good.token.clone() };
        assert_eq!(token.caller(&TokenRow { token: expired, ..good }), None);
    }

    #[test]
    fn the_audit_log_has_the_domains_that_rights_change() {
        let list = |it: &[&str]| Some(it.iter().map(|it| (*it).to_owned()).collect());
        let shown = |access, domains, writable| Rights { access, domains, writable }.to_string();
        assert_eq!(shown(Access::Admin, None, None), "admin of all");
        assert_eq!(shown(Access::Read, list(&["shop"]), list(&[])), "read of shop");
        assert_eq!(shown(Access::Write, None, list(&["a", "b"])), "write of a, b; read of all");
        let rights = Rights { access: Access::Write, domains: None, writable: list(&["shop"]) };
        assert_eq!(rights.all_domains().collect::<Vec<_>>(), ["shop"]);
    }

    #[test]
    fn what_is_no_token_is_not_looked_up() {
        let good = Token::random().unwrap().reveal();
        let no_prefix = good.replace("rlc_", "xyz_");
        for text in ["", "rlc", "rlc__", "rlc_zz_zz", &no_prefix, &good[..20], &good.repeat(9)] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }
}
