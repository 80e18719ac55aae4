//! The expected count of tokens, computed from the costs of requests. The count is a range, because
//! the order of events may leave it open.

use super::start::Held;

/// Sums over a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tokens {
    /// The least count, without the hits that requests hold at present.
    pub least: u64,
    /// The highest count, without the hits that requests hold at present.
    pub most: u64,
    /// A lower bound of the count that holds from now on.
    pub floor: u64,
}

/// Whether a start held tokens when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    Held,
    /// Another hold: a call settles it whose rule has another window or algorithm.
    HeldUnderAnother,
    /// Perhaps: the hold may have been released just before a call ended it. Then the call is
    /// charged its whole cost.
    PerhapsByCall,
    /// Perhaps: the hold may have been released just before an entry of the log ended it. Then the
    /// entry is charged nothing.
    PerhapsByLog,
}

// === impl Tokens ===

impl Tokens {
    /// A cost that nothing was held for is counted whole.
    pub fn count_whole(&mut self, cost: u64) {
        self.add(cost, cost);
    }

    /// A cost that may be counted or not.
    pub fn count_perhaps(&mut self, cost: u64) {
        self.add(0, cost);
    }

    /// Settles a hold with its cost. With `None` the hold ends without a cost.
    pub fn settle(&mut self, held: Held, cost: Option<u64>, was: Was, releases: bool) {
        let Held { hits, is_leased, is_of_before, is_watched } = held;
        if !is_watched {
            return;
        }
        let kept = if releases { 0 } else { hits };
        match (cost, was) {
            // Hits that were charged before a reset are forgotten, so no count gets them back.
            _ if is_of_before => self.add(0, hits + cost.unwrap_or(0)),
            _ if !is_leased => self.add(0, hits + cost.unwrap_or(0)),
            // The rule has another window by now, whose count may be charged the rest.
            (Some(cost), Was::HeldUnderAnother) => {
                self.add(cost.min(hits), cost);
                self.floor += cost.min(hits);
            }
            (Some(cost), Was::Held) => {
                self.add(cost, cost);
                self.floor += cost.min(hits);
            }
            (Some(cost), Was::PerhapsByCall) => self.add(cost, kept + cost),
            (Some(cost), Was::PerhapsByLog) => self.add(cost.min(kept), cost.max(kept)),
            (None, _) => {
                self.add(kept, kept);
                self.floor += kept;
            }
        }
    }

    /// Ends a hold whose pod is gone or cannot give back: all its hits stay counted.
    pub fn strand(&mut self, held: Held) {
        let Held { hits, is_leased, is_of_before, is_watched } = held;
        if !is_watched {
            return;
        }
        let is_sure = is_leased && !is_of_before;
        self.add(if is_sure { hits } else { 0 }, hits);
        self.floor += if is_sure { hits } else { 0 };
    }

    fn add(&mut self, least: u64, most: u64) {
        self.least += least;
        self.most += most;
    }
}
