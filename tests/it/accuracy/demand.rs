//! Requests at random times: a seeded Poisson stream, over pods of unequal weight.

use std::time::Duration;

use crate::support::rng::Rng;

/// A stream of requests for one key.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Requests a second, over all pods.
    pub rate: f64,
    /// The share of each pod, as relative weights.
    pub weights: Vec<f64>,
    /// Interval at which each pod takes the weight of the pod before it.
    pub moves_every: Option<Duration>,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Time since the start.
    pub at: Duration,
    /// The pod that receives it.
    pub pod: usize,
}

impl Demand {
    /// The requests that arrive within `span`, in order.
    pub fn arrivals(&self, seed: u64, span: Duration) -> impl Iterator<Item = Arrival> + use<> {
        let demand = self.clone();
        let mut rng = Rng::seeded(seed);
        let mut seconds = 0.0;
        std::iter::from_fn(move || {
            // The gaps of a Poisson stream are exponential.
            seconds -= (1.0 - rng.fraction()).ln() / demand.rate;
            let at = Duration::from_secs_f64(seconds);
            let pod = demand.pod(rng.fraction(), at);
            (at < span).then_some(Arrival { at, pod })
        })
    }

    /// The pod at this part, from 0 to 1, of the sum of the weights in force at the time `at`.
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
