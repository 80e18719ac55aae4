//! The rules that a request asks for, and the words that refuse one.

use super::*;

/// The descriptors of a request, as `key=value` joined by commas.
fn asked(request: &ScopedRequest) -> Vec<String> {
    let entry = |it: &Entry<'_>| format!("{}={}", it.key, it.value);
    let descriptors = request.borrow(DOMAIN).descriptors;
    let joined = |it: &Descriptor<'_>| it.entries.iter().map(entry).collect::<Vec<_>>().join(",");
    descriptors.iter().map(joined).collect()
}

fn words(faults: Vec<FieldFault>) -> Vec<String> {
    faults.into_iter().map(|it| format!("{} {}", it.field, it.message)).collect()
}

/// The faults of a body, and the beginnings of those that are expected.
fn refused(body: &[u8], expected: &[&str]) {
    let found = words(ScopedRequest::from_body(body).unwrap_err());
    compare(&String::from_utf8_lossy(&body[..body.len().min(80)]), &found, expected);
}

fn refused_query(query: &str, expected: &[&str]) {
    let found = words(ScopedRequest::from_query(query).unwrap_err());
    compare(&query[..query.len().min(80)], &found, expected);
}

fn compare(what: &str, found: &[String], expected: &[&str]) {
    assert_eq!(found.len(), expected.len(), "{what}: {found:?}");
    let pairs = found.iter().zip(expected);
    let wrong: Vec<_> = pairs.filter(|(found, expected)| !found.starts_with(**expected)).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
}

