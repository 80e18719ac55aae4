//! Faults of the network and the store, and when they happen.

use std::time::Duration;

use crate::rng::Rng;

/// The conditions of a run.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Minimum time of one way.
    pub way_ms: u64,
    /// Maximum additional time of one way.
    pub jitter_ms: u64,
    /// When the store's client gives up an ask without an answer.
    pub gives_up_ms: u64,
    pub stretches: Vec<Stretch>,
}

/// A period of faults, with its start and end in milliseconds since the run's start.
#[derive(Debug, Clone)]
pub struct Stretch {
    pub from_ms: u64,
    pub until_ms: u64,
    /// Restricts the faults to odd or to even pods.
    pub only: Option<u64>,
    /// Restricts the faults to this master.
    pub only_shard: Option<usize>,
    pub trouble: Trouble,
}

#[derive(Debug, Clone, Copy)]
pub enum Trouble {
    /// This percentage of asks lose the ask or its reply, and some fail.
    Lossy { percent: u64 },
    /// Each way takes up to `ms` longer.
    Slow { ms: u64 },
    /// This percentage of asks take `ms` longer, and asks beside them do not.
    Stuck { percent: u64, ms: u64 },
    /// The store takes nothing: it replies with errors, or not at all.
    Away { silent: bool },
}

/// The fate of one ask.
#[derive(Debug, Clone, Copy)]
pub struct Fate {
    /// When the store takes it, if ever.
    pub arrives_after_ms: Option<u64>,
    pub answer: Answer,
    /// The store refuses it with an error.
    pub refused: bool,
    /// The store takes it, and its reply is unreadable.
    pub garbled: bool,
    /// Whether the weather changed its outcome.
    pub struck: bool,
}

/// The replies that the sender receives.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// The replies, `after_ms` after the store took the asks.
    Comes { after_ms: u64 },
    /// Nothing; its client gives up `after_ms` after sending.
    TimesOut { after_ms: u64 },
    /// An error: no store could be reached.
    Unreachable { after_ms: u64 },
    /// Nothing, and its client does not give up either.
    Never,
}

// === impl Weather ===

impl Weather {
    /// Maximum time of an ask and its reply without a fault.
    pub fn round_trip_max(&self) -> Duration {
        Duration::from_millis(2 * (self.way_ms + self.jitter_ms))
    }

    /// The fate of an ask that leaves `pod` for the master `shard` at `now_ms`.
    pub fn fate(&self, now_ms: u64, pod: u64, shard: usize, rng: &mut Rng) -> Fate {
        let way = |rng: &mut Rng| self.way_ms + rng.below(self.jitter_ms + 1);
        let mut fate = Fate {
            arrives_after_ms: Some(way(rng)),
            answer: Answer::Comes { after_ms: way(rng) },
            refused: false,
            garbled: false,
            struck: false,
        };
        let strikes = |stretch: &&Stretch| {
            (stretch.from_ms..stretch.until_ms).contains(&now_ms)
                && stretch.only.is_none_or(|parity| pod % 2 == parity)
                && stretch.only_shard.is_none_or(|only| only == shard)
        };
        for stretch in self.stretches.iter().filter(strikes) {
            fate.struck = true;
            match stretch.trouble {
                Trouble::Lossy { percent } if rng.percent(percent) => self.lose(&mut fate, rng),
                Trouble::Lossy { percent } => fate.fail_some(percent / 4, rng),
                Trouble::Slow { ms } => fate.slow(rng.below(ms + 1), rng.below(ms + 1)),
                Trouble::Stuck { percent, ms } if rng.percent(percent) => fate.slow(ms, 0),
                Trouble::Stuck { .. } => {}
                Trouble::Away { silent: true } => {
                    fate.arrives_after_ms = None;
                    fate.answer = self.silence(rng);
                }
                Trouble::Away { silent: false } => {
                    fate.answer = Answer::Unreachable { after_ms: way(rng) };
                    fate.arrives_after_ms = None;
                }
            }
        }
        fate
    }

    /// Loses the ask or the reply, or makes the sender give up.
    fn lose(&self, fate: &mut Fate, rng: &mut Rng) {
        fate.answer = self.silence(rng);
        match rng.below(3) {
            0 => fate.arrives_after_ms = None,
            1 => {}
            _ => fate.arrives_after_ms = Some(self.gives_up_ms + rng.below(1_000)),
        }
    }

    fn silence(&self, rng: &mut Rng) -> Answer {
        if rng.percent(10) {
            Answer::Never
        } else {
            Answer::TimesOut { after_ms: self.gives_up_ms }
        }
    }
}

// === impl Fate ===

impl Fate {
    fn fail_some(&mut self, percent: u64, rng: &mut Rng) {
        self.refused |= rng.percent(percent);
        self.garbled |= rng.percent(percent);
    }

    fn slow(&mut self, out_ms: u64, back_ms: u64) {
        if let (Some(arrives), Answer::Comes { after_ms }) =
            (&mut self.arrives_after_ms, &mut self.answer)
        {
            *arrives += out_ms;
            *after_ms += back_ms;
        }
    }
}
