//! Reads a request from a body in JSON.
//!
//! Only the values of the four fields are kept: others are skipped while they are read, so that a
//! body takes no more memory than its length.

use std::fmt;

use serde::de::{
    Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor, value,
};
use smallvec::smallvec;

use super::{FieldFault, FieldFaults, Scope, ScopedRequest};
use crate::fault::excerpt;
use crate::request::json::shown;

/// The fields of the body.
const FIELDS: [&str; 4] = ["scope", "scope_value", "api", "cost"];

/// What the body gives for each of [`FIELDS`], and the names that are wrong.
struct Body {
    given: [Given; FIELDS.len()],
    faults: FieldFaults,
}

/// The name of a field: its index, or the beginning of one that is unknown.
enum Name {
    Known(usize),
    Unknown(String),
}

/// The value of a field.
enum Given {
    /// Not there, or null.
    Nothing,
    Text(String),
    Number(u64),
    /// Something else, in words.
    Other(String),
}

/// Reads a body.
pub(super) fn read(body: &[u8]) -> Result<ScopedRequest, Vec<FieldFault>> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read = Body::deserialize(&mut reader).and_then(|read| reader.end().map(|()| read));
    let Body { given: [scope, value, api, cost], mut faults } = read.map_err(|error| {
        let message = format!("is not a request in JSON: {}", shown(&error));
        vec![FieldFault { field: "body".into(), message }]
    })?;
    let scope = scope
        .text("scope", &mut faults)
        .and_then(|name| Scope::named(&name).map_err(|message| faults.add("scope", message)).ok());
    let value = value.text("scope_value", &mut faults);
    let api = api.text("api", &mut faults);
    let cost = cost.cost(&mut faults);
    let request =
        || Some(ScopedRequest { callers: smallvec![(scope?, value?)], api: api?, cost: cost? });
    let request = request();
    faults.or(request)
}

// === impl Given ===

impl Given {
    /// A text that has to be there.
    fn text(self, field: &str, faults: &mut FieldFaults) -> Option<String> {
        match self {
            Self::Text(text) => return faults.check_text(field, &text).then_some(text),
            Self::Nothing => faults.add(field, "is missing; expected text"),
            Self::Number(number) => {
                faults.add(field, format!("is the number {number}; expected text in quotes"));
            }
            Self::Other(what) => faults.add(field, format!("is {what}; expected text")),
        }
        None
    }

    /// Hits; 1 if they are not there.
    fn cost(self, faults: &mut FieldFaults) -> Option<u32> {
        let what = match self {
            Self::Nothing => return Some(1),
            Self::Number(number) => match u32::try_from(number) {
                Ok(cost) if cost > 0 => return Some(cost),
                _ => number.to_string(),
            },
            Self::Text(_) => "text".to_owned(),
            Self::Other(what) => what,
        };
        let expected = format!("expected a whole number from 1 to {}", u32::MAX);
        faults.add("cost", format!("is {what}; {expected}"));
        None
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Body;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
                let given = FIELDS.map(|_| Given::Nothing);
                let mut body = Body { given, faults: FieldFaults::default() };
                let mut is_given = [false; FIELDS.len()];
                while let Some(name) = map.next_key()? {
                    match name {
                        Name::Known(at) if is_given[at] => {
                            map.next_value::<IgnoredAny>()?;
                            body.faults.add(FIELDS[at], "is there twice; give it once");
                        }
                        Name::Known(at) => {
                            is_given[at] = true;
                            body.given[at] = map.next_value()?;
                        }
                        Name::Unknown(name) => {
                            map.next_value::<IgnoredAny>()?;
                            body.faults.add_unknown(&name, "field", &FIELDS);
                        }
                    }
                }
                Ok(body)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
                Ok(match FIELDS.iter().position(|field| *field == name) {
                    Some(at) => Name::Known(at),
                    None => Name::Unknown(excerpt(name)),
                })
            }
        }

        deserializer.deserialize_str(Text)
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: Error>(self) -> Result<Given, E> {
                Ok(Given::Nothing)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Given, E> {
                Ok(Given::Text(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Given, E> {
                Ok(Given::Number(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Given, E> {
                Ok(u64::try_from(number).map_or(Given::Other(number.to_string()), Given::Number))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Given, E> {
                Ok(Given::Other(format!("{number:?}")))
            }

            fn visit_bool<E: Error>(self, truth: bool) -> Result<Given, E> {
                Ok(Given::Other(truth.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Given::Other("a list".into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Given, A::Error> {
                IgnoredAny::deserialize(value::MapAccessDeserializer::new(map))?;
                Ok(Given::Other("an object".into()))
            }
        }

        deserializer.deserialize_any(Any)
    }
}
