//! The verdicts for what stands on machines: deliveries, stages, pipelines, exposures.
//!
//! What was on a machine that ends is forgotten, never undone: it ends with the machine. What is on a machine that
//! stays is changed in place. A roster carries keys, so it is renewed wherever it names a machine with a new one.

use std::collections::BTreeMap;

use super::Verdict;
use super::draft::{Call, Drafting, Fate, machine_of};
use crate::id::{Address, EndpointKey, LeaseId, Name, StageId};
use crate::journal::Verb;
use crate::resource::{DeliverySpec, ExposureSpec, ModelOrigin, Receipt, Spec, StageSpec};
use crate::state::Recorded;

const MISSING: &str = "declared, not there yet";

impl<'a> Drafting<'a> {
    pub(super) fn delivery(
        &mut self,
        id: &'a LeaseId,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) -> Call {
        let address = Address::Delivery(id.clone());
        let call = match (desired, recorded) {
            (Some(Spec::Delivery(_)), None) => {
                Call::new(Verdict::Create, MISSING).build(&[Verb::Deliver])
            }
            (Some(Spec::Delivery(spec)), Some(recorded)) => {
                self.delivered(id, &address, spec, recorded)
            }
            (_, _) => {
                let mut reason = self.gone_with(Some(id));
                if self.fate(id) == Fate::Stays {
                    reason.push_str("; its files stay until the machine ends");
                }
                Call::new(Verdict::Delete, reason).teardown(Verb::Forget)
            }
        };
        if let (Some(Spec::Delivery(spec)), true) = (desired, call.verdict != Verdict::Keep) {
            for pipeline in spec.pipelines.keys() {
                self.touch(pipeline, &address, call.verdict);
            }
        }
        call
    }

    fn delivered(
        &mut self,
        id: &LeaseId,
        address: &Address,
        spec: &DeliverySpec,
        recorded: &Recorded,
    ) -> Call {
        if self.fate(id) != Fate::Stays {
            return Call::new(Verdict::Replace, format!("{id} gets a new machine"))
                .teardown(Verb::Forget)
                .build(&[Verb::Deliver]);
        }
        let update = |reason: String| Call::new(Verdict::Update, reason).build(&[Verb::Deliver]);
        if let Some(reason) = unfinished(recorded) {
            return update(reason);
        }
        if let Some(what) = self.delivery_drift(id, recorded) {
            self.drifted(address, what.clone());
            return update(what);
        }
        if self.asked(address) {
            return update("asked for by --replace".to_owned());
        }
        let before = match &recorded.spec {
            Some(Spec::Delivery(before)) => before,
            Some(Spec::Lease(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_))
            | None => return update("what was delivered is not recorded".to_owned()),
        };
        if !same_delivery(before, spec) {
            return update(delivery_reason(before, spec));
        }
        let known: &BTreeMap<LeaseId, EndpointKey> = match &recorded.receipt {
            Some(Receipt::Delivery(receipt)) => &receipt.peers,
            Some(
                Receipt::Lease(_) | Receipt::Stage(_) | Receipt::Pipeline(_) | Receipt::Exposure(_),
            )
            | None => return update("it was begun and not finished".to_owned()),
        };
        match self.otherwise(id, named(spec), known) {
            Some((lease, what)) => {
                update(format!("its roster names {lease}, whose machine {what}"))
            }
            None => Call::new(Verdict::Keep, "as declared"),
        }
    }

    fn delivery_drift(&self, id: &LeaseId, recorded: &Recorded) -> Option<String> {
        let seen = self.agent(id)?.delivery;
        let told = recorded.spec.as_ref()?.fingerprint();
        match seen {
            None => Some("what was delivered is missing on the machine".to_owned()),
            Some(seen) if seen != told => {
                Some("the machine has another delivery than the recorded one".to_owned())
            }
            Some(_) => None,
        }
    }

    pub(super) fn stage(
        &mut self,
        id: &'a StageId,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) -> Call {
        let address = Address::Stage(id.clone());
        let call = match (desired, recorded) {
            (Some(Spec::Stage(_)), None) => {
                Call::new(Verdict::Create, MISSING).build(&[Verb::Start])
            }
            (Some(Spec::Stage(spec)), Some(recorded)) => self.running(id, &address, spec, recorded),
            (_, recorded) => {
                let on = recorded.and_then(|recorded| machine_of(&address, recorded));
                Call::new(Verdict::Delete, self.gone_with(on)).teardown(self.ending(on, Verb::Stop))
            }
        };
        if call.verdict != Verdict::Keep {
            self.touch(&id.pipeline, &address, call.verdict);
        }
        call
    }

