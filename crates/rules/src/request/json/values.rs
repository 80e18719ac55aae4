//! Reads the values of a request in JSON, following protobuf's mapping. Faulty values are not kept.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};

use crate::limit::Unit;

/// A message, which must be an object: serde alone would also accept a list of its fields in order.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

/// An element type of a list in the request.
pub(super) trait Listed {
    const NAME: &'static str;
    /// Maximum number of elements in one list.
    const MAX: usize;
}

/// A whole number; `1.0`, `1e0` and a number in a string are accepted too.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Number<T>(pub(super) T);

/// A unit, given by its name or number.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitName(pub(super) Unit);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: DeserializeOwned> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// Reads a field that may be null, which is the same as omitting it.
pub(super) fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a list; null is an empty list. Fails at the first element above the maximum.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Listed + Deserialize<'de>,
{
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Listed + Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a sequence of {}", T::NAME)
        }

        fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while let Some(element) = list.next_element()? {
                if read.len() >= T::MAX {
                    let reported =
                        format!("more {} than the {} that are accepted", T::NAME, T::MAX);
                    return Err(A::Error::custom(reported));
                }
                read.push(element);
            }
            Ok(read)
        }
    }

    deserializer.deserialize_any(Elements(PhantomData))
}

/// 2^64, the first whole number that does not fit 64 bits.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

fn whole(number: f64) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, reason = "whole and in range")]
    #[allow(clippy::cast_sign_loss, reason = "in range")]
    (number.fract() == 0.0 && (0.0..TOO_LARGE).contains(&number)).then_some(number as u64)
}

// === impl Number ===

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits<T>(PhantomData<T>);

        impl<T: TryFrom<u64>> Digits<T> {
            fn in_range<E: Error>(
                reported: impl fmt::Display,
                is: Option<u64>,
            ) -> Result<Number<T>, E> {
                let number = is.and_then(|number| T::try_from(number).ok()).map(Number);
                number.ok_or_else(|| E::custom(format!("{reported} is not a number in range")))
            }
        }

        impl<T: TryFrom<u64>> Visitor<'_> for Digits<T> {
            type Value = Number<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number in range")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number<T>, E> {
                Self::in_range(number, Some(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number<T>, E> {
                Self::in_range(number, u64::try_from(number).ok())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number<T>, E> {
                Self::in_range(format_args!("{number:?}"), whole(number))
            }

            fn visit_str<E: Error>(self, digits: &str) -> Result<Number<T>, E> {
                let number = digits.parse().ok().and_then(|number: serde_json::Number| {
                    number.as_u64().or_else(|| number.as_f64().and_then(whole))
                });
                Self::in_range(format_args!("{digits:?}"), number)
            }
        }

        deserializer.deserialize_any(Digits(PhantomData))
    }
}

// === impl UnitName ===

impl<'de> Deserialize<'de> for UnitName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Name {
            fn known<E: Error>(
                reported: impl fmt::Display,
                unit: Option<Unit>,
            ) -> Result<UnitName, E> {
                unit.map(UnitName).ok_or_else(|| {
                    E::custom(format!(
                        "{reported} is not a unit; \
                         expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
                    ))
                })
            }
        }

        impl Visitor<'_> for Name {
            type Value = UnitName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a unit")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<UnitName, E> {
                Self::known(number, Unit::from_number(number))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<UnitName, E> {
                Self::known(number, i64::try_from(number).ok().and_then(Unit::from_number))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<UnitName, E> {
                let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name);
                Self::known(format_args!("{name:?}"), unit)
            }
        }

        deserializer.deserialize_any(Name)
    }
}
