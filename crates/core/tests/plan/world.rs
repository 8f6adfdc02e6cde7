//! A tiny world to plan for: a topology written in a few words, a state that steps are folded into as if each of them
//! had succeeded, markets that always answer. No clock, no effects.

use std::collections::BTreeMap;

use stageline_core::id::{
    Address, Attempt, EndpointKey, Epoch, Fingerprint, Generation, JournalNumber, LeaseId, Lineage,
    Name, Nonce, OperatorId, WriterId,
};
use stageline_core::journal::{Entry, FORMAT, Launch, Record, Verb};
use stageline_core::offer::{DiskRange, Facts, Place, Quote, QuoteId, Supply};
use stageline_core::plan::{Choice, Market, Markets, Plan, Step, StepId};
use stageline_core::resource::{
    Contact, DeliveryReceipt, ExposureReceipt, LeaseReady, LeaseReceipt, PipelineReceipt, Receipt,
    Spec, StageReceipt,
};
use stageline_core::state::State;
use stageline_core::unit::{Bytes, MicroDollars, Millis, Timestamp};

pub fn name(text: &str) -> Name {
    text.parse().expect(text)
}

pub fn address(text: &str) -> Address {
    text.parse().expect(text)
}

pub fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().expect("a time")
}

pub fn facts() -> Facts {
    Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 8,
        memory: Bytes::gib(16),
        disk: Bytes::gib(100),
        ..Facts::default()
    }
}

pub fn quote(provider: &str, id: &str, price: u64, supply: Supply) -> Quote {
    Quote {
        provider: name(provider),
        id: QuoteId(id.to_owned()),
        facts: facts(),
        price_per_hour: MicroDollars(price),
        disk: DiskRange::default(),
        supply,
        bid: None,
    }
}

/// One free provider `here` with this many slots.
pub fn local(slots: u32) -> Markets {
    let market = Market {
        kind: "local".to_owned(),
        free: true,
        unbilled: false,
        self_destroy: false,
        restarts_empty: false,
        agent: None,
        quotes: Ok(vec![quote("here", "this-computer", 0, Supply::Many(slots))]),
    };
    BTreeMap::from([(name("here"), market)])
}

/// The recorded world, with what a store would keep beside it.
#[derive(Clone, Default)]
pub struct World {
    pub state: State,
    n: u64,
    /// What the agent of a machine measures, by the quote that was taken.
    pub measured: BTreeMap<QuoteId, Facts>,
}

impl World {
    pub fn new() -> Self {
        Self::default()
    }

    fn epoch(&self) -> Epoch {
        self.state.run.as_ref().map_or(Epoch(0), |run| run.epoch)
    }

    pub fn write(&mut self, records: Vec<Record>) {
        self.n += 1;
        let begins = records
            .iter()
            .any(|record| matches!(record, Record::Begin { .. }));
        let entry = Entry {
            format: FORMAT,
            n: JournalNumber(self.n),
            prev: Fingerprint([0; 32]),
            epoch: if begins { Epoch(self.n) } else { self.epoch() },
            writer: WriterId([1; 16]),
            nonce: Nonce([0; 16]),
            records,
        };
        self.state.apply(&entry).expect("an entry that follows");
    }

    pub fn begin(&mut self, plan: Option<&Plan>) {
        let mut records = Vec::new();
        if self.state.genesis.is_none() {
            records.push(Record::Genesis {
                lineage: Lineage([7; 16]),
                operator: OperatorId([9; 32]),
                topology: name("test"),
                at: now(),
            });
        }
        records.push(Record::Begin {
            command: "apply".to_owned(),
            plan: plan.map(|plan| plan.id),
            by: "test".to_owned(),
            at: now(),
            boot: None,
        });
        self.write(records);
    }

    /// Every step of a plan succeeds, in the order of the list.
    pub fn carry_out(&mut self, plan: &Plan) {
        self.carry_out_first(plan, plan.steps.len());
        self.write(vec![Record::End {
            finished: true,
            at: now(),
        }]);
    }

