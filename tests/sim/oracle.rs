//! One exact server that receives every request at once: the fleet is compared with the hits that
//! the server would have admitted. Its arithmetic is independent of `crates/engine/src/algorithm`.

use std::collections::{HashMap, VecDeque};

use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use crate::rule::case_of;

/// The counts of the server, and the hits that the server and the fleet admitted.
#[derive(Default)]
pub struct Oracle {
    counts: HashMap<Key, Count>,
    sums: HashMap<Key, (u64, u64)>,
}

/// The count of one key; times are in microseconds.
#[derive(Debug)]
pub enum Count {
    FixedWindow { number: u64, used: u64 },
    TokenBucket { tokens: f64, as_of: u64 },
    SlidingWindow { number: u64, used: u64, before: u64 },
    SlidingLog(VecDeque<u64>),
    LeakyBucket { next: f64 },
}

// === impl Oracle ===

impl Oracle {
    /// Decides a request for `hits` at `wall_us`.
    pub fn offer(&mut self, key: Key, limit: Limit, hits: u64, wall_us: u64) {
        let count =
            self.counts.entry(key).or_insert_with(|| (case_of(limit).count)(limit, wall_us));
        let admits = count.take(limit, hits, wall_us);
        self.sums.entry(key).or_default().0 += if admits { hits } else { 0 };
    }

    /// Records that the fleet admitted `hits`.
    pub fn admit(&mut self, key: Key, hits: u64) {
        self.sums.entry(key).or_default().1 += hits;
    }

    /// The hits that the server and the fleet admitted, by key.
    pub fn sums(&self) -> Vec<(u64, u64)> {
        self.sums.values().copied().collect()
    }
}

// === impl Count ===

impl Count {
    /// Takes `hits` if they are within the limit.
    fn take(&mut self, limit: Limit, hits: u64, now: u64) -> bool {
        let window = limit.window_seconds() * 1_000_000;
        let requests = limit.requests_per_unit;
        match self {
            Self::FixedWindow { number, used } => {
                if *number != now / window {
                    (*number, *used) = (now / window, 0);
                }
                take_whole(used, hits, requests)
            }
            Self::TokenBucket { tokens, as_of } => {
                let earned = (now - *as_of) as f64 * requests as f64 / window as f64;
                (*tokens, *as_of) = ((*tokens + earned).min(limit.capacity() as f64), now);
                let fits = *tokens >= hits as f64;
                *tokens -= if fits { hits as f64 } else { 0.0 };
                fits
            }
            Self::SlidingWindow { number, used, before } => {
                let present = now / window;
                if *number != present {
                    *before = if *number + 1 == present { *used } else { 0 };
                    (*number, *used) = (present, 0);
                }
                let covered = *before as f64 * (window - now % window) as f64 / window as f64;
                let fits = (*used + hits) as f64 + covered <= requests as f64;
                *used += if fits { hits } else { 0 };
                fits
            }
            Self::SlidingLog(log) => {
                while log.front().is_some_and(|first| first + window <= now) {
                    log.pop_front();
                }
                let fits = log.len() as u64 + hits <= requests;
                log.extend((0..if fits { hits } else { 0 }).map(|_| now));
                fits
            }
            Self::LeakyBucket { next } => {
                let max_delay_us = limit.algorithm.max_delay().as_micros() as f64;
                let starts = next.max(now as f64);
                let fits = requests > 0 && starts - now as f64 <= max_delay_us;
                if fits {
                    *next = starts + hits as f64 * window as f64 / requests as f64;
                }
                fits
            }
        }
    }
}

fn take_whole(used: &mut u64, hits: u64, limit: u64) -> bool {
    let fits = *used + hits <= limit;
    *used += if fits { hits } else { 0 };
    fits
}
