//! Reads and changes fields of messages in JSON, whose names may be in `snake_case` or `camelCase`.

use serde_json::{Map, Value};

use crate::yaml_documents::camel;

/// The name by which a message has a field.
fn name_in(fields: &Map<String, Value>, name: &str) -> Option<String> {
    [name.to_owned(), camel(name)].into_iter().find(|name| fields.contains_key(name))
}

/// The value of a field.
pub(super) fn get<'v>(of: &'v Value, name: &str) -> Option<&'v Value> {
    let fields = of.as_object()?;
    fields.get(&name_in(fields, name)?)
}

/// The same, to be changed.
pub(super) fn get_mut<'v>(of: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let fields = of.as_object_mut()?;
    let name = name_in(fields, name)?;
    fields.get_mut(&name)
}

/// Removes a field.
pub(super) fn take(of: &mut Value, name: &str) -> Option<Value> {
    let fields = of.as_object_mut()?;
    let name = name_in(fields, name)?;
    fields.remove(&name)
}

/// Sets a field.
pub(super) fn set(of: &mut Value, name: &str, value: Value) {
    take(of, name);
    if let Some(fields) = of.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

/// The value at the end of some fields.
pub(super) fn path<'v>(of: &'v Value, names: &[&str]) -> Option<&'v Value> {
    names.iter().try_fold(of, |of, name| get(of, name))
}

/// The text of a field; empty if there is none.
pub(super) fn text<'v>(of: &'v Value, name: &str) -> &'v str {
    get(of, name).and_then(Value::as_str).unwrap_or_default()
}

/// The items of a field that is a list.
pub(super) fn items<'v>(of: &'v Value, name: &str) -> &'v [Value] {
    get(of, name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The same, to be changed, each with its number.
pub(super) fn items_mut<'v>(
    of: &'v mut Value,
    name: &str,
) -> impl Iterator<Item = (usize, &'v mut Value)> {
    let items = get_mut(of, name).and_then(Value::as_array_mut);
    items.into_iter().flatten().enumerate()
}

/// The name of the message in an `Any`: what follows the last `/` of its type's URL.
pub(super) fn type_of(any: &Value) -> &str {
    let url = text(any, "@type");
    url.rsplit('/').next().unwrap_or_default()
}
