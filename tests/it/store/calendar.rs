//! Windows of a calendar, on a Redis whose clock the test sets: script and arithmetic agree.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratelease_engine::algorithm::{State, step};
use ratelease_engine::store::redis::{RedisKind, RedisSettings, RedisStore};
use ratelease_engine::store::{Ask, Return};
use ratelease_rules::key::Key;
use ratelease_rules::request::Entry;
use ratelease_rules::{Allowance, Limit, Lookup, Options, Source, load};

use super::model::time_of;
use super::{connected, exchange, fresh_key, patient};
use crate::support::faketime::FakeClock;
use crate::support::redis::tcp;
use crate::support::redis_server::Server;
use crate::support::rng::Rng;

/// A limit of 50 in each window of this unit.
fn limit(unit: &str) -> Limit {
    let text = format!(
        "domain: d\ndescriptors: [{{key: k, rate_limit: {{requests_per_unit: 50, unit: {unit}}}}}]"
    );
    let source = Source { name: "a.yaml".into(), text: text.into() };
    let rules = load(&[source], Options::default()).unwrap().rules;
    match rules.find("d", &[Entry { key: "k", value: "v" }]) {
        Lookup::Rule(rule) => match rule.allowance {
            Allowance::Limited(limit) => limit,
            Allowance::Unlimited => panic!("unlimited"),
        },
        _ => panic!("no rule"),
    }
}

/// In each of these windows, and some edges of theirs: of months, leap days, and the changes of
/// summer time of each zone.
const LIMITS: [&str; 8] = [
    "calendar_day, time_zone: Europe/Zurich",
    "calendar_day, time_zone: Europe/Zurich, anchor: {time: '02:30'}",
    "calendar_day, time_zone: America/New_York, anchor: {time: '02:30'}",
    "calendar_day, time_zone: Australia/Lord_Howe, anchor: {time: '01:45'}",
    "calendar_week, time_zone: Europe/Zurich, anchor: {weekday: sunday, time: '02:30'}",
    "calendar_month, time_zone: Europe/Zurich",
    "calendar_month, anchor: {day: 31}",
    "calendar_year, anchor: {month: 2, day: 29}",
];
const EDGES: [u64; 9] = [
    1_801_436_400, // 2027-01-31T23:00:00Z
    1_803_855_600, // 2027-02-28T23:00:00Z
    1_805_007_600, // 2027-03-14T07:00:00Z, in America/New_York 02:00 and 03:00
    1_806_195_600, // 2027-03-28T01:00:00Z, in Europe/Zurich 02:00 and 03:00
    1_806_271_200, // 2027-03-28T22:00:00Z
    1_806_763_500, // 2027-04-03T14:45:00Z, in Australia/Lord_Howe the first 01:45
    1_824_942_600, // 2027-10-31T00:30:00Z, in Europe/Zurich the first 02:30
    1_830_294_000, // 2027-12-31T23:00:00Z
    1_835_395_200, // 2028-02-29T00:00:00Z
];
/// The clock is set so long before an edge.
const BEFORE: Duration = Duration::from_millis(150);
const ROUNDS: usize = 12;
const PAUSE: Duration = Duration::from_millis(25);

struct Count {
    key: Key,
    limit: Limit,
    carry_debt: bool,
    state: Option<State>,
    epoch: u64,
}

