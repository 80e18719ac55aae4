//! Who may read the debug port and ask for decisions: any client that reaches it, but no foreign
//! page open in a browser there.
//!
//! The ports ask for no password unless one was set, so that an operator's browser can reach them
//! through a port-forward; every page open in that browser can then reach them too. Nothing on the
//! debug port changes anything, but its content (names of rules, settings, values of hot keys) must
//! not be readable by such pages, and they must not charge limits.
//!
//! - A page of another origin cannot read an answer: none allows it. What such a page *loads* (an
//!   image, a frame, a stream that takes the place of a listener) is refused by `Sec-Fetch-Site`
//!   and `Origin`. Following a link is allowed.
//! - A page whose own name was made to resolve to this address (DNS rebinding) could read all of
//!   it. It is refused by the `Host` that it asks for. Allowed are addresses, names that cannot be
//!   registered publicly, and the names in a setting.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY,
    USER_AGENT, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use ratelease_engine::secret::Secret;

/// Suffixes under which no outsider can register a name: those reserved for internal use (RFC 6761,
/// ICANN's `internal`), and those of services in Kubernetes.
const INTERNAL_SUFFIXES: [&str; 4] = ["localhost", "internal", "svc", "cluster.local"];

/// Maximum number of bytes shown of a refused name: no valid name is longer (RFC 1035 §2.3.4).
const NAME_BYTES_MAX: usize = 255;

/// What the `User-Agent` of every browser begins with.
const BROWSERS: &[u8] = b"Mozilla/";

/// Allows every name.
const ANY: &str = "*";

/// Set on every answer that has no value of its own: answers must not be cached, sniffed, framed,
/// or loaded by another origin.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// The names allowed in addition to those that always are. A cheap handle: clones share it.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    allowed: Arc<[String]>,
    /// The setting that allows them.
    setting: &'static str,
    /// The token that requests have to present, if one is set.
    token: Option<Arc<Token>>,
}

/// The hash of the token: comparing hashes takes the same time whatever a request presents.
#[derive(Debug)]
struct Token(blake3::Hash);

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum GuardError {
    #[error(
        "{name:?} is not an allowed host name of this port; use its address or localhost, or allow \
         the name with {setting}"
    )]
    Host { name: String, setting: &'static str },
    #[error("this page is not available to pages of another origin; open it directly")]
    CrossOrigin,
    #[error("present the token of DEBUG_TOKEN, as a bearer token or as the password of any user")]
    Token,
}

// === impl Guard ===

impl Guard {
    /// Also allows requests for the names in `allowed`, which come from `setting`: names without a
    /// port, or `*` for all.
    pub fn new(allowed: &[String], setting: &'static str) -> Self {
        Self { allowed: allowed.into(), setting, token: None }
    }

    /// Allows only requests that present `token`, unless that is empty: as a bearer token (RFC
    /// 6750), or as the password of any user (RFC 7617), for which a browser prompts.
    #[must_use]
    pub fn with_token(self, token: &Secret) -> Self {
        let hash = || Arc::new(Token(blake3::hash(token.reveal().as_bytes())));
        Self { token: (!token.is_empty()).then(hash), ..self }
    }

    /// Puts `routes` behind the guard.
    pub fn before(&self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self.clone(), check_request))
    }

    fn check(&self, request: &Request) -> Result<(), GuardError> {
        let headers = request.headers();
        // HTTP/2 has the name in the request URI. A browser always sends it.
        let authority = request.uri().authority().map(http::uri::Authority::as_str);
        let allowed_host =
            headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
        for host in authority.into_iter().chain(allowed_host) {
            if !self.allows(name_of(host)) {
                let end = host.floor_char_boundary(NAME_BYTES_MAX);
                return Err(GuardError::Host {
                    name: host[..end].to_owned(),
                    setting: self.setting,
                });
            }
        }
        if self.is_cross_origin(request.method(), headers, authority) {
            return Err(GuardError::CrossOrigin);
        }
        match &self.token {
            Some(token) if !token.is_presented(headers) => Err(GuardError::Token),
            _ => Ok(()),
        }
    }

    fn allows(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        is_internal(name) || self.is_allowed_by_setting(name)
    }

    fn is_allowed_by_setting(&self, name: &str) -> bool {
        self.allowed
            .iter()
            .any(|allowed_host| allowed_host == ANY || allowed_host.eq_ignore_ascii_case(name))
    }

    /// Whether a browser reports that a page of another origin makes the request, other than by
    /// following a link.
    fn is_cross_origin(
        &self,
        method: &Method,
        headers: &HeaderMap,
        authority: Option<&str>,
    ) -> bool {
        let header = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let says = |name, what| header(name) == Some(what);
        // A submitted form looks like a followed link, except for its method.
        let is_link = [Method::GET, Method::HEAD].contains(method)
            && says("sec-fetch-mode", "navigate")
            && says("sec-fetch-dest", "document");
        if ["cross-site", "same-site"].into_iter().any(|site| says("sec-fetch-site", site)) {
            return !is_link;
        }
        let Some(origin) = headers.get(ORIGIN) else { return false };
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let host = header(HOST.as_str()).or(authority).unwrap_or_default();
        // An allowed name may be that of a proxy, which connects here by another name.
        !origin.is_some_and(|(_, at)| {
            at.eq_ignore_ascii_case(host) || self.is_allowed_by_setting(name_of(at))
        })
    }
}

