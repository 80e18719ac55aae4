//! **The page**: one page for people, which uses the API like any other client.
//!
//! Its parts are files beside this one, and become one answer: while replicas of two releases run
//! side by side, no part of one is loaded with parts of the other. The page may run the script and
//! the style that it contains, which are known by their hashes, and call this server; it loads
//! nothing from elsewhere. It holds no data, so that it needs no token.

use std::sync::LazyLock;

use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
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
const SCRIPT: [&str; 17] = [
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
    include_str!("page/changes.js"),
    include_str!("page/dry_run.js"),
    include_str!("page/rollouts.js"),
    include_str!("page/versions.js"),
    include_str!("page/files.js"),
    include_str!("page/pods.js"),
    include_str!("page/main.js"),
];

/// What the parts take the place of.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

static PAGE: LazyLock<Page> = LazyLock::new(Page::new);

struct Page {
    text: String,
    policy: String,
}

/// Read the page
#[utoipa::path(get, path = "/", security(()), responses(
    (status = 200, description = "The page, for browsers", body = String,
        content_type = "text/html")))]
pub async fn serve() -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, PAGE.policy.as_str()),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (OPENER_POLICY, "same-origin"),
        (RESOURCE_POLICY, "same-origin"),
    ];
    (headers, PAGE.text.as_str())
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
        Self { text, policy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_has_no_way_for_markup() {
        let Page { text, policy } = Page::new();
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
