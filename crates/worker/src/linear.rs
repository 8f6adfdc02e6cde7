//! Products with weight matrices, by the fastest of candle's kernels that give the same.
//!
//! Candle has vector kernels for some quantized formats only. Q4_1, Q5_0 and Q5_1 are others; a weight of theirs is
//! scale × whole number (+ minimum), so it is exactly a Q8_0 weight (+ a minimum per 32 columns), for which there is a
//! kernel, also in builds for old processors. The minima's part of a product is a product of its own, with sums over 32
//! columns of what comes in, of 1/32 the size. That costs memory (Q4_1: 38 instead of 20 bytes for 32 weights) and makes a
//! token on the processor about twice as fast. Many rows at once go through the dense kernel instead.
//!
//! What always holds: the numbers that a weight stands for are not changed.

use std::cell::OnceCell;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, DType, Device, Module, Result, Storage, Tensor};

/// Weights that share a scale, in all formats that are rewritten here.
const BLOCK: usize = 32;

/// From so many rows on, unpacking a matrix costs less than the dense kernel saves.
const ROWS_DENSE: usize = 16;

/// A weight matrix, and what is added to its product where the model has it.
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

enum Weight {
    /// As candle has it.
    Plain(QMatMul),
    /// Worth unpacking when many rows come at once.
    Unpackable(QTensor),
    /// Rewritten as Q8_0 and minima, the latter with a row per block of columns.
    Rewritten(QTensor, Option<Tensor>),
}

/// Rows that several matrices are to be multiplied with, and what these share.
pub struct Input {
    rows: Tensor,
    sums: OnceCell<Tensor>,
}

impl Input {
    /// `rows × columns`.
    pub fn new(rows: Tensor) -> Self {
        Self {
            rows,
            sums: OnceCell::new(),
        }
    }

    /// Sums over each block of columns.
    fn sums(&self) -> Result<&Tensor> {
        if let Some(sums) = self.sums.get() {
            return Ok(sums);
        }
        let (rows, columns) = self.rows.dims2()?;
        let sums = self
            .rows
            .reshape((rows, columns / BLOCK, BLOCK))?
            .sum(D::Minus1)?;
        Ok(self.sums.get_or_init(|| sums))
    }
}

impl Linear {
    /// A matrix as the file has it, made ready for its device.
    pub fn new(weight: QTensor, bias: Option<Tensor>) -> Result<Self> {
        Ok(Self {
            weight: Weight::new(weight)?,
            bias,
        })
    }

    /// The product with each row.
    pub fn forward(&self, input: &Input) -> Result<Tensor> {
        let product = self.weight.forward(input)?;
        match &self.bias {
            None => Ok(product),
            Some(bias) => product.broadcast_add(bias),
        }
    }
}

impl Weight {
    fn new(weight: QTensor) -> Result<Self> {
        let on_cpu = weight.device().is_cpu();
        match weight.dtype() {
            GgmlDType::Q4_1 | GgmlDType::Q5_0 | GgmlDType::Q5_1 if on_cpu => rewrite(&weight),
            // On x86-64 the kernels for these see one row at a time.
            GgmlDType::Q4_0
            | GgmlDType::Q8_0
            | GgmlDType::Q2K
            | GgmlDType::Q3K
            | GgmlDType::Q5K
                if on_cpu && cfg!(target_arch = "x86_64") =>
            {
                Ok(Self::Unpackable(weight))
            }
            GgmlDType::F32
            | GgmlDType::F16
            | GgmlDType::BF16
            | GgmlDType::Q4_0
            | GgmlDType::Q4_1
            | GgmlDType::Q5_0
            | GgmlDType::Q5_1
            | GgmlDType::Q8_0
            | GgmlDType::Q8_1
            | GgmlDType::Q2K
            | GgmlDType::Q3K
            | GgmlDType::Q4K
            | GgmlDType::Q5K
            | GgmlDType::Q6K
            | GgmlDType::Q8K => Ok(Self::Plain(QMatMul::from_qtensor(weight)?)),
        }
    }

