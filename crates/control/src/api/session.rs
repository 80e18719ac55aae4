//! The cookies of sessions and of sign-ins: their names, and with which requests browsers send them.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};

use crate::oidc::Provider;
use crate::settings::SignIn;

/// A cookie.
#[derive(Debug, Clone, Copy)]
pub struct Cookie {
    /// The name. Over TLS `__Host-` precedes it: browsers take such a cookie from this host alone.
    name: &'static str,
    /// With which requests of other sites browsers send it.
    same_site: &'static str,
}

/// The cookie of a session.
pub const SESSION: Cookie = Cookie { name: "ratelease-session", same_site: "Strict" };

/// The cookie of a sign-in that has begun. The provider sends the browser back: with `Strict` it
/// would not come along.
pub const PENDING: Cookie = Cookie { name: "ratelease-sign-in", same_site: "Lax" };

// === impl Cookie ===

impl Cookie {
    fn name(self, settings: &SignIn) -> String {
        let prefix = if settings.is_secure { "__Host-" } else { "" };
        format!("{prefix}{}", self.name)
    }

    /// The header that sets it for so long.
    pub fn set(self, settings: &SignIn, value: &str, lasts: Duration) -> String {
        let (name, same_site, lasts) = (self.name(settings), self.same_site, lasts.as_secs());
        let secure = if settings.is_secure { "; Secure" } else { "" };
        format!("{name}={value}; Path=/; HttpOnly; SameSite={same_site}; Max-Age={lasts}{secure}")
    }

    /// The header that removes it.
    pub fn remove(self, settings: &SignIn) -> String {
        self.set(settings, "", Duration::ZERO)
    }

    /// The value in a request.
    pub fn find<'h>(self, settings: &SignIn, headers: &'h HeaderMap) -> Option<&'h str> {
        let name = self.name(settings);
        let all = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
        let mut pairs = all.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
        pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
    }
}

/// Whether a request with a session may have come from the page: a read, which no other page sees
/// the answer of, or a request that names the page's origin.
pub fn is_of_page(provider: &Provider, parts: &Parts) -> bool {
    let origin = parts.headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
    parts.method.is_safe() || origin == Some(provider.settings().origin.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(is_secure: bool) -> SignIn {
        SignIn {
            origin: "https://limits.example".to_owned(),
            is_secure,
            issuer: String::new(),
            client_id: String::new(),
            client_secret: Default::default(),
            scopes: String::new(),
            roles: Default::default(),
            roots: None,
        }
    }

    #[test]
    fn cookies_over_tls_are_of_this_host_alone() {
        let set = SESSION.set(&settings(true), "x", Duration::from_secs(60));
        let expected = "__Host-ratelease-session=x; Path=/; HttpOnly; SameSite=Strict; \
                        Max-Age=60; Secure";
        assert_eq!(set, expected);
        let removed = PENDING.remove(&settings(false));
        assert_eq!(removed, "ratelease-sign-in=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0");
    }

    #[test]
    fn a_cookie_is_found_among_others_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        let others = "a=1; x__Host-ratelease-session=no; ratelease-session=no";
        headers.append(header::COOKIE, others.parse().unwrap());
        assert_eq!(SESSION.find(&settings(true), &headers), None);
        headers.append(header::COOKIE, "__Host-ratelease-session=yes".parse().unwrap());
        assert_eq!(SESSION.find(&settings(true), &headers), Some("yes"));
    }
}
