//! Hidden states as bytes: little-endian bf16 or f32, position by position.
//!
//! What always holds: f32 goes through unchanged; bf16 is rounded to nearest even, and infinities and NaN stay what they
//! are.

use stageline_core::stage_protocol::Dtype;

/// Numbers → bytes.
pub fn encode(numbers: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F32 => numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect(),
        Dtype::Bf16 => numbers
            .iter()
            .flat_map(|number| round(*number).to_le_bytes())
            .collect(),
    }
}

/// Bytes → numbers. Bytes that do not fill a number are dropped; the caller has checked the length.
pub fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect(),
        Dtype::Bf16 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16))
            .collect(),
    }
}

/// The upper half of an f32, rounded to nearest even.
fn round(number: f32) -> u16 {
    let bits = number.to_bits();
    let upper = bits >> 16;
    // Rounding a NaN could carry into an infinity: keep it a NaN instead.
    let rounded = if number.is_nan() {
        upper | 0x40
    } else {
        (bits + 0x7fff + (upper & 1)) >> 16
    };
    u16::try_from(rounded).expect("the upper half of 32 bits has 16")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(numbers: &[f32], dtype: Dtype) -> Vec<f32> {
        decode(&encode(numbers, dtype), dtype)
    }

    #[test]
    fn f32_goes_through_unchanged() {
        let numbers = [0.0, -0.0, 1.0e-40, 3.25, f32::MAX, f32::INFINITY];
        assert_eq!(through(&numbers, Dtype::F32), numbers);
    }

    #[test]
    fn bf16_is_rounded_to_nearest_even() {
        let ulp = 1.0 / 128.0;
        assert_eq!(
            through(
                &[1.0, 1.0 + ulp * 0.5, 1.0 + ulp * 1.5, 1.0 + ulp * 0.51],
                Dtype::Bf16
            ),
            [1.0, 1.0, 1.0 + ulp * 2.0, 1.0 + ulp]
        );
        let odd = through(
            &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -2.5],
            Dtype::Bf16,
        );
        assert_eq!(
            (odd[0], odd[1], odd[3]),
            (f32::INFINITY, f32::NEG_INFINITY, -2.5)
        );
        assert!(odd[2].is_nan());
        assert_eq!(encode(&[1.0], Dtype::Bf16), [0x80, 0x3f]);
    }
}
