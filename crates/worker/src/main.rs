//! `stageline-worker`: a child of the agent. See the library for what it does; here are arguments, threads and exits.
//!
//! Without arguments it serves the stage that its environment describes. `--describe` tells for which processor it was
//! built. Status 0: the input ended. 1: it cannot run, and the last line on stdout says why. 64: wrong arguments.

#![expect(
    clippy::disallowed_methods,
    reason = "only here is the environment read; the library is given values"
)]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, io, thread};

use stageline_core::stage_protocol::{FromWorker, Message, PROTOCOL};
use stageline_worker::failure::Failure;
use stageline_worker::settings::Settings;
use stageline_worker::{level, serve, tiny};

const USAGE: &str = "usage: stageline-worker [--describe | --version]\n\
                     Without arguments it speaks stage/1 on stdin and stdout and takes its settings from STAGE, \
                     NUM_STAGES, STAGELINE_LAYERS, STAGELINE_MODEL, STAGELINE_DTYPE, STAGELINE_DEVICE, \
                     STAGELINE_CONTEXT and STAGELINE_THREADS.\n";

/// The variable by which candle's pools learn their size. They read it once, so it must be set before they start.
const POOL_THREADS: &str = "RAYON_NUM_THREADS";

/// Where glibc's allocator is told how to get memory. Other C libraries do not look at it.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Set by the program for itself: it has replaced itself. What it set cannot tell that, since a C library may change it.
const SETTLED: &str = "STAGELINE_WORKER_SETTLED";

/// Asks the kernel for huge pages where it gives them to whoever asks (`madvise`), as most do. A token reads all weights once:
/// in pages of 4 KiB, 6 % of its time goes into finding them. Since glibc 2.35; its manual, "Memory Allocation Tunables".
const HUGE_PAGES: &str = "glibc.malloc.hugetlb";

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments
        .iter()
        .filter_map(|argument| argument.to_str())
        .collect();
    match words.as_slice() {
        [] if arguments.is_empty() => failed(run()),
        ["--describe"] => print(&format!("{}\n", describe())),
        ["--version"] => print(concat!(
            "stageline-worker ",
            env!("CARGO_PKG_VERSION"),
            "\n"
        )),
        ["--help"] => print(USAGE),
        ["--write-tiny-model", path] => {
            let written = tiny::write(Path::new(path));
            failed(
                written.map_err(|error| Failure::model(format!("cannot write `{path}`: {error}"))),
            )
        }
        _ => {
            log(USAGE.trim_end());
            ExitCode::from(64)
        }
    }
}

fn run() -> Result<(), Failure> {
    level::check()?;
    let settings = Settings::read(|name| env::var(name).ok())?;
    let threads = settle(&settings)?;
    log(&format!(
        "stageline-worker {} for {}: stage {} of {}, layers {}, {threads} threads",
        env!("CARGO_PKG_VERSION"),
        level::LEVEL,
        settings.stage,
        settings.num_stages,
        settings.layers
    ));
    // The pipes themselves, without the buffers that the library puts before them.
    let pipe = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
    let opened =
        pipe(io::stdin().as_fd()).and_then(|input| Ok((input, pipe(io::stdout().as_fd())?)));
    let (input, output) = opened
        .map_err(|error| Failure::stage(format!("cannot use its stdin and stdout: {error}")))?;
    serve::serve(settings, input, output, &mut log)
}

/// Makes the pools as large as the settings say, and lets memory come in huge pages. Both are read from the environment only,
/// and once, so the program replaces itself once by itself with the variables set.
///
/// Threads left open are half of what this process may use: the other half is mostly the same cores' second threads, and the
/// pools wait by spinning, which a crowded machine punishes.
fn settle(settings: &Settings) -> Result<String, Failure> {
    let present = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let wanted = match (settings.threads, present(POOL_THREADS)) {
        (Some(threads), _) => threads.to_string(),
        (None, Some(threads)) => threads,
        (None, None) => {
            let usable = thread::available_parallelism().map_or(1, usize::from);
            usable.div_ceil(2).to_string()
        }
    };
    if present(SETTLED).is_some() {
        return Ok(wanted);
    }
    let tuned = match present(TUNABLES) {
        Some(tunables) if tunables.contains(HUGE_PAGES) => tunables,
        Some(tunables) => format!("{tunables}:{HUGE_PAGES}=1"),
        None => format!("{HUGE_PAGES}=1"),
    };
    let program = env::current_exe()
        .map_err(|error| Failure::stage(format!("cannot find the program: {error}")))?;
    let error = Command::new(program)
        .env(POOL_THREADS, wanted)
        .env(TUNABLES, tuned)
        .env(SETTLED, "1")
        .exec();
    Err(Failure::stage(format!(
        "cannot start with the threads that were asked for: {error}"
    )))
}

fn describe() -> String {
    let version = env!("CARGO_PKG_VERSION");
    serde_json::json!({
        "program": "stageline-worker",
        "version": version,
        "protocol": PROTOCOL,
        "level": level::LEVEL,
        "missing": level::missing(),
        "cuda": candle_core::utils::cuda_is_available(),
    })
    .to_string()
}

fn failed(result: Result<(), Failure>) -> ExitCode {
    let Err(Failure { code, message }) = result else {
        return ExitCode::SUCCESS;
    };
    log(&message);
    // If nobody reads it, the status still tells.
    let _ = io::stdout().write_all(&FromWorker::Failed { code, message }.encode());
    ExitCode::FAILURE
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// One line for the log that the agent keeps. A log that nobody reads is no reason to stop.
fn log(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
