//! The model file: its header, and single tensors out of it.
//!
//! What always holds: only the header and the tensors that are asked for are read; every complaint names the file. A
//! tensor that lies beyond the file's end, or in a part of a sparse file that was never filled, is refused.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
use stageline_core::stage_protocol::excerpt;

use crate::failure::Failure;

/// An open GGUF file.
pub struct ModelFile {
    path: PathBuf,
    reader: BufReader<File>,
    bytes: u64,
    content: Content,
}

impl ModelFile {
    /// Opens the file and reads its header.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let cannot = |error: std::io::Error| {
            Failure::model(format!("cannot read the model `{shown}`: {error}"))
        };
        let file = File::open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err(Failure::model(format!("the model `{shown}` is not a file")));
        }
        let bytes = metadata.len();
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut magic = Vec::new();
        reader
            .by_ref()
            .take(4)
            .read_to_end(&mut magic)
            .map_err(cannot)?;
        if magic != b"GGUF" {
            let begin = excerpt(&magic, 4);
            return Err(Failure::model(format!(
                "the model `{shown}` is not a GGUF file: it begins with `{begin}`"
            )));
        }
        reader.seek(SeekFrom::Start(0)).map_err(cannot)?;
        let content = Content::read(&mut reader).map_err(|error| {
            let error = excerpt(error.to_string().lines().next().unwrap_or_default().as_bytes(), 200);
            Failure::model(format!(
                "the header of the model `{shown}` ({bytes} bytes) is cut or damaged: {error}; deliver the file again"
            ))
        })?;
        Ok(Self {
            path: path.to_owned(),
            reader,
            bytes,
            content,
        })
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A complaint about this file.
    pub fn failure(&self, message: impl std::fmt::Display) -> Failure {
        Failure::model(format!("the model `{}` {message}", self.path.display()))
    }

    /// The names of all tensors.
    pub fn tensor_names(&self) -> BTreeSet<&str> {
        self.content
            .tensor_infos
            .keys()
            .map(String::as_str)
            .collect()
    }

    /// Whether the file lists such a tensor.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// A tensor's dimensions, rows first.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.content
            .tensor_infos
            .get(name)
            .map(|info| info.shape.dims())
    }

    /// Reads one tensor, which must have these dimensions.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        device: &Device,
    ) -> Result<QTensor, Failure> {
        let Some(info) = self.content.tensor_infos.get(name) else {
            return Err(self.failure(format!("has no tensor `{name}`")));
        };
        if info.shape.dims() != shape {
            return Err(self.failure(format!(
                "has a tensor `{name}` of dimensions {:?}; its header asks for {shape:?}",
                info.shape.dims()
            )));
        }
        let (block, block_bytes) = (info.ggml_dtype.block_size(), info.ggml_dtype.type_size());
        let elements = shape
            .iter()
            .try_fold(1_usize, |product, dim| product.checked_mul(*dim));
        let length = elements
            .and_then(|elements| (elements / block).checked_mul(block_bytes))
            .map(|bytes| bytes as u64);
        let start = self.content.tensor_data_offset.checked_add(info.offset);
        let end = start
            .zip(length)
            .and_then(|(start, length)| start.checked_add(length));
        if end.is_none_or(|end| end > self.bytes) {
            let end = end.map_or_else(
                || "beyond all bounds".to_owned(),
                |end| format!("at byte {end}"),
            );
            return Err(self.failure(format!(
                "is cut: its tensor `{name}` ends {end}, the file at byte {}; deliver it again",
                self.bytes
            )));
        }
        let read = info.read(&mut self.reader, self.content.tensor_data_offset, device);
        let tensor = read.map_err(|error| {
            self.failure(format!(
                "has a tensor `{name}` that cannot be read: {error}"
            ))
        })?;
        let empty = device.is_cpu() && tensor.data()?.iter().all(|byte| *byte == 0);
        if empty {
            return Err(self.failure(format!(
                "has nothing but zeros in its tensor `{name}`: that part was never delivered, or the layers of this stage \
                 are not those it was delivered for"
            )));
        }
        Ok(tensor)
    }

    /// A text out of the header.
    pub fn text(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.content.metadata.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.failure(format!("has a `{key}` that is not a text"))),
        }
    }

    /// A whole number out of the header.
    pub fn number(&self, key: &str) -> Result<Option<u32>, Failure> {
        let Some(value) = self.content.metadata.get(key) else {
            return Ok(None);
        };
        let number = whole(value).and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| {
            self.failure(format!(
                "has a `{key}` that is not a whole number below 2^32"
            ))
        })
    }

    /// A whole number that must be there and above 0.
    pub fn count(&self, key: &str) -> Result<u32, Failure> {
        match self.number(key)? {
            Some(count) if count > 0 => Ok(count),
            Some(_) => Err(self.failure(format!("has a `{key}` of 0"))),
            None => Err(self.failure(format!("has no `{key}` in its header"))),
        }
    }

    /// A fraction out of the header.
    pub fn fraction(&self, key: &str) -> Result<Option<f64>, Failure> {
        match self.content.metadata.get(key) {
            None => Ok(None),
            Some(Value::F32(value)) => Ok(Some(f64::from(*value))),
            Some(Value::F64(value)) => Ok(Some(*value)),
            Some(_) => Err(self.failure(format!("has a `{key}` that is not a fraction"))),
        }
    }

    /// A yes or no out of the header.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, Failure> {
        match self.content.metadata.get(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.failure(format!("has a `{key}` that is not true or false"))),
        }
    }

    /// A list out of the header, each element turned by `element`.
    pub fn list<'a, T>(
        &'a self,
        key: &str,
        element: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Failure> {
        let wrong = || {
            self.failure(format!(
                "has a `{key}` that is not a list of what it should be"
            ))
        };
        match self.content.metadata.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => values
                .iter()
                .map(element)
                .collect::<Option<Vec<T>>>()
                .map(Some)
                .ok_or_else(wrong),
            Some(_) => Err(wrong()),
        }
    }
}

/// A list's element as a text.
pub fn as_text(value: &Value) -> Option<&str> {
    if let Value::String(text) = value {
        Some(text)
    } else {
        None
    }
}

/// A list's element as a fraction.
pub fn as_fraction(value: &Value) -> Option<f32> {
    if let Value::F32(fraction) = value {
        Some(*fraction)
    } else {
        None
    }
}

/// A value as a whole number, whatever its width.
pub fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::U8(value) => Some(u64::from(*value)),
        Value::U16(value) => Some(u64::from(*value)),
        Value::U32(value) => Some(u64::from(*value)),
        Value::U64(value) => Some(*value),
        Value::I8(value) => u64::try_from(*value).ok(),
        Value::I16(value) => u64::try_from(*value).ok(),
        Value::I32(value) => u64::try_from(*value).ok(),
        Value::I64(value) => u64::try_from(*value).ok(),
        Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
    }
}
