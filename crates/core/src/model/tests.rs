//! Headers that are whole, damaged or a lie; what a stage needs of a file; where a model is cut.

use super::*;

/// Writes a small GGUF file: header and tensors of the given layers, all zero.
#[derive(Clone)]
struct Small {
    blocks: u32,
    tied: bool,
    architecture: &'static str,
    rope: bool,
}

const HIDDEN: u64 = 64;
const VOCABULARY: u64 = 96;

impl Small {
    fn new(blocks: u32) -> Self {
        Self {
            blocks,
            tied: true,
            architecture: "llama",
            rope: false,
        }
    }

    /// Name, columns, rows, type.
    fn tensors(&self) -> Vec<(String, u64, u64, u32)> {
        let mut all = vec![("token_embd.weight".to_owned(), HIDDEN, VOCABULARY, 8)];
        if self.rope {
            all.push(("rope_freqs.weight".to_owned(), 8, 0, 0));
        }
        for block in 0..self.blocks {
            all.push((format!("blk.{block}.attn_norm.weight"), HIDDEN, 0, 0));
            all.push((format!("blk.{block}.attn_q.weight"), HIDDEN, HIDDEN, 3));
            all.push((format!("blk.{block}.ffn_up.weight"), HIDDEN, 2 * HIDDEN, 3));
        }
        all.push(("output_norm.weight".to_owned(), HIDDEN, 0, 0));
        if !self.tied {
            all.push(("output.weight".to_owned(), HIDDEN, VOCABULARY, 8));
        }
        all
    }

    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        let number = |out: &mut Vec<u8>, key: &str, number: u32| {
            text(out, key);
            out.extend(4_u32.to_le_bytes());
            out.extend(number.to_le_bytes());
        };
        let tensors = self.tensors();
        out.extend(3_u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(7_u64.to_le_bytes());
        text(&mut out, "general.architecture");
        out.extend(8_u32.to_le_bytes());
        text(&mut out, self.architecture);
        number(&mut out, "llama.block_count", self.blocks);
        number(&mut out, "llama.embedding_length", 64);
        number(&mut out, "llama.context_length", 128);
        number(&mut out, "llama.attention.head_count", 4);
        number(&mut out, "llama.attention.head_count_kv", 2);
        text(&mut out, "tokenizer.ggml.tokens");
        out.extend(9_u32.to_le_bytes());
        out.extend(8_u32.to_le_bytes());
        out.extend(VOCABULARY.to_le_bytes());
        for token in 0..VOCABULARY {
            text(&mut out, &format!("t{token}"));
        }
        let mut at = 0_u64;
        for (name, columns, rows, kind) in tensors {
            text(&mut out, &name);
            out.extend(if rows == 0 { 1_u32 } else { 2 }.to_le_bytes());
            out.extend(columns.to_le_bytes());
            if rows > 0 {
                out.extend(rows.to_le_bytes());
            }
            out.extend(kind.to_le_bytes());
            out.extend(at.to_le_bytes());
            at += Self::length(columns, rows, kind).next_multiple_of(32);
        }
        out
    }

    fn length(columns: u64, rows: u64, kind: u32) -> u64 {
        let numbers = columns * rows.max(1);
        match kind {
            0 => numbers * 4,
            3 => numbers / 32 * 20,
            _ => numbers / 32 * 34,
        }
    }

    fn index(&self) -> Index {
        match Index::parse(&self.header()).expect("sound") {
            Parsed::Whole(index) => *index,
            Parsed::NeedMore(more) => panic!("needs {more}"),
        }
    }
}

fn layers(start: u32, end: u32) -> Layers {
    Layers { start, end }
}

#[test]
fn a_header_is_read() {
    let index = Small::new(3).index();
    assert_eq!((index.architecture, index.blocks), ("llama", 3));
    assert_eq!((index.embedding_length, index.context_length), (64, 128));
    assert_eq!((index.vocabulary, index.is_tied), (96, true));
    // Two heads of 16 numbers, keys and values.
    assert_eq!(index.cache_numbers, 2 * 16 * 2);
    assert_eq!(index.data_start % 32, 0);
    let embedding = &index.tensors["token_embd.weight"];
    assert_eq!(embedding.bytes.start, index.data_start);
    assert_eq!(
        embedding.bytes.end - embedding.bytes.start,
        64 * 96 / 32 * 34
    );
    assert!(embedding.is_matrix && !index.tensors["output_norm.weight"].is_matrix);
    index.check_size(Bytes(index.end())).expect("whole");
    let cut = index.check_size(Bytes(index.end() - 1)).expect_err("cut");
    assert_eq!(cut.code, "model/cut");
    assert!(
        !Small {
            tied: false,
            ..Small::new(1)
        }
        .index()
        .is_tied
    );
}

