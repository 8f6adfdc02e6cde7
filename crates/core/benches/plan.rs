//! What planning costs: `cargo bench -p stageline-core --bench plan`.
//!
//! Each line is the mean of several runs of the pure part of `plan`: topology text to diff, state out of its snapshot's
//! bytes. Time on the processor where the system tells it (Linux), else on the wall. After each size, the most
//! memory that the process had until then (Linux), tests' own world included. Words after `--` pick lines.

#[path = "../tests/plan/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use stageline_core::graph::Graph;
use stageline_core::offer::{Gpu, Requirement, Selection, Supply, ranked};
use stageline_core::plan::{Draft, Markets, Mode, Options, Plan, check, draft, expand};
use stageline_core::render::{self, Level, View};
use stageline_core::state::{Observed, State};
use stageline_core::topology::{self, SourceFile, VarSources};
use stageline_core::unit::Bytes;

const VIEW: View = View {
    level: Level::Changes,
    width: 100,
    color: false,
};

fn text(leases: u32, stages: bool, providers: u32) -> String {
    let mut text = "version = 1\nname = \"bench\"\n".to_owned();
    for n in 0..providers {
        text.push_str(&format!(
            "[provider.here{n}]\nkind = \"local\"\n[offer.box{n}]\nprovider = \"here{n}\"\n"
        ));
    }
    let offers: Vec<String> = (0..providers).map(|n| format!("\"box{n}\"")).collect();
    text.push_str(&format!(
        "[lease.gpu]\noffers = [{}]\ncount = {leases}\n",
        offers.join(", ")
    ));
    for pipeline in 0..if stages { leases / 4 } else { 0 } {
        let first = pipeline * 4;
        let on: Vec<String> = (first..first + 4)
            .map(|n| format!("\"lease.gpu[{n}]\""))
            .collect();
        text.push_str(&format!(
            "[pipeline.p{pipeline}]\nengine = \"stub\"\nstages = {{ on = [{}], split = \"auto\" }}\n",
            on.join(", ")
        ));
    }
    text
}

/// As many providers as there are, each with more than its share of machines.
fn markets(leases: u32, providers: u32) -> Markets {
    let slots = leases.div_ceil(providers) + 24;
    let market = |n: u32| {
        let (_, mut market) = world::local(slots).pop_first().expect("one");
        let here = world::name(&format!("here{n}"));
        for quote in market.quotes.as_mut().expect("it answers") {
            quote.provider = here.clone();
        }
        (here, market)
    };
    (0..providers).map(market).collect()
}

/// All that `plan` does but for reading files.
fn planned(text: &str, state: &State, markets: &Markets) -> (Plan, String) {
    let source = SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    };
    let (topology, _) = topology::read(&[source], &VarSources::default()).expect("it is valid");
    let desired = expand(&topology, &BTreeMap::new()).expect("it can be expanded");
    let options = Options {
        mode: Mode::Apply,
        now: world::now(),
        targets: Vec::new(),
        excludes: Vec::new(),
        replace: Vec::new(),
        limits: topology.limits.clone(),
        topology_digest: Some(topology::digest(&topology)),
        refresh_only: false,
        renew: stageline_core::plan::Renew::Nothing,
        watched: true,
        boot: None,
        rooms: std::collections::BTreeMap::new(),
    };
    let plan = draft(&Draft {
        desired: &desired,
        recorded: state,
        observed: &Observed::default(),
        markets,
        options: &options,
    })
    .expect("it can be planned");
    let drawn = render::plan::plan(&plan, &VIEW);
    (plan, drawn)
}

/// Time that this process had a processor, in steps of a few milliseconds; other programs do not count.
fn spent(since: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|field| field.parse().ok());
    nanos.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

fn mean(mut run: impl FnMut()) -> Duration {
    const RUNS: u32 = 15;
    let start = Instant::now();
    let before = spent(start);
    (0..RUNS).for_each(|_| run());
    spent(start).saturating_sub(before) / RUNS
}

