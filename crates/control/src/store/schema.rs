//! The migrations, which are part of the binary.

use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AnyPool, SqlSafeStr};

use super::{Backend, StoreError, StoreResult};

/// The number of each migration, what it is called, and its SQL for PostgreSQL and SQLite. One that
/// was released is never edited: the database knows the hash of what it has run.
const MIGRATIONS: [(i64, &str, [&str; 2]); 8] = [
    (1, "schema", shared(include_str!("../../migrations/0001_schema.sql"))),
    (
        2,
        "append only",
        [
            include_str!("../../migrations/0002_append_only.postgres.sql"),
            include_str!("../../migrations/0002_append_only.sqlite.sql"),
        ],
    ),
    (
        3,
        "rollouts",
        [
            concat!(
                include_str!("../../migrations/0003_rollouts.sql"),
                "\n",
                include_str!("../../migrations/0003_append_only.postgres.sql")
            ),
            concat!(
                include_str!("../../migrations/0003_rollouts.sql"),
                "\n",
                include_str!("../../migrations/0003_append_only.sqlite.sql")
            ),
        ],
    ),
    (4, "draft sizes", shared(include_str!("../../migrations/0004_draft_sizes.sql"))),
    (5, "pod domains", shared(include_str!("../../migrations/0005_pod_domains.sql"))),
    (6, "draft sizes known", shared(include_str!("../../migrations/0006_draft_sizes_known.sql"))),
    (7, "token bytes", shared(include_str!("../../migrations/0007_token_bytes.sql"))),
    (8, "answer locations", shared(include_str!("../../migrations/0008_answer_locations.sql"))),
];

/// The same SQL for both databases.
const fn shared(sql: &'static str) -> [&'static str; 2] {
    [sql, sql]
}

/// Runs the migrations that the database has not run, each in a transaction.
pub(super) async fn migrate(pool: &AnyPool, backend: Backend) -> StoreResult<()> {
    let migrations = MIGRATIONS.into_iter().map(|(version, name, [postgres, sqlite])| {
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
