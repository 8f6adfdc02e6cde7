//! A topology and what is known of its models to the desired world: a spec for every address, and who needs whom.
//!
//! The result names no machine and no price. Every fault is reported, not only the first. References between tables
//! were checked by `topology`; one that does not resolve here is left out, never a panic.

use std::collections::{BTreeMap, BTreeSet};

use super::disk;
use super::environment::{Environment, setup};
use super::layers::{misplaced, too_long, unsplit};
use super::models::{Memory, ModelFacts, ModelShape};
use super::mounts::Unmounted;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::id::{Address, Fingerprint, LeaseId, Name, StageId};
use crate::model::split;
use crate::offer::Requirement;
use crate::resource::{
    CaSpec, DISK, DeliverySpec, EngineSpec, ExposureSpec, LeaseSpec, ModelRef, PipelineShare,
    PipelineSpec, RelaySpec, RosterLine, Shard, Spec, StageSpec, Terms, ViaSpec,
};
use crate::shared::Shared;
use crate::state::State;
use crate::topology::{
    Engine, Exposure, Layers, Lease, Model, Pipeline, Spot, Stages, Topology, Via,
};
use crate::unit::{Bytes, MicroDollars, Millis};

/// What should exist.
#[derive(Clone, Debug)]
pub struct Desired {
    /// Of which topology.
    pub topology: Name,
    /// What each resource should be.
    pub specs: BTreeMap<Address, Spec>,
    /// Tables of leases that may be rented although nobody ends them. It is said of the renting, and no part of a machine.
    pub unguarded: BTreeSet<Name>,
    /// Offers that no machine is rented under for the volumes of a lease, by its table.
    pub unmounted: BTreeMap<Name, Vec<Unmounted>>,
}

impl Desired {
    /// Nothing should exist: what a destroy is drafted from.
    pub fn nothing(topology: Name) -> Self {
        Self {
            topology,
            specs: BTreeMap::new(),
            unguarded: BTreeSet::new(),
            unmounted: BTreeMap::new(),
        }
    }

    /// Who needs whom.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (address, spec) in &self.specs {
            graph.add(address);
            for dependency in needs(address, spec) {
                graph.needs(address, &dependency);
            }
        }
        graph
    }
}

impl Desired {
    /// Adds what is known of the relay's certificates and token, so that a change of them is seen.
    pub fn relay_seen(&mut self, ca: Option<Fingerprint>, token: Option<Fingerprint>) {
        for spec in self.specs.values_mut() {
            if let Spec::Delivery(delivery) = spec
                && let Some(relay) = &mut delivery.relay
            {
                relay.token_digest = relay.token.as_ref().and(token);
                if let Some(file) = &mut relay.ca {
                    file.digest = ca;
                }
            }
        }
    }
}

/// A stage with nothing left to decide.
struct Placed<'a> {
    on: &'a LeaseId,
    layers: Option<Layers>,
    gpus: u32,
    env: &'a BTreeMap<String, String>,
}

/// Everything that the desired world is collected from.
struct Expansion<'a> {
    topology: &'a Topology,
    models: &'a BTreeMap<Name, ModelFacts>,
    known: &'a BTreeMap<LeaseId, Bytes>,
    shares: BTreeMap<LeaseId, BTreeMap<Name, PipelineShare>>,
    memory: BTreeMap<LeaseId, Bytes>,
    gpus: BTreeMap<LeaseId, u32>,
    entries: BTreeMap<&'a Name, LeaseId>,
    desired: Desired,
    faults: Vec<Diagnostic>,
}

/// What should exist, by address. `models` has the facts of the model of each pipeline that declares one.
///
/// # Errors
/// Every fault: layers that do not cover the model, a model that was not looked at, too many stages for a split.
pub fn expand(
    topology: &Topology,
    models: &BTreeMap<Name, ModelFacts>,
) -> Result<Desired, Vec<Diagnostic>> {
    expand_within(topology, models, &BTreeMap::new())
}

