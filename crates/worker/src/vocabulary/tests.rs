//! Each kind of tokenizer, set up from a header and nothing else.

use std::io::BufWriter;

use candle_core::quantized::gguf_file;

use super::*;

#[test]
fn bytes_and_their_characters() {
    for byte in 0..=u8::MAX {
        assert_eq!(byte_of(character_of(byte)), Some(byte));
    }
    assert_eq!(
        (character_of(b' '), character_of(b'\n'), character_of(b'a')),
        ('Ġ', 'Ċ', 'a')
    );
    assert_eq!(byte_of('€'), None);
}

#[test]
fn pieces_merge_by_their_scores() {
    let tokens = ["a", "b", "ab", "ba", "aba"];
    let merges = merges_of_pieces(&tokens, &[0.0, 0.0, -2.0, -1.0, -3.0]);
    let merges: Vec<_> = merges
        .iter()
        .map(|(left, right)| format!("{left} {right}"))
        .collect();
    assert_eq!(merges, ["b a", "a b", "a ba", "ab a"]);
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn load(metadata: &[(&str, Value)]) -> Result<Vocabulary, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("header.gguf");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let mut file = BufWriter::new(std::fs::File::create(&path).expect("the folder is writable"));
    gguf_file::write(&mut file, &metadata, &[]).expect("the folder is writable");
    drop(file);
    let file = ModelFile::open(&path).map_err(|failure| failure.message)?;
    let loaded = Vocabulary::load(&file, true).map_err(|failure| failure.message)?;
    Ok(loaded.expect("a tokenizer"))
}

/// All bytes, some merges, two control tokens.
fn byte_pairs(pre: &str) -> Result<Vocabulary, String> {
    let merges = ["1 2", "12 3", "123 4", "Ġ a", "Ċ Ċ", "a Ġ", "' S"];
    let mut tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| character_of(byte).to_string())
        .collect();
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    let mut kinds = vec![Value::I32(1); tokens.len()];
    tokens.extend(["<s>", "<|im_end|>"].map(str::to_owned));
    kinds.extend([Value::I32(3), Value::I32(3)]);
    let bos = u32::try_from(tokens.len() - 2).expect("few");
    load(&[
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text(pre)),
        (
            "tokenizer.ggml.tokens",
            Value::Array(tokens.into_iter().map(Value::String).collect()),
        ),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        (
            "tokenizer.ggml.merges",
            Value::Array(merges.map(text).to_vec()),
        ),
        ("tokenizer.ggml.bos_token_id", Value::U32(bos)),
    ])
}

/// The tokens' texts, control tokens as nothing.
fn pieces(vocabulary: &Vocabulary, text: &str) -> Vec<String> {
    let tokens = vocabulary.encode(text).expect("any text");
    tokens
        .iter()
        .map(|token| String::from_utf8_lossy(vocabulary.bytes(*token)).into_owned())
        .collect()
}

#[test]
fn words_are_cut_as_the_header_says() {
    let check = |pre: &str, expected: &[&str]| {
        let vocabulary = byte_pairs(pre).expect(pre);
        assert_eq!(pieces(&vocabulary, "1234 a'S\n\na"), expected, "{pre}");
        let long = "Zażółć 12345 'S\r\n\t<|im_end|> \u{1f600} a  b";
        let tokens = vocabulary.encode(long).expect("any text");
        let bytes = tokens.iter().flat_map(|token| vocabulary.bytes(*token));
        let bytes: Vec<u8> = bytes.copied().collect();
        let whole = long.replace("<|im_end|>", "");
        assert_eq!(
            String::from_utf8(bytes),
            Ok(whole),
            "{pre}: nothing is lost"
        );
    };
    check("gpt-2", &["1234", " a", "'", "S", "\n", "\n", "a"]);
    check(
        "smollm",
        &["1", "2", "3", "4", " a", "'", "S", "\n", "\n", "a"],
    );
    check("llama-bpe", &["", "123", "4", " a", "'S", "\n\n", "a"]);
    check("qwen2", &["1", "2", "3", "4", " a", "'S", "\n\n", "a"]);
}

#[test]
fn control_tokens_are_read_and_the_first_one_is_not_doubled() {
    let vocabulary = byte_pairs("llama-bpe").expect("known");
    let bos = 256 + 7;
    assert_eq!(
        vocabulary.encode("<s>1<|im_end|>").expect("any text"),
        [bos, u32::from(b'1'), bos + 1]
    );
    assert_eq!(
        vocabulary.encode("1").expect("any text"),
        [bos, u32::from(b'1')]
    );
    assert!(vocabulary.is_final(bos + 1) && !vocabulary.is_final(bos));
    assert!(vocabulary.bytes(bos + 1).is_empty() && vocabulary.bytes(9999).is_empty());
    assert_eq!(
        byte_pairs("gpt-2")
            .expect("known")
            .encode("1")
            .expect("any text"),
        [u32::from(b'1')]
    );
}

#[test]
fn pieces_fall_back_to_bytes() {
    let words = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "ab", "▁ab"];
    let mut tokens: Vec<Value> = words.map(text).to_vec();
    let mut kinds: Vec<Value> = [2, 3, 3, 1, 1, 1, 1, 1, 1].map(Value::I32).to_vec();
    let mut scores: Vec<Value> = [0.0, 0.0, 0.0, -9.0, -8.0, -7.0, -3.0, -2.0, -1.0]
        .map(Value::F32)
        .to_vec();
    for byte in 0..=u8::MAX {
        tokens.push(Value::String(format!("<0x{byte:02X}>")));
        kinds.push(Value::I32(6));
        scores.push(Value::F32(0.0));
    }
    let vocabulary = load(&[
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", Value::Array(tokens)),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        ("tokenizer.ggml.scores", Value::Array(scores)),
        ("tokenizer.ggml.bos_token_id", Value::U32(1)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
    ])
    .expect("known");
    let euro = [0xe2, 0x82, 0xac].map(|byte: u32| 9 + byte);
    assert_eq!(
        vocabulary.encode("ab a€").expect("any text"),
        [&[1, 8, 6][..], &euro].concat()
    );
    assert_eq!(pieces(&vocabulary, "<s>ab</s>b").concat(), " ab b");
    let bytes: Vec<u8> = euro
        .iter()
        .flat_map(|token| vocabulary.bytes(*token))
        .copied()
        .collect();
    assert_eq!(bytes, "€".as_bytes());
    assert_eq!(
        vocabulary.bos_and_eos(),
        ("<s>".to_owned(), "</s>".to_owned())
    );
}

#[test]
fn a_tokenizer_of_another_kind_is_refused_by_name() {
    let message = byte_pairs("tekken").err().expect("not known");
    assert!(
        message.ends_with(
            "cuts words by `tekken`; this worker knows gpt-2, smollm, llama-bpe and qwen2"
        ),
        "{message}"
    );
    let tokens = Value::Array(vec![text("a")]);
    let message = load(&[
        ("tokenizer.ggml.model", text("bert")),
        ("tokenizer.ggml.tokens", tokens),
    ])
    .err();
    let message = message.expect("not known");
    assert!(message.contains("has a `bert` tokenizer"), "{message}");
}
