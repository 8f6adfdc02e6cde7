//! `draft`: desired, recorded, observed and offers to a complete plan.
//!
//! Pure and total: the same input gives the same bytes, and what cannot be planned is said as diagnostics, all at once.
//! Verdicts are found in the order of addresses, which is an order of the graph: leases, what stands on them, pipelines,
//! exposures. Not knowing (`Seen::Unknown`, a blind provider) never makes a resource gone and never makes one anew.

use std::collections::{BTreeMap, BTreeSet};

use super::assign::Need;
use super::avoid::Avoid;
use super::expand::Desired;
use super::full::Choosing;
use super::lapsed::{Place, Renew};
use super::market::Markets;
use super::placement::{self, Siblings, Spot};
use super::room::{self, Room};
use super::{
    Change, Drift, EXPIRES_AFTER, FORMAT, FieldChange, LeaseTerms, Mode, Money, Plan, Verdict,
    as_made, fields, limits, scope, spend, steps,
};
use crate::diagnostic::Diagnostic;
use crate::id::{Address, EndpointKey, Fingerprint, Generation, LeaseId, Name, PlanId};
use crate::journal::{BootPoint, Verb};
use crate::offer::Facts;
use crate::resource::{Cause, LeaseReceipt, Receipt, Spec};
use crate::state::{BadHost, Lapse, Observed, ObservedAgent, Recorded, Seen, State};
use crate::topology::Limits;
use crate::unit::Timestamp;

/// Everything that a plan is drafted from.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// What should exist.
    pub desired: &'a Desired,
    /// The recorded world.
    pub recorded: &'a State,
    /// The observed world.
    pub observed: &'a Observed,
    /// What can be had now.
    pub markets: &'a Markets,
    /// How.
    pub options: &'a Options,
}

/// How a plan is drafted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// For what.
    pub mode: Mode,
    /// The time.
    pub now: Timestamp,
    /// Only these and what they need; empty is everything.
    pub targets: Vec<Address>,
    /// Not these, nor what needs them.
    pub excludes: Vec<Address>,
    /// These are made anew although they are as declared.
    pub replace: Vec<Address>,
    /// Caps of the topology.
    pub limits: Limits,
    /// Digest of the topology; none for a destroy.
    pub topology_digest: Option<Fingerprint>,
    /// The state only learns what was seen.
    pub refresh_only: bool,
    /// A watcher is there, and its heartbeat is fresh.
    pub watched: bool,
    /// Leases that ended by a limit of their own and are rented again.
    pub renew: Renew,
    /// The time by the boot-time clock, for the ledger.
    pub boot: Option<BootPoint>,
    /// Of providers whose account has caps: what others have there.
    pub rooms: BTreeMap<Name, Room>,
}

/// What becomes of a machine, as seen by what stands on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The same machine, the same key.
    Stays,
    /// Another machine, or the first one: a key that nobody knows yet.
    New,
    /// It is ended, or there is none.
    Ends,
}

/// A verdict with all that its steps need.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) address: Address,
    pub(super) desired: Option<&'a Spec>,
    pub(super) recorded: Option<&'a Recorded>,
    pub(super) verdict: Verdict,
    /// Of what is made; of what is recorded, when nothing is made.
    pub(super) generation: Generation,
    pub(super) reason: String,
    /// Undoes what is recorded.
    pub(super) teardown: Option<Verb>,
    /// Makes what is desired, in this order.
    pub(super) build: &'static [Verb],
}

/// A verdict before it has an address.
pub(super) struct Call {
    pub(super) verdict: Verdict,
    pub(super) reason: String,
    pub(super) teardown: Option<Verb>,
    pub(super) build: &'static [Verb],
    /// The recorded generation goes on although it is a create: its try is in doubt.
    pub(super) goes_on: bool,
}

impl Call {
    pub(super) fn new(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self {
            verdict,
            reason: reason.into(),
            teardown: None,
            build: &[],
            goes_on: false,
        }
    }

    pub(super) fn teardown(mut self, verb: Verb) -> Self {
        self.teardown = Some(verb);
        self
    }

    pub(super) fn build(mut self, verbs: &'static [Verb]) -> Self {
        self.build = verbs;
        self
    }
}

