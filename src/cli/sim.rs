//! `sim`: a practice provider on this computer.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

use super::console::Console;
use super::{Exit, Failure, session};
use crate::sim::{self, Faults, Kind, Options};

/// A practice provider on this computer, with a clock, a bill and faults of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct Sim {
    /// Who is played
    provider: Played,
    /// Where it listens; port 0 is a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A TOML file with `[[fault]]` tables
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// How fast its clock runs: real, fast (60 times), or a number
    #[arg(long, value_name = "PACE", default_value = "real", value_parser = pace)]
    clock: u32,
    /// Machines fetch their agent by their start command, instead of running this program
    #[arg(long)]
    fetch: bool,
    /// For everything that is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print every knob of the fault table, and end
    #[arg(long)]
    knobs: bool,
}

/// The providers that can be played.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Played {
    /// The marketplace vast.ai
    Vastai,
    /// Lambda Cloud
    Lambda,
    /// Pods of RunPod
    Runpod,
}

impl Played {
    const fn kind(self) -> Kind {
        match self {
            Self::Vastai => Kind::Vastai,
            Self::Lambda => Kind::Lambda,
            Self::Runpod => Kind::Runpod,
        }
    }
}

fn pace(text: &str) -> Result<u32, String> {
    match text {
        "real" => Ok(1),
        "fast" => Ok(60),
        number => number
            .parse()
            .ok()
            .filter(|speed| (1..=100_000).contains(speed))
            .ok_or_else(|| "real, fast, or a number up to 100000".to_owned()),
    }
}

impl Sim {
    pub fn run(self, console: &Console) -> Result<Exit, Failure> {
        if self.knobs {
            console.data(&knobs(self.provider.kind()))?;
            return Ok(Exit::Done);
        }
        if !self.listen.ip().is_loopback() {
            return Err(
                Failure::user(format!("{} is not on the loopback", self.listen)).hint(
                    "a simulator starts programs for whoever asks; it serves this computer only",
                ),
            );
        }
        let faults = match &self.faults {
            None => Faults::new(Vec::new(), self.seed),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Failure::user(format!("cannot read {}: {error}", path.display()))
                })?;
                let faults = Faults::parse(&text);
                let fits = |faults: Faults| faults.fits(self.provider.kind()).map(|()| faults);
                faults
                    .and_then(fits)
                    .map_err(|error| Failure::user(format!("{}: {error}", path.display())))?
            }
        };
        let options = Options {
            kind: self.provider.kind(),
            listen: self.listen,
            faults,
            speed: self.clock,
            seed: self.seed,
            program: Some(std::env::current_exe()?),
            fetch: self.fetch,
        };
        session::runtime()?.block_on(serve(options, console))
    }
}

/// Every knob that this provider can show, and what it does; then those that it cannot, and why.
fn knobs(kind: Kind) -> String {
    let cannot = |knob: &str| kind.cannot().iter().any(|(other, _)| *other == knob);
    let all = sim::fault::KNOBS.iter();
    let mut text = String::new();
    for (knob, doc) in all.filter(|(knob, _)| !cannot(knob)) {
        text += &format!("{knob:<28} {doc}\n");
    }
    if !kind.cannot().is_empty() {
        text += &format!("\nNot at {}:\n", kind.title());
    }
    for (knob, why) in kind.cannot() {
        text += &format!("{knob:<28} {why}\n");
    }
    text
}

async fn serve(options: Options, console: &Console) -> Result<Exit, Failure> {
    let (listen, kind) = (options.listen, options.kind);
    let running = sim::start(options).await.map_err(|error| {
        Failure::user(format!("cannot listen on {listen}: {error}")).hint("port 0 takes a free one")
    })?;
    console.data(&format!("{}\n", running.url()))?;
    console.say(&format!(
        "a practice {} listens there; any key is an account. In the topology:",
        kind.title()
    ));
    console.say(&format!(
        "    [provider.practice]\n    kind = \"{}\"\n    url = \"{}\"",
        kind.as_str(),
        running.url()
    ));
    console.say(&format!(
        "bill: http://{}/_sim/bill; it ends with Ctrl-C, and its machines with it",
        running.address
    ));
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    running.stop().await;
    let bill = running.world.bill();
    console.say(&format!("ended; all machines together cost {bill}"));
    Ok(Exit::Done)
}
