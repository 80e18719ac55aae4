//! Failures of a command: the reply that it got, whether the reply means that the command changed
//! nothing, and the next step. One table holds all of that, [`Kind::meaning`].

use std::fmt::{self, Write};

use ratelease_rules::alters_display;
use ratelease_rules::key::Key;
use redis::{ErrorKind, RedisError, ServerError};

use crate::store::StoreError;
use crate::store::redis::settings::Address;

pub(super) use crate::counter::RedisFailure as Kind;

/// The reason why a command has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub(super) kind: Kind,
    /// The text of the server or the client, cut to [`TEXT_BYTES_MAX`] and safe to display.
    pub(super) text: String,
    /// The node that MOVED or ASK named.
    pub(super) to: Option<Address>,
    /// The fault comes from a node other than the slot's owner, to which the owner redirected.
    pub(super) redirected: bool,
    /// The step that failed, if it was on the way to another name of the count, on another shard.
    pub(super) elsewhere: Option<Elsewhere>,
}

/// The step that failed at another name of the count. The variant's key has that name, on another
/// shard than the key of the ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// The move of the count, so that the ask was not sent.
    Move(Key),
    /// The ask.
    Ask(Key),
    /// The ask was not sent, since the name is not known.
    Unknown,
}

/// The treatment of one kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meaning {
    /// Prefixes of error replies of this kind.
    codes: &'static [&'static str],
    pub(super) next: Next,
    pub(super) connection: ConnectionFate,
    /// Whether the cluster's slot map may be out of date.
    pub(super) map_may_be_stale: bool,
    /// A hint for the operator, if there is something to do.
    pub(super) hint: Option<&'static str>,
}

/// The next step for the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Send it again at once, with the script's text.
    InFull,
    /// Send it again at once, to the node that was named.
    There,
    /// Send it again at once, after ASKING, to the node that was named.
    ThereAsking,
    /// Send it again after a short wait, a few times.
    Again,
    /// Give up: the outcome is unknown, or a retry soon would fail as well.
    GiveUp,
}

/// The fate of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionFate {
    Keeps,
    /// Replace it; commands in flight on it may still be answered.
    Retires,
    /// Replace it, and ignore whatever still arrives on it.
    IsAbandoned,
}

// === impl Kind ===

impl Kind {
    #[rustfmt::skip] // a table
    pub(super) const fn meaning(self) -> Meaning {
        use ConnectionFate::{IsAbandoned, Keeps, Retires};
        use Next::{Again, GiveUp, InFull, There, ThereAsking};
        match self {
            // Not applied, and worth a retry.
            Self::NoScript    => row(&["NOSCRIPT"], InFull, Keeps),
            Self::Moved       => row(&["MOVED"], There, Keeps).with_stale_map(),
            Self::AskRedirect => row(&["ASK"], ThereAsking, Keeps),
            Self::TryAgain    => row(&["TRYAGAIN"], Again, Keeps),
            Self::ClusterDown => row(&["CLUSTERDOWN"], Again, Keeps)
                .with_stale_map().hint(HINT_CLUSTER),
            Self::Loading     => row(&["LOADING"], Again, Keeps)
                .with_stale_map().hint(HINT_LOADING),
            // Replicas: the source that led us here may know the new master by now.
            Self::MasterDown  => row(&["MASTERDOWN"], Again, Retires)
                .with_stale_map().hint(HINT_REPLICA),
            Self::ReadOnly    => row(&["READONLY"], Again, Retires)
                .with_stale_map().hint(HINT_REPLICA),
            // Not applied, and a retry soon would fail too.
            Self::OutOfMemory => row(&["OOM"], GiveUp, Keeps).hint(HINT_MEMORY),
            Self::Busy        => row(&["BUSY"], GiveUp, Keeps).hint(HINT_BUSY),
            Self::Denied      => row(DENIALS, GiveUp, Retires).hint(HINT_LOGIN),
            Self::ForeignValue => row(FOREIGN, GiveUp, Keeps).hint(HINT_FOREIGN),
            // Followed by `renames`.
            Self::Renamed     => row(&["RENAMED"], GiveUp, Keeps),
            Self::Refused     => row(&[], GiveUp, Keeps).hint(HINT_REFUSED),
            Self::NotSent     => row(&[], GiveUp, Keeps).with_stale_map(),
            // Whether the ask was applied is unknown.
            Self::Lost        => row(&[], GiveUp, Retires).with_stale_map(),
            Self::TimedOut    => row(&[], GiveUp, Keeps).with_stale_map(),
            Self::MalformedReply => row(&[], GiveUp, IsAbandoned)
                .with_stale_map().hint(HINT_MALFORMED),
        }
    }
}

