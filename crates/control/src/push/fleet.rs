//! Reports of pods about all their domains: the hits of each domain, and the hottest keys.
//!
//! ```text
//! pod ─▶ load_reports ─▶ what each pod of this replica said ─▶ sums ─▶ database ─▶ all replicas
//! ```
//! A report is the pod's own word, so it changes nothing but the numbers that are shown. It counts
//! only for domains that are published and that the pod may have, and its hits, names and bytes are
//! bounded. The pod with the most hits of a domain is named, so that a lie has an author. A report
//! is forgotten with its stream, and after two minutes.

use std::cmp::{Ordering, Reverse};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::time::{Clock, Time};
use ratelease_rules::excerpt;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;
use utoipa::ToSchema;

use super::in_time;
use crate::store::{HitCount, Store, StoreError, StoreResult, share};

/// Seconds of a window. A count is the sum of the present window and the one before.
const WINDOW_SECONDS: u64 = 60;

/// Maximum number of domains of one pod. The three limits of a pod's report keep all reports within
/// some 90 MB, with as many pods as there are connections.
const DOMAINS_OF_POD_MAX: usize = 64;

/// Maximum number of keys of one pod.
pub const KEYS_OF_POD_MAX: usize = 10;

/// Maximum bytes of the text of a key.
const TEXT_BYTES_MAX: usize = 160;

/// Bytes of the hash of a key: 128 bits in base 64.
const HASH_BYTES: usize = 22;

/// Maximum number of domains in the sums of a replica. The limits of the sums keep them within some
/// 2 MB.
const DOMAINS_MAX: usize = 4096;

/// Maximum number of keys in the sums of a replica.
const KEYS_MAX: usize = 2000;

/// Maximum number of keys of one domain in the sums of a replica.
const KEYS_OF_DOMAIN_MAX: usize = 20;

/// Pause after the sums were written.
const WRITE_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause without a write, even if no report came: a row that is not written is forgotten.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// The reports of the pods of this replica. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    pods: Mutex<HashMap<u64, Arc<Mutex<PodReport>>>>,
    changed: Notify,
}

/// A pod that reports, until this is dropped.
#[derive(Debug)]
pub struct FleetPod {
    fleet: Fleet,
    number: u64,
    report: Arc<Mutex<PodReport>>,
}

/// The last report of a pod, and the hits of its windows.
#[derive(Debug, Default)]
struct PodReport {
    pod: BusiestPod,
    /// The number of the present window.
    window: u64,
    /// The hits of each domain in this window and the one before.
    domains: BTreeMap<Box<str>, [HitCount; 2]>,
    /// The hottest keys, as its last report had them.
    keys: Vec<HotKey>,
}

/// A hot key of a pod.
#[derive(Debug, Clone)]
pub struct HotKey {
    domain: Box<str>,
    key: Box<str>,
    rule: Box<str>,
    values: Option<Box<str>>,
    count: HitCount,
}

/// What pods deny. A token for some domains sees these.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FleetView {
    /// Domains, that with the largest denied share first.
    domains: Vec<DomainView>,
    /// Keys, the hottest first.
    keys: Vec<KeyView>,
}

/// The hits of a domain in the last one to two minutes, as pods report them.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = FleetDomain)]
struct DomainView {
    /// Its name.
    domain: String,
    /// All hits of limits.
    hits: u64,
    /// Those that were denied.
    denied: u64,
    /// The share of these, 0 to 1.
    denied_share: f64,
    /// Those that would have been denied, but for shadow mode.
    shadow_denied: u64,
    /// How many pods had hits.
    pods: u64,
    /// The pod that had the most hits.
    busiest: BusiestPod,
}

/// The pod that had the most hits of a domain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
struct BusiestPod {
    /// The id of its node, which is its own word.
    node: String,
    /// Its address, as `/v1/pods` has it.
    peer: String,
    /// Its hits of the domain.
    hits: u64,
}

