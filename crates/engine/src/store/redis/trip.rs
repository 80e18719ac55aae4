//! Sends one call, and handles redirects and repeats according to each reply.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::adaptive_timeout::LEAST_MAX;
use super::call::Call;
use super::connection::Connection;
use super::fault::{Fault, Kind, Next};
use super::slots::slot_of;
use super::{RedisStore, Servers};
use crate::backoff::Backoff;
use crate::store::redis::settings::Address;

/// The deadline of one call, including all redirects and repeats, is this many replies at the
/// server's known speed plus the waits between. Leases are asked for ahead, so no request waits for
/// all of this.
const REPLIES: u32 = 3;
const WAITS: Duration = Duration::from_millis(50);

/// The upper bound of that for slow servers: below what the lease client allows an ask, above the
/// longest silence.
const DEADLINE_MAX: Duration = Duration::from_secs(9);
const _: () = assert!(LEAST_MAX.as_millis() < DEADLINE_MAX.as_millis());

/// The largest number of times that one call is sent. The longest sequence without a fault takes
/// four: moved, still moving, unknown script there, script in full.
const SENDS_MAX: u32 = 7;

/// Of these, the repeats to a server that cannot serve the key just now, and the waits before them.
const REPEATS_MAX: u32 = 3;
const REPEAT_FIRST: Duration = Duration::from_millis(2);
const REPEAT_LAST: Duration = Duration::from_millis(50);

/// A call, and its next destination.
#[derive(Debug)]
pub(super) struct Trip<'a> {
    call: &'a Call<'a>,
    /// The slot of its key, computed once since it takes a checksum.
    slot: usize,
    route: Route,
    in_full: bool,
}

/// The next destination of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Route {
    Owner,
    Moved(Address),
    Asking(Address),
}

// === impl Trip ===

impl<'a> Trip<'a> {
    pub(super) fn new(call: &'a Call<'a>) -> Self {
        Self { call, slot: slot_of(call.key().as_bytes()), route: Route::Owner, in_full: false }
    }

    /// Sends the call and returns its result, which `read` makes from the reply, within the
    /// deadline.
    pub(super) async fn result<T>(
        mut self,
        store: &RedisStore,
        read: impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let result = tokio::time::timeout(self.deadline(store), self.follow(store, &read)).await;
        let result = result.unwrap_or_else(|_| {
            store.context.note_fault(Kind::TimedOut);
            store.mark_slots_stale();
            Err(Fault::timed_out())
        });
        let redirected = self.route != Route::Owner;
        result.map_err(|fault| Fault { redirected, ..fault })
    }

    /// Sends the call to its destination and follows the replies until one contains the result.
    async fn follow<T>(
        &mut self,
        store: &RedisStore,
        read: &impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut repeats = 0;
        let mut wait = Backoff::new(REPEAT_FIRST, REPEAT_LAST);
        let mut last = Fault::timed_out();
        for _ in 0..SENDS_MAX {
            last = match self.send(store, read).await {
                Ok(result) => return Ok(result),
                Err(fault) => fault,
            };
            match (last.kind.meaning().next, &last.to) {
                (Next::InFull, _) => self.in_full = true,
                (Next::There, Some(to)) if store.routes() => self.route = Route::Moved(to.clone()),
                (Next::ThereAsking, Some(to)) if store.routes() => {
                    self.route = Route::Asking(to.clone());
                }
                (Next::Again, _) if repeats < REPEATS_MAX => {
                    repeats += 1;
                    tokio::time::sleep(wait.next_wait()).await;
                    self.route = Route::Owner;
                }
                _ => break,
            }
        }
        Err(store.explained(last))
    }

    async fn send<T>(
        &self,
        store: &RedisStore,
        read: &impl Fn(&Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let read = |reply: Value| read(&reply);
        let command = if self.in_full { self.call.in_full() } else { self.call.by_name() };
        let result = match (self.connected(store).await, &self.route) {
            (Ok(connection), Route::Asking(_)) => connection.send_asking(&command, read).await,
            (Ok(connection), Route::Owner | Route::Moved(_)) => {
                connection.send(&command, read).await
            }
            (Err(fault), _) => Err(fault),
        };
        result.inspect_err(|fault| {
            if fault.kind == Kind::NotSent {
                store.context.note_fault(fault.kind);
            }
            if fault.kind.meaning().map_may_be_stale {
                store.mark_slots_stale();
            }
        })
    }

    async fn connected(&self, store: &RedisStore) -> Result<Arc<Connection>, Fault> {
        let connection =
            tokio::time::timeout(store.context.settings.timeout, self.server(store)).await;
        connection.unwrap_or_else(|_| Err(Fault::new(Kind::NotSent, "still connecting")))
    }

    async fn server(&self, store: &RedisStore) -> Result<Arc<Connection>, Fault> {
        match (&store.servers, &self.route) {
            (Servers::One(link), _) => link.first_connection().await,
            (Servers::Cluster(cluster), Route::Owner) => cluster.owner(self.slot).await,
            (Servers::Cluster(cluster), Route::Moved(to) | Route::Asking(to)) => {
                cluster.node(to).await
            }
        }
    }

    fn deadline(&self, store: &RedisStore) -> Duration {
        let reply = match &store.servers {
            Servers::One(link) => Some(link.timeout()),
            Servers::Cluster(cluster) => cluster.timeout(self.slot),
        };
        let reply = reply.unwrap_or(store.context.settings.timeout);
        (REPLIES * reply + WAITS).min(DEADLINE_MAX)
    }
}
