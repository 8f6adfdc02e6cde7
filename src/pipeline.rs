//! The data plane: hello, frames, edges, requests.
//!
//! Stage i hands hidden states to i + 1; the last one hands each token straight back to the first. There is no gossip
//! and no membership: who may speak to whom is in the roster.

pub mod infer;
