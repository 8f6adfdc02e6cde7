//! Text ↔ tokens, by the tokenizer that comes inside the GGUF file.
//!
//! Encoding is the `tokenizers` library, set up from the file's header; decoding is a table of each token's bytes, so
//! that a stream can be decoded token by token.
//!
//! What always holds: the first stage needs the encoder, the last one only the table. A tokenizer of another kind is
//! refused by its name, since a wrong one would give a working pipeline that talks nonsense.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::quantized::gguf_file::Value;
use stageline_core::stage_protocol::excerpt;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

use crate::failure::Failure;
use crate::gguf::{ModelFile, as_fraction, as_text, whole};

/// The kinds of tokens that a GGUF header tells apart, by their numbers.
mod kind {
    pub(super) const UNKNOWN: u64 = 2;
    pub(super) const CONTROL: u64 = 3;
    pub(super) const USER_DEFINED: u64 = 4;
    pub(super) const BYTE: u64 = 6;
}

/// Control tokens that end an answer, besides those that the header names. Fine-tuned models often end a turn by one of
/// these while their header still names the base model's end.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
];

/// How the text is cut before byte pairs are merged: `llama-bpe`, three digits at most.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with single digits: `qwen2`.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A model's tokens.
pub struct Vocabulary {
    /// All tokens' bytes, one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
    finals: BTreeSet<u32>,
    bos: Option<(u32, String)>,
    eos: String,
    add_bos: bool,
    encoder: Option<Tokenizer>,
}

impl Vocabulary {
    /// Reads the vocabulary, with the encoder if `encode`. `None` if the file has none.
    pub fn load(file: &ModelFile, encode: bool) -> Result<Option<Self>, Failure> {
        let (Some(model), Some(tokens)) = (
            file.text("tokenizer.ggml.model")?,
            file.list("tokenizer.ggml.tokens", as_text)?,
        ) else {
            return Ok(None);
        };
        let family = Family::of(file, model)?;
        let kinds = file
            .list("tokenizer.ggml.token_type", whole)?
            .unwrap_or_default();
        let kind = |token: usize| kinds.get(token).copied().unwrap_or(1);
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for (token, text) in tokens.iter().enumerate() {
            family.decode(text, kind(token), &mut bytes);
            ends.push(bytes.len());
        }
        let named = |key: &str| file.number(&format!("tokenizer.ggml.{key}_token_id"));
        let text_of = |token: u32| tokens.get(token as usize).map(|text| (*text).to_owned());
        let mut finals = BTreeSet::new();
        for key in ["eos", "eot", "eom"] {
            finals.extend(named(key)?);
        }
        for (token, text) in (0_u32..).zip(&tokens) {
            if kind(token as usize) == kind::CONTROL && ENDS.contains(text) {
                finals.insert(token);
            }
        }
        let bos = named("bos")?.and_then(|token| Some((token, text_of(token)?)));
        let eos = named("eos")?.and_then(text_of).unwrap_or_default();
        let add_bos = file
            .flag("tokenizer.ggml.add_bos_token")?
            .unwrap_or(family.adds_bos());
        let special = |token: &usize| matches!(kind(*token), kind::CONTROL | kind::USER_DEFINED);
        let specials = (0..tokens.len())
            .filter(special)
            .map(|token| tokens[token])
            .collect();
        let encoder = if encode {
            Some(family.encoder(file, &tokens, specials)?)
        } else {
            None
        };
        Ok(Some(Self {
            bytes,
            ends,
            finals,
            bos,
            eos,
            add_bos,
            encoder,
        }))
    }

