//! A tiny llama model with random weights, for tests and rehearsals: it talks nonsense, always the same.
//!
//! What always holds: the file is the same bytes on each machine, a few hundred kB; six layers, so that any split up to
//! six stages can be tried; a byte-pair tokenizer that takes every text and a chat template are inside.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Tensor};

use crate::vocabulary::character_of;

/// Layers of the model.
pub const LAYERS: u32 = 6;
/// Numbers per position of a hidden state.
pub const HIDDEN: u32 = 64;
/// The most positions.
pub const CONTEXT: u32 = 512;
/// Tokens: 256 bytes, the merges, three control tokens.
pub const VOCAB: u32 = 256 + MERGES.len() as u32 + 3;

const HEADS: u32 = 4;
const KV_HEADS: u32 = 2;
const FEED_FORWARD: u32 = 128;

const MERGES: [(&str, &str); 12] = [
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("e", "r"),
    ("a", "n"),
    ("Ġ", "the"),
    ("Ġ", "a"),
    ("o", "n"),
    ("an", "d"),
    ("Ġ", "and"),
    ("H", "e"),
    ("l", "l"),
];

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
{% endif %}";

/// Writes the model.
pub fn write(path: &Path) -> Result<()> {
    let metadata = metadata("llama");
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors = tensors()?;
    let tensors: Vec<(&str, &QTensor)> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    let mut file = BufWriter::new(File::create(path)?);
    gguf_file::write(&mut file, &metadata, &tensors)?;
    file.flush()?;
    Ok(())
}

/// Writes the header of a model of another architecture, without tensors.
pub fn write_foreign(path: &Path, architecture: &str) -> Result<()> {
    let metadata = metadata(architecture);
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let mut file = BufWriter::new(File::create(path)?);
    gguf_file::write(&mut file, &metadata, &[])?;
    file.flush()?;
    Ok(())
}

fn metadata(architecture: &str) -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let mut tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| character_of(byte).to_string())
        .collect();
    tokens.extend(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
    let kinds = |count: usize, kind: i32| std::iter::repeat_n(Value::I32(kind), count);
    let kinds = kinds(tokens.len(), 1)
        .chain(kinds(controls.len(), 3))
        .collect();
    tokens.extend(controls.map(str::to_owned));
    let merges = MERGES
        .iter()
        .map(|(left, right)| Value::String(format!("{left} {right}")))
        .collect();
    vec![
        ("general.architecture", text(architecture)),
        ("general.name", text("tiny")),
        ("llama.block_count", Value::U32(LAYERS)),
        ("llama.context_length", Value::U32(CONTEXT)),
        ("llama.embedding_length", Value::U32(HIDDEN)),
        ("llama.feed_forward_length", Value::U32(FEED_FORWARD)),
        ("llama.attention.head_count", Value::U32(HEADS)),
        ("llama.attention.head_count_kv", Value::U32(KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        (
            "tokenizer.ggml.tokens",
            Value::Array(tokens.into_iter().map(Value::String).collect()),
        ),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        ("tokenizer.ggml.merges", Value::Array(merges)),
        ("tokenizer.ggml.bos_token_id", Value::U32(VOCAB - 3)),
        ("tokenizer.ggml.eos_token_id", Value::U32(VOCAB - 1)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", text(CHAT_TEMPLATE)),
    ]
}

fn tensors() -> Result<Vec<(String, QTensor)>> {
    let (hidden, inner) = (HIDDEN as usize, FEED_FORWARD as usize);
    let keys = hidden / HEADS as usize * KV_HEADS as usize;
    let mut random = Random(0x5eed);
    let mut tensors = vec![("token_embd.weight".to_owned(), embedding(&mut random)?)];
    for layer in 0..LAYERS {
        let mut add =
            |name: &str, tensor| tensors.push((format!("blk.{layer}.{name}.weight"), tensor));
        add("attn_norm", norm()?);
        add("attn_q", matrix(&mut random, hidden, hidden)?);
        add("attn_k", matrix(&mut random, keys, hidden)?);
        add("attn_v", matrix(&mut random, keys, hidden)?);
        add("attn_output", matrix(&mut random, hidden, hidden)?);
        add("ffn_norm", norm()?);
        add("ffn_gate", matrix(&mut random, inner, hidden)?);
        add("ffn_up", matrix(&mut random, inner, hidden)?);
        add("ffn_down", matrix(&mut random, hidden, inner)?);
    }
    tensors.push(("output_norm.weight".to_owned(), norm()?));
    tensors.push(("output.weight".to_owned(), output(&mut random)?));
    Ok(tensors)
}

fn norm() -> Result<QTensor> {
    QTensor::quantize(
        &Tensor::new(vec![1.0_f32; HIDDEN as usize], &Device::Cpu)?,
        GgmlDType::F32,
    )
}

/// Random weights that keep the size of what goes through them.
fn matrix(random: &mut Random, rows: usize, columns: usize) -> Result<QTensor> {
    let size = (3.0 / columns as f32).sqrt();
    let numbers: Vec<f32> = (0..rows * columns).map(|_| size * random.next()).collect();
    QTensor::quantize(
        &Tensor::from_vec(numbers, (rows, columns), &Device::Cpu)?,
        GgmlDType::Q8_0,
    )
}

/// Rows as long as what the layers add, so that the last token weighs in what comes next.
fn embedding(random: &mut Random) -> Result<QTensor> {
    let numbers: Vec<f32> = (0..VOCAB * HIDDEN).map(|_| 2.0 * random.next()).collect();
    let shape = (VOCAB as usize, HIDDEN as usize);
    QTensor::quantize(
        &Tensor::from_vec(numbers, shape, &Device::Cpu)?,
        GgmlDType::Q8_0,
    )
}

/// Tokens that are not plain text score 0, so that greedy answers are readable and have the length asked for.
fn output(random: &mut Random) -> Result<QTensor> {
    let columns = HIDDEN as usize;
    let size = (3.0 / columns as f32).sqrt();
    let plain = |token: u32| match u8::try_from(token) {
        Ok(byte) => byte == b' ' || byte.is_ascii_lowercase(),
        Err(_) => token < VOCAB - 3,
    };
    let mut numbers = Vec::with_capacity(VOCAB as usize * columns);
    for token in 0..VOCAB {
        let scale = if plain(token) { size } else { 0.0 };
        numbers.extend((0..columns).map(|_| scale * random.next()));
    }
    let shape = (VOCAB as usize, columns);
    QTensor::quantize(
        &Tensor::from_vec(numbers, shape, &Device::Cpu)?,
        GgmlDType::Q8_0,
    )
}

/// Xorshift: enough for weights that mean nothing.
struct Random(u64);

impl Random {
    /// From -1 to 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }
}