/// The hits of a key in the last one to two minutes, estimated by the pods of which it is one of the
/// ten hottest.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
struct KeyView {
    /// Its hash, as in the name of its count in Redis.
    key: String,
    /// Its domain.
    domain: String,
    /// The path of its rule.
    rule: String,
    /// Its entries, if pods show them (`HOT_KEYS_VALUES`).
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<String>,
    /// All hits.
    hits: u64,
    /// Those that were denied.
    denied: u64,
    /// How many pods report it.
    pods: u64,
}

/// The sums of the reports of several pods: hits by domain, and the hottest keys of each domain by
/// their hash.
#[derive(Default)]
struct Sums {
    domains: BTreeMap<String, DomainView>,
    keys: BTreeMap<String, BTreeMap<String, KeyView>>,
}

// === impl Fleet ===

impl Default for Fleet {
    fn default() -> Self {
        let (pods, changed) = Default::default();
        Self(Arc::new(Shared { clock: Clock::start(), pods, changed }))
    }
}

impl Fleet {
    /// Adds the pod of a node at an address.
    pub fn add(&self, node: &str, peer: &str) -> FleetPod {
        let pod = BusiestPod { node: shown(node).into(), peer: peer.to_owned(), hits: 0 };
        let report = PodReport { pod, ..PodReport::default() };
        let report = Arc::new(Mutex::new(report));
        let number = ratelease_engine::rng::next_u64();
        self.0.pods.lock().insert(number, Arc::clone(&report));
        FleetPod { fleet: self.clone(), number, report }
    }

    fn second(&self) -> u64 {
        self.0.clock.now().since(Time::default()).as_secs()
    }

    /// Sums the reports of all pods, within the bounds of a replica.
    fn sums(&self, second: u64) -> Sums {
        let pods: Vec<_> = self.0.pods.lock().values().cloned().collect();
        let mut sums = Sums::default();
        for pod in pods {
            let mut pod = pod.lock();
            pod.turn(second);
            sums.add_pod(&pod);
        }
        sums.cut();
        sums
    }
}

// === impl FleetPod ===

impl FleetPod {
    /// Takes a report: the hits since the report before, and the hottest keys.
    pub fn take<'d>(&self, domains: impl Iterator<Item = (&'d str, HitCount)>, keys: Vec<HotKey>) {
        let second = self.fleet.second();
        self.report.lock().take(domains, keys, second);
        self.fleet.0.changed.notify_one();
    }
}

impl Drop for FleetPod {
    fn drop(&mut self) {
        self.fleet.0.pods.lock().remove(&self.number);
        self.fleet.0.changed.notify_one();
    }
}

// === impl PodReport ===

impl PodReport {
    fn take<'d>(
        &mut self,
        domains: impl Iterator<Item = (&'d str, HitCount)>,
        mut keys: Vec<HotKey>,
        second: u64,
    ) {
        self.turn(second);
        for (domain, count) in domains.filter(|(_, count)| count.hits > 0) {
            if let Some([present, _]) = self.domains.get_mut(domain) {
                present.add(&count);
            } else if self.has_room_for(&count) {
                self.domains.insert(domain.into(), [count, HitCount::default()]);
            }
        }
        let mut seen = HashSet::new();
        keys.retain(|it| seen.insert((it.domain.clone(), it.key.clone())));
        keys.truncate(KEYS_OF_POD_MAX);
        self.keys = keys;
    }

    /// Whether a domain with so many hits is kept: the one with the fewest makes room for more.
    fn has_room_for(&mut self, count: &HitCount) -> bool {
        if self.domains.len() < DOMAINS_OF_POD_MAX {
            return true;
        }
        let hits_of = |[present, former]: &[HitCount; 2]| present.hits.saturating_add(former.hits);
        let of_each = self.domains.iter().map(|(domain, counts)| (hits_of(counts), domain));
        let Some((fewest, domain)) = of_each.min() else { return false };
        let makes_room = fewest < count.hits;
        if makes_room {
            let domain = domain.clone();
            self.domains.remove(&domain);
        }
        makes_room
    }

    /// Begins the window of this second.
    fn turn(&mut self, second: u64) {
        let window = second / WINDOW_SECONDS;
        let passed = window.saturating_sub(self.window);
        if passed == 0 {
            return;
        }
        self.window = window;
        self.domains.retain(|_, [present, former]| {
            *former = if passed == 1 { *present } else { HitCount::default() };
            *present = HitCount::default();
            former.hits > 0
        });
        // A pod that reports names them each time.
        if self.domains.is_empty() {
            self.keys.clear();
        }
    }
}

