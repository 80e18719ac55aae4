//! Costs that are known afterwards: what each request holds, what settlements charge, and whether
//! no more is admitted, and no other sum counted, than `docs/accuracy.md` says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ratelease_engine::algorithm::{Token, counting};
use ratelease_engine::time::Time;
use ratelease_rules::key::Key;
use ratelease_rules::{Limit, UnlessSettled};

use super::call::Charge;
use crate::world;

/// A hold ends at most this late.
const LATE: Duration = Duration::from_millis(1_005);

#[derive(Default)]
pub struct Costs {
    /// Holds, by pod and id of the request. No two requests of a pod have one id.
    held: BTreeMap<(u64, &'static str), Held>,
    /// Requests, by pod and id, whose end came while they held nothing.
    ended: BTreeSet<(u64, &'static str)>,
    accounts: BTreeMap<Key, Account>,
    settled: (u64, u64, u64),
}

/// The hits that one request holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// The key that was charged.
    key: Key,
    hits: u64,
    ends: Time,
    releases: bool,
    /// The window in which it began and was answered.
    window: Option<u64>,
    /// `true`: the hold has ended, or ends within [`LATE`].
    is_ending: bool,
    /// `true`: the request passed. `false`: its caller gave up, so the request stands only if a
    /// refund is under way.
    is_sure: bool,
}

/// Hits that may have come back to a key at a pod.
#[derive(Debug, Clone, Copy)]
pub struct Freed {
    pub pod: u64,
    pub key: Key,
    pub hits: u64,
}

/// When and where something happens to a key.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub pod: u64,
    /// The pod leaves, so that nothing ends there any more.
    pub is_leaving: bool,
    pub now: Time,
    /// The times of the master's clock when the request began, and now.
    pub wall_us: (u64, u64),
}

/// The costs that one key is charged.
#[derive(Debug)]
struct Account {
    limit: Limit,
    carries: bool,
    /// The least and the most that its count can be.
    least: i128,
    most: i128,
    /// Hits that the requests of each window hold or have used.
    windows: BTreeMap<u64, i128>,
    dues: Vec<Due>,
    /// When each pod last let a request of a window pass.
    passed: BTreeMap<(u64, u64), Time>,
}

/// The cost of a settlement beyond the hits that were held.
#[derive(Debug, Clone, Copy)]
struct Due {
    pod: u64,
    at: Time,
    wall_us: u64,
    hits: u64,
}

// === impl Costs ===

impl Costs {
    /// Enters a request that passes, which holds its hits from now on, if any.
    pub fn start(&mut self, charge: &Charge, key: Key, carries: bool, moment: Moment) {
        let Some((_, limit)) = charge.count else { return };
        let Moment { pod, is_leaving, now, wall_us } = moment;
        let account = self.account(key, limit, carries);
        let windows = (number(limit, wall_us.0), number(limit, wall_us.1));
        account.passed.insert((pod, windows.1), now);
        let Some(terms) = charge.hold.filter(|_| charge.hits > 0) else { return };
        let hits = i128::from(charge.hits);
        (account.least, account.most) = (account.least + hits, account.most + hits);
        let window = (windows.0 == windows.1).then_some(windows.0);
        if let Some(number) = window {
            *account.windows.entry(number).or_default() += hits;
        }
        let releases = terms.unless_settled == UnlessSettled::Release;
        let ends = now + terms.lasts();
        let (is_ending, is_sure) = (false, true);
        let held = Held { key, hits: charge.hits, ends, releases, window, is_ending, is_sure };
        if !is_leaving {
            self.held.insert((pod, charge.id), held);
        }
    }

    /// Enters a request that may stand, though its caller gave up, and then holds its hits.
    pub fn start_perhaps(&mut self, charge: &Charge, carries: bool, moment: Moment) {
        let terms = charge.hold.filter(|_| charge.hits > 0);
        let Some(((key, limit), terms)) = charge.count.zip(terms) else { return };
        let Moment { pod, is_leaving, now, .. } = moment;
        self.account(key, limit, carries).most += i128::from(charge.hits);
        let releases = terms.unless_settled == UnlessSettled::Release;
        let ends = now + terms.lasts();
        let (window, is_ending, is_sure) = (None, false, false);
        let held = Held { key, hits: charge.hits, ends, releases, window, is_ending, is_sure };
        if !is_leaving {
            self.held.insert((pod, charge.id), held);
        }
    }