    /// A token's bytes; none for control tokens and numbers that are no token.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let start = if token == 0 {
            Some(&0)
        } else {
            self.ends.get(token - 1)
        };
        let range = start.zip(self.ends.get(token));
        range.map_or(&[], |(start, end)| &self.bytes[*start..*end])
    }

    /// Whether the token ends an answer.
    pub fn is_final(&self, token: u32) -> bool {
        self.finals.contains(&token)
    }

    /// The texts of the tokens that begin and end a sequence; empty where there are none.
    pub fn bos_and_eos(&self) -> (String, String) {
        (
            self.bos
                .as_ref()
                .map(|(_, text)| text.clone())
                .unwrap_or_default(),
            self.eos.clone(),
        )
    }

    /// Text → tokens. The token that begins a sequence is put in front if the model wants it and the text has none.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let Some(encoder) = &self.encoder else {
            return Err(Failure::request(
                "only the first stage turns text into tokens",
            ));
        };
        let encoding = encoder.encode_fast(text, false).map_err(|error| {
            let reason = excerpt(error.to_string().as_bytes(), 200);
            Failure::request(format!("the tokenizer does not take this prompt: {reason}"))
        })?;
        let mut tokens = Vec::with_capacity(encoding.len() + 1);
        match &self.bos {
            Some((bos, _)) if self.add_bos && encoding.get_ids().first() != Some(bos) => {
                tokens.push(*bos)
            }
            Some(_) | None => {}
        }
        tokens.extend_from_slice(encoding.get_ids());
        Ok(tokens)
    }
}

/// How a tokenizer sees text.
enum Family {
    /// Pairs of bytes; the text is cut into words beforehand.
    Bytes(Words),
    /// SentencePiece: whole text, spaces written as `▁`, unknown characters by their bytes.
    Pieces,
}

/// How a text is cut into words.
enum Words {
    Gpt2,
    SingleDigits,
    Pattern {
        pattern: &'static str,
        ignore_merges: bool,
    },
}

impl Family {
    fn of(file: &ModelFile, model: &str) -> Result<Self, Failure> {
        match model {
            "llama" => Ok(Self::Pieces),
            "gpt2" => {
                let words = match file.text("tokenizer.ggml.pre")?.unwrap_or("default") {
                    "default" | "gpt-2" | "gpt2" | "olmo" => Words::Gpt2,
                    "smollm" | "starcoder" | "refact" | "codeshell" | "exaone" => {
                        Words::SingleDigits
                    }
                    "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => Words::Pattern {
                        pattern: LLAMA_3,
                        ignore_merges: true,
                    },
                    "qwen2" | "deepseek-r1-qwen" => Words::Pattern {
                        pattern: QWEN_2,
                        ignore_merges: false,
                    },
                    other => {
                        return Err(file.failure(format!(
                            "cuts words by `{other}`; this worker knows gpt-2, smollm, llama-bpe and qwen2"
                        )));
                    }
                };
                Ok(Self::Bytes(words))
            }
            other => Err(file.failure(format!(
                "has a `{other}` tokenizer; this worker knows gpt2 (byte pairs) and llama"
            ))),
        }
    }

    /// What models of this kind want where their header says nothing.
    fn adds_bos(&self) -> bool {
        match self {
            Self::Pieces => true,
            Self::Bytes(Words::Pattern { ignore_merges, .. }) => *ignore_merges,
            Self::Bytes(Words::Gpt2 | Words::SingleDigits) => false,
        }
    }

    /// Appends a token's bytes.
    fn decode(&self, text: &str, kind: u64, bytes: &mut Vec<u8>) {
        match (self, kind) {
            (_, kind::CONTROL | kind::UNKNOWN) => {}
            (_, kind::USER_DEFINED) => bytes.extend_from_slice(text.as_bytes()),
            (Self::Pieces, kind::BYTE) => {
                let digits = text
                    .strip_prefix("<0x")
                    .and_then(|text| text.strip_suffix('>'));
                bytes.extend(digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()));
            }
            (Self::Pieces, _) => bytes.extend_from_slice(text.replace('▁', " ").as_bytes()),
            (Self::Bytes(_), _) => {
                let mut buffer = [0; 4];
                for character in text.chars() {
                    match byte_of(character) {
                        Some(byte) => bytes.push(byte),
                        None => {
                            bytes.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes())
                        }
                    }
                }
            }
        }
    }

    fn encoder(
        &self,
        file: &ModelFile,
        tokens: &[&str],
        specials: Vec<&str>,
    ) -> Result<Tokenizer, Failure> {
        let broken = |error: tokenizers::Error| {
            file.failure(format!("has a tokenizer that cannot be set up: {error}"))
        };
        let vocab: Vocab = (0_u32..)
            .zip(tokens)
            .map(|(token, text)| ((*text).to_owned(), token))
            .collect();
        let mut tokenizer = match self {
            Self::Bytes(words) => {
                let merges = read_merges(file)?;
                let ignore = matches!(
                    words,
                    Words::Pattern {
                        ignore_merges: true,
                        ..
                    }
                );
                let model = BPE::builder()
                    .vocab_and_merges(vocab, merges)
                    .ignore_merges(ignore);
                let mut tokenizer = Tokenizer::new(model.build().map_err(broken)?);
                tokenizer.with_pre_tokenizer(Some(words.cutter().map_err(broken)?));
                tokenizer
            }
            Self::Pieces => {
                let scores = file
                    .list("tokenizer.ggml.scores", as_fraction)?
                    .unwrap_or_default();
                let merges = merges_of_pieces(tokens, &scores);
                let model = BPE::builder()
                    .vocab_and_merges(vocab, merges)
                    .byte_fallback(true)
                    .fuse_unk(true);
                let model = if tokens.contains(&"<unk>") {
                    model.unk_token("<unk>".into())
                } else {
                    model
                };
                let mut tokenizer = Tokenizer::new(model.build().map_err(broken)?);
                let prefix = file
                    .flag("tokenizer.ggml.add_space_prefix")?
                    .unwrap_or(true);
                let mut steps: Vec<NormalizerWrapper> = Vec::new();
                if prefix {
                    steps.push(Prepend::new("▁".into()).into());
                }
                steps.push(Replace::new(" ", "▁").map_err(broken)?.into());
                tokenizer
                    .with_normalizer(Some(NormalizerSequence::new(steps)))
                    .map_err(broken)?;
                tokenizer
            }
        };
        let specials = specials
            .into_iter()
            .map(|text| AddedToken::from(text, true).normalized(false));
        tokenizer
            .add_special_tokens(specials.collect::<Vec<_>>())
            .map_err(broken)?;
        Ok(tokenizer)
    }
}

