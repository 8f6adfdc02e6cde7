//! What planning costs: `cargo bench -p stageline-core --bench plan`.
//!
//! Each line is the median of several runs of the pure part of `plan`: topology text to diff, state out of its snapshot's
//! bytes. Time on the processor where the system tells it (Linux), else on the wall. After each size, the most
//! memory that the process had until then (Linux), tests' own world included.

#[path = "../tests/plan/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use stageline_core::graph::Graph;
use stageline_core::plan::{Draft, Mode, Options, Plan, check, draft, expand};
use stageline_core::render::{self, Level, View};
use stageline_core::state::{Observed, State};
use stageline_core::topology::{self, SourceFile, VarSources};

const VIEW: View = View {
    level: Level::Changes,
    width: 100,
    color: false,
};

fn text(leases: u32, stages: bool) -> String {
    let mut text = format!(
        "version = 1\nname = \"bench\"\n[provider.here]\nkind = \"local\"\n[offer.box]\nprovider = \"here\"\n\
         [lease.gpu]\noffers = [\"box\"]\ncount = {leases}\n"
    );
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

/// All that `plan` does but for reading files.
fn planned(text: &str, state: &State) -> (Plan, String) {
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
        boot: None,
    };
    let plan = draft(&Draft {
        desired: &desired,
        recorded: state,
        observed: &Observed::default(),
        markets: &world::local(1_000_000),
        options: &options,
    })
    .expect("it can be planned");
    let drawn = render::plan::plan(&plan, &VIEW);
    (plan, drawn)
}

/// Time that this process had a processor; other programs do not count.
fn spent(since: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|field| field.parse().ok());
    nanos.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

fn median(mut run: impl FnMut()) -> Duration {
    let mut took: Vec<Duration> = (0..7)
        .map(|_| {
            let start = Instant::now();
            let before = spent(start);
            run();
            spent(start).saturating_sub(before)
        })
        .collect();
    took.sort();
    took[took.len() / 2]
}

fn line(what: &str, took: Duration) -> io::Result<()> {
    writeln!(
        io::stdout(),
        "{what:<58} {:>9.2} ms",
        took.as_secs_f64() * 1000.0
    )
}

/// Where the time goes.
fn parts(text: &str, count: u32) -> io::Result<()> {
    let source = SourceFile {
        name: "topology.toml".to_owned(),
        text: text.to_owned(),
    };
    let read = || {
        topology::read(std::slice::from_ref(&source), &VarSources::default())
            .expect("it is valid")
            .0
    };
    line(&format!("{count}: read"), median(|| drop(read())))?;
    let topology = read();
    line(
        &format!("{count}: digest of the topology"),
        median(|| {
            topology::digest(&topology);
        }),
    )?;
    let expanded = || expand(&topology, &BTreeMap::new()).expect("it can be expanded");
    line(&format!("{count}: expand"), median(|| drop(expanded())))?;
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
        boot: None,
    };
    let (state, observed, markets) = (
        State::default(),
        Observed::default(),
        world::local(1_000_000),
    );
    let drafted = || {
        draft(&Draft {
            desired: &desired,
            recorded: &state,
            observed: &observed,
            markets: &markets,
            options: &options,
        })
        .expect("it can be planned")
    };
    line(&format!("{count}: draft"), median(|| drop(drafted())))?;
    let plan = drafted();
    line(
        &format!("{count}: digest of the plan"),
        median(|| {
            plan.digest();
        }),
    )?;
    line(
        &format!("{count}: render"),
        median(|| drop(render::plan::plan(&plan, &VIEW))),
    )
}

fn leases(count: u32, stages: bool) -> io::Result<()> {
    let text = text(count, stages);
    let kind = if stages {
        "leases with stages"
    } else {
        "leases"
    };
    let empty = State::default();
    parts(&text, count)?;
    let (plan, _) = planned(&text, &empty);
    line(
        &format!("{count} {kind}, empty state"),
        median(|| drop(planned(&text, &empty))),
    )?;
    line(
        &format!("{count} {kind}, check and digest"),
        median(|| check(&plan).expect("it keeps")),
    )?;
    line(
        &format!("{count} {kind}, plan file"),
        median(|| drop(plan.encode())),
    )?;
    let mut world = world::World::new();
    world.carry_out(&plan);
    let bytes = serde_json::to_vec(&world.state).expect("plain data");
    let read = || serde_json::from_slice::<State>(&bytes).expect("it was written so");
    let what = format!("{count} {kind}, {} KiB of state read", bytes.len() / 1024);
    line(&what, median(|| drop(read())))?;
    let state = read();
    let (again, _) = planned(&text, &state);
    assert!(again.is_empty(), "nothing is to be done");
    line(
        &format!("{count} {kind}, full state"),
        median(|| drop(planned(&text, &state))),
    )
}

fn chain(length: u32) -> io::Result<()> {
    let at = |n: u32| world::address(&format!("stage.p[{n}]"));
    let all: Vec<_> = (0..length).map(at).collect();
    let took = median(|| {
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

fn main() -> io::Result<()> {
    for stages in [false, true] {
        for count in [1_000, 10_000] {
            leases(count, stages)?;
            peak()?;
        }
    }
    for length in [3_000, 30_000] {
        chain(length)?;
    }
    Ok(())
}
