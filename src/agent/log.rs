//! The agent's own log: lines in a file that never grows beyond its size.
//!
//! A log that cannot be written is no reason to end. `RUST_LOG` asks for more or less than the default.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::output::LogFile;

/// What is logged when `RUST_LOG` says nothing: our own news, and trouble of libraries.
const DEFAULT: &str = "warn,stageline=info";

/// Writes lines into a [`LogFile`].
#[derive(Clone)]
struct Lines(Arc<Mutex<LogFile>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if let Ok(mut log) = self.0.lock() {
            // A full disk loses lines and nothing else.
            log.append(line).ok();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Sends this process's news to a file. Where the process has a subscriber already, that one stays.
pub(super) fn install(path: PathBuf) {
    let Ok(log) = LogFile::open(path) else {
        return;
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(Lines(Arc::new(Mutex::new(log))))
        .finish();
    tracing::subscriber::set_global_default(subscriber).ok();
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string);
        tracing::error!(place, panic = info.payload_as_str(), "a task panicked");
    }));
}
