//! Accounts whose caps leave no room: what would be rented there is rented at another provider of its lease.
//!
//! Those leases go elsewhere that cost the least more there. What can be had nowhere else stays, and the caps refuse the plan
//! then. Nothing is closed to a lease that would get no machine for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::assign::{Assigned, Need, assign};
use super::avoid::Avoid;
use super::draft::{Drafting, Row};
use super::limits;
use super::placement::Spot;
use super::room::{self, Room, refused};
use crate::id::{Address, LeaseId, Name};
use crate::resource::Cause;
use crate::unit::MicroDollars;

/// How often leases are moved: each time makes another account fuller.
const ROUNDS_MAX: usize = 8;

/// What shortlists are made of, besides the needs.
pub(super) struct Choosing<'d, 'a> {
    pub(super) avoid: &'d Avoid<'a>,
    pub(super) stays: &'d BTreeMap<&'a Name, Vec<Spot>>,
}

impl<'a> Drafting<'a> {
    /// Shortlists for all needs, and within the caps of accounts where other providers allow it.
    pub(super) fn assigned(&self, mut needs: Vec<Need<'a>>, by: &Choosing<'_, 'a>) -> Assigned {
        let markets = self.input.markets;
        let mut found = assign(&needs, markets, by.avoid, by.stays);
        let rooms = &self.input.options.rooms;
        if rooms.is_empty() {
            return found;
        }
        let rows: BTreeMap<&LeaseId, &Row<'a>> = self.lease_rows().collect();
        let (mut told, mut crowded) = (Vec::new(), BTreeMap::new());
        for _ in 0..ROUNDS_MAX {
            let mut moved = Vec::new();
            for account in rooms {
                if found.faults.is_empty()
                    && let Some(Crowd { goes, why }) =
                        self.crowd(account, &needs, &found, by, &rows)
                {
                    moved.push(elsewhere(account.0, &goes, &needs, &why));
                    for place in goes {
                        needs[place].closed.insert(account.0);
                    }
                    crowded.entry(account.0.clone()).or_insert(why);
                }
            }
            if moved.is_empty() {
                break;
            }
            let next = assign(&needs, markets, by.avoid, by.stays);
            if !next.faults.is_empty() {
                break;
            }
            found = next;
            told.extend(moved);
        }
        found.notes.extend(told);
        found.crowded = crowded;
        found
    }

    fn lease_rows(&self) -> impl Iterator<Item = (&LeaseId, &Row<'a>)> {
        self.rows.iter().filter_map(|row| match &row.address {
            Address::Lease(lease) => Some((lease, row)),
            Address::Delivery(_)
            | Address::Bundle(_)
            | Address::Stage(_)
            | Address::Pipeline(_)
            | Address::Exposure(_) => None,
        })
    }

    /// Which needs go elsewhere, since this account has no room for them; none where it has, or where nobody can go.
    fn crowd(
        &self,
        (provider, room): (&'a Name, &Room),
        needs: &[Need<'a>],
        found: &Assigned,
        by: &Choosing<'_, 'a>,
        rows: &BTreeMap<&LeaseId, &Row<'a>>,
    ) -> Option<Crowd> {
        let is_there = |place: &usize| {
            let first = first(found, &needs[*place]);
            first.is_some_and(|(name, _)| *name == *provider)
        };
        let mut there: Vec<usize> = (0..needs.len()).filter(is_there).collect();
        let most = |place: usize| {
            let lease = &needs[place].lease;
            let shortlist = found.shortlists.get(lease).cloned().unwrap_or_default();
            let terms = limits::terms(rows[lease], shortlist, &self.input);
            terms.map_or(MicroDollars::ZERO, |terms| {
                limits::at_most(rows[lease], &terms, &self.input)
            })
        };
        let kept = room::kept(&self.rows, provider);
        let all = there.iter().fold(kept, |own, place| own.and(most(*place)));
        // Of one that cannot be counted nobody knows whether it is full.
        let counted = room.beside.is_ok() && !there.is_empty();
        let cause = refused(provider, room, all).filter(|_| counted)?;
        let without = self.without(provider, needs, &there, by);
        let dearer = |place: usize| {
            let (_, here) = first(found, &needs[place])?;
            let (_, there) = first(&without, &needs[place])?;
            Some(i128::from(there.0) - i128::from(here.0))
        };
        // Who has nowhere else to go stays first, then whoever would pay the most for it.
        there.sort_by_key(|place| dearer(*place).map(Reverse));
        let (mut own, mut goes) = (kept, BTreeSet::new());
        for place in there {
            let with = own.and(most(place));
            if dearer(place).is_none() || refused(provider, room, with).is_none() {
                own = with;
            } else {
                goes.insert(place);
            }
        }
        let goes: Vec<usize> = goes.into_iter().collect();
        (!goes.is_empty()).then_some(Crowd { goes, why: cause })
    }

    /// What these needs would get if a provider sold nothing.
    fn without(
        &self,
        provider: &'a Name,
        needs: &[Need<'a>],
        there: &[usize],
        by: &Choosing<'_, 'a>,
    ) -> Assigned {
        let mut needs = needs.to_vec();
        for place in there {
            needs[*place].closed.insert(provider);
        }
        assign(&needs, self.input.markets, by.avoid, by.stays)
    }
}

/// Needs that an account has no room for.
struct Crowd {
    goes: Vec<usize>,
    why: Cause,
}

/// What a plan says of them.
fn elsewhere(provider: &Name, goes: &[usize], needs: &[Need<'_>], why: &Cause) -> String {
    let first = goes.first().map(|place| needs[*place].lease.to_string());
    let first = first.unwrap_or_default();
    let who = match goes.len() {
        1 => format!("{first} goes"),
        n => format!("{first} and {} more go", n - 1),
    };
    let why = &why.message;
    format!("the account of provider `{provider}` is full, so that {who} to other providers: {why}")
}

/// What a need would get first, and its price.
fn first<'f>(found: &'f Assigned, need: &Need<'_>) -> Option<(&'f Name, MicroDollars)> {
    let choice = found.shortlists.get(&need.lease)?.first()?;
    Some((&choice.quote.provider, choice.quote.price_per_hour))
}
