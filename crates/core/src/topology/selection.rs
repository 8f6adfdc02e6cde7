//! `regions` and `instance_types` of a provider, `instance_type` of an offer or a lease: which of what is sold may be taken.
//!
//! Which names there are is not known here: the planner holds them against what the provider has.

use std::collections::BTreeMap;

use super::convert;
use super::read::{Field, Fields};
use super::rented::place;
use super::{Cloud, Lease, Offer, Provider, ProviderKind};
use crate::diagnostic::shown;
use crate::id::Name;
use crate::offer::{INSTANCE_TYPE, POOL, Requirement, Selection};

/// Reads what a provider's table leaves of its market. Whether that makes sense is for [`check`].
pub(super) fn read(fields: &Fields<'_>) -> Selection {
    let list = |key| fields.read(key, names).unwrap_or_default();
    Selection {
        regions: list("regions"),
        instance_types: list("instance_types"),
    }
}

/// Names, at least one, none twice.
fn names(field: Field<'_>) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for item in convert::items(field)? {
        let Some(name) = name(item) else { continue };
        if names.iter().any(|other| other.eq_ignore_ascii_case(&name)) {
            let message = format!("`{}` stands twice in `{}`", shown(&name), field.label);
            item.fault("topology/duplicate", message, None);
        } else {
            names.push(name);
        }
    }
    Some(names)
}

/// A name as a provider has it: one, and no pattern.
pub(super) fn name(field: Field<'_>) -> Option<String> {
    let name = field.text()?.trim();
    let one = !name.is_empty()
        && name.len() <= 128
        && !name.contains(|c: char| c.is_control() || "|*?=!<>\"'".contains(c));
    if !one {
        let message = match name.is_empty() {
            true => format!("`{}` is empty", field.label),
            false => format!("`{}` is no name of one thing", shown(name)),
        };
        let hint = format!("such as `{} = {}`", field.label, field.key.example);
        field.bad(message, Some(hint));
        return None;
    }
    Some(name.to_owned())
}

/// Why a kind of provider has no types of machines, and what to write instead.
fn untyped(kind: &ProviderKind) -> Option<(&'static str, &'static str)> {
    match kind {
        ProviderKind::Cloud {
            cloud: Cloud::Lambda | Cloud::Runpod,
            ..
        } => None,
        ProviderKind::Cloud {
            cloud: Cloud::Vastai,
            ..
        } => Some((
            "no two of its machines are alike, and they have no types",
            "say in its offers what they must have: `where = \"gpu=rtx_4090, gpus=1\"`",
        )),
        ProviderKind::Local { .. } => {
            Some(("machines on this computer have no types", "remove it"))
        }
        ProviderKind::Ssh { .. } => Some((
            "machines of one's own have no types",
            "give hosts `tags`, and say in the offer which: `where = \"provider.tags=*fast*\"`",
        )),
        ProviderKind::Command { .. } => Some((
            "machines of one's own programs have no types",
            "each offer has its own `claims`; `acquire` is told which offer it is",
        )),
    }
}

/// Whether each of these keys stands where it means something; binds each offer to its type.
pub(super) fn check(
    root: &Fields<'_>,
    providers: &BTreeMap<Name, Provider>,
    offers: &mut BTreeMap<Name, Offer>,
) {
    let fault = |(table, name, key): (&str, &Name, &str), why: &str, hint: &str| {
        let message = format!("`{table}.{name}` cannot have `{key}`: {why}");
        let at = place(root, table, name, key);
        root.fault(at, "topology/conflict", message, hint);
    };
    for (name, provider) in providers {
        let Provider { kind, within, .. } = provider;
        if let (Some((why, hint)), false) = (untyped(kind), within.instance_types.is_empty()) {
            fault(("provider", name, "instance_types"), why, hint);
        }
        if matches!(kind, ProviderKind::Local { .. }) && !within.regions.is_empty() {
            let why = "this computer is in no region";
            fault(("provider", name, "regions"), why, "remove it");
        }
    }
    for (name, offer) in offers {
        let provider = providers.get(&offer.provider);
        let (Some(wanted), Some(provider)) = (&offer.instance_type, provider) else {
            continue;
        };
        match type_of(provider, &offer.provider, wanted) {
            Ok(term) => offer.requirement = offer.requirement.and(&term),
            Err((why, hint)) => fault(("offer", name, "instance_type"), &why, hint),
        }
    }
}

/// Whether a lease that says a type takes offers of providers alone that have types.
pub(super) fn of_leases(
    root: &Fields<'_>,
    providers: &BTreeMap<Name, Provider>,
    offers: &BTreeMap<Name, Offer>,
    leases: &BTreeMap<Name, Lease>,
) {
    for (name, lease) in leases {
        let Some(wanted) = &lease.instance_type else {
            continue;
        };
        for offer_name in &lease.offers {
            let Some(of) = offers.get(offer_name).map(|offer| &offer.provider) else {
                continue;
            };
            let declared = providers.get(of);
            if let Some(Err((why, hint))) = declared.map(|it| type_of(it, of, wanted)) {
                let message = format!(
                    "`lease.{name}` cannot have `instance_type` with `offer.{offer_name}`: {why}"
                );
                let at = place(root, "lease", name, "instance_type");
                root.fault(at, "topology/conflict", message, hint);
            }
        }
    }
}

/// What machines of this type have, at a provider of this name; or why there can be none of it, and what to do.
fn type_of(
    provider: &Provider,
    name: &Name,
    wanted: &str,
) -> Result<Requirement, (String, &'static str)> {
    let Provider { kind, within, .. } = provider;
    if let Some((why, hint)) = untyped(kind) {
        return Err((why.to_owned(), hint));
    }
    let listed = |one: &String| one.eq_ignore_ascii_case(wanted);
    let left = within.instance_types.is_empty() || within.instance_types.iter().any(listed);
    let pools = |one: &String| field_of(kind, one) == POOL;
    if !left && field_of(kind, wanted) == INSTANCE_TYPE && !within.instance_types.iter().any(pools)
    {
        let wanted = shown(wanted);
        let why = format!("`instance_types` of provider `{name}` leaves `{wanted}` out");
        return Err((why, "add it there, or take it out here"));
    }
    term(kind, wanted).ok_or_else(|| {
        let why = format!("`{}` is no name of a type", shown(wanted));
        (why, "`stageline offers` shows the names that there are")
    })
}

/// What a machine of this type has.
pub(super) fn term(kind: &ProviderKind, wanted: &str) -> Option<Requirement> {
    Requirement::only(field_of(kind, wanted), wanted)
}

/// Which field of a machine has this name: that of its type, or that of a pool of types, which is written in capitals.
fn field_of(kind: &ProviderKind, name: &str) -> &'static str {
    let pools = matches!(
        kind,
        ProviderKind::Cloud {
            cloud: Cloud::Runpod,
            ..
        }
    );
    let capitals = name.contains('_')
        && name
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if pools && capitals {
        POOL
    } else {
        INSTANCE_TYPE
    }
}