    /// The first steps of a plan succeed; then the tool dies.
    pub fn carry_out_first(&mut self, plan: &Plan, count: usize) {
        let order: Vec<usize> = (0..count).collect();
        self.carry_out_in(plan, &order);
    }

    /// These steps of a plan succeed, in this order.
    pub fn carry_out_in(&mut self, plan: &Plan, order: &[usize]) {
        self.begin(Some(plan));
        for n in order {
            let step = &plan.steps[*n];
            self.start(plan, step);
            let id = StepId(u32::try_from(*n).expect("few"));
            self.finish(plan, step, Some(id));
        }
    }

    pub fn start(&mut self, plan: &Plan, step: &Step) {
        let lineage = Lineage([7; 16]);
        let recorded = self.state.resources.get(&step.address);
        let last = recorded
            .filter(|recorded| recorded.generation == step.generation)
            .map_or(Attempt(0), |recorded| recorded.last_attempt);
        let held = recorded.is_some_and(|recorded| recorded.receipt.is_some());
        let launch = match (&step.address, step.verb) {
            (Address::Lease(id), Verb::Acquire) if !held => {
                plan.leases[id].shortlist.first().map(|choice| {
                    let attempt = last.next();
                    launch(&lineage, &step.address, step.generation, attempt, choice)
                })
            }
            _ => None,
        };
        self.write(vec![Record::Started {
            address: step.address.clone(),
            generation: step.generation,
            verb: step.verb,
            launch: launch.map(Box::new),
            on: self.on(plan, step),
            at: now(),
        }]);
    }

    fn on(&self, plan: &Plan, step: &Step) -> Option<LeaseId> {
        let spec = plan
            .change(&step.address)
            .and_then(|change| change.spec.as_ref());
        match (step.verb, spec) {
            (Verb::Start, Some(Spec::Stage(stage))) => Some(stage.on.clone()),
            (Verb::Expose, Some(Spec::Exposure(exposure))) => Some(exposure.at.clone()),
            (Verb::Stop | Verb::Unexpose, _) => {
                self.state.resources.get(&step.address)?.on().cloned()
            }
            (_, _) => None,
        }
    }

    pub fn finish(&mut self, plan: &Plan, step: &Step, id: Option<StepId>) {
        let mut records = Vec::new();
        let spec = plan
            .change(&step.address)
            .and_then(|change| change.spec.clone());
        let (spec, receipt) = match step.verb {
            Verb::Release | Verb::Forget | Verb::Stop | Verb::Unexpose => (None, None),
            Verb::Record => (spec, None),
            Verb::Await => (None, Some(self.ready(&step.address, step.generation))),
            Verb::Acquire => {
                let receipt = self.acquired(step);
                let recorded = &self.state.resources[&step.address];
                let (_, kept) = receipt.request_key.try_of();
                for attempt in recorded.attempts.keys().filter(|a| **a != kept) {
                    records.push(Record::Absent {
                        address: step.address.clone(),
                        generation: step.generation,
                        attempt: *attempt,
                        at: now(),
                    });
                }
                (spec, Some(Receipt::Lease(Box::new(receipt))))
            }
            Verb::Deliver | Verb::Start | Verb::Check | Verb::Expose => {
                let receipt = self.receipt(spec.as_ref().expect("it is made"));
                (spec, Some(receipt))
            }
        };
        records.push(Record::Done {
            address: step.address.clone(),
            generation: step.generation,
            verb: step.verb,
            step: id,
            spec: spec.map(Box::new),
            receipt: receipt.map(Box::new),
            at: now(),
        });
        self.write(records);
    }

    fn acquired(&self, step: &Step) -> LeaseReceipt {
        let recorded = &self.state.resources[&step.address];
        if let Some(Receipt::Lease(receipt)) = &recorded.receipt {
            return (**receipt).clone();
        }
        let open = recorded
            .attempts
            .values()
            .next_back()
            .expect("it was started");
        let launch = &open.launch;
        LeaseReceipt {
            provider: launch.provider.clone(),
            provider_kind: launch.provider_kind.clone(),
            account: launch.account.clone(),
            offer: launch.offer.clone(),
            quote: launch.quote.clone(),
            machine: launch.request_key.to_string().parse().expect("an id"),
            request_key: launch.request_key.clone(),
            price_per_hour: launch.price_per_hour,
            created_at: now(),
            place: Default::default(),
            ready: None,
        }
    }

