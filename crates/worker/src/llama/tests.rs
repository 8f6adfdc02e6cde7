//! The forward against a plain one that is slow and obvious, and the two ways of attention against each other.

use super::*;
use crate::tiny;

#[test]
fn both_ways_of_attention_agree() {
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
            .collect()
    };
    for (positions, all) in [(1, 9), (5, 9), (9, 9)] {
        let tensor = |positions: usize, heads: usize, seed| {
            let shape = (positions, heads, 8);
            Tensor::from_vec(numbers(positions * heads * 8, seed), shape, &Device::Cpu)
                .expect("shape")
        };
        let (queries, keys, values) = (
            tensor(positions, 6, 1),
            tensor(all, 2, 2),
            tensor(all, 2, 3),
        );
        let fused = attend_cpu(&queries, &keys, &values, all - positions).expect("fused");
        let plain = attend(&queries, &keys, &values, all - positions).expect("plain");
        let difference = (fused - plain)
            .expect("same shape")
            .abs()
            .expect("numbers")
            .max_all()
            .expect("some");
        let difference = difference.to_scalar::<f32>().expect("f32");
        assert!(difference < 1e-5, "{positions} of {all}: {difference}");
    }
}

/// The whole tiny model in nested loops over plain numbers, all positions at once.
struct Plain {
    file: ModelFile,
}

type Rows = Vec<Vec<f32>>;

impl Plain {
    fn weights(&mut self, name: &str) -> Rows {
        let shape = self.file.shape(name).expect(name).to_vec();
        let tensor = self.file.tensor(name, &shape, &Device::Cpu).expect(name);
        let tensor = tensor
            .dequantize(&Device::Cpu)
            .expect("known")
            .flatten_all()
            .expect("flat");
        let numbers = tensor.to_vec1::<f32>().expect("f32");
        numbers
            .chunks(*shape.last().expect("a dimension"))
            .map(<[f32]>::to_vec)
            .collect()
    }

    fn apply(&mut self, name: &str, x: &Rows) -> Rows {
        let weights = self.weights(name);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum();
        x.iter()
            .map(|x| weights.iter().map(|row| dot(row, x)).collect())
            .collect()
    }

    fn norm(&mut self, name: &str, x: &Rows) -> Rows {
        let weights = self.weights(name).remove(0);
        let norm = |x: &Vec<f32>| {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
            x.iter()
                .zip(&weights)
                .map(|(x, weight)| x / (mean + 1e-5).sqrt() * weight)
                .collect()
        };
        x.iter().map(norm).collect()
    }

    fn layer(&mut self, layer: u32, x: &Rows) -> Rows {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        let normed = self.norm(&name("attn_norm"), x);
        let queries = rotate(self.apply(&name("attn_q"), &normed));
        let keys = rotate(self.apply(&name("attn_k"), &normed));
        let values = self.apply(&name("attn_v"), &normed);
        let attended = attention(&queries, &keys, &values);
        let x = sum(x, &self.apply(&name("attn_output"), &attended));
        let normed = self.norm(&name("ffn_norm"), &x);
        let (gate, up) = (
            self.apply(&name("ffn_gate"), &normed),
            self.apply(&name("ffn_up"), &normed),
        );
        let silu = |x: &f32| x / (1.0 + (-x).exp());
        let inner = gate
            .iter()
            .zip(&up)
            .map(|(g, u)| g.iter().zip(u).map(|(g, u)| silu(g) * u).collect())
            .collect();
        sum(&x, &self.apply(&name("ffn_down"), &inner))
    }

    fn scores(&mut self, tokens: &[u32]) -> Vec<f32> {
        let embedding = self.weights("token_embd.weight");
        let mut x: Rows = tokens
            .iter()
            .map(|token| embedding[*token as usize].clone())
            .collect();
        for layer in 0..tiny::LAYERS {
            x = self.layer(layer, &x);
        }
        let last = vec![x.pop().expect("a position")];
        let normed = self.norm("output_norm.weight", &last);
        self.apply("output.weight", &normed).remove(0)
    }
}

const WIDTH: usize = 16;

fn sum(a: &Rows, b: &Rows) -> Rows {
    a.iter()
        .zip(b)
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect())
        .collect()
}

/// Neighbouring numbers of a head are turned by their position.
fn rotate(mut x: Rows) -> Rows {
    for (position, x) in x.iter_mut().enumerate() {
        for (index, pair) in x.chunks_exact_mut(2).enumerate() {
            let power = (index % (WIDTH / 2)) as f32 * 2.0 / WIDTH as f32;
            let (sine, cosine) = (position as f32 / 10_000_f32.powf(power)).sin_cos();
            (pair[0], pair[1]) = (
                pair[0] * cosine - pair[1] * sine,
                pair[0] * sine + pair[1] * cosine,
            );
        }
    }
    x
}

/// Four heads, each pair of them on one head of keys and values; no position sees a later one.
fn attention(queries: &Rows, keys: &Rows, values: &Rows) -> Rows {
    let head = |x: &[f32], head: usize| x[head * WIDTH..(head + 1) * WIDTH].to_vec();
    let one = |position: usize, index: usize| {
        let query = head(&queries[position], index);
        let score = |key: &Vec<f32>| {
            let dot: f32 = head(key, index / 2)
                .iter()
                .zip(&query)
                .map(|(a, b)| a * b)
                .sum();
            (dot / (WIDTH as f32).sqrt()).exp()
        };
        let scores: Vec<f32> = keys[..=position].iter().map(score).collect();
        let total: f32 = scores.iter().sum();
        let mut mixed = vec![0.0; WIDTH];
        for (score, value) in scores.iter().zip(values) {
            mixed
                .iter_mut()
                .zip(head(value, index / 2))
                .for_each(|(mixed, value)| *mixed += score / total * value);
        }
        mixed
    };
    (0..queries.len())
        .map(|position| (0..4).flat_map(|index| one(position, index)).collect())
        .collect()
}

/// How far two lists of scores are apart, as a part of their size.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let length = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    length(&mut a.iter().zip(b).map(|(a, b)| a - b)) / length(&mut a.iter().copied())
}

#[test]
fn the_forward_computes_what_a_plain_one_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    tiny::write(&path).expect("the folder is writable");
    let mut file = ModelFile::open(&path).expect("the tiny model");
    let part = Part {
        layers: Layers {
            start: 0,
            end: tiny::LAYERS,
        },
        first: true,
        last: true,
    };
    let llama = Llama::load(&mut file, part, &Device::Cpu, &mut |_| {}).expect("loads");
    let tokens: Vec<u32> = (0..40).map(|i| i * i * 7 % tiny::VOCAB).collect();
    let run = |parts: &[usize]| {
        let mut caches = llama.caches(100).expect("small");
        let (mut position, mut scores) = (0, Vec::new());
        for length in parts {
            let hidden = llama
                .embed(&tokens[position..position + length])
                .expect("tokens");
            let hidden = llama
                .forward(hidden, position, &mut caches)
                .expect("computes");
            scores = llama.scores(&hidden).expect("the last part");
            position += length;
        }
        scores
    };
    let plain = Plain { file }.scores(&tokens);
    let whole = run(&[40]);
    // Quantized kernels round what comes in to 8 bits; that is all that may differ.
    assert!(
        distance(&plain, &whole) < 0.05,
        "{}",
        distance(&plain, &whole)
    );
    for parts in [&[17, 23][..], &[1; 40], &[39, 1]] {
        assert!(
            distance(&whole, &run(parts)) < 0.05,
            "{parts:?}: {}",
            distance(&whole, &run(parts))
        );
    }
}