// === impl HotKey ===

impl HotKey {
    /// A key of a domain: its hash, the path of its rule and its entries, each on a line. `None` if
    /// it has no hash.
    pub fn read(domain: &str, text: &str, count: HitCount) -> Option<Self> {
        let mut lines = text.splitn(3, '\n');
        let key = lines.next().filter(|it| is_hash(it))?.into();
        let rule = shown(lines.next().unwrap_or_default());
        let values = lines.next().map(shown);
        Some(Self { domain: domain.into(), key, rule, values, count })
    }
}

/// Whether a text is the hash of a key, as it is written.
fn is_hash(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    text.len() == HASH_BYTES && text.bytes().all(is_digit)
}

/// A text of a pod: bounded, and without what would alter a display.
fn shown(text: &str) -> Box<str> {
    let text = excerpt(text);
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default().into()
}

// === impl FleetView ===

impl FleetView {
    /// Sums the reports of all replicas, with at most `limit` domains for which `is_seen` holds,
    /// and as many keys. A report is left out if another release wrote it and this one cannot read
    /// it.
    pub fn of_replicas(texts: &[String], is_seen: impl Fn(&str) -> bool, limit: usize) -> Self {
        let mut sums = Sums::default();
        for text in texts {
            let Self { domains, keys } = serde_json::from_str(text).unwrap_or_default();
            domains.into_iter().filter(|it| is_seen(&it.domain)).for_each(|it| sums.add(it));
            keys.into_iter().filter(|it| is_seen(&it.domain)).for_each(|it| sums.add_key(it));
        }
        let mut view = sums.view();
        let rank = |it: &DomainView| (it.denied_share, it.hits);
        view.domains.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(Ordering::Equal));
        view.domains.truncate(limit);
        view.keys.sort_by_key(|it| Reverse(it.hits));
        view.keys.truncate(limit);
        view
    }
}

// === impl Sums ===

impl Sums {
    fn add_pod(&mut self, pod: &PodReport) {
        for (domain, [present, former]) in &pod.domains {
            let mut count = *present;
            count.add(former);
            self.add(DomainView {
                domain: domain.to_string(),
                hits: count.hits,
                denied: count.denied,
                denied_share: count.denied_share().unwrap_or_default(),
                shadow_denied: count.shadow,
                pods: 1,
                busiest: BusiestPod { hits: count.hits, ..pod.pod.clone() },
            });
        }
        for HotKey { domain, key, rule, values, count } in &pod.keys {
            self.add_key(KeyView {
                key: key.to_string(),
                domain: domain.to_string(),
                rule: rule.to_string(),
                values: values.as_deref().map(str::to_owned),
                hits: count.hits,
                denied: count.denied,
                pods: 1,
            });
        }
    }

    fn add(&mut self, domain: DomainView) {
        match self.domains.entry(domain.domain.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(domain)),
            Entry::Occupied(mut entry) => entry.get_mut().add(domain),
        }
    }

    fn add_key(&mut self, key: KeyView) {
        let of_domain = self.keys.entry(key.domain.clone()).or_default();
        match of_domain.entry(key.key.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(key)),
            Entry::Occupied(mut entry) => entry.get_mut().add(key),
        }
    }

    fn view(self) -> FleetView {
        let keys = self.keys.into_values().flat_map(BTreeMap::into_values);
        FleetView { domains: self.domains.into_values().collect(), keys: keys.collect() }
    }

    /// Removes entries beyond the bounds of a replica. The bound of a domain is applied first, so
    /// that no domain takes the room of others.
    fn cut(&mut self) {
        keep_most(&mut self.domains, DOMAINS_MAX, |it| it.hits);
        for keys in self.keys.values_mut() {
            keep_most(keys, KEYS_OF_DOMAIN_MAX, |it| it.hits);
        }
        let hits_of = |keys: &BTreeMap<_, KeyView>| keys.values().map(|it| it.hits).max();
        let domains_max = KEYS_MAX / KEYS_OF_DOMAIN_MAX;
        keep_most(&mut self.keys, domains_max, |it| hits_of(it).unwrap_or_default());
    }
}