    fn running(
        &mut self,
        id: &StageId,
        address: &Address,
        spec: &StageSpec,
        recorded: &Recorded,
    ) -> Call {
        let on = machine_of(address, recorded);
        let again = |reason: String, verb: Verb| {
            Call::new(Verdict::Replace, reason)
                .teardown(verb)
                .build(&[Verb::Start])
        };
        if let Some(on) = on.filter(|on| **on != spec.on) {
            let reason = format!("moves from {on} to {}", spec.on);
            return again(reason, self.ending(Some(on), Verb::Stop));
        }
        if self.fate(&spec.on) != Fate::Stays {
            return again(format!("{} gets a new machine", spec.on), Verb::Forget);
        }
        let update = |reason: String| Call::new(Verdict::Update, reason).build(&[Verb::Start]);
        if let Some(reason) = unfinished(recorded) {
            return update(reason);
        }
        if let Some(what) = self.stage_drift(id, &spec.on, recorded) {
            self.drifted(address, what.clone());
            return update(what);
        }
        if self.asked(address) {
            return update("asked for by --replace".to_owned());
        }
        match &recorded.spec {
            Some(Spec::Stage(before)) if **before == *spec => {
                Call::new(Verdict::Keep, "as declared")
            }
            Some(Spec::Stage(before)) => update(stage_reason(before, spec)),
            Some(Spec::Lease(_) | Spec::Delivery(_) | Spec::Pipeline(_) | Spec::Exposure(_))
            | None => update("what was started is not recorded".to_owned()),
        }
    }

    fn stage_drift(&self, id: &StageId, on: &LeaseId, recorded: &Recorded) -> Option<String> {
        let agent = self.agent(on)?;
        let told = match &recorded.receipt {
            Some(Receipt::Stage(receipt)) => receipt.spec,
            Some(
                Receipt::Lease(_)
                | Receipt::Delivery(_)
                | Receipt::Pipeline(_)
                | Receipt::Exposure(_),
            )
            | None => return None,
        };
        let Some(seen) = agent.stages.get(id) else {
            return Some(format!(
                "its worker is not there: the agent of {on} has none"
            ));
        };
        if let Some(why) = &seen.failed {
            return Some(format!("its worker is down: {why}"));
        }
        (seen.spec != told)
            .then(|| "its worker runs with another spec than the recorded one".to_owned())
    }

    pub(super) fn pipeline(
        &mut self,
        name: &'a Name,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) -> Call {
        let check = |reason: String| Call::new(Verdict::Update, reason).build(&[Verb::Check]);
        match (desired, recorded) {
            (Some(_), None) => Call::new(Verdict::Create, MISSING).build(&[Verb::Check]),
            (Some(spec), Some(recorded)) => {
                if let Some(reason) = self.touched.get(name) {
                    return check(format!("checked again, since {reason}"));
                }
                if let Some(reason) = unfinished(recorded) {
                    return check(reason);
                }
                if self.asked(&Address::Pipeline(name.clone())) {
                    return check("asked for by --replace".to_owned());
                }
                if recorded.spec.as_ref() == Some(spec) {
                    Call::new(Verdict::Keep, "as declared")
                } else {
                    check("its check changed".to_owned())
                }
            }
            (None, _) => Call::new(Verdict::Delete, self.gone_with(None)).teardown(Verb::Forget),
        }
    }

    pub(super) fn exposure(
        &mut self,
        name: &'a Name,
        desired: Option<&'a Spec>,
        recorded: Option<&'a Recorded>,
    ) -> Call {
        let address = Address::Exposure(name.clone());
        match (desired, recorded) {
            (Some(Spec::Exposure(_)), None) => {
                Call::new(Verdict::Create, MISSING).build(&[Verb::Expose])
            }
            (Some(Spec::Exposure(spec)), Some(recorded)) => {
                self.exposed(name, &address, spec, recorded)
            }
            (_, recorded) => {
                let at = recorded.and_then(|recorded| machine_of(&address, recorded));
                Call::new(Verdict::Delete, self.gone_with(at))
                    .teardown(self.ending(at, Verb::Unexpose))
            }
        }
    }

