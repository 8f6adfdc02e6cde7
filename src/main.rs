//! The program `stageline`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["agent", "--dir", dir] => agent(dir),
        _ => ExitCode::from(2),
    }
}

fn agent(dir: &str) -> ExitCode {
    let options = stageline::agent::AgentOptions { dir: dir.into() };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ended = match runtime.map(|runtime| runtime.block_on(stageline::agent::run(options))) {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        #[expect(
            clippy::print_stderr,
            reason = "whoever starts an agent keeps its stderr"
        )]
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
