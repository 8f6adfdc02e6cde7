//! The llama architecture: the weights of some layers, and their forward.
//!
//! Library models keep their layers private; a stage needs a forward of its own, on public parts of candle.
//!
//! What always holds: a hidden state is `positions × hidden size` in f32; the same input gives the same output, however
//! the layers are spread over stages and however many threads compute. What this module refuses: architectures and
//! variants that it does not know, by name, instead of computing something else.

use std::sync::Arc;

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{D, Device, Module, Result, Tensor};
use candle_nn::attention::{AttnMask, flash_attn};
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::rope_i;
use stageline_core::stage_protocol::Layers;

use crate::cache::LayerCache;
use crate::failure::Failure;
use crate::gguf::ModelFile;
use crate::linear::{Input, Linear};

/// The numbers of a model, out of its header.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How many layers the whole model has.
    pub layers: u32,
    /// Numbers per position of a hidden state.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers per head.
    pub head: usize,
    /// Numbers between the two halves of the feed-forward part.
    pub feed_forward: usize,
    /// Tokens.
    pub vocab: usize,
    /// The most positions that the model was made for.
    pub context: u32,
    rms_epsilon: f32,
    rope_base: f64,
    /// Positions are divided by this (linear scaling); 1 where there is none.
    rope_scale: f64,
}

impl Config {
    /// Reads and checks the header.
    pub fn read(file: &ModelFile) -> std::result::Result<Self, Failure> {
        let architecture = file.text("general.architecture")?.unwrap_or("none");
        if architecture != "llama" {
            return Err(file.failure(format!(
                "has the architecture `{architecture}`; this worker runs `llama` only"
            )));
        }
        if file.number("llama.expert_count")?.unwrap_or(0) > 0 {
            return Err(file.failure("is a mixture of experts; this worker runs dense models only"));
        }
        let heads = file.count("llama.attention.head_count")? as usize;
        let kv_heads = file
            .number("llama.attention.head_count_kv")?
            .map_or(heads, |heads| heads as usize);
        let hidden = file.count("llama.embedding_length")? as usize;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(file.failure(format!(
                "has {heads} heads and {kv_heads} key heads; one must divide the other"
            )));
        }
        let head = file
            .number("llama.attention.key_length")?
            .map_or(hidden / heads, |head| head as usize);
        let value = file
            .number("llama.attention.value_length")?
            .map_or(head, |head| head as usize);
        let rotated = file
            .number("llama.rope.dimension_count")?
            .map_or(head, |width| width as usize);
        if head == 0 || head % 2 != 0 || value != head || rotated != head {
            return Err(file.failure(format!(
                "has key, value and rotated widths {head}, {value} and {rotated}; this worker needs them equal and even"
            )));
        }
        let vocab = file
            .shape("token_embd.weight")
            .and_then(|shape| shape.first().copied())
            .unwrap_or(0);
        if vocab == 0 {
            return Err(file.failure("has no tensor `token_embd.weight` with rows"));
        }
        Ok(Self {
            layers: file.count("llama.block_count")?,
            hidden,
            heads,
            kv_heads,
            head,
            feed_forward: file.count("llama.feed_forward_length")? as usize,
            vocab,
            context: file.count("llama.context_length")?,
            rms_epsilon: file
                .fraction("llama.attention.layer_norm_rms_epsilon")?
                .unwrap_or(1e-5) as f32,
            rope_base: file.fraction("llama.rope.freq_base")?.unwrap_or(10_000.0),
            rope_scale: rope_scale(file)?,
        })
    }
}

fn rope_scale(file: &ModelFile) -> std::result::Result<f64, Failure> {
    match file.text("llama.rope.scaling.type")? {
        None | Some("none") => Ok(1.0),
        Some("linear") => Ok(file.fraction("llama.rope.scaling.factor")?.unwrap_or(1.0)),
        Some(other) => Err(file.failure(format!(
            "scales positions by `{other}`; this worker knows `linear` only"
        ))),
    }
}