    fn exposed(
        &mut self,
        name: &Name,
        address: &Address,
        spec: &ExposureSpec,
        recorded: &Recorded,
    ) -> Call {
        let again = |reason: String, verb: Verb| {
            Call::new(Verdict::Replace, reason)
                .teardown(verb)
                .build(&[Verb::Expose])
        };
        let at = machine_of(address, recorded);
        if let Some(at) = at.filter(|at| **at != spec.at) {
            let reason = format!("moves from {at} to {}", spec.at);
            return again(reason, self.ending(Some(at), Verb::Unexpose));
        }
        if self.fate(&spec.at) != Fate::Stays {
            return again(format!("{} gets a new machine", spec.at), Verb::Forget);
        }
        let update = |reason: String| Call::new(Verdict::Update, reason).build(&[Verb::Expose]);
        if let Some(reason) = unfinished(recorded) {
            return update(reason);
        }
        if let Some(what) = self.exposure_drift(name, &spec.at, recorded) {
            self.drifted(address, what.clone());
            return update(what);
        }
        if self.asked(address) {
            return update("asked for by --replace".to_owned());
        }
        match &recorded.spec {
            Some(Spec::Exposure(before)) if **before == *spec => {}
            Some(
                Spec::Exposure(_)
                | Spec::Lease(_)
                | Spec::Delivery(_)
                | Spec::Stage(_)
                | Spec::Pipeline(_),
            )
            | None => return update("it is declared otherwise now".to_owned()),
        }
        let known: &BTreeMap<LeaseId, EndpointKey> = match &recorded.receipt {
            Some(Receipt::Exposure(receipt)) => &receipt.peers,
            Some(
                Receipt::Lease(_) | Receipt::Delivery(_) | Receipt::Stage(_) | Receipt::Pipeline(_),
            )
            | None => return update("it was begun and not finished".to_owned()),
        };
        match self.otherwise(&spec.at, spec.pipelines.values(), known) {
            Some((lease, what)) => update(format!("it sends to {lease}, whose machine {what}")),
            None => Call::new(Verdict::Keep, "as declared"),
        }
    }

    fn exposure_drift(&self, name: &Name, at: &LeaseId, recorded: &Recorded) -> Option<String> {
        let told = recorded.spec.as_ref()?.fingerprint();
        match self.agent(at)?.exposures.get(name) {
            None => Some(format!(
                "nothing listens: the agent of {at} has no listener for it"
            )),
            Some(seen) if *seen != told => {
                Some("its listener differs from the recorded one".to_owned())
            }
            Some(_) => None,
        }
    }

    /// The first of these machines with another key than the one that was given out, or that is reached elsewhere than it was
    /// told. Nobody looks for itself. A state of before has no keys.
    fn otherwise<'b>(
        &self,
        own: &LeaseId,
        machines: impl IntoIterator<Item = &'b LeaseId>,
        known: &BTreeMap<LeaseId, EndpointKey>,
    ) -> Option<(&'b LeaseId, &'static str)> {
        machines.into_iter().find_map(|lease| {
            let given = known.get(lease);
            let new_key = given.is_some_and(|_| given != self.key(lease).as_ref());
            let taken_out = given.is_none() && !known.is_empty();
            let moved = taken_out || self.input.observed.moved(lease).is_some();
            if self.fate(lease) == Fate::New || new_key {
                Some((lease, "has a new key"))
            } else {
                (moved && lease != own).then_some((lease, "is reached elsewhere now"))
            }
        })
    }

    fn asked(&self, address: &Address) -> bool {
        self.replace.contains(address)
    }

    /// Notes that something of a pipeline changes, so that it is checked again.
    fn touch(&mut self, pipeline: &'a Name, address: &Address, verdict: Verdict) {
        let done = match verdict {
            Verdict::Create => "made",
            Verdict::Update => "updated",
            Verdict::Replace => "replaced",
            Verdict::Delete => "ended",
            Verdict::Keep => "kept",
        };
        self.touched
            .entry(pipeline)
            .or_insert_with(|| format!("{address} is {done}"));
    }

    /// How something on this machine is ended: by a call when the machine stays, else together with it.
    fn ending(&self, on: Option<&LeaseId>, verb: Verb) -> Verb {
        match on.map(|on| self.fate(on)) {
            Some(Fate::Stays) => verb,
            Some(Fate::New | Fate::Ends) | None => Verb::Forget,
        }
    }

    fn gone_with(&self, on: Option<&LeaseId>) -> String {
        match (self.input.options.mode, on.map(|on| self.fate(on))) {
            (super::Mode::Destroy, None) => "destroy ends everything".to_owned(),
            (super::Mode::Destroy, Some(_)) => "ends with its machine".to_owned(),
            (super::Mode::Apply, None | Some(Fate::Stays)) => "no longer declared".to_owned(),
            (super::Mode::Apply, Some(Fate::New | Fate::Ends)) => {
                "no longer declared; ends with its machine".to_owned()
            }
        }
    }
}

