//! Keys and values of one request in one layer.
//!
//! What always holds: positions are kept in order and without gaps, in one contiguous block per kind; the block grows by
//! doubling, so that appending costs O(1) amortised, and never beyond what the context needs.

use candle_core::{DType, Device, Result, Tensor};

/// Enough for a short exchange without growing.
const POSITIONS_MIN: usize = 128;

/// Keys and values, `positions × heads × width` each.
pub struct LayerCache {
    keys: Tensor,
    values: Tensor,
    used: usize,
    capacity: usize,
    capacity_max: usize,
}

impl LayerCache {
    /// An empty cache for at most so many positions.
    pub fn new(heads: usize, width: usize, positions_max: usize, device: &Device) -> Result<Self> {
        let capacity = POSITIONS_MIN.min(positions_max);
        let block = || Tensor::zeros((capacity, heads, width), DType::F32, device);
        Ok(Self {
            keys: block()?,
            values: block()?,
            used: 0,
            capacity,
            capacity_max: positions_max,
        })
    }

    /// Adds the next positions and returns all of them, keys and values.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let added = keys.dim(0)?;
        let needed = self.used + added;
        if needed > self.capacity {
            let capacity = needed
                .next_power_of_two()
                .min(self.capacity_max)
                .max(needed);
            self.keys = self.grown(&self.keys, capacity)?;
            self.values = self.grown(&self.values, capacity)?;
            self.capacity = capacity;
        }
        self.keys.slice_set(keys, 0, self.used)?;
        self.values.slice_set(values, 0, self.used)?;
        self.used = needed;
        Ok((
            self.keys.narrow(0, 0, needed)?,
            self.values.narrow(0, 0, needed)?,
        ))
    }

    fn grown(&self, block: &Tensor, capacity: usize) -> Result<Tensor> {
        let (_, heads, width) = block.dims3()?;
        let larger = Tensor::zeros((capacity, heads, width), block.dtype(), block.device())?;
        if self.used > 0 {
            larger.slice_set(&block.narrow(0, 0, self.used)?, 0, 0)?;
        }
        Ok(larger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_stays() {
        let mut cache = LayerCache::new(2, 3, 1000, &Device::Cpu).expect("small");
        let mut expected = Vec::new();
        for added in [1, 100, 1, 200, 500] {
            let numbers: Vec<f32> = (0..added * 6)
                .map(|i| (expected.len() + i) as f32)
                .collect();
            let keys =
                Tensor::from_vec(numbers.clone(), (added, 2, 3), &Device::Cpu).expect("shape");
            expected.extend(numbers);
            let (all, negated) = cache
                .append(&keys, &keys.neg().expect("numbers"))
                .expect("room");
            assert_eq!(
                all.flatten_all()
                    .expect("flat")
                    .to_vec1::<f32>()
                    .expect("f32"),
                expected
            );
            let negated = negated.neg().expect("numbers").flatten_all().expect("flat");
            assert_eq!(negated.to_vec1::<f32>().expect("f32"), expected);
            assert!(all.is_contiguous());
        }
        assert_eq!(cache.capacity, 1000, "never more than the context");
    }
}