/// Verdicts found so far, and what later ones need of them.
pub(super) struct Drafting<'a> {
    pub(super) input: Draft<'a>,
    pub(super) replace: BTreeSet<&'a Address>,
    pub(super) fates: BTreeMap<&'a LeaseId, Fate>,
    /// Machines that do not fit beside the others of their table, each with the reason.
    pub(super) displaced: BTreeMap<&'a LeaseId, String>,
    /// Pipelines of which something is made or changed, with the first reason.
    pub(super) touched: BTreeMap<&'a Name, String>,
    pub(super) rows: Vec<Row<'a>>,
    pub(super) drift: Vec<Drift>,
    pub(super) notes: Vec<String>,
    pub(super) faults: Vec<Diagnostic>,
    /// Accounts that have no room for all that would be rented there, and why.
    pub(super) crowded: BTreeMap<Name, Cause>,
}

/// The complete plan.
///
/// # Errors
/// Every reason why there is none: no offer that fits, a provider that cannot be seen, a limit, an unknown target.
pub fn draft(input: &Draft<'_>) -> Result<Plan, Vec<Diagnostic>> {
    let scope = scope::Scope::find(input)?;
    let mut drafting = Drafting {
        input: *input,
        replace: input.options.replace.iter().collect(),
        fates: BTreeMap::new(),
        displaced: BTreeMap::new(),
        touched: BTreeMap::new(),
        rows: Vec::new(),
        drift: Vec::new(),
        notes: scope.notes.clone(),
        faults: Vec::new(),
        crowded: BTreeMap::new(),
    };
    drafting.find_displaced();
    drafting.decide(&scope);
    drafting.strays();
    drafting.marked();
    drafting.look_alikes();
    drafting.renamed();
    let leases = drafting.leases();
    let mut money = limits::money(&drafting.rows, input, &leases);
    spend::account(&mut money, input);
    drafting.notes.extend(spend::unkept(&leases, input));
    let over = limits::check(&drafting.rows, &input.options.limits, &money);
    drafting.faults.extend(over);
    let (accounts, over) = room::check(&drafting.rows, &leases, input, &drafting.crowded);
    drafting.faults.extend(over);
    let unguarded = limits::unguarded(&drafting.rows, &leases, input);
    drafting.faults.extend(unguarded);
    if !drafting.faults.is_empty() {
        return Err(drafting.faults);
    }
    let mut plan = drafting.plan(scope.lapsed, leases, money);
    if !accounts.is_empty() {
        plan.accounts = accounts;
        plan.id = plan.digest();
    }
    Ok(plan)
}

impl<'a> Drafting<'a> {
    fn decide(&mut self, scope: &scope::Scope) {
        let input = self.input;
        let mut recorded = input.recorded.existing().peekable();
        let mut desired = input.desired.specs.iter().peekable();
        loop {
            let address = match (recorded.peek(), desired.peek()) {
                (Some((r, _)), Some((d, _))) => (*r).min(*d),
                (Some((r, _)), None) => r,
                (None, Some((d, _))) => d,
                (None, None) => break,
            };
            let recorded = recorded.next_if(|(a, _)| *a == address).map(|(_, r)| r);
            let desired = desired.next_if(|(a, _)| *a == address).map(|(_, d)| d);
            match (scope.place(address), recorded) {
                (Place::Within, _) => self.row(address, desired, recorded),
                (Place::Ended, Some(recorded)) => self.stays_ended(address, recorded),
                (Place::Waits, Some(recorded)) => self.left_out(
                    address,
                    recorded,
                    "left as it is: it needs a lease that is kept ended",
                ),
                (Place::Out, Some(recorded)) => {
                    self.left_out(address, recorded, "left out of this plan");
                }
                (Place::Ended | Place::Waits | Place::Out, None) => {}
            }
        }
    }

