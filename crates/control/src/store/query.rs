//! A query with its parameters.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

/// A value of a row that is inserted, or a parameter of a query.
#[derive(Debug, Clone)]
pub enum Cell {
    Int(i64),
    Text(String),
    Nullable(Option<String>),
    /// A SQL expression that the database computes. Only for rows.
    Expression(&'static str),
}

// === impl Cell ===

impl Cell {
    /// The bytes of a text.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Int(_) | Self::Expression(_) | Self::Nullable(None) => 0,
            Self::Text(text) | Self::Nullable(Some(text)) => text.len(),
        }
    }
}

/// A query with its parameters. The text is made of names and places of parameters alone: no value
/// from outside is ever part of it.
pub fn bound(sql: &str, cells: Vec<Cell>) -> Query<'_, Any, AnyArguments> {
    let query = sqlx::query(AssertSqlSafe(sql));
    cells.into_iter().fold(query, |query, cell| match cell {
        Cell::Int(number) => query.bind(number),
        Cell::Text(text) => query.bind(text),
        Cell::Nullable(text) => query.bind(text),
        Cell::Expression(_) => query,
    })
}
