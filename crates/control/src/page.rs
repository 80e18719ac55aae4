//! **The page**: one page for people, which uses the API like any other client.
//!
//! Its parts are files beside this one, and become one answer: while replicas of two releases run
//! side by side, no part of one is loaded with parts of the other. The page may run the script and
//! the style that it contains, which are known by their hashes, and call this server; it loads
//! nothing from elsewhere. It holds no data, so that it needs no token.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use sha2::{Digest, Sha256};

use crate::document::schema;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");

/// The parts of the script, which is one module: the order is that of their use. Before them stand
/// the JSON Schemas of the maps of a rule file.
const SCRIPT: [&str; 20] = [
    include_str!("page/elements.js"),
    include_str!("page/words.js"),
    include_str!("page/api.js"),
    include_str!("page/problems.js"),
    include_str!("page/rules.js"),
    include_str!("page/fields.js"),
    include_str!("page/editor.js"),
    include_str!("page/saving.js"),
    include_str!("page/change_sets.js"),
    include_str!("page/differences.js"),
    include_str!("page/approvals.js"),
    include_str!("page/changes.js"),
    include_str!("page/dry_run.js"),
    include_str!("page/rollouts.js"),
    include_str!("page/versions.js"),
    include_str!("page/files.js"),
    include_str!("page/pods.js"),
    include_str!("page/access.js"),
    include_str!("page/audit.js"),
    include_str!("page/main.js"),
];

/// What the parts take the place of.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";

/// The root of the page.
const ROOT: &str = "<html lang=\"en\">";

/// The root of the page if people can sign in at a provider, which the script looks for.
const ROOT_WITH_PROVIDER: &str = "<html lang=\"en\" data-sign-in>";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

static PAGE: LazyLock<Page> = LazyLock::new(Page::new);

struct Page {
    text: String,
    /// The page where people can sign in at a provider.
    text_with_provider: String,
    policy: String,
}

/// The page; people can sign in at a provider if there is one.
pub fn serve(has_provider: bool) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE.policy.as_str()),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ];
    let text = if has_provider { &PAGE.text_with_provider } else { &PAGE.text };
    (headers, text.as_str()).into_response()
}

/// A page that says one thing, and leads back: it has the style of the page, and no script.
pub fn message(status: StatusCode, title: &str, words: &[&str]) -> Response {
    let words = words.iter().map(|it| format!("<p>{}</p>", escaped(it))).collect::<String>();
    let title = escaped(title);
    let text = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><header><h1>ratelease <span>control</span></h1></header>\
         <main><section><h2>{title}</h2>{words}<p><a href=\"/v1/sign-in\">Sign in again</a> or \
         <a href=\"/\">go to the page</a></p></section></main></body></html>\n"
    );
    let policy = format!(
        "default-src 'none'; style-src {}; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash(STYLE)
    );
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, policy.as_str()),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ];
    (status, headers, text).into_response()
}

/// A text within markup.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            it => escaped.push(it),
        }
    }
    escaped
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

// === impl Page ===

impl Page {
    fn new() -> Self {
        let script = format!("const RULE_MAPS = {};\n{}", schema()["definitions"], SCRIPT.concat());
        let text = HTML.replacen(STYLE_PLACE, STYLE, 1).replacen(SCRIPT_PLACE, &script, 1);
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
            hash(&script),
            hash(STYLE)
        );
        let text_with_provider = text.replacen(ROOT, ROOT_WITH_PROVIDER, 1);
        Self { text, text_with_provider, policy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_has_no_way_for_markup() {
        let Page { text, text_with_provider, policy } = Page::new();
        assert!(text_with_provider.contains(ROOT_WITH_PROVIDER));
        assert!(!text.contains(STYLE_PLACE) && !text.contains(SCRIPT_PLACE));
        assert_eq!(text.matches("</script>").count(), 1, "the script would end early");
        assert_eq!(text.matches("<script").count(), 1);
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(way), "{way}");
        }
        let text = text.replace("http://www.w3.org/2000/svg", ""); // a name in the icon
        assert!(!text.contains("http://") && !text.contains("https://"), "of another place");
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}
