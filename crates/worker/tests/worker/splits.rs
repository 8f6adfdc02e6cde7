//! However the layers are spread, the answer is the same.

use std::path::{Path, PathBuf};

use candle_core::Device;
use stageline_core::stage_protocol::{
    ChatMessage, Dtype, Finish, FromWorker, Layers, Prompt, Sampling,
};
use stageline_worker::gguf::ModelFile;
use stageline_worker::llama::{Llama, Part};
use stageline_worker::{hop, tiny};

use crate::chain::{Answer, Chain, Stage, greedy, model, text};

#[test]
fn a_split_pipeline_gives_the_same_tokens_as_an_unsplit_one() {
    let message = |role: &str, content: &str| ChatMessage {
        role: role.into(),
        content: content.into(),
    };
    let prompt = Prompt::Messages(vec![
        message("system", "Be brief."),
        message("user", "What is the sea?"),
    ]);
    let warm = Sampling {
        temperature: 0.8,
        top_p: 0.9,
        seed: 11,
        ..greedy(24)
    };
    let ask = |stages| {
        let mut chain = Chain::tiny(stages);
        (
            chain.ask(1, prompt.clone(), &greedy(48)),
            chain.ask(2, prompt.clone(), &warm),
        )
    };
    let unsplit = ask(1);
    assert_eq!(
        (unsplit.0.tokens.len(), unsplit.0.finish),
        (48, Finish::Length)
    );
    let mut distinct = unsplit.0.tokens.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(
        distinct.len() > 8,
        "an answer that says something: {:?}",
        unsplit.0.text()
    );
    assert_ne!(unsplit.0.tokens[..24], unsplit.1.tokens);
    for stages in [2, 3, 6] {
        assert_eq!(ask(stages), unsplit, "{stages} stages");
    }
}

