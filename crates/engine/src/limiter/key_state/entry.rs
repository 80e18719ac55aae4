//! The interface of a key to the table.

use std::time::Duration;

use super::{ColdState, KeyState};
use crate::buffer::table::{Entry, Link};
use crate::time::Time;

impl Entry for KeyState {
    fn idle_for(&self, now: Time) -> Duration {
        self.demand.idle_for(now)
    }

    fn is_busy(&self) -> bool {
        self.asking > 0 || self.has_waiting()
    }

    fn is_live(&self, now: Time) -> bool {
        self.buffer.is_live(now) || self.has_next_window(now) || self.debt(now) > 0
    }

    fn heap(&self) -> usize {
        self.buffer.cold().map_or(0, ColdState::heap)
    }

    /// Drops rare state to free memory: a refused key may be asked for again, admitted hits are
    /// not paid for unless an ask is out, and of two leases one ends too soon. Waiting requests
    /// stay.
    fn shed(&mut self) {
        if self.asking == 0 {
            self.set_debt(0);
        }
        self.resume();
        if let Some(cold) = self.buffer.cold_mut() {
            cold.next_window = None; // its tokens end with their window
        }
        self.buffer.join_leases(self.return_policy().kind);
        self.buffer.trim();
    }

    fn chain_link(&self) -> Link {
        self.chain_link
    }

    fn set_chain_link(&mut self, link: Link) {
        self.chain_link = link;
    }
}
