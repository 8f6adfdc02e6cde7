//! Names of types of machines that a provider does not have.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostic::{Diagnostic, shown, suggestion};
use crate::id::Name;
use crate::topology::Topology;

/// Every name of a type, of a pool of types or of the like that the topology says and its provider does not have. `known` has
/// what each provider has; of one that is not there nothing is said.
pub fn unknown_types(
    topology: &Topology,
    known: &BTreeMap<Name, BTreeSet<String>>,
) -> Vec<Diagnostic> {
    let mut faults = Vec::new();
    for (name, provider) in &topology.providers {
        for wanted in &provider.within.instance_types {
            faults.extend(missing(known.get(name), wanted).map(|hint| {
                let wanted = shown(wanted);
                let message = format!("provider.{name}: there is no instance type `{wanted}`");
                Diagnostic::error("plan/no-such-type", message).hint(hint)
            }));
        }
    }
    for (name, offer) in &topology.offers {
        if let Some(wanted) = &offer.instance_type {
            let provider = &offer.provider;
            faults.extend(missing(known.get(provider), wanted).map(|hint| {
                let wanted = shown(wanted);
                let message =
                    format!("offer.{name}: provider `{provider}` has no instance type `{wanted}`");
                Diagnostic::error("plan/no-such-type", message).hint(hint)
            }));
        }
    }
    for (name, lease) in &topology.leases {
        let Some(wanted) = &lease.instance_type else {
            continue;
        };
        let offers = lease.offers.iter();
        let providers = offers.filter_map(|offer| Some(&topology.offers.get(offer)?.provider));
        let providers: BTreeSet<&Name> = providers.collect();
        let missed = providers.iter();
        let missed = missed.map(|provider| missing(known.get(*provider), wanted));
        // What one of them has is taken there.
        let missed: Option<Vec<String>> = missed.collect();
        if let Some(hint) = missed.and_then(|hints| hints.into_iter().next()) {
            let wanted = shown(wanted);
            let message =
                format!("lease.{name}: no provider of its offers has an instance type `{wanted}`");
            faults.push(Diagnostic::error("plan/no-such-type", message).hint(hint));
        }
    }
    faults
}

/// What was meant, or what there is; none where there is such a type.
fn missing(known: Option<&BTreeSet<String>>, wanted: &str) -> Option<String> {
    let known = known.filter(|known| !known.is_empty())?;
    let there = known.iter().any(|one| one.eq_ignore_ascii_case(wanted));
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    let lower: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let near: Vec<&str> = lower.iter().map(String::as_str).collect();
    let near = crate::diagnostic::nearest(&wanted.to_lowercase(), &near);
    let near = near.and_then(|near| lower.iter().position(|name| name == near));
    // `gpu_1x_h100` of which there are two.
    let begins = |name: &&&str| {
        let head = name.get(..wanted.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(wanted))
    };
    let begin: Vec<&str> = names.iter().filter(begins).copied().collect();
    let hint = match (begin.as_slice(), near) {
        ([one], _) => format!("did you mean `{one}`?"),
        ([_, ..], _) => suggestion("", &begin),
        ([], Some(place)) => format!("did you mean `{}`?", names[place]),
        ([], None) => suggestion(wanted, &names),
    };
    (!there).then_some(hint)
}