fn line(what: &str, took: Duration) -> io::Result<()> {
    writeln!(
        io::stdout(),
        "{what:<58} {:>9.2} ms",
        took.as_secs_f64() * 1000.0
    )
}

/// Where the time goes.
fn parts(text: &str, count: u32, markets: &Markets) -> io::Result<()> {
    let source = SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    };
    let read = || {
        topology::read(std::slice::from_ref(&source), &VarSources::default())
            .expect("it is valid")
            .0
    };
    line(&format!("{count}: read"), mean(|| drop(read())))?;
    let topology = read();
    line(
        &format!("{count}: digest of the topology"),
        mean(|| {
            topology::digest(&topology);
        }),
    )?;
    let expanded = || expand(&topology, &BTreeMap::new()).expect("it can be expanded");
    line(&format!("{count}: expand"), mean(|| drop(expanded())))?;
    let desired = expanded();
    let options = Options {
        mode: Mode::Apply,
        now: world::now(),
        targets: Vec::new(),
        excludes: Vec::new(),
        replace: Vec::new(),
        limits: topology.limits.clone(),
        topology_digest: None,
        refresh_only: false,
        renew: stageline_core::plan::Renew::Nothing,
        watched: true,
        boot: None,
        rooms: std::collections::BTreeMap::new(),
    };
    let (state, observed) = (State::default(), Observed::default());
    let drafted = || {
        draft(&Draft {
            desired: &desired,
            recorded: &state,
            observed: &observed,
            markets,
            options: &options,
        })
        .expect("it can be planned")
    };
    line(&format!("{count}: draft"), mean(|| drop(drafted())))?;
    let plan = drafted();
    line(
        &format!("{count}: digest of the plan"),
        mean(|| {
            plan.digest();
        }),
    )?;
    line(
        &format!("{count}: render"),
        mean(|| drop(render::plan::plan(&plan, &VIEW))),
    )
}

fn leases(count: u32, stages: bool, providers: u32) -> io::Result<()> {
    let text = text(count, stages, providers);
    let markets = markets(count, providers);
    let kind = match (stages, providers) {
        (true, _) => "leases with stages",
        (false, 1) => "leases",
        (false, _) => "leases of ten providers",
    };
    let empty = State::default();
    parts(&text, count, &markets)?;
    let (plan, _) = planned(&text, &empty, &markets);
    line(
        &format!("{count} {kind}, empty state"),
        mean(|| drop(planned(&text, &empty, &markets))),
    )?;
    line(
        &format!("{count} {kind}, check and digest"),
        mean(|| check(&plan).expect("it keeps")),
    )?;
    line(
        &format!("{count} {kind}, plan file"),
        mean(|| drop(plan.encode())),
    )?;
    let mut world = world::World::new();
    world.carry_out(&plan);
    let bytes = serde_json::to_vec(&world.state.stored()).expect("plain data");
    line(
        &format!("{count} {kind}, what a plan binds to"),
        mean(|| {
            world.state.projection();
        }),
    )?;
    let read = || serde_json::from_slice::<State>(&bytes).expect("it was written so");
    let what = format!("{count} {kind}, {} KiB of state read", bytes.len() / 1024);
    line(&what, mean(|| drop(read())))?;
    let state = read();
    let (again, _) = planned(&text, &state, &markets);
    assert!(again.is_empty(), "nothing is to be done");
    line(
        &format!("{count} {kind}, full state"),
        mean(|| drop(planned(&text, &state, &markets))),
    )
}

