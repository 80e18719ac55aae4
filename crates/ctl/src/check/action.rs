//! Descriptors, as the actions of a `RateLimit` message (`envoy.config.route.v3`) make them.

use ratelease_rules::Place;
use ratelease_rules::yaml::{Yaml, YamlKind};

use crate::yaml_documents::{field, items, text};

/// Maximum number of descriptors of one message: each action that may be skipped doubles them.
const VARIANTS_MAX: usize = 1024;

/// An entry of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryPattern {
    /// Where the action is.
    pub(super) place: Place,
    pub(super) key: String,
    /// `None` for a value that depends on the request.
    pub(super) value: Option<String>,
    pub(super) origin: Origin,
}

/// Where Envoy takes a text from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A header of the request. The name is in lower case.
    Header(String),
    /// A parameter of the query.
    Query(String),
    /// The path as the client has spelled it, with its query.
    Path,
    /// An object of filter state.
    FilterState(String),
    /// An object of filter state, written as JSON.
    FilterStateAsJson(String),
    /// An id that is new each time that it is asked for.
    Unique,
    /// The text is in the configuration.
    Fixed,
    /// Something else.
    Other,
}

/// An entry that an action adds to a descriptor.
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

/// The name of a message with one field, such as an action.
pub(super) fn name_of(of: &Yaml) -> Option<&str> {
    let YamlKind::Map(pairs) = &of.kind else { return None };
    text(&pairs.first()?.0)
}

/// The entry of an action. Envoy's documentation has the keys and their defaults.
fn added(action: &Yaml) -> Option<Added> {
    let name = snake(name_of(action)?);
    let of = field(action, &name)?;
    let key = |default: &str| {
        let given = field(of, "descriptor_key").and_then(text).filter(|key| !key.is_empty());
        given.unwrap_or(default).to_owned()
    };
    let any = |key: String, origin| (key, None, origin);
    let (key, value, origin) = match name.as_str() {
        "source_cluster" | "destination_cluster" | "remote_address" | "masked_remote_address" => {
            any(name.clone(), Origin::Other)
        }
        "request_headers" => any(key(""), Origin::header(given(of, "header_name"))),
        "query_parameters" => {
            any(key(""), Origin::Query(given(of, "query_parameter_name").to_owned()))
        }
        "dynamic_metadata" | "metadata" => any(key(""), Origin::Other),
        "generic_key" => named(key("generic_key"), of),
        "header_value_match" if is_whole_path(of) => (key("header_match"), fixed(of), Origin::Path),
        "header_value_match" => named(key("header_match"), of),
        "query_parameter_value_match" => named(key("query_match"), of),
        "remote_address_match" => named(key("remote_address_match"), of),
        "extension" => {
            let config = field(of, "typed_config")?;
            any(field(config, "descriptor_key").and_then(text)?.to_owned(), of_extension(config))
        }
        _ => return None,
    };
    let is_set = |of, name| field(of, name).and_then(text).is_some_and(|it| it == "true");
    let is_optional = is_set(of, "skip_if_absent")
        || field(of, "typed_config").is_some_and(|of| is_set(of, "skip_if_error"));
    let entry = EntryPattern { place: action.place, key, value, origin };
    (!entry.key.is_empty()).then_some(Added { entry, is_optional })
}

/// The entry of an action that names its value.
fn named(key: String, of: &Yaml) -> (String, Option<String>, Origin) {
    (key, fixed(of), Origin::of_format(given(of, "descriptor_value")))
}

/// The value of an action that names it; `None` if Envoy may put something in the place of `%…%`.
fn fixed(of: &Yaml) -> Option<String> {
    let value = field(of, "descriptor_value").and_then(text)?;
    (!value.contains('%')).then(|| value.to_owned())
}

fn given<'y>(of: &'y Yaml, name: &str) -> &'y str {
    field(of, name).and_then(text).unwrap_or_default()
}

/// Whether a `header_value_match` compares the whole `:path`, with its query, with one text.
fn is_whole_path(of: &Yaml) -> bool {
    let is_exact = |header: &Yaml| {
        let matcher = field(header, "string_match").unwrap_or(header);
        let exact = field(matcher, "exact").or(field(header, "exact_match"));
        given(header, "name").eq_ignore_ascii_case(":path") && exact.is_some()
    };
    items(field(of, "headers")).iter().any(is_exact)
}

fn of_extension(config: &Yaml) -> Origin {
    let kind = given(config, "@type");
    if kind.ends_with("HttpRequestHeaderMatchInput") {
        Origin::header(given(config, "header_name"))
    } else if kind.ends_with("HttpRequestQueryParamMatchInput") {
        Origin::Query(given(config, "query_param").to_owned())
    } else {
        Origin::of_expression(given(config, "text"))
    }
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

// === impl Origin ===

impl Origin {
    pub(super) fn header(name: &str) -> Self {
        match name.to_ascii_lowercase() {
            name if name == ":path" => Self::Path,
            name => Self::Header(name),
        }
    }

    /// The origin of a substitution format, by its first command.
    pub(super) fn of_format(format: &str) -> Self {
        let Some((_, command)) = format.split_once('%') else { return Self::Fixed };
        let command = command.split('%').next().unwrap_or_default();
        let (name, argument) = command.split_once('(').unwrap_or((command, ""));
        let argument = argument.split(')').next().unwrap_or_default();
        match name {
            "REQ" | "REQUEST_HEADER" => {
                Self::header(argument.split('?').next().unwrap_or_default())
            }
            "QUERY_PARAM" => Self::Query(argument.to_owned()),
            "PATH" => Self::Path,
            "STREAM_ID" => Self::header("x-request-id"),
            "UNIQUE_ID" => Self::Unique,
            "FILTER_STATE" => match argument.split_once(':') {
                Some((object, "PLAIN")) => Self::FilterState(object.to_owned()),
                Some((object, "TYPED")) => Self::FilterStateAsJson(object.to_owned()),
                None => Self::FilterStateAsJson(argument.to_owned()),
                Some(_) => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// The origin of an expression in CEL that reads one attribute.
    fn of_expression(expression: &str) -> Self {
        let compact: String = expression.chars().filter(|it| !it.is_whitespace()).collect();
        let item = |of: &str| {
            let name = compact.strip_prefix(of)?.strip_prefix('[')?.strip_suffix(']')?;
            let quoted = |quote| name.strip_prefix(quote)?.strip_suffix(quote);
            quoted('\'').or(quoted('"')).filter(|name| !name.contains(['\'', '"']))
        };
        if let Some(object) = item("filter_state") {
            return Self::FilterState(object.to_owned());
        }
        if let Some(name) = item("request.headers") {
            return Self::header(name);
        }
        match compact.as_str() {
            "request.id" => Self::header("x-request-id"),
            "request.path" => Self::Path,
            _ => Self::Other,
        }
    }
}
