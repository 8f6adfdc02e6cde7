//! The header of a GGUF file, from bytes that nobody vouches for.
//!
//! Reading is done over the bytes that are there; when they end too early the answer is how many more are needed, and the
//! caller begins anew with more. Texts and lists are skipped in place, so a header that lies costs no memory.

use std::collections::BTreeMap;

use super::{ARCHITECTURES, Index, ModelError, Part, Tensor, loaded, part_of};

/// A header longer than this is not read: the largest known vocabularies take a quarter of it.
pub const HEADER_MAX: u64 = 128 << 20;

/// More keys than any model has.
const KEYS_MAX: u64 = 1 << 14;

/// More tensors than any model has.
const TENSORS_MAX: u64 = 1 << 18;

/// More layers than any model has.
const BLOCKS_MAX: u32 = 1 << 12;

/// Longer than any name of a key or a tensor.
const NAME_MAX: u64 = 1 << 10;

/// Lists in lists, as deep as anyone writes them.
const DEPTH_MAX: u32 = 4;

/// The answer to a header that is not wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// It was all there.
    Whole(Box<Index>),
    /// It goes on; at least this many bytes of the file are needed.
    NeedMore(u64),
}

/// Why reading stopped.
enum Stop {
    NeedMore(u64),
    Wrong(ModelError),
}

impl From<ModelError> for Stop {
    fn from(error: ModelError) -> Self {
        Self::Wrong(error)
    }
}

type Read<T> = Result<T, Stop>;

/// A value of the header, as far as we ever need it.
enum Value<'a> {
    Number(u64),
    Text(&'a [u8]),
    List(u64),
    Other,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: u64) -> Read<&'a [u8]> {
        let end = (self.at as u64).saturating_add(count);
        if end > HEADER_MAX {
            return Err(malformed(format!("its header is longer than {HEADER_MAX} bytes")).into());
        }
        let taken = usize::try_from(end)
            .ok()
            .and_then(|end| Some((self.bytes.get(self.at..end)?, end)));
        let (taken, end) = taken.ok_or(Stop::NeedMore(end))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("exactly that many were taken"))
    }

    fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Read<&'a [u8]> {
        let length = self.u64()?;
        self.take(length)
    }

    fn name(&mut self, what: &str) -> Read<&'a str> {
        let length = self.u64()?;
        if length > NAME_MAX {
            return Err(malformed(format!("the name of a {what} is {length} bytes long")).into());
        }
        let name = std::str::from_utf8(self.take(length)?);
        name.map_err(|_| malformed(format!("the name of a {what} is not text")).into())
    }

    fn value(&mut self, kind: u32, depth: u32) -> Read<Value<'a>> {
        let number = match kind {
            0 | 7 => u64::from(self.array::<1>()?[0]),
            2 => u64::from(u16::from_le_bytes(self.array()?)),
            4 => u64::from(self.u32()?),
            10 => self.u64()?,
            5 => match u64::try_from(i32::from_le_bytes(self.array()?)) {
                Ok(number) => number,
                Err(_) => return Ok(Value::Other),
            },
            11 => match u64::try_from(i64::from_le_bytes(self.array()?)) {
                Ok(number) => number,
                Err(_) => return Ok(Value::Other),
            },
            8 => return self.text().map(Value::Text),
            9 => return self.list(depth).map(Value::List),
            1 | 3 | 6 | 12 => {
                let size = fixed_size(kind).expect("each of these has one");
                return self.take(size).map(|_| Value::Other);
            }
            _ => return Err(malformed(format!("a value is of the unknown kind {kind}")).into()),
        };
        Ok(Value::Number(number))
    }

    /// Skips a list, returns how long it is.
    fn list(&mut self, depth: u32) -> Read<u64> {
        if depth >= DEPTH_MAX {
            return Err(malformed("has lists in lists in lists".to_owned()).into());
        }
        let kind = self.u32()?;
        let count = self.u64()?;
        if let Some(size) = fixed_size(kind) {
            self.take(count.saturating_mul(size))?;
            return Ok(count);
        }
        // Each element takes at least eight bytes, so a count that lies ends with the bytes.
        for _ in 0..count {
            self.value(kind, depth + 1)?;
        }
        Ok(count)
    }
}

/// Bytes of a value of fixed size.
fn fixed_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn malformed(message: String) -> ModelError {
    let hint = "download the file again; a sound one has the digest that its publisher names";
    ModelError::new("model/malformed", format!("is damaged: {message}")).hint(hint)
}

pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, ModelError> {
    match index(&mut Cursor { bytes, at: 0 }) {
        Ok(index) => Ok(Parsed::Whole(Box::new(index))),
        Err(Stop::NeedMore(end)) => Ok(Parsed::NeedMore(end)),
        Err(Stop::Wrong(error)) => Err(error),
    }
}

fn index(cursor: &mut Cursor<'_>) -> Read<Index> {
    let begin = &cursor.bytes[..cursor.bytes.len().min(4)];
    if begin != &b"GGUF"[..begin.len()] {
        let message = "is not a GGUF file: it does not begin with `GGUF`";
        return Err(ModelError::new("model/not-gguf", message)
            .hint("convert it, or take a GGUF file of the same model")
            .into());
    }
    cursor.take(4)?;
    let version = cursor.u32()?;
    if !matches!(version, 2 | 3) {
        let big = version.swap_bytes() < 16;
        let what = if big {
            "for big-endian machines"
        } else {
            "of a version"
        };
        let message = format!("is a GGUF file {what} that is not known ({version})");
        return Err(ModelError::new("model/version", message)
            .hint("versions 2 and 3, little-endian, are known")
            .into());
    }
    let tensor_count = limited(cursor.u64()?, TENSORS_MAX, "tensors")?;
    let key_count = limited(cursor.u64()?, KEYS_MAX, "keys")?;
    let mut keys = BTreeMap::new();
    for _ in 0..key_count {
        let name = cursor.name("key")?;
        let kind = cursor.u32()?;
        let value = cursor.value(kind, 0)?;
        if keys.insert(name, value).is_some() {
            return Err(malformed(format!("it has the key `{name}` twice")).into());
        }
    }
    let mut tensors = BTreeMap::new();
    for _ in 0..tensor_count {
        let (name, tensor) = tensor(cursor)?;
        if tensors.insert(name.to_owned(), tensor).is_some() {
            return Err(malformed(format!("it has the tensor `{name}` twice")).into());
        }
    }
    Ok(assemble(&Keys(keys), tensors, cursor.at as u64)?)
}

fn limited(count: u64, max: u64, what: &str) -> Result<u64, ModelError> {
    if count > max {
        return Err(malformed(format!("it claims {count} {what}")));
    }
    Ok(count)
}

/// A tensor whose place still counts from where the tensors begin.
fn tensor<'a>(cursor: &mut Cursor<'a>) -> Read<(&'a str, Tensor)> {
    let name = cursor.name("tensor")?;
    let wrong = |why: &str| malformed(format!("tensor `{name}` {why}"));
    let dimensions = cursor.u32()?;
    if !(1..=4).contains(&dimensions) {
        return Err(wrong(&format!("has {dimensions} dimensions")).into());
    }
    let mut numbers = 1_u64;
    let mut columns = 0;
    for dimension in 0..dimensions {
        let size = cursor.u64()?;
        if dimension == 0 {
            columns = size;
        }
        let product = numbers.checked_mul(size);
        numbers = product.ok_or_else(|| wrong("is larger than anything"))?;
    }
    let kind = cursor.u32()?;
    let start = cursor.u64()?;
    let (block, block_bytes) = block_size(kind).ok_or_else(|| {
        let message = format!("tensor `{name}` is of type {kind}, which is not known");
        ModelError::new("model/tensor-type", message)
            .hint("take the same model in Q4_K_M, Q8_0, F16 or another common type")
    })?;
    if numbers == 0 || !columns.is_multiple_of(block) {
        return Err(wrong("has rows that its type cannot have").into());
    }
    let length = (numbers / block).checked_mul(block_bytes);
    let end = length.and_then(|length| start.checked_add(length));
    let end = end.ok_or_else(|| wrong("lies behind the end of any file"))?;
    let is_matrix = dimensions > 1;
    let stored = end - start;
    let in_layer = matches!(part_of(name), Part::Block(_));
    let tensor = Tensor {
        bytes: start..end,
        numbers,
        is_matrix,
        loaded: if is_matrix {
            loaded(kind, numbers, stored, in_layer)
        } else {
            stored
        },
    };
    Ok((name, tensor))
}

/// Numbers and bytes of one block of a tensor type.
fn block_size(kind: u32) -> Option<(u64, u64)> {
    Some(match kind {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 | 20 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        9 => (32, 36),
        10 => (256, 84),
        11 | 21 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        15 => (256, 292),
        16 | 35 => (256, 66),
        17 => (256, 74),
        18 => (256, 98),
        19 => (256, 50),
        22 => (256, 82),
        23 => (256, 136),
        29 => (256, 56),
        34 => (256, 54),
        _ => return None,
    })
}

