//! Looks whether agents that are pushed to machines bring the worker that stages there need, before any is rented.
//!
//! What nobody tells of a machine is not held against the programs that are here. A machine that no program of ours runs on is none
//! of its business: it is passed over when its turn comes.

use stageline_core::plan::Plan;
use stageline_core::topology::AgentWay;

use super::Failure;
use super::fetched::{Listed, listed, natives, refused};
use super::own_hosts::builds;
use crate::provider::Providers;
use crate::ssh::{BUILD_ONE, Measured};

/// Looks at each machine that may be rented.
pub(crate) fn look(plan: &Plan, providers: &Providers) -> Result<(), Failure> {
    let (natives, builds) = (natives(plan), builds());
    for machine in listed(plan) {
        let Some(stage) = natives.get(machine.lease) else {
            continue;
        };
        if !is_pushed_to(&machine, providers) {
            continue;
        }
        let mut told = Measured {
            facts: machine.quote.facts.clone(),
            libc: machine.libc(providers).to_owned(),
        };
        "linux".clone_into(&mut told.facts.os);
        if builds.could_bring_worker(&told) {
            continue;
        }
        let message = format!(
            "{stage} needs a native worker on {}, and no program that could be pushed there has one beside it",
            machine.lease
        );
        let hint = format!("put `stageline-worker` beside `stageline`: {BUILD_ONE}");
        return Err(refused(message, &hint));
    }
    Ok(())
}

/// Whether its agent is pushed for certain.
fn is_pushed_to(machine: &Listed<'_>, providers: &Providers) -> bool {
    let terms = machine.terms;
    let provider = providers.get(&terms.provider, &terms.provider_kind);
    let usual = provider.map_or(None, |provider| provider.traits().agent);
    let way = AgentWay::of(terms.agent.as_ref(), usual);
    matches!(way, Some(AgentWay::Ssh | AgentWay::SshOnce))
}