    /// Enters a settlement. Returns the hits that come back, and the cost beyond the hits that were
    /// held.
    pub fn settle(
        &mut self,
        charge: &Charge,
        key: Key,
        carries: bool,
        moment: Moment,
    ) -> (Freed, u64) {
        let Moment { pod, now, wall_us, .. } = moment;
        let (_, limit) = charge.count.expect("a settlement that no rule limits");
        let held = self.held.remove(&(pod, charge.id));
        if held.is_none() {
            self.ended.insert((pod, charge.id));
        }
        let cost = charge.hits;
        self.settled.0 += 1;
        self.settled.1 += u64::from(held.is_some());
        self.settled.2 += cost;
        let is_ending = held.is_some_and(|held| held.is_ending);
        let is_back = is_ending && held.is_some_and(|held| held.releases);
        if is_back && let Some(Held { key, hits, .. }) = held {
            self.accounts.get_mut(&key).expect("a hold of an unknown key").most -= i128::from(hits);
        }
        // A hold that is ending may have ended: then the whole cost counts.
        let held = held.filter(|_| !is_back);
        let covered = held.map_or(0, |held| held.hits.min(cost));
        let freed = held.map_or(0, |held| held.hits - covered);
        let due = cost - covered;
        let is_sure = held.is_none_or(|held| held.is_sure);
        if let Some(Held { key: of, hits, window, .. }) = held {
            let account = self.accounts.get_mut(&of).expect("a hold of an unknown key");
            if let Some(number) = window {
                *account.windows.entry(number).or_default() -= i128::from(freed);
            }
            let covered = i128::from(covered);
            account.least += covered - if is_sure { i128::from(hits) } else { 0 };
            account.most += covered - if is_ending { 0 } else { i128::from(hits) };
        }
        // The part of the cost that a hold covers stays with the count that it was taken from.
        let most_due = if is_ending || !is_sure { cost } else { due };
        let account = self.account(key, limit, carries);
        account.least += i128::from(due);
        account.most += i128::from(most_due);
        account.dues.push(Due { pod, at: now, wall_us: wall_us.1, hits: due });
        let of = held.map_or(key, |held| held.key);
        // The pod may owe the whole cost, if the hold has ended or the request never stood.
        (Freed { pod, key: of, hits: freed }, most_due)
    }

    /// Enters a settlement that no rule limits any more: the cost belongs to the count that its
    /// start was charged to. Returns the hits that come back, and the cost beyond the hits that
    /// were held.
    pub fn settle_without_rule(&mut self, charge: &Charge, pod: u64) -> Option<(Freed, u64)> {
        let name = (pod, charge.id);
        let held = self.held.remove(&name);
        self.ended.extend(held.is_none().then_some(name));
        let Held { key, hits, is_ending, is_sure, window, releases, .. } = held?;
        let account = self.accounts.get_mut(&key)?;
        let (hits, cost) = (i128::from(hits), i128::from(charge.hits));
        // A hold that is ending may have ended. Then nothing says which count the cost belongs to,
        // so the cost is not counted.
        let is_kept = is_ending && !releases;
        account.least += match (is_ending, is_sure) {
            (true, _) if is_kept => (cost - hits).min(0),
            (true, _) => 0,
            (false, true) => cost - hits,
            (false, false) => 0,
        };
        account.most += if is_kept { (cost - hits).max(0) } else { cost - hits };
        if !is_ending && let Some(number) = window {
            *account.windows.entry(number).or_default() += (cost - hits).min(0);
        }
        let freed = u64::try_from((hits - cost).max(0)).unwrap_or_default();
        let due = u64::try_from((cost - hits).max(0)).unwrap_or_default();
        Some((Freed { pod, key, hits: freed }, due))
    }

    /// Ends a request that passed after its end had come, which charged its cost. Returns the hits
    /// that come back: all hits of the hold, unless the pod had no room to know of the hold.
    pub fn end_late(&mut self, charge: &Charge, pod: u64) -> Option<Freed> {
        let name = (pod, charge.id);
        let Held { key, hits, window, is_ending, .. } =
            self.ended.contains(&name).then(|| self.held.remove(&name))??;
        if is_ending {
            return None;
        }
        let account = self.accounts.get_mut(&key)?;
        account.least -= i128::from(hits);
        if let Some(number) = window {
            *account.windows.entry(number).or_default() -= i128::from(hits);
        }
        Some(Freed { pod, key, hits })
    }

