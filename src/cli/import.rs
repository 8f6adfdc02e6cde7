//! `import ADDR ID`: takes a machine that is at the provider, and that this state made, back into a lease.
//!
//! Nothing is rented. A machine is taken only when it carries this state's mark, is nobody else's, is up, and fits what the
//! lease asks for at its price: else it would be replaced by the next apply.

use std::sync::Arc;

use stageline_core::diagnostic::suggestion;
use stageline_core::id::{Address, LeaseId, MachineId, RequestKey};
use stageline_core::offer::QuoteId;
use stageline_core::plan::{self, unfit};
use stageline_core::resource::{Account, LeaseReceipt, LeaseSpec, Spec, Terms};
use stageline_core::state::{Imported, State, Surgery};
use stageline_core::unit::Timestamp;

use super::console::Console;
use super::drafting::surgery as refused;
use super::project::Project;
use super::sellers::Sellers;
use super::surgery::Operation;
use super::{Exit, Failure, Global, model, session};
use crate::apply::Providers;
use crate::provider::{Machine, MachineStatus, Provider};
use crate::store::Mode;

/// Take a machine of this state at the provider back into a lease.
#[derive(Debug, clap::Args)]
pub(crate) struct Import {
    /// The lease, such as lease.gpu[0]; it must be declared
    address: Address,
    /// What the provider calls the machine
    id: MachineId,
    /// Do not ask
    #[arg(long)]
    auto_approve: bool,
}

impl Import {
    /// Of a machine that somebody agreed to already.
    pub fn unasked(lease: &LeaseId, id: &MachineId) -> Self {
        Self {
            address: Address::Lease(lease.clone()),
            id: id.clone(),
            auto_approve: true,
        }
    }

    pub fn run(self, global: &Global, console: &Console) -> Result<Exit, Failure> {
        let Address::Lease(lease) = self.address.clone() else {
            return Err(Failure::new(
                Exit::Usage,
                format!("{} is a {}, not a lease", self.address, self.address.kind()),
            )
            .hint("only machines are imported; what runs on them is made by apply"));
        };
        let project = Project::load(global)?;
        console.findings(&project.warnings, &project.files);
        session::runtime()?.block_on(async {
            let spec = declared(&project, &lease).await?;
            let clock = session::clock();
            let store = project.place.open(Mode::Read).await?;
            let state = store.read().await?.state;
            let sellers = Sellers {
                topology: Some(&project.topology),
                state: &state,
                place: &project.place,
                folder: &project.folder,
                clock: &clock,
            };
            let providers = sellers.providers()?;
            if let Some(lease) = recorded(&state, &self.id) {
                let error = stageline_core::state::SurgeryError::Known {
                    machine: self.id.clone(),
                    lease,
                };
                return Err(refused(error));
            }
            let (terms, machine, account) = self.find(&lease, &spec, &providers).await?;
            fits(&lease, &spec, &terms, &machine)?;
            let key = key(&machine)?;
            let made_for = made_for(&state, &lease, &key)?;
            let seller = providers.get(&terms.provider, &terms.provider_kind);
            let seller = seller.map_err(|cause| Failure::user(cause.message))?;
            let boots_free = !seller.traits().bills_booting;
            let receipt = LeaseReceipt {
                account,
                created_at: machine.created_at.unwrap_or_else(|| clock.now()),
                ..receipt(terms, &machine, key, clock.now())
            };
            let imported = Imported {
                lease: lease.clone(),
                spec,
                receipt,
                boots_free,
                made_for,
            };
            let draft = |state: &State, at: Timestamp| {
                let records = state.import(imported.clone(), at).map_err(refused)?;
                let notes = vec![format!(
                    "{lease} becomes machine {}, {} per hour; the next apply waits for its agent and puts on it what is \
                     declared",
                    machine.id, machine.price_per_hour
                )];
                Ok(Surgery { records, notes })
            };
            let operation = Operation {
                place: &project.place,
                command: "import",
                question: "Take this machine?",
                auto_approve: self.auto_approve,
            };
            operation.run(draft, console).await
        })
    }

    /// The machine, at one of the providers that the lease may be rented from.
    async fn find(
        &self,
        lease: &LeaseId,
        spec: &LeaseSpec,
        providers: &Providers,
    ) -> Result<(Terms, Machine, Option<Account>), Failure> {
        let mut blind = Vec::new();
        let mut asked: Vec<&str> = Vec::new();
        for terms in &spec.terms {
            if asked.contains(&terms.provider.as_str()) {
                continue;
            }
            asked.push(terms.provider.as_str());
            let provider: &Arc<dyn Provider> = providers
                .get(&terms.provider, &terms.provider_kind)
                .map_err(|cause| Failure::user(cause.message))?;
            match provider.describe(&self.id).await {
                Ok(Some(machine)) => {
                    let account = provider.account().await.map_err(|blind| {
                        Failure::new(Exit::Doubt, blind.to_string())
                            .hint("mend access to that account, then run this again")
                    })?;
                    return Ok((terms.clone(), machine, account));
                }
                Ok(None) => {}
                Err(error) => blind.push(error.to_string()),
            }
        }
        if let Some(why) = blind.first() {
            return Err(Failure::new(Exit::Doubt, why.clone()).hint(
                "mend access to that account; whether the machine is there cannot be told before",
            ));
        }
        Err(Failure::user(format!(
            "no provider of {lease} ({}) has a machine {}",
            asked.join(", "),
            self.id
        ))
        .hint("the id is the provider's own; `stageline leases` shows ids of machines that this state knew"))
    }
}

