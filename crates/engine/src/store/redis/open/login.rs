//! The login of a connection: AUTH, SELECT, and a sign of life.
//!
//! All of it is RESP2 and known to every server and proxy. HELLO, which would do the login in one
//! command, is not: proxies, servers before Redis 6 and some access lists refuse it.

use redis::{Cmd, Value};

use super::Opened;
use crate::store::redis::fault::{Fault, Kind};
use crate::store::redis::settings::Auth;

/// The user of a login without a name.
const DEFAULT_USER: &str = "default";

/// What Redis says to a password alone if its default user needs none.
const NEEDS_NONE: &str = "without any password configured";

/// Logs in, and selects the database of a server that has any; a sentinel has none. On success such
/// a server has replied at least once.
///
/// A login that was refused ends the attempt: the connection is never used as another user.
pub(super) async fn log_in(
    opened: &Opened,
    auth: &Auth,
    database: Option<u32>,
) -> Result<(), Fault> {
    let has_credentials = auth.username.is_some() || auth.password.is_some();
    if has_credentials {
        authenticate(opened, auth).await?;
    }
    match database {
        Some(0) if !has_credentials => proves_alive(opened).await,
        None | Some(0) => Ok(()),
        Some(number) => {
            let selected = opened.ask(redis::cmd("SELECT").arg(number)).await.and_then(okay);
            selected.map_err(|fault| fault.at(&format!("database {number} of REDIS_URL")))
        }
    }
}

async fn proves_alive(opened: &Opened) -> Result<(), Fault> {
    match opened.ask(&redis::cmd("PING")).await {
        Err(fault) if !shows_life(&fault) => Err(fault),
        _ => Ok(()),
    }
}

async fn authenticate(opened: &Opened, auth: &Auth) -> Result<(), Fault> {
    let password = auth.password.as_ref().map_or("", |password| password.reveal());
    let command = |user: Option<&str>| {
        let mut command = redis::cmd("AUTH");
        command.arg(user).arg(password);
        command
    };
    let ask = async |command: Cmd| {
        let reply = opened.ask(&command).await.and_then(okay);
        reply.map_err(|fault| refusal(fault, password))
    };
    let user = auth.username.as_deref();
    match ask(command(user)).await {
        // Such a user accepts any password, if it is named.
        Err(fault) if user.is_none() && fault.text.contains(NEEDS_NONE) => {
            ask(command(Some(DEFAULT_USER))).await
        }
        reply => reply,
    }
}

fn okay(reply: Value) -> Result<(), Fault> {
    match reply {
        Value::Okay => Ok(()),
        other => Err(Fault::malformed(&other)),
    }
}

/// The refusal of a login, without the password: servers repeat the arguments of commands that they
/// do not know.
fn refusal(fault: Fault, password: &str) -> Fault {
    let said = fault.without_arguments();
    let text = if !password.is_empty() && said.contains(password) {
        "the login was refused".to_owned()
    } else {
        said.to_owned()
    };
    let words = text.to_ascii_lowercase();
    let is_of_login = ["auth", "password"].iter().any(|word| words.contains(word));
    let kind = match fault.kind {
        Kind::Refused if is_of_login => Kind::Denied,
        kind => kind,
    };
    Fault { kind, text, ..fault }
}

/// Whether an error in reply to PING is of a server that may be used: one that cannot serve just
/// now, or one that knows no PING or does not permit it to this user.
fn shows_life(fault: &Fault) -> bool {
    match fault.kind {
        Kind::Loading | Kind::MasterDown | Kind::Busy | Kind::ClusterDown => true,
        Kind::Denied => fault.text.starts_with("NOPERM"),
        Kind::Refused => fault.text.to_ascii_lowercase().contains("command"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
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
}