    fn row(
        &mut self,
        address: &'a Address,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) {
        if let Some((recorded, why)) =
            recorded.and_then(|recorded| Some((recorded, self.spared(address, recorded)?)))
        {
            return self.keep_as_it_is(address, recorded, why);
        }
        let (call, desired) = match (self.input.options.refresh_only, recorded) {
            (false, _) => (self.call(address, desired, recorded), desired),
            (true, Some(recorded)) => {
                // For the differences that it finds.
                let _ = self.call(address, desired, Some(recorded));
                self.refreshed(address, recorded)
            }
            (true, None) => return,
        };
        let held = recorded.map(|recorded| recorded.generation);
        let generation = match call.verdict {
            Verdict::Update | Verdict::Keep | Verdict::Delete => held,
            Verdict::Create if call.goes_on => held,
            Verdict::Create | Verdict::Replace => None,
        };
        self.rows.push(Row {
            address: address.clone(),
            desired,
            recorded,
            verdict: call.verdict,
            generation: generation.unwrap_or_else(|| self.input.recorded.next_generation(address)),
            reason: call.reason,
            teardown: call.teardown,
            build: call.build,
        });
    }

    pub(super) fn call(
        &mut self,
        address: &'a Address,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) -> Call {
        match address {
            Address::Lease(id) => self.lease(id, desired, recorded),
            Address::Delivery(id) => self.delivery(id, desired, recorded),
            Address::Stage(id) => self.stage(id, desired, recorded),
            Address::Pipeline(name) => self.pipeline(name, desired, recorded),
            Address::Exposure(name) => self.exposure(name, desired, recorded),
            // No topology of this version declares one.
            Address::Bundle(_) => {
                Call::new(Verdict::Delete, "bundles are not known here").teardown(Verb::Forget)
            }
        }
    }

    fn keep_as_it_is(&mut self, address: &'a Address, recorded: &'a Recorded, reason: String) {
        if let Address::Lease(id) = address {
            self.fates.insert(id, Fate::Stays);
        }
        self.rows.push(Row {
            address: address.clone(),
            desired: None,
            recorded: Some(recorded),
            verdict: Verdict::Keep,
            generation: recorded.generation,
            reason,
            teardown: None,
            build: &[],
        });
    }

