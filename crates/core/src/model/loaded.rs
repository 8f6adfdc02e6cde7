//! How much memory the native worker's weights take on a processor: the one place that says it.
//!
//! Mostly what they take in the file. Some formats are rewritten for speed when a layer is loaded, and some are unpacked.
//! The worker's own tests hold what it really keeps against these numbers.

/// Bytes that 32 weights of a layer's matrix take once the worker has rewritten them as Q8_0, with their minima where the
/// format has some; none for formats that it does not rewrite. `kind` is GGUF's number of the format.
const fn rewritten_block(kind: u32) -> Option<u64> {
    /// A scale of two bytes and 32 numbers.
    const Q8_0: u64 = 34;
    /// One number of four bytes.
    const MINIMUM: u64 = 4;
    match kind {
        // Q5_0 has no minima; Q4_1 and Q5_1 have.
        6 => Some(Q8_0),
        3 | 7 => Some(Q8_0 + MINIMUM),
        _ => None,
    }
}

/// Bytes that a matrix takes once it is loaded: one of a layer, or the output head.
pub const fn loaded(kind: u32, numbers: u64, stored: u64, in_layer: bool) -> u64 {
    match (rewritten_block(kind), kind) {
        (Some(block), _) if in_layer => numbers.div_ceil(32).saturating_mul(block),
        // F16 and BF16 are unpacked to four bytes each.
        (_, 1 | 30) => numbers.saturating_mul(4),
        (_, _) => stored,
    }
}