/// The keys of a header.
struct Keys<'a>(BTreeMap<&'a str, Value<'a>>);

impl Keys<'_> {
    fn number(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(*number)),
            Some(Value::Text(_) | Value::List(_) | Value::Other) => {
                Err(malformed(format!("its key `{key}` is not a whole number")))
            }
        }
    }

    /// A number that every model has, from 1 to what fits.
    fn size(&self, key: &str) -> Result<u32, ModelError> {
        let number = self.number(key)?;
        let number = number.ok_or_else(|| malformed(format!("it has no key `{key}`")))?;
        let size = u32::try_from(number).ok().filter(|size| *size > 0);
        size.ok_or_else(|| malformed(format!("its key `{key}` is {number}")))
    }

    fn architecture(&self) -> Result<&'static str, ModelError> {
        let text = match self.0.get("general.architecture") {
            Some(Value::Text(text)) => String::from_utf8_lossy(&text[..text.len().min(64)]),
            Some(Value::Number(_) | Value::List(_) | Value::Other) | None => {
                return Err(malformed("it has no key `general.architecture`".to_owned()));
            }
        };
        let known = ARCHITECTURES.into_iter().find(|known| *known == text);
        known.ok_or_else(|| {
            let text = text.escape_debug();
            let message =
                format!("is of the architecture `{text}`, which the native worker cannot run");
            let hint = format!("it can run: {}", ARCHITECTURES.join(", "));
            ModelError::new("model/unknown-architecture", message).hint(hint)
        })
    }
}

/// Puts the index together: all places counted from the beginning of the file, all layers there.
fn assemble(
    keys: &Keys<'_>,
    mut tensors: BTreeMap<String, Tensor>,
    header_end: u64,
) -> Result<Index, ModelError> {
    let architecture = keys.architecture()?;
    let of_model = |key: &str| format!("{architecture}.{key}");
    let alignment = keys.number("general.alignment")?.unwrap_or(32);
    if !alignment.is_power_of_two() || alignment > 1 << 20 {
        return Err(malformed(format!("its alignment is {alignment}")));
    }
    let data_start = header_end.next_multiple_of(alignment);
    for (name, tensor) in &mut tensors {
        let end = tensor.bytes.end.checked_add(data_start);
        let end = end.ok_or_else(|| malformed(format!("tensor `{name}` has no end")))?;
        tensor.bytes = tensor.bytes.start + data_start..end;
    }
    let blocks = keys.size(&of_model("block_count"))?;
    limited(u64::from(blocks), u64::from(BLOCKS_MAX), "layers")?;
    let embedding_length = keys.size(&of_model("embedding_length"))?;
    let heads = keys.size(&of_model("attention.head_count"))?;
    let kv_heads = match keys.number(&of_model("attention.head_count_kv"))? {
        Some(count) => count,
        None => u64::from(heads),
    };
    let head = u64::from(embedding_length / heads);
    let key_length = keys
        .number(&of_model("attention.key_length"))?
        .unwrap_or(head);
    let value_length = keys
        .number(&of_model("attention.value_length"))?
        .unwrap_or(head);
    let embedding = tensors.get("token_embd.weight");
    let embedding =
        embedding.ok_or_else(|| malformed("it has no tensor `token_embd.weight`".to_owned()))?;
    let vocabulary = match keys.0.get("tokenizer.ggml.tokens") {
        Some(Value::List(count)) => *count,
        Some(Value::Number(_) | Value::Text(_) | Value::Other) | None => {
            embedding.numbers / u64::from(embedding_length)
        }
    };
    let missing = (0..blocks).find(|block| {
        let prefix = format!("blk.{block}.");
        let mut from = tensors.range(prefix.clone()..);
        !from
            .next()
            .is_some_and(|(name, _)| name.starts_with(&prefix))
    });
    if let Some(block) = missing {
        return Err(malformed(format!(
            "it claims {blocks} layers and has no tensors of layer {block}"
        )));
    }
    Ok(Index {
        architecture,
        blocks,
        embedding_length,
        context_length: keys.size(&of_model("context_length"))?,
        vocabulary: u32::try_from(vocabulary)
            .map_err(|_| malformed(format!("it claims {vocabulary} tokens")))?,
        cache_numbers: kv_heads.saturating_mul(key_length.saturating_add(value_length)),
        is_tied: !tensors.contains_key("output.weight"),
        tensors,
        data_start,
    })
}
