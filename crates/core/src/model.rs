//! What a plan must know of a model file: its shape, where each tensor lies, what a stage needs of it, where to cut it.
//!
//! Reads the header of a GGUF file from its first bytes and nothing else. The header may come from anywhere, so every
//! number in it is checked before it is used, and nothing is allocated by a number that it claims. What the native worker
//! cannot run (another architecture, a tensor type without a size) is refused here, before anything is rented.

mod loaded;
mod read;
mod split;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

pub use loaded::loaded;
pub use read::{HEADER_MAX, Parsed};
pub use split::{Costs, SplitError, split, split_auto};

use crate::resource::Shard;
use crate::topology::Layers;
use crate::unit::Bytes;

/// The architectures whose layers the native worker can run.
pub const ARCHITECTURES: [&str; 1] = ["llama"];

/// Bytes of one number in a worker's cache of keys and values.
pub const CACHE_NUMBER: u64 = 4;

/// Why a model file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// `model/what`, stable.
    pub code: &'static str,
    /// What is wrong, in one sentence that goes on after the file's name.
    pub message: String,
    /// What to do now.
    pub hint: Option<String>,
}

impl ModelError {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// One tensor of a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Where its bytes are, from the beginning of the file.
    pub bytes: Range<u64>,
    /// How many numbers it has.
    pub numbers: u64,
    /// Whether a token is multiplied with all of it: it has rows and columns.
    pub is_matrix: bool,
    /// Bytes of memory that it takes in the native worker on a processor, where a token is multiplied with it.
    pub loaded: u64,
}

/// The header of a model file, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// One of [`ARCHITECTURES`].
    pub architecture: &'static str,
    /// How many layers can be dealt to stages.
    pub blocks: u32,
    /// Numbers of one position between layers.
    pub embedding_length: u32,
    /// Tokens that the model was made for.
    pub context_length: u32,
    /// How many tokens there are.
    pub vocabulary: u32,
    /// Numbers that one layer keeps of one position: keys and values.
    pub cache_numbers: u64,
    /// Every tensor, by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Where the header ends and the tensors begin.
    pub data_start: u64,
    /// The output head is the embedding.
    pub is_tied: bool,
}

/// Which part of a model a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// One layer.
    Block(u32),
    /// The embedding of tokens.
    Embedding,
    /// The last norm and the output head.
    Output,
    /// All stages, such as the factors of rotation.
    Common,
}

fn part_of(name: &str) -> Part {
    if name.starts_with("token_embd") {
        return Part::Embedding;
    }
    if name.starts_with("output") {
        return Part::Output;
    }
    let number = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    match number.and_then(|(number, _)| number.parse().ok()) {
        Some(block) => Part::Block(block),
        None => Part::Common,
    }
}

impl Index {
    /// Reads the header out of a file's first bytes, or says how many more of them it needs.
    ///
    /// # Errors
    /// [`ModelError`] when no more bytes would help.
    pub fn parse(bytes: &[u8]) -> Result<Parsed, ModelError> {
        read::parse(bytes)
    }

    /// Where the last tensor ends: a file that is shorter was cut.
    pub fn end(&self) -> u64 {
        let ends = self.tensors.values().map(|tensor| tensor.bytes.end);
        ends.max().unwrap_or(self.data_start)
    }

    /// Whether a file of this length holds every tensor.
    ///
    /// # Errors
    /// `model/cut` when it does not.
    pub fn check_size(&self, size: Bytes) -> Result<(), ModelError> {
        let end = self.end();
        if size.0 >= end {
            return Ok(());
        }
        let message = format!(
            "was cut: it has {} bytes, and its tensors end at byte {end}",
            size.0
        );
        Err(ModelError::new("model/cut", message).hint("download the file again"))
    }

    /// Whether there are such layers.
    ///
    /// # Errors
    /// `model/layers-out-of-range` when there are not.
    pub fn check_layers(&self, layers: Layers) -> Result<(), ModelError> {
        if layers.start < layers.end && layers.end <= self.blocks {
            return Ok(());
        }
        let message = format!(
            "has {0} layers, 0..{0}; {layers} is not a part of them",
            self.blocks
        );
        Err(ModelError::new("model/layers-out-of-range", message))
    }

    /// What of the file is needed to run these layers, and the entry or the exit besides: sorted, merged, the header
    /// always included.
    ///
    /// # Errors
    /// `model/layers-out-of-range`.
    pub fn ranges(
        &self,
        layers: &[Layers],
        entry: bool,
        exit: bool,
    ) -> Result<Vec<Range<u64>>, ModelError> {
        for one in layers {
            self.check_layers(*one)?;
        }
        let holds = |block: u32| layers.iter().any(|l| l.start <= block && block < l.end);
        let is_needed = |name: &str| match part_of(name) {
            Part::Block(block) => holds(block),
            Part::Embedding => entry || exit && self.is_tied,
            Part::Output => exit,
            Part::Common => true,
        };
        let header = 0..self.data_start;
        let needed = self.tensors.iter().filter(|(name, _)| is_needed(name));
        let mut all: Vec<Range<u64>> = needed.map(|(_, tensor)| tensor.bytes.clone()).collect();
        all.push(header);
        all.sort_by_key(|range| (range.start, range.end));
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in all.into_iter().filter(|range| !range.is_empty()) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                Some(_) | None => merged.push(range),
            }
        }
        Ok(merged)
    }

    /// How many bytes [`Self::ranges`] are.
    ///
    /// # Errors
    /// `model/layers-out-of-range`.
    pub fn bytes_of(
        &self,
        layers: &[Layers],
        entry: bool,
        exit: bool,
    ) -> Result<Bytes, ModelError> {
        let ranges = self.ranges(layers, entry, exit)?;
        Ok(Bytes(
            ranges.iter().map(|range| range.end - range.start).sum(),
        ))
    }

    /// The ranges of one machine's shard.
    ///
    /// # Errors
    /// `model/layers-out-of-range`.
    pub fn shard_ranges(&self, shard: &Shard) -> Result<Vec<Range<u64>>, ModelError> {
        self.ranges(&shard.layers, shard.entry, shard.exit)
    }

    /// Memory for these layers: their weights, and keys and values of `tokens` positions over all requests at once.
    ///
    /// # Errors
    /// `model/layers-out-of-range`.
    pub fn memory_of(
        &self,
        layers: Layers,
        entry: bool,
        exit: bool,
        tokens: u64,
    ) -> Result<Bytes, ModelError> {
        self.check_layers(layers)?;
        let costs = Costs::of(self, tokens);
        Ok(Bytes(costs.memory(layers, entry, exit)))
    }

    /// Bytes that one layer keeps for so many positions.
    fn cache_of_block(&self, tokens: u64) -> u64 {
        let numbers = self.cache_numbers.saturating_mul(tokens);
        numbers.saturating_mul(CACHE_NUMBER)
    }
}