/// Like [`expand`]; `split = "auto"` keeps within the memory of machines where it is known ([`super::memory_known`]).
///
/// # Errors
/// As [`expand`], and a split that fits no machines.
pub fn expand_within(
    topology: &Topology,
    models: &BTreeMap<Name, ModelFacts>,
    known: &BTreeMap<LeaseId, Bytes>,
) -> Result<Desired, Vec<Diagnostic>> {
    let mut expansion = Expansion {
        topology,
        models,
        known,
        shares: BTreeMap::new(),
        memory: BTreeMap::new(),
        gpus: BTreeMap::new(),
        entries: BTreeMap::new(),
        desired: Desired::nothing(topology.name.clone()),
        faults: Vec::new(),
    };
    for (name, pipeline) in &topology.pipelines {
        expansion.pipeline(name, pipeline);
    }
    for (name, exposure) in &topology.exposures {
        expansion.exposure(name, exposure);
    }
    for (name, lease) in &topology.leases {
        expansion.leases(name, lease);
        if lease.unguarded {
            expansion.desired.unguarded.insert(name.clone());
        }
    }
    expansion.deliveries();
    let Expansion {
        desired, faults, ..
    } = expansion;
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(desired)
}

/// Who needs whom among what is recorded.
pub fn recorded_graph(state: &State) -> Graph {
    let mut graph = Graph::new();
    for (address, recorded) in state.existing() {
        graph.add(address);
        let spec = recorded.spec.as_ref();
        for dependency in spec.map(|spec| needs(address, spec)).unwrap_or_default() {
            graph.needs(address, &dependency);
        }
    }
    graph
}

/// What a resource with this spec stands on.
pub(crate) fn needs(address: &Address, spec: &Spec) -> Vec<Address> {
    match (spec, address) {
        (Spec::Delivery(_), Address::Delivery(lease)) => vec![Address::Lease(lease.clone())],
        (Spec::Stage(stage), _) => vec![Address::Delivery(stage.on.clone())],
        (Spec::Pipeline(spec), Address::Pipeline(name)) => (0..spec.stages.len())
            .map(|index| {
                Address::Stage(StageId {
                    pipeline: name.clone(),
                    index: u32::try_from(index).expect("fewer stages than that"),
                })
            })
            .collect(),
        (Spec::Exposure(exposure), _) => exposure
            .pipelines
            .keys()
            .map(|name| Address::Pipeline(name.clone()))
            .collect(),
        (Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_), _) => Vec::new(),
    }
}

impl<'a> Expansion<'a> {
    fn pipeline(&mut self, name: &'a Name, pipeline: &'a Pipeline) {
        let facts = match (&pipeline.model, self.models.get(name)) {
            (Some(model), None) => return self.unseen(name, model),
            (Some(_), Some(facts)) => Some(facts),
            (None, _) => None,
        };
        let shape = facts.and_then(|facts| facts.shape.as_ref());
        let Some(placed) = self.place(name, pipeline, shape) else {
            return;
        };
        let Some(first) = placed.first() else { return };
        self.entries.insert(name, first.on.clone());
        if let Some(shape) = shape {
            let layers = placed.iter().map(|stage| stage.layers);
            let faults = [
                misplaced(name, layers, shape),
                too_long(name, pipeline, shape),
            ];
            let before = self.faults.len();
            self.faults.extend(faults.into_iter().flatten());
            if self.faults.len() > before {
                return;
            }
        }
        self.share(name, pipeline, &placed, facts);
        self.stages(name, pipeline, &placed, facts);
        let spec = PipelineSpec {
            stages: placed.iter().map(|stage| stage.on.clone()).collect(),
            prompt: pipeline.check.prompt.clone(),
            max_tokens: pipeline.check.max_tokens,
            expect: pipeline.check.expect.clone(),
            request_timeout: pipeline.request_timeout,
        };
        self.desired.specs.insert(
            Address::Pipeline(name.clone()),
            Spec::Pipeline(Box::new(spec)),
        );
    }

    fn unseen(&mut self, name: &Name, model: &Model) {
        let what = match &model.source {
            crate::topology::ModelSource::Path(path) => path.display().to_string(),
            crate::topology::ModelSource::Url(url) => url.clone(),
        };
        let fault = Diagnostic::error(
            "plan/model-unseen",
            format!("pipeline.{name}: the model {what} has not been looked at"),
        );
        self.faults
            .push(fault.hint("its layers must be known before they can be placed"));
    }

