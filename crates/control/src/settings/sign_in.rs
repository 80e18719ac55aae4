//! How people sign in: a provider of OpenID Connect, and what its claims give.

use std::path::PathBuf;

use http::Uri;
use http::uri::Scheme;
use ratelease_cli::settings;
use ratelease_cli::settings::{
    Expected, Fault, Faults, Section, Values, optional, path, secret, setting, text,
};
use ratelease_engine::secret::Secret;

use crate::oidc::roles::Roles;

settings! {
    /// The provider and the roles, as given.
    struct Given in "Sign-in" {
        /// Address of the page in browsers, as in https://limits.example. The provider has to know
        /// this address with /v1/sign-in/callback as redirect URI
        "CONTROL_PUBLIC_URL" => public_url: Option<Uri> = optional("URL", origin);
        /// The provider of OpenID Connect by which people sign in to the page [default: they need a
        /// token]
        "CONTROL_OIDC_ISSUER" => issuer: Option<String> = optional("URL", issuer);
        /// Name of this control plane at the provider
        "CONTROL_OIDC_CLIENT_ID" => client_id: String = text("ID");
        /// The secret of that client [default: a public client]
        "CONTROL_OIDC_CLIENT_SECRET" => client_secret: Secret = secret("SECRET");
        /// Scopes that the provider is asked for, separated by spaces; some need `groups` for groups
        "CONTROL_OIDC_SCOPES" => scopes: String = setting("SCOPES", "openid profile", scopes);
        /// Access and domains for the values of claims, as JSON; without domains a role is for all. As
        /// in {"groups":{"shop":{"access":"write","domains":["shop"]}}}
        "CONTROL_OIDC_ROLES" => roles: Roles = optional("JSON", roles);
        /// File with the CA certificates of the provider, PEM [default: the system's]
        "CONTROL_OIDC_CA" => roots: Option<PathBuf> = path("FILE");
    }
}

/// How people sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignIn {
    /// The page's origin in browsers: a scheme and a host, with a port if it has one.
    pub origin: String,
    /// Whether browsers use TLS.
    pub is_secure: bool,
    /// The provider, as it names itself.
    pub issuer: String,
    /// The name of this control plane at the provider.
    pub client_id: String,
    /// The secret of that client; empty if it has none.
    pub client_secret: Secret,
    /// The scopes, separated by spaces.
    pub scopes: String,
    /// The rights that claims give.
    pub roles: Roles,
    /// The CA certificates of the provider; `None` for the system's.
    pub roots: Option<PathBuf>,
}

// === impl SignIn ===

impl SignIn {
    /// The rows of the settings.
    pub const SECTION: Section<'static> = Given::SECTION;

    /// Reads how people sign in; `None` if they do not.
    pub fn read(values: Values<'_>, faults: &mut Faults) -> Option<Self> {
        let given = Given::read(values, faults);
        let Some(issuer) = given.issuer else {
            given.refuse_rest(faults);
            return None;
        };
        let missing = [
            ("CONTROL_PUBLIC_URL", given.public_url.is_none()),
            ("CONTROL_OIDC_CLIENT_ID", given.client_id.is_empty()),
            ("CONTROL_OIDC_ROLES", given.roles.is_empty()),
        ];
        for (name, is_missing) in missing {
            if is_missing && !faults.has(name) {
                let problem = "is missing, and CONTROL_OIDC_ISSUER needs it";
                faults.add(Fault::new(name, problem, "set it too"));
            }
        }
        let url = given.public_url?;
        let scheme = url.scheme_str().unwrap_or_default();
        let authority = url.authority().map(|it| it.as_str()).unwrap_or_default();
        Some(Self {
            origin: format!("{scheme}://{authority}"),
            is_secure: url.scheme() == Some(&Scheme::HTTPS),
            issuer,
            client_id: given.client_id,
            client_secret: given.client_secret,
            scopes: given.scopes,
            roles: given.roles,
            roots: given.roots,
        })
    }
}

// === impl Given ===

impl Given {
    /// Adds a fault for each setting that has no effect without a provider.
    fn refuse_rest(&self, faults: &mut Faults) {
        let given = [
            ("CONTROL_OIDC_CLIENT_ID", !self.client_id.is_empty()),
            ("CONTROL_OIDC_CLIENT_SECRET", !self.client_secret.is_empty()),
            ("CONTROL_OIDC_ROLES", !self.roles.is_empty()),
            ("CONTROL_OIDC_CA", self.roots.is_some()),
        ];
        let without = !faults.has("CONTROL_OIDC_ISSUER");
        for (name, _) in given.into_iter().filter(|(_, is)| *is && without) {
            let problem = "has no effect without CONTROL_OIDC_ISSUER";
            faults.add(Fault::new(name, problem, "name the provider, or remove it"));
        }
    }
}

/// Reads an address that is `https`, or of this machine.
fn web(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let host = url.host()?.trim_matches(['[', ']']);
    let is_local =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback());
    let is_good = match url.scheme_str()? {
        "https" => true,
        "http" => is_local,
        _ => false,
    };
    let has_user = url.authority().is_some_and(|it| it.as_str().contains('@'));
    (is_good && !has_user && url.query().is_none()).then_some(url)
}

fn origin(text: &str) -> Result<Option<Uri>, Expected> {
    let url = web(text).filter(|it| it.path() == "/");
    let expected = "https:// and a host, or http:// and a loopback address, without a path";
    let expected = || Expected::new(expected).example("https://limits.example");
    url.map(Some).ok_or_else(expected)
}

fn issuer(text: &str) -> Result<Option<String>, Expected> {
    let expected = || {
        let what = "https:// and the address that the provider names itself by";
        Expected::new(what).example("https://login.example/realms/staff")
    };
    let is_good = web(text).is_some() && text.len() <= 512;
    is_good.then(|| Some(text.to_owned())).ok_or_else(expected)
}

fn scopes(text: &str) -> Result<String, Expected> {
    let expected =
        || Expected::new("scopes with openid among them").example("openid profile groups");
    let is_good = text.split(' ').any(|it| it == "openid")
        && text.bytes().all(|it| (0x20..0x7f).contains(&it));
    is_good.then(|| text.to_owned()).ok_or_else(expected)
}

fn roles(text: &str) -> Result<Roles, Expected> {
    let example = r#"{"groups":{"sre":{"access":"admin"}}}"#;
    Roles::parse(text)
        .map_err(|why| Expected::new(format!("roles as JSON ({why})")).example(example))
}
