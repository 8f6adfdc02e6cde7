//! The program `stageline`: see [`stageline::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    stageline::cli::main(std::env::args_os())
}
