//! What a topology's leases want of each provider, asked for: offers, each priced with the disk of the lease that would take it.

use std::collections::BTreeMap;

use stageline_core::id::{Address, Name};
use stageline_core::plan::{self, Desired, Market, ModelFacts, Volumes};
use stageline_core::resource::{DISK, FailureClass, Spec};
use stageline_core::topology::{Lease, OnInterrupt, Spot, Topology};
use stageline_core::unit::Bytes;

use super::{Failure, stock};
use crate::apply::Providers;
use crate::observe::{self, Asked, Search};

/// Who is asked, and for whom.
pub(super) struct Asking<'a> {
    pub topology: &'a Topology,
    pub providers: &'a Providers,
    pub volumes: &'a Volumes,
}

impl Asking<'_> {
    /// What every declared provider sells now.
    pub async fn markets(&self, disks: &Disks) -> BTreeMap<Name, Market> {
        let mut asked = Vec::new();
        for (name, provider) in &self.topology.providers {
            let searches = self.searches(name, disks);
            // Nobody wants anything of it: it need not be asked, nor its key be there.
            if searches.is_empty() {
                continue;
            }
            if let Ok(provider) = self.providers.get(name, provider.kind.as_str()) {
                asked.push(Asked {
                    name: name.clone(),
                    provider: provider.clone(),
                    searches,
                });
            }
        }
        let mut quotes = observe::quotes(&asked).await;
        let market = |asked: Asked| {
            let Asked { name, provider, .. } = asked;
            let quotes = quotes.remove(&name).unwrap_or_else(|| Ok(Vec::new()));
            let market = Market {
                kind: provider.kind().to_owned(),
                free: provider.traits().free,
                unbilled: !provider.bills(),
                self_destroy: provider.traits().self_destroy,
                restarts_empty: provider.traits().restarts_empty,
                agent: provider.traits().agent,
                quotes: quotes.map_err(|blind| blind.cause),
            };
            (name, market)
        };
        asked.into_iter().map(market).collect()
    }

    /// What leases want of a provider: the requirement of each offer of it that some lease takes, on demand or with a bid, with the
    /// disk that its machines are made with. Who may have to fall back asks for both. Searches on demand come first.
    fn searches(&self, provider: &Name, disks: &Disks) -> Vec<Search> {
        let (mut on_demand, mut bids) = (Vec::new(), Vec::new());
        for (name, lease) in &self.topology.leases {
            let offers = lease.offers.iter();
            let offers = offers.filter_map(|name| self.topology.offers.get(name));
            for offer in offers.filter(|offer| offer.provider == *provider) {
                let Some(declared) = self.topology.providers.get(provider) else {
                    continue;
                };
                let both = offer.taken_by(lease, &declared.kind).requirement;
                let both = both.and(&stock::asked(lease, provider, self.volumes));
                let bidding = Spot::of(offer.spot, lease.spot);
                let search = |bid| Search {
                    requirement: both.clone(),
                    bid,
                    disk: disks.largest(name),
                };
                bids.extend(bidding.map(|bidding| search(Some(bidding.bid))));
                if bidding.is_none_or(|bidding| bidding.on_interrupt == OnInterrupt::OnDemand) {
                    on_demand.push(search(None));
                }
            }
        }
        let mut once: Vec<Search> = Vec::new();
        for search in on_demand.into_iter().chain(bids) {
            if !once.contains(&search) {
                once.push(search);
            }
        }
        once
    }
}

/// The largest disk that a machine of each table is made with: no price shown is below the one paid.
pub(super) struct Disks(BTreeMap<Name, Bytes>);

impl Disks {
    /// As far as it can be told before memory is known.
    pub fn of(topology: &Topology, models: &BTreeMap<Name, ModelFacts>) -> Self {
        let declared = |lease: &Lease| lease.disk.unwrap_or(DISK);
        let leases = topology.leases.iter();
        let disks = leases.map(|(name, lease)| (name.clone(), declared(lease)));
        let mut disks = Self(disks.collect());
        // What cannot be expanded is told of where it is.
        let rough = match models.is_empty() {
            true => None,
            false => plan::expand(topology, models).ok(),
        };
        if let Some(rough) = rough {
            disks.raise(&rough);
        }
        disks
    }

    /// Raises them to what machines are made with; whether any was less.
    pub fn raise(&mut self, desired: &Desired) -> bool {
        let mut raised = false;
        for (address, spec) in &desired.specs {
            if let (Address::Lease(lease), Spec::Lease(spec)) = (address, spec)
                && let Some(disk) = self.0.get_mut(&lease.name)
                && *disk < spec.disk
            {
                *disk = spec.disk;
                raised = true;
            }
        }
        raised
    }

    fn largest(&self, lease: &Name) -> Bytes {
        self.0.get(lease).copied().unwrap_or(DISK)
    }
}

/// A key that is missing or refused, or a URL that makes no sense, is the user's to mend: better said at once.
pub(super) fn usable(markets: &BTreeMap<Name, Market>) -> Result<(), Failure> {
    for (name, market) in markets {
        if let Err(cause) = &market.quotes
            && matches!(cause.class, FailureClass::Auth | FailureClass::Config)
        {
            let failure = Failure::user(format!("provider `{name}`: {}", cause.message));
            return Err(match &cause.hint {
                Some(hint) => failure.hint(hint.clone()),
                None => failure.hint(format!("mend `api_key` or `url` of [provider.{name}]")),
            });
        }
    }
    Ok(())
}
