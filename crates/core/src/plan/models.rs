//! What the planner must know of a model: how many layers, and what each part of the file weighs.
//!
//! Numbers only. Reading a model file is `model`'s work.

use crate::id::Sha256;
use crate::model::{self, Costs, Index};
use crate::resource::ModelOrigin;
use crate::topology::{Layers, SecretRef};
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
    /// Asked for by the server that has them, by reference.
    pub token: Option<SecretRef>,
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
    /// Weights that a token is multiplied with in each layer: its work, whatever the weights take in bytes.
    pub work: Vec<u64>,
    /// Weights that a token is multiplied with in the output head.
    pub exit_work: u64,
    /// Key-value cache of one token in one layer.
    pub kv_per_token: Bytes,
    /// What the native worker's memory takes on a processor, where that is not what the file takes.
    pub loaded: Loaded,
}

/// Weights in the memory of the native worker on a processor, which rewrites some formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Each layer.
    pub layers: Vec<Bytes>,
    /// Output head and last norm.
    pub exit: Bytes,
    /// Embedding, output head and last norm in one stage.
    pub both: Bytes,
}

/// How a stage's program keeps its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// As the file has them: on a GPU, and in programs that we do not know.
    File,
    /// As the native worker keeps them on a processor.
    Worker,
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

    /// Memory of one stage: its weights, and its key-value cache with the whole context.
    pub fn memory(
        &self,
        layers: Layers,
        entry: bool,
        exit: bool,
        context: u32,
        on: Memory,
    ) -> Bytes {
        let costs = self.costs(u64::from(context), on);
        Bytes(costs.memory(layers, entry, exit))
    }

    /// Cuts into `n` stages whose slowest is as fast as can be; none when there are fewer layers than stages.
    pub fn split(&self, n: usize) -> Option<Vec<Layers>> {
        model::split(&self.costs(0, Memory::Worker), &vec![None; n]).ok()
    }

    /// What each part costs a stage that keeps so many tokens at once.
    pub fn costs(&self, tokens: u64, on: Memory) -> Costs {
        let both = if self.tied {
            self.entry.max(self.exit)
        } else {
            Bytes(self.entry.0 + self.exit.0)
        };
        let (layers, exit, both) = match on {
            Memory::File => (&self.layers, self.exit, both),
            Memory::Worker => (&self.loaded.layers, self.loaded.exit, self.loaded.both),
        };
        let bytes = layers.iter().map(|bytes| bytes.0);
        Costs {
            layers: self.work.iter().copied().zip(bytes).collect(),
            exit_work: self.exit_work,
            entry_bytes: self.entry.0,
            exit_bytes: exit.0,
            both_bytes: both.0,
            every_bytes: self.header.0,
            cache_bytes: self.kv_per_token.0.saturating_mul(tokens),
        }
    }
}

impl From<&Index> for ModelShape {
    fn from(index: &Index) -> Self {
        let costs = Costs::stored(index, 1);
        let loaded = Costs::of(index, 1);
        Self {
            context: index.context_length,
            header: Bytes(costs.every_bytes),
            entry: Bytes(costs.entry_bytes),
            exit: Bytes(costs.exit_bytes),
            tied: index.is_tied,
            layers: costs.layers.iter().map(|layer| Bytes(layer.1)).collect(),
            work: costs.layers.iter().map(|layer| layer.0).collect(),
            exit_work: costs.exit_work,
            kv_per_token: Bytes(costs.cache_bytes),
            loaded: Loaded {
                layers: loaded.layers.iter().map(|layer| Bytes(layer.1)).collect(),
                exit: Bytes(loaded.exit_bytes),
                both: Bytes(loaded.both_bytes),
            },
        }
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
            work: vec![100; 30],
            exit_work: 800,
            kv_per_token: Bytes(1),
            loaded: Loaded {
                layers: vec![Bytes(190); 30],
                exit: Bytes(800),
                both: Bytes(800),
            },
        };
        let cuts = shape.split(2).expect("30 layers");
        assert_eq!(cuts[0], Layers { start: 0, end: 19 });
        assert_eq!(cuts[1], Layers { start: 19, end: 30 });
        assert_eq!(shape.weights(&cuts, true, true), Bytes(3800));
        let all = Layers { start: 0, end: 30 };
        let memory = |on| shape.memory(all, true, true, 10, on);
        assert_eq!(memory(Memory::File), Bytes(3800 + 300));
        assert_eq!(memory(Memory::Worker), Bytes(800 + 30 * 190 + 300));
        assert_eq!(shape.split(31), None);
    }
}
