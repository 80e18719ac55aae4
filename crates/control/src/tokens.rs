//! `ratelease-control token`: makes, lists and revokes tokens.

use jiff::Timestamp;
use ratelease_cli::settings::Flags;

use crate::auth::{Token, TokenRequest};
use crate::settings::{DatabaseAddress, TokenCommand};
use crate::store::{Author, Identity, Store, StoreError, TokenRow};

/// Runs the command, and returns what it prints.
///
/// # Errors
/// A line that says what is wrong.
pub async fn run(command: TokenCommand) -> Result<String, String> {
    let author = Author { name: "command line".to_owned(), reason: String::new() };
    let said = |error: StoreError| error.to_string();
    match command {
        TokenCommand::Create { database, name, access, domains, days } => {
            let made_by = Identity::default();
            let request = TokenRequest { name, access, domains, days, made_by };
            let faults = request.faults().into_iter();
            let faults: Vec<_> = faults.map(|(field, why)| format!("--{field}: {why}")).collect();
            if !faults.is_empty() {
                return Err(faults.join("; "));
            }
            let store = open(&database).await?;
            let token = Token::random().map_err(|error| error.to_string())?;
            let mut write = store.begin(&author).await.map_err(said)?;
            if !write.add_token(&request.row(&token)).await.map_err(said)? {
                return Err("another token has the same random id; try again".to_owned());
            }
            write.note_action("token.create", &request.subject(&token)).await.map_err(said)?;
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
            write.commit().await.map_err(said)?;
            Ok(format!("revoked {id}, and the tokens that it had the API make"))
        }
    }
}

async fn open(flags: &Flags<DatabaseAddress>) -> Result<Store, String> {
    let database = flags.read(DatabaseAddress::database).map_err(|faults| faults.to_string())?;
    Store::open(&database).await.map_err(|error| error.to_string())
}

/// A token without its secret.
fn line(row: &TokenRow) -> String {
    let TokenRow { token, created_at, revoked_at, written, issuer, subject, .. } = row;
    let time = |at: i64| Timestamp::from_millisecond(at).unwrap_or_default().to_string();
    let domains = token.domains.as_ref().map_or_else(|| "all".to_owned(), |it| it.join(","));
    let mut line = format!(
        "{}  {}  {}  domains: {domains}  kept: {written} bytes  made: {}",
        token.id,
        ratelease_rules::excerpt(&token.name),
        token.access,
        time(*created_at)
    );
    if !issuer.is_empty() {
        line.push_str(&format!("  person: {issuer}#{}", ratelease_rules::excerpt(subject)));
    }
    if !token.made_by.is_empty() {
        line.push_str(&format!("  made by: {}", ratelease_rules::excerpt(&token.made_by)));
    }
    if let Some(at) = token.expires_at {
        line.push_str(&format!("  expires: {}", time(at)));
    }
    if let Some(at) = revoked_at {
        line.push_str(&format!("  revoked: {}", time(*at)));
    }
    line
}
