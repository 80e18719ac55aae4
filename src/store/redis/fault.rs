//! What went wrong with a command, by what it says of the command's fate.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

use crate::settings::redis::Address;
use crate::store::StoreError;

/// Why a command that was sent has no result.
///
/// A server's error reply means that the command changed nothing: a script that takes an ask writes
/// last, after all that can fail. Only `Lost` and `TimedOut` leave the fate open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server has not seen the script yet, or forgot it.
    NoScript,
    /// Another node owns the slot now.
    Moved(Address),
    /// Another node is taking over the slot: ask it, just for this command.
    Ask(Address),
    /// The server cannot serve the key just now, but may in a moment.
    NotNow(String),
    /// The server will not take the command.
    Refused(String),
    /// There is no connection: the command was not sent.
    NotSent(String),
    /// The connection broke with the command on its way.
    Lost(String),
    /// No reply in time.
    TimedOut,
    /// The reply is not of this protocol.
    Garbled(String),
}

// === impl Fault ===

impl Fault {
    /// The one place where errors of the client are read.
    pub(super) fn of(error: &RedisError, from: &Address) -> Self {
        let text = error.to_string();
        let redirect = || {
            let (node, _) = error.redirect_node()?;
            Some(Address::parse_redirect(node)?.or_host_of(from))
        };
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Fault::NoScript,
            ErrorKind::Server(ServerErrorKind::Moved) => {
                redirect().map_or(Fault::Garbled(text), Fault::Moved)
            }
            ErrorKind::Server(ServerErrorKind::Ask) => {
                redirect().map_or(Fault::Garbled(text), Fault::Ask)
            }
            ErrorKind::Server(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly,
            ) => Fault::NotNow(text),
            // Before 7.0 an error inside a script comes wrapped in one of the script.
            ErrorKind::Server(_) | ErrorKind::Extension if text.contains("-READONLY ") => {
                Fault::NotNow(text)
            }
            ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::RESP3NotSupported => Fault::Refused(text),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Fault::Garbled(text),
            _ if error.is_timeout() => Fault::TimedOut,
            _ => Fault::Lost(text),
        }
    }

    pub(super) fn of_reply(error: &ServerError, from: &Address) -> Self {
        Fault::of(&RedisError::from(error.clone()), from)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NotSent(text) | Fault::Lost(text) => StoreError::Unreachable(text),
            Fault::TimedOut => StoreError::TimedOut,
            Fault::Refused(text) | Fault::NotNow(text) => StoreError::Refused(text),
            Fault::Garbled(text) => StoreError::Garbled(text),
            Fault::NoScript => StoreError::Refused("the script was forgotten again".into()),
            Fault::Moved(to) | Fault::Ask(to) => {
                StoreError::Refused(format!("redirected once more, to {to}"))
            }
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
    fn each_error_reply_has_its_fault() {
        let node = |host: &str, port| Address::Tcp(host.into(), port);
        assert_eq!(fault("NOSCRIPT No matching script."), Fault::NoScript);
        assert_eq!(fault("MOVED 3999 10.0.0.2:7001"), Fault::Moved(node("10.0.0.2", 7001)));
        assert_eq!(fault("MOVED 3999 :7001"), Fault::Moved(node("10.0.0.1", 7001)));
        assert_eq!(fault("ASK 3999 10.0.0.2:7001"), Fault::Ask(node("10.0.0.2", 7001)));
        for not_now in [
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "CLUSTERDOWN Hash slot not served",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down",
            "READONLY You can't write against a read only replica.",
            "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write",
        ] {
            assert!(matches!(fault(not_now), Fault::NotNow(_)), "{not_now}");
        }
        for refused in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOAUTH Authentication required.",
            "BUSY Redis is busy running a script.",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR unknown command",
        ] {
            assert!(matches!(fault(refused), Fault::Refused(_)), "{refused}");
        }
    }

    #[test]
    fn a_broken_connection_leaves_the_fate_open() {
        let error = |kind| RedisError::from(std::io::Error::from(kind));
        let here = Address::Tcp("10.0.0.1".into(), 7000);
        let broken = error(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(Fault::of(&broken, &here), Fault::Lost(_)));
        assert_eq!(Fault::of(&error(std::io::ErrorKind::TimedOut), &here), Fault::TimedOut);
    }
}
