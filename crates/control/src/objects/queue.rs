//! Changes of objects that wait to be read: the newest change of each object. Namespaces take
//! turns. Pure.
//!
//! Reading is work that the writer of an object asks for. So the objects of a namespace take their
//! turns with those of the others. A namespace that has taken much time waits until it has a part
//! of the time again; a list is complete even while that namespace still waits. The changes that
//! wait are bounded in bytes, for each namespace and for all.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use super::object::{ApiObject, Key};

/// Time that the objects of a namespace may take at once. The largest objects take some 0.1 s.
const TAKEN_MAX: Duration = Duration::from_secs(1);

/// The share of time that a namespace has after [`TAKEN_MAX`]: one part of this many.
const PARTS: u32 = 5;

/// Maximum bytes of all changes that wait.
const BYTES_MAX: usize = 128 << 20;

/// Maximum bytes of the waiting changes of one namespace: twice the bytes that its rules may have,
/// so that only objects that are refused in any case find no room.
const BYTES_OF_NAMESPACE_MAX: usize = BYTES_MAX / 4;

/// A change of an object.
#[derive(Debug)]
pub enum Change {
    /// The object is new, or has changed.
    Object(Box<ApiObject>),
    Removed,
}

/// The changes that wait to be read.
#[derive(Default)]
pub struct Queue {
    namespaces: HashMap<String, Waiting>,
    /// Namespaces with a change that waits, the next one first.
    turns: VecDeque<String>,
    /// Namespaces that may take any time.
    free: BTreeSet<String>,
    taken: HashMap<String, Taken>,
    bytes: usize,
    list: List,
}

/// Whether a list of all objects is under way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Begun,
    /// The whole list has arrived, and some of it is not read yet.
    Received,
}

/// The waiting changes of a namespace.
#[derive(Default)]
struct Waiting {
    /// By the names of the objects.
    newest: BTreeMap<String, Newest>,
    /// The names in the order in which they came.
    order: VecDeque<String>,
    bytes: usize,
    /// Number of the changes that a list has.
    listed: usize,
}

struct Newest {
    change: Change,
    bytes: usize,
    is_listed: bool,
}

/// Time that a namespace has taken, as of a time.
struct Taken {
    time: Duration,
    at: Duration,
}

// === impl Taken ===

impl Taken {
    /// The time that still counts against the namespace: some of it is forgiven as time passes.
    fn now(&self, now: Duration) -> Duration {
        self.time.saturating_sub(now.saturating_sub(self.at) / PARTS)
    }
}

// === impl Queue ===

impl Queue {
    /// An empty queue. Namespaces that are `free` may take any time.
    pub fn new(free: BTreeSet<String>) -> Self {
        Self { free, ..Self::default() }
    }

    /// Forgets what waits: a list of all begins, which has it too.
    pub fn begin_list(&mut self) {
        self.namespaces.clear();
        self.turns.clear();
        self.bytes = 0;
        self.list = List::Begun;
    }

    /// Notes that all of the list is here.
    pub fn end_list(&mut self) {
        self.list = List::Received;
    }

    /// Whether the list is complete, which is said once: all of it is here and was read, but for
    /// namespaces that have to wait.
    pub fn completes_list(&mut self, now: Duration) -> bool {
        let is_complete = self.has_complete_list(now);
        if is_complete {
            self.list = List::None;
        }
        is_complete
    }

    fn has_complete_list(&self, now: Duration) -> bool {
        let is_read =
            |(name, of): (&String, &Waiting)| of.listed == 0 || self.has_to_wait(name, now);
        self.list == List::Received && self.namespaces.iter().all(is_read)
    }

    /// Whether objects of the last list that was complete were not read yet.
    pub fn lacks_some_of(&self, namespace: &str) -> bool {
        self.list == List::None && self.namespaces.get(namespace).is_some_and(|it| it.listed > 0)
    }

    /// Whether there is something to do now.
    pub fn is_ready(&self, now: Duration) -> bool {
        self.has_complete_list(now) || self.turns.iter().any(|it| !self.has_to_wait(it, now))
    }

