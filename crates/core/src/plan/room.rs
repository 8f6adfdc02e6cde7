//! What may still be rented on an account that other topologies share, by the caps of `[provider.X]`.
//!
//! Machines of others are counted as their provider lists them, one's own by what is recorded: a try that is not proven gone
//! counts at its ceiling. What cannot be seen, or has no price, is never counted as nothing: then nothing is rented. When a
//! cap is broken all the same, since two topologies launched in the same moment, the machines with the lowest names stay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::draft::{Draft, Row};
use super::{LeaseTerms, Verdict as Planned, limits};
use crate::diagnostic::Diagnostic;
use crate::id::{Address, LeaseId, MachineId, Name, RequestKey};
use crate::journal::Verb;
use crate::resource::{Cause, FailureClass, Receipt};
use crate::state::{Recorded, State};
use crate::topology::Caps;
use crate::unit::MicroDollars;
use std::collections::BTreeMap;

/// A machine with our mark that an account has and that this topology does not record there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// What the provider calls it.
    pub machine: MachineId,
    /// Its name, where that is a whole one.
    pub key: Option<RequestKey>,
    /// What it costs; none where the provider does not say.
    pub price_per_hour: Option<MicroDollars>,
}

/// What others of ours have on one account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Them.
    pub machines: Vec<Marked>,
}

impl Beside {
    /// How many.
    pub fn count(&self) -> u32 {
        u32::try_from(self.machines.len()).unwrap_or(u32::MAX)
    }

    /// What those of them cost whose prices are told.
    pub fn per_hour(&self) -> MicroDollars {
        let prices = self.machines.iter().filter_map(|one| one.price_per_hour);
        prices.fold(MicroDollars::ZERO, MicroDollars::saturating_add)
    }

    /// The first whose price is not told.
    fn unpriced(&self) -> Option<&MachineId> {
        let mut all = self.machines.iter();
        let found = all.find(|one| one.price_per_hour.is_none())?;
        Some(&found.machine)
    }
}

/// The caps of one `[provider.X]`, and what others have on its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// What the file says.
    pub caps: Caps,
    /// What others have; a cause when that cannot be seen.
    pub beside: Result<Beside, Cause>,
}

/// What a plan says of an account with caps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnAccount {
    /// Its `[provider.X]`.
    pub provider: Name,
    /// Machines of other topologies.
    pub others: u32,
    /// What those cost, as far as it is told.
    pub others_per_hour: MicroDollars,
    /// How many of them have no price that is told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unpriced: u32,
    /// What may be there at once.
    pub caps: Caps,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks with a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Machines of one's own on an account, and the most that they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// How many there are or may be.
    pub machines: u32,
    /// At most.
    pub per_hour: MicroDollars,
}

impl Own {
    /// One machine more.
    #[must_use]
    pub fn and(self, per_hour: MicroDollars) -> Self {
        Self {
            machines: self.machines.saturating_add(1),
            per_hour: self.per_hour.saturating_add(per_hour),
        }
    }

    /// What is not proven gone of what this topology has at a provider.
    pub fn of(state: &State, provider: &Name) -> Self {
        all_own(state, provider).fold(Self::default(), |own, (_, price)| own.and(price))
    }
}

/// Every machine and every open try that this topology records at a provider, with the most that it costs.
fn all_own<'a>(
    state: &'a State,
    provider: &'a Name,
) -> impl Iterator<Item = (&'a RequestKey, MicroDollars)> {
    let all = state.resources.values();
    all.flat_map(move |recorded| own_of(recorded, provider))
}

fn own_of<'a>(
    recorded: &'a Recorded,
    provider: &'a Name,
) -> impl Iterator<Item = (&'a RequestKey, MicroDollars)> {
    let held = match &recorded.receipt {
        Some(Receipt::Lease(held)) if held.provider == *provider => {
            Some((&held.request_key, held.price_per_hour))
        }
        Some(_) | None => None,
    };
    let open = recorded.attempts.values().map(|open| &open.launch);
    let open = open.filter(move |launch| launch.provider == *provider);
    held.into_iter()
        .chain(open.map(|launch| (&launch.request_key, launch.reservation)))
}

