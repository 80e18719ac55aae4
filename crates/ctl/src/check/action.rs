//! The descriptors of a `RateLimit` message (`envoy.config.route.v3`), from its actions.

use ratelease_rules::Place;
use ratelease_rules::yaml::{Yaml, YamlKind};

use crate::yaml_documents::{field, items, text};

/// Maximum number of descriptors of one message: each action that may be skipped doubles them.
const VARIANTS_MAX: usize = 1024;

/// An entry of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryPattern {
    pub(super) key: String,
    /// `None` for a value that depends on the request.
    pub(super) value: Option<String>,
}

/// What an action adds to a descriptor.
struct Added {
    entry: EntryPattern,
    /// The entry may be left out, and the rest is sent.
    is_optional: bool,
}

/// The descriptors that a `RateLimit` may send.
///
/// # Errors
/// The place and the name of an action that is not known.
pub(super) fn descriptors(rate_limit: &Yaml) -> Result<Vec<Vec<EntryPattern>>, (Place, String)> {
    let mut variants: Vec<Vec<EntryPattern>> = vec![Vec::new()];
    for action in items(field(rate_limit, "actions")) {
        let Some(Added { entry, is_optional }) = added(action) else {
            return Err((action.place, name_of(action).unwrap_or_default().to_owned()));
        };
        let without = if is_optional { variants.clone() } else { Vec::new() };
        variants.iter_mut().for_each(|variant| variant.push(entry.clone()));
        variants.extend(without);
        variants.truncate(VARIANTS_MAX);
    }
    variants.retain(|variant| !variant.is_empty());
    Ok(variants)
}

/// The name of an action: the one field that it has.
fn name_of(action: &Yaml) -> Option<&str> {
    let YamlKind::Map(pairs) = &action.kind else { return None };
    text(&pairs.first()?.0)
}

/// The entry of an action. Keys and their defaults are those of Envoy's documentation.
fn added(action: &Yaml) -> Option<Added> {
    let name = snake(name_of(action)?);
    let of = field(action, &name)?;
    let key = |default: &str| {
        let given = field(of, "descriptor_key").and_then(text).filter(|key| !key.is_empty());
        given.unwrap_or(default).to_owned()
    };
    let any = |key: String| EntryPattern { key, value: None };
    let entry = match name.as_str() {
        "source_cluster" => any("source_cluster".to_owned()),
        "destination_cluster" => any("destination_cluster".to_owned()),
        "remote_address" => any("remote_address".to_owned()),
        "masked_remote_address" => any("masked_remote_address".to_owned()),
        "request_headers" | "query_parameters" | "dynamic_metadata" | "metadata" => any(key("")),
        "generic_key" => EntryPattern { key: key("generic_key"), value: fixed(of) },
        "header_value_match" => EntryPattern { key: key("header_match"), value: fixed(of) },
        "query_parameter_value_match" => EntryPattern { key: key("query_match"), value: fixed(of) },
        "remote_address_match" => {
            EntryPattern { key: key("remote_address_match"), value: fixed(of) }
        }
        "extension" => {
            any(field(field(of, "typed_config")?, "descriptor_key").and_then(text)?.to_owned())
        }
        _ => return None,
    };
    let is_set = |of, name| field(of, name).and_then(text).is_some_and(|it| it == "true");
    let skips = is_set(of, "skip_if_absent")
        || field(of, "typed_config").is_some_and(|of| is_set(of, "skip_if_error"));
    (!entry.key.is_empty()).then_some(Added { entry, is_optional: skips })
}

/// The value of an action that names it; `None` if Envoy may put something in the place of `%…%`.
fn fixed(of: &Yaml) -> Option<String> {
    let value = field(of, "descriptor_value").and_then(text)?;
    (!value.contains('%')).then(|| value.to_owned())
}

fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}