/// The code of a reply that the user has no right to the command.
const NO_RIGHT: &str = "NOPERM";

/// The codes of replies that deny the login, or the user's right to a command.
const DENIALS: &[&str] = &["NOAUTH", NO_RIGHT, "WRONGPASS"];

/// Redis's own code for a value of another type, and our scripts' code for a text that none of them
/// writes.
const FOREIGN: &[&str] = &["WRONGTYPE", "FOREIGN"];

/// For a cluster that does not serve all slots.
const HINT_CLUSTER: &str = "see CLUSTER INFO; slots without an owner need a replica or a new one";

/// For a server that is reading its data from disk.
const HINT_LOADING: &str = "it reads its data after a start, and serves once it has";

/// For a server that is a replica.
const HINT_REPLICA: &str = "point REDIS_URL at the master, or let a cluster or sentinels name it";

/// For a server whose memory is full.
const HINT_MEMORY: &str = "raise maxmemory, and keep maxmemory-policy at noeviction";

/// For a server that runs a script which does not end.
const HINT_BUSY: &str = "a running script blocks it: SCRIPT KILL ends one that has not written";

/// For a server that denies the login or a command.
const HINT_LOGIN: &str =
    "check the user's name and password (REDIS_AUTH) and what the user may do (ACL GETUSER)";

/// For a key that holds a value of another program.
const HINT_FOREIGN: &str = "give ratelease a database or a CACHE_KEY_PREFIX of its own, and delete \
                            such keys; until then they alone fail";

/// For an error reply of no known kind.
const HINT_REFUSED: &str = "correct what the message names; until then its keys fail";

/// For a server that is one of a cluster, while the settings name one server.
const HINT_NODE: &str = "the server is a node of a Redis Cluster; set REDIS_TYPE=cluster";

/// For a server or a proxy that does not know a command: no others than these are sent.
const HINT_SCRIPTS: &str = "set REDIS_URL to a Redis 6.2 or later, or to a proxy in front of one, \
                            that has EVALSHA and EVAL";

/// The error about an unknown command, in lower case: Redis's and Envoy's, and older Envoys'.
const UNKNOWN_COMMANDS: [&str; 2] = ["unknown command", "unsupported command"];

/// For a reply that the command cannot give.
const HINT_MALFORMED: &str =
    "check that it is Redis, of version 6.2 or later, and no other client's";

const fn row(codes: &'static [&'static str], next: Next, connection: ConnectionFate) -> Meaning {
    Meaning { codes, next, connection, map_may_be_stale: false, hint: None }
}

// === impl Meaning ===

impl Meaning {
    const fn with_stale_map(self) -> Self {
        Self { map_may_be_stale: true, ..self }
    }

    const fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }
}

// === impl Fault ===

impl Fault {
    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: shown(&text.into()), to: None, redirected: false, elsewhere: None }
    }

    pub(super) fn timed_out() -> Self {
        Self::new(Kind::TimedOut, "no answer in time")
    }

    /// Returns a hint for the operator, if there is something to do. `routes` says whether the
    /// store knows which node owns a key.
    pub(super) fn hint(&self, routes: bool) -> Option<&'static str> {
        self.wrong_setting(routes).or(self.kind.meaning().hint)
    }

    /// The setting to change, if the fault is the effect of one.
    pub(super) fn wrong_setting(&self, routes: bool) -> Option<&'static str> {
        let is_unknown = || {
            let text = self.text.to_ascii_lowercase();
            UNKNOWN_COMMANDS.iter().any(|error| text.contains(error))
        };
        match self.kind {
            Kind::Moved | Kind::AskRedirect | Kind::ClusterDown if !routes => Some(HINT_NODE),
            Kind::Refused if is_unknown() => Some(HINT_SCRIPTS),
            _ => None,
        }
    }

    /// Whether the user of the connection has no right to run the command.
    pub(super) fn lacks_a_right(&self) -> bool {
        let is_said = |code| self.text.contains(code);
        self.kind == Kind::Denied && [NO_RIGHT, DENIED_IN_A_SCRIPT].into_iter().any(is_said)
    }

    /// Returns the fault with the name of its source before its text.
    pub(super) fn at(self, whom: &str) -> Self {
        Self::new(self.kind, format!("{whom}: {}", self.text))
    }

    /// Returns the fault with a hint after its text.
    pub(super) fn with_hint(self, hint: &str) -> Self {
        Self { text: shown(&format!("{}; {hint}", self.without_arguments())), ..self }
    }

    /// The text without the arguments of a command that a server does not know and repeats.
    pub(super) fn without_arguments(&self) -> &str {
        self.text.split(", with args").next().unwrap_or_default()
    }

    pub(super) fn malformed(reply: &redis::Value) -> Self {
        let mut text = Beginning(String::new());
        // The write fails only if the text is longer than the part that is kept.
        let _ = write!(text, "{reply:?}");
        Self::new(Kind::MalformedReply, text.0)
    }
}