#[test]
fn a_header_may_come_in_pieces() {
    let header = Small::new(2).header();
    for length in 0..header.len() {
        match Index::parse(&header[..length]).expect("nothing wrong yet") {
            Parsed::NeedMore(more) => assert!(more > length as u64, "{more} at {length}"),
            Parsed::Whole(_) => panic!("whole at {length}"),
        }
    }
    // What follows is not read.
    let mut longer = header.clone();
    longer.extend([0xff; 100]);
    assert_eq!(Index::parse(&longer), Index::parse(&header));
}

#[test]
fn a_damaged_header_never_panics_and_never_asks_for_the_moon() {
    let header = Small::new(2).header();
    let asked = |bytes: &[u8]| {
        if let Ok(Parsed::NeedMore(more)) = Index::parse(bytes) {
            assert!(more <= HEADER_MAX, "{more}");
        }
    };
    for at in 0..header.len() {
        for value in [
            0,
            1,
            0x7f,
            0xff,
            header[at] ^ 0x80,
            header[at].wrapping_add(1),
        ] {
            let mut damaged = header.clone();
            damaged[at] = value;
            asked(&damaged);
            for more in 1..8.min(header.len() - at) {
                damaged[at + more] = value;
            }
            asked(&damaged);
        }
    }
}

#[test]
fn what_is_wrong_has_a_code() {
    let code = |bytes: &[u8]| Index::parse(bytes).expect_err("wrong").code;
    assert_eq!(code(b"PK\x03\x04"), "model/not-gguf");
    assert_eq!(code(b"<!"), "model/not-gguf");
    assert_eq!(code(b"GGUF\x01\x00\x00\x00"), "model/version");
    assert_eq!(code(b"GGUF\x00\x00\x00\x03"), "model/version");
    let gemma = Small {
        architecture: "gemma3",
        ..Small::new(1)
    };
    let error = Index::parse(&gemma.header()).expect_err("unknown");
    assert_eq!(error.code, "model/unknown-architecture");
    assert!(error.message.contains("gemma3"));
    assert!(error.hint.expect("a hint").contains("llama"));
    let mut many = b"GGUF\x03\x00\x00\x00".to_vec();
    many.extend([0xff; 16]);
    assert_eq!(code(&many), "model/malformed");
    let header = Small::new(1).header();
    let name = b"output_norm.weight";
    let at = header.windows(name.len()).position(|w| w == name);
    let kind = at.expect("there") + name.len() + 4 + 8;
    let mut typed = header.clone();
    typed[kind] = 99;
    assert_eq!(code(&typed), "model/tensor-type");
    let error = Small::new(2).index().check_layers(layers(1, 3));
    assert_eq!(error.expect_err("out").code, "model/layers-out-of-range");
    assert!(Small::new(2).index().check_layers(layers(1, 1)).is_err());
}

#[test]
fn a_stage_needs_its_layers_and_what_comes_with_its_place() {
    let small = Small {
        rope: true,
        ..Small::new(3)
    };
    let index = small.index();
    let has = |ranges: &[Range<u64>], name: &str| {
        let tensor = &index.tensors[name].bytes;
        ranges
            .iter()
            .any(|r| r.start <= tensor.start && tensor.end <= r.end)
    };
    let names: Vec<&String> = index.tensors.keys().collect();
    for (layers, entry, exit) in [
        (layers(0, 1), true, false),
        (layers(1, 2), false, false),
        (layers(2, 3), false, true),
        (layers(0, 3), true, true),
    ] {
        let ranges = index.ranges(&[layers], entry, exit).expect("in range");
        assert_eq!(ranges[0].start, 0, "the header");
        assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        for name in &names {
            let block: Option<u32> = name
                .strip_prefix("blk.")
                .and_then(|rest| rest[..1].parse().ok());
            let needed = match block {
                Some(block) => layers.start <= block && block < layers.end,
                None => match name.as_str() {
                    // The head is the embedding.
                    "token_embd.weight" => entry || exit,
                    "output_norm.weight" => exit,
                    _ => true,
                },
            };
            assert_eq!(has(&ranges, name), needed, "{name} for {layers}");
        }
        let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert_eq!(index.bytes_of(&[layers], entry, exit), Ok(Bytes(sum)));
    }
    let both = index.ranges(&[layers(0, 1), layers(1, 3)], true, true);
    let whole = index.ranges(&[layers(0, 3)], true, true);
    assert_eq!(both, whole);
    assert!(index.ranges(&[layers(2, 4)], false, false).is_err());
}