/// What the topology asks of the lease.
async fn declared(project: &Project, lease: &LeaseId) -> Result<LeaseSpec, Failure> {
    let fail = |faults| Failure::diagnostics(faults, project.files.clone());
    let models = model::look(&project.topology, &project.folder)
        .await
        .map_err(fail)?;
    let desired = plan::expand(&project.topology, &models).map_err(fail)?;
    match desired.specs.get(&Address::Lease(lease.clone())) {
        Some(Spec::Lease(spec)) => Ok(LeaseSpec::clone(spec)),
        Some(_) | None => {
            let known: Vec<String> = desired
                .specs
                .keys()
                .filter_map(Address::lease)
                .map(ToString::to_string)
                .collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            Err(Failure::user(format!("{lease} is not declared"))
                .hint(suggestion(&lease.to_string(), &known)))
        }
    }
}

fn recorded(state: &State, machine: &MachineId) -> Option<LeaseId> {
    let mut leases = state.existing().filter_map(|(address, _)| address.lease());
    let known = leases.find(|lease| {
        let held = state.lease(lease);
        held.is_some_and(|held| held.machine == *machine)
    });
    known.cloned()
}

fn fits(
    lease: &LeaseId,
    spec: &LeaseSpec,
    terms: &Terms,
    machine: &Machine,
) -> Result<(), Failure> {
    let over = match &machine.status {
        MachineStatus::Dead(why) | MachineStatus::Interrupted(why) => Some(why.clone()),
        MachineStatus::Ending => Some("it is being ended".to_owned()),
        MachineStatus::Pending(_) | MachineStatus::Running => None,
    };
    if let Some(why) = over {
        return Err(Failure::user(format!(
            "machine {} is of no use any more: {why}",
            machine.id
        ))
        .hint("`stageline apply` rents another one"));
    }
    let ours = spec
        .terms
        .iter()
        .filter(|other| other.provider == terms.provider);
    let facts = Some(&machine.facts);
    let misfits = ours.map(|terms| unfit(terms, spec.memory, facts, machine.price_per_hour));
    let fewest = misfits.min_by_key(Vec::len).unwrap_or_default();
    if fewest.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Guard,
        format!(
            "machine {} is not what {lease} asks for: {}",
            machine.id,
            fewest.join("; ")
        ),
    )
    .hint(
        "import it into a lease that it fits, or change `where` or the price limit of that lease",
    ))
}

fn key(machine: &Machine) -> Result<RequestKey, Failure> {
    machine.request_key.clone().ok_or_else(|| {
        Failure::user(format!(
            "machine {} carries no mark of stageline: no agent on it would obey this state",
            machine.id
        ))
        .hint("let apply rent a machine; end this one in the provider's own console")
    })
}

/// The lease that a machine's name was made for: its keys derive from it.
fn made_for(state: &State, lease: &LeaseId, key: &RequestKey) -> Result<Option<LeaseId>, Failure> {
    let lineage = state.genesis.as_ref().map(|genesis| genesis.lineage);
    let foreign = || {
        Failure::user(format!(
            "{key} was made by another state, or for a lease that this one never had"
        ))
        .hint("use the state that it was made from: its agent obeys that one alone")
    };
    let Some(lineage) = lineage else {
        return Err(foreign());
    };
    let own = |lease: &LeaseId| {
        let address = Address::Lease(lease.clone());
        key.as_str()
            .starts_with(&RequestKey::prefix(&lineage, &address))
    };
    if own(lease) {
        return Ok(None);
    }
    let mut known = state.generations.keys().filter_map(Address::lease);
    known
        .find(|lease| own(lease))
        .map(|lease| Some(lease.clone()))
        .ok_or_else(foreign)
}

fn receipt(terms: Terms, machine: &Machine, key: RequestKey, now: Timestamp) -> LeaseReceipt {
    LeaseReceipt {
        provider: terms.provider,
        provider_kind: terms.provider_kind,
        offer: terms.offer,
        quote: QuoteId("imported".to_owned()),
        machine: machine.id.clone(),
        request_key: key,
        account: None,
        price_per_hour: machine.price_per_hour,
        created_at: now,
        place: machine.facts.place(),
        ready: None,
    }
}