/// Collects a text up to and including the piece that exceeds the kept length.
struct Beginning(String);

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = TEXT_BYTES_MAX + 1 - self.0.len();
        let cut = text.floor_char_boundary(left);
        self.0.push_str(text.get(..cut).unwrap_or_default());
        if self.0.len() > TEXT_BYTES_MAX || cut < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Bytes of a server's text that are kept: a script error is longer only if it quotes the script.
const TEXT_BYTES_MAX: usize = 256;

/// The beginning of `text`, with an escape in place of each character that could control a terminal
/// or a page: a server's texts go to logs, errors and spans.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(TEXT_BYTES_MAX));
    for character in text.chars() {
        let escaped = alters_display(character).then(|| character.escape_unicode());
        let length = escaped.as_ref().map_or(character.len_utf8(), |escaped| escaped.len());
        if shown.len() + length > TEXT_BYTES_MAX - CUT_MARK.len_utf8() {
            shown.push(CUT_MARK);
            break;
        }
        match escaped {
            Some(escaped) => shown.extend(escaped),
            None => shown.push(character),
        }
    }
    shown
}

/// Marks that a text was cut.
const CUT_MARK: char = '…';

impl From<Fault> for StoreError {
    fn from(Fault { kind, text, to, redirected, elsewhere }: Fault) -> Self {
        if let Some(elsewhere) = elsewhere.filter(|_| kind != Kind::ForeignValue) {
            let is_unknown =
                matches!(kind, Kind::Lost | Kind::MalformedReply | Kind::NotSent | Kind::TimedOut);
            let (at, is_not_applied) = match elsewhere {
                Elsewhere::Move(at) => (Some(at), true),
                Elsewhere::Ask(at) => (Some(at), !is_unknown),
                Elsewhere::Unknown => (None, true),
            };
            let fault = Fault { kind, text, to, redirected, elsewhere: None };
            return StoreError::Elsewhere { at, fault: Box::new(fault.into()), is_not_applied };
        }
        match (kind, to) {
            (Kind::NotSent | Kind::Lost | Kind::TimedOut, _) if redirected => {
                StoreError::RedirectFailed(text)
            }
            (Kind::NotSent | Kind::Lost, _) => StoreError::Unreachable(text),
            (Kind::TimedOut, _) => StoreError::TimedOut,
            (Kind::MalformedReply, _) => StoreError::MalformedReply(text),
            (Kind::ForeignValue | Kind::Renamed, _) => StoreError::ForeignValue,
            (Kind::NoScript, _) => StoreError::Refused("the script was forgotten again".into()),
            (_, Some(to)) => StoreError::Refused(format!("redirected once more, to {to}")),
            (_, None) => StoreError::Refused(text),
        }
    }
}

// === Converts errors of the client to our kinds: the only place where they are interpreted ===

/// Error text of servers before 7.0 if a script's user lacks a permission.
const DENIED_IN_A_SCRIPT: &str = "The user executing the script can't";

/// Error text of redis-rs if the connection ended within a reply.
const CUT: &str = "Unexpected end of input";

// === impl Fault ===

impl Fault {
    /// Converts `error`; `from` is the server that it came from.
    pub(super) fn of(error: &RedisError, from: &Address) -> Self {
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

    pub(super) fn of_reply(error: &ServerError, from: &Address) -> Self {
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

// === Logging of outages: one line when an outage begins, and one when it ends ===

/// Whether a part of the store is in an outage, so that only its two ends are logged.
#[derive(Debug, Default)]
pub(super) struct LogOnce {
    begun: bool,
}

// === impl LogOnce ===

impl LogOnce {
    /// Whether this failure is the first of an outage.
    pub(super) fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    /// Whether this success ends an outage.
    pub(super) fn ends(&mut self) -> bool {
        std::mem::replace(&mut self.begun, false)
    }
}

#[cfg(test)]
mod tests;
