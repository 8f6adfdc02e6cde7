//! The native worker: layers [a, b) of a llama-architecture GGUF model, spoken to in `stage/1`.
//!
//! A worker is a child of the agent (see `stageline_core::stage_protocol`). It loads only the tensors of its own layers,
//! so the file may be sparse: what is read of it is
//!
//! * the header: everything up to the first tensor;
//! * every stage: `blk.I.*` for its own layers, and `rope_freqs.weight` where the model has it;
//! * the first stage: `token_embd.weight`;
//! * the last stage: `output_norm.weight`, and `output.weight` or, where the model has none, `token_embd.weight`.
//!
//! What always holds: the same messages give the same bytes; with f32 on the hop a split pipeline gives the same tokens as
//! an unsplit one. What the worker refuses to do: open a socket, write a file, read anything but its model and its
//! environment, or exit because of a request.

pub mod cache;
pub mod failure;
pub mod gguf;
pub mod hop;
pub mod level;
pub mod linear;
pub mod llama;
pub mod sample;
pub mod serve;
pub mod settings;
pub mod stage;
pub mod template;
pub mod text;
pub mod tiny;
pub mod vocabulary;
