//! The migrations, which are part of the binary.

use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyPool, SqlSafeStr};

use super::{Backend, StoreError, StoreResult};

/// What each migration is called, and its SQL for PostgreSQL and SQLite. One that was released is
/// never edited: the database knows the hash of what it has run.
const MIGRATIONS: [(&str, &str, &str); 2] = [
    (
        "schema",
        include_str!("../../migrations/0001_schema.sql"),
        include_str!("../../migrations/0001_schema.sql"),
    ),
    (
        "append only",
        include_str!("../../migrations/0002_append_only.postgres.sql"),
        include_str!("../../migrations/0002_append_only.sqlite.sql"),
    ),
];

/// Runs the migrations that the database has not run, each in a transaction.
pub(super) async fn migrate(pool: &AnyPool, backend: Backend) -> StoreResult<()> {
    let migrations = (1..).zip(MIGRATIONS).map(|(version, (name, postgres, sqlite))| {
        let sql = if backend == Backend::Postgres { postgres } else { sqlite };
        let kind = MigrationType::Simple;
        Migration::new(version, Cow::Borrowed(name), kind, sql.into_sql_str(), false)
    });
    let migrator = Migrator::with_migrations(migrations.collect());
    migrator.run(pool).await.map_err(|error| match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::VersionMissing(version) => StoreError::Internal(format!(
            "the database has migration {version}, which a later release made: use that release"
        )),
        error => StoreError::Internal(format!("migration of the database: {error}")),
    })
}