#[test]
fn a_long_prompt_comes_in_parts() {
    let prompt = "the sand in the hand ".repeat(30);
    let unsplit = Chain::tiny(1).ask(1, text(&prompt), &greedy(8));
    assert!(
        unsplit.prompt_tokens > 256 && unsplit.prompt_tokens < 500,
        "{}",
        unsplit.prompt_tokens
    );
    assert_eq!(Chain::tiny(3).ask(1, text(&prompt), &greedy(8)), unsplit);

    let mut chain = Chain::tiny(2);
    chain.begin(1, text(&prompt), &greedy(8));
    let mut parts = Vec::new();
    while parts.last().is_none_or(|(_, _, more)| *more) {
        match chain.workers[0].next() {
            Some(FromWorker::Hidden {
                activation,
                prompt_tokens,
                ..
            }) => {
                assert_eq!(
                    prompt_tokens,
                    parts.is_empty().then_some(unsplit.prompt_tokens)
                );
                parts.push((activation.position, activation.len, activation.more));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        parts,
        [(0, 256, true), (256, unsplit.prompt_tokens - 256, false)]
    );
}

/// With bf16 on the hop a split pipeline equals an unsplit run that rounds at the same cut.
#[test]
fn bf16_rounds_at_the_cut_and_nowhere_else() {
    let stage = |stage| Stage {
        dtype: Dtype::Bf16,
        ..Stage::of(stage, 2)
    };
    let answer = Chain::start([stage(0), stage(1)]).ask(1, text("the end"), &greedy(32));
    assert_eq!(answer.tokens, unsplit_but_rounded(&answer, &[0, 3, 6]));
}

fn unsplit_but_rounded(answer: &Answer, cuts: &[u32]) -> Vec<u32> {
    let part = |bounds: &[u32]| {
        let layers = Layers {
            start: bounds[0],
            end: bounds[1],
        };
        let part = Part {
            layers,
            first: layers.start == 0,
            last: layers.end == tiny::LAYERS,
        };
        let mut file = ModelFile::open(model()).expect("the tiny model");
        let llama = Llama::load(&mut file, part, &Device::Cpu, &mut |_| {}).expect("loads");
        let caches = llama.caches(100).expect("small");
        (llama, caches)
    };
    let mut parts: Vec<_> = cuts.windows(2).map(part).collect();
    let file = ModelFile::open(model()).expect("the tiny model");
    let vocabulary = stageline_worker::vocabulary::Vocabulary::load(&file, true)
        .expect("loads")
        .expect("has one");
    let mut input = vocabulary.encode("the end").expect("any text");
    let (mut position, mut tokens) = (0, Vec::new());
    while tokens.len() < answer.tokens.len() {
        let mut hidden = parts[0].0.embed(&input).expect("tokens");
        let last = parts.len() - 1;
        for (index, (llama, caches)) in parts.iter_mut().enumerate() {
            hidden = llama.forward(hidden, position, caches).expect("computes");
            if index < last {
                let numbers = hidden
                    .flatten_all()
                    .expect("flat")
                    .to_vec1::<f32>()
                    .expect("f32");
                let rounded = hop::decode(&hop::encode(&numbers, Dtype::Bf16), Dtype::Bf16);
                assert_ne!(rounded, numbers);
                hidden = llama.hidden(rounded).expect("same shape");
            }
        }
        position += input.len();
        let scores = parts[last].0.scores(&hidden).expect("the last part");
        let token = stageline_worker::sample::pick(&scores, &greedy(1), 0).expect("numbers");
        tokens.push(token);
        input = vec![token];
    }
    tokens
}

/// A file of which only a stage's own part is filled serves that stage, and no other.
#[test]
fn a_sparse_file_serves_its_own_stage() {
    let folder = tempfile::tempdir().expect("a folder");
    let sparse = |layers: std::ops::Range<u32>, first: bool, last: bool| {
        let path = folder.path().join(format!("{}.gguf", layers.start));
        fill(&path, |name| {
            let own = |layer: u32| name.starts_with(&format!("blk.{layer}."));
            layers.clone().any(own)
                || first && name == "token_embd.weight"
                || last && name.starts_with("output")
        });
        path
    };
    let stage = |stage, model: PathBuf| Stage {
        model,
        ..Stage::of(stage, 2)
    };
    let (front, back) = (sparse(0..3, true, false), sparse(3..6, false, true));
    let answer =
        Chain::start([stage(0, front.clone()), stage(1, back)]).ask(1, text("Hello"), &greedy(8));
    assert_eq!(answer, Chain::tiny(1).ask(1, text("Hello"), &greedy(8)));

    match stage(1, front).start().next() {
        Some(FromWorker::Failed { message, .. }) => {
            assert!(
                message.contains("nothing but zeros in its tensor `blk.3.attn_norm.weight`"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// A copy of the tiny model with nothing but the header and some tensors.
fn fill(path: &Path, wanted: impl Fn(&str) -> bool) {
    let whole = std::fs::read(model()).expect("the tiny model");
    let content =
        candle_core::quantized::gguf_file::Content::read(&mut std::io::Cursor::new(&whole))
            .expect("a header");
    let start = usize::try_from(content.tensor_data_offset).expect("small");
    let mut copy = vec![0; whole.len()];
    copy[..start].copy_from_slice(&whole[..start]);
    for (name, info) in &content.tensor_infos {
        let elements = info.shape.elem_count() / info.ggml_dtype.block_size();
        let begin = start + usize::try_from(info.offset).expect("small");
        let range = begin..begin + elements * info.ggml_dtype.type_size();
        if wanted(name) {
            copy[range.clone()].copy_from_slice(&whole[range]);
        }
    }
    std::fs::write(path, copy).expect("the folder is writable");
}

/// The same with the model that examples use, which is not in the repository.
#[test]
#[ignore = "needs SmolLM2-135M-Instruct.Q4_1.gguf: STAGELINE_TEST_MODEL=path"]
#[expect(
    clippy::disallowed_methods,
    reason = "where the model lies is for whoever runs this test to say"
)]
fn a_real_model_is_split_without_a_difference() {
    let model = PathBuf::from(
        std::env::var("STAGELINE_TEST_MODEL").expect("STAGELINE_TEST_MODEL is the model's path"),
    );
    let content = "Why is the sky blue? Answer in two sentences.".to_owned();
    let prompt = Prompt::Messages(vec![ChatMessage {
        role: "user".into(),
        content,
    }]);
    let ask = |stages: u32| {
        let stage = |stage| {
            let layers = format!("{}..{}", 30 * stage / stages, 30 * (stage + 1) / stages);
            Stage {
                layers,
                model: model.clone(),
                ..Stage::of(stage, stages)
            }
        };
        Chain::start((0..stages).map(stage)).ask(1, prompt.clone(), &greedy(48))
    };
    let unsplit = ask(1);
    assert_eq!((unsplit.prompt_tokens, unsplit.tokens.len()), (41, 48));
    assert!(unsplit.text().contains("sky"), "{}", unsplit.text());
    for stages in [2, 3, 5] {
        assert_eq!(ask(stages), unsplit, "{stages} stages");
    }
}
