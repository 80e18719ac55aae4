//! Tests.

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
