//! Requests that arrive when they like: a Poisson stream by a seed, over pods of unequal weight.

use std::time::Duration;

use crate::support::dice::Dice;

/// A stream of requests for one key.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Requests a second, all pods together.
    pub rate: f64,
    /// What each pod gets of it, in proportion.
    pub weights: Vec<f64>,
    /// So often, each pod takes the weight of the pod before it.
    pub moves_every: Option<Duration>,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Since the start.
    pub at: Duration,
    /// The pod that it comes to.
    pub pod: usize,
}

impl Demand {
    /// The requests that arrive within `span`, in order.
    pub fn arrivals(&self, seed: u64, span: Duration) -> impl Iterator<Item = Arrival> + use<> {
        let demand = self.clone();
        let mut dice = Dice::seeded(seed);
        let mut seconds = 0.0;
        std::iter::from_fn(move || {
            // The gaps of a Poisson stream are exponential.
            seconds -= (1.0 - dice.fraction()).ln() / demand.rate;
            let at = Duration::from_secs_f64(seconds);
            let pod = demand.pod(dice.fraction(), at);
            (at < span).then_some(Arrival { at, pod })
        })
    }

    /// The pod at this part, from 0 to 1, of the weights that are in force `at` a time.
    fn pod(&self, part: f64, at: Duration) -> usize {
        let moves = self.moves_every.map_or(0, |every| at.as_nanos() / every.as_nanos());
        let mut rest = part * self.weights.iter().sum::<f64>();
        let found = self.weights.iter().position(|weight| {
            rest -= weight;
            rest < 0.0
        });
        let last = self.weights.len() - 1;
        (found.unwrap_or(last) + usize::try_from(moves).unwrap()) % self.weights.len()
    }
}
