//! Everything to text, and to versioned JSON.
//!
//! Pure: no terminal is asked for its width or its colours; whoever draws says what they are.

mod accounts;
pub mod diagnostic;
mod ends;
pub mod graph;
pub mod json;
mod made;
mod page;
pub mod plan;
pub mod state;

pub use diagnostic::{diagnostics, diagnostics_json};
pub use page::{Level, View, beside};
