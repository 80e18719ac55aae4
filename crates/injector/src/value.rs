//! Parsers of the values of annotations. Each error says what was expected. They are as strict as
//! the API server, which would otherwise refuse the whole pod.

use std::collections::HashSet;

use crate::fault::excerpt;

/// Maximum length of the name of a ConfigMap or a Secret (RFC 1123).
const NAME_MAX: usize = 253;
/// Maximum length of the name of a container.
const LABEL_MAX: usize = 63;
/// Maximum length of the name of an image.
const IMAGE_MAX: usize = 512;
/// Maximum number of variables of `env`: twice as many settings as there are.
const VARIABLES_MAX: usize = 200;
/// Maximum number of names in `envoy-containers`.
const CONTAINERS_MAX: usize = 32;

/// A key of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretKey {
    pub secret: String,
    pub key: String,
}

/// The name of a ConfigMap or a Secret.
pub fn name(text: &str) -> Result<String, String> {
    let is_good = text.len() <= NAME_MAX && text.split('.').all(is_label);
    let expected = "expected a name of lower-case letters, digits, - and .";
    if is_good { Ok(text.to_owned()) } else { Err(expected.to_owned()) }
}

/// Names of containers, separated by commas.
pub fn containers(text: &str) -> Result<Vec<String>, String> {
    if text.split(',').nth(CONTAINERS_MAX).is_some() {
        return Err(format!("expected at most {CONTAINERS_MAX} names of containers"));
    }
    let names = text.split(',').map(str::trim);
    let good = names.map(|name| (is_label(name) && name.len() <= LABEL_MAX).then(|| name.into()));
    let good: Option<Vec<_>> = good.collect();
    good.ok_or_else(|| "expected names of containers, separated by commas".to_owned())
}

/// Whether `text` consists of lower-case letters, digits and -, with none of the latter at an end.
fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// `NAME/KEY` of a Secret.
pub fn secret_key(text: &str) -> Result<SecretKey, String> {
    let expected = || "expected NAME/KEY of a Secret".to_owned();
    let (secret, key) = text.split_once('/').ok_or_else(expected)?;
    let secret = name(secret).map_err(|_| expected())?;
    if is_data_key(key) { Ok(SecretKey { secret, key: key.to_owned() }) } else { Err(expected()) }
}

/// Whether `text` can be a key of a ConfigMap or a Secret.
fn is_data_key(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_path = text == "." || text.starts_with("..");
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_allowed) && !is_path
}

/// The domain of a rule file, as far as it can be the name of one.
pub fn domain(text: &str) -> Result<String, String> {
    let expected =
        "expected letters, digits, -, _ and ., since DOMAIN.yaml is a key of a ConfigMap";
    let is_good = is_data_key(&format!("{text}.yaml"));
    if is_good { Ok(text.to_owned()) } else { Err(expected.to_owned()) }
}

/// The name of an image.
pub fn image(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@".contains(&byte);
    let is_good = text.len() <= IMAGE_MAX
        && text.bytes().all(is_allowed)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric());
    let expected = "expected the name of an image, such as registry.example.com/ratelease:0.1.0";
    if is_good { Ok(text.to_owned()) } else { Err(expected.to_owned()) }
}

/// A port.
pub fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "expected a port from 1 to 65535".to_owned())
}

/// One of some words.
pub fn word(words: &'static [&'static str]) -> impl Fn(&str) -> Result<String, String> {
    move |text| {
        let found = words.iter().find(|word| **word == text);
        found.map(|word| (*word).to_owned()).ok_or_else(|| format!("expected {}", words.join(", ")))
    }
}

/// Lines `NAME=value`, in order; empty lines are left out.
pub fn environment(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut names = HashSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let pair = line.split_once('=').filter(|(name, _)| is_variable(name));
        let Some((name, value)) = pair else {
            return Err("expected a line NAME=value for each variable".to_owned());
        };
        if pairs.len() == VARIABLES_MAX {
            return Err(format!("expected at most {VARIABLES_MAX} variables"));
        }
        if !names.insert(name) {
            return Err(format!("{} is given twice", excerpt(name)));
        }
        pairs.push((name.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

fn is_variable(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    name.bytes().all(is_inner) && name.starts_with(|first: char| first.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_api_server_takes() {
        for good in ["a", "rate-limits", "a.b-c.9"] {
            assert_eq!(name(good).as_deref(), Ok(good));
        }
        let long = "a".repeat(254);
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a/b", &long] {
            assert!(name(bad).is_err(), "{bad}");
        }
        let named = containers(" istio-proxy, envoy").unwrap();
        assert_eq!(named, ["istio-proxy", "envoy"]);
        assert!(containers("a,,b").is_err() && containers("a.b").is_err());
    }

    #[test]
    fn keys_of_secrets_have_both_parts() {
        let found = secret_key("redis/auth.txt").unwrap();
        assert_eq!(found, SecretKey { secret: "redis".into(), key: "auth.txt".into() });
        for bad in ["", "redis", "redis/", "/auth", "redis/a/b", "redis/..", "Redis/a", "a/b c"] {
            assert!(secret_key(bad).is_err(), "{bad}");
        }
        assert!(domain("shop_1").is_ok() && domain("a/b").is_err() && domain("..a").is_err());
    }

    #[test]
    fn images_ports_and_words_are_checked() {
        let digest = format!("a/b@sha256:{}", "0".repeat(64));
        for good in ["ratelease", "r.example:5000/a/b:0.1", &digest] {
            assert!(image(good).is_ok(), "{good}");
        }
        for bad in ["", " a", "a b", "a:", "$(X)", "-a"] {
            assert!(image(bad).is_err(), "{bad}");
        }
        assert!(port("8081").is_ok() && port("0").is_err() && port("65536").is_err());
        assert_eq!(word(&["a", "b"])("c"), Err("expected a, b".to_owned()));
    }

    #[test]
    fn variables_are_lines() {
        let found = environment("A=1\n\n  B_2=x=y z \n").unwrap();
        assert_eq!(found, [("A".into(), "1".into()), ("B_2".into(), "x=y z".into())]);
        for bad in ["A", "a=1", "=1", "1A=1", "A=1\nA=2", "A B=1"] {
            assert!(environment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_are_bounded() {
        let lines = |count: usize| (0..count).map(|at| format!("A{at}=\n")).collect::<String>();
        assert_eq!(environment(&lines(VARIABLES_MAX)).unwrap().len(), VARIABLES_MAX);
        let error = environment(&lines(VARIABLES_MAX + 1)).unwrap_err();
        assert_eq!(error, "expected at most 200 variables");
        assert!(containers(&vec!["a"; CONTAINERS_MAX].join(",")).is_ok());
        let error = containers(&vec!["a"; CONTAINERS_MAX + 1].join(",")).unwrap_err();
        assert_eq!(error, "expected at most 32 names of containers");
    }
}