    fn ready(&self, address: &Address, generation: Generation) -> Receipt {
        let Some(Receipt::Lease(receipt)) = &self.state.resources[address].receipt else {
            panic!("{address} is awaited before it is rented");
        };
        let mut receipt = receipt.clone();
        let measured = self.measured.get(&receipt.quote);
        receipt.ready = Some(LeaseReady {
            facts: measured.cloned().unwrap_or_else(facts).into(),
            endpoint: key(address, generation),
            contact: Contact::default(),
        });
        Receipt::Lease(receipt)
    }

    fn endpoint(&self, lease: &LeaseId) -> EndpointKey {
        let receipt = self
            .state
            .lease(lease)
            .unwrap_or_else(|| panic!("{lease} is not there yet"));
        receipt
            .ready
            .as_ref()
            .unwrap_or_else(|| panic!("{lease} is not ready yet"))
            .endpoint
    }

    /// Panics when a machine that is needed is not ready: the edges of the plan are wrong then.
    fn receipt(&self, spec: &Spec) -> Receipt {
        match spec {
            Spec::Lease(_) => panic!("a lease is acquired"),
            Spec::Delivery(spec) => {
                let named = spec.pipelines.values().flat_map(|share| {
                    share
                        .roster
                        .iter()
                        .map(|line| &line.lease)
                        .chain(&share.prompt_from)
                });
                let peers: BTreeMap<_, _> = named
                    .map(|lease| (lease.clone(), self.endpoint(lease)))
                    .collect();
                Receipt::Delivery(Box::new(DeliveryReceipt {
                    endpoint: EndpointKey([0; 32]),
                    rosters: BTreeMap::new(),
                    peers,
                }))
            }
            Spec::Stage(stage) => {
                let delivered = Address::Delivery(stage.on.clone());
                let recorded = self.state.resources.get(&delivered);
                assert!(
                    recorded.is_some_and(|r| r.receipt.is_some()),
                    "{delivered} comes first"
                );
                Receipt::Stage(Box::new(StageReceipt {
                    endpoint: self.endpoint(&stage.on),
                    spec: spec.fingerprint(),
                }))
            }
            Spec::Pipeline(spec) => {
                for lease in &spec.stages {
                    self.endpoint(lease);
                }
                Receipt::Pipeline(Box::new(PipelineReceipt {
                    answer: "yes".to_owned(),
                    took: Millis(5),
                }))
            }
            Spec::Exposure(spec) => Receipt::Exposure(Box::new(ExposureReceipt {
                endpoint: self.endpoint(&spec.at),
                url: "http://127.0.0.1:8080/v1".to_owned(),
                peers: spec
                    .pipelines
                    .values()
                    .map(|lease| (lease.clone(), self.endpoint(lease)))
                    .collect(),
            })),
        }
    }
}

/// A key that a new generation changes.
pub fn key(address: &Address, generation: Generation) -> EndpointKey {
    EndpointKey(Fingerprint::of(format!("{address} {generation}").as_bytes()).0)
}

fn launch(
    lineage: &Lineage,
    address: &Address,
    generation: Generation,
    attempt: Attempt,
    choice: &Choice,
) -> Launch {
    Launch {
        attempt,
        request_key: stageline_core::id::RequestKey::derive(lineage, address, generation, attempt),
        provider: choice.quote.provider.clone(),
        provider_kind: match choice.quote.provider.as_str() {
            "vast" => "vastai".to_owned(),
            _ => "local".to_owned(),
        },
        account: None,
        offer: choice.offer.clone(),
        quote: choice.quote.id.clone(),
        price_per_hour: choice.quote.price_per_hour,
        boots_free: false,
        reservation: choice.quote.price_per_hour,
        limits: None,
        place: Place::default(),
    }
}