    /// Ends the holds that no settlement ended. Returns the hits that may have come back.
    pub fn advance(&mut self, now: Time) -> Vec<Freed> {
        let mut freed = Vec::new();
        let accounts = &mut self.accounts;
        self.held.retain(|(pod, _), held| {
            let account = accounts.get_mut(&held.key).expect("a hold of an unknown key");
            let hits = i128::from(held.hits);
            if now >= held.ends && !held.is_ending {
                held.is_ending = true;
                if held.releases {
                    account.least -= if held.is_sure { hits } else { 0 };
                    if let Some(number) = held.window {
                        *account.windows.entry(number).or_default() -= hits;
                    }
                    freed.push(Freed { pod: *pod, key: held.key, hits: held.hits });
                }
            }
            let has_ended = now >= held.ends + LATE;
            account.most -= if has_ended && held.releases { hits } else { 0 };
            !has_ended
        });
        freed
    }

    /// Forgets the holds of requests to `pod`, which leaves now or has gone. Their hits stay
    /// counted, unless the hold ends while the pod leaves.
    pub fn forget_pod(&mut self, pod: u64, now: Time) {
        let accounts = &mut self.accounts;
        self.held.retain(|(of, ..), held| {
            let ends_soon = held.releases && !held.is_ending && held.ends <= now + LATE;
            if *of == pod && ends_soon && held.is_sure {
                let account = accounts.get_mut(&held.key).expect("a hold of an unknown key");
                account.least -= i128::from(held.hits);
                if let Some(number) = held.window {
                    *account.windows.entry(number).or_default() -= i128::from(held.hits);
                }
            }
            *of != pod
        });
    }

    /// Checks the pod's number of requests that hold something, and the number of their hits. A pod
    /// may not have kept some requests, for lack of room.
    pub fn check_held(&self, pod: u64, [count, hits, not_kept]: [u64; 3]) -> Result<(), String> {
        let of_pod = self.held.iter().filter(|((of, ..), _)| *of == pod).map(|(_, held)| held);
        let all: Vec<_> = of_pod.collect();
        let sum = |held: &dyn Fn(&&&Held) -> bool| {
            let kept = all.iter().filter(held);
            kept.fold((0, 0), |(count, hits), held| (count + 1, hits + held.hits))
        };
        let (most, least) = (sum(&|_| true), sum(&|held| held.is_sure && !held.is_ending));
        if count > most.0 || hits > most.1 {
            return Err(format!("{count} requests hold {hits}, where only {most:?} may"));
        }
        if not_kept == 0 && (count < least.0 || hits < least.1) {
            return Err(format!("{count} requests hold {hits}, where {least:?} do"));
        }
        Ok(())
    }

