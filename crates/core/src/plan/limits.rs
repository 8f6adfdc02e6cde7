//! Money of a plan, and the caps that it must keep.
//!
//! A try that is not proven gone counts at its ceiling. A fail-over may run beside the machine that failed, one at a time
//! and within the caps, until that one is proven gone. A machine that is replaced is released before the next one is
//! rented, so the two never run at once; one that is ended while others are rented does.

use super::draft::{Draft, Row, lease_receipt};
use super::expand::ceiling;
use super::{Choice, EndsBy, LeaseTerms, Money, Verdict};
use crate::diagnostic::Diagnostic;
use crate::id::{Address, LeaseId, Name};
use crate::journal::Verb;
use crate::resource::{LeaseReceipt, LeaseSpec, Spec, Terms};
use crate::shared::Shared;
use crate::state::{Recorded, Seen};
use crate::topology::{AgentSource, AgentWay, Limits, Requote};
use crate::unit::{MicroDollars, Millis};
use std::collections::{BTreeMap, BTreeSet};

/// Money and choice of one lease; none when it is ended.
pub(super) fn terms(
    row: &Row<'_>,
    shortlist: Shared<Vec<Choice>>,
    input: &Draft<'_>,
) -> Option<LeaseTerms> {
    if row.verdict == Verdict::Delete {
        return None;
    }
    let Address::Lease(id) = &row.address else {
        return None;
    };
    let spec = match (row.desired, row.recorded.and_then(|r| r.spec.as_ref())) {
        (Some(Spec::Lease(spec)), _) | (None, Some(Spec::Lease(spec))) => Some(&**spec),
        (_, _) => None,
    };
    let held = row.recorded.and_then(lease_receipt);
    let kept = held.filter(|_| row.teardown.is_none());
    let price = match (kept, shortlist.first()) {
        (Some(receipt), _) => match input.observed.leases.get(id) {
            Some(Seen::There(seen)) => seen.price_per_hour,
            Some(Seen::Gone | Seen::Unknown(_)) | None => receipt.price_per_hour,
        },
        (None, Some(choice)) => choice.quote.price_per_hour,
        (None, None) => row
            .recorded
            .map(Recorded::committed_per_hour)
            .unwrap_or_default(),
    };
    let free = match kept {
        Some(receipt) => match input.markets.get(&receipt.provider) {
            Some(market) => market.free,
            None => price == MicroDollars::ZERO,
        },
        None => spec.is_some_and(|spec| all_free(spec, input)),
    };
    let agent = shortlist
        .first()
        .and_then(|choice| way(choice, spec?, input));
    let rented = spec.filter(|_| row.build.contains(&Verb::Acquire));
    let unknown = rented.is_some() && shortlist.is_empty() && held.is_none();
    let unresolved = row.recorded.is_some_and(Recorded::is_unresolved);
    let price = match spec.and_then(ceiling) {
        // What will be had is not known yet: it counts as dear as it may be.
        Some(ceiling) if unknown && !unresolved && !free => ceiling,
        Some(_) | None => price,
    };
    Some(LeaseTerms {
        price_per_hour: price,
        attempts: rented.map_or(0, |spec| spec.attempts),
        requote: rented.is_some_and(may_requote),
        waits: rented.and_then(|spec| spec.wait_for_capacity),
        ceiling: spec.and_then(ceiling),
        unresolved,
        shortlist,
        ends: if free {
            EndsBy::Free
        } else {
            guard(spec, kept, input)
        },
        agent,
        moved: kept.and_then(|_| input.observed.moved(id).cloned()),
    })
}

/// How the agent gets onto a machine that is chosen.
fn way(choice: &Choice, spec: &LeaseSpec, input: &Draft<'_>) -> Option<AgentWay> {
    let mut terms = spec.terms.iter();
    let terms = terms.find(|terms| terms.offer == choice.offer)?;
    let market = input.markets.get(&terms.provider)?;
    let way = AgentWay::of(terms.agent.as_ref(), market.agent)?;
    let once = way == AgentWay::Ssh && market.restarts_empty;
    Some(if once { AgentWay::SshOnce } else { way })
}

/// Who ends a lease that costs money. A machine knows limits of its own, and not what all of them spend; a watcher ends nothing
/// that is protected.
fn guard(spec: Option<&LeaseSpec>, kept: Option<&LeaseReceipt>, input: &Draft<'_>) -> EndsBy {
    let limited = spec.is_some_and(|spec| {
        spec.idle_timeout != Millis::NEVER || spec.max_lifetime != Millis::NEVER
    });
    let all = match (kept, spec) {
        (Some(receipt), _) if receipt.ready.is_some() => {
            ends_itself(&receipt.provider, input) && !forgets(receipt, spec, input)
        }
        (Some(_), Some(spec)) | (None, Some(spec)) => {
            let mut terms = spec.rented_under();
            terms.all(|terms| may_end_itself(terms, input))
        }
        (Some(_) | None, None) => false,
    };
    let protected = spec.is_some_and(|spec| spec.protect);
    match (limited && all, input.options.watched && !protected) {
        (true, _) => EndsBy::Box,
        (false, true) => EndsBy::Watcher,
        (false, false) => EndsBy::Nobody,
    }
}

