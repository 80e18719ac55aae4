//! Makes the draft of a domain another document. The difference is found before the transaction,
//! which writes that alone: all other writes wait for it.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::drafts::StoredDraft;
use super::write::{Cell, bound};
use super::{StoreError, StoreResult, StoredRule, Write};
use crate::document::{Document, RuleChange, RuleId, difference};

/// Distance between the positions of two rules, so that others fit between them later.
const GAP: i64 = 64;

/// Rules that one statement deletes.
const DELETED_MAX: usize = 500;

/// The difference between the draft of a domain and a document.
#[derive(Debug)]
pub struct Replacement {
    domain: String,
    /// The number of the last change of the draft that was compared; `None` if there is no draft.
    base: Option<i64>,
    /// The `defaults`, if they differ.
    defaults: Option<Map<String, Value>>,
    /// What the history will have.
    changes: Vec<RuleChange>,
    /// The rules whose rows are deleted: those that are removed, changed or moved.
    delete: Vec<RuleId>,
    /// The rules whose rows are written.
    put: Vec<Put>,
    /// How the number of rules and their bytes change.
    rules: i64,
    bytes: i64,
}

/// A rule that is written.
#[derive(Debug)]
struct Put {
    rule: StoredRule,
    position: Position,
    /// Whether its settings change too, or it is added.
    is_changed: bool,
}

/// The place of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// This one.
    At(i64),
    /// After all that there are, with so many before it.
    Last(i64),
}

// === impl Replacement ===

impl Replacement {
    /// Compares a draft with the document that it is to be. Takes some seconds for a large one.
    pub fn new(draft: StoredDraft, document: &Document) -> Self {
        let domain = document.domain.clone();
        let records = draft.rules.iter().map(|rule| rule.record.clone()).collect();
        let before = Document { domain: domain.clone(), records, ..Document::default() };
        let mut this = Self {
            base: draft.changed,
            defaults: (draft.defaults != document.defaults).then(|| document.defaults.clone()),
            changes: difference(&before, document).rules,
            delete: Vec::new(),
            put: Vec::new(),
            rules: count(document.records.len()) - count(draft.rules.len()),
            bytes: 0,
            domain,
        };
        let former = draft.rules.into_iter().map(|rule| (rule.record.entries.clone(), rule));
        let mut former: HashMap<_, _> = former.collect();
        let known: Vec<_> = document
            .records
            .iter()
            .map(|record| former.get(&record.entries).map(|rule| rule.position))
            .collect();
        for ((record, known), position) in document.records.iter().zip(&known).zip(places(&known)) {
            let former = former.remove(&record.entries);
            let is_changed = former.as_ref().is_none_or(|it| it.record != *record);
            if !is_changed && known.map(Position::At) == Some(position) {
                continue;
            }
            this.remove_row(former.as_ref());
            let (revision, updated_at, updated_by) = former.map_or_else(
                || (0, 0, String::new()),
                |it| (it.revision, it.updated_at, it.updated_by),
            );
            let rule = StoredRule {
                id: record.id(&this.domain),
                domain: this.domain.clone(),
                record: record.clone(),
                position: 0,
                revision,
                updated_at,
                updated_by,
            };
            this.bytes += rule.bytes();
            this.put.push(Put { rule, position, is_changed });
        }
        former.values().for_each(|rule| this.remove_row(Some(rule)));
        this
    }

    fn remove_row(&mut self, rule: Option<&StoredRule>) {
        if let Some(rule) = rule {
            self.bytes -= rule.bytes();
            self.delete.push(rule.id.clone());
        }
    }

    /// Whether the draft is the document already.
    fn is_empty(&self) -> bool {
        self.base.is_some()
            && self.defaults.is_none()
            && self.delete.is_empty()
            && self.put.is_empty()
    }
}

/// The positions of rules in their order, of which some have one already. Most of these keep it;
/// the others come between them, or if there is no room all are placed again.
fn places(known: &[Option<i64>]) -> Vec<Position> {
    let kept = longest_increasing(known);
    let mut places = Vec::with_capacity(known.len());
    let mut before: Option<i64> = None;
    for (at, position) in kept.iter().copied().chain([(known.len(), i64::MAX)]) {
        let missing = count(at - places.len());
        let is_end = at == known.len();
        // Each of the missing ones gets a part of the room.
        let step = match before {
            _ if is_end => 0,
            None => GAP,
            Some(before) => ((position - before) / (missing + 1)).min(GAP),
        };
        if missing > 0 && step == 0 && !is_end {
            return (0..count(known.len())).map(Position::Last).collect();
        }
        places.extend((0..missing).map(|nth| match (is_end, before) {
            (true, _) => Position::Last(nth),
            (false, Some(before)) => Position::At(before + step * (nth + 1)),
            (false, None) => Position::At(position - step * (missing - nth)),
        }));
        if !is_end {
            places.push(Position::At(position));
            before = Some(position);
        }
    }
    places
}

