//! Converts errors of the client to our kinds: the only place where they are interpreted.

use redis::{ErrorKind, RedisError, ServerError};

use super::{Fault, Kind};
use crate::store::redis::settings::Address;

/// Error text of servers before 7.0 if a script's user lacks a permission.
const DENIED_IN_A_SCRIPT: &str = "The user executing the script can't";

/// Error text of redis-rs if the connection ended within a reply.
const CUT: &str = "Unexpected end of input";

// === impl Fault ===

impl Fault {
    /// Converts `error`; `from` is the server that it came from.
    pub(in super::super) fn of(error: &RedisError, from: &Address) -> Self {
        // In Redis's own words: redis-rs renames some codes.
        let text = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        let kind = match error.kind() {
            ErrorKind::AuthenticationFailed => Kind::Denied,
            ErrorKind::Server(_) | ErrorKind::Extension => {
                Kind::of_reply(error.code().unwrap_or_default(), &text)
            }
            ErrorKind::InvalidClientConfig => Kind::Refused,
            ErrorKind::Parse if text.contains(CUT) => Kind::Lost,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Kind::MalformedReply,
            _ if error.is_timeout() => Kind::TimedOut,
            _ => Kind::Lost,
        };
        if !matches!(kind, Kind::Moved | Kind::AskRedirect) {
            return Fault::new(kind, text);
        }
        let to = error.redirect_node().and_then(|(node, _)| Address::parse_redirect(node));
        match to {
            Some(to) => Fault { to: Some(to.or_host_of(from)), ..Fault::new(kind, text) },
            None => Fault::new(Kind::MalformedReply, text),
        }
    }

    pub(in super::super) fn of_reply(error: &ServerError, from: &Address) -> Self {
        Fault::of(&RedisError::from(error.clone()), from)
    }
}

// === impl Kind ===

impl Kind {
    fn of_reply(code: &str, text: &str) -> Self {
        let begins = |kind: &Kind| kind.meaning().codes.contains(&code);
        // Before 7.0 an error inside a script is wrapped in an error of the script: as `-CODE` if
        // the command was refused, as `CODE` if it ran.
        let wraps = |kind: &Kind| {
            let is_in = |code: &&str| {
                text.contains(&format!(": -{code} ")) || text.contains(&format!(": {code} "))
            };
            kind.meaning().codes.iter().any(is_in)
        };
        let found = Kind::ALL.into_iter().find(begins);
        let found = found.or_else(|| Kind::ALL.into_iter().find(wraps));
        match found {
            Some(kind) => kind,
            None if text.contains(DENIED_IN_A_SCRIPT) => Kind::Denied,
            None => Kind::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Kind::ForeignValue,
            ),
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
}