/// Keeps the `max` entries of the highest rank.
fn keep_most<V>(map: &mut BTreeMap<String, V>, max: usize, rank: impl Fn(&V) -> u64) {
    if map.len() > max {
        let mut all: Vec<_> = std::mem::take(map).into_iter().collect();
        all.sort_by_key(|(_, value)| Reverse(rank(value)));
        all.truncate(max);
        *map = all.into_iter().collect();
    }
}

// === impl DomainView ===

impl DomainView {
    fn add(&mut self, other: Self) {
        self.hits = self.hits.saturating_add(other.hits);
        self.denied = self.denied.saturating_add(other.denied);
        self.shadow_denied = self.shadow_denied.saturating_add(other.shadow_denied);
        self.denied_share = share(self.denied, self.hits).unwrap_or_default();
        self.pods = self.pods.saturating_add(other.pods);
        if other.busiest.hits > self.busiest.hits {
            self.busiest = other.busiest;
        }
    }
}

// === impl KeyView ===

impl KeyView {
    /// If pods report different texts of one key, the first text is kept.
    fn add(&mut self, other: Self) {
        self.values = self.values.take().or(other.values);
        self.hits = self.hits.saturating_add(other.hits);
        self.denied = self.denied.saturating_add(other.denied);
        self.pods = self.pods.saturating_add(other.pods);
    }
}

/// Writes the sums of the reports of this replica to the database, for all replicas. Does not
/// return.
pub async fn report_fleet(store: Store, fleet: Fleet, replica: String) {
    let mut is_away = false;
    loop {
        let _ = timeout(WRITE_INTERVAL, fleet.0.changed.notified()).await;
        match in_time(write(&store, &fleet, &replica)).await {
            Ok(()) => is_away = false,
            Err(error) if !is_away => {
                is_away = true;
                warn!("{error}: what pods deny is not shown");
            }
            Err(_) => {}
        }
        sleep(WRITE_PAUSE).await;
    }
}