    /// Whether much waits, so that something is to be read before more is received.
    pub fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX / 2
    }

    /// Adds a change, in place of an earlier change of the same object. Returns an object whose
    /// change found no room and is lost, if there is one.
    pub fn add(&mut self, key: Key, change: Change) -> Option<Key> {
        let Key { namespace, name } = key;
        let bytes = name.len() + size_of::<Newest>() + change.bytes();
        let of = self.namespaces.entry(namespace.clone()).or_default();
        if of.newest.is_empty() {
            self.turns.push_back(namespace.clone());
        }
        let former = of.newest.get(&name);
        let is_listed = self.list == List::Begun || former.is_some_and(|it| it.is_listed);
        of.listed += usize::from(is_listed && former.is_none_or(|it| !it.is_listed));
        of.bytes += bytes;
        self.bytes += bytes;
        match of.newest.insert(name.clone(), Newest { change, bytes, is_listed }) {
            Some(former) => {
                of.bytes -= former.bytes;
                self.bytes -= former.bytes;
            }
            None => of.order.push_back(name),
        }
        if of.bytes > BYTES_OF_NAMESPACE_MAX {
            return self.drop_last(&namespace);
        }
        let most = self.namespaces.iter().filter(|_| self.bytes > BYTES_MAX);
        let most = most.max_by_key(|it| it.1.bytes).map(|it| it.0.clone())?;
        self.drop_last(&most)
    }

    fn drop_last(&mut self, namespace: &str) -> Option<Key> {
        let name = self.namespaces.get_mut(namespace)?.order.pop_back()?;
        self.take(namespace, name).map(|it| it.0)
    }

    /// The change that is to be read now, of the namespace whose turn it is. The flag is true if
    /// its namespace lacked some changes before, and [lacks none](Self::lacks_some_of) from then
    /// on.
    pub fn next(&mut self, now: Duration) -> Option<(Key, Change, bool)> {
        let at = self.turns.iter().position(|it| !self.has_to_wait(it, now))?;
        // Namespaces that have to wait keep their places, and are asked first the next time.
        let namespace = self.turns.remove(at)?;
        let name = self.namespaces.get_mut(&namespace)?.order.pop_front()?;
        self.turns.push_back(namespace.clone());
        let lacked = self.lacks_some_of(&namespace);
        let (key, change) = self.take(&namespace, name)?;
        Some((key, change, lacked && !self.lacks_some_of(&namespace)))
    }

    /// Takes out what waits of an object, whose name is not in the order any more.
    fn take(&mut self, namespace: &str, name: String) -> Option<(Key, Change)> {
        let of = self.namespaces.get_mut(namespace)?;
        let Newest { change, bytes, is_listed } = of.newest.remove(&name)?;
        of.listed -= usize::from(is_listed);
        of.bytes -= bytes;
        self.bytes -= bytes;
        if of.newest.is_empty() {
            self.namespaces.remove(namespace);
            self.turns.retain(|it| it != namespace);
        }
        Some((Key { namespace: namespace.to_owned(), name }, change))
    }

    /// Notes that the objects of a namespace took so much time.
    pub fn charge(&mut self, namespace: &str, time: Duration, now: Duration) {
        if self.free.contains(namespace) {
            return;
        }
        let before = self.taken.get(namespace).map_or(Duration::ZERO, |it| it.now(now));
        self.taken.insert(namespace.to_owned(), Taken { time: before + time, at: now });
    }

    /// Forgets namespaces whose time counts no more.
    pub fn age(&mut self, now: Duration) {
        self.taken.retain(|_, it| !it.now(now).is_zero());
    }

    fn has_to_wait(&self, namespace: &str, now: Duration) -> bool {
        self.taken.get(namespace).is_some_and(|it| it.now(now) >= TAKEN_MAX)
    }
}

// === impl Change ===

