//! Which machines are a lease's: by every name that it may have been made under.
//!
//! A lease that was moved keeps the machine that was made under its old address, so it is looked for under both. What is
//! recorded as another lease, or was given up on purpose, is never this one's: it would be ended as one too many.

use std::sync::Arc;

use stageline_core::id::{Address, LeaseId, Lineage, MachineId, Name, RequestKey};
use stageline_core::plan::Plan;
use stageline_core::resource::{Account, Cause, FailureClass, LeaseReceipt};
use stageline_core::state::FoldError;

use super::Effects;
use super::step::{Act, Run, Stop};
use crate::provider::{Blind, Machine, Provider, same_account};
use crate::store::{AppendError, Journal};
use crate::watch;

impl Run<'_> {
    /// The lease that the machine of this one was made for: its keys derive from that name.
    pub fn made_for(&self, lease: &LeaseId) -> LeaseId {
        let address = Address::Lease(lease.clone());
        let born = self.state(|state| state.resources.get(&address)?.made_for.clone());
        born.unwrap_or_else(|| lease.clone())
    }

    /// Every machine of this lease at a provider, whatever its generation.
    pub async fn find_ours(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        lineage: &Lineage,
    ) -> Result<Vec<Machine>, Blind> {
        let own = Address::Lease(lease.clone());
        let born = Address::Lease(self.made_for(lease));
        let prefixes = [&own, &born].map(|address| RequestKey::prefix(lineage, address));
        let mut found = Vec::new();
        if provider.has_parts() {
            found = self.seen_for(provider, lease).await?;
            found.retain(|machine| prefixes.iter().any(|prefix| machine.carries(prefix)));
        } else {
            found.extend(provider.find(&prefixes[0]).await?);
            if born != own {
                found.extend(provider.find(&prefixes[1]).await?);
            }
        }
        let held = self.state(|state| state.lease(lease).map(|held| held.machine.clone()));
        self.is_of_account(provider, lease, &found).await?;
        found.retain(|machine| {
            let key = machine.request_key.as_ref();
            Some(&machine.id) == held.as_ref()
                || key.is_some_and(|key| {
                    self.state(|state| !state.is_elsewhere(lease, &machine.id, key))
                })
        });
        Ok(found)
    }

    /// Every machine that can be seen, where no machine of this lease could be in a part that is missing: each of its tries says
    /// where it went.
    pub async fn seen_for(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
    ) -> Result<Vec<Machine>, Blind> {
        let view = provider.view().await?;
        let name = self.effects.providers.name_of(provider);
        let places = self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            let open = recorded.into_iter().flat_map(|r| r.attempts.values());
            let mut places: Vec<String> = Vec::new();
            for open in open {
                places.push(open.launch.quote.0.clone());
                let left = open.leaving.as_ref();
                places.extend(left.map(|left| left.machine.to_string()));
            }
            let held = state.lease(lease);
            places.extend(held.map(|held| held.machine.to_string()));
            places
        });
        view.but(&name, |part| {
            places.iter().any(|place| part.concerns(place))
        })
    }

    /// Whose account answers, if it is not the one that a machine of this lease was made on and it lists none of them. Nothing
    /// is asked of it then, and nothing is concluded from what it says. That it cannot be told now may pass.
    pub async fn other_account(&self, provider: &dyn Provider, lease: &LeaseId) -> Option<Cause> {
        let now = provider.account().await.ok()??;
        let made_on = self.made_on(provider, lease, &[]);
        let other = made_on.iter().find_map(|(name, account)| {
            let cause = same_account(name, account, Some(&now)).err()?;
            Some((account.id.clone(), cause))
        });
        let (was, cause) = other?;
        let listed = provider.list().await.ok()?;
        if self.made_on(provider, lease, &listed).len() == made_on.len() {
            return Some(cause);
        }
        // It lists what was made there: the account is the same, and is called otherwise by now.
        self.same_accounts.borrow_mut().insert((was, now.id));
        None
    }

    /// Whether a listing that lacks a machine of this lease, or of a try whose outcome is open, is of the account that
    /// these were asked of: else it proves nothing.
    pub async fn is_of_account(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        listed: &[Machine],
    ) -> Result<(), Blind> {
        let missing = self.made_on(provider, lease, listed);
        if missing.is_empty() {
            return Ok(());
        }
        let now = provider.account().await?;
        for (name, account) in missing {
            let Err(cause) = same_account(&name, &account, now.as_ref()) else {
                continue;
            };
            let pair = now.as_ref().map(|now| (account.id.clone(), now.id.clone()));
            if pair.is_some_and(|pair| self.same_accounts.borrow().contains(&pair)) {
                continue;
            }
            return Err(Blind {
                provider: name,
                cause,
                retry_after: None,
            });
        }
        Ok(())
    }

    /// The accounts at a provider that machines of this lease, and tries whose outcome is open, were asked of: of those that a
    /// listing lacks.
    fn made_on(
        &self,
        provider: &dyn Provider,
        lease: &LeaseId,
        listed: &[Machine],
    ) -> Vec<(Name, Account)> {
        let there = |id: &MachineId| listed.iter().any(|machine| machine.id == *id);
        let mut missing: Vec<(Name, String, Account)> = self.state(|state| {
            let recorded = state.resources.get(&Address::Lease(lease.clone()));
            let open = recorded.into_iter().flat_map(|r| r.attempts.values());
            let open = open.filter(|open| match &open.leaving {
                Some(receipt) => !there(&receipt.machine),
                None => {
                    let key = Some(&open.launch.request_key);
                    !listed
                        .iter()
                        .any(|machine| machine.request_key.as_ref() == key)
                }
            });
            let open = open.map(|open| {
                let launch = &open.launch;
                (&launch.provider, &launch.provider_kind, &launch.account)
            });
            let held = state.lease(lease).filter(|held| !there(&held.machine));
            let held = held.map(|held| (&held.provider, &held.provider_kind, &held.account));
            let all = open.chain(held).filter_map(|(name, kind, account)| {
                Some((name.clone(), kind.clone(), account.clone()?))
            });
            all.collect()
        });
        missing.retain(|(name, kind, _)| {
            let asked = self.effects.providers.get(name, kind);
            asked.is_ok_and(|asked| std::ptr::addr_eq(Arc::as_ptr(asked), provider))
        });
        let named = missing.into_iter();
        named.map(|(name, _, account)| (name, account)).collect()
    }

    /// The receipt of a lease with the price and the address that were seen when the plan was drafted, when they changed.
    pub fn as_seen(&self, act: Act<'_>) -> Option<LeaseReceipt> {
        let Address::Lease(lease) = &act.step.address else {
            return None;
        };
        let held = self.held(lease, act.step.generation)?;
        let terms = self.plan.leases.get(lease)?;
        let mut receipt = LeaseReceipt {
            price_per_hour: terms.price_per_hour,
            ..held.clone()
        };
        if let (Some(moved), Some(ready)) = (&terms.moved, &mut receipt.ready) {
            ready.contact = moved.clone();
        }
        (receipt != held).then_some(receipt)
    }

    /// Whether the ledger leaves money for one more launch.
    pub fn within_spend(&self, lease: &LeaseId) -> Result<(), Stop> {
        let Some(cap) = self.options.max_spend else {
            return Ok(());
        };
        let now = self.effects.clock.now();
        let spent = self.state(|state| state.spent_at_most(now));
        if spent < cap {
            return Ok(());
        }
        let message = format!("{lease}: up to {spent} was spent so far, limits.max_spend is {cap}");
        let cause = Cause::new(FailureClass::Money, message)
            .hint("raise limits.max_spend, or end what runs with `stageline destroy`");
        Err(Stop::Refused(cause))
    }

    /// Whether every lease is within its `max_lifetime`: a watcher ends nothing while a run goes on, so that none waits for long beyond it.
    pub fn within_lifetimes(&self) -> Result<(), Stop> {
        let clock = &self.effects.clock;
        let beyond = self.state(|state| {
            let now = state.ledger_now(clock.now(), clock.boot_point().as_ref());
            watch::guarded(state).find_map(|(lease, recorded)| {
                let why = watch::outlived(recorded, recorded.limits_in_force()?, now)?;
                Some((lease.clone(), why))
            })
        });
        let Some((lease, why)) = beyond else {
            return Ok(());
        };
        let message =
            format!("nothing is waited for any longer: {lease} is beyond its max_lifetime ({why})");
        let cause = Cause::new(FailureClass::Capacity, message).hint(format!(
            "end it by `stageline release {lease}`, where no watcher does; run apply again then"
        ));
        Err(Stop::Refused(cause))
    }
}

/// Does what the plan changes in the state alone, once: it is done when the state is no longer the one that the plan was
/// drafted from.
pub(super) async fn edit(
    plan: &Plan,
    journal: &Journal,
    effects: &Effects,
) -> Result<(), AppendError> {
    if plan.edits.is_empty() || journal.with_state(|state| state.projection() != plan.base) {
        return Ok(());
    }
    let at = effects.clock.now();
    let records = journal.with_state(|state| state.edited(&plan.edits, at));
    let records = records.map_err(|error| {
        AppendError::Impossible(FoldError::Impossible {
            n: journal.with_state(|state| {
                stageline_core::id::JournalNumber(state.run.as_ref().map_or(0, |run| run.epoch.0))
            }),
            what: error.to_string(),
        })
    })?;
    journal.append(records).await?;
    Ok(())
}
