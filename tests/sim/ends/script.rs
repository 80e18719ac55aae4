//! The script of one run: its requests, the course of each, and the failures meanwhile. All of it
//! follows from the seed, and each item stands for itself, so that any of them can be left out.

use crate::rng::Rng;

/// Pods, each in a place of its own.
pub const PLACES: usize = 2;

/// Envoys: two ask each pod.
pub const ENVOYS: usize = 2 * PLACES;

/// The longest that a request runs.
const RUNS_MAX_MS: u64 = 6_000;

#[derive(Debug, Clone)]
pub struct Script {
    pub seed: u64,
    pub terms: Terms,
    /// In the order of their times.
    pub items: Vec<Item>,
    /// When nothing comes any more.
    pub span_ms: u64,
}

/// The rules, and the other terms that last for the whole run.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub slots: u64,
    pub tokens: u64,
    /// The time of holds (`for`).
    pub lasts_ms: u64,
    /// Whether a hold of tokens that nothing settles comes back.
    pub releases: bool,
    pub slots_mode: &'static str,
    pub tokens_mode: &'static str,
    /// How often an Envoy logs that a request runs; `None` if the Envoys send no log.
    pub signs_ms: Option<u64>,
    /// Whether candidate rules are tried on each request.
    pub tries: bool,
}

#[derive(Debug, Clone)]
pub struct Item {
    /// The item's number in the drawn script. The item keeps it when others are left out.
    pub nth: u64,
    pub at_ms: u64,
    pub event: Event,
}

// === impl Item ===

impl Item {
    fn new(at_ms: u64, event: Event) -> Self {
        Self { nth: 0, at_ms, event }
    }
}

#[derive(Debug, Clone)]
pub enum Event {
    /// A request arrives at an Envoy.
    Request(RequestPlan),
    /// The links of one place to Redis, or of all places, have trouble.
    Trouble { place: Option<usize>, trouble: Trouble, lasts_ms: u64 },
    /// Redis fails over to a replica that lacks the last writes.
    FailOver { lost_ms: u64 },
    /// All connections of an Envoy are closed, by it or by its pod, and made again later, or when
    /// the Envoy needs one.
    CloseConnections { envoy: usize, by_client: bool, back_ms: u64 },
    /// One connection of an Envoy is closed, by the Envoy or by its pod.
    CloseOne { envoy: usize, by_client: bool },
    /// An Envoy is gone, and another one takes its place later.
    KillEnvoy { envoy: usize, back_ms: u64 },
    /// A pod is gone, and another one takes its place later.
    KillPod { place: usize, back_ms: u64 },
    /// Nothing of a pod runs for this long. Afterwards it reads its sockets first, or its timers.
    Freeze { place: usize, lasts_ms: u64, reads_first: bool },
    /// The rules change, at each place within this time.
    Rules { slots: SlotsRule, tokens: TokensRule, within_ms: u64 },
    /// An operator resets a key.
    Reset { of_slots: bool },
    /// An operator blocks a key for a while.
    Block { of_slots: bool, lasts_ms: u64 },
    /// Pods that start from now on have a new secret.
    ReplaceSecret,
}

/// The trouble of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Each way takes up to this many milliseconds longer.
    Slow { ms: u64 },
    /// Redis cannot be reached.
    Away,
    /// Asks are lost.
    Hangs,
    /// Asks are taken, and their replies are lost.
    Deaf,
    /// Asks are taken after the link has given them up, and perhaps after later ones.
    Late,
    /// Each ask has one of these troubles, or none.
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SlotsRule {
    #[default]
    Present,
    Raised,
    Lowered,
    Absent,
    /// A fixed window.
    OtherAlgorithm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum TokensRule {
    #[default]
    Present,
    Raised,
    Absent,
    /// Without `hold`.
    Unheld,
    OtherWindow,
}

// === impl SlotsRule ===

impl SlotsRule {
    /// Whether the model watches the rule's count.
    pub fn is_watched(self) -> bool {
        !matches!(self, Self::Absent | Self::OtherAlgorithm)
    }
}

// === impl TokensRule ===

impl TokensRule {
    /// Whether the model watches the rule's count.
    pub fn is_watched(self) -> bool {
        matches!(self, Self::Present | Self::Raised)
    }

    /// Whether requests hold the tokens that they take.
    pub fn holds(self) -> bool {
        !matches!(self, Self::Absent | Self::Unheld)
    }
}

/// How a request goes, once it is at its Envoy.
#[derive(Debug, Clone)]
pub struct RequestPlan {
    pub envoy: usize,
    /// The id of the request. A client that chooses ids gives several requests the same id.
    pub id: u64,
    /// `true`: other requests have, or had, this id.
    pub is_shared: bool,
    pub slots: u64,
    pub tokens: u64,
    /// The stream of its start is reset this long after it was opened; at 0 with it.
    pub reset_ms: Option<u64>,
    /// Whether the request runs although its start was reset, or failed.
    pub runs_on: bool,
    /// How long its Envoy takes to read the answer.
    pub read_ms: u64,
    pub runs_ms: u64,
    pub ends: Vec<EndPlan>,
    /// The cost of the request.
    pub cost: u64,
    /// `true`: the entry of the log states the cost.
    pub log_knows_cost: bool,
    /// The call of a second filter, which asks once the first one has let the request pass.
    pub second: Option<Second>,
}

/// A call of a second filter of the same Envoy, with the same id and another descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Second {
    pub tokens: u64,
    pub reset_ms: Option<u64>,
    pub read_ms: u64,
    pub runs_on: bool,
}

