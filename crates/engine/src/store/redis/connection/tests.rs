//! The text that a refused login repeats, and the address that a sentinel's reply names.

use super::*;

#[test]
fn a_refused_login_repeats_no_password() {
    let refused = |kind, text: &str| {
        let fault = refusal(Fault::new(kind, text), "sesame");
        assert!(!fault.text.contains("sesame"), "{}", fault.text);
        (fault.kind, fault.text)
    };
    let text = "ERR unknown command `AUTH`, with args beginning with: `sesame`, ";
    assert_eq!(
        refused(Kind::Refused, text),
        (Kind::Denied, "ERR unknown command `AUTH`".to_owned())
    );
    let text = "ERR bad word 'sesame'";
    assert_eq!(refused(Kind::Refused, text), (Kind::Refused, "the login was refused".into()));
    let text = "WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(refused(Kind::Denied, text), (Kind::Denied, text.to_owned()));
    let text = "ERR max number of clients reached";
    assert_eq!(refused(Kind::Refused, text), (Kind::Refused, text.to_owned()));
}

#[test]
fn a_master_is_a_host_and_a_port() {
    let reply = |parts: &[&str]| {
        Value::Array(parts.iter().map(|it| Value::BulkString((*it).into())).collect())
    };
    let master = Address::Tcp("10.0.0.1".into(), 6379);
    assert_eq!(named(&reply(&["10.0.0.1", "6379"])), Some(master));
    for parts in [&["10.0.0.1"][..], &["", "6379"], &["a b", "6379"], &["a", "99999"]] {
        assert_eq!(named(&reply(parts)), None, "{parts:?}");
    }
    assert_eq!(named(&Value::Nil), None);
}