struct Block {
    attention_norm: Tensor,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: Tensor,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// What the last stage has besides its layers.
struct Head {
    norm: Tensor,
    output: QMatMul,
}

/// Some layers of a model, ready to compute.
pub struct Llama {
    /// The whole model's numbers.
    pub config: Config,
    blocks: Vec<Block>,
    embedding: Option<Arc<QTensor>>,
    head: Option<Head>,
    /// Turns per position, for each pair of numbers of a head.
    frequencies: Vec<f32>,
    device: Device,
}

/// Which parts of a model to load.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The layers.
    pub layers: Layers,
    /// The embedding too.
    pub first: bool,
    /// The final norm and the output too.
    pub last: bool,
}

impl Llama {
    /// Loads a part of the model. `progress` hears how much is done, 0 to 1.
    pub fn load(
        file: &mut ModelFile,
        part: Part,
        device: &Device,
        progress: &mut dyn FnMut(f64),
    ) -> std::result::Result<Self, Failure> {
        let config = Config::read(file)?;
        let Part {
            layers,
            first,
            last,
        } = part;
        check_layers(file, &config, part)?;
        let (hidden, vocab) = (config.hidden, config.vocab);
        let tied = !file.has_tensor("output.weight");
        let embedding = if first || last && tied {
            Some(Arc::new(file.tensor(
                "token_embd.weight",
                &[vocab, hidden],
                device,
            )?))
        } else {
            None
        };
        let mut blocks = Vec::new();
        for layer in layers.start..layers.end {
            progress(f64::from(layer - layers.start) / f64::from(layers.end - layers.start));
            blocks.push(
                Loader {
                    file,
                    device,
                    layer,
                }
                .block(&config)?,
            );
        }
        let head = match (last, &embedding) {
            (false, _) => None,
            (true, Some(embedding)) if tied => Some(Head {
                norm: final_norm(file, hidden, device)?,
                output: QMatMul::from_arc(embedding.clone())?,
            }),
            (true, _) => {
                let output = file.tensor("output.weight", &[vocab, hidden], device)?;
                Some(Head {
                    norm: final_norm(file, hidden, device)?,
                    output: QMatMul::from_qtensor(output)?,
                })
            }
        };
        let frequencies = frequencies(file, &config, device)?;
        Ok(Self {
            config,
            blocks,
            embedding: embedding.filter(|_| first),
            head,
            frequencies,
            device: device.clone(),
        })
    }

    /// Empty caches of one request, one per layer.
    pub fn caches(&self, positions_max: usize) -> Result<Vec<LayerCache>> {
        let Config { kv_heads, head, .. } = self.config;
        self.blocks
            .iter()
            .map(|_| LayerCache::new(kv_heads, head, positions_max, &self.device))
            .collect()
    }

    /// Tokens → hidden states; in the first stage.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        let Some(embedding) = &self.embedding else {
            candle_core::bail!("only the first stage has the embedding")
        };
        embedding.embedding(&Tensor::new(tokens, &self.device)?)
    }

    /// Numbers → hidden states.
    pub fn hidden(&self, numbers: Vec<f32>) -> Result<Tensor> {
        let positions = numbers.len() / self.config.hidden;
        Tensor::from_vec(numbers, (positions, self.config.hidden), &self.device)
    }

    /// Hidden states through this stage's layers. `position` is the first one's.
    pub fn forward(
        &self,
        hidden: Tensor,
        position: usize,
        caches: &mut [LayerCache],
    ) -> Result<Tensor> {
        let turns = self.turns(position, hidden.dim(0)?)?;
        let mut hidden = hidden;
        for (block, cache) in self.blocks.iter().zip(caches) {
            hidden = block.forward(&hidden, position, &turns, cache, &self.config)?;
        }
        Ok(hidden)
    }

    /// The score of each token after the last of these positions; in the last stage.
    pub fn scores(&self, hidden: &Tensor) -> Result<Vec<f32>> {
        let Some(Head { norm, output }) = &self.head else {
            candle_core::bail!("only the last stage has the output")
        };
        let last = hidden.narrow(0, hidden.dim(0)? - 1, 1)?;
        let last = rms_norm(&last.contiguous()?, norm, self.config.rms_epsilon)?;
        output.forward(&last)?.flatten_all()?.to_vec1()
    }

    /// Cosines and sines for these positions, `positions × 1 × half a head`.
    fn turns(&self, position: usize, positions: usize) -> Result<(Tensor, Tensor)> {
        let half = self.frequencies.len();
        let mut cosines = Vec::with_capacity(positions * half);
        let mut sines = Vec::with_capacity(positions * half);
        for position in position..position + positions {
            for frequency in &self.frequencies {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                cosines.push(cosine);
                sines.push(sine);
            }
        }
        let shape = (positions, 1, half);
        Ok((
            Tensor::from_vec(cosines, shape, &self.device)?,
            Tensor::from_vec(sines, shape, &self.device)?,
        ))
    }
}

