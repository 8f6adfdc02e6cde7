//! Everything to text, and to versioned JSON.
//!
//! Pure: no terminal is asked for its width or its colours; whoever draws says what they are.

pub mod diagnostic;

pub use diagnostic::{diagnostics, diagnostics_json};