#[test]
fn the_slowest_stage_is_as_fast_as_can_be() {
    // A layer has 3 * 64 * 64 numbers, the head 96 * 64: half a layer.
    let index = Small::new(5).index();
    let split = |stages: usize| split_auto(&index, &vec![None; stages], 0).expect("fits");
    assert_eq!(split(1), [layers(0, 5)]);
    let whole = index.memory_of(layers(0, 5), true, true, 0);
    let exact = [whole.ok()];
    assert_eq!(split_auto(&index, &exact, 0), Ok(vec![layers(0, 5)]));
    // 3 and 2.5 beat 2 and 3.5.
    assert_eq!(split(2), [layers(0, 3), layers(3, 5)]);
    assert_eq!(split(5).len(), 5);
    let error = split_auto(&index, &[None; 6], 0).expect_err("too many");
    assert_eq!(
        error,
        SplitError::Stages {
            blocks: 5,
            stages: 6
        }
    );
    assert!(split_auto(&index, &[], 0).is_err());

    // Against every split there is.
    let work = |start: u32, end: u32| 2 * u64::from(end - start) + u64::from(end == 9);
    let index = Small::new(9).index();
    let best = (1..8).flat_map(|a| (a + 1..9).map(move |b| [0, a, b, 9]));
    let slowest = |cuts: &[u32]| cuts.windows(2).map(|c| work(c[0], c[1])).max();
    let best = best.map(|cuts| slowest(&cuts)).min().expect("some");
    let found = split_auto(&index, &[None; 3], 0).expect("fits");
    let cuts: Vec<u32> = [0].into_iter().chain(found.iter().map(|l| l.end)).collect();
    assert_eq!(slowest(&cuts), best);
}

#[test]
fn the_head_counts_for_what_it_multiplies() {
    // The shape of SmolLM2-135M: the tied head is eight layers' worth of work.
    let mut index = Small::new(30).index();
    for (name, tensor) in &mut index.tensors {
        tensor.numbers = match part_of(name) {
            Part::Block(_) => 3_538_944 / 2,
            Part::Embedding => 28_311_552,
            Part::Output | Part::Common => tensor.numbers,
        };
    }
    let split = split_auto(&index, &[None; 2], 0).expect("fits");
    assert_eq!(split, [layers(0, 19), layers(19, 30)]);
}

#[test]
fn memory_is_a_limit_and_the_error_has_the_numbers() {
    let index = Small::new(6).index();
    let free = split_auto(&index, &[None; 2], 0).expect("fits");
    assert_eq!(free, [layers(0, 3), layers(3, 6)]);
    let two = index
        .memory_of(layers(0, 2), true, false, 0)
        .expect("there");
    let bound = split_auto(&index, &[Some(two), None], 0).expect("fits");
    assert_eq!(bound, [layers(0, 2), layers(2, 6)]);
    // Keys and values take memory too.
    let with_cache = split_auto(&index, &[Some(two), None], 10).expect("fits");
    assert_eq!(with_cache, [layers(0, 1), layers(1, 6)]);
    let little = Some(Bytes(10));
    let error = split_auto(&index, &[little, None], 0).expect_err("too little");
    let text = error.to_string();
    assert!(text.contains("they have 10 B, any"), "{text}");
    let SplitError::Memory { needed, memory } = error else {
        panic!("{text}");
    };
    assert_eq!((needed.len(), memory), (2, vec![little, None]));
}

#[test]
fn splitting_a_huge_model_over_many_machines_is_quick() {
    let index = Small::new(200).index();
    let split = split_auto(&index, &[None; 100], 0).expect("fits");
    assert_eq!(split.len(), 100);
    assert!(split.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn the_planner_s_summary_says_the_same_as_the_index() {
    for small in [
        Small {
            rope: true,
            ..Small::new(7)
        },
        Small {
            tied: false,
            ..Small::new(7)
        },
    ] {
        use crate::plan::{Memory, ModelShape};
        let index = small.index();
        let shape = ModelShape::from(&index);
        for (layers, entry, exit) in [
            (layers(0, 3), true, false),
            (layers(3, 7), false, true),
            (layers(2, 5), false, false),
            (layers(0, 7), true, true),
        ] {
            let weights = shape.weights(&[layers], entry, exit);
            assert_eq!(index.bytes_of(&[layers], entry, exit), Ok(weights));
        }
        for stages in 1..=7 {
            let split = split_auto(&index, &vec![None; stages], 0);
            assert_eq!(shape.split(stages), split.ok());
        }
        assert_eq!(shape.costs(9, Memory::Worker), Costs::of(&index, 9));
        assert_eq!(shape.costs(9, Memory::File), Costs::stored(&index, 9));
    }
}
