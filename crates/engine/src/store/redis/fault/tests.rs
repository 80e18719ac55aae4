//! Tests.

use super::*;
use crate::counter::{Counter, RedisCounter};

#[test]
fn each_kind_stands_at_its_number_and_is_counted_apart() {
    let mut counters = std::collections::HashSet::new();
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, at);
        assert!(
            counters.insert(Counter::Redis(RedisCounter::Failure(kind)).name()),
            "{kind:?} is counted as another"
        );
    }
}

#[test]
fn a_text_is_cut_to_256_bytes_and_steers_nothing() {
    let text = |text: &str| Fault::new(Kind::Refused, text).text;
    assert_eq!(text("ERR plain é"), "ERR plain é");
    assert_eq!(text("a\r\n\u{1b}[2J\u{202e}b"), r"a\u{d}\u{a}\u{1b}[2J\u{202e}b");
    let long = text(&"é".repeat(5_000_000));
    assert_eq!(long, "é".repeat(126) + "…");
    assert!(text(&"\u{7}".repeat(1_000)).len() <= TEXT_BYTES_MAX);
}

#[test]
fn a_reply_that_is_none_is_shown_no_further_than_it_is_kept() {
    let ones = redis::Value::Array(vec![redis::Value::Int(1); 1 << 17]);
    let mut text = Beginning(String::new());
    assert!(write!(text, "{ones:?}").is_err());
    assert!(text.0.len() <= TEXT_BYTES_MAX + 1 && text.0.capacity() < 1_024);
    assert_eq!(Fault::malformed(&ones).text.len(), TEXT_BYTES_MAX);
    assert_eq!(Fault::malformed(&redis::Value::Int(1)).text, "int(1)");
}

#[test]
fn what_may_have_been_taken_is_never_sent_again() {
    for kind in [Kind::Lost, Kind::TimedOut, Kind::MalformedReply] {
        assert_eq!(kind.meaning().next, Next::GiveUp, "{kind:?}");
    }
}

fn fault(reply: &str) -> Fault {
    let error = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes())
        .and_then(redis::Value::extract_error)
        .unwrap_err();
    Fault::of(&error, &Address::Tcp("10.0.0.1".into(), 7000))
}

#[test]
fn each_error_reply_has_its_kind() {
    for (reply, kind) in [
        ("NOSCRIPT No matching script.", Kind::NoScript),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Kind::TryAgain),
        ("CLUSTERDOWN Hash slot not served", Kind::ClusterDown),
        ("LOADING Redis is loading the dataset in memory", Kind::Loading),
        ("MASTERDOWN Reconnecting with MASTER is down", Kind::MasterDown),
        ("READONLY You can't write against a read only replica.", Kind::ReadOnly),
        (
            "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write",
            Kind::ReadOnly,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", Kind::OutOfMemory),
        (
            "ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed",
            Kind::OutOfMemory,
        ),
        ("BUSY Redis is busy running a script.", Kind::Busy),
        ("NOAUTH Authentication required.", Kind::Denied),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Kind::Denied),
        ("WRONGPASS invalid username-password pair or user is disabled.", Kind::Denied),
        (
            "ERR Error running script: The user executing the script can't run this command",
            Kind::Denied,
        ),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Kind::ForeignValue),
        (
            "ERR Error running script (call to f_1): @user_script:28: WRONGTYPE Operation \
             against a key holding the wrong kind of value",
            Kind::ForeignValue,
        ),
        ("FOREIGN rl:{1} holds no count of ratelease", Kind::ForeignValue),
        ("MISCONF Redis is configured to save RDB snapshots", Kind::Refused),
        ("ERR unknown command", Kind::Refused),
    ] {
        assert_eq!(fault(reply).kind, kind, "{reply}");
    }
}

#[test]
fn a_redirect_leads_somewhere_or_is_garbled() {
    let node = |host: &str, port| Some(Address::Tcp(host.into(), port));
    let read = |reply| (fault(reply).kind, fault(reply).to);
    assert_eq!(read("MOVED 3999 10.0.0.2:7001"), (Kind::Moved, node("10.0.0.2", 7001)));
    assert_eq!(read("MOVED 3999 :7001"), (Kind::Moved, node("10.0.0.1", 7001)));
    assert_eq!(read("ASK 3999 10.0.0.2:7001"), (Kind::AskRedirect, node("10.0.0.2", 7001)));
    assert_eq!(read("MOVED"), (Kind::MalformedReply, None));
    assert_eq!(read("ASK 3999 nowhere"), (Kind::MalformedReply, None));
}

#[test]
fn a_broken_connection_leaves_the_fate_open() {
    let error = |kind| RedisError::from(std::io::Error::from(kind));
    let here = Address::Tcp("10.0.0.1".into(), 7000);
    assert_eq!(Fault::of(&error(std::io::ErrorKind::BrokenPipe), &here).kind, Kind::Lost);
    assert_eq!(Fault::of(&error(std::io::ErrorKind::TimedOut), &here).kind, Kind::TimedOut);
}

#[test]
fn an_outage_has_one_beginning_and_one_end() {
    let mut outage = LogOnce::default();
    assert!(!outage.ends());
    assert!(outage.begins());
    assert!(!outage.begins());
    assert!(outage.ends());
    assert!(!outage.ends());
}