fn unix_now() -> Duration {
    #[allow(clippy::disallowed_methods)] // the time that the false clock is ahead of
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

async fn on_a_false_clock(clock: &FakeClock) -> (Server, std::sync::Arc<RedisStore>) {
    let server = Server::start_with_env(&[], &clock.env());
    let settings = RedisSettings::new(RedisKind::Single, vec![tcp(server.port())]);
    let store = connected(patient(settings)).await;
    (server, store)
}

/// How many scripts the server has run.
fn trips(server: &Server) -> usize {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let (_, rest) = stats.split_once(&format!("cmdstat_{name}:calls="))?;
        rest.split_once(',')?.0.parse::<usize>().ok()
    };
    calls("evalsha").unwrap_or(0) + calls("eval").unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_counts_by_the_calendar_as_the_arithmetic_does() {
    let clock = FakeClock::new();
    let (_server, store) = on_a_false_clock(&clock).await;
    let mut rng = Rng::new();
    let count = |carry_debt| {
        let of = move |unit| {
            let (key, limit) = (fresh_key(), limit(unit));
            Count { key, limit, carry_debt, state: None, epoch: 0 }
        };
        LIMITS.map(of)
    };
    let mut counts: Vec<_> = [false, true].into_iter().flat_map(count).collect();
    let mut crossed = [0; LIMITS.len()];
    for edge in EDGES {
        clock.set((Duration::from_secs(edge) - BEFORE).as_secs_f64() - unix_now().as_secs_f64());
        for _ in 0..ROUNDS {
            let asks: Vec<_> = counts.iter().map(|count| count.ask(&mut rng)).collect();
            let replies = exchange(&*store, &asks).await;
            let pairs = asks.iter().zip(replies).zip(&mut counts).enumerate();
            for (at, ((ask, reply), count)) in pairs {
                let grant = reply.unwrap_or_else(|error| panic!("{ask:?}: {error}"));
                let before = count.state.clone();
                let (after, expected) = step(count.state.take(), time_of(&grant, ask), ask);
                assert_eq!(grant, expected, "{ask:?} on {before:?}");
                let window = grant.epoch - u64::from(ask.next_window);
                let is_next = count.epoch + 1 == window;
                crossed[at % LIMITS.len()] += usize::from(is_next);
                (count.state, count.epoch) = (Some(after), window);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    assert!(crossed.iter().all(|windows| *windows > 0), "{crossed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ask_takes_a_second_trip_only_where_the_pod_does_not_know_the_time() {
    let clock = FakeClock::new();
    let (server, store) = on_a_false_clock(&clock).await;
    let ask = Ask { want: 1, need: 1, ..Ask::look(fresh_key(), limit(LIMITS[0])) };
    let mut taken = trips(&server);
    // The first ask, and one after the clock has stepped by three days.
    for (days, own_trips) in [(0.0, [2, 1, 1]), (3.0, [2, 1, 1]), (4.0, [1, 1, 1])] {
        clock.set(days * 86_400.0);
        for (nth, of_this) in own_trips.into_iter().enumerate() {
            let grant = exchange(&*store, &[ask]).await.remove(0).unwrap();
            let now = trips(&server);
            assert_eq!(now - taken, of_this, "ask {nth} after {days} days");
            assert_eq!((grant.tokens, grant.left), (1, 49 - nth as u64), "applied once");
            taken = now;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_of_the_calendar_expires_after_its_window() {
    let clock = FakeClock::new();
    clock.set(EDGES[0] as f64 + 3_600.0 - unix_now().as_secs_f64());
    let (server, store) = on_a_false_clock(&clock).await;
    let february = limit(LIMITS[5]);
    for (next_window, ends) in [(false, EDGES[1]), (true, 1_806_530_400)] {
        let look = Ask::look(fresh_key(), february);
        let ask = Ask { want: 1, need: 1, next_window, ..look };
        exchange(&*store, &[ask]).await.remove(0).unwrap();
        let expires: u64 = server.command(&["EXPIRETIME", &ask.key.in_store("")]);
        assert_eq!(expires, ends + 1, "next window: {next_window}");
    }
}

impl Count {
    fn ask(&self, rng: &mut Rng) -> Ask {
        let back = match rng.below(4) {
            0 => Some(None),
            1 => Some(Some(self.epoch)),
            2 => Some(Some(self.epoch + 1)),
            _ => None,
        };
        Ask {
            want: rng.below(20),
            need: rng.below(20),
            owed: if rng.below(6) == 0 { rng.below(90) } else { 0 },
            charge_denied: rng.below(4) == 0,
            carry_debt: self.carry_debt,
            next_window: rng.below(3) == 0,
            back: back.map(|epoch| Return { tokens: rng.below(9), epoch }),
            ..Ask::look(self.key, self.limit)
        }
    }
}