    fn place(
        &mut self,
        name: &Name,
        pipeline: &'a Pipeline,
        shape: Option<&ModelShape>,
    ) -> Option<Vec<Placed<'a>>> {
        match &pipeline.stages {
            Stages::Listed(stages) => {
                let placed = stages.iter().map(|stage| Placed {
                    on: &stage.on,
                    layers: stage.layers,
                    gpus: stage.gpus,
                    env: &stage.env,
                });
                Some(placed.collect())
            }
            Stages::Auto { on, env } => {
                let cuts = match shape {
                    None => vec![None; on.len()],
                    Some(shape) => {
                        let tokens = pipeline.context.unwrap_or(shape.context);
                        let costs = shape.costs(u64::from(tokens), keeps(&pipeline.engine, 0));
                        match split(&costs, &self.share_memory(on)) {
                            Ok(cuts) => cuts.into_iter().map(Some).collect(),
                            Err(error) => {
                                self.faults.push(unsplit(name, &error));
                                return None;
                            }
                        }
                    }
                };
                let placed = on.iter().zip(cuts).map(|(on, layers)| Placed {
                    on,
                    layers,
                    gpus: 0,
                    env,
                });
                Some(placed.collect())
            }
        }
    }

    /// What each stage of a split may take: the stages of one machine share its memory evenly.
    fn share_memory(&self, on: &[LeaseId]) -> Vec<Option<Bytes>> {
        on.iter()
            .map(|lease| {
                let stages = on.iter().filter(|other| *other == lease).count();
                let stages = u64::try_from(stages).expect("few stages");
                let memory = self.known.get(lease)?;
                Some(Bytes(memory.0 / stages.max(1)))
            })
            .collect()
    }

    /// What each machine of the pipeline needs of it.
    fn share(
        &mut self,
        name: &Name,
        pipeline: &Pipeline,
        placed: &[Placed<'_>],
        facts: Option<&ModelFacts>,
    ) {
        let count = u32::try_from(placed.len()).expect("fewer stages than that");
        let roster: Vec<RosterLine> = placed
            .iter()
            .map(|stage| RosterLine {
                lease: stage.on.clone(),
                layers: stage.layers,
            })
            .collect();
        let machines: BTreeSet<&LeaseId> = placed.iter().map(|stage| stage.on).collect();
        for lease in machines {
            let share = PipelineShare {
                shard: facts.map(|facts| shard(facts, placed, lease)),
                roster: roster.clone(),
                prompt_from: Vec::new(),
                max_in_flight: pipeline.max_in_flight.unwrap_or(4 * count),
                request_timeout: pipeline.request_timeout,
                dtype: pipeline.dtype,
            };
            self.shares
                .entry(lease.clone())
                .or_default()
                .insert(name.clone(), share);
        }
        let Some(shape) = facts.and_then(|facts| facts.shape.as_ref()) else {
            return;
        };
        let context = pipeline.context.unwrap_or(shape.context);
        for (place, stage) in placed.iter().enumerate() {
            let Some(layers) = stage.layers else { continue };
            let (entry, exit) = (place == 0, place + 1 == placed.len());
            // Room for one request with the whole context, or for several that share it.
            let on = keeps(&pipeline.engine, stage.gpus);
            let need = shape.memory(layers, entry, exit, context, on);
            self.memory.entry(stage.on.clone()).or_default().0 += need.0;
        }
    }

    fn stages(
        &mut self,
        name: &Name,
        pipeline: &Pipeline,
        placed: &[Placed<'_>],
        facts: Option<&ModelFacts>,
    ) {
        let engine = match &pipeline.engine {
            Engine::Native => EngineSpec::Native,
            Engine::Command(argv) => EngineSpec::Command(argv.clone()),
            Engine::Stub => EngineSpec::Stub,
        };
        let num_stages = u32::try_from(placed.len()).expect("fewer stages than that");
        for (index, stage) in (0_u32..).zip(placed) {
            let lease = self.topology.leases.get(&stage.on.name);
            let Environment { env, secrets } = Environment::of(lease, pipeline, stage.env);
            let taken = self.gpus.entry(stage.on.clone()).or_default();
            let gpus = (*taken..*taken + stage.gpus).collect();
            *taken += stage.gpus;
            let spec = StageSpec {
                on: stage.on.clone(),
                num_stages,
                engine: engine.clone(),
                layers: stage.layers,
                model: facts.map(|facts| facts.sha256),
                engine_args: pipeline.engine_args.clone(),
                env,
                secrets,
                gpus,
                dtype: pipeline.dtype,
                context: pipeline.context,
                ready_timeout: pipeline.ready_timeout,
            };
            let id = StageId {
                pipeline: name.clone(),
                index,
            };
            self.desired
                .specs
                .insert(Address::Stage(id), Spec::Stage(Box::new(spec)));
        }
    }

    fn exposure(&mut self, name: &'a Name, exposure: &'a Exposure) {
        let entry = |pipeline: &Name| Some((pipeline.clone(), self.entries.get(pipeline)?.clone()));
        let pipelines: BTreeMap<Name, LeaseId> =
            exposure.pipelines.iter().filter_map(entry).collect();
        let Some(at) = exposure.pipelines.first().and_then(|p| pipelines.get(p)) else {
            return;
        };
        for pipeline in pipelines.keys().filter(|p| pipelines[*p] != *at) {
            for shares in self.shares.values_mut() {
                if let Some(share) = shares.get_mut(pipeline)
                    && let Err(place) = share.prompt_from.binary_search(at)
                {
                    share.prompt_from.insert(place, at.clone());
                }
            }
        }
        let via = match &exposure.via {
            Via::Loopback { listen, api_key } => ViaSpec::Loopback {
                listen: *listen,
                api_key: api_key.clone(),
            },
        };
        let spec = ExposureSpec {
            at: at.clone(),
            pipelines,
            serve: exposure.serve,
            via,
        };
        self.desired.specs.insert(
            Address::Exposure(name.clone()),
            Spec::Exposure(Box::new(spec)),
        );
    }

    fn leases(&mut self, name: &Name, lease: &Lease) {
        let setup = setup(name, lease).unwrap_or_else(|fault| {
            self.faults.push(fault);
            None
        });
        let plain = Shared::new(LeaseSpec {
            terms: self.terms(lease),
            memory: Bytes(0),
            disk: lease.disk.unwrap_or(DISK),
            files: None,
            idle_timeout: self.least(lease, lease.idle_timeout, |o| Some(o.idle_timeout)),
            max_lifetime: self.least(lease, lease.max_lifetime, |o| Some(o.max_lifetime)),
            acquire_timeout: Some(self.least(lease, lease.acquire_timeout, |o| o.acquire_timeout))
                .filter(|timeout| *timeout != Millis::NEVER),
            protect: lease.protect,
            attempts: self.attempts(lease),
            wait_for_capacity: lease.wait_for_capacity,
            gang: lease.count > 1 && lease.gang.unwrap_or_else(|| self.serves_one(name)),
            gang_timeout: lease.gang_timeout,
            same: lease.same,
            spread: lease.spread,
            setup,
            mounts: lease.mounts.clone(),
        });
        for index in 0..lease.count {
            let id = LeaseId {
                name: name.clone(),
                index,
            };
            let mut spec = plain.clone();
            if let Some(memory) = self.memory.get(&id) {
                spec.to_mut().memory = *memory;
            }
            let shares = self.shares.get(&id).filter(|_| lease.disk.is_none());
            let files = shares.map(disk::files).filter(|files| files.0 > 0);
            if let Some(files) = files {
                let spec = spec.to_mut();
                (spec.disk, spec.files) = (disk::disk_for(files), Some(files));
            }
            if let Some(gpus) = self.gpus.get(&id).filter(|gpus| **gpus > 0) {
                let enough: Requirement = format!("gpus>={gpus}")
                    .parse()
                    .expect("a term of the grammar");
                for terms in &mut spec.to_mut().terms {
                    terms.requirement = terms.requirement.and(&enough);
                }
            }
            self.desired
                .specs
                .insert(Address::Lease(id), Spec::Lease(spec));
        }
    }

    fn attempts(&self, lease: &Lease) -> u32 {
        let offers = lease.offers.iter();
        let offers = offers.filter_map(|name| self.topology.offers.get(name));
        let limits = offers.map(|offer| offer.attempts).chain(lease.attempts);
        limits.min().unwrap_or(1)
    }

    /// Whether all that runs on the machines of this table is one pipeline.
    fn serves_one(&self, name: &Name) -> bool {
        let from = LeaseId {
            name: name.clone(),
            index: 0,
        };
        let own = self.shares.range(from..);
        let own = own.take_while(|(lease, _)| lease.name == *name);
        let served: BTreeSet<&Name> = own.flat_map(|(_, shares)| shares.keys()).collect();
        served.len() == 1
    }

    fn least(
        &self,
        lease: &Lease,
        own: Option<Millis>,
        of: impl Fn(&crate::topology::Offer) -> Option<Millis>,
    ) -> Millis {
        let offers = lease.offers.iter();
        offers
            .filter_map(|name| of(self.topology.offers.get(name)?))
            .chain(own)
            .min()
            .unwrap_or(Millis::NEVER)
    }

    fn terms(&self, lease: &Lease) -> Vec<Terms> {
        let offers = lease.offers.iter();
        offers
            .filter_map(|name| {
                let offer = self.topology.offers.get(name)?;
                let provider = self.topology.providers.get(&offer.provider)?;
                let taken = offer.taken_by(lease, &provider.kind);
                let limits = [
                    taken.max_price_per_hour,
                    self.topology.limits.max_price_per_hour,
                ];
                Some(Terms {
                    offer: name.clone(),
                    provider: offer.provider.clone(),
                    provider_kind: provider.kind.as_str().to_owned(),
                    agent: taken.agent_on(&provider.kind),
                    requirement: taken.requirement,
                    within: provider.within.clone(),
                    ceiling: limits.into_iter().flatten().min(),
                    image: taken.image,
                    registry: taken.registry,
                    mounts: Vec::new(),
                    requote: taken.requote,
                    spot: Spot::of(offer.spot, lease.spot),
                    on_demand_since: None,
                })
            })
            .collect()
    }

    fn deliveries(&mut self) {
        let relay = self.topology.relay.as_ref().map(|relay| RelaySpec {
            url: relay.url.clone(),
            ca: relay.ca.clone().map(|path| CaSpec { path, digest: None }),
            token: relay.token.clone(),
            token_digest: None,
        });
        for (lease, pipelines) in std::mem::take(&mut self.shares) {
            self.desired.specs.insert(
                Address::Delivery(lease),
                Spec::Delivery(Box::new(DeliverySpec {
                    pipelines,
                    relay: relay.clone(),
                })),
            );
        }
    }
}

/// How the program of a stage keeps its weights.
fn keeps(engine: &Engine, gpus: u32) -> Memory {
    match engine {
        Engine::Native if gpus == 0 => Memory::Worker,
        Engine::Native | Engine::Command(_) | Engine::Stub => Memory::File,
    }
}

/// The part of the model that one machine needs, over all of its stages.
fn shard(facts: &ModelFacts, placed: &[Placed<'_>], lease: &LeaseId) -> Shard {
    let mut layers: Vec<Layers> = Vec::new();
    for stage in placed.iter().filter(|stage| stage.on == lease) {
        let Some(more) = stage.layers else { continue };
        match layers.last_mut() {
            Some(last) if last.end == more.start => last.end = more.end,
            Some(_) | None => layers.push(more),
        }
    }
    let entry = placed.first().is_some_and(|stage| stage.on == lease);
    let exit = placed.last().is_some_and(|stage| stage.on == lease);
    let bytes = match &facts.shape {
        Some(shape) => shape.weights(&layers, entry, exit),
        None => facts.size,
    };
    Shard {
        model: ModelRef {
            sha256: facts.sha256,
            size: facts.size,
            origin: facts.origin.clone(),
            token: facts.token.clone(),
        },
        layers,
        entry,
        exit,
        bytes,
    }
}

/// The most that a machine of this lease may cost, whichever of its terms it is rented under; none is no cap.
pub(crate) fn ceiling(spec: &LeaseSpec) -> Option<MicroDollars> {
    spec.rented_under()
        .map(|terms| terms.ceiling)
        .try_fold(MicroDollars::ZERO, |most, ceiling| Some(most.max(ceiling?)))
}