/// The most of these positions that are in their order: each with its place in the list.
fn longest_increasing(known: &[Option<i64>]) -> Vec<(usize, i64)> {
    // For each length the list's place of the least position that ends a run of this length.
    let mut ends: Vec<(usize, i64)> = Vec::new();
    let mut earlier: Vec<Option<usize>> = vec![None; known.len()];
    for (at, position) in known.iter().enumerate() {
        let Some(position) = *position else { continue };
        let length = ends.partition_point(|(_, end)| *end < position);
        let before = length.checked_sub(1).and_then(|it| ends.get(it)).map(|(at, _)| *at);
        if let Some(slot) = earlier.get_mut(at) {
            *slot = before;
        }
        match ends.get_mut(length) {
            Some(end) => *end = (at, position),
            None => ends.push((at, position)),
        }
    }
    let mut kept = Vec::with_capacity(ends.len());
    let mut last = ends.last().map(|(at, _)| *at);
    while let Some(at) = last {
        kept.extend(known.get(at).copied().flatten().map(|position| (at, position)));
        last = earlier.get(at).copied().flatten();
    }
    kept.reverse();
    kept
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

// === impl Write ===

impl Write {
    /// Makes a draft what its replacement says. Rules that do not change keep their revision.
    /// Returns the number of rules that were added, changed or removed.
    ///
    /// # Errors
    /// [`StoreError::Moved`] if the draft is not the one that was compared.
    pub(crate) async fn replace(&mut self, replacement: &Replacement) -> StoreResult<usize> {
        let Replacement { domain, base, defaults, changes, rules, bytes, .. } = replacement;
        if self.last_change(domain).await? != *base {
            return Err(StoreError::Moved(domain.clone()));
        }
        if replacement.is_empty() {
            return Ok(0);
        }
        self.touch_domain(domain).await?;
        if let Some(defaults) = defaults {
            let sql = "UPDATE domains SET defaults = $1 WHERE name = $2";
            let query = sqlx::query(sql).bind(json!(defaults).to_string()).bind(domain.clone());
            query.execute(&mut *self.tx).await?;
        }
        let number = self.number();
        self.note_changes(domain, changes).await?;
        self.resize(domain, *rules, *bytes).await?;
        self.delete_rules(&replacement.delete).await?;
        self.put_rules(number, &replacement.put).await?;
        Ok(changes.len())
    }

    async fn delete_rules(&mut self, ids: &[RuleId]) -> StoreResult<()> {
        for ids in ids.chunks(DELETED_MAX) {
            let places = super::versions::places(1, ids.len());
            let sql = format!("DELETE FROM rules WHERE id IN ({places})");
            let cells = ids.iter().map(|id| Cell::Text(id.to_string())).collect();
            bound(&sql, cells).execute(&mut *self.tx).await?;
        }
        Ok(())
    }

    async fn put_rules(&mut self, number: i64, put: &[Put]) -> StoreResult<()> {
        let is_last = |put: &&Put| matches!(put.position, Position::Last(_));
        // Numbers only grow, so that these positions are after all others.
        let first = self.take_numbers(GAP * count(put.iter().filter(is_last).count())).await?;
        let mut rows = Vec::with_capacity(put.len());
        for Put { rule, position, is_changed } in put {
            let position = match *position {
                Position::At(position) => position,
                Position::Last(nth) => first + GAP * nth,
            };
            let mut rule = StoredRule { position, ..rule.clone() };
            if *is_changed {
                rule.revision = number;
                rule.updated_at = self.at;
                rule.updated_by = self.author.name.clone();
            } else {
                // It leaves no history, and takes as much time as one that does.
                self.note_kept(0);
            }
            rows.push(rule.cells());
        }
        self.insert(StoredRule::INTO, rows).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The positions after a replacement, of which new ones begin at 1000.
    fn placed(known: &[Option<i64>]) -> Vec<i64> {
        let at = |position: Position| match position {
            Position::At(position) => position,
            Position::Last(nth) => 1000 + GAP * nth,
        };
        places(known).into_iter().map(at).collect()
    }

    #[test]
    fn rules_between_others_take_positions_between_theirs() {
        assert_eq!(placed(&[None, Some(64), Some(128)]), [0, 64, 128]);
        assert_eq!(placed(&[Some(64), None, None, Some(128)]), [64, 85, 106, 128]);
        assert_eq!(placed(&[Some(64), Some(128), None]), [64, 128, 1000]);
        assert_eq!(placed(&[Some(128), Some(64), Some(192)])[2], 192, "one moves");
        assert_eq!(placed(&[Some(1), None, Some(2)]), [1000, 1064, 1128], "there is no room");
        assert_eq!(placed(&[]), Vec::<i64>::new());
    }

    proptest! {
        #[test]
        fn positions_are_in_order_and_those_in_order_already_stay(
            known in prop::collection::vec(prop::option::of(0_i64..900), 0..40),
        ) {
            let mut seen = std::collections::HashSet::new();
            let known = known.into_iter().map(|it| it.filter(|it| seen.insert(*it)));
            let known: Vec<_> = known.collect();
            let placed = placed(&known);
            prop_assert_eq!(placed.len(), known.len());
            prop_assert!(placed.is_sorted_by(|a, b| a < b), "{:?} {:?}", known, placed);
            let present: Vec<_> = known.iter().copied().flatten().collect();
            let mut rest = known.iter().skip_while(|it| it.is_some());
            if present.is_sorted() && rest.all(Option::is_none) {
                prop_assert!(placed.starts_with(&present));
            }
        }
    }
}
