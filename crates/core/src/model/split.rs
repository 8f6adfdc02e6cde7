//! Where to cut a model into stages.
//!
//! The slowest stage decides the speed of a pipeline, so the cuts make the stage with the most arithmetic as small as it
//! can be, where the arithmetic of a token is the number of weights that it is multiplied with, the output head included.
//! Among such cuts the largest share of bytes is made small, then the work is made even, then cuts come early. Memory is
//! a limit, never a wish. The result is a pure function of its arguments.

use super::{Index, Part, Tensor, part_of};
use crate::topology::Layers;
use crate::unit::Bytes;

/// Why a model cannot be dealt to these machines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// More stages than layers, or none.
    #[error("{blocks} layers cannot be dealt to {stages} stages: each takes at least one")]
    Stages {
        /// How many layers there are.
        blocks: usize,
        /// How many stages are asked for.
        stages: usize,
    },
    /// No cuts fit the memory.
    #[error("{}", does_not_fit(needed, memory))]
    Memory {
        /// What the best cuts without that limit take, stage by stage.
        needed: Vec<Bytes>,
        /// What the machines have.
        memory: Vec<Option<Bytes>>,
    },
}

fn does_not_fit(needed: &[Bytes], memory: &[Option<Bytes>]) -> String {
    let list = |items: Vec<String>| items.join(", ");
    let needed = list(needed.iter().map(Bytes::to_string).collect());
    let have = memory
        .iter()
        .map(|memory| memory.map_or("any".to_owned(), |bytes| bytes.to_string()));
    let have = list(have.collect());
    format!(
        "no cut of the model fits the machines' memory: the best one takes {needed}; they have {have}"
    )
}

/// What each part of a model costs a stage. Bytes are those of memory in the native worker ([`Costs::of`]), or of the
/// file ([`Costs::stored`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Weights that a token is multiplied with, and bytes, for each layer.
    pub layers: Vec<(u64, u64)>,
    /// Weights of the output head.
    pub exit_work: u64,
    /// Bytes that the first stage needs besides.
    pub entry_bytes: u64,
    /// Bytes that the last stage needs besides.
    pub exit_bytes: u64,
    /// Bytes that a stage needs besides that is first and last.
    pub both_bytes: u64,
    /// Bytes that every stage needs.
    pub every_bytes: u64,
    /// Bytes of keys and values in each layer.
    pub cache_bytes: u64,
}

impl Costs {
    /// The costs of a model in memory, with keys and values of so many positions at once.
    pub fn of(index: &Index, tokens: u64) -> Self {
        Self::counted(index, tokens, |tensor| tensor.loaded)
    }

    /// The same with the bytes that each part has in the file.
    pub fn stored(index: &Index, tokens: u64) -> Self {
        Self::counted(index, tokens, |tensor| {
            tensor.bytes.end - tensor.bytes.start
        })
    }

    /// Memory of a stage with these layers, which exist.
    pub fn memory(&self, layers: Layers, entry: bool, exit: bool) -> u64 {
        let (start, end) = (layers.start as usize, layers.end as usize);
        let blocks = self.layers.get(start..end).unwrap_or_default();
        let own = blocks.iter().map(|(_, bytes)| *bytes);
        let ends = match (entry, exit) {
            (false, false) => 0,
            (true, false) => self.entry_bytes,
            (false, true) => self.exit_bytes,
            (true, true) => self.both_bytes,
        };
        let cache = self.cache_bytes.saturating_mul(blocks.len() as u64);
        own.chain([ends, self.every_bytes, cache])
            .fold(0, u64::saturating_add)
    }

    fn counted(index: &Index, tokens: u64, size: impl Fn(&Tensor) -> u64) -> Self {
        let mut layers = vec![(0_u64, 0_u64); index.blocks as usize];
        let mut exit_work = 0_u64;
        let [
            mut every_bytes,
            mut entry_bytes,
            mut head_bytes,
            mut norm_bytes,
        ] = [index.data_start, 0, 0, 0];
        for (name, tensor) in &index.tensors {
            let work = if tensor.is_matrix { tensor.numbers } else { 0 };
            let bytes = size(tensor);
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            match part_of(name) {
                Part::Block(block) => {
                    if let Some(layer) = layers.get_mut(block as usize) {
                        add(&mut layer.0, work);
                        add(&mut layer.1, bytes);
                    }
                }
                Part::Embedding => {
                    // Rows are looked up as the file has them; a head is multiplied with, and may be unpacked for it.
                    add(&mut entry_bytes, tensor.bytes.end - tensor.bytes.start);
                    add(&mut head_bytes, if index.is_tied { bytes } else { 0 });
                    // Looked up by the first stage; multiplied only where it is the head.
                    add(&mut exit_work, if index.is_tied { work } else { 0 });
                }
                Part::Output => {
                    add(&mut norm_bytes, bytes);
                    add(&mut exit_work, work);
                }
                Part::Common => add(&mut every_bytes, bytes),
            }
        }
        // A head that is the embedding as it is needs no room of its own.
        let beside_entry = if head_bytes == entry_bytes {
            0
        } else {
            head_bytes
        };
        Self {
            layers,
            exit_work,
            entry_bytes,
            exit_bytes: norm_bytes.saturating_add(head_bytes),
            both_bytes: norm_bytes
                .saturating_add(entry_bytes)
                .saturating_add(beside_entry),
            every_bytes,
            cache_bytes: index.cache_of_block(tokens),
        }
    }
}

/// Costs summed up, so that each part is a difference.
struct Sums<'a> {
    costs: &'a Costs,
    work: Vec<u64>,
    bytes: Vec<u64>,
    blocks: usize,
}