    /// Checks that each count is the sum of the costs that were used. `all` is the flow of tokens
    /// between the store and all pods; `left` is the number of tokens that the store has left.
    pub fn check_sums(
        &self,
        key: Key,
        flow: &world::Flow,
        left: Option<u64>,
    ) -> Result<(), String> {
        let Some(account) = self.accounts.get(&key) else { return Ok(()) };
        let counted = i128::from(flow.lent + flow.owed) - i128::from(flow.returned);
        // Tokens of pools, and tokens that were lost on their way back, stay counted.
        let stranded = i128::from(flow.pooled) + i128::from(flow.lost);
        let (least, most) = (account.least + stranded, account.most + stranded);
        if !(least..=most).contains(&counted) {
            return Err(format!("{counted} counted where {least} to {most} were used"));
        }
        let rest = i128::from(account.limit.requests_per_unit) - counted;
        match left {
            Some(left) if i128::from(left) != rest.max(0) => {
                Err(format!("{counted} were used, and the store has {left} left"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the hits that requests of `key` hold or have used of their estimates are within
    /// the limit.
    pub fn check_held_within(&self, key: Key, now: Time, start_us: u64) -> Result<(), String> {
        let Some(account) = self.accounts.get(&key) else { return Ok(()) };
        let limit = i128::from(account.limit.requests_per_unit);
        if counting(account.limit).is_windowed {
            let over = account.windows.iter().find(|(_, used)| **used > limit);
            return over.map_or(Ok(()), |(number, used)| {
                Err(format!("window {number}: {used} held or used of {limit}"))
            });
        }
        let (used, allowed) = (account.windows.values().sum(), account.allows(now, start_us));
        if allowed < used {
            return Err(format!("{used} held or used of {allowed}"));
        }
        Ok(())
    }

    /// Checks the keys whose requests hold nothing: the costs that were charged in time before each
    /// pod last let a request pass are within the limit. `margin` is the time in which a pod
    /// reports a cost and hears the answer.
    pub fn check_bounds(&self, margin: Duration, start_us: u64) -> Result<(), String> {
        let looks = self.accounts.iter().filter(|(_, account)| account.windows.is_empty());
        looks.into_iter().try_for_each(|(key, account)| {
            let checked = match counting(account.limit).token {
                Token::OfWindow if account.carries => account.check_run(margin, start_us),
                _ if counting(account.limit).is_windowed => account.check_windows(margin),
                _ => account.check_run(margin, start_us),
            };
            checked.map_err(|what| format!("key {}: {what}", key.bits() % 1_000))
        })
    }

    pub fn keys(&self) -> Vec<(Key, Limit)> {
        self.accounts.iter().map(|(key, account)| (*key, account.limit)).collect()
    }

    /// The number of settlements, the number of settlements of requests that held something, and
    /// the sum of the costs.
    pub fn settled(&self) -> (u64, u64, u64) {
        self.settled
    }

    fn account(&mut self, key: Key, limit: Limit, carries: bool) -> &mut Account {
        let account = self.accounts.entry(key).or_insert_with(|| Account {
            limit,
            carries,
            least: 0,
            most: 0,
            windows: BTreeMap::new(),
            dues: Vec::new(),
            passed: BTreeMap::new(),
        });
        account.limit = limit;
        account
    }
}

// === impl Account ===

impl Account {
    /// In each window, at most the limit.
    fn check_windows(&self, margin: Duration) -> Result<(), String> {
        let window_us = self.limit.window_seconds() * 1_000_000;
        let margin_us = u64::try_from(margin.as_micros()).unwrap();
        let limit = i128::from(self.limit.requests_per_unit);
        let mut used = self.windows.clone();
        for due in &self.dues {
            let window = due.wall_us / window_us;
            let passed = self.passed.get(&(due.pod, window));
            let is_counted = due.wall_us % window_us >= margin_us
                && passed.is_some_and(|passed| *passed >= due.at + margin);
            *used.entry(window).or_default() += if is_counted { i128::from(due.hits) } else { 0 };
        }
        let over = used.into_iter().find(|(_, used)| *used > limit);
        over.map_or(Ok(()), |(window, used)| {
            Err(format!("window {window}: {used} used of {limit} before the last requests passed"))
        })
    }

    /// Checks that the costs of the whole run are within the hits that the limit allows until the
    /// last request passed.
    fn check_run(&self, margin: Duration, start_us: u64) -> Result<(), String> {
        let last = |pod: u64| {
            let of_pod = self.passed.iter().filter(|((of, _), _)| *of == pod);
            of_pod.map(|(_, at)| *at).max()
        };
        let dues = self.dues.iter();
        let in_time = dues.filter(|due| last(due.pod).is_some_and(|at| at >= due.at + margin));
        let owed: i128 = in_time.map(|due| i128::from(due.hits)).sum();
        let used = self.windows.values().sum::<i128>() + owed;
        let ends = self.passed.values().max().copied().unwrap_or_default();
        let allowed = self.allows(ends, start_us);
        if used > allowed {
            return Err(format!("{used} used of {allowed} before the last requests passed"));
        }
        Ok(())
    }

    /// The hits that the limit allows from the start of the run until `ends`.
    fn allows(&self, ends: Time, start_us: u64) -> i128 {
        let window_us = self.limit.window_seconds() * 1_000_000;
        let requests = i128::from(self.limit.requests_per_unit);
        let ends_us = ends.nanos() / 1_000 + 1;
        if counting(self.limit).token == Token::OfWindow {
            let windows = (start_us + ends_us) / window_us - start_us / window_us + 1;
            return requests * i128::from(windows);
        }
        let earned = requests * i128::from(ends_us) / i128::from(window_us);
        i128::from(self.limit.capacity()) + earned + 1
    }
}

fn number(limit: Limit, wall_us: u64) -> u64 {
    wall_us / (limit.window_seconds() * 1_000_000)
}
