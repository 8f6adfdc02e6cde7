//! What the planner must know of a model: how many layers, and what each part of the file weighs.
//!
//! Numbers only. Reading a model file is `model`'s work.

use crate::id::Sha256;
use crate::resource::ModelOrigin;
use crate::topology::Layers;
use crate::unit::Bytes;

/// One model of a topology, looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Its digest.
    pub sha256: Sha256,
    /// Its length.
    pub size: Bytes,
    /// Where its bytes come from.
    pub origin: ModelOrigin,
    /// How it is built; none for a file that only a foreign engine can read.
    pub shape: Option<ModelShape>,
}

/// How a model is built, by weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Tokens that it can attend to.
    pub context: u32,
    /// The file's header, which every stage needs.
    pub header: Bytes,
    /// The embedding, which the first stage needs.
    pub entry: Bytes,
    /// Output head and last norm, which the last stage needs.
    pub exit: Bytes,
    /// The head is the embedding: a stage that is both first and last needs it once.
    pub tied: bool,
    /// Each layer.
    pub layers: Vec<Bytes>,
    /// Key-value cache of one token in one layer.
    pub kv_per_token: Bytes,
}

impl ModelShape {
    /// How many layers there are.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.layers.len()).expect("a model has few layers")
    }

    /// Bytes of the file that these layers need.
    pub fn weights(&self, layers: &[Layers], entry: bool, exit: bool) -> Bytes {
        let once = entry && exit && self.tied;
        let ends = match (entry, exit) {
            (true, true) if once => self.entry.0.max(self.exit.0),
            (true, true) => self.entry.0 + self.exit.0,
            (true, false) => self.entry.0,
            (false, true) => self.exit.0,
            (false, false) => 0,
        };
        let blocks: u64 = layers
            .iter()
            .flat_map(|layers| layers.start..layers.end)
            .filter_map(|layer| self.layers.get(layer as usize))
            .map(|bytes| bytes.0)
            .sum();
        Bytes(self.header.0 + ends + blocks)
    }

    /// Memory of one request's key-value cache over these layers, with the whole context.
    pub fn cache(&self, layers: Layers, context: u32) -> Bytes {
        let count = u64::from(layers.end.saturating_sub(layers.start));
        Bytes(self.kv_per_token.0 * count * u64::from(context))
    }

    /// Cuts into `n` stages whose heaviest is as light as can be; none when there are fewer layers than stages.
    ///
    /// Weight stands for work as well: each weight is multiplied once for each token.
    pub fn split(&self, n: usize) -> Option<Vec<Layers>> {
        let depth = self.layers.len();
        if n == 0 || n > depth {
            return None;
        }
        let cost = |stage: usize, start: usize, end: usize| {
            let blocks: u64 = self.layers[start..end].iter().map(|bytes| bytes.0).sum();
            // The embedding is looked up, not multiplied.
            let head = if stage + 1 == n { self.exit.0 } else { 0 };
            blocks + head
        };
        // best[stage][end]: the heaviest stage of the best cut of layers 0..end into stage + 1 stages, and its last cut.
        let mut best = vec![vec![(u64::MAX, 0); depth + 1]; n];
        for (end, best) in best[0].iter_mut().enumerate().skip(1) {
            *best = (cost(0, 0, end), 0);
        }
        for stage in 1..n {
            for end in stage + 1..=depth {
                best[stage][end] = (stage..end)
                    .map(|cut| {
                        let before = best[stage - 1][cut].0;
                        (before.max(cost(stage, cut, end)), cut)
                    })
                    .min()
                    .expect("there is a cut");
            }
        }
        let mut cuts = vec![depth];
        for stage in (0..n).rev() {
            let end = *cuts.last().expect("it begins with the depth");
            cuts.push(best[stage][end].1);
        }
        cuts.reverse();
        let number = |layer: usize| u32::try_from(layer).expect("a model has few layers");
        let stages = cuts.windows(2).map(|pair| Layers {
            start: number(pair[0]),
            end: number(pair[1]),
        });
        Some(stages.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_counts_as_work_of_the_last_stage() {
        let shape = ModelShape {
            context: 8192,
            header: Bytes(0),
            entry: Bytes(800),
            exit: Bytes(800),
            tied: true,
            layers: vec![Bytes(100); 30],
            kv_per_token: Bytes(1),
        };
        let cuts = shape.split(2).expect("30 layers");
        assert_eq!(cuts[0], Layers { start: 0, end: 19 });
        assert_eq!(cuts[1], Layers { start: 19, end: 30 });
        assert_eq!(shape.weights(&cuts, true, true), Bytes(3800));
        assert_eq!(shape.split(31), None);
    }
}
