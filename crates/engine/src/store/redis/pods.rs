//! Records of pods, for the tools of operators: each pod writes one, `rl:pod:<its number>`, and
//! tools read the records of the pods whose heartbeats are in `rl:pods`.

use std::time::Duration;

use redis::Value;
use tokio::sync::watch;

use super::fault::Fault;
use super::{Call, RedisStore, Trip, millis, text};
use crate::algorithm::Script;
use crate::algorithm::concurrency::{Holder, holders};
use crate::order::{Follow, Place};
use crate::pod::PodRecord;
use crate::store::{Ask, PODS_MAX, StoreError};
use crate::time::Time;

/// The numbers of live pods; `beat.lua` describes the key.
static LIVE: Script = Script::new(
    "local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return redis.call('ZRANGE', KEYS[1], '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[1])",
);

static WRITE: Script = Script::new("return redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])");
/// A record, and the milliseconds that are left of it. One is at most 4.4 kB. Another program's
/// list or hash is no record.
static READ: Script = Script::new(
    "local record = redis.pcall('GET', KEYS[1])
if type(record) ~= 'string' then record = false end
return { record and record:sub(1, 8192), redis.call('PTTL', KEYS[1]) }",
);

/// The state of a count of slots, which is at most 26 kB.
static STATE: Script = Script::new(
    "local state = redis.call('GET', KEYS[1])
return state and state:sub(1, 32768)",
);

/// How often a pod writes its record again if it has not changed.
const WRITTEN_EVERY: Duration = Duration::from_secs(10);

/// How long a record lasts: two writes may be lost.
const LASTS: Duration = Duration::from_secs(35);

// === impl RedisStore ===

impl RedisStore {
    /// Writes the record of `follow`, with the last order that it has heard: when that changes, at
    /// most 2 s later, and every 10 s. Never returns; does nothing for a tool.
    pub(super) async fn register(
        &self,
        follow: Follow<'_>,
        mut followed: watch::Receiver<Option<Place>>,
    ) {
        let mut written = None;
        loop {
            let last = *followed.borrow_and_update();
            if let Some(record) = follow.record().map(|it| PodRecord { followed: last, ..it }) {
                self.write_if_due(&record, &mut written).await;
            }
            // After each look at the stream; while there is none, as often as a record is written.
            let _ = tokio::time::timeout(WRITTEN_EVERY, followed.changed()).await;
        }
    }

    async fn write_if_due(&self, record: &PodRecord, written: &mut Option<(PodRecord, Time)>) {
        // How long slots are held is another number each time.
        let mut slots: Vec<_> =
            record.slots.iter().map(|(key, _)| (*key, Duration::ZERO)).collect();
        slots.sort_unstable();
        let essence = PodRecord { slots, ..record.clone() };
        let now = self.context.clock.now();
        let is_due = |(before, at): &(PodRecord, Time)| {
            *before != essence || now.since(*at) >= WRITTEN_EVERY
        };
        if !written.as_ref().is_none_or(is_due) {
            return;
        }
        let text = Some(record.text().into_bytes());
        let arguments = vec![millis(LASTS)];
        let call = Call { text, ..Call::new(&WRITE, self.pod_key(record.number), arguments) };
        // If the store is away, the next look writes it; no request waits for this.
        let done = Trip::new(&call).result(self, |_| Ok(())).await;
        *written = done.is_ok().then_some((essence, now));
    }

    fn pod_key(&self, number: u64) -> String {
        format!("{}rl:pod:{number}", self.key_prefix)
    }

    /// The numbers of the pods whose heartbeats have not lapsed.
    pub(super) async fn live_pods(&self) -> Result<Vec<u64>, StoreError> {
        let key = format!("{}rl:pods", self.key_prefix);
        let call = Call { is_long: true, ..Call::new(&LIVE, key, vec![PODS_MAX as u64]) };
        let read = |reply: &Value| {
            let Value::Array(pods) = reply else { return Err(Fault::malformed(reply)) };
            // Others are no pods.
            Ok(pods.iter().filter_map(|pod| text(pod)?.parse().ok()).collect())
        };
        Ok(Trip::new(&call).result(self, read).await?)
    }

    /// The record of the pod of this number; `None` if there is none, or not one that can be read.
    /// The times of its slots are as of now.
    pub(super) async fn record_of(&self, number: u64) -> Result<Option<PodRecord>, StoreError> {
        let call = Call::new(&READ, self.pod_key(number), Vec::new());
        let read = |reply: &Value| {
            let Value::Array(parts) = reply else { return Err(Fault::malformed(reply)) };
            let [record, Value::Int(left_ms)] = parts.as_slice() else {
                return Err(Fault::malformed(reply));
            };
            let left = Duration::from_millis(u64::try_from(*left_ms).unwrap_or_default());
            Ok(text(record).map(|record| (record.to_owned(), LASTS.saturating_sub(left))))
        };
        let read = Trip::new(&call).result(self, read).await?;
        Ok(read.and_then(|(text, age)| {
            let mut record = PodRecord::parse(number, &text)?;
            record.slots.iter_mut().for_each(|(_, has)| *has = has.saturating_add(age));
            Some(record)
        }))
    }

    /// The pods that hold slots of the count of `ask`, under its own name.
    pub(super) async fn slots_of(&self, ask: &Ask) -> Result<Vec<Holder>, StoreError> {
        let name = ask.counter().in_store(&self.key_prefix);
        let call = Call { is_long: true, ..Call::new(&STATE, name, Vec::new()) };
        let read = |reply: &Value| match reply {
            Value::Nil => Ok(Vec::new()),
            Value::BulkString(state) => holders(state).ok_or_else(|| Fault::malformed(reply)),
            _ => Err(Fault::malformed(reply)),
        };
        Ok(Trip::new(&call).result(self, read).await?)
    }
}
