//! Whether a draft differs from the published rules, by content: a change that is undone is none.
//! The numbers of the content tell most drafts apart. Other drafts are compared as texts, once for
//! each change, and outside of writes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row};

use super::StoreResult;
use super::query::{Cell, bound};
use crate::document::Content;

/// Maximum number of domains whose comparison is kept, which is that of all domains.
const COMPARED_MAX: usize = 10_000;

/// The columns of the state of a draft, in the order that [`DraftState::read`] needs.
pub const DRAFT_STATE: &str = "changed, published, summed, content, published_content, hash";

/// How the content of a draft changes.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// By these rules. The number stays unknown if it was.
    By(Content),
    /// To these rules.
    To(Content),
}

/// The state of a draft in `domains`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraftState {
    /// The number of the last change, and of the last one that was published.
    pub changed: i64,
    published: i64,
    /// The number of the last change that `content` is of.
    summed: i64,
    content: i64,
    published_content: Option<i64>,
    /// The hash of the text that is published.
    pub hash: Option<String>,
}

/// The last comparison of the draft of each domain with the published rules.
#[derive(Debug, Clone, Default)]
pub struct Compared(Arc<Mutex<HashMap<String, Comparison>>>);

/// A draft, a published text, and whether they differ.
#[derive(Debug)]
pub struct Comparison {
    pub changed: i64,
    pub hash: Option<String>,
    pub differs: bool,
}

/// The state of the draft of a domain, if there is one.
pub async fn state_of<'e>(
    executor: impl Executor<'e, Database = Any>,
    domain: &str,
) -> StoreResult<Option<DraftState>> {
    let sql = format!("SELECT {DRAFT_STATE} FROM domains WHERE name = $1");
    let row = bound(&sql, vec![Cell::Text(domain.to_owned())]).fetch_optional(executor).await?;
    row.as_ref().map(DraftState::read).transpose()
}

// === impl DraftState ===

impl DraftState {
    pub fn read(row: &AnyRow) -> StoreResult<Self> {
        Ok(Self {
            changed: row.try_get(0)?,
            published: row.try_get(1)?,
            summed: row.try_get(2)?,
            content: row.try_get(3)?,
            published_content: row.try_get(4)?,
            hash: row.try_get(5)?,
        })
    }
}

// === impl Compared ===

impl Compared {
    /// Whether a draft differs from the published rules; `None` if only the texts tell.
    pub fn is_changed(&self, domain: &str, state: &DraftState) -> Option<bool> {
        let DraftState { changed, published, summed, content, published_content, hash } = state;
        if changed == published {
            return Some(false);
        }
        // `defaults` are no part of the numbers, so that equal ones tell nothing.
        if summed == changed && published_content.is_some_and(|it| it != *content) {
            return Some(true);
        }
        let all = self.0.lock();
        let known = all.get(domain).filter(|it| it.changed == *changed && it.hash == *hash);
        known.map(|it| it.differs)
    }

    /// Notes a comparison, in place of the former one of the domain.
    pub fn note(&self, domain: &str, comparison: Comparison) {
        let mut all = self.0.lock();
        // There may be entries of domains that have gone.
        if all.len() > COMPARED_MAX {
            all.clear();
        }
        all.insert(domain.to_owned(), comparison);
    }
}