async fn check_request(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error @ GuardError::Token) => {
            let ask = [(WWW_AUTHENTICATE, "Basic realm=\"ratelease\", charset=\"UTF-8\"")];
            (StatusCode::UNAUTHORIZED, ask, format!("{error}\n")).into_response()
        }
        Err(error) => (StatusCode::FORBIDDEN, format!("{error}\n")).into_response(),
    }
}

// === impl Token ===

impl Token {
    fn is_presented(&self, headers: &HeaderMap) -> bool {
        let authority = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, authority)) = authority.and_then(|authority| authority.split_once(' '))
        else {
            return false;
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            return blake3::hash(authority.trim().as_bytes()) == self.0;
        }
        let pair = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(authority.trim()));
        let Some(Ok(pair)) = pair else { return false };
        let mut parts = pair.splitn(2, |byte| *byte == b':');
        parts.nth(1).is_some_and(|password| blake3::hash(password) == self.0)
    }
}

/// Returns `routes` whose answers restrict what browsers may do with them.
pub fn with_headers(routes: Router) -> Router {
    routes.layer(middleware::map_response(|mut response: Response| async move {
        for (name, value) in HEADERS {
            response.headers_mut().entry(name).or_insert(value);
        }
        response
    }))
}

/// Whether a page in a browser may have sent a request with these headers. Each of them is one that
/// a page cannot remove or change without permission: today's browsers send `Origin` with each
/// `POST`, and `Sec-Fetch-*` to loopback and over TLS; all say in `User-Agent` that they are one.
pub fn may_be_browser(headers: &HeaderMap) -> bool {
    let named = headers.get_all(USER_AGENT).iter();
    headers.contains_key(ORIGIN)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
        || named.into_iter().any(|name| name.as_bytes().starts_with(BROWSERS))
}

