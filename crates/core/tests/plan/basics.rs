//! A topology built in code: what is made, in which order, and that it is made once.

use std::collections::BTreeMap;

use stageline_core::id::{LeaseId, Sha256};
use stageline_core::offer::Requirement;
use stageline_core::plan::{
    Desired, Draft, Loaded, Markets, Mode, ModelFacts, ModelShape, Options, Plan, Renew, Verdict,
    check, draft, expand,
};
use stageline_core::resource::ModelOrigin;
use stageline_core::state::Observed;
use stageline_core::topology::{
    Check, Dtype, Engine, Exposure, Fetch, Lease, Limits, Model, ModelSource, Offer, Pipeline,
    Provider, ProviderKind, Serve, Stage, Stages, Topology, Via,
};
use stageline_core::unit::{Bytes, MicroDollars, Millis};

use crate::world::{World, local, name, now};

pub fn options(mode: Mode) -> Options {
    Options {
        mode,
        now: now(),
        targets: Vec::new(),
        excludes: Vec::new(),
        replace: Vec::new(),
        limits: Limits {
            max_price_per_hour: None,
            max_total_per_hour: None,
            max_leases: None,
            max_spend: None,
        },
        topology_digest: None,
        refresh_only: false,
        watched: true,
        renew: Renew::Nothing,
        boot: None,
        rooms: BTreeMap::new(),
    }
}

pub fn model() -> ModelFacts {
    ModelFacts {
        sha256: Sha256([5; 32]),
        size: Bytes::mib(98),
        origin: ModelOrigin::Operator("models/m.gguf".into()),
        token: None,
        shape: Some(ModelShape {
            context: 8192,
            header: Bytes::mib(2),
            entry: Bytes::mib(28),
            exit: Bytes::mib(28),
            tied: true,
            layers: vec![Bytes(2_300_000); 30],
            work: vec![3_538_944; 30],
            exit_work: 28_311_552,
            kv_per_token: Bytes(1536),
            loaded: Loaded {
                layers: vec![Bytes(4_370_000); 30],
                exit: Bytes::mib(28),
                both: Bytes::mib(28),
            },
        }),
    }
}

fn lease_id(index: u32) -> LeaseId {
    LeaseId {
        name: name("gpu"),
        index,
    }
}

