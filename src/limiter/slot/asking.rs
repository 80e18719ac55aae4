//! What a slot asks of the store: how much, when it asks on, and what it returns.

use std::time::Duration;

use super::{LOST_AFTER, OVERDUE_MIN, OVERDUE_TRIPS, Slot};
use crate::buffer::{Kind, Lot};
use crate::key::Key;
use crate::lease::size::Need;
use crate::limiter::Here;
use crate::limiter::lend::Manner;
use crate::limiter::wait::Wish;
use crate::rules::Share;
use crate::store::{Ask, Back};
use crate::time::{Coarse, Time};

impl Slot {
    /// Asks for those who go on waiting: of a split key, every share that may have tokens.
    pub(super) fn ask_on(&mut self, key: Key, here: &Here<'_>, asks: &mut Vec<Ask>) {
        let first = self.ask(key, here);
        let others = self.shares().others(first.share.of);
        let (parts, mut back) = (others.len() as u64, first.back);
        for at in others {
            let share = Share { at, ..first.share };
            asks.push(Ask { share, want: first.want.div_ceil(parts), back, ..first });
            back = None; // once
            self.asking += 1;
        }
        self.asking -= 1; // counted by the first
    }

    /// The next ask. `need` is what the first request in the queue lacks: it is granted whole or
    /// not at all. Looks ask for nothing, and neither do those held to another limit. Refunds that
    /// found no lease here go to the store with it.
    pub(super) fn ask(&mut self, key: Key, here: &Here<'_>) -> Ask {
        self.asking += 1;
        self.buffer.note_ask(here.now);
        let manner = self.manner(here);
        let refunds = self.buffer.aside_mut().map_or(0, |rare| {
            // Nothing is asked, and nothing charged, for a request that has been answered.
            rare.waiting.forget_answered();
            rare.waiting.take_refunds(manner.limit)
        });
        let waiting = self.buffer.aside().map(|rare| &rare.waiting);
        // Slots that are held go by while one waits for more: a charge gets its own in one piece.
        let spaced = matches!(manner.kind, Kind::Spaced { .. });
        let held = if spaced { 0 } else { self.buffer.tokens(here.now) };
        let charges =
            || waiting.into_iter().flat_map(|queue| queue.under(manner.limit)).filter(Wish::spends);
        let wanted = charges().fold(0_u64, |sum, wish| sum.saturating_add(wish.hits));
        let missing = wanted.saturating_sub(held);
        let first = charges().next();
        let need = first.map_or(0, |wish| wish.hits.saturating_sub(held));
        let size = || self.need(&manner, missing, here).size();
        let want = match first {
            None if self.has_waiting() => 0,
            // The slots of one lease follow each other faster than one pod's part of the demand.
            _ if manner.is_leased() && !spaced => size().max(need),
            _ => missing,
        };
        // One share may have less than a charge needs: it gives what it has, the next one more.
        let whole = manner.shares.get() == 1;
        Ask {
            want,
            need: if whole { need } else { 0 },
            charge_denied: whole && first.is_some_and(|wish| wish.charge_denied),
            back: (refunds > 0).then_some(Back { tokens: refunds, epoch: None }),
            ..manner.ask(key, self.shares().next(manner.shares))
        }
    }

    pub(super) fn need(&self, manner: &Manner, waiting: u64, here: &Here<'_>) -> Need {
        let limit = manner.limit.capacity();
        let lasts = match manner.kind {
            Kind::Windowed => self.buffer.reset_after(here.now),
            Kind::Timed | Kind::Spaced { .. } => Some(manner.ttl()),
        };
        Need {
            demand: self.demand.steady(),
            burst: self.demand.burst(),
            run: self.demand.run(),
            waiting,
            limit,
            left: self.buffer.left(here.now).unwrap_or(limit),
            inflow: manner.inflow(),
            lasts,
            round_trip: self.round_trip(),
            // Each share is asked by its part of the pods, by one at least.
            pods: self.pods(here).max(manner.shares.get().into()),
            relief: self.flags.relief(),
            terms: manner.terms(),
        }
    }

    pub(super) fn holds_above_allowance(&self, here: &Here<'_>) -> bool {
        let manner = self.manner(here);
        let tokens = self.buffer.tokens(here.now);
        let spaced = matches!(manner.kind, Kind::Spaced { .. });
        let allowance = || self.need(&manner, 0, here).unspent_allowance();
        tokens > 0 && !spaced && tokens as f64 > allowance()
    }

    pub(super) fn returning(&self, manner: &Manner, key: Key, lot: Lot) -> Option<Ask> {
        manner.returning(key, self.shares().next(manner.shares), lot)
    }

    /// Whether the answer to the ask that is out should have been here.
    pub(super) fn is_overdue(&self, here: &Here<'_>) -> bool {
        let trips = self.round_trip() * OVERDUE_TRIPS;
        let asked_for = self.buffer.asked_for(here.now);
        self.asking > 0 && asked_for > trips.max(OVERDUE_MIN).max(here.patience)
    }

    /// Whether the answer to the ask that is out will never come.
    pub(super) fn is_lost(&self, now: Time) -> bool {
        self.asking > 0 && self.buffer.asked_for(now) > LOST_AFTER
    }

    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.trip_us.get())
    }

    pub(super) fn note_trip(&mut self, measured: Duration) {
        let measured = u64::try_from(measured.as_micros()).unwrap_or(u64::MAX);
        let before = self.trip_us.get();
        let smooth = before - before / 8 + measured / 8;
        self.trip_us = Coarse::floor(smooth.max(measured));
    }
}