    /// What a target or an exclude leaves as it is. On a machine that ends it cannot stay.
    fn left_out(&mut self, address: &'a Address, recorded: &'a Recorded, why: &'static str) {
        let on = machine_of(address, recorded);
        let ends = on.is_some_and(|on| self.fate(on) != Fate::Stays);
        let (verdict, reason, teardown) = match address {
            Address::Lease(id) => {
                self.fates.insert(id, Fate::Stays);
                (Verdict::Keep, why, None)
            }
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_)
                if ends =>
            {
                let reason = "its machine ends; left out of this plan, so not made again";
                (Verdict::Delete, reason, Some(Verb::Forget))
            }
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => (Verdict::Keep, why, None),
        };
        self.rows.push(Row {
            address: address.clone(),
            desired: None,
            recorded: Some(recorded),
            verdict,
            generation: recorded.generation,
            reason: reason.to_owned(),
            teardown,
            build: &[],
        });
    }

    pub(super) fn fate(&self, lease: &LeaseId) -> Fate {
        self.fates.get(lease).copied().unwrap_or(Fate::Ends)
    }

    pub(super) fn drifted(&mut self, address: &Address, what: impl Into<String>) {
        self.drift.push(Drift {
            address: address.clone(),
            what: what.into(),
        });
    }

    /// The key of a machine that stays.
    pub(super) fn key(&self, lease: &LeaseId) -> Option<EndpointKey> {
        Some(self.input.recorded.lease(lease)?.ready.as_ref()?.endpoint)
    }

    /// What the agent of a machine that stays was seen to have.
    pub(super) fn agent(&self, lease: &LeaseId) -> Option<&'a ObservedAgent> {
        match self.input.observed.agents.get(lease)? {
            Seen::There(agent) if self.fate(lease) == Fate::Stays => Some(agent),
            Seen::There(_) | Seen::Gone | Seen::Unknown(_) => None,
        }
    }

    /// Stages that agents have and nobody recorded there. They end with their machine, and no roster names them.
    fn strays(&mut self) {
        for (lease, agent) in &self.input.observed.agents {
            let Seen::There(agent) = agent else { continue };
            for stage in agent.stages.keys() {
                let recorded = self
                    .input
                    .recorded
                    .resources
                    .get(&Address::Stage(stage.clone()));
                // One whose start was not finished by a version that did not say where may be here.
                let here =
                    recorded.is_none_or(|recorded| recorded.on().is_none_or(|on| on == lease));
                if recorded.is_none() || !here {
                    self.notes.push(format!(
                        "{lease} also has a worker for {stage}, which is not recorded there; it ends with the machine"
                    ));
                }
            }
        }
    }

    /// Money and choice for every lease that is wanted or left as it is.
    fn leases(&mut self) -> BTreeMap<LeaseId, LeaseTerms> {
        let needs: Vec<Need<'a>> = self
            .rows
            .iter()
            .filter_map(|row| need(row, &self.input))
            .collect();
        self.left_out_for_volumes(&needs);
        let avoid = &self.avoid(&needs);
        let stays = &self.stays(&needs);
        let assigned = self.assigned(needs, &Choosing { avoid, stays });
        self.faults.extend(assigned.faults);
        self.notes.extend(assigned.notes);
        self.crowded = assigned.crowded;
        let mut shortlists = assigned.shortlists;
        let rows = self.rows.iter();
        rows.filter_map(|row| {
            let Address::Lease(id) = &row.address else {
                return None;
            };
            let shortlist = shortlists.remove(id).unwrap_or_default();
            limits::terms(row, shortlist, &self.input).map(|terms| (id.clone(), terms))
        })
        .collect()
    }

    /// Where the machines are beside which others must be, or must not.
    fn stays(&self, needs: &[Need<'a>]) -> BTreeMap<&'a Name, Vec<Spot>> {
        let mut stays: BTreeMap<&Name, Vec<Spot>> = BTreeMap::new();
        if !needs.iter().any(|need| placement::asks(need.spec)) {
            return stays;
        }
        for (lease, recorded) in self.recorded_leases() {
            if self.fate(lease) == Fate::Stays || recorded.is_unresolved() {
                let spots = stays.entry(&lease.name).or_default();
                spots.extend(recorded.spots());
            }
        }
        stays
    }

    fn recorded_leases(&self) -> impl Iterator<Item = (&'a LeaseId, &'a Recorded)> {
        let all = self.input.recorded.resources.iter();
        all.filter_map(|(address, recorded)| {
            let Address::Lease(lease) = address else {
                return None;
            };
            Some((lease, recorded))
        })
    }

    /// Machines that no longer fit beside the others of their table, each with the reason.
    fn find_displaced(&mut self) {
        let mut tables: BTreeMap<&Name, Siblings<'a>> = BTreeMap::new();
        for (lease, recorded) in self.recorded_leases() {
            let desired = self.input.desired.specs.get(&Address::Lease(lease.clone()));
            let gone = matches!(self.input.observed.leases.get(lease), Some(Seen::Gone));
            if let (Some(Spec::Lease(spec)), Some(receipt), false) =
                (desired, lease_receipt(recorded), gone)
                && placement::asks(spec)
            {
                let siblings = tables
                    .entry(&lease.name)
                    .or_insert_with(|| Siblings::new(spec));
                siblings.machines.push((lease, placement::spot(receipt)));
            }
        }
        for siblings in tables.into_values() {
            self.displaced.extend(siblings.displaced());
        }
    }

    /// Where machines of this topology failed, but for what `--replace` sets aside.
    fn avoid(&mut self, needs: &[Need<'a>]) -> Avoid<'a> {
        let notes = self.input.recorded.bad_at(self.input.options.now);
        let counts: Vec<_> = notes
            .filter(|bad| !self.replace.contains(&Address::Lease(bad.lease.clone())))
            .collect();
        if !needs.is_empty() && !counts.is_empty() {
            let what: Vec<String> = counts.iter().map(|bad| avoided(bad)).collect();
            self.notes.push(format!(
                "avoided, because a machine failed there within the last week: {}; `--replace` of the lease sets that aside for one plan",
                what.join("; ")
            ));
        }
        Avoid::noted(counts.into_iter())
    }

    fn plan(
        self,
        lapsed: BTreeMap<LeaseId, Lapse>,
        leases: BTreeMap<LeaseId, LeaseTerms>,
        money: Money,
    ) -> Plan {
        let input = self.input;
        let steps = steps::order(&self.rows);
        let changes = self.rows.into_iter().map(change).collect();
        let lifetime = jiff::SignedDuration::from_millis(
            i64::try_from(EXPIRES_AFTER.0).expect("a week is few milliseconds"),
        );
        let now = input.options.now;
        let mut plan = Plan {
            format: FORMAT,
            id: PlanId([0; 16]),
            topology: input.desired.topology.clone(),
            mode: input.options.mode,
            lineage: input
                .recorded
                .genesis
                .as_ref()
                .map(|genesis| genesis.lineage),
            base: input.recorded.projection(),
            topology_digest: input.options.topology_digest,
            drafted_at: now,
            expires_at: now.checked_add(lifetime).unwrap_or(Timestamp::MAX),
            observed_at: input.observed.at,
            drift: self.drift,
            changes,
            steps,
            edits: Vec::new(),
            lapsed,
            leases,
            money,
            accounts: Vec::new(),
            notes: self.notes,
        };
        plan.id = plan.digest();
        plan
    }
}

/// One note in a few words.
fn avoided(bad: &BadHost) -> String {
    let what = match &bad.host {
        Some(host) => format!("host {host}"),
        None => format!("offer {}", bad.quote),
    };
    let why = bad.why.lines().next().unwrap_or_default();
    format!("{what} of provider {} ({why})", bad.provider)
}

/// The machine that a recorded resource is on.
pub(super) fn machine_of<'a>(address: &'a Address, recorded: &'a Recorded) -> Option<&'a LeaseId> {
    match address {
        Address::Lease(_) | Address::Pipeline(_) | Address::Bundle(_) => None,
        Address::Delivery(lease) => Some(lease),
        Address::Stage(_) | Address::Exposure(_) => recorded.on(),
    }
}

/// The receipt of a recorded lease.
pub(super) fn lease_receipt(recorded: &Recorded) -> Option<&LeaseReceipt> {
    match &recorded.receipt {
        Some(Receipt::Lease(receipt)) => Some(receipt),
        Some(
            Receipt::Delivery(_) | Receipt::Stage(_) | Receipt::Pipeline(_) | Receipt::Exposure(_),
        )
        | None => None,
    }
}

/// The facts that were measured when a recorded lease became ready.
pub(super) fn measured(receipt: &LeaseReceipt) -> Option<&Facts> {
    receipt.ready.as_ref().map(|ready| &*ready.facts)
}

/// What a row asks of the market: nothing unless it acquires.
fn need<'a>(row: &Row<'a>, input: &Draft<'a>) -> Option<Need<'a>> {
    let (Some(Spec::Lease(spec)), true) = (row.desired, row.build.contains(&Verb::Acquire)) else {
        return None;
    };
    let Address::Lease(id) = &row.address else {
        return None;
    };
    // A machine that the listing does not have any more takes no place there.
    let gone = matches!(input.observed.leases.get(id), Some(Seen::Gone));
    let held = row.recorded.and_then(lease_receipt).filter(|_| !gone);
    let unmounted = input.desired.unmounted.get(&id.name);
    let open = row.recorded.and_then(|recorded| {
        let (_, open) = recorded.attempts.iter().next_back()?;
        Some(&open.launch.provider)
    });
    Some(Need {
        lease: id.clone(),
        spec,
        frees: held.map(|receipt| &receipt.provider).or(open),
        // A machine that is there and not ready yet may do.
        unresolved: row.verdict == Verdict::Update
            || row.recorded.is_some_and(Recorded::is_unresolved),
        unmounted: unmounted.map(Vec::as_slice).unwrap_or_default(),
        closed: BTreeSet::new(),
    })
}

fn change(row: Row<'_>) -> Change {
    let before = row.recorded.and_then(|recorded| recorded.spec.as_ref());
    // One that is waited for may still become another machine.
    let kept = row.verdict == Verdict::Update && !row.build.contains(&Verb::Acquire);
    let spec = match row.verdict {
        Verdict::Create | Verdict::Update | Verdict::Replace => row
            .desired
            .map(|desired| as_made(desired, before.filter(|_| kept))),
        Verdict::Delete | Verdict::Keep => None,
    };
    let differ = match row.verdict {
        Verdict::Update | Verdict::Replace => match (before, &spec) {
            (Some(before), Some(after)) => fields::diff(before, after),
            (None, _) | (_, None) => Vec::<FieldChange>::new(),
        },
        Verdict::Create | Verdict::Delete | Verdict::Keep => Vec::new(),
    };
    Change {
        address: row.address,
        verdict: row.verdict,
        generation: row.generation,
        reason: row.reason,
        fields: differ,
        spec,
    }
}