    fn forward(&self, input: &Input) -> Result<Tensor> {
        match self {
            Self::Plain(weight) => weight.forward(&input.rows),
            Self::Unpackable(weight) => multiply(weight, &input.rows),
            Self::Rewritten(weight, None) => multiply(weight, &input.rows),
            Self::Rewritten(weight, Some(minima)) => {
                let product = multiply(weight, &input.rows)?;
                add_minima(product, input.sums()?, minima)
            }
        }
    }
}

fn multiply(weight: &QTensor, rows: &Tensor) -> Result<Tensor> {
    if rows.dim(0)? < ROWS_DENSE {
        return rows.apply_op1_no_bwd(weight);
    }
    rows.matmul(&weight.dequantize(rows.device())?.t()?)
}

/// Adds the minima's part of the product. For few rows a loop does it: the dense kernel would spend its time on preparing.
fn add_minima(product: Tensor, sums: &Tensor, minima: &Tensor) -> Result<Tensor> {
    let (rows, width) = product.dims2()?;
    if rows >= ROWS_DENSE {
        return product + sums.matmul(minima)?;
    }
    let mut numbers = product.flatten_all()?.to_vec1::<f32>()?;
    let (storage, _) = minima.storage_and_layout();
    let Storage::Cpu(minima) = &*storage else {
        candle_core::bail!("weights are rewritten for the processor only")
    };
    let minima = minima.as_slice::<f32>()?;
    for (row, sums) in numbers.chunks_exact_mut(width).zip(sums.to_vec2::<f32>()?) {
        for (sum, minima) in sums.iter().zip(minima.chunks_exact(width)) {
            for (number, minimum) in row.iter_mut().zip(minima) {
                *number += sum * minimum;
            }
        }
    }
    Tensor::from_vec(numbers, (rows, width), &Device::Cpu)
}