/// Whether this topology records such a machine at this provider: then it is counted as one's own.
pub fn is_own(
    state: &State,
    provider: &Name,
    machine: &MachineId,
    key: Option<&RequestKey>,
) -> bool {
    state.resources.values().any(|recorded| {
        let held = match &recorded.receipt {
            Some(Receipt::Lease(held)) => held.provider == *provider && held.machine == *machine,
            Some(_) | None => false,
        };
        let mut open = recorded.attempts.values();
        held || open.any(|open| {
            let leaving = open.leaving.as_ref();
            let by_id = leaving.is_some_and(|left| left.machine == *machine);
            open.launch.provider == *provider && (by_id || Some(&open.launch.request_key) == key)
        })
    })
}

/// Why so much of one's own may not be beside what others have; none when it may.
pub fn refused(provider: &Name, room: &Room, own: Own) -> Option<Cause> {
    let money =
        |message: String, hint: String| Some(Cause::new(FailureClass::Money, message).hint(hint));
    let beside = match &room.beside {
        Ok(beside) => beside,
        Err(cause) => {
            let message = format!(
                "what other topologies have on the account of provider `{provider}` cannot be counted: {}",
                cause.message
            );
            let hint = cause.hint.clone().unwrap_or_else(|| {
                format!("mend access to that account; or remove max_leases and max_total_per_hour of [provider.{provider}]")
            });
            let class = match cause.class {
                FailureClass::Rate => FailureClass::Rate,
                FailureClass::Capacity
                | FailureClass::OfferGone
                | FailureClass::Quota
                | FailureClass::Money
                | FailureClass::Auth
                | FailureClass::Config
                | FailureClass::Unknown => FailureClass::Unknown,
            };
            return Some(Cause::new(class, message).hint(hint));
        }
    };
    let (others, cost) = (beside.count(), beside.per_hour());
    let machines = own.machines.saturating_add(others);
    if let Some(cap) = room.caps.max_leases.filter(|cap| machines > *cap) {
        return money(
            format!(
                "there would be {machines} machines on the account of provider `{provider}`, {others} of them of other \
                 topologies{}: provider.{provider}.max_leases is {cap}",
                named(beside)
            ),
            way_out(provider, "max_leases"),
        );
    }
    let cap = room.caps.max_total_per_hour?;
    if let Some(machine) = beside.unpriced() {
        return money(
            format!(
                "machine {machine} of another topology has no price that provider `{provider}` tells, so that \
                 provider.{provider}.max_total_per_hour ({cap}) cannot be kept"
            ),
            format!(
                "wait until it is there or gone; or cap by provider.{provider}.max_leases instead"
            ),
        );
    }
    let sum = own.per_hour.saturating_add(cost);
    if sum <= cap {
        return None;
    }
    money(
        format!(
            "all machines on the account of provider `{provider}` could cost {sum} per hour, {cost} of it for {} of other \
             topologies{}: provider.{provider}.max_total_per_hour is {cap}",
            machines_of(others),
            named(beside)
        ),
        way_out(provider, "max_total_per_hour"),
    )
}

fn way_out(provider: &Name, key: &str) -> String {
    format!(
        "raise {key} of [provider.{provider}], ask less, or end what others have there; `stageline orphans` lists what carries our mark"
    )
}

/// The first of what others have, by id.
fn named(beside: &Beside) -> String {
    const SHOWN: usize = 3;
    let ids = beside.machines.iter().map(|one| one.machine.to_string());
    let shown: Vec<String> = ids.take(SHOWN).collect();
    match (shown.is_empty(), beside.machines.len() > SHOWN) {
        (true, _) => String::new(),
        (false, false) => format!(" ({})", shown.join(", ")),
        (false, true) => format!(" ({}, ...)", shown.join(", ")),
    }
}

fn machines_of(count: u32) -> String {
    match count {
        1 => "1 machine".to_owned(),
        count => format!("{count} machines"),
    }
}

