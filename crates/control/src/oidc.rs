//! **OpenID Connect**: people sign in at a provider, which tells who they are. Authorization code
//! flow with PKCE.
//!
//! ```text
//! browser ── /v1/sign-in ──▶ provider ── /v1/sign-in/callback ──▶ code
//!            cookie: state, nonce, verifier                        │ token endpoint
//! rights ◀── roles ◀── claims ◀── keys: signature ◀── ID token ◀───┘
//! ```
//! The state of a sign-in is in a cookie of its browser: the process keeps none, and any replica can
//! end it. The provider is asked with bounds of time, bytes and number.

mod fetch;
mod id_token;
pub mod roles;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use fetch::Fetcher;
use http::{HeaderValue, Request, StatusCode, header};
use id_token::{Expectation, Refusal};
use jiff::Timestamp;
use jsonwebtoken::jwk::JwkSet;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ratelease_tls::FileFaults;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::{Mutex, Semaphore};

use crate::auth::Rights;
use crate::settings::SignIn;
use crate::store::Person;

/// Sign-ins at a time that ask the provider. A further one is refused: callers have no token yet.
const AT_A_TIME_MAX: usize = 16;

/// Age at which the metadata and the keys of the provider are read again.
const KNOWN_MAX: Duration = Duration::from_secs(3600);

/// Pause after a failure, and after keys were read, in which they are not read again: a caller
/// without a token chooses how often they are asked for.
const PAUSE: Duration = Duration::from_secs(2);

/// Maximum bytes of the name of a person.
const NAME_BYTES_MAX: usize = 100;

/// Random bytes of state, nonce and verifier: more than can be guessed.
const RANDOM_BYTES: usize = 32;

/// Why a sign-in failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SignInError {
    /// The provider cannot be asked, or its answer is not allowed.
    #[error("the provider {0}")]
    Provider(String),
    /// Too many sign in at once.
    #[error("too many sign-ins are under way")]
    Busy,
    /// The provider, or the browser, has not signed this person in here.
    #[error("{0}")]
    Refused(String),
    /// The person has no role.
    #[error("{0} has no role here")]
    NoRole(String),
}

/// The state of a sign-in, which its browser keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    state: String,
    nonce: String,
    verifier: String,
}

