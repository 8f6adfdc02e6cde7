//! The command line: one file for each command; wiring, reporter, exit code.
//!
//! Data goes to stdout, everything else to stderr. Nothing outside of this module prints. Arguments are parsed before
//! anything else is made: no runtime, no endpoint, no TLS for a command that needs none.

mod agent;
mod apply;
mod ask;
mod console;
mod destroy;
mod drafting;
mod exit;
mod fetched;
mod forward;
mod graph;
mod import;
mod init;
mod keys;
mod leases;
mod logs;
mod markets;
mod model;
mod money;
mod offers;
mod orphans;
mod own_hosts;
mod plan;
mod project;
mod pushed;
mod relay;
mod reporter;
mod run;
mod sellers;
mod session;
mod setup_file;
mod shell;
mod show;
mod signals;
mod sim;
mod state;
mod status;
mod stock;
mod surgery;
mod terminal;
mod unseen;
mod validate;
mod watch;
mod way;
mod wrap;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::ambient;
use console::Console;
pub use exit::{Exit, Failure};

/// Plans, rents and ends machines that serve one model together.
#[derive(Debug, Parser)]
#[command(name = "stageline", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Global {
    /// A topology file; several are merged in order
    #[arg(short, long = "file", value_name = "FILE", global = true)]
    file: Vec<PathBuf>,
    /// A value for a variable of the topology
    #[arg(long = "var", value_name = "NAME=VALUE", global = true, value_parser = variable)]
    var: Vec<(String, String)>,
    /// A TOML file with values for variables
    #[arg(long = "var-file", value_name = "FILE", global = true)]
    var_file: Vec<PathBuf>,
    /// Where state is kept: a folder, or s3://, gs://, az:// with bucket and prefix [default: as the topology says, else
    /// `state` beside it]
    #[arg(long, value_name = "URL", global = true)]
    state: Option<String>,
    /// Which topology's state, where there is no topology file
    #[arg(long, value_name = "NAME", global = true)]
    name: Option<String>,
    /// Keeps a state of its own for the same topology
    #[arg(long, value_name = "NAME", global = true)]
    workspace: Option<String>,
    /// Data on stdout as JSON
    #[arg(long, global = true)]
    json: bool,
    /// When to use colour
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    color: When,
    /// Say less; twice for nothing but errors
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    quiet: u8,
    /// Say more; twice for all there is
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// How log lines on stderr are written
    #[arg(long, value_name = "FORMAT", global = true, default_value = "text")]
    log_format: LogFormat,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// On a terminal.
    Auto,
    /// Also in a pipe.
    Always,
    /// Never.
    Never,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a commented starter topology
    Init(init::Init),
    /// Check the topology and show every fault at once
    Validate(validate::Validate),
    /// Print the JSON Schema of a file format, for editors and scripts
    Schema(validate::Schema),
    /// Print the documentation of a key of the topology
    Explain(validate::Explain),
    /// What can be rented now, cheapest first, over all providers
    Offers(offers::Offers),
    /// Show what apply would do and what that costs; changes nothing
    Plan(plan::Plan),
    /// Carry out a plan, a saved one or a new one
    Apply(apply::Apply),
    /// End everything that the state knows, and prove it
    Destroy(destroy::Destroy),
    /// Show a saved plan, or what is recorded
    Show(show::Show),
    /// Draw who needs whom, as DOT or Mermaid
    Graph(graph::Graph),
    /// Leases, stages and exposures as they are now, and what they cost
    Status(status::Status),
    /// Output of a machine's agent or of a stage's worker
    Logs(logs::Logs),
    /// A shell on a leased machine, or one command there
    Ssh(shell::Shell),
    /// Make a TCP port of a leased machine reachable on this computer
    Forward(forward::Forward),
    /// Send one prompt through a pipeline
    Ask(ask::Ask),
    /// The machines we hold, ended ones too
    Leases(leases::Leases),
    /// End one machine now
    Release(leases::Release),
    /// Take a machine of this state at the provider back into a lease
    Import(import::Import),
    /// Machines at the providers that carry our mark and that no state records
    Orphans(orphans::Orphans),
    /// Keep recorded leases within their limits, for an always-on box
    Watch(watch::Watch),
    /// Look into the recorded state, or mend it
    State(state::State),
    /// The process on a leased machine; started by stageline itself
    Agent(agent::Agent),
    /// A practice provider on this computer, with a clock, a bill and faults of its own
    Sim(sim::Sim),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the version
    Version,
}

/// Print a completion script for a shell.
#[derive(Debug, Args)]
struct Completions {
    /// Which shell
    shell: clap_complete::Shell,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(format!("`{text}` is not NAME=VALUE")),
    }
}

/// The whole program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    ambient::no_core_dumps();
    // An agent is found by its environment.
    if !matches!(cli.command, Command::Agent(_)) {
        ambient::keep_memory_private();
    }
    let console = Console::new(&cli.global);
    match dispatch(cli, &console) {
        Ok(code) => code,
        Err(failure) => {
            console.failure(&failure);
            failure.exit.into()
        }
    }
}

fn dispatch(cli: Cli, console: &Console) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    let exit = match cli.command {
        Command::Init(command) => command.run(global, console),
        Command::Validate(command) => command.run(global, console),
        Command::Schema(command) => command.run(console),
        Command::Explain(command) => command.run(console),
        Command::Offers(command) => command.run(global, console),
        Command::Plan(command) => command.run(global, console),
        Command::Apply(command) => command.run(global, console),
        Command::Destroy(command) => command.run(global, console),
        Command::Show(command) => command.run(global, console),
        Command::Graph(command) => command.run(global, console),
        Command::Status(command) => command.run(global, console),
        Command::Logs(command) => command.run(global, console),
        // Its exit status is that of what ran there.
        Command::Ssh(command) => return command.run(global, console),
        Command::Forward(command) => command.run(global, console),
        Command::Ask(command) => command.run(global, console),
        Command::Leases(command) => command.run(global, console),
        Command::Release(command) => command.run(global, console),
        Command::Import(command) => command.run(global, console),
        Command::Orphans(command) => command.run(global, console),
        Command::Watch(command) => command.run(global, console),
        Command::State(command) => command.run(global, console),
        Command::Agent(command) => command.run(console),
        Command::Sim(command) => command.run(console),
        Command::Completions(Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "stageline", &mut script);
            console.data(&String::from_utf8_lossy(&script))?;
            Ok(Exit::Done)
        }
        Command::Version => {
            console.data(&version(console.json))?;
            Ok(Exit::Done)
        }
    };
    exit.map(ExitCode::from)
}

fn version(json: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        format!("{{\"version\":\"{version}\"}}\n")
    } else {
        format!("stageline {version}\n")
    }
}
