//! Every provider that a command may need: those declared, and those that recorded machines are on when their table is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use stageline_core::id::{Address, Name};
use stageline_core::resource::Account;
use stageline_core::state::State;
use stageline_core::topology::{Claims, Cloud, Programs, ProviderKind, SecretRef, Topology};
use stageline_core::unit::{MicroDollars, Millis};

use super::Failure;
use super::keys::References;
use super::own_hosts;
use super::project::Place;
use super::session::local;
use crate::ambient::SharedClock;
use crate::apply::{Providers, Secrets as _};
use crate::machine::Target;
use crate::observe;
use crate::provider::Provider;
use crate::provider::command::{CommandProvider, CommandSettings};
use crate::provider::http::CloudSettings;
use crate::provider::lambda::Lambda;
use crate::provider::local::{LocalProvider, Sight};
use crate::provider::runpod::Runpod;
use crate::provider::ssh::SshProvider;
use crate::provider::vastai::Vastai;

/// What providers are made from.
pub(crate) struct Sellers<'a> {
    /// Without it, recorded machines tell where they are.
    pub topology: Option<&'a Topology>,
    pub state: &'a State,
    pub place: &'a Place,
    /// Relative paths of secrets start here.
    pub folder: &'a Path,
    pub clock: &'a SharedClock,
}

/// How long a program of a table that is gone may take.
const RECORDED_TIMEOUT: Millis = Millis::minutes(2);

/// A provider of recorded machines: its table's name, its kind, and on which account, where there are accounts.
type Recorded = BTreeMap<(Name, String), Option<Account>>;

impl<'a> Sellers<'a> {
    /// Those of what is recorded, whatever the topology says by now.
    pub fn recorded(state: &'a State, place: &'a Place, clock: &'a SharedClock) -> Self {
        Self {
            topology: None,
            state,
            place,
            folder: Path::new("."),
            clock,
        }
    }

    /// Every declared provider, one for each that recorded machines are on, and `local` in any case.
    pub fn providers(&self) -> Result<Providers, Failure> {
        let mut providers = Providers::default();
        let recorded = recorded(self.state);
        let mut declared = BTreeSet::new();
        let sight = Arc::default();
        for (name, provider) in self.topology.into_iter().flat_map(|t| &t.providers) {
            let kind = provider.kind.as_str();
            declared.insert((name.clone(), kind.to_owned()));
            let account = recorded.get(&(name.clone(), kind.to_owned()));
            let account = account.cloned().flatten();
            let made: Arc<dyn Provider> = match &provider.kind {
                ProviderKind::Local {
                    slots,
                    price_per_hour,
                } => self.local(name, *slots, *price_per_hour, &sight)?,
                ProviderKind::Cloud {
                    cloud,
                    api_key,
                    url,
                    ssh_key,
                } => {
                    let settings = self.settings(name, api_key, url.as_deref(), account);
                    made(*cloud, settings, ssh_key.clone())
                }
                ProviderKind::Ssh { hosts } => Arc::new(SshProvider::new(own_hosts::settings(
                    self, name, hosts, account,
                ))),
                ProviderKind::Command { programs, timeout } => {
                    Arc::new(CommandProvider::new(CommandSettings {
                        offers: self.claims(name),
                        ..self.programs(name, programs, *timeout, account)
                    }))
                }
            };
            providers.insert(name.clone(), made);
        }
        for ((name, kind), account) in recorded {
            let programs = account
                .as_ref()
                .and_then(|account| account.programs.clone());
            if let Some(programs) =
                programs.filter(|_| !declared.contains(&(name.clone(), kind.clone())))
            {
                let settings = self.programs(&name, &programs, RECORDED_TIMEOUT, account);
                providers.insert_recorded(name, Arc::new(CommandProvider::new(settings)));
                continue;
            }
            if kind == "ssh" && !declared.contains(&(name.clone(), kind.clone())) {
                let settings = own_hosts::settings(self, &name, &[], account);
                providers.insert_recorded(name, Arc::new(SshProvider::new(settings)));
                continue;
            }
            let cloud = Cloud::ALL.into_iter().find(|cloud| cloud.as_str() == kind);
            let (Some(cloud), Some(account)) = (cloud, account) else {
                continue;
            };
            if declared.contains(&(name.clone(), kind)) {
                continue;
            }
            let (Some(key), url) = (account.api_key.clone(), account.url.clone()) else {
                continue;
            };
            let settings = self.settings(&name, &key, url.as_deref(), Some(account));
            providers.insert_recorded(name, made(cloud, settings, None));
        }
        let here = "local".parse().expect("it is a name");
        providers.insert_kind(self.local(&here, None, MicroDollars::ZERO, &sight)?);
        Ok(providers)
    }