/// The query with which the provider sends a browser back.
#[derive(Debug, Default, Deserialize)]
pub struct Callback {
    code: Option<String>,
    state: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

/// The provider, with its metadata and keys.
#[derive(Debug)]
pub struct Provider {
    settings: SignIn,
    /// A hash of the settings that rights follow from.
    pub roles: String,
    fetcher: Fetcher,
    permits: Semaphore,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    metadata: Option<(Timestamp, Arc<Metadata>)>,
    keys: Option<(Timestamp, Arc<JwkSet>)>,
    failed: Option<(Timestamp, SignInError)>,
}

/// The metadata of a provider (OpenID Connect Discovery 1.0).
#[derive(Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// The answer of the token endpoint.
#[derive(Deserialize)]
struct Tokens {
    id_token: String,
    #[serde(default)]
    access_token: String,
}

/// Whether less than `max` has passed since `at`.
fn is_within(at: Timestamp, max: Duration) -> bool {
    Timestamp::now().duration_since(at).unsigned_abs() < max
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn form(fields: &[(&str, &str)]) -> String {
    let fields = fields.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
    fields.collect::<Vec<_>>().join("&")
}

// === impl Provider ===

impl Provider {
    /// Makes ready to ask the provider, which is not called yet. Blocks: it reads files.
    ///
    /// # Errors
    /// The file of certificates cannot be used.
    pub fn new(settings: SignIn) -> Result<Self, FileFaults> {
        id_token::install();
        let fetcher = Fetcher::new(settings.roots.clone())?;
        let roles = settings.roles.fingerprint(&settings.issuer, &settings.client_id);
        let permits = Semaphore::new(AT_A_TIME_MAX);
        Ok(Self { settings, roles, fetcher, permits, known: Mutex::default() })
    }

    /// How people sign in.
    pub fn settings(&self) -> &SignIn {
        &self.settings
    }

    /// Begins a sign-in. Returns its state, and the address to which the browser goes.
    ///
    /// # Errors
    /// The provider cannot be asked.
    pub async fn begin(&self) -> Result<(Pending, String), SignInError> {
        let _permit = self.permits.try_acquire().map_err(|_| SignInError::Busy)?;
        let metadata = self.metadata().await?;
        let pending = Pending::random()?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(pending.verifier.as_bytes()));
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &self.settings.client_id),
            ("redirect_uri", &self.redirect_uri()),
            ("scope", &self.settings.scopes),
            ("state", &pending.state),
            ("nonce", &pending.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let endpoint = &metadata.authorization_endpoint;
        let joint = if endpoint.contains('?') { '&' } else { '?' };
        Ok((pending, format!("{endpoint}{joint}{query}")))
    }

    /// Ends a sign-in. Returns the person and their rights.
    ///
    /// # Errors
    /// The sign-in failed.
    pub async fn end(
        &self,
        pending: &Pending,
        callback: &Callback,
    ) -> Result<(Person, Rights), SignInError> {
        let refused = |why: &str| SignInError::Refused(why.to_owned());
        // Any page can send a browser here: that costs nothing, and takes no place.
        if callback.state.as_deref() != Some(&pending.state) {
            return Err(refused(
                "this sign-in was not begun in this browser, or was ended already",
            ));
        }
        let _permit = self.permits.try_acquire().map_err(|_| SignInError::Busy)?;
        let metadata = self.metadata().await?;
        let is_needed = metadata.authorization_response_iss_parameter_supported;
        match &callback.iss {
            Some(issuer) if *issuer != self.settings.issuer => {
                return Err(refused("another provider answered"));
            }
            None if is_needed => return Err(refused("the answer does not say whose it is")),
            _ => {}
        }
        if let Some(error) = &callback.error {
            let more = callback.error_description.as_deref().unwrap_or_default();
            let shown = ratelease_rules::excerpt(&format!("{error} {more}"));
            return Err(SignInError::Refused(format!("the provider refused: {shown}")));
        }
        let code = callback.code.as_deref().ok_or_else(|| refused("the answer has no code"))?;
        let tokens = self.exchange(&metadata, code, &pending.verifier).await?;
        let mut claims = self.checked(&metadata, &tokens.id_token, &pending.nonce).await?;
        self.complete(&metadata, &tokens, &mut claims).await?;
        let person = self.person(&claims);
        match self.settings.roles.rights(&claims) {
            Some(rights) => Ok((person, rights)),
            None => Err(SignInError::NoRole(person.author())),
        }
    }

    fn redirect_uri(&self) -> String {
        format!("{}/v1/sign-in/callback", self.settings.origin)
    }

    /// The metadata of the provider.
    async fn metadata(&self) -> Result<Arc<Metadata>, SignInError> {
        // Held while it is asked, so that one request asks for all that wait.
        let mut known = self.known.lock().await;
        if let Some((at, metadata)) = &known.metadata
            && is_within(*at, KNOWN_MAX)
        {
            return Ok(Arc::clone(metadata));
        }
        if let Some((at, error)) = &known.failed
            && is_within(*at, PAUSE)
        {
            return Err(error.clone());
        }
        let read = self.read_metadata().await.map(Arc::new);
        match &read {
            Ok(metadata) => known.metadata = Some((Timestamp::now(), Arc::clone(metadata))),
            Err(error) => known.failed = Some((Timestamp::now(), error.clone())),
        }
        read
    }

    async fn read_metadata(&self) -> Result<Metadata, SignInError> {
        let issuer = &self.settings.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let metadata: Metadata = self.get(&url, None).await?;
        if metadata.issuer != *issuer {
            let named = ratelease_rules::excerpt(&metadata.issuer);
            let why =
                format!("at {issuer} calls itself '{named}'; set CONTROL_OIDC_ISSUER to that");
            return Err(SignInError::Provider(why));
        }
        let is_plain = issuer.starts_with("http://");
        let endpoints = [
            Some(&metadata.authorization_endpoint),
            Some(&metadata.token_endpoint),
            Some(&metadata.jwks_uri),
            metadata.userinfo_endpoint.as_ref(),
        ];
        for endpoint in endpoints.into_iter().flatten() {
            let is_good =
                endpoint.starts_with("https://") || is_plain && endpoint.starts_with("http://");
            if !is_good || HeaderValue::from_str(endpoint).is_err() {
                let named = ratelease_rules::excerpt(endpoint);
                return Err(SignInError::Provider(format!(
                    "names '{named}', which is no https URL"
                )));
            }
        }
        Ok(metadata)
    }

    /// Exchanges the code for tokens.
    async fn exchange(
        &self,
        metadata: &Metadata,
        code: &str,
        verifier: &str,
    ) -> Result<Tokens, SignInError> {
        let SignIn { client_id, client_secret, .. } = &self.settings;
        let redirect_uri = self.redirect_uri();
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &*redirect_uri),
            ("code_verifier", verifier),
        ];
        let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
        let is_basic = methods.is_none_or(|it| it.iter().any(|it| it == "client_secret_basic"));
        let mut request = Request::post(&metadata.token_endpoint)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        if client_secret.is_empty() || !is_basic {
            fields.push(("client_id", client_id));
            if !client_secret.is_empty() {
                fields.push(("client_secret", client_secret.reveal()));
            }
        } else {
            let both = format!("{}:{}", encoded(client_id), encoded(client_secret.reveal()));
            let value = format!("Basic {}", STANDARD.encode(both));
            request = request.header(header::AUTHORIZATION, value);
        }
        let (status, body) = self.fetcher.send(request, form(&fields)).await?;
        if status == StatusCode::OK {
            return parse(&metadata.token_endpoint, &body);
        }
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let error = answer["error"].as_str().unwrap_or_default();
        let error = ratelease_rules::excerpt(error);
        if error == "invalid_grant" {
            let why = "the provider does not know this sign-in any more; begin again";
            return Err(SignInError::Refused(why.to_owned()));
        }
        let hint = match error.as_str() {
            "invalid_client" => "; check CONTROL_OIDC_CLIENT_ID and CONTROL_OIDC_CLIENT_SECRET",
            _ => "",
        };
        Err(SignInError::Provider(format!("answered {status} to the code: {error}{hint}")))
    }

    /// The claims of an ID token that is good. Keys that are not known are read again: the provider
    /// may have new ones.
    async fn checked(
        &self,
        metadata: &Metadata,
        token: &str,
        nonce: &str,
    ) -> Result<Map<String, Value>, SignInError> {
        let SignIn { issuer, client_id, .. } = &self.settings;
        let expected = Expectation { issuer, client_id, nonce };
        for age_max in [KNOWN_MAX, PAUSE] {
            let keys = self.keys(metadata, age_max).await?;
            match id_token::check(token, &keys, expected) {
                Ok(claims) => return Ok(claims),
                Err(Refusal::Bad(why)) => return Err(SignInError::Refused(why)),
                Err(Refusal::UnknownKey) => {}
            }
        }
        let why = "the ID token is signed with a key that the provider does not show";
        Err(SignInError::Refused(why.to_owned()))
    }

    async fn keys(
        &self,
        metadata: &Metadata,
        age_max: Duration,
    ) -> Result<Arc<JwkSet>, SignInError> {
        let mut known = self.known.lock().await;
        if let Some((at, keys)) = &known.keys
            && is_within(*at, age_max)
        {
            return Ok(Arc::clone(keys));
        }
        let keys: Arc<JwkSet> = Arc::new(self.get(&metadata.jwks_uri, None).await?);
        known.keys = Some((Timestamp::now(), Arc::clone(&keys)));
        Ok(keys)
    }

    /// Adds claims that the ID token lacks and the userinfo endpoint has: providers differ in where
    /// they put names and groups.
    async fn complete(
        &self,
        metadata: &Metadata,
        tokens: &Tokens,
        claims: &mut Map<String, Value>,
    ) -> Result<(), SignInError> {
        let lacks_claim = self.settings.roles.claims().any(|it| roles::find(claims, it).is_none());
        let lacks_any = lacks_claim || !claims.contains_key("name");
        let Some(endpoint) = metadata.userinfo_endpoint.as_deref().filter(|_| lacks_any) else {
            return Ok(());
        };
        if tokens.access_token.is_empty() {
            return Ok(());
        }
        let more: Map<String, Value> = self.get(endpoint, Some(&tokens.access_token)).await?;
        if more.get("sub") != claims.get("sub") {
            let why = "the userinfo endpoint tells of another person";
            return Err(SignInError::Refused(why.to_owned()));
        }
        for (name, value) in more {
            claims.entry(name).or_insert(value);
        }
        Ok(())
    }

    /// The person of these claims, whose subject was checked.
    fn person(&self, claims: &Map<String, Value>) -> Person {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).unwrap_or_default();
        let subject = text("sub").to_owned();
        let issuer = self.settings.issuer.clone();
        let names = ["name", "preferred_username", "email"].map(|it| name_of(text(it)));
        let name = names.into_iter().find(|it| !it.is_empty()).unwrap_or_else(|| name_of(&subject));
        let mut hasher = blake3::Hasher::new_derive_key("ratelease 2026-11 person");
        hasher.update(issuer.as_bytes()).update(&[0]).update(subject.as_bytes());
        let id = format!("p-{}", &hasher.finalize().to_hex()[..32]);
        Person { id, issuer, subject, name }
    }

    async fn get<T: DeserializeOwned>(
        &self,
        url: &str,
        token: Option<&str>,
    ) -> Result<T, SignInError> {
        let mut request = Request::get(url);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let (status, body) = self.fetcher.send(request, String::new()).await?;
        if status != StatusCode::OK {
            return Err(SignInError::Provider(format!("answered {status} at {url}")));
        }
        parse(url, &body)
    }
}