fn chain(length: u32) -> io::Result<()> {
    let at = |n: u32| world::address(&format!("stage.p[{n}]"));
    let all: Vec<_> = (0..length).map(at).collect();
    let took = mean(|| {
        let mut graph = Graph::new();
        for pair in all.windows(2) {
            graph.needs(&pair[1], &pair[0]);
        }
        assert_eq!(graph.order().expect("no cycle").len(), all.len());
        assert_eq!(graph.teardown().expect("no cycle").len(), all.len());
    });
    line(
        &format!("{length} resources in one chain, built and ordered"),
        took,
    )
}

fn peak() -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match status.lines().find(|line| line.starts_with("VmHWM")) {
        Some(peak) => writeln!(io::stdout(), "{peak}"),
        None => Ok(()),
    }
}

/// A marketplace with this many asks, none like the other, for two kinds of leases that want the same ones.
fn ranking(asks: u32) -> io::Result<()> {
    let gpus = ["RTX 4090", "RTX 3090", "H100 SXM", "A100 PCIE"];
    let quote = |n: u32| {
        let price = 100_000 + u64::from(n).wrapping_mul(7919) % 900_000;
        let mut quote = world::quote("here", &format!("ask-{n}"), price, Supply::One);
        let gpu = Gpu {
            model: gpus[(n % 4) as usize].to_owned(),
            vram: Bytes::gib(24),
        };
        quote.facts.gpus = vec![gpu; 1 + (n % 3) as usize];
        quote.facts.region = Some(if n.is_multiple_of(5) { "DE" } else { "US" }.to_owned());
        let reliability = format!("0.{}", 90 + n / 20 % 10);
        quote
            .facts
            .extra
            .insert("reliability".to_owned(), reliability);
        quote
    };
    let (_, mut market) = world::local(0).pop_first().expect("one");
    market.quotes = Ok((0..asks).map(quote).collect());
    let markets = Markets::from([(world::name("here"), market)]);
    let text = "version = 1\nname = \"bench\"\n[provider.here]\nkind = \"local\"\n\
         [offer.near]\nprovider = \"here\"\nwhere = \"gpu=rtx_4090, vram>=24, reliability>=0.98, region=EU\"\n\
         [offer.far]\nprovider = \"here\"\nwhere = \"gpu=rtx_4090|h100*, reliability>=0.95\"\n\
         [lease.a]\noffers = [\"near\"]\ncount = 20\n[lease.b]\noffers = [\"near\", \"far\"]\ncount = 20\n";
    let took = mean(|| drop(planned(text, &State::default(), &markets)));
    line(
        &format!("{asks} asks ranked for 40 leases of two kinds that compete"),
        took,
    )?;
    let fit: Requirement = "gpu=rtx_4090, vram>=24, reliability>=0.98, region=EU"
        .parse()
        .expect("a requirement");
    let quotes = markets[&world::name("here")].quotes.as_ref().expect("asks");
    let within = Selection::default();
    let took = mean(|| {
        let fitting = ranked(&fit, [(&within, quotes.as_slice())]);
        assert!(!fitting.is_empty());
    });
    line(&format!("{asks} asks, all that fit, cheapest first"), took)?;
    let any = Requirement::default();
    let took = mean(|| {
        assert_eq!(
            ranked(&any, [(&within, quotes.as_slice())]).len(),
            quotes.len()
        )
    });
    line(
        &format!("{asks} asks, all of which fit, cheapest first"),
        took,
    )
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked = |word: &str| {
        let mut words = words
            .iter()
            .filter(|word| !word.starts_with("--"))
            .peekable();
        words.peek().is_none() || words.any(|asked| asked == word)
    };
    for (word, stages, providers) in [
        ("leases", false, 1),
        ("ten", false, 10),
        ("stages", true, 1),
    ] {
        for count in [1_000, 10_000].into_iter().filter(|_| asked(word)) {
            leases(count, stages, providers)?;
            peak()?;
        }
    }
    for length in [3_000, 30_000].into_iter().filter(|_| asked("chain")) {
        chain(length)?;
    }
    if asked("asks") {
        ranking(100_000)?;
        peak()?;
    }
    Ok(())
}