#[test]
fn a_body_asks_for_the_rules_of_the_endpoint_and_of_all_endpoints() {
    let body = br#"{"scope":"api_key","scope_value":"k\u00e9y","api":"/pay","cost":7}"#;
    let request = ScopedRequest::from_body(body).unwrap();
    assert_eq!(asked(&request), ["api_key=kéy,api=/pay", "api_key=kéy"]);
    let borrowed = request.borrow("shop");
    assert_eq!((borrowed.domain, borrowed.hits_addend), ("shop", 7));
    for cost in [r#","cost":1"#, r#","cost":null"#, ""] {
        let body = format!(r#"{{"scope":"ip","scope_value":"::1","api":"/"{cost}}}"#);
        assert_eq!(ScopedRequest::from_body(body.as_bytes()).unwrap().borrow("").hits_addend, 1);
    }
}

#[test]
fn a_query_asks_for_each_caller_and_for_each_user_of_a_tier() {
    let request = ScopedRequest::from_query("user_id=a%20b&ip=%3A%3A1&endpoint=/log+in&tier=free");
    assert_eq!(
        asked(&request.unwrap()),
        [
            "user=a b,api=/log in",
            "user=a b",
            "ip=::1,api=/log in",
            "ip=::1",
            "tier=free,api=/log in",
            "tier=free",
            "tier=free,api=/log in,user=a b",
            "tier=free,user=a b",
        ]
    );
    // Without a user, the address stands for one.
    let request = ScopedRequest::from_query("endpoint=%2Fx&&tier=f&ip=1.2.3.4&").unwrap();
    assert_eq!(asked(&request)[4..], ["tier=f,api=/x,ip=1.2.3.4", "tier=f,ip=1.2.3.4"]);
    let request = ScopedRequest::from_query("endpoint=a%2Bb&user_id=%25").unwrap();
    assert_eq!(asked(&request), ["user=%,api=a+b", "user=%"]);
}

#[test]
fn no_count_is_asked_for_twice() {
    let request = ScopedRequest::from_query("user_id=x&ip=x&endpoint=x&tier=x").unwrap();
    let asked = asked(&request);
    let distinct: std::collections::BTreeSet<_> = asked.iter().collect();
    assert_eq!(distinct.len(), asked.len(), "{asked:?}");
}

#[test]
fn each_fault_of_a_body_is_named_with_its_field() {
    let good = r#""scope":"user","scope_value":"1","api":"/""#;
    refused(b"{}", &["scope is missing", "scope_value is missing", "api is missing"]);
    refused(
        br#"{"scope":"usr","scope_value":"","api":null,"cost":0,"costs":1}"#,
        &[
            "costs 'costs' is no field; expected one of scope, scope_value, api, cost; did you",
            "scope 'usr' is no scope; expected one of user, ip, org, api_key, tier; did you mean",
            "scope_value is empty",
            "api is missing",
            "cost is 0; expected a whole number from 1 to 9007199254740991",
        ],
    );
    for (cost, what) in [
        ("-1", "cost is -1;"),
        ("-9223372036854775808", "cost is -9223372036854775808;"),
        ("1.5", "cost is 1.5;"),
        ("1e300", "cost is 1e300;"),
        ("9007199254740992", "cost is 9007199254740992;"),
        ("18446744073709551616", "cost is 1.8446744073709552e19;"),
        (r#""1""#, "cost is text;"),
        ("true", "cost is true;"),
        ("[[1,{}],2]", "cost is a list;"),
        (r#"{"a":[1]}"#, "cost is an object;"),
    ] {
        refused(format!(r#"{{{good},"cost":{cost}}}"#).as_bytes(), &[what]);
    }
    refused(
        br#"{"scope":7,"scope_value":[],"api":{"a":1}}"#,
        &["scope is the number 7", "scope_value is a list", "api is an object"],
    );
    refused(format!(r#"{{{good},"api":"/b"}}"#).as_bytes(), &["api is there twice"]);
}

#[test]
fn what_is_no_object_in_json_is_one_fault_of_the_body() {
    for (body, what) in [
        (&b""[..], "EOF"),
        (b"[]", "expected an object"),
        (b"null", "expected an object"),
        (b"{", "EOF"),
        (b"{} {}", "trailing characters"),
        (b"{\"scope\":\"\xff\"}", "invalid unicode"),
        (br#"{"scope":"\ud800"}"#, "hex escape"),
    ] {
        let found = words(ScopedRequest::from_body(body).unwrap_err());
        assert!(found.len() == 1 && found[0].starts_with("body is not a request"), "{found:?}");
        assert!(found[0].contains(what), "{found:?}");
    }
    for deep in ["[", r#"{"a":"#, r#"{"cost":[{"a":"#] {
        assert!(ScopedRequest::from_body(deep.repeat(100_000).as_bytes()).is_err());
    }
}

#[test]
fn a_fault_within_a_value_has_its_place_in_the_body() {
    for (body, what) in [
        (&b"{\"scope\":\"user\",\n \"scope_value\":\"\\ud800\" }"[..], "line 2 column 23"),
        (b"{\"api\":\"\xff\" }", "invalid unicode code point at line 1 column 9"),
        (b"{\"cost\": 1e400 }", "number out of range at line 1 column 14"),
        (b"{\"cost\":[01]}", "invalid number at line 1 column 11"),
        (br#"{"cost":{"\ud800":1}}"#, "hex escape at line 1 column 17"),
    ] {
        let found = words(ScopedRequest::from_body(body).unwrap_err());
        assert!(found.len() == 1 && found[0].ends_with(what), "{found:?}");
    }
}

#[test]
fn each_fault_of_a_query_is_named_with_its_field() {
    refused_query("", &["user_id is missing, and so is ip", "endpoint is missing"]);
    refused_query("tier=free&endpoint=/", &["user_id is missing"]);
    refused_query(
        "user_id=a&user_id=b&usr=1&ip=%zz&endpoint=%ff&tier=",
        &[
            "user_id is there twice",
            "usr 'usr' is no name of the query; expected one of user_id, ip, tier, endpoint",
            "ip has '%zz'; expected % and two hexadecimal digits",
            "endpoint is not UTF-8",
            "tier is empty",
        ],
    );
    refused_query("user_id&endpoint=/", &["user_id is empty"]);
    refused_query("=1&ip=1&endpoint=/", &["'' '' is no name of the query"]);
    refused_query("ip=1%&endpoint=%2", &["ip has '%'", "endpoint has '%2'"]);
    refused_query("ip=1&endpoint=%é1", &["endpoint has '%"]);
    refused_query("ip=1&endpoint=/&%66%=1", &["%66% has '%'"]);
    refused_query("ip=1&endpoint=/&%ff=1", &["%ff is not UTF-8"]);
}

#[test]
fn texts_have_a_bound_and_faults_are_short_and_few() {
    let long = "v".repeat(VALUE_BYTES_MAX);
    let body = |value: &str| format!(r#"{{"scope":"user","scope_value":"{value}","api":"/"}}"#);
    assert!(ScopedRequest::from_body(body(&long).as_bytes()).is_ok());
    refused(
        body(&format!("{long}v")).as_bytes(),
        &["scope_value has 8193 bytes; expected at most"],
    );
    assert!(ScopedRequest::from_query(&format!("ip=1&endpoint={long}")).is_ok());
    refused_query(&format!("ip=1&endpoint={long}v"), &["endpoint has 8193 bytes"]);
    let many: Vec<_> = (0..1000).map(|nth| format!("{nth}{long}\u{202e}=1")).collect();
    let named: Vec<_> = (0..1000).map(|nth| format!(r#""{nth}{long}\u202e":1"#)).collect();
    for faults in [
        ScopedRequest::from_query(&many.join("&")).unwrap_err(),
        ScopedRequest::from_body(format!("{{{}}}", named.join(",")).as_bytes()).unwrap_err(),
    ] {
        assert_eq!(faults.len(), FAULTS_MAX);
        let longest = faults.iter().map(|it| it.field.len() + it.message.len()).max();
        assert!(longest < Some(400), "{longest:?}");
    }
}

#[test]
fn a_rule_has_the_entries_that_a_request_asks_for() {
    for scope in Scope::ALL {
        assert_eq!(Scope::named(scope.name()), Ok(scope));
        let name = scope.name();
        let body = format!(r#"{{"scope":"{name}","scope_value":"v","api":"/a"}}"#);
        let request = ScopedRequest::from_body(body.as_bytes()).unwrap();
        let request = request.borrow(DOMAIN);
        assert_eq!(request.descriptors[0].entries, entries(scope, "v", "/a"));
        assert_eq!(request.descriptors[1].entries, entries(scope, "v", ""));
    }
}