/// Refuses layers that the model does not have, and an end that is not the model's.
fn check_layers(file: &ModelFile, config: &Config, part: Part) -> std::result::Result<(), Failure> {
    let Part { layers, last, .. } = part;
    let (shown, count) = (file.path().display(), config.layers);
    if layers.end > count || layers.start >= layers.end {
        return Err(Failure::stage(format!(
            "layers {layers} were asked for; the model `{shown}` has {count}, 0..{count}"
        )));
    }
    if last != (layers.end == count) {
        let wrong = if last {
            "the last stage must end"
        } else {
            "only the last stage may end"
        };
        return Err(Failure::stage(format!(
            "layers {layers} were asked for; {wrong} with the last layer of the model `{shown}`, which has {count}"
        )));
    }
    Ok(())
}

fn final_norm(
    file: &mut ModelFile,
    hidden: usize,
    device: &Device,
) -> std::result::Result<Tensor, Failure> {
    Ok(file
        .tensor("output_norm.weight", &[hidden], device)?
        .dequantize(device)?)
}

/// Turns per position: the base's powers, divided by the factors that long-context models bring as a tensor.
fn frequencies(
    file: &mut ModelFile,
    config: &Config,
    device: &Device,
) -> std::result::Result<Vec<f32>, Failure> {
    let half = config.head / 2;
    let factors = if file.has_tensor("rope_freqs.weight") {
        file.tensor("rope_freqs.weight", &[half], &Device::Cpu)?
            .dequantize(device)?
            .to_vec1::<f32>()?
    } else {
        vec![1.0; half]
    };
    let frequency = |(pair, factor): (usize, &f32)| {
        let power = config
            .rope_base
            .powf(-2.0 * pair as f64 / config.head as f64);
        (power / config.rope_scale / f64::from(*factor)) as f32
    };
    Ok(factors.iter().enumerate().map(frequency).collect())
}

/// Loads the tensors of one layer.
struct Loader<'a> {
    file: &'a mut ModelFile,
    device: &'a Device,
    layer: u32,
}

/// Every tensor that a layer may have.
const BLOCK_TENSORS: [&str; 13] = [
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_output.bias",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
];

impl Loader<'_> {
    fn block(&mut self, config: &Config) -> std::result::Result<Block, Failure> {
        let prefix = format!("blk.{}.", self.layer);
        let names = self.file.tensor_names();
        let mut own = names
            .iter()
            .filter_map(|name| name.strip_prefix(prefix.as_str()));
        if let Some(unknown) = own.find(|name| !BLOCK_TENSORS.contains(name)) {
            return Err(self.file.failure(format!(
                "has a tensor `{prefix}{unknown}` that this worker does not know"
            )));
        }
        let (hidden, inner) = (config.hidden, config.feed_forward);
        let (queries, keys) = (config.heads * config.head, config.kv_heads * config.head);
        Ok(Block {
            attention_norm: self.norm("attn_norm")?,
            query: self.linear("attn_q", queries, hidden)?,
            key: self.linear("attn_k", keys, hidden)?,
            value: self.linear("attn_v", keys, hidden)?,
            output: self.linear("attn_output", hidden, queries)?,
            feed_forward_norm: self.norm("ffn_norm")?,
            gate: self.linear("ffn_gate", inner, hidden)?,
            up: self.linear("ffn_up", inner, hidden)?,
            down: self.linear("ffn_down", hidden, inner)?,
        })
    }

    fn name(&self, name: &str, kind: &str) -> String {
        format!("blk.{}.{name}.{kind}", self.layer)
    }

    fn norm(&mut self, name: &str) -> std::result::Result<Tensor, Failure> {
        let name = self.name(name, "weight");
        let width = self
            .file
            .shape(&name)
            .and_then(|shape| shape.first().copied())
            .unwrap_or(0);
        Ok(self
            .file
            .tensor(&name, &[width], self.device)?
            .dequantize(self.device)?)
    }

    fn linear(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
    ) -> std::result::Result<Linear, Failure> {
        let weight = self
            .file
            .tensor(&self.name(name, "weight"), &[rows, columns], self.device)?;
        let bias_name = self.name(name, "bias");
        let bias = if self.file.has_tensor(&bias_name) {
            Some(
                self.file
                    .tensor(&bias_name, &[rows], self.device)?
                    .dequantize(self.device)?,
            )
        } else {
            None
        };
        Ok(Linear::new(weight, bias)?)
    }
}

