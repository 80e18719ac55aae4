//! Draws the key of the next request: seeded random numbers with a Zipf distribution.

use fastrand::Rng;

/// Draws a rank from 0 with weight 1/(rank + 1)^s, in constant time: Walker's alias method, where
/// each column holds one rank's weight and is filled up with weight of another rank.
#[derive(Debug)]
pub(super) struct Zipf {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    /// Number of coins, of 2^32, that select the column's own rank.
    own: u32,
    other: u32,
}

/// Mask of the lower half of a number.
const COIN: u64 = u32::MAX as u64;

/// Returns the random numbers of connection `index`; each index has a sequence of its own.
pub(super) fn rng(seed: u64, index: u32) -> Rng {
    Rng::with_seed(seed ^ u64::from(index).rotate_left(32)).fork()
}

// === impl Zipf ===

impl Zipf {
    pub(super) fn new(ranks: u32, skew: f64) -> Self {
        let weights: Vec<f64> = (1..=ranks).map(|rank| f64::from(rank).powf(-skew)).collect();
        let total: f64 = weights.iter().sum();
        // Scaled so that a column holds a weight of 1.
        let mut left: Vec<f64> = weights.iter().map(|w| w / total * f64::from(ranks)).collect();
        let mut columns: Vec<Column> =
            (0..ranks).map(|rank| Column { own: u32::MAX, other: rank }).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..ranks).partition(|rank| left[*rank as usize] < 1.0);
        while let (Some(few), Some(many)) = (small.pop(), large.last().copied()) {
            let weight = left[few as usize];
            columns[few as usize] = Column { own: coins(weight), other: many };
            let rest = &mut left[many as usize];
            *rest -= 1.0 - weight;
            if *rest < 1.0 {
                large.pop();
                small.push(many);
            }
        }
        Self { columns }
    }

    /// Draws a rank; it is below the number of ranks.
    pub(super) fn draw(&self, rng: &mut Rng) -> usize {
        let roll = rng.u64(..);
        let at = ((roll >> 32) * self.columns.len() as u64) >> 32;
        // The product was shifted so that this is below the number of columns, which is at most
        // 2^32.
        #[allow(clippy::cast_possible_truncation, reason = "an index")]
        let at = at as usize;
        let Some(column) = self.columns.get(at) else { return 0 };
        if roll & COIN <= u64::from(column.own) { at } else { column.other as usize }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a share of 2^32, saturating")]
fn coins(share: f64) -> u32 {
    (share * f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 400_000;

    fn drawn(ranks: u32, skew: f64) -> Vec<f64> {
        let (zipf, mut rng) = (Zipf::new(ranks, skew), rng(7, 0));
        let mut drawn = vec![0.0; ranks as usize];
        (0..DRAWS).for_each(|_| drawn[zipf.draw(&mut rng)] += 1.0);
        drawn
    }

    #[test]
    fn ranks_come_as_often_as_their_weight() {
        for (ranks, skew) in [(1, 1.0), (2, 0.0), (10, 1.0), (100, 0.5), (1000, 2.0)] {
            let weights: Vec<f64> = (1..=ranks).map(|k| f64::from(k).powf(-skew)).collect();
            let total: f64 = weights.iter().sum();
            for (rank, (drawn, weight)) in drawn(ranks, skew).iter().zip(&weights).enumerate() {
                let expected = weight / total * f64::from(DRAWS);
                // Five standard deviations of a Poisson count, which a count exceeds in five of a
                // million cases; the seed is fixed.
                let far = (drawn - expected).abs() > 5.0 * expected.sqrt() + 5.0;
                assert!(!far, "{ranks} ranks, skew {skew}, rank {rank}: {drawn} for {expected}");
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_and_another_index_something_else() {
        let rolls = |seed, index| {
            let mut rng = rng(seed, index);
            [rng.u64(..), rng.u64(..), rng.u64(..)]
        };
        assert_eq!(rolls(1, 0), rolls(1, 0));
        assert_ne!(rolls(1, 0), rolls(1, 1));
        assert_ne!(rolls(1, 0), rolls(2, 0));
    }
}