    /// A machine whose agent does not answer, where its provider tells that it is by now; none where that is known already, or nobody
    /// tells.
    pub async fn elsewhere(&self, target: &Target) -> Option<Target> {
        let providers = self.providers().ok()?;
        observe::elsewhere(self.state, &providers, target).await
    }

    fn local(
        &self,
        name: &Name,
        slots: Option<u32>,
        price_per_hour: MicroDollars,
        sight: &Arc<Sight>,
    ) -> Result<Arc<dyn Provider>, Failure> {
        let settings = local(name.clone(), &self.place.folder(), slots, price_per_hour)?;
        let clock = self.clock.clone();
        Ok(Arc::new(LocalProvider::seeing(
            settings,
            clock,
            sight.clone(),
        )))
    }

    /// What the offers of a provider claim.
    pub(super) fn claims(&self, provider: &Name) -> BTreeMap<Name, Claims> {
        let offers = self
            .topology
            .into_iter()
            .flat_map(|topology| &topology.offers);
        let own = offers.filter(|(_, offer)| offer.provider == *provider);
        own.map(|(name, offer)| (name.clone(), offer.claims.clone().unwrap_or_default()))
            .collect()
    }

    /// A provider of programs that has no offers.
    fn programs(
        &self,
        name: &Name,
        programs: &Programs,
        timeout: Millis,
        account: Option<Account>,
    ) -> CommandSettings {
        let relay = self.topology.and_then(|topology| topology.relay.as_ref());
        // The topology's, also where that is not read.
        let folder = self.place.local.parent().unwrap_or(self.folder);
        CommandSettings {
            name: name.clone(),
            programs: programs.clone(),
            timeout: timeout.duration(),
            offers: BTreeMap::new(),
            folder: std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()),
            records: self.place.folder().join("commands").join(name.as_str()),
            account,
            relay: relay.map(|relay| relay.url.clone()),
            means: own_hosts::means(self),
            clock: self.clock.clone(),
        }
    }

    /// A key that cannot be read makes a provider that sees nothing, and says why: what is on others goes on.
    fn settings(
        &self,
        name: &Name,
        key_ref: &SecretRef,
        url: Option<&str>,
        account: Option<Account>,
    ) -> CloudSettings {
        let references = References {
            folder: self.folder.to_owned(),
        };
        let relay = self.topology.and_then(|topology| topology.relay.as_ref());
        CloudSettings {
            name: name.clone(),
            url: url.map(str::to_owned),
            key_ref: key_ref.clone(),
            key: references.read(key_ref).map(Arc::new),
            account: account.map(|account| account.id),
            relay: relay.map(|relay| relay.url.clone()),
            means: own_hosts::means(self),
            clock: self.clock.clone(),
        }
    }
}

/// The adapter of a cloud. Nothing is rented where the table is gone, so that an SSH key is needed with one only.
fn made(cloud: Cloud, settings: CloudSettings, ssh_key: Option<String>) -> Arc<dyn Provider> {
    match cloud {
        Cloud::Vastai => Arc::new(Vastai::new(settings)),
        Cloud::Lambda => Arc::new(Lambda::new(settings, ssh_key)),
        Cloud::Runpod => Arc::new(Runpod::new(settings)),
    }
}

/// Where recorded machines are, and where open tries may have made some.
fn recorded(state: &State) -> Recorded {
    let mut found = Recorded::new();
    for (address, recorded) in state.existing() {
        let Address::Lease(lease) = address else {
            continue;
        };
        if let Some(held) = state.lease(lease) {
            let key = (held.provider.clone(), held.provider_kind.clone());
            found.insert(key, held.account.clone());
        }
        for open in recorded.attempts.values() {
            let launch = &open.launch;
            let key = (launch.provider.clone(), launch.provider_kind.clone());
            found.insert(key, launch.account.clone());
        }
    }
    found
}