impl Change {
    fn bytes(&self) -> usize {
        match self {
            Self::Object(object) => object.bytes(),
            Self::Removed => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn key(key: &str) -> Key {
        let (namespace, name) = key.split_once('/').unwrap();
        Key { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn object(bytes: usize) -> Change {
        let text = format!(
            "{{\"metadata\": {{\"generation\": {bytes}}}, \"spec\": \"{}\"}}",
            "x".repeat(bytes)
        );
        Change::Object(Box::new(serde_json::from_str(&text).unwrap()))
    }

    fn add(queue: &mut Queue, keys: &[&str]) {
        for it in keys {
            assert_eq!(queue.add(key(it), object(1)), None);
        }
    }

    /// The objects in the order in which they are read.
    fn read(queue: &mut Queue, now: Duration) -> Vec<String> {
        std::iter::from_fn(|| queue.next(now).map(|it| it.0.to_string())).collect()
    }

    #[test]
    fn namespaces_take_turns_and_each_object_has_its_newest_change() {
        let mut queue = Queue::default();
        add(&mut queue, &["a/1", "a/2", "a/3", "b/1", "a/1", "c/1", "c/2"]);
        assert!(queue.add(key("a/2"), Change::Removed).is_none());
        let (first, change, _) = queue.next(NOW).unwrap();
        assert!(first == key("a/1") && matches!(change, Change::Object(_)));
        assert_eq!(read(&mut queue, NOW), ["b/1", "c/1", "a/2", "c/2", "a/3"]);
        assert!(!queue.is_ready(NOW) && queue.bytes == 0 && queue.namespaces.is_empty());
    }

    #[test]
    fn a_namespace_that_took_much_time_waits_and_others_do_not() {
        let mut queue = Queue::new(BTreeSet::from(["free".to_owned()]));
        add(&mut queue, &["a/1", "b/1", "free/1"]);
        for namespace in ["a", "free"] {
            queue.charge(namespace, TAKEN_MAX, NOW);
        }
        assert_eq!(read(&mut queue, NOW), ["b/1", "free/1"]);
        let later = PARTS * Duration::from_millis(100);
        assert!(!queue.is_ready(NOW) && queue.is_ready(later));
        assert_eq!(read(&mut queue, later), ["a/1"]);
        queue.age(PARTS * TAKEN_MAX);
        assert!(queue.taken.is_empty());
    }

    #[test]
    fn a_list_is_complete_without_what_has_to_wait() {
        let mut queue = Queue::default();
        add(&mut queue, &["old/1"]);
        queue.begin_list();
        add(&mut queue, &["a/1", "a/2", "b/1"]);
        assert!(!queue.completes_list(NOW), "there is more to come");
        queue.end_list();
        add(&mut queue, &["a/1", "c/1"]);
        queue.charge("b", TAKEN_MAX, NOW);
        assert_eq!(queue.next(NOW).unwrap().0, key("a/1"));
        assert!(!queue.completes_list(NOW), "a/2 was not read");
        assert_eq!(queue.next(NOW).unwrap().0, key("c/1"));
        assert_eq!(queue.next(NOW).unwrap().0, key("a/2"));
        assert!(!queue.lacks_some_of("b"), "the objects of before are complete");
        assert!(queue.is_ready(NOW) && queue.completes_list(NOW) && !queue.completes_list(NOW));
        assert!(queue.lacks_some_of("b") && !queue.lacks_some_of("a"));
        let (last, _, completes) = queue.next(PARTS * TAKEN_MAX).unwrap();
        assert!(last == key("b/1") && completes && !queue.lacks_some_of("b"));
    }

    #[test]
    fn what_waits_is_bounded_for_each_namespace_and_for_all() {
        let mut queue = Queue::default();
        let part = BYTES_OF_NAMESPACE_MAX / 4;
        for at in 0..3 {
            assert_eq!(queue.add(key(&format!("a/{at}")), object(part)), None);
        }
        assert_eq!(queue.add(key("a/3"), object(part)), Some(key("a/3")));
        assert_eq!(queue.add(key("a/0"), object(part)), None, "it takes the place of another one");
        for namespace in ["b", "c", "d", "e", "f"] {
            for at in 0..3 {
                let lost = queue.add(key(&format!("{namespace}/{at}")), object(part));
                assert!(lost.is_none() || queue.bytes > BYTES_MAX - 2 * part, "{lost:?}");
            }
        }
        assert!(queue.bytes <= BYTES_MAX && queue.is_full());
    }
}