impl Words {
    fn cutter(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let (first, words): (PreTokenizerWrapper, bool) = match self {
            Self::Gpt2 => return Ok(ByteLevel::new(false, true, true).into()),
            Self::SingleDigits => (Digits::new(true).into(), true),
            Self::Pattern { pattern, .. } => {
                let pattern = SplitPattern::Regex((*pattern).to_owned());
                (
                    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into(),
                    false,
                )
            }
        };
        Ok(Sequence::new(vec![first, ByteLevel::new(false, true, words).into()]).into())
    }
}

fn read_merges(file: &ModelFile) -> Result<Merges, Failure> {
    let pair = |value: &Value| {
        let (left, right) = as_text(value)?.split_once(' ')?;
        Some((left.to_owned(), right.to_owned()))
    };
    let merges = file.list("tokenizer.ggml.merges", pair)?;
    merges.ok_or_else(|| file.failure("has no `tokenizer.ggml.merges` in its header"))
}

/// SentencePiece has scores instead of merges: each piece is the merge of any two pieces, the best piece first.
fn merges_of_pieces(tokens: &[&str], scores: &[f32]) -> Merges {
    let numbers: BTreeMap<&str, usize> = tokens
        .iter()
        .enumerate()
        .map(|(number, text)| (*text, number))
        .collect();
    let mut merges: Vec<(f32, usize, usize, usize)> = Vec::new();
    for (number, text) in tokens.iter().enumerate() {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(left), Some(right)) = (numbers.get(left), numbers.get(right)) {
                merges.push((
                    scores.get(number).copied().unwrap_or(f32::MIN),
                    number,
                    *left,
                    *right,
                ));
            }
        }
    }
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3)))
    });
    merges
        .into_iter()
        .map(|(_, _, left, right)| (tokens[left].to_owned(), tokens[right].to_owned()))
        .collect()
}

/// The byte that a character of a byte-pair token stands for: printable Latin-1 for itself, the others from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => printable(&byte).then_some(byte),
        Err(_) => {
            let index = usize::try_from(code.checked_sub(256)?).ok()?;
            (0..=u8::MAX).filter(|byte| !printable(byte)).nth(index)
        }
    }
}

/// The character that stands for a byte in byte-pair tokens.
pub(crate) fn character_of(byte: u8) -> char {
    let mut characters =
        ('\u{0}'..='\u{1ff}').filter(|character| byte_of(*character) == Some(byte));
    characters.next().expect("each byte has its character")
}

#[cfg(test)]
mod tests;
