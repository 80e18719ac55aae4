//! Sets of rules on their way to the thread that compiles them and puts them in force.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use parking_lot::Mutex;
use ratelease_rules::{Faults, Options, Pace, Parts, Source};
use ratelease_xds::config::path_of;
use tokio::sync::oneshot;

use super::resource::Refused;
use crate::rule_source::memory::MemoryLeft;
use crate::rule_source::watch::{Compiled, Load, Terms};

/// Maximum number of faults whose place is looked up: each search reads a whole text.
const FAULTS_SHOWN_MAX: usize = 100;

/// The outcome of a set: in force, or all its faults.
pub type Outcome = Result<(), Refused>;

/// The side of the stream.
#[derive(Debug)]
pub struct Pusher {
    set: Arc<Mutex<PushedSet>>,
    wake: SyncSender<()>,
}

/// The side of the thread.
pub struct Pushed {
    set: Arc<Mutex<PushedSet>>,
    options: Options,
    memory: MemoryLeft,
    /// The compiled parts of the sources in force.
    parts: Parts,
    /// Whether the last load had too little memory.
    lacked_memory: bool,
    /// The push that was read last.
    number: u64,
    /// The outcome of the last set, which may be sent again.
    last: Outcome,
}

#[derive(Debug, Default)]
struct PushedSet {
    /// The number of this push.
    number: u64,
    /// `None` once they are in force or refused: text takes memory.
    sources: Option<Result<Vec<Arc<Source>>, Vec<String>>>,
    terms: Terms,
    reply: Option<oneshot::Sender<Outcome>>,
}

/// Creates the thread's side, and what makes the stream's side of it.
pub fn pushed(
    options: Options,
    memory: MemoryLeft,
) -> (Pushed, impl FnOnce(SyncSender<()>) -> Pusher) {
    let set = Arc::<Mutex<PushedSet>>::default();
    let pushed = Pushed {
        set: Arc::clone(&set),
        options,
        memory,
        parts: Parts::default(),
        lacked_memory: false,
        number: 0,
        last: Ok(()),
    };
    (pushed, |wake| Pusher { set, wake })
}

// === impl Pusher ===

impl Pusher {
    /// Puts the rules of `sources` in force, or returns their faults. The faults of a set that
    /// could not even be read are pushed too, so that the pages and the log have them.
    pub async fn push(
        &self,
        sources: Result<Vec<Arc<Source>>, Vec<String>>,
        terms: Terms,
    ) -> Outcome {
        let (reply, replied) = oneshot::channel();
        let sources = sources.map(|mut sources| {
            // The order depends only on their names, not on which are leaving.
            sources.sort_by(|a, b| a.name.cmp(&b.name));
            sources
        });
        {
            let mut set = self.set.lock();
            let number = set.number + 1;
            *set = PushedSet { number, sources: Some(sources), terms, reply: Some(reply) };
        }
        // If a wake-up is pending already, it serves for this one too.
        let _ = self.wake.try_send(());
        let lost = |_| Err(Refused::finally("internal error: not loaded".to_owned()));
        replied.await.unwrap_or_else(lost)
    }
}

// === impl Pushed ===

impl Load for Pushed {
    fn read(&mut self) -> Result<Vec<Arc<Source>>, String> {
        let set = self.set.lock();
        self.number = set.number;
        self.lacked_memory = false;
        match &set.sources {
            Some(Ok(sources)) => Ok(sources.clone()),
            Some(Err(faults)) => Err(faults.join("\n")),
            None => Err("no set has arrived".to_owned()),
        }
    }

    fn compile(&mut self, sources: &[Arc<Source>], pace: &Pace) -> Result<Compiled, Vec<String>> {
        let (parts, options) = (&mut self.parts, &self.options);
        let loaded = self.memory.load(pace, |bounds| parts.load(sources, options, bounds));
        self.lacked_memory = loaded.as_ref().is_err_and(Faults::exceeds_memory);
        match loaded {
            Ok(loaded) => {
                let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
                Ok(Compiled { rules: loaded.rules, warnings })
            }
            Err(faults) => Err(placed(&faults, sources)),
        }
    }

    /// A set is pushed as a whole.
    fn is_atomic(&self) -> bool {
        true
    }

    fn terms(&self) -> Terms {
        let set = self.set.lock();
        let mut terms =
            if set.number == self.number { set.terms.clone() } else { Terms::default() };
        terms.is_for_now |= self.lacked_memory;
        terms
    }

    fn note_outcome(&mut self, outcome: Option<Result<(), Vec<String>>>) {
        if let Some(outcome) = outcome {
            let is_for_now = self.lacked_memory;
            self.last = outcome.map_err(|faults| Refused { faults, is_for_now });
        }
        let mut set = self.set.lock();
        if set.number != self.number {
            return; // another one has taken its place, and its wake-up is pending
        }
        set.sources = None;
        if let Some(reply) = set.reply.take() {
            // An error means that the stream has ended meanwhile.
            let _ = reply.send(self.last.clone());
        }
    }
}

/// The faults, with the field of the resource instead of the line of its text. Faults of rule files
/// keep their lines.
fn placed(faults: &Faults, sources: &[Arc<Source>]) -> Vec<String> {
    let lines = faults.to_string();
    let further = lines.lines().skip(FAULTS_SHOWN_MAX).map(str::to_owned);
    let shown = faults.iter().take(FAULTS_SHOWN_MAX).map(|fault| {
        let source = sources.iter().find(|source| source.name == fault.file);
        let text = source.and_then(|source| std::str::from_utf8(&source.text).ok());
        match text.filter(|_| fault.file.starts_with("xds:")) {
            Some(text) => {
                format!("{}: {}: {}", fault.file, path_of(text, fault.line), fault.message)
            }
            None => fault.to_string(),
        }
    });
    shown.chain(further).collect()
}
