//! What the count of tokens is to be, from the costs of requests: a range, where the order of events
//! leaves room.

use super::start::Held;

/// Sums over a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tokens {
    /// The least and the most that is counted, without what is held at present.
    pub least: u64,
    pub most: u64,
    /// What is counted at any time from now on.
    pub floor: u64,
}

/// Whether a start held tokens when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Was {
    Held,
    /// It is settled by a call whose rule has another window or algorithm.
    HeldUnderAnother,
    /// It may have been released just before: a call is charged its cost whole then.
    PerhapsByCall,
    /// Likewise; an entry of the log is charged nothing then.
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

    /// A hold is settled with this cost, or ends with what it held: `None`.
    pub fn settle(&mut self, held: Held, cost: Option<u64>, was: Was, releases: bool) {
        let Held { hits, is_leased, is_of_before, is_watched } = held;
        if !is_watched {
            return;
        }
        let kept = if releases { 0 } else { hits };
        match (cost, was) {
            // What was charged before a reset is forgotten, and comes back to nothing.
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

    /// Its pod is gone, or cannot give back: all stays counted.
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