/// Machines of one table that nobody would end.
pub(super) struct Unguarded<'a> {
    pub(super) spec: &'a LeaseSpec,
    count: u32,
    price: MicroDollars,
}

impl<'a> Unguarded<'a> {
    pub(super) const fn of(spec: &'a LeaseSpec) -> Self {
        Self {
            spec,
            count: 0,
            price: MicroDollars::ZERO,
        }
    }

    /// One machine more, at this price per hour.
    pub(super) fn add(&mut self, price: MicroDollars) {
        self.count += 1;
        self.price = self.price.saturating_add(price);
    }
}

/// What would be rented although nobody ends it, a table once. Machines that are held, or may be there already, go on.
pub(super) fn unguarded(
    rows: &[Row<'_>],
    leases: &BTreeMap<LeaseId, LeaseTerms>,
    input: &Draft<'_>,
) -> Vec<Diagnostic> {
    let mut tables: BTreeMap<&Name, Unguarded<'_>> = BTreeMap::new();
    for row in rows {
        let (Address::Lease(id), Some(Spec::Lease(spec))) = (&row.address, row.desired) else {
            continue;
        };
        let rents = match row.verdict {
            Verdict::Create => row.recorded.is_none(),
            Verdict::Replace => true,
            Verdict::Update | Verdict::Delete | Verdict::Keep => false,
        };
        let nobody = |terms: &&LeaseTerms| terms.ends == EndsBy::Nobody;
        let meant = input.desired.unguarded.contains(&id.name) || unbilled(spec, input);
        let Some(terms) = leases.get(id).filter(nobody).filter(|_| rents && !meant) else {
            continue;
        };
        let table = tables.entry(&id.name);
        table
            .or_insert_with(|| Unguarded::of(spec))
            .add(terms.price_per_hour);
    }
    let fault = |(name, table): (&Name, Unguarded<'_>)| {
        let itself = |provider: &Name| ends_itself(provider, input);
        let first = match table.spec.protect {
            true => "take `protect` out, and let `stageline watch` run",
            false => "let `stageline watch` run",
        };
        ends_by_nobody(name, &table, &itself).hint(format!(
            "{first} on a computer that is always on (one without the keys of its providers counts as none); or take offers \
             whose machines end themselves by their limits; or say that you will end them: `unguarded = true` in \
             [lease.{name}]"
        ))
    };
    tables.into_iter().map(fault).collect()
}

/// The finding about one table; whoever asks knows the ways out.
pub(super) fn ends_by_nobody(
    name: &Name,
    table: &Unguarded<'_>,
    ends_itself: &dyn Fn(&Name) -> bool,
) -> Diagnostic {
    let machines = match table.count {
        1 => "1 machine".to_owned(),
        count => format!("{count} machines"),
    };
    let providers = table.spec.rented_under().map(|terms| &terms.provider);
    let cannot: BTreeSet<&Name> = providers.filter(|name| !ends_itself(name)).collect();
    let cannot: Vec<String> = cannot.iter().map(|name| format!("`{name}`")).collect();
    let mut ways = table.spec.rented_under().map(|terms| &terms.agent);
    let pushed = ways.any(|agent| *agent == Some(AgentSource::Ssh));
    let why = if cannot.is_empty() && pushed {
        "one that its agent is pushed to does not end itself before that is there".to_owned()
    } else if cannot.is_empty() {
        "they have no limits by which they would end themselves".to_owned()
    } else {
        format!(
            "machines of provider {} do not end themselves",
            cannot.join(", ")
        )
    };
    let price = table.price;
    let unwatched = match table.spec.protect {
        true => "a watcher ends nothing that is protected",
        false => "no watcher runs",
    };
    Diagnostic::error(
        "plan/unguarded",
        format!(
            "lease.{name}: {machines} for {price}/h would be rented, and nobody would end them while you are away: \
             {unwatched}, and {why}"
        ),
    )
}

/// Whether its prices are for rehearsals only.
fn unbilled(spec: &LeaseSpec, input: &Draft<'_>) -> bool {
    let mut terms = spec.rented_under();
    terms.all(|terms| {
        let market = input.markets.get(&terms.provider);
        market.is_some_and(|market| market.unbilled)
    })
}

/// Whether machines of these terms end themselves from their start on: one that its agent has to be pushed to waits for somebody.
fn may_end_itself(terms: &Terms, input: &Draft<'_>) -> bool {
    terms.agent != Some(AgentSource::Ssh) && ends_itself(&terms.provider, input)
}

/// Whether a restart takes its agent from a machine that is up, and with that what would end it.
fn forgets(receipt: &LeaseReceipt, spec: Option<&LeaseSpec>, input: &Draft<'_>) -> bool {
    let mut terms = spec.into_iter().flat_map(|spec| &spec.terms);
    let terms = terms.find(|terms| terms.offer == receipt.offer);
    let pushed = terms.is_some_and(|terms| terms.agent == Some(AgentSource::Ssh));
    let market = input.markets.get(&receipt.provider);
    pushed && market.is_some_and(|market| market.restarts_empty)
}

/// Whether machines of this provider can end themselves.
fn ends_itself(provider: &Name, input: &Draft<'_>) -> bool {
    let market = input.markets.get(provider);
    market.is_some_and(|market| market.self_destroy)
}

/// Whether a fresh quote may be taken at all.
fn may_requote(spec: &LeaseSpec) -> bool {
    let mut terms = spec.rented_under();
    terms.any(|terms| terms.requote == Requote::WithinCeiling)
}

fn all_free(spec: &LeaseSpec, input: &Draft<'_>) -> bool {
    let mut terms = spec.rented_under();
    terms.all(|terms| {
        input
            .markets
            .get(&terms.provider)
            .is_some_and(|market| market.free)
    })
}

/// Money in sum.
pub(super) fn money(
    rows: &[Row<'_>],
    input: &Draft<'_>,
    leases: &BTreeMap<LeaseId, LeaseTerms>,
) -> Money {
    let mut money = Money::default();
    for row in rows {
        let Address::Lease(id) = &row.address else {
            continue;
        };
        let now = row
            .recorded
            .map(Recorded::committed_per_hour)
            .unwrap_or_default();
        money.now_per_hour = money.now_per_hour.saturating_add(now);
        let Some(terms) = leases.get(id) else {
            money.at_most_per_hour = money.at_most_per_hour.saturating_add(now);
            continue;
        };
        money.leases_after += 1;
        money.after_per_hour = money.after_per_hour.saturating_add(terms.price_per_hour);
        let most = if row.build.contains(&Verb::Acquire) {
            at_most(row, terms, input)
        } else {
            terms.price_per_hour
        };
        money.at_most_per_hour = money.at_most_per_hour.saturating_add(now.max(most));
        if terms.attempts > 1 && (terms.requote || terms.shortlist.len() > 1) {
            money.overlap_per_hour = money.overlap_per_hour.saturating_add(most);
        }
    }
    let alone = money.at_most_per_hour;
    let mut both = alone.saturating_add(money.overlap_per_hour);
    // A fail-over for which there is no room waits until the machine that failed is proven gone.
    if let Some(cap) = input.options.limits.max_total_per_hour {
        both = both.min(cap.max(alone));
    }
    money.at_most_per_hour = both;
    money.overlap_per_hour = less(both, alone);
    money
}

fn less(money: MicroDollars, other: MicroDollars) -> MicroDollars {
    MicroDollars(money.0.saturating_sub(other.0))
}

/// The most that one new machine may cost: the ceiling where a fresh quote may be taken, nothing where all is free.
pub(super) fn at_most(row: &Row<'_>, terms: &LeaseTerms, input: &Draft<'_>) -> MicroDollars {
    let listed = terms
        .shortlist
        .iter()
        .map(|choice| choice.quote.price_per_hour)
        .max();
    let listed = listed.unwrap_or_default();
    match row.desired {
        Some(Spec::Lease(spec)) if all_free(spec, input) => listed,
        _ => terms.ceiling.unwrap_or(listed).max(listed),
    }
}

/// The caps that this plan would break. A plan that rents nothing breaks none.
pub(super) fn check(rows: &[Row<'_>], limits: &Limits, money: &Money) -> Vec<Diagnostic> {
    let rents = rows.iter().any(|row| row.build.contains(&Verb::Acquire));
    if !rents {
        return Vec::new();
    }
    let mut over = Vec::new();
    let alone = less(money.at_most_per_hour, money.overlap_per_hour);
    if let Some(cap) = limits.max_total_per_hour {
        if money.after_per_hour > cap {
            over.push(
                Diagnostic::error(
                    "plan/over-limit",
                    format!(
                        "afterwards {}/h would run, limits.max_total_per_hour is {cap}",
                        money.after_per_hour
                    ),
                )
                .hint("raise limits.max_total_per_hour, or lower a `count`"),
            );
        } else if alone > cap {
            over.push(
                Diagnostic::error(
                    "plan/over-limit",
                    format!(
                        "up to {alone}/h could run at once, limits.max_total_per_hour is {cap}"
                    ),
                )
                .hint(
                    "that is every machine at its ceiling: lower max_price_per_hour of the offers, or raise limits.max_total_per_hour",
                ),
            );
        }
    }
    over.extend(super::spend::check(limits.max_spend, money));
    if let Some(cap) = limits.max_leases.filter(|cap| money.leases_after > *cap) {
        over.push(
            Diagnostic::error(
                "plan/over-limit",
                format!(
                    "afterwards there would be {} leases, limits.max_leases is {cap}",
                    money.leases_after
                ),
            )
            .hint("raise limits.max_leases, or lower a `count`"),
        );
    }
    over
}