fn parse<T: DeserializeOwned>(url: &str, body: &[u8]) -> Result<T, SignInError> {
    serde_json::from_slice(body)
        .map_err(|error| SignInError::Provider(format!("answered at {url}: {error}")))
}

/// A name of a person as an author has one: without slashes and control characters, and not long.
fn name_of(text: &str) -> String {
    let kept = text.chars().map(|it| if it == '/' || it.is_control() { ' ' } else { it });
    let mut name: String = kept.collect();
    while name.len() > NAME_BYTES_MAX {
        name.pop();
    }
    name.trim().to_owned()
}

// === impl Pending ===

impl Pending {
    fn random() -> Result<Self, SignInError> {
        let random = || {
            let mut bytes = [0; RANDOM_BYTES];
            let why = |error: getrandom::Error| SignInError::Provider(error.to_string());
            getrandom::fill(&mut bytes).map_err(why)?;
            Ok(URL_SAFE_NO_PAD.encode(bytes))
        };
        Ok(Self { state: random()?, nonce: random()?, verifier: random()? })
    }

    /// The value of a cookie.
    pub fn cookie(&self) -> String {
        format!("{}.{}.{}", self.state, self.nonce, self.verifier)
    }

    /// Reads the value of a cookie.
    pub fn parse(cookie: &str) -> Option<Self> {
        let is_part =
            |it: &str| URL_SAFE_NO_PAD.decode(it).is_ok_and(|it| it.len() == RANDOM_BYTES);
        let parts: Vec<_> = cookie.split('.').filter(|it| is_part(it)).map(str::to_owned).collect();
        let [state, nonce, verifier] = <[String; 3]>::try_from(parts).ok()?;
        Some(Self { state, nonce, verifier })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::routing::{get, post};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::roles::Roles;
    use super::*;

    fn provider(issuer: &str) -> Provider {
        let roles = r#"{"groups":{"sre":{"access":"admin"}}}"#;
        let settings = SignIn {
            origin: "http://127.0.0.1:1".to_owned(),
            is_secure: false,
            issuer: issuer.to_owned(),
            client_id: "limits".to_owned(),
            client_secret: "s&t".into(),
            scopes: "openid profile".to_owned(),
            roles: Roles::parse(roles).unwrap(),
            roots: None,
        };
        Provider::new(settings).unwrap()
    }

    /// A server with metadata that `change` makes of good ones.
    async fn served(change: impl Fn(&mut Value)) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let issuer = format!("http://{at}");
        let mut metadata = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/auth?tenant=1"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/keys"),
        });
        change(&mut metadata);
        let text = metadata.to_string();
        let token = || async { (StatusCode::BAD_REQUEST, r#"{"error":"invalid_client"}"#) };
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(move || async move { text }))
            .route("/token", post(token));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        at
    }

    #[tokio::test]
    async fn a_sign_in_asks_for_a_code_of_its_own_with_pkce() {
        let issuer = format!("http://{}", served(|_| ()).await);
        let provider = provider(&issuer);
        let (pending, place) = provider.begin().await.unwrap();
        let (other, _) = provider.begin().await.unwrap();
        assert_ne!(pending, other);
        assert_eq!(Pending::parse(&pending.cookie()).as_ref(), Some(&pending));
        let begin = format!("{issuer}/auth?tenant=1&response_type=code&client_id=limits&");
        assert!(place.starts_with(&begin), "{place}");
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(pending.verifier.as_bytes()));
        for (name, value) in [
            ("state", &pending.state),
            ("nonce", &pending.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", &"S256".to_owned()),
            ("redirect_uri", &"http://127.0.0.1:1/v1/sign-in/callback".to_owned()),
        ] {
            assert!(place.contains(&format!("&{name}={}", encoded(value))), "{name}: {place}");
        }
        assert!(!place.contains(&encoded(&pending.verifier)), "{place}");
    }

    #[tokio::test]
    async fn metadata_of_another_issuer_or_with_other_schemes_are_refused() {
        for (name, value, why) in [
            ("issuer", "http://127.0.0.1:1", "calls itself"),
            ("token_endpoint", "file:///etc/passwd", "is no https URL"),
            ("jwks_uri", "ftp://x/", "is no https URL"),
        ] {
            let issuer = format!("http://{}", served(|it| it[name] = value.into()).await);
            let provider = provider(&issuer);
            let error = provider.begin().await.unwrap_err();
            assert!(error.to_string().contains(why), "{name}: {error}");
            // The provider is not asked again at once.
            assert_eq!(provider.begin().await.unwrap_err(), error);
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_not_for_this_sign_in_is_refused() {
        let issuer = format!("http://{}", served(|_| ()).await);
        let provider = provider(&issuer);
        let (pending, _) = provider.begin().await.unwrap();
        let state = Some(pending.state.clone());
        let code = Some("c".to_owned());
        for (callback, why) in [
            (Callback { code: code.clone(), ..Callback::default() }, "not begun in this browser"),
            (
                Callback { code: code.clone(), state: Some("x".into()), ..Callback::default() },
                "not begun in this browser",
            ),
            (
                Callback { state: state.clone(), iss: Some("x".into()), ..Callback::default() },
                "another provider answered",
            ),
            (Callback { state: state.clone(), ..Callback::default() }, "has no code"),
            (
                Callback {
                    state: state.clone(),
                    error: Some("denied".into()),
                    ..Callback::default()
                },
                "the provider refused: denied",
            ),
            (Callback { state, code, ..Callback::default() }, "check CONTROL_OIDC_CLIENT_ID"),
        ] {
            let error = provider.end(&pending, &callback).await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn names_of_people_have_no_slash_and_an_end() {
        assert_eq!(name_of("Ada/Love\nlace "), "Ada Love lace");
        assert_eq!(name_of(&"ä".repeat(300)).len(), NAME_BYTES_MAX);
    }
}
