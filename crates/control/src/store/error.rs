//! Why the database did not do what it was asked.

use std::io;
use std::path::PathBuf;

use sqlx::Error;
use thiserror::Error as ThisError;

/// The result of a call of the database.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why the database did not do what it was asked.
#[derive(Debug, ThisError)]
pub enum StoreError {
    /// It cannot be reached, or is too slow. Nothing was written, unless it happened at the commit.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// It refuses to be used by this program.
    #[error("the database cannot be used: {0}")]
    Refused(String),
    /// The file of the database cannot be opened.
    #[error("{path}: {1}", path = .0.display())]
    File(PathBuf, #[source] io::Error),
    /// There is one of that address or name already.
    #[error("there is one already")]
    Duplicate,
    /// The draft changed between the check and the write.
    #[error("the draft of {0} changed meanwhile")]
    Moved(String),
    /// A draft would exceed a ceiling.
    #[error("{0}")]
    TooLarge(String),
    /// The token was revoked, or has expired, while the request waited.
    #[error("the token is expired or revoked")]
    TokenEnded,
    /// The token has kept as much as it may.
    #[error("the token has kept {written} bytes; expected at most {max}")]
    QuotaUsed {
        /// Bytes that its writes have kept.
        written: i64,
        /// Bytes that they may keep.
        max: i64,
    },
    /// A fault of this program or of the database's content.
    #[error("internal error: {0}")]
    Internal(String),
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match &error {
            Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed | Error::Io(_) => {
                Self::Unavailable(error.to_string())
            }
            Error::Tls(_) | Error::BeginFailed => Self::Unavailable(error.to_string()),
            Error::Protocol(why) => Self::Unavailable(why.clone()),
            Error::Database(fault) if fault.is_unique_violation() => Self::Duplicate,
            Error::Database(fault) => {
                let code = fault.code().unwrap_or_default().into_owned();
                match is_passing(&code) {
                    true => Self::Unavailable(fault.message().to_owned()),
                    false => Self::Internal(fault.message().to_owned()),
                }
            }
            _ => Self::Internal(error.to_string()),
        }
    }
}

/// Whether an error of this code passes: SQLSTATE's classes of connections, resources, operators
/// and aborted transactions, locks and time-outs; SQLite's BUSY, LOCKED, IOERR and FULL.
fn is_passing(code: &str) -> bool {
    const CLASSES: [&str; 5] = ["08", "53", "57", "58", "40"];
    const CODES: [&str; 9] = ["55P03", "25P03", "25006", "5", "6", "10", "13", "261", "517"];
    CODES.contains(&code) || code.len() == 5 && CLASSES.iter().any(|class| code.starts_with(class))
}

/// A value of the database that this program cannot have written.
impl From<serde_json::Error> for StoreError {
    fn from(error: serde_json::Error) -> Self {
        Self::Internal(format!("a value of the database: {error}"))
    }
}