/// What is to be done when a machine of one's own is there, and the caps are broken all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are kept.
    Fits,
    /// A machine with a higher name has to go; this one stays if that does.
    Waits(Cause),
    /// It is this one.
    Goes(Cause),
}

/// Judges one machine of one's own by the listing after its create. Both sides judge alike: names are compared, and the lowest
/// ones that the caps allow stay.
pub fn judge(provider: &Name, room: &Room, state: &State, key: &RequestKey) -> Verdict {
    let Ok(beside) = &room.beside else {
        return Verdict::Fits;
    };
    let Some(cause) = refused(provider, room, Own::of(state, provider)) else {
        return Verdict::Fits;
    };
    let lower = |other: Option<&RequestKey>| other.is_some_and(|other| other < key);
    let own = all_own(state, provider).filter(|(other, _)| *other <= key);
    let own = own.fold(Own::default(), |own, (_, price)| own.and(price));
    let before = Beside {
        machines: beside
            .machines
            .iter()
            .filter(|one| one.key.is_none() || lower(one.key.as_ref()))
            .cloned()
            .collect(),
    };
    let room = Room {
        caps: room.caps,
        beside: Ok(before),
    };
    match refused(provider, &room, own) {
        Some(_) => Verdict::Goes(cause),
        None => Verdict::Waits(cause),
    }
}

/// What stays of one's own on an account when everything else is as planned.
pub(super) fn kept(rows: &[Row<'_>], provider: &Name) -> Own {
    let stays = rows.iter().filter(|row| {
        let is_lease = matches!(row.address, Address::Lease(_));
        is_lease && row.verdict != Planned::Delete && !row.build.contains(&Verb::Acquire)
    });
    let kept = stays.filter_map(|row| row.recorded);
    let kept = kept.flat_map(|recorded| own_of(recorded, provider));
    kept.fold(Own::default(), |own, (_, price)| own.and(price))
}

/// What the plan says of accounts with caps, and what it would break. A plan that rents nothing there breaks nothing.
pub(super) fn check(
    rows: &[Row<'_>],
    leases: &BTreeMap<LeaseId, LeaseTerms>,
    input: &Draft<'_>,
    crowded: &BTreeMap<Name, Cause>,
) -> (Vec<OnAccount>, Vec<Diagnostic>) {
    let mut told = Vec::new();
    let mut over: BTreeMap<&Name, Cause> = BTreeMap::new();
    for (provider, room) in &input.options.rooms {
        if let Ok(beside) = &room.beside {
            let unpriced = beside.machines.iter();
            let unpriced = unpriced.filter(|one| one.price_per_hour.is_none());
            told.push(OnAccount {
                provider: provider.clone(),
                others: beside.count(),
                others_per_hour: beside.per_hour(),
                unpriced: u32::try_from(unpriced.count()).unwrap_or(u32::MAX),
                caps: room.caps,
            });
        }
        let mut rents = false;
        let mut after = kept(rows, provider);
        for row in rows.iter().filter(|row| row.build.contains(&Verb::Acquire)) {
            let Address::Lease(id) = &row.address else {
                continue;
            };
            let Some(terms) = leases.get(id) else {
                continue;
            };
            let first = terms.shortlist.first();
            if first.is_some_and(|choice| choice.quote.provider == *provider) {
                rents = true;
                after = after.and(limits::at_most(row, terms, input));
            }
        }
        let found = rents.then(|| refused(provider, room, after)).flatten();
        over.extend(found.map(|cause| (provider, cause)));
    }
    if !over.is_empty() {
        // What would be rented there is on the accounts that are told of only because these were full before.
        for (provider, cause) in crowded {
            over.entry(provider).or_insert_with(|| cause.clone());
        }
    }
    (told, over.into_values().map(over_limit).collect())
}

fn over_limit(cause: Cause) -> Diagnostic {
    let diagnostic = Diagnostic::error("plan/over-limit", cause.message);
    match cause.hint {
        Some(hint) => diagnostic.hint(hint),
        None => diagnostic,
    }
}

#[cfg(test)]
mod tests;
