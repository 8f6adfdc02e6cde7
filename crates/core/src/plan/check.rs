//! What holds of every plan. The executor refuses one of which it does not.

use std::collections::{BTreeMap, BTreeSet};

use super::{Plan, Step, StepId, Verdict};
use crate::id::{Address, Generation};
use crate::journal::Verb;

/// Checks what every plan keeps: numbers, order, uniqueness, and that nothing is rented without a shortlist.
///
/// # Errors
/// The first thing that does not hold: the plan was not made by `draft`, or was changed since.
pub fn check(plan: &Plan) -> Result<(), String> {
    if plan.id != plan.digest() {
        return Err(format!("plan {} was changed after it was drafted", plan.id));
    }
    changes(plan)?;
    steps(plan)?;
    rents(plan)
}

fn changes(plan: &Plan) -> Result<(), String> {
    for pair in plan.changes.windows(2) {
        if pair[0].address >= pair[1].address {
            return Err(format!("{} is not in its place", pair[1].address));
        }
    }
    for change in &plan.changes {
        let makes = match change.verdict {
            Verdict::Create | Verdict::Update | Verdict::Replace => true,
            Verdict::Delete | Verdict::Keep => false,
        };
        if makes != change.spec.is_some() {
            return Err(format!(
                "{}: a spec goes with what is made, and with nothing else",
                change.address
            ));
        }
        if change.reason.is_empty() {
            return Err(format!("{}: no reason is given", change.address));
        }
    }
    Ok(())
}

fn steps(plan: &Plan) -> Result<(), String> {
    let verdicts: BTreeMap<&Address, Verdict> = plan
        .changes
        .iter()
        .map(|change| (&change.address, change.verdict))
        .collect();
    let mut seen: BTreeSet<(&Address, Generation, Verb)> = BTreeSet::new();
    let mut acting: BTreeSet<&Address> = BTreeSet::new();
    for (n, step) in plan.steps.iter().enumerate() {
        let name = format!("step {n} ({:?} {})", step.verb, step.address);
        if step
            .after
            .iter()
            .any(|StepId(before)| *before as usize >= n)
        {
            return Err(format!("{name} waits for a step that comes later"));
        }
        if !seen.insert((&step.address, step.generation, step.verb)) {
            return Err(format!("{name} is there twice"));
        }
        if !fits(step) {
            return Err(format!("{name} cannot be done to that kind of resource"));
        }
        match verdicts.get(&step.address) {
            None | Some(Verdict::Keep) => return Err(format!("{name}: nothing changes there")),
            Some(Verdict::Create | Verdict::Update | Verdict::Replace | Verdict::Delete) => {}
        }
        acting.insert(&step.address);
    }
    let idle = verdicts
        .iter()
        .find(|(address, verdict)| **verdict != Verdict::Keep && !acting.contains(*address));
    match idle {
        Some((address, _)) => Err(format!("{address} changes without a step")),
        None => Ok(()),
    }
}

fn fits(step: &Step) -> bool {
    match step.verb {
        Verb::Acquire | Verb::Await | Verb::Record | Verb::Release => {
            matches!(step.address, Address::Lease(_))
        }
        Verb::Deliver => matches!(step.address, Address::Delivery(_)),
        Verb::Start | Verb::Stop => matches!(step.address, Address::Stage(_)),
        Verb::Check => matches!(step.address, Address::Pipeline(_)),
        Verb::Expose | Verb::Unexpose => matches!(step.address, Address::Exposure(_)),
        Verb::Forget => !matches!(step.address, Address::Lease(_)),
    }
}

/// What is rented is waited for, has something to try, and was released before when it is rented anew.
fn rents(plan: &Plan) -> Result<(), String> {
    let awaited: BTreeSet<(&Address, Generation)> = plan
        .steps
        .iter()
        .filter(|step| step.verb == Verb::Await)
        .map(|step| (&step.address, step.generation))
        .collect();
    for change in &plan.changes {
        let Address::Lease(id) = &change.address else {
            continue;
        };
        let makes = match change.verdict {
            Verdict::Create | Verdict::Replace => true,
            Verdict::Update | Verdict::Delete | Verdict::Keep => false,
        };
        if !makes {
            continue;
        }
        if !awaited.contains(&(&change.address, change.generation)) {
            return Err(format!("{id} is rented and not waited for"));
        }
        let terms = plan
            .leases
            .get(id)
            .ok_or_else(|| format!("{id} is rented without terms"))?;
        if terms.shortlist.is_empty() && !terms.unresolved && terms.waits.is_none() {
            return Err(format!("{id} is rented without a shortlist"));
        }
        let over = terms.shortlist.iter().find(|choice| {
            terms
                .ceiling
                .is_some_and(|ceiling| choice.quote.price_per_hour > ceiling)
        });
        if let Some(choice) = over {
            return Err(format!(
                "{id}: {} costs more than its ceiling",
                choice.quote.id
            ));
        }
    }
    Ok(())
}