/// A lease table `gpu`, one pipeline `llama` over it, one exposure.
pub fn chain(cuts: &[u32]) -> Topology {
    let count = u32::try_from(cuts.len() - 1).expect("few");
    let stages = cuts.windows(2).zip(0..).map(|(pair, index)| Stage {
        on: lease_id(index),
        layers: Some(stageline_core::topology::Layers {
            start: pair[0],
            end: pair[1],
        }),
        gpus: 0,
        env: BTreeMap::new(),
    });
    let pipeline = Pipeline {
        model: Some(Model {
            source: ModelSource::Path("m.gguf".into()),
            sha256: None,
            token: None,
            fetch: Fetch::Operator,
        }),
        engine: Engine::Native,
        engine_args: Vec::new(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        stages: Stages::Listed(stages.collect()),
        dtype: Dtype::Bf16,
        context: Some(2048),
        max_in_flight: None,
        ready_timeout: Millis::minutes(10),
        request_timeout: Millis::minutes(5),
        check: Check {
            prompt: "Hello".to_owned(),
            max_tokens: 1,
            expect: None,
        },
    };
    let exposure = Exposure {
        pipelines: vec![name("llama")],
        serve: Serve::OpenAi,
        via: Via::Loopback {
            listen: "127.0.0.1:8080".parse().expect("an address"),
            api_key: None,
        },
    };
    Topology {
        pipelines: BTreeMap::from([(name("llama"), pipeline)]),
        exposures: BTreeMap::from([(name("api"), exposure)]),
        ..machines(count)
    }
}

pub fn machines(count: u32) -> Topology {
    let lease = Lease {
        offers: vec![name("box")],
        count,
        disk: None,
        protect: false,
        unguarded: false,
        requirement: Requirement::default(),
        max_price_per_hour: None,
        idle_timeout: None,
        max_lifetime: None,
        acquire_timeout: None,
        attempts: None,
        requote: None,
        instance_type: None,
        image: None,
        registry: None,
        agent: None,
        spot: None,
        wait_for_capacity: None,
        gang: None,
        gang_timeout: None,
        same: None,
        spread: None,
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        setup: None,
        mounts: Vec::new(),
    };
    let offer = Offer {
        claims: None,
        instance_type: None,
        provider: name("here"),
        requirement: Requirement::default(),
        max_price_per_hour: None,
        image: None,
        registry: None,
        agent: None,
        idle_timeout: Millis::minutes(20),
        max_lifetime: Millis::minutes(720),
        acquire_timeout: None,
        attempts: 5,
        requote: Default::default(),
        spot: None,
    };
    Topology {
        moved: BTreeMap::new(),
        removed: BTreeMap::new(),
        name: name("test"),
        limits: options(Mode::Apply).limits,
        state: None,
        relay: None,
        providers: BTreeMap::from([(
            name("here"),
            Provider {
                kind: ProviderKind::Local {
                    slots: None,
                    price_per_hour: MicroDollars(0),
                },
                within: Default::default(),
                caps: Default::default(),
            },
        )]),
        offers: BTreeMap::from([(name("box"), offer)]),
        leases: BTreeMap::from([(name("gpu"), lease)]),
        pipelines: BTreeMap::new(),
        exposures: BTreeMap::new(),
    }
}

pub fn desired(topology: &Topology) -> Desired {
    let models = BTreeMap::from([(name("llama"), model())]);
    expand(topology, &models).expect("it can be expanded")
}

pub fn plan(desired: &Desired, world: &World, markets: &Markets, options: &Options) -> Plan {
    let plan = draft(&Draft {
        desired,
        recorded: &world.state,
        observed: &Observed::default(),
        markets,
        options,
    })
    .unwrap_or_else(|faults| panic!("{faults:#?}"));
    check(&plan).expect("every plan keeps this");
    plan
}

fn verdicts(plan: &Plan) -> String {
    let changed = plan.changes.iter().filter(|c| c.verdict != Verdict::Keep);
    let lines: Vec<String> = changed
        .map(|c| format!("{:?} {} ({})", c.verdict, c.address, c.reason))
        .collect();
    lines.join("\n")
}

#[test]
fn everything_is_made_once_and_ended_once() {
    let mut world = World::new();
    let apply = options(Mode::Apply);
    let desired = desired(&chain(&[0, 16, 30]));
    let first = plan(&desired, &world, &local(4), &apply);
    assert_eq!(first.count(Verdict::Create), 8, "{}", verdicts(&first));
    let verbs: Vec<String> = first
        .steps
        .iter()
        .map(|s| format!("{:?} {}", s.verb, s.address))
        .collect();
    assert_eq!(verbs.len(), 10, "{verbs:#?}");
    world.carry_out(&first);
    let second = plan(&desired, &world, &local(4), &apply);
    assert!(second.is_empty(), "{}", verdicts(&second));
    let nothing = Desired::nothing(name("test"));
    let end = plan(&nothing, &world, &Markets::new(), &options(Mode::Destroy));
    world.carry_out(&end);
    assert!(world.state.is_empty());
    let again = plan(&nothing, &world, &Markets::new(), &options(Mode::Destroy));
    assert!(again.is_empty(), "{}", verdicts(&again));
}

#[test]
fn other_layers_update_both_stages_and_no_lease() {
    let mut world = World::new();
    let apply = options(Mode::Apply);
    world.carry_out(&plan(
        &desired(&chain(&[0, 16, 30])),
        &world,
        &local(4),
        &apply,
    ));
    let moved = plan(&desired(&chain(&[0, 19, 30])), &world, &local(4), &apply);
    assert_eq!(
        verdicts(&moved),
        "Update delivery.gpu[0] (other layers of pipeline.llama are needed here)\n\
         Update delivery.gpu[1] (other layers of pipeline.llama are needed here)\n\
         Update stage.llama[0] (its layers change from 0..16 to 0..19)\n\
         Update stage.llama[1] (its layers change from 16..30 to 19..30)\n\
         Update pipeline.llama (checked again, since delivery.gpu[0] is updated)"
    );
    world.carry_out(&moved);
    let third = plan(
        &desired(&chain(&[0, 10, 20, 30])),
        &world,
        &local(4),
        &apply,
    );
    assert_eq!(third.count(Verdict::Create), 3, "{}", verdicts(&third));
    assert_eq!(third.count(Verdict::Replace), 0, "{}", verdicts(&third));
    world.carry_out(&third);
    assert!(
        plan(
            &desired(&chain(&[0, 10, 20, 30])),
            &world,
            &local(4),
            &apply
        )
        .is_empty()
    );
}

#[test]
fn a_run_that_dies_anywhere_is_finished_by_the_next_plan() {
    let apply = options(Mode::Apply);
    let mut settled = World::new();
    let two = desired(&chain(&[0, 16, 30]));
    settled.carry_out(&plan(&two, &settled, &local(4), &apply));
    let again = Options {
        replace: vec![crate::world::address("lease.gpu[0]")],
        ..apply.clone()
    };
    let replaced = plan(&two, &settled, &local(4), &again);
    for died in 0..=replaced.steps.len() {
        let mut world = settled.clone();
        world.carry_out_first(&replaced, died);
        let rest = plan(&two, &world, &local(4), &apply);
        world.carry_out(&rest);
        let left = plan(&two, &world, &local(4), &apply);
        assert!(
            left.is_empty(),
            "died after {died} steps:\n{}",
            verdicts(&left)
        );
    }
}

#[test]
fn layers_of_a_model_that_nobody_looked_at_are_not_placed() {
    let faults = expand(&chain(&[0, 15, 30]), &BTreeMap::new()).expect_err("no model was seen");
    let codes: Vec<&str> = faults.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, ["plan/model-unseen"]);
}

#[test]
fn a_setup_that_nobody_read_is_a_fault() {
    let mut topology = machines(1);
    let lease = topology.leases.values_mut().next().expect("one");
    lease.setup = Some(stageline_core::topology::Setup::File("setup.sh".into()));
    let faults = expand(&topology, &BTreeMap::new()).expect_err("it is not read");
    assert_eq!(faults[0].code, "plan/setup-unseen");
    let message = &faults[0].message;
    assert!(message.contains("lease.gpu") && message.contains("setup.sh"));
}
