//! Where the database is. A URL of PostgreSQL may hold a password, which the list of processes, the
//! log and errors must not show.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::store::Database;

/// The variable of the URL. It is no variable of the flag, whose value may have no password.
const URL: &str = "DATABASE_URL";

/// Where the database is.
#[derive(Clone, Args)]
pub struct DatabaseFlags {
    /// PostgreSQL, as in postgres://user@host/name, without a password, because the list of
    /// processes shows it. The variable DATABASE_URL may have one [default: SQLite]
    #[arg(long, conflicts_with = "database_url_file")]
    database_url: Option<String>,
    /// File with the URL of PostgreSQL, which may have a password
    #[arg(long, env = "DATABASE_URL_FILE")]
    database_url_file: Option<PathBuf>,
    /// File of the SQLite database, which is made if it is not there
    #[arg(long, env = "CONTROL_DATABASE_FILE", default_value = "ratelease-control.db")]
    database_file: PathBuf,
}

// === impl DatabaseFlags ===

impl DatabaseFlags {
    /// The database.
    ///
    /// # Errors
    /// Fails for a URL that is not one of PostgreSQL, for one in a flag that has a password, for a
    /// file that cannot be read, and for a file beside the variable.
    pub fn resolve(self) -> Result<Database, String> {
        self.resolve_with(env::var(URL).ok())
    }

    /// The database, where the variable of the URL is this one.
    fn resolve_with(self, variable: Option<String>) -> Result<Database, String> {
        let Self { database_url, database_url_file, database_file } = self;
        let present = |url: &String| !url.is_empty();
        if let Some(url) = database_url.filter(present) {
            if has_password(&url) {
                return Err("--database-url: has a password, which the list of processes shows. \
                            Give the URL in DATABASE_URL, or in a file (--database-url-file)"
                    .to_owned());
            }
            return postgres("--database-url", url);
        }
        let file = database_url_file.filter(|path| !path.as_os_str().is_empty());
        match (file, variable.filter(present)) {
            (Some(path), None) => of_file(&path),
            (None, Some(url)) => postgres(URL, url),
            (None, None) => Ok(Database::Sqlite(database_file)),
            (Some(_), Some(_)) => {
                Err("DATABASE_URL and --database-url-file are both given; remove one".to_owned())
            }
        }
    }
}

/// Without the URL.
impl fmt::Debug for DatabaseFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseFlags")
            .field("database_url_file", &self.database_url_file)
            .field("database_file", &self.database_file)
            .finish_non_exhaustive()
    }
}

fn of_file(path: &Path) -> Result<Database, String> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|error| format!("--database-url-file {}: {error}", path.display()))?;
    postgres(&format!("--database-url-file {}", path.display()), text.trim().to_owned())
}

/// Checks the URL that `given` has. The URL is no part of the error.
fn postgres(given: &str, url: String) -> Result<Database, String> {
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    if is_postgres {
        Ok(Database::Postgres(url))
    } else {
        Err(format!("{given}: expected postgres://…"))
    }
}

/// Whether a URL has a password: after the user, or as a parameter.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    user.contains(':') || query.split('&').any(|it| it.starts_with("password="))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        database: DatabaseFlags,
    }

    fn resolve(args: &[&str], variable: Option<&str>) -> Result<Database, String> {
        let line = Line::try_parse_from([&["x"], args].concat()).map_err(|it| it.to_string())?;
        let shown = format!("{:?}", line.database);
        assert!(!shown.contains("secret"), "{shown}");
        line.database.resolve_with(variable.map(str::to_owned))
    }

    #[test]
    fn a_password_is_in_no_message() {
        for url in [
            "mysql://root:secret@db",
            "postgres://root:secret@db/x",
            "postgres://root@db/x?sslmode=disable&password=secret",
        ] {
            let fault = resolve(&["--database-url", url], None).unwrap_err();
            assert!(!fault.contains("secret") && fault.contains("--database-url"), "{fault}");
        }
        let fault = resolve(&[], Some("mysql://root:secret@db")).unwrap_err();
        assert!(!fault.contains("secret") && fault.contains("DATABASE_URL"), "{fault}");
        let found = resolve(&["--database-url", "postgres://u@db/x?host=a:b"], None).unwrap();
        assert_eq!(found, Database::Postgres("postgres://u@db/x?host=a:b".into()));
        assert_eq!(format!("{found:?}"), "Postgres(…)");
    }

    #[test]
    fn a_password_comes_from_a_file_or_a_variable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("url");
        fs::write(&path, "postgres://u:secret@db/x\n").unwrap();
        let file = ["--database-url-file", path.to_str().unwrap()];
        let expected = Database::Postgres("postgres://u:secret@db/x".into());
        assert_eq!(resolve(&file, None), Ok(expected.clone()));
        assert_eq!(resolve(&[], Some("postgres://u:secret@db/x")), Ok(expected));
        assert!(resolve(&file, Some("postgres://db/x")).unwrap_err().contains("both"));
        fs::write(&path, "secret").unwrap();
        let fault = resolve(&file, None).unwrap_err();
        assert!(fault.contains("expected postgres://") && !fault.contains("secret"), "{fault}");
        fs::remove_file(&path).unwrap();
        assert!(resolve(&file, None).unwrap_err().contains("No such file"));
        assert_eq!(resolve(&[], None), Ok(Database::Sqlite("ratelease-control.db".into())));
    }
}