impl Block {
    fn forward(
        &self,
        x: &Tensor,
        position: usize,
        turns: &(Tensor, Tensor),
        cache: &mut LayerCache,
        config: &Config,
    ) -> Result<Tensor> {
        let normed = Input::new(rms_norm(x, &self.attention_norm, config.rms_epsilon)?);
        let attended = self.attention(&normed, position, turns, cache, config)?;
        let x = (x + self.output.forward(&Input::new(attended))?)?;
        let normed = Input::new(rms_norm(&x, &self.feed_forward_norm, config.rms_epsilon)?);
        let inner = (silu(&self.gate.forward(&normed)?)? * self.up.forward(&normed)?)?;
        x + self.down.forward(&Input::new(inner))?
    }

    fn attention(
        &self,
        x: &Input,
        position: usize,
        (cosines, sines): &(Tensor, Tensor),
        cache: &mut LayerCache,
        config: &Config,
    ) -> Result<Tensor> {
        let &Config {
            heads,
            kv_heads,
            head,
            ..
        } = config;
        let positions = cosines.dim(0)?;
        // One position per batch entry: so the rotation needs no transposed copy.
        let rotated = |x: Tensor, heads: usize| {
            rope_i(&x.reshape((positions, heads, 1, head))?, cosines, sines)
        };
        let queries = rotated(self.query.forward(x)?, heads)?.reshape((positions, heads, head))?;
        let keys = rotated(self.key.forward(x)?, kv_heads)?.reshape((positions, kv_heads, head))?;
        let values = self
            .value
            .forward(x)?
            .reshape((positions, kv_heads, head))?;
        let (keys, values) = cache.append(&keys, &values)?;
        let attended = if queries.device().is_cpu() {
            attend_cpu(&queries, &keys, &values, position)?
        } else {
            attend(&queries, &keys, &values, position)?
        };
        attended.reshape((positions, heads * head))
    }
}

/// Attention by candle's fused kernel for the processor: `positions × heads × width` each, also the result.
fn attend_cpu(queries: &Tensor, keys: &Tensor, values: &Tensor, position: usize) -> Result<Tensor> {
    let scale = 1.0 / (queries.dim(2)? as f32).sqrt();
    let mask = AttnMask::causal_with_offset(position);
    let (queries, keys, values) = (
        queries.unsqueeze(0)?,
        keys.unsqueeze(0)?,
        values.unsqueeze(0)?,
    );
    flash_attn::<f32>(&queries, &keys, &values, scale, mask, None, None)?
        .squeeze(0)?
        .transpose(0, 1)
}

/// The same by plain tensor operations, on any device.
fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, position: usize) -> Result<Tensor> {
    let (positions, heads, width) = queries.dims3()?;
    let (all, kv_heads, _) = keys.dims3()?;
    let spread = |x: &Tensor| {
        let x =
            x.transpose(0, 1)?
                .unsqueeze(1)?
                .expand((kv_heads, heads / kv_heads, all, width))?;
        x.contiguous()?.reshape((heads, all, width))
    };
    let (queries, keys, values) = (
        queries.transpose(0, 1)?.contiguous()?,
        spread(keys)?,
        spread(values)?,
    );
    let scores = (queries.matmul(&keys.transpose(D::Minus1, D::Minus2)?)? / (width as f64).sqrt())?;
    let seen = |query: usize, key: usize| {
        if key <= position + query {
            0.0
        } else {
            f32::NEG_INFINITY
        }
    };
    let mask: Vec<f32> = (0..positions)
        .flat_map(|query| (0..all).map(move |key| seen(query, key)))
        .collect();
    let scores =
        scores.broadcast_add(&Tensor::from_vec(mask, (positions, all), scores.device())?)?;
    softmax_last_dim(&scores)?.matmul(&values)?.transpose(0, 1)
}

#[cfg(test)]
mod tests;