/// Q4_1, Q5_0 or Q5_1 → Q8_0 and minima. Blocks begin with the scale; then come the minimum (`_1`), the fifth bits (Q5) and
/// the lower four bits of 32 numbers, the second half of them in the upper halves of the bytes.
fn rewrite(weight: &QTensor) -> Result<Weight> {
    let (rows, columns) = weight.shape().dims2()?;
    let has_minimum = weight.dtype() != GgmlDType::Q5_0;
    let has_fifth = weight.dtype() != GgmlDType::Q4_1;
    // Where there is no minimum, the numbers are centred instead.
    let offset = if has_minimum { 0 } else { 16 };
    let packed = weight.data()?;
    let blocks = rows * columns / BLOCK;
    let mut bytes = Vec::with_capacity(blocks * (2 + BLOCK));
    let mut minima = Vec::with_capacity(blocks * 2);
    for block in packed.chunks_exact(weight.dtype().type_size()) {
        let (scale, block) = block.split_at(2);
        let (minimum, block) = block.split_at(if has_minimum { 2 } else { 0 });
        let (fifth, lower) = block.split_at(if has_fifth { 4 } else { 0 });
        let fifth = fifth
            .iter()
            .rev()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let number = |index: usize, lower: u8| {
            let upper = u8::from(fifth >> index & 1 == 1) << 4;
            (lower | upper).wrapping_sub(offset)
        };
        bytes.extend_from_slice(scale);
        bytes.extend(
            lower
                .iter()
                .enumerate()
                .map(|(index, byte)| number(index, byte & 0xf)),
        );
        bytes.extend(
            lower
                .iter()
                .enumerate()
                .map(|(index, byte)| number(index + BLOCK / 2, byte >> 4)),
        );
        minima.extend_from_slice(minimum);
    }
    let storage = QStorage::from_data(bytes.into(), &Device::Cpu, GgmlDType::Q8_0)?;
    let weight = QTensor::new(storage, (rows, columns))?;
    if !has_minimum {
        return Ok(Weight::Rewritten(weight, None));
    }
    let minima =
        Tensor::from_raw_buffer(&minima, DType::F16, &[rows, columns / BLOCK], &Device::Cpu)?;
    Ok(Weight::Rewritten(
        weight,
        Some(minima.to_dtype(DType::F32)?.t()?.contiguous()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 0.8)
            .collect()
    }

    fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
        let difference = (a - b)
            .expect("same shape")
            .abs()
            .expect("numbers")
            .max_all()
            .expect("some");
        difference.to_scalar().expect("f32")
    }

    #[test]
    fn a_rewritten_weight_stands_for_the_same_numbers() {
        let dense = Tensor::from_vec(numbers(6 * 96), (6, 96), &Device::Cpu).expect("shape");
        for dtype in [GgmlDType::Q4_1, GgmlDType::Q5_0, GgmlDType::Q5_1] {
            let packed = QTensor::quantize(&dense, dtype).expect("known");
            let Weight::Rewritten(weight, minima) = Weight::new(packed).expect("known") else {
                panic!("{dtype:?} was not rewritten");
            };
            let mut rewritten = weight.dequantize(&Device::Cpu).expect("known");
            if let Some(minima) = minima {
                let minima = minima
                    .t()
                    .and_then(|minima| minima.unsqueeze(2))
                    .expect("two dimensions");
                let blocks = rewritten.reshape((6, 3, BLOCK)).expect("blocks");
                rewritten = blocks
                    .broadcast_add(&minima)
                    .and_then(|sum| sum.reshape((6, 96)))
                    .expect("shape");
            }
            let packed = QTensor::quantize(&dense, dtype)
                .expect("known")
                .dequantize(&Device::Cpu)
                .expect("known");
            assert_eq!(largest_difference(&packed, &rewritten), 0.0, "{dtype:?}");
        }
    }

    /// What the planner counts on.
    #[test]
    fn a_loaded_weight_takes_the_memory_that_the_planner_counts() {
        let formats = [
            (GgmlDType::F32, 0),
            (GgmlDType::F16, 1),
            (GgmlDType::BF16, 30),
            (GgmlDType::Q4_0, 2),
            (GgmlDType::Q4_1, 3),
            (GgmlDType::Q5_0, 6),
            (GgmlDType::Q5_1, 7),
            (GgmlDType::Q8_0, 8),
        ];
        let dense = Tensor::from_vec(numbers(6 * 96), (6, 96), &Device::Cpu).expect("shape");
        for (dtype, kind) in formats {
            let packed = QTensor::quantize(&dense, dtype).expect("known");
            let stored = packed.storage_size_in_bytes() as u64;
            let of = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
            let kept = match Weight::new(packed).expect("known") {
                Weight::Rewritten(weight, minima) => {
                    weight.storage_size_in_bytes() + minima.as_ref().map_or(0, of)
                }
                Weight::Unpackable(weight) => weight.storage_size_in_bytes(),
                Weight::Plain(QMatMul::QTensor(weight)) => weight.storage_size_in_bytes(),
                Weight::Plain(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => of(&weight),
            };
            let counted = stageline_core::model::loaded(kind, 6 * 96, stored, true);
            assert_eq!(kept as u64, counted, "{dtype:?}");
        }
    }

    #[test]
    fn products_agree_with_dense_ones_for_few_and_many_rows() {
        let formats = [
            GgmlDType::F32,
            GgmlDType::Q8_0,
            GgmlDType::Q4_0,
            GgmlDType::Q4_1,
            GgmlDType::Q5_0,
            GgmlDType::Q5_1,
        ];
        for dtype in formats {
            for count in [1, 3, ROWS_DENSE, 40] {
                let dense =
                    Tensor::from_vec(numbers(48 * 64), (48, 64), &Device::Cpu).expect("shape");
                let packed = QTensor::quantize(&dense, dtype).expect("known");
                let rows = Tensor::from_vec(numbers(count * 64), (count, 64), &Device::Cpu)
                    .expect("shape");
                let exact = packed
                    .dequantize(&Device::Cpu)
                    .and_then(|weight| rows.matmul(&weight.t()?));
                let bias = Tensor::zeros(48, DType::F32, &Device::Cpu).expect("zeros");
                let linear = Linear::new(packed, Some(bias)).expect("known");
                let product = linear.forward(&Input::new(rows)).expect("computes");
                let difference = largest_difference(&exact.expect("computes"), &product);
                assert!(difference < 0.3, "{dtype:?}, {count} rows: {difference}");
            }
        }
    }
}
