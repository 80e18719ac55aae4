//! **Pages of lists**. Every list has pages that are bounded in number and in bytes, because a tenant
//! who makes many entries, or large ones, must not make the answer large for everybody; and says
//! with `next` where the next page begins.

use std::io;

use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::MIB;
use super::call::Problem;
use crate::document::FieldFault;

/// Items of a page if the query names no number: more than a screen shows.
const PAGE: usize = 100;

/// Maximum number of items of a page.
pub const PAGE_MAX: usize = 1000;

/// Maximum bytes of the items of a page, as JSON. The first one is there whatever its size.
const PAGE_BYTES_MAX: usize = 4 * MIB;

/// Which changes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// Before this number: `next` of the page before.
    pub before: Option<i64>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
}

/// Which part of a list to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// After this place: `next` of the page before.
    pub after: Option<String>,
    /// At most so many, up to 1000, which is the default.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
}

/// The number of items of a page.
pub fn page_size(limit: Option<usize>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(PAGE);
    if (1..=PAGE_MAX).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::malformed(format!("'limit' is {limit}; expected 1 to {PAGE_MAX}")))
}

/// Writes the place of an item in a list that is ordered by time and id.
pub fn place_of(at: i64, id: &str) -> String {
    format!("{at}.{id}")
}

/// Reads such a place.
pub fn place(text: &str) -> Result<(i64, String), Problem> {
    let place = text.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.to_owned())));
    place.filter(|(_, id)| !id.contains('\0')).ok_or_else(|| no_place("before"))
}

/// Says that a list has no such place.
pub fn no_place(field: &str) -> Problem {
    let expected = "expected the 'next' value of the previous page".to_owned();
    Problem::faults("the page cannot be found", vec![FieldFault::of(field, expected)])
}

/// The bytes that a page may still have.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
}

/// A page that is read in parts, so that no more of a list is in memory than a page may have, and one
/// part.
#[derive(Debug)]
pub struct Page<T> {
    limit: usize,
    room: Room,
    items: Vec<T>,
    /// Whether all parts were read.
    is_read: bool,
    /// Whether an item had no room.
    is_full: bool,
}

// === impl Room ===

impl Room {
    /// The room of an empty page.
    pub fn new() -> Self {
        Self { bytes: PAGE_BYTES_MAX }
    }

    /// Takes the room of an item. Returns whether there is enough.
    pub fn takes(&mut self, item: &impl Serialize) -> bool {
        let bytes = json_bytes(item);
        let has_room = bytes <= self.bytes;
        self.bytes = self.bytes.saturating_sub(bytes);
        has_room
    }
}

/// The bytes of an item as JSON.
fn json_bytes(item: &impl Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Items have texts and numbers alone, which can always be written.
    let _ = serde_json::to_writer(&mut count, item);
    count.0
}

// === impl Page ===

impl<T: Serialize> Page<T> {
    /// An empty one, of at most `limit` items.
    pub fn new(limit: usize) -> Self {
        Self { limit, room: Room::new(), items: Vec::new(), is_read: false, is_full: false }
    }

    /// How many items to read next, of at most `part`; `None` if the page is complete.
    pub fn wants(&self, part: usize) -> Option<usize> {
        let is_complete = self.is_read || self.is_full;
        // One more than there is room for tells whether there is a next page.
        (!is_complete).then(|| part.min(self.limit + 1 - self.items.len()))
    }

    /// The last item.
    pub fn last(&self) -> Option<&T> {
        self.items.last()
    }

    /// Notes that a part was asked for so many items, and has so many.
    pub fn note_part(&mut self, asked: usize, found: usize) {
        self.is_read = found < asked;
    }

    /// Whether there is room for one more item, of which there is one.
    pub fn has_room(&mut self) -> bool {
        self.is_full |= self.items.len() >= self.limit;
        !self.is_full
    }

    /// Adds an item, if it has room.
    pub fn add(&mut self, item: T) {
        let fits = self.has_room() && (self.room.takes(&item) || self.items.is_empty());
        self.is_full |= !fits;
        if fits {
            self.items.push(item);
        }
    }

    /// Adds a part, which was asked for so many items.
    pub fn add_part(&mut self, asked: usize, found: Vec<T>) {
        self.note_part(asked, found.len());
        found.into_iter().for_each(|item| self.add(item));
    }

    /// The items, and where the next page begins: at the place of the last one. `None` if there is
    /// no further item.
    pub fn end<P>(self, place: impl FnOnce(&T) -> P) -> (Vec<T>, Option<P>) {
        let next = self.items.last().filter(|_| self.is_full).map(place);
        (self.items, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of a list of so many items, with their first and their last item.
    fn pages(count: usize, limit: usize, item: impl Fn(usize) -> String) -> Vec<usize> {
        let mut pages = Vec::new();
        let mut after = 0;
        loop {
            let mut page = Page::new(limit);
            let mut read = after;
            while let Some(asked) = page.wants(7) {
                let found: Vec<_> = (read..count).take(asked).map(&item).collect();
                read += found.len();
                page.add_part(asked, found);
            }
            assert!(read - after <= page.items.len() + 7, "it reads no more than a part too much");
            let (items, next) = page.end(|_| ());
            after += items.len();
            pages.push(items.len());
            if next.is_none() {
                assert_eq!(after, count, "each item once");
                return pages;
            }
        }
    }

    #[test]
    fn pages_end_at_their_number_and_the_last_has_no_next() {
        let small = |at: usize| at.to_string();
        assert_eq!(pages(0, 10, small), [0]);
        assert_eq!(pages(20, 10, small), [10, 10]);
        assert_eq!(pages(21, 10, small), [10, 10, 1]);
        assert_eq!(pages(6, 1, small), [1; 6]);
    }

    #[test]
    fn pages_end_at_their_bytes_and_have_an_item_whatever_its_size() {
        // With its quotes, each has a quarter.
        let quarter = |_| "x".repeat(PAGE_BYTES_MAX / 4 - 2);
        assert_eq!(pages(9, 100, quarter), [4, 4, 1]);
        let more = |_| "x".repeat(PAGE_BYTES_MAX / 4 - 1);
        assert_eq!(pages(9, 100, more), [3, 3, 3]);
        assert_eq!(pages(3, 100, |_| "x".repeat(PAGE_BYTES_MAX)), [1, 1, 1]);
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        assert_eq!(place(&place_of(7, "ab.c")).unwrap(), (7, "ab.c".to_owned()));
        for text in ["", "7", "x.y", "7.\0"] {
            assert!(place(text).is_err(), "{text:?}");
        }
    }
}