async fn write(store: &Store, fleet: &Fleet, replica: &str) -> StoreResult<()> {
    let fleet = fleet.clone();
    let text =
        spawn_blocking(move || serde_json::to_string(&fleet.sums(fleet.second()).view())).await;
    let text = text.map_err(|error| StoreError::Internal(error.to_string()))?;
    let text = text.map_err(|error| StoreError::Internal(error.to_string()))?;
    store.write_fleet(replica, text).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_rules::key::Key;

    fn hits(hits: u64, denied: u64) -> HitCount {
        HitCount { hits, denied, ..HitCount::default() }
    }

    fn key(domain: &str, number: u64, count: HitCount) -> HotKey {
        let text = format!("{}\n{domain}.user", Key::for_test(number));
        HotKey::read(domain, &text, count).unwrap()
    }

    /// Has a pod report hits of a domain, and keys, at a second.
    fn report(pod: &FleetPod, domain: &str, count: HitCount, keys: Vec<HotKey>, second: u64) {
        pod.report.lock().take([(domain, count)].into_iter(), keys, second);
    }

    /// The hits of a domain at a second, and the number of keys.
    fn seen(fleet: &Fleet, second: u64) -> (u64, usize) {
        let sums = fleet.sums(second);
        let hits = sums.domains.get("shop").map_or(0, |it| it.hits);
        (hits, sums.keys.values().map(BTreeMap::len).sum())
    }

    #[test]
    fn hits_count_for_one_to_two_minutes_and_a_pod_that_is_silent_or_gone_is_forgotten() {
        let fleet = Fleet::default();
        let (one, two) = (fleet.add("one", "10.0.0.1:1"), fleet.add("two", "10.0.0.2:1"));
        report(&one, "shop", hits(10, 1), vec![key("shop", 1, hits(5, 0))], 59);
        report(&one, "shop", hits(10, 1), vec![key("shop", 1, hits(9, 0))], 61);
        report(&two, "shop", hits(100, 1), Vec::new(), 61);
        assert_eq!(seen(&fleet, 61), (120, 1));
        assert_eq!(fleet.sums(61).keys["shop"].values().next().unwrap().hits, 9);
        assert_eq!(seen(&fleet, 119), (120, 1));
        assert_eq!(seen(&fleet, 120), (110, 1));
        drop(two);
        let same = vec![key("shop", 1, hits(9, 0)), key("shop", 1, hits(9, 0))];
        report(&one, "shop", hits(0, 0), same, 120);
        let sums = fleet.sums(120);
        let key = sums.keys["shop"].values().next().unwrap();
        assert_eq!((key.hits, key.pods), (9, 1), "a key counts once");
        assert_eq!(seen(&fleet, 120), (10, 1));
        assert_eq!(seen(&fleet, 180), (0, 0));
        report(&one, "shop", hits(1, 0), Vec::new(), 181);
        assert_eq!(seen(&fleet, 600), (0, 0));
    }

    #[test]
    fn what_is_kept_of_a_pod_is_bounded() {
        let fleet = Fleet::default();
        let long = "\u{7}".repeat(1 << 20);
        let pod = fleet.add(&long, "10.0.0.1:1");
        let names: Vec<_> = (0..10 * DOMAINS_OF_POD_MAX).map(|at| format!("d{at}")).collect();
        for window in [0, 1] {
            let second = window * WINDOW_SECONDS;
            let domains = names.iter().map(|it| (&**it, hits(1, 1)));
            let text = format!("\n{long}\n{long}");
            let key = |at| HotKey::read("d1", &format!("{}{text}", Key::for_test(at)), hits(1, 1));
            let keys = (0..100).filter_map(key).collect();
            pod.report.lock().take(domains, keys, second);
        }
        let keys = pod.report.lock().keys.clone();
        report(&pod, "busy", hits(9, 1), keys, WINDOW_SECONDS);
        let report = pod.report.lock();
        assert!(report.domains.contains_key("busy"), "it has more hits than those that were there");
        assert_eq!(
            (report.domains.len(), report.keys.len()),
            (DOMAINS_OF_POD_MAX, KEYS_OF_POD_MAX)
        );
        let HotKey { rule, values, .. } = &report.keys[0];
        let texts = [&*report.pod.node, rule, values.as_deref().unwrap()];
        assert!(texts.iter().all(|it| it.len() <= TEXT_BYTES_MAX && it.starts_with("\\u{7}")));
    }

    #[test]
    fn sums_are_bounded_and_one_domain_takes_no_room_of_others() {
        let mut sums = Sums::default();
        let pod = BusiestPod { node: "n".repeat(TEXT_BYTES_MAX), ..BusiestPod::default() };
        for at in 0..2 * DOMAINS_MAX {
            let domain = format!("domain-{at:05}");
            let hits = hits(1 + at as u64, 1);
            let keys = (0..KEYS_OF_POD_MAX as u64).map(|at| key(&domain, at, hits)).collect();
            let domains = [(domain.as_str().into(), [hits, hits])].into();
            let pod = pod.clone();
            sums.add_pod(&PodReport { pod, domains, keys, ..PodReport::default() });
        }
        let loud = (0..5000).map(|at| key("loud", at, hits(1 << 40, 0))).collect();
        sums.add_pod(&PodReport { keys: loud, ..PodReport::default() });
        sums.cut();
        assert_eq!(sums.domains.len(), DOMAINS_MAX);
        assert!(sums.domains.values().all(|it| it.hits > 2 * DOMAINS_MAX as u64));
        assert_eq!((sums.keys.len(), sums.keys["loud"].len()), (100, KEYS_OF_DOMAIN_MAX));
        let view = sums.view();
        let text = serde_json::to_string(&view).unwrap();
        assert!(text.len() < 2 << 20, "{}", text.len());
        let read: FleetView = serde_json::from_str(&text).unwrap();
        // A share may differ in its last bit.
        let counts = |view: &FleetView| {
            let count = |it: &DomainView| (it.domain.clone(), it.hits, it.denied, it.pods);
            view.domains.iter().map(count).collect::<Vec<_>>()
        };
        assert_eq!((counts(&read), read.keys), (counts(&view), view.keys));
    }
}
