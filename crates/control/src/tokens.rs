//! `ratelease-control token`: makes, lists and revokes tokens.

use std::time::Duration;

use jiff::Timestamp;
use ratelease_cli::settings::Flags;

use crate::auth::{Access, Token};
use crate::settings::{DatabaseAddress, TokenCommand};
use crate::store::{Author, Store, StoreError, TokenRow};

/// Runs the command, and returns what it prints.
///
/// # Errors
/// A line that says what is wrong.
pub async fn run(command: TokenCommand) -> Result<String, String> {
    let author = Author { name: "command line".to_owned(), reason: String::new() };
    let said = |error: StoreError| error.to_string();
    match command {
        TokenCommand::Create { database, name, access, domains, days } => {
            if access == Access::Admin && domains.is_some() {
                return Err("--domains: a token of access admin is for all domains".to_owned());
            }
            if domains.as_ref().is_some_and(|all| all.len() > DOMAINS_MAX) {
                return Err(format!("--domains: expected at most {DOMAINS_MAX} domains"));
            }
            if let Some(pattern) = domains.iter().flatten().find(|it| it.contains('*')) {
                let pattern = ratelease_rules::excerpt(pattern);
                return Err(format!(
                    "--domains: '{pattern}' has a '*', and a token has no patterns of domains: \
                     name each domain, or leave --domains out for all"
                ));
            }
            if name.is_empty() || name.contains('\0') || name.len() > 128 {
                return Err("--name: expected 1 to 128 bytes".to_owned());
            }
            let store = open(&database).await?;
            let token = Token::random().map_err(|error| error.to_string())?;
            let expires_at = days.map(|days| {
                let valid = Duration::from_secs(u64::from(days) * 24 * 3600);
                let valid = i64::try_from(valid.as_millis()).unwrap_or(i64::MAX);
                Timestamp::now().as_millisecond().saturating_add(valid)
            });
            let mut write = store.begin(&author).await.map_err(said)?;
            let row = token.row(&name, access, domains, expires_at);
            if !write.add_token(&row).await.map_err(said)? {
                return Err("another token has the same random id; try again".to_owned());
            }
            write.note_action("token.create", token.id()).await.map_err(said)?;
            write.commit().await.map_err(said)?;
            Ok(token.reveal())
        }
        TokenCommand::List { database } => {
            let store = open(&database).await?;
            let tokens = store.tokens().await.map_err(said)?;
            Ok(tokens.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
        TokenCommand::Revoke { database, id } => {
            let store = open(&database).await?;
            let mut write = store.begin(&author).await.map_err(said)?;
            if !write.revoke_token(&id).await.map_err(said)? {
                let id = ratelease_rules::excerpt(&id);
                return Err(format!("no valid token has the id '{id}'; 'token list' shows all"));
            }
            write.note_action("token.revoke", &id).await.map_err(said)?;
            write.commit().await.map_err(said)?;
            Ok(format!("revoked {id}"))
        }
    }
}

async fn open(flags: &Flags<DatabaseAddress>) -> Result<Store, String> {
    let database = flags.read(DatabaseAddress::database).map_err(|faults| faults.to_string())?;
    Store::open(&database).await.map_err(|error| error.to_string())
}

/// Maximum number of domains of a token: conditions of the database name each of them.
const DOMAINS_MAX: usize = 256;

/// A token without its secret.
fn line(row: &TokenRow) -> String {
    let TokenRow { token, created_at, revoked_at, written } = row;
    let time = |at: i64| Timestamp::from_millisecond(at).unwrap_or_default().to_string();
    let domains = token.domains.as_ref().map_or_else(|| "all".to_owned(), |it| it.join(","));
    let mut line = format!(
        "{}  {}  {}  domains: {domains}  kept: {written} bytes  made: {}",
        token.id,
        ratelease_rules::excerpt(&token.name),
        token.access,
        time(*created_at)
    );
    if let Some(at) = token.expires_at {
        line.push_str(&format!("  expires: {}", time(at)));
    }
    if let Some(at) = revoked_at {
        line.push_str(&format!("  revoked: {}", time(*at)));
    }
    line
}