// === impl RequestPlan ===

impl RequestPlan {
    /// The second filter's call for the request, if there is a second filter. One entry of the log
    /// ends both calls; the end by a call of the second filter ends one.
    pub fn of_second(&self) -> Option<Self> {
        let Second { tokens, reset_ms, read_ms, runs_on } = self.second?;
        let ends = self.ends.iter().filter(|end| end.by == By::Call).copied().collect();
        let plan = Self { slots: 0, tokens, reset_ms, read_ms, runs_on, ends, ..self.clone() };
        Some(Self { second: None, ..plan })
    }
}

#[derive(Debug, Clone, Copy)]
pub struct EndPlan {
    pub by: By,
    pub when: When,
    /// `true`: the end is sent to the pod of another place.
    pub is_elsewhere: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Call,
    Log,
}

/// When an end is sent.
#[derive(Debug, Clone, Copy)]
pub enum When {
    BeforeStart(u64),
    AfterStart(u64),
    AfterEnd(u64),
}

/// Frequencies of the events of a run.
struct Mood {
    resets: u64,
    unread: u64,
    lost: u64,
    early: u64,
    twice: u64,
    both: u64,
    elsewhere: u64,
    shared: u64,
    /// Whether ends under ids that clients choose come by the log.
    shares_logs: bool,
    redirects: u64,
    seconds: u64,
}

// === impl Script ===

impl Script {
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed, &[20]);
        let rng = &mut rng;
        let is_calm = rng.percent(15);
        let span_ms = rng.within(15_000..45_000);
        let terms = Terms::draw(rng, is_calm);
        let mood = Mood::draw(rng, is_calm);
        let mut items = mood.requests(rng, span_ms, &terms);
        if !is_calm {
            draw_troubles(rng, span_ms, &mut items);
            draw_closings(rng, span_ms, &mut items);
            draw_deaths(rng, span_ms, &mut items);
            draw_orders(rng, span_ms, &mut items);
            draw_resets(rng, &mut items);
        }
        items.sort_by_key(|item| item.at_ms);
        items.iter_mut().zip(0..).for_each(|(item, nth)| item.nth = nth);
        Self { seed, terms, items, span_ms }
    }

    /// Whether nothing fails, and no order changes anything.
    pub fn is_calm(&self) -> bool {
        self.items.iter().all(|item| matches!(item.event, Event::Request(_)))
    }
}

// === impl Terms ===

impl Terms {
    fn draw(rng: &mut Rng, is_calm: bool) -> Self {
        let modes = ["deny", "error", "local", "allow"];
        let mode = |rng: &mut Rng| if is_calm { "error" } else { rng.pick(&modes) };
        Self {
            slots: rng.within(1..9),
            tokens: rng.pick(&[300, 100_000, 100_000, 100_000]),
            lasts_ms: rng.pick(&[4_000, 8_000, 20_000, 60_000]),
            releases: rng.percent(50),
            slots_mode: mode(rng),
            tokens_mode: mode(rng),
            signs_ms: rng.percent(60).then(|| rng.pick(&[1_000, 2_000])),
            tries: rng.percent(30),
        }
    }
}

// === impl Mood ===

impl Mood {
    fn draw(rng: &mut Rng, is_calm: bool) -> Self {
        let mut some =
            |percent: u64| if is_calm || rng.percent(50) { 0 } else { 1 + rng.below(percent) };
        Self {
            resets: some(30),
            unread: some(20),
            lost: some(25),
            early: some(15),
            twice: some(20),
            both: some(40),
            elsewhere: some(15),
            shared: some(30),
            shares_logs: some(2) == 1,
            redirects: some(15),
            seconds: some(40),
        }
    }

