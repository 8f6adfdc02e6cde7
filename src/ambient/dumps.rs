//! What the system may write of this process's memory, in which secrets are, when it crashes.
//!
//! Nothing here can fail a command: where the system does not take it, all is as it was.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The one size that also keeps a program that collects core dumps (`core_pattern` with a `|`) from getting one; as a file it
/// is too small to be written.
const NONE: u64 = 1;

/// No core dump of this process, nor of what it starts. The hard limit stays, so that a worker may raise its own.
pub fn no_core_dumps() {
    let maximum = getrlimit(Resource::Core).maximum;
    let current = Some(maximum.map_or(NONE, |most| most.min(NONE)));
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current, maximum }) {
        tracing::debug!(%error, "core dumps stay as they were");
    }
}

/// Other processes of the same user cannot read this one's memory, environment or open files. It costs `strace -p`, `gdb -p`
/// and the like, also for that user; a command that is started under them goes on. Not for agents: they are found by
/// their environment. What this process starts begins anew.
pub fn keep_memory_private() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        tracing::debug!(%error, "memory can be read as before");
    }
}
