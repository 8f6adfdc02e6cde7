//! Leases of which nobody can tell whether their machines are there: to have nothing else to do is no "all is well" then.

use std::collections::BTreeSet;

use stageline_core::id::{Address, LeaseId, Name};
use stageline_core::journal::Verb;
use stageline_core::plan::{Market, Markets, Plan};
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt};
use stageline_core::state::{Observed, Seen, State};
use stageline_core::unit::MicroDollars;

use super::console::Console;
use super::{Exit, Failure};
use crate::apply::{Providers, is_to_be_seen};

/// What is said where a provider has no better advice.
pub(crate) const USUAL: &str =
    "run the same command again; if this stays, look into the provider's own console";

/// Leases whose machines may be there, and bill.
#[derive(Default)]
pub(crate) struct Unseen {
    leases: Vec<LeaseId>,
    per_hour: MicroDollars,
    hint: Option<String>,
}

impl Unseen {
    /// Those that a plan is about.
    pub fn of(plan: &Plan, state: &State, observed: &Observed, markets: &Markets) -> Self {
        let leases = plan
            .changes
            .iter()
            .filter_map(|change| match &change.address {
                Address::Lease(lease) => Some(lease),
                Address::Delivery(_)
                | Address::Bundle(_)
                | Address::Stage(_)
                | Address::Pipeline(_)
                | Address::Exposure(_) => None,
            });
        let mut unseen = Self::default();
        for lease in leases {
            let Some(held) = state.lease(lease) else {
                continue;
            };
            // That passes by itself, and the plan says so.
            if observed.young.contains(lease) {
                continue;
            }
            let Some(cause) = why(held, observed.leases.get(lease), markets) else {
                continue;
            };
            unseen.leases.push(lease.clone());
            unseen.per_hour = unseen.per_hour.saturating_add(held.price_per_hour);
            unseen.hint = unseen.hint.or_else(|| cause.hint.clone());
        }
        unseen
    }

    /// All machines were seen, or seen to be gone.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// What happened, what it may cost, and what to do.
    pub fn tell(&self, console: &Console) {
        let names: Vec<String> = self.leases.iter().map(ToString::to_string).collect();
        let costs = match self.per_hour {
            MicroDollars::ZERO => "costs nothing".to_owned(),
            price => format!("may bill {price}/h"),
        };
        console.line(&format!(
            "nobody can tell whether what {} has is there; it {costs}; nothing was created, and nothing is called gone",
            names.join(", ")
        ));
        console.line(&format!("hint: {}", self.hint.as_deref().unwrap_or(USUAL)));
    }
}

/// Nothing is rented on an account that cannot be seen: what a create makes there could not be found again. One that is second to
/// another is looked at when its turn comes.
///
/// # Errors
/// [`Failure`] when an account from which something is to be rented first shows no listing that can be trusted.
pub(crate) async fn look(plan: &Plan, state: &State, providers: &Providers) -> Result<(), Failure> {
    let rents = plan.steps.iter().filter(|step| step.verb == Verb::Acquire);
    let lists = rents.filter_map(|step| plan.leases.get(step.address.lease()?));
    let sellers: BTreeSet<&Name> = lists
        .filter_map(|terms| terms.shortlist.first())
        .map(|choice| &choice.quote.provider)
        .collect();
    for (name, provider) in providers.named() {
        if !is_to_be_seen(provider.as_ref()) || !sellers.contains(&name) {
            continue;
        }
        let Err(blind) = provider.list().await else {
            continue;
        };
        let exit = match blind.cause.class {
            // That passes, and is waited out where it matters.
            FailureClass::Rate => continue,
            FailureClass::Config => Exit::User,
            FailureClass::Auth
            | FailureClass::Capacity
            | FailureClass::OfferGone
            | FailureClass::Quota
            | FailureClass::Money
            | FailureClass::Unknown => Exit::Doubt,
        };
        let message = format!(
            "cannot see the account of provider `{name}`: {}; nothing was rented, nothing is called gone, and what is \
             recorded costs {}/h",
            blind.cause.message,
            state.committed_per_hour()
        );
        let hint = blind.cause.hint.unwrap_or_else(|| USUAL.to_owned());
        return Err(Failure::new(exit, message).hint(hint));
    }
    Ok(())
}

/// Why nobody can tell; none when somebody can.
fn why<'a, T>(
    held: &LeaseReceipt,
    seen: Option<&'a Seen<T>>,
    markets: &'a Markets,
) -> Option<&'a Cause> {
    match seen? {
        Seen::Unknown(cause) => Some(cause),
        Seen::Gone => {
            let market = markets.get(&held.provider);
            market.and_then(|market: &Market| market.quotes.as_ref().err())
        }
        Seen::There(_) => None,
    }
}