impl<'a> Sums<'a> {
    fn of(costs: &'a Costs) -> Self {
        let running = |part: fn(&(u64, u64)) -> u64| {
            let mut sum = 0_u64;
            let sums = costs.layers.iter().map(part).map(|more| {
                sum = sum.saturating_add(more);
                sum
            });
            [0].into_iter().chain(sums).collect()
        };
        Self {
            costs,
            work: running(|layer| layer.0),
            bytes: running(|layer| layer.1),
            blocks: costs.layers.len(),
        }
    }

    fn work(&self, start: usize, end: usize) -> u64 {
        let head = if end == self.blocks {
            self.costs.exit_work
        } else {
            0
        };
        (self.work[end] - self.work[start]).saturating_add(head)
    }

    fn bytes(&self, start: usize, end: usize) -> u64 {
        let ends = match (start == 0, end == self.blocks) {
            (false, false) => 0,
            (true, false) => self.costs.entry_bytes,
            (false, true) => self.costs.exit_bytes,
            (true, true) => self.costs.both_bytes,
        };
        let own = self.bytes[end] - self.bytes[start];
        own.saturating_add(ends)
            .saturating_add(self.costs.every_bytes)
    }

    fn memory(&self, start: usize, end: usize) -> u64 {
        let cache = self.costs.cache_bytes.saturating_mul((end - start) as u64);
        self.bytes(start, end).saturating_add(cache)
    }
}

/// Deals the layers to `memory.len()` stages. Each machine's free memory is a limit where it is known; `tokens` is how
/// many positions are kept at once, over all requests.
///
/// # Errors
/// [`SplitError`] with the numbers, when there is no such split.
pub fn split_auto(
    index: &Index,
    memory: &[Option<Bytes>],
    tokens: u64,
) -> Result<Vec<Layers>, SplitError> {
    split(&Costs::of(index, tokens), memory)
}

/// [`split_auto`] by costs alone.
///
/// # Errors
/// [`SplitError`] with the numbers, when there is no such split.
pub fn split(costs: &Costs, memory: &[Option<Bytes>]) -> Result<Vec<Layers>, SplitError> {
    let (blocks, stages) = (costs.layers.len(), memory.len());
    if stages == 0 || stages > blocks {
        return Err(SplitError::Stages { blocks, stages });
    }
    let costs = Sums::of(costs);
    let fits = |stage: usize, start: usize, end: usize| {
        memory[stage].is_none_or(|limit| costs.memory(start, end) <= limit.0)
    };
    let cuts = best_cuts(&costs, stages, &fits).ok_or_else(|| {
        let cuts = best_cuts(&costs, stages, &|_, _, _| true);
        let cuts = cuts.expect("without a limit there is always one");
        let needed = cuts.windows(2);
        SplitError::Memory {
            needed: needed.map(|c| Bytes(costs.memory(c[0], c[1]))).collect(),
            memory: memory.to_vec(),
        }
    })?;
    let number = |cut: usize| u32::try_from(cut).expect("at most the number of layers");
    let layers = cuts.windows(2).map(|cut| Layers {
        start: number(cut[0]),
        end: number(cut[1]),
    });
    Ok(layers.collect())
}

/// The cuts, from 0 to the number of layers; none when no cuts fit.
fn best_cuts(
    costs: &Sums<'_>,
    stages: usize,
    fits: &dyn Fn(usize, usize, usize) -> bool,
) -> Option<Vec<usize>> {
    let work = |start, end| u128::from(costs.work(start, end));
    let bytes = |start, end| u128::from(costs.bytes(start, end));
    // Each wish in turn, with what was reached before as a limit: lexicographic, and exact.
    let slowest = cheapest(costs.blocks, stages, u128::max, &|k, start, end| {
        fits(k, start, end).then(|| work(start, end))
    })?
    .0;
    let fast = |k, start, end| fits(k, start, end) && work(start, end) <= slowest;
    let largest = cheapest(costs.blocks, stages, u128::max, &|k, start, end| {
        fast(k, start, end).then(|| bytes(start, end))
    })?
    .0;
    let even = cheapest(
        costs.blocks,
        stages,
        u128::saturating_add,
        &|k, start, end| {
            let good = fast(k, start, end) && bytes(start, end) <= largest;
            good.then(|| work(start, end).saturating_pow(2))
        },
    )?;
    Some(even.1)
}

/// The cheapest way to cut `blocks` layers into `stages` parts of at least one, when `cost` prices each part (none is
/// forbidden) and `join` adds prices up.
fn cheapest(
    blocks: usize,
    stages: usize,
    join: fn(u128, u128) -> u128,
    cost: &dyn Fn(usize, usize, usize) -> Option<u128>,
) -> Option<(u128, Vec<usize>)> {
    // `best[k][end]`: the price of the first `end` layers in `k` parts, and where the last of them starts.
    let mut first = vec![None; blocks + 1];
    first[0] = Some((0, 0));
    let mut best: Vec<Vec<Option<(u128, usize)>>> = vec![first];
    for k in 1..=stages {
        let last = blocks - (stages - k);
        let row = (0..=blocks).map(|end| {
            let parts = best[k - 1].iter().enumerate().take(end);
            let priced = parts.filter_map(|(start, before)| {
                let price = join((*before)?.0, cost(k - 1, start, end)?);
                Some((price, start))
            });
            // Of equals the one with the earliest cut.
            if end <= last { priced.min() } else { None }
        });
        let row = row.collect();
        best.push(row);
    }
    let (price, _) = best[stages][blocks]?;
    let mut cuts = vec![blocks];
    for k in (1..=stages).rev() {
        let end = *cuts.last().expect("begun with one");
        cuts.push(best[k][end]?.1);
    }
    cuts.reverse();
    Some((price, cuts))
}