/// A step that was begun and did not do what it should.
fn unfinished(recorded: &Recorded) -> Option<String> {
    let pending = recorded.pending.as_ref()?;
    let doing = pending.verb.doing();
    Some(match &pending.cause {
        Some(cause) => format!("{doing} it did not succeed last time: {}", cause.message),
        None => format!("{doing} it was begun and not finished"),
    })
}

/// Every machine that the rosters of a delivery name.
pub(super) fn named(spec: &DeliverySpec) -> impl Iterator<Item = &LeaseId> {
    spec.pipelines.values().flat_map(|share| {
        let stages = share.roster.iter().map(|line| &line.lease);
        stages.chain(&share.prompt_from)
    })
}

/// Equal but for where the model's bytes and the relay's token come from, which is not part of what they are.
fn same_delivery(before: &DeliverySpec, after: &DeliverySpec) -> bool {
    let plain = |spec: &DeliverySpec| {
        let mut spec = spec.clone();
        spec.relay = None;
        for share in spec.pipelines.values_mut() {
            if let Some(shard) = &mut share.shard {
                shard.model.origin = ModelOrigin::OperatorUrl(String::new());
                shard.model.token = None;
            }
        }
        spec
    };
    before == after || (same_relay(before, after) && plain(before) == plain(after))
}

fn same_relay(before: &DeliverySpec, after: &DeliverySpec) -> bool {
    match (&before.relay, &after.relay) {
        (None, None) => true,
        (Some(before), Some(after)) => before.says_the_same(after),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn relay_reason(before: &DeliverySpec, after: &DeliverySpec) -> String {
    match (&before.relay, &after.relay) {
        (_, None) => "it is reached without a relay from now on".to_owned(),
        (None, Some(after)) => format!("it is reached by the relay {} from now on", after.url),
        (Some(before), Some(after)) if before.url != after.url => {
            format!("its relay changes from {} to {}", before.url, after.url)
        }
        (Some(before), Some(after)) if before.token_digest != after.token_digest => {
            "the token of its relay changed".to_owned()
        }
        (Some(_), Some(_)) => "what its relay is trusted by changed".to_owned(),
    }
}

fn delivery_reason(before: &DeliverySpec, after: &DeliverySpec) -> String {
    let mut reasons = Vec::new();
    if !same_relay(before, after) {
        reasons.push(relay_reason(before, after));
    }
    for (name, share) in &after.pipelines {
        let Some(was) = before.pipelines.get(name) else {
            reasons.push(format!("pipeline.{name} is new here"));
            continue;
        };
        let layers = |share: &crate::resource::PipelineShare| {
            share.shard.as_ref().map(|shard| shard.layers.clone())
        };
        if layers(was) != layers(share) {
            reasons.push(format!("other layers of pipeline.{name} are needed here"));
        } else if was.roster != share.roster || was.prompt_from != share.prompt_from {
            reasons.push(format!("the roster of pipeline.{name} changed"));
        } else if was != share {
            reasons.push(format!("pipeline.{name} is declared otherwise now"));
        }
    }
    for name in before.pipelines.keys() {
        if !after.pipelines.contains_key(name) {
            reasons.push(format!("pipeline.{name} is no longer here"));
        }
    }
    reasons.join(", ")
}

fn stage_reason(before: &StageSpec, after: &StageSpec) -> String {
    match (before.layers, after.layers) {
        (Some(was), Some(is)) if was != is => format!("its layers change from {was} to {is}"),
        _ if before.model != after.model => "its model changes".to_owned(),
        _ if before.num_stages != after.num_stages => format!(
            "its pipeline has {} stages instead of {}",
            after.num_stages, before.num_stages
        ),
        _ => "it is declared otherwise now".to_owned(),
    }
}