    fn requests(&self, rng: &mut Rng, span_ms: u64, terms: &Terms) -> Vec<Item> {
        let mut items = Vec::new();
        let mut id = 0;
        let mut at_ms = 10;
        let pace = rng.pick(&[40, 100, 250]);
        while at_ms < span_ms {
            // Bursts, now and then.
            for _ in 0..if rng.percent(5) { rng.within(2..12) } else { 1 } {
                id += 1;
                let plan = self.request(rng, id, terms);
                let again = at_ms + plan.read_ms + plan.runs_ms + rng.below(40);
                items.push(Item::new(at_ms, Event::Request(plan.clone())));
                if plan.is_shared && plan.id == id {
                    let plan = RequestPlan { ends: self.end(rng, terms, true), ..plan };
                    items.push(Item::new(again, Event::Request(plan)));
                }
            }
            at_ms += rng.below(2 * pace);
        }
        items
    }

    fn request(&self, rng: &mut Rng, id: u64, terms: &Terms) -> RequestPlan {
        let plan = self.first(rng, id, terms);
        if plan.is_shared || plan.tokens > 0 || !rng.percent(self.seconds) {
            return plan;
        }
        let second = Second {
            tokens: rng.within(1..60),
            reset_ms: rng.percent(self.resets).then(|| rng.below(12)),
            read_ms: rng.below(3),
            runs_on: rng.percent(30),
        };
        let comes_after = |end: &EndPlan| matches!(end.when, When::AfterEnd(_));
        let ends = plan.ends.iter().filter(|end| comes_after(end)).copied().collect();
        RequestPlan { second: Some(second), ends, ..plan }
    }

    fn first(&self, rng: &mut Rng, id: u64, terms: &Terms) -> RequestPlan {
        let is_chosen = rng.percent(self.shared);
        let is_redirected = !is_chosen && rng.percent(self.redirects);
        let is_shared = is_chosen || is_redirected;
        let (slots, tokens) = match rng.below(10) {
            0..5 => (if rng.percent(20) { 2 } else { 1 }, 0),
            5..8 => (0, rng.within(1..60)),
            _ => (1, rng.within(1..60)),
        };
        let reset_ms = rng.percent(self.resets).then(|| rng.below(12));
        let runs_ms = match rng.below(4) {
            0 => rng.below(20),
            1 => rng.below(RUNS_MAX_MS),
            _ => rng.below(1_500),
        };
        RequestPlan {
            envoy: rng.index(ENVOYS),
            id: if is_chosen { 1_000_000 + rng.below(3) } else { id },
            is_shared,
            slots: if is_shared { slots.min(1) } else { slots },
            tokens: if is_shared && tokens > 0 { 10 } else { tokens },
            reset_ms,
            runs_on: rng.percent(30),
            read_ms: if rng.percent(self.unread) { rng.below(30) } else { rng.below(2) },
            runs_ms,
            ends: self.end(rng, terms, is_shared && !(is_chosen && self.shares_logs)),
            cost: if rng.percent(15) { 0 } else { rng.below(90) },
            log_knows_cost: rng.percent(80),
            second: None,
        }
    }

    /// The ends of a request; by the second call alone if only that may end it.
    fn end(&self, rng: &mut Rng, terms: &Terms, by_call: bool) -> Vec<EndPlan> {
        if rng.percent(self.lost) {
            return Vec::new();
        }
        let has_log = terms.signs_ms.is_some() && !by_call;
        let by = if has_log && rng.percent(75) { By::Log } else { By::Call };
        let when = match rng.percent(self.early) {
            true if rng.percent(50) => When::BeforeStart(rng.within(1..8_000)),
            true => When::AfterStart(rng.below(15)),
            false if rng.percent(90) => When::AfterEnd(rng.below(8)),
            false => When::AfterEnd(rng.below(1_500)),
        };
        let is_elsewhere = rng.percent(self.elsewhere);
        let mut ends = vec![EndPlan { by, when, is_elsewhere }];
        if rng.percent(self.twice) {
            let when = When::AfterEnd(rng.below(300));
            ends.push(EndPlan { by, when, is_elsewhere: false });
        }
        if has_log && rng.percent(self.both) {
            let by = if by == By::Log { By::Call } else { By::Log };
            let when = When::AfterEnd(rng.below(300));
            ends.push(EndPlan { by, when, is_elsewhere: false });
        }
        ends
    }
}

