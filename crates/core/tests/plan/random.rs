//! Random topologies, runs that die anywhere, machines that vanish: every plan keeps what plans keep, the world settles,
//! and the empty topology ends it. The seed is printed with a failure.

use std::collections::BTreeMap;

use stageline_core::graph::Graph;
use stageline_core::id::{Address, LeaseId};
use stageline_core::plan::{
    Desired, Draft, Markets, Mode, Plan, check, draft, expand, recorded_graph,
};
use stageline_core::resource::Receipt;
use stageline_core::state::{Observed, ObservedLease, Seen};
use stageline_core::topology::{Engine, Stage, Stages, Topology};
use stageline_core::unit::MicroDollars;

use crate::basics::{chain, machines, options};
use crate::world::{World, local, name, now};

/// A small generator (splitmix64): the same seed gives the same story.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Up to two tables of machines, up to two pipelines anywhere on them, a way in for some.
fn topology(draws: &mut Draws) -> Topology {
    let mut topology = machines(u32::try_from(draws.below(4) + 1).expect("small"));
    if draws.one_in(2) {
        let lease = topology.leases[&name("gpu")].clone();
        topology.leases.insert(name("new"), lease);
    }
    let all: Vec<LeaseId> = topology
        .leases
        .iter()
        .flat_map(|(name, lease)| {
            (0..lease.count).map(|index| LeaseId {
                name: name.clone(),
                index,
            })
        })
        .collect();
    let template = chain(&[0, 30]);
    let mut served = Vec::new();
    for pipeline in ["llama", "tiny"] {
        if draws.one_in(4) {
            continue;
        }
        let mut made = template.pipelines[&name("llama")].clone();
        made.engine = Engine::Stub;
        made.model = None;
        let stages = (0..=draws.below(3)).map(|_| Stage {
            on: all[usize::try_from(draws.below(all.len() as u64)).expect("small")].clone(),
            layers: None,
            gpus: 0,
            env: BTreeMap::new(),
        });
        made.stages = Stages::Listed(stages.collect());
        made.check.prompt = format!("{}", draws.below(2));
        topology.pipelines.insert(name(pipeline), made);
        served.push(name(pipeline));
    }
    if !served.is_empty() && !draws.one_in(3) {
        let mut exposure = template.exposures[&name("api")].clone();
        if draws.one_in(2) {
            served.reverse();
        }
        exposure.pipelines = served;
        topology.exposures.insert(name("api"), exposure);
    }
    topology
}

/// What a look at the world may say of recorded machines.
fn look(world: &World, draws: &mut Draws) -> Observed {
    let mut observed = Observed {
        at: Some(now()),
        ..Observed::default()
    };
    for (address, recorded) in world.state.existing() {
        let (Address::Lease(id), Some(Receipt::Lease(_))) = (address, &recorded.receipt) else {
            continue;
        };
        let there = |dead: Option<&str>| {
            Seen::There(ObservedLease {
                dead: dead.map(str::to_owned),
                price_per_hour: MicroDollars(0),
                ..ObservedLease::default()
            })
        };
        let seen = match draws.below(6) {
            0 => Seen::Gone,
            1 => there(Some("broken")),
            _ => there(None),
        };
        observed.leases.insert(id.clone(), seen);
    }
    observed
}

fn plan(
    desired: &Desired,
    world: &World,
    observed: &Observed,
    markets: &Markets,
    mode: Mode,
) -> Plan {
    let options = options(mode);
    let recorded = &world.state;
    let plan = draft(&Draft {
        desired,
        recorded,
        observed,
        markets,
        options: &options,
    })
    .expect("there is room for all");
    check(&plan).expect("every plan keeps this");
    in_order(&plan, &desired.graph());
    in_order(&plan, &recorded_graph(recorded));
    plan
}

/// Changes are listed in an order of the graph.
fn in_order(plan: &Plan, graph: &Graph) {
    let place: BTreeMap<&Address, usize> = plan
        .changes
        .iter()
        .map(|change| &change.address)
        .zip(0..)
        .collect();
    for (dependent, dependency) in graph.edges() {
        if let (Some(a), Some(b)) = (place.get(dependency), place.get(dependent)) {
            assert!(a < b, "{dependency} before {dependent}");
        }
    }
}

/// Any order that the edges allow: steps that do not wait for each other may run at once.
fn any_order(plan: &Plan, draws: &mut Draws) -> Vec<usize> {
    let mut done = vec![false; plan.steps.len()];
    let mut order = Vec::new();
    while order.len() < done.len() {
        let ready: Vec<usize> = (0..done.len())
            .filter(|n| !done[*n] && plan.steps[*n].after.iter().all(|id| done[id.0 as usize]))
            .collect();
        let next = ready[usize::try_from(draws.below(ready.len() as u64)).expect("small")];
        done[next] = true;
        order.push(next);
    }
    order
}

fn story(seed: u64) {
    let mut draws = Draws(seed);
    let markets = local(64);
    let blind = Observed::default();
    let mut world = World::new();
    let mut declared = topology(&mut draws);
    for _ in 0..6 {
        if draws.one_in(2) {
            declared = topology(&mut draws);
        }
        let desired = expand(&declared, &BTreeMap::new()).expect("it can be expanded");
        let observed = if draws.one_in(2) {
            look(&world, &mut draws)
        } else {
            blind.clone()
        };
        let first = plan(&desired, &world, &observed, &markets, Mode::Apply);
        let order = any_order(&first, &mut draws);
        let steps = order.len();
        if draws.one_in(2) && steps > 0 {
            let count = usize::try_from(draws.below(steps as u64)).expect("small");
            world.carry_out_in(&first, &order[..count]);
            if draws.one_in(2) {
                world.start(&first, &first.steps[order[count]]);
            }
            if draws.one_in(2) {
                continue;
            }
            let rest = plan(&desired, &world, &blind, &markets, Mode::Apply);
            world.carry_out(&rest);
        } else {
            world.carry_out_in(&first, &order);
        }
        let left = plan(&desired, &world, &blind, &markets, Mode::Apply);
        assert!(
            left.is_empty(),
            "a settled world needs nothing: {:#?}",
            left.changes
        );
    }
    let nothing = Desired::nothing(name("test"));
    let end = plan(&nothing, &world, &blind, &Markets::new(), Mode::Destroy);
    world.carry_out(&end);
    assert!(world.state.is_empty(), "destroy leaves nothing");
}

#[test]
fn random_stories_settle_and_end() {
    for seed in 0..60 {
        let told = std::panic::catch_unwind(|| story(seed));
        assert!(
            told.is_ok(),
            "seed {seed} fails: call `story({seed})` alone"
        );
    }
}
