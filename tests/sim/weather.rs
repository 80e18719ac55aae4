//! What the network and the store suffer, and when.

use std::time::Duration;

use crate::dice::Dice;

/// The conditions of a run.
#[derive(Debug, Clone)]
pub struct Weather {
    /// One way takes at least so long.
    pub way_ms: u64,
    /// And up to so much more.
    pub jitter_ms: u64,
    /// When an ask without an answer is given up by the store's client.
    pub gives_up_ms: u64,
    pub stretches: Vec<Stretch>,
}

/// A time of trouble, from and until so many milliseconds after the run's start.
#[derive(Debug, Clone)]
pub struct Stretch {
    pub from_ms: u64,
    pub until_ms: u64,
    /// Only odd or only even pods suffer it.
    pub only: Option<u64>,
    pub trouble: Trouble,
}

#[derive(Debug, Clone, Copy)]
pub enum Trouble {
    /// So many of a hundred batches lose their asks or their reply, and some asks fail alone.
    Lossy { percent: u64 },
    /// Each way takes up to so much longer.
    Slow { ms: u64 },
    /// Nothing is taken: the store says so, or is silent.
    Away { silent: bool },
}

/// What becomes of one batch.
#[derive(Debug, Clone)]
pub struct Fate {
    /// When the store takes it, if ever.
    pub arrives_after_ms: Option<u64>,
    pub answer: Answer,
    /// For each ask, that the store does not take it, and says so.
    pub refused: Vec<bool>,
    /// For each ask, that it is taken and its reply is lost.
    pub garbled: Vec<bool>,
    /// It is not what a calm day would have made of it.
    pub struck: bool,
}

/// What the sender hears.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// The replies, so long after the store took the asks.
    Comes { after_ms: u64 },
    /// Nothing; its client gives up, so long after it was sent.
    TimesOut { after_ms: u64 },
    /// That nobody could be reached.
    Unreachable { after_ms: u64 },
    /// Nothing, and its client does not give up either.
    Never,
}

// === impl Weather ===

impl Weather {
    /// An ask and its reply take no longer, where nothing strikes.
    pub fn round_trip_max(&self) -> Duration {
        Duration::from_millis(2 * (self.way_ms + self.jitter_ms))
    }

    /// A batch leaves `pod` at `now_ms`.
    pub fn fate(&self, now_ms: u64, pod: u64, asks: usize, dice: &mut Dice) -> Fate {
        let way = |dice: &mut Dice| self.way_ms + dice.below(self.jitter_ms + 1);
        let mut fate = Fate {
            arrives_after_ms: Some(way(dice)),
            answer: Answer::Comes { after_ms: way(dice) },
            refused: vec![false; asks],
            garbled: vec![false; asks],
            struck: false,
        };
        let strikes = |stretch: &&Stretch| {
            (stretch.from_ms..stretch.until_ms).contains(&now_ms)
                && stretch.only.is_none_or(|parity| pod % 2 == parity)
        };
        for stretch in self.stretches.iter().filter(strikes) {
            fate.struck = true;
            match stretch.trouble {
                Trouble::Lossy { percent } if dice.percent(percent) => self.lose(&mut fate, dice),
                Trouble::Lossy { percent } => fate.fail_some(percent / 4, dice),
                Trouble::Slow { ms } => self.slow(&mut fate, ms, dice),
                Trouble::Away { silent: true } => {
                    fate.arrives_after_ms = None;
                    fate.answer = self.silence(dice);
                }
                Trouble::Away { silent: false } => {
                    fate.answer = Answer::Unreachable { after_ms: way(dice) };
                    fate.arrives_after_ms = None;
                }
            }
        }
        fate
    }

    /// Loses the asks, the reply, or the sender's patience.
    fn lose(&self, fate: &mut Fate, dice: &mut Dice) {
        fate.answer = self.silence(dice);
        match dice.below(3) {
            0 => fate.arrives_after_ms = None,
            1 => {}
            _ => fate.arrives_after_ms = Some(self.gives_up_ms + dice.below(1_000)),
        }
    }

    fn silence(&self, dice: &mut Dice) -> Answer {
        if dice.percent(10) {
            Answer::Never
        } else {
            Answer::TimesOut { after_ms: self.gives_up_ms }
        }
    }

    fn slow(&self, fate: &mut Fate, ms: u64, dice: &mut Dice) {
        let (out, back) = (dice.below(ms + 1), dice.below(ms + 1));
        if let (Some(arrives), Answer::Comes { after_ms }) =
            (&mut fate.arrives_after_ms, &mut fate.answer)
        {
            *arrives += out;
            *after_ms += back;
        }
    }
}

// === impl Fate ===

impl Fate {
    fn fail_some(&mut self, percent: u64, dice: &mut Dice) {
        self.refused.iter_mut().for_each(|refused| *refused = dice.percent(percent));
        self.garbled.iter_mut().for_each(|garbled| *garbled = dice.percent(percent));
    }
}