/// The name or address in `host`, without the port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An IPv6 address ends with a bracket, or with the port after it.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether `name` is an address, a name without dots, which cannot be registered, or a name under
/// one of [`INTERNAL_SUFFIXES`].
fn is_internal(name: &str) -> bool {
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if let Some(address) = bracketed {
        return address.parse::<Ipv6Addr>().is_ok();
    }
    let has_internal_suffix = |inner: &&str| {
        let at = name.len().checked_sub(inner.len()).filter(|at| name.is_char_boundary(*at));
        let ends = at.map(|at| name.split_at(at));
        ends.is_some_and(|(rest, end)| end.eq_ignore_ascii_case(inner) && rest.ends_with('.'))
    };
    let is_plain = !name.is_empty() && !name.contains('.');
    is_plain
        || name.parse::<Ipv4Addr>().is_ok()
        || INTERNAL_SUFFIXES.iter().any(has_internal_suffix)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn checked(allowed: &[&str], headers: &[(&str, &str)]) -> Result<(), GuardError> {
        let allowed: Vec<_> = allowed.iter().map(|&name| name.to_owned()).collect();
        let request = headers
            .iter()
            .fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        Guard::new(&allowed, "A_SETTING").check(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn internal_names_are_allowed_and_others_need_the_setting() {
        for host in [
            "127.0.0.1:6070",
            "10.1.2.3",
            "[::1]:6070",
            "[fd00::1]",
            "localhost:6070",
            "LOCALHOST",
            "pod.localhost",
            "shop-7d9c:6070",
            "ratelease.shop.svc:6070",
            "ratelease.shop.svc.cluster.local.:6070",
            "vm.eu.internal",
        ] {
            assert_eq!(checked(&[], &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:6070",
            "127.0.0.1.evil.example",
            "10.0.0.1.nip.io:6070",
            "localhost.evil.example",
            "notinternal.example",
            "x.notinternal",
            "evil.example.",
            ".",
            "",
            "[evil.example]",
            "[::1].evil.example",
        ] {
            let error = checked(&[], &[("host", host)]);
            let (name, setting) = (host.to_owned(), "A_SETTING");
            assert_eq!(error, Err(GuardError::Host { name, setting }), "{host}");
        }
        let allowed = ["Debug.Example.com"];
        assert_eq!(checked(&allowed, &[("host", "debug.example.com:443")]), Ok(()));
        assert!(checked(&allowed, &[("host", "a.debug.example.com")]).is_err());
        assert_eq!(checked(&["*"], &[("host", "any.example")]), Ok(()));
        // Requests that are not from a browser, and requests that name more than one host.
        assert_eq!(checked(&[], &[]), Ok(()));
        assert!(checked(&[], &[("host", "localhost"), ("host", "evil.example")]).is_err());
    }

    /// Every combination of the headers by which a browser is known, among others.
    #[test]
    fn a_request_with_any_header_of_a_browser_may_be_of_one() {
        let of_browsers = [
            ("origin", "http://localhost:6070"),
            ("origin", "null"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-mode", "cors"),
            ("sec-fetch-dest", ""),
            ("sec-fetch-user", "?1"),
            ("user-agent", "Mozilla/5.0 (X11)"),
        ];
        let of_all = [
            ("host", "localhost"),
            ("user-agent", "curl/8.5.0 Mozilla/5.0"),
            ("content-type", "application/x-www-form-urlencoded"),
            ("referer", "http://localhost/"),
            ("x-sec-fetch-mode", "cors"),
        ];
        let chosen = |set: usize| (0..12).filter(move |at| set >> at & 1 == 1);
        for set in 0..1 << 12_usize {
            let mut headers = HeaderMap::new();
            for at in chosen(set) {
                let (name, value) = of_all.iter().chain(&of_browsers).nth(at).unwrap();
                headers.append(*name, HeaderValue::from_static(value));
            }
            let expected = chosen(set).any(|at| at >= of_all.len());
            assert_eq!(may_be_browser(&headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn the_host_may_be_in_the_uri_as_in_http2() {
        let request = |address: &str| Request::builder().uri(address).body(Body::empty()).unwrap();
        let guard = Guard::default();
        assert_eq!(guard.check(&request("http://localhost:6070/status")), Ok(()));
        assert!(guard.check(&request("http://evil.example:6070/status")).is_err());
    }

    #[test]
    fn a_token_is_presented_as_a_bearer_token_or_a_password() {
        let guard = Guard::default().with_token(&"s3cret:x".into());
        let authority = |value: Option<&str>| {
            let request = Request::builder().header("host", "localhost");
            let request = value.iter().fold(request, |it, value| it.header(AUTHORIZATION, *value));
            guard.check(&request.body(Body::empty()).unwrap())
        };
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        for good in
            ["Bearer s3cret:x", "bearer  s3cret:x", &basic("any:s3cret:x"), &basic(":s3cret:x")]
        {
            assert_eq!(authority(Some(good)), Ok(()), "{good}");
        }
        for bad in
            ["Bearer s3cret", "s3cret:x", "Basic s3cret:x", &basic("s3cret:x"), "Basic !", ""]
        {
            assert_eq!(authority(Some(bad)), Err(GuardError::Token), "{bad}");
        }
        assert_eq!(authority(None), Err(GuardError::Token));
        assert_eq!(Guard::default().with_token(&"".into()).check(&Request::default()), Ok(()));
    }

    #[test]
    fn pages_of_other_origins_may_link_here_and_load_nothing() {
        let own = ("host", "localhost:6070");
        let by = |site, mode, dest| {
            checked(
                &[],
                &[
                    own,
                    ("sec-fetch-site", site),
                    ("sec-fetch-mode", mode),
                    ("sec-fetch-dest", dest),
                ],
            )
        };
        assert_eq!(by("none", "navigate", "document"), Ok(()), "typed in");
        assert_eq!(by("cross-site", "navigate", "document"), Ok(()), "a link");
        assert_eq!(by("same-origin", "cors", "empty"), Ok(()), "the page's own stream");
        for (site, mode, dest) in [
            ("cross-site", "no-cors", "image"),
            ("cross-site", "cors", "empty"),
            ("cross-site", "navigate", "iframe"),
            ("same-site", "no-cors", "script"),
        ] {
            assert_eq!(by(site, mode, dest), Err(GuardError::CrossOrigin), "{site} {mode} {dest}");
        }
        let from = |origin| checked(&["proxy.example"], &[own, ("origin", origin)]);
        assert_eq!(from("http://localhost:6070"), Ok(()));
        assert_eq!(from("https://proxy.example"), Ok(()));
        for origin in ["http://localhost:3000", "http://evil.example", "null", ""] {
            assert_eq!(from(origin), Err(GuardError::CrossOrigin), "{origin}");
        }
    }
}