fn draw_troubles(rng: &mut Rng, span_ms: u64, items: &mut Vec<Item>) {
    if rng.percent(60) {
        for _ in 0..rng.within(1..5) {
            let trouble = match rng.below(6) {
                0 => Trouble::Slow { ms: rng.within(5..120) },
                1 => Trouble::Away,
                2 => Trouble::Hangs,
                3 => Trouble::Deaf,
                4 => Trouble::Late,
                _ => Trouble::Mixed,
            };
            let place = rng.percent(50).then(|| rng.index(PLACES));
            let lasts_ms = rng.pick(&[100, 800, 2_500, 7_000]);
            let event = Event::Trouble { place, trouble, lasts_ms: 1 + rng.below(lasts_ms) };
            items.push(Item::new(rng.below(span_ms), event));
        }
    }
    if rng.percent(30) {
        for _ in 0..rng.within(1..3) {
            let event = Event::FailOver { lost_ms: rng.below(1_500) };
            items.push(Item::new(rng.below(span_ms), event));
        }
    }
}

fn draw_closings(rng: &mut Rng, span_ms: u64, items: &mut Vec<Item>) {
    if rng.percent(50) {
        for _ in 0..rng.within(1..6) {
            let (envoy, by_client) = (rng.index(ENVOYS), rng.percent(60));
            let event = if rng.percent(50) {
                Event::CloseOne { envoy, by_client }
            } else {
                let back_ms = rng.pick(&[1, 100, 2_000, 5_000]);
                Event::CloseConnections { envoy, by_client, back_ms: rng.below(back_ms) }
            };
            items.push(Item::new(rng.below(span_ms), event));
        }
    }
}

fn draw_deaths(rng: &mut Rng, span_ms: u64, items: &mut Vec<Item>) {
    let mut some = |percent, most, draw: &dyn Fn(&mut Rng) -> Event| {
        if rng.percent(percent) {
            for _ in 0..rng.within(1..most) {
                let event = draw(rng);
                items.push(Item::new(rng.below(span_ms), event));
            }
        }
    };
    some(50, 5, &|rng| {
        let back_ms = rng.pick(&[1, 300, 6_000]);
        Event::KillEnvoy { envoy: rng.index(ENVOYS), back_ms: rng.below(back_ms) }
    });
    some(35, 4, &|rng| {
        let back_ms = rng.pick(&[1, 300, 6_000]);
        Event::KillPod { place: rng.index(PLACES), back_ms: rng.below(back_ms) }
    });
    some(35, 4, &|rng| {
        let lasts_ms = rng.pick(&[50, 1_500, 5_000, 9_000]);
        let lasts_ms = 1 + rng.below(lasts_ms);
        Event::Freeze { place: rng.index(PLACES), lasts_ms, reads_first: rng.percent(50) }
    });
}

/// Resets while a request asks for its lease.
fn draw_resets(rng: &mut Rng, items: &mut Vec<Item>) {
    if items.is_empty() || !rng.percent(25) {
        return;
    }
    for _ in 0..rng.within(1..6) {
        let Item { at_ms, event, .. } = &items[rng.index(items.len())];
        let Event::Request(RequestPlan { slots, .. }) = event else { continue };
        let (at_ms, of_slots) = (*at_ms, *slots > 0);
        let trouble = Trouble::Slow { ms: rng.within(4..30) };
        let event = Event::Trouble { place: None, trouble, lasts_ms: 40 };
        items.push(Item::new(at_ms.saturating_sub(2), event));
        items.push(Item::new(at_ms + rng.below(12), Event::Reset { of_slots }));
    }
}

fn draw_orders(rng: &mut Rng, span_ms: u64, items: &mut Vec<Item>) {
    if rng.percent(50) {
        for _ in 0..rng.within(1..6) {
            use {SlotsRule as S, TokensRule as T};
            let slots =
                rng.pick(&[S::Present, S::Raised, S::Lowered, S::Absent, S::OtherAlgorithm]);
            let tokens = rng.pick(&[T::Present, T::Raised, T::Absent, T::Unheld, T::OtherWindow]);
            let within_ms = rng.pick(&[1, 500, 3_000]);
            let event = Event::Rules { slots, tokens, within_ms };
            items.push(Item::new(rng.below(span_ms), event));
        }
    }
    if rng.percent(35) {
        for _ in 0..rng.within(1..4) {
            let event = Event::Reset { of_slots: rng.percent(70) };
            items.push(Item::new(rng.below(span_ms), event));
        }
    }
    if rng.percent(30) {
        let event = Event::Block { of_slots: rng.percent(50), lasts_ms: rng.within(1..4_000) };
        items.push(Item::new(rng.below(span_ms), event));
    }
    if rng.percent(25) {
        let at_ms = rng.below(span_ms);
        items.push(Item::new(at_ms, Event::ReplaceSecret));
        for _ in 0..2 {
            let event = Event::KillPod { place: rng.index(PLACES), back_ms: rng.below(200) };
            items.push(Item::new(at_ms + rng.below(3_000), event));
        }
    }
}
