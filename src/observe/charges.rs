//! What providers billed for the machines of a state, by their own word, and what of it is an estimate since.
//!
//! It is told and never recorded: a bill comes late, and the ledger's bounds hold without it.

use std::collections::BTreeMap;

use stageline_core::id::{MachineId, Name};
use stageline_core::resource::{Cause, LeaseReceipt, Receipt};
use stageline_core::state::{ENDED_MAX, State};
use stageline_core::unit::{MicroDollars, Timestamp};

use crate::provider::{Charged, Provider, Providers};

/// A machine that is or was there.
#[derive(Clone, Debug)]
struct Span {
    price_per_hour: MicroDollars,
    from: Timestamp,
    /// When it was proven gone; none while it is there.
    to: Option<Timestamp>,
}

/// What one provider says that it billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    /// For so many machines of this state.
    pub machines: usize,
    /// So much.
    pub amount: MicroDollars,
    /// So much of it for traffic, as far as that is told apart.
    pub traffic: MicroDollars,
    /// Up to when at least, of each of them.
    pub to: Option<Timestamp>,
    /// Not billed yet, by prices and times.
    pub estimated: MicroDollars,
    /// What may be missing in what was billed, for people.
    pub lacks: Vec<String>,
    /// What an estimate lacks, for people.
    pub beside: Option<&'static str>,
}

/// The answer of one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It told.
    Told(Bill),
    /// It has no call for that, and tells no dates either.
    Never {
        /// What an estimate lacks, for people.
        beside: Option<&'static str>,
    },
    /// It was not to be had.
    Blind(Cause),
}

/// Said of an estimate where the provider bills it.
const TRAFFIC: &str = "traffic, which is billed too, is in no estimate";

/// Asks every provider that this state has or had machines at, where anybody is billed for those.
pub async fn bills(state: &State, providers: &Providers, now: Timestamp) -> Vec<(Name, Answer)> {
    let mut sellers: BTreeMap<(Name, String), BTreeMap<MachineId, Span>> = BTreeMap::new();
    for (receipt, to) in receipts(state) {
        let seller = (receipt.provider.clone(), receipt.provider_kind.clone());
        let span = Span {
            price_per_hour: receipt.price_per_hour,
            from: receipt.created_at,
            to,
        };
        let machines = sellers.entry(seller).or_default();
        machines.insert(receipt.machine.clone(), span);
    }
    let forgets = (state.ended.len() >= ENDED_MAX)
        .then(|| format!("of the machines that ended only the last {ENDED_MAX} are in it"));
    let forgets = &forgets;
    let asked = sellers
        .into_iter()
        .map(|((name, kind), machines)| async move {
            let provider = providers.get(&name, &kind).ok()?;
            let since = machines.values().map(|span| span.from).min()?;
            let beside = provider.traits().bills_traffic.then_some(TRAFFIC);
            let answer = match provider.charges(since, now).await {
                Ok(Some(charges)) => {
                    let mut bill = sum(&machines, &charges.machines, now);
                    bill.lacks.extend(charges.lacks);
                    bill.lacks.extend(forgets.clone());
                    bill.beside = beside;
                    Answer::Told(bill)
                }
                Ok(None) if is_estimated(provider.as_ref()).await => Answer::Never { beside },
                Ok(None) => return None,
                Err(blind) => Answer::Blind(blind.cause),
            };
            Some((name, answer))
        });
    let told = futures::future::join_all(asked).await;
    told.into_iter().flatten().collect()
}

/// Whether what it bills is known by prices and by our own clocks alone.
async fn is_estimated(provider: &dyn Provider) -> bool {
    let billed = provider.bills() && !provider.traits().free;
    billed && !matches!(provider.dated().await, Ok(Some(_)))
}

fn receipts(state: &State) -> impl Iterator<Item = (&LeaseReceipt, Option<Timestamp>)> {
    let there = state.resources.values().flat_map(|recorded| {
        let held = match &recorded.receipt {
            Some(Receipt::Lease(held)) => Some(&**held),
            Some(_) | None => None,
        };
        let left = recorded.attempts.values();
        held.into_iter()
            .chain(left.filter_map(|open| open.leaving.as_deref()))
            .map(|receipt| (receipt, None))
    });
    let ended = state.ended.iter();
    ended
        .map(|ended| (&ended.receipt, Some(ended.ended_at)))
        .chain(there)
}

fn sum(machines: &BTreeMap<MachineId, Span>, charged: &[Charged], now: Timestamp) -> Bill {
    let mut bill = Bill {
        machines: 0,
        amount: MicroDollars::ZERO,
        traffic: MicroDollars::ZERO,
        to: None,
        estimated: MicroDollars::ZERO,
        lacks: Vec::new(),
        beside: None,
    };
    for (machine, span) in machines {
        let own = charged.iter().find(|one| one.machine == *machine);
        if let Some(own) = own {
            bill.machines += 1;
            bill.amount = bill.amount.saturating_add(own.amount);
            bill.traffic = bill.traffic.saturating_add(own.traffic);
            bill.to = Some(bill.to.unwrap_or(now).min(own.to));
        }
        let billed_to = own.map_or(span.from, |own| own.to);
        let open = span.to.unwrap_or(now).duration_since(billed_to);
        let seconds = u128::try_from(open.as_secs()).unwrap_or(0);
        let cost = seconds * u128::from(span.price_per_hour.0) / 3600;
        let cost = MicroDollars(u64::try_from(cost).unwrap_or(u64::MAX));
        bill.estimated = bill.estimated.saturating_add(cost);
    }
    bill
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a time")
    }

    #[test]
    fn what_is_not_billed_yet_is_an_estimate_and_what_is_billed_is_none() {
        let span = |to| Span {
            price_per_hour: MicroDollars(3_600_000),
            from: at(0),
            to,
        };
        let id = |text: &str| text.parse::<MachineId>().expect("an id");
        let machines = BTreeMap::from([
            (id("runs"), span(None)),
            (id("ended"), span(Some(at(50)))),
            (id("late"), span(Some(at(50)))),
            (id("new"), span(None)),
        ]);
        let charged = |machine, amount, to| Charged {
            machine: id(machine),
            amount: MicroDollars(amount),
            traffic: MicroDollars(amount / 10),
            to: at(to),
        };
        let told = [
            charged("runs", 70_000, 70),
            charged("ended", 50_000, 50),
            charged("late", 20_000, 20),
            charged("somebody's", 9_000_000, 99),
        ];
        let bill = sum(&machines, &told, at(100));
        assert_eq!((bill.machines, bill.amount), (3, MicroDollars(140_000)));
        assert_eq!(bill.traffic, MicroDollars(14_000), "nobody else's");
        // 30 s of the one that runs, 30 s of the late one, all of the new one; a second costs a thousandth of a dollar.
        assert_eq!(bill.estimated, MicroDollars(160_000));
        assert_eq!(bill.to, Some(at(20)));
        // A clock that is ahead of ours makes nothing negative.
        let ahead = [charged("runs", 70_000, 500)];
        let bill = sum(&BTreeMap::from([(id("runs"), span(None))]), &ahead, at(100));
        assert_eq!(bill.estimated, MicroDollars::ZERO);
        assert_eq!(bill.to, Some(at(100)), "nobody bills what is to come");
    }
}
