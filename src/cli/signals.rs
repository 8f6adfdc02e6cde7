//! Ctrl-C and SIGTERM: once to stop in order, twice to stop now.

use std::sync::Arc;

use stageline_core::event::Event;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Exit, Failure};

/// Cancels at the first signal; ends the process at the second. Intentions are on disk either way.
pub(crate) fn watch(
    events: Arc<dyn Fn(Event) + Send + Sync>,
) -> Result<CancellationToken, Failure> {
    let token = CancellationToken::new();
    let fired = token.clone();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        for signals in 1_u32.. {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            events(Event::Interrupted { signals });
            fired.cancel();
            if signals > 1 {
                #[expect(clippy::exit, clippy::disallowed_methods, reason = "now means now")]
                std::process::exit(Exit::Interrupted as i32);
            }
        }
    });
    Ok(token)
}
