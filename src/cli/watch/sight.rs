//! What a watcher sees: the topology's caps, the accounts that machines are on, and what agents say.
//!
//! An account that does not answer hides machines that cost money, so that it is told at once and not when the first release fails.
//! What can be judged without an agent is judged without one: without an identity idle times are unknown, ages and money are not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stageline_core::id::{LeaseId, Name};
use stageline_core::resource::{Cause, Contact, FailureClass};
use stageline_core::state::State;
use stageline_core::topology::{AgentSource, Limits, Topology};
use stageline_core::unit::Millis;

use super::super::project::Project;
use super::super::{Failure, relay, session};
use super::Watcher;
use super::taken::ASKED_EVERY;
use crate::machine::client::AgentClient;
use crate::observe;
use crate::provider::{Provider, same_account};
use crate::watch::{self, Heard};

/// How long an account may take to show itself: what is to be ended waits meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A provider's table, and its kind.
type Seller = (Name, String);

/// What of it cannot be seen.
#[derive(Debug, Default)]
pub(super) struct Sight {
    /// When accounts were asked last, and which were in question.
    asked: Option<(Duration, BTreeMap<Seller, Need>)>,
    blind: BTreeMap<Seller, Cause>,
    /// Agents cannot be asked, for want of what is here and not there.
    deaf: bool,
    /// Where agents that fell silent are reached by now, as their providers tell.
    pub(super) moved: BTreeMap<LeaseId, Contact>,
}

/// When an account has to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// Unless its machines end themselves.
    Watched,
    /// In any case.
    Always,
}

impl Sight {
    /// Nothing that would have to be ended is hidden.
    pub(super) fn is_whole(&self) -> bool {
        self.blind.is_empty() && !self.deaf
    }

    /// Whether a lease may have machines only on accounts that do not let this watcher in.
    pub(super) fn is_locked_out(&self, state: &State, lease: &LeaseId) -> bool {
        let out = |seller: &Seller| {
            let cause = self.blind.get(seller);
            cause.is_some_and(|cause| cause.class == FailureClass::Auth)
        };
        let sellers = sellers_of(state, lease);
        !sellers.is_empty() && sellers.iter().all(out)
    }
}

impl Watcher<'_> {
    /// Caps of the topology as it is now; as it was, while it cannot be read.
    pub(super) fn limits(&mut self) -> Option<Limits> {
        match Project::load(self.global) {
            Ok(project) => {
                self.said.remove("topology");
                self.topology = Some(project.topology);
            }
            Err(_) if self.topology.is_none() => self.once(
                "topology",
                "the topology cannot be read here, so limits.max_spend is not watched; limits of leases are",
            ),
            Err(_) => self.once(
                "topology",
                "the topology cannot be read any more; its limits of before are kept",
            ),
        }
        let topology = self.topology.as_ref()?;
        (topology.name == self.place.name).then(|| topology.limits.clone())
    }

    /// Asks every account that holds, or will hold, what nobody else ends; at once where one is new, else at one look in several.
    pub(super) async fn see(&mut self, state: &State) -> Result<(), Failure> {
        let now = self.clock.boottime();
        let topology = self.topology.as_ref();
        let concerned = concerned(state, topology.filter(|it| it.name == self.place.name));
        let asked = self.sight.asked.as_ref();
        if asked.is_some_and(|(at, before)| {
            now < *at + self.every * ASKED_EVERY && *before == concerned
        }) {
            return Ok(());
        }
        let providers = self.sellers(state).providers()?;
        let answers = concerned.iter().map(|(seller, need)| {
            let (providers, clock) = (&providers, &self.clock);
            async move {
                let (name, kind) = seller;
                let answer = match providers.get(name, kind) {
                    Ok(provider) if is_needless(provider.as_ref(), *need) => Ok(()),
                    Ok(provider) => tokio::select! {
                        biased;
                        answer = answers(state, seller, provider.as_ref()) => answer,
                        () = clock.sleep(ANSWER_WITHIN) => Err(no_answer()),
                    },
                    Err(cause) => Err(cause),
                };
                Some((seller.clone(), answer.err()?))
            }
        });
        let blind = futures::future::join_all(answers).await;
        let blind: BTreeMap<Seller, Cause> = blind.into_iter().flatten().collect();
        self.tell_blind(state, &concerned, &blind);
        self.sight.blind = blind;
        self.sight.asked = Some((now, concerned));
        if self.hands.is_none() {
            let ears = self.ears(state).map(drop);
            self.tell_deaf(ears);
        }
        Ok(())
    }

    fn tell_blind(
        &mut self,
        state: &State,
        concerned: &BTreeMap<Seller, Need>,
        blind: &BTreeMap<Seller, Cause>,
    ) {
        let before: Vec<Seller> = self.sight.blind.keys().cloned().collect();
        for seller in before.iter().filter(|seller| !blind.contains_key(*seller)) {
            self.said.remove(&about(seller));
            if concerned.contains_key(seller) {
                self.tell(&format!("provider `{}` is seen again", seller.0));
            }
        }
        for (seller, cause) in blind {
            let there = watch::guarded(state).map(|(lease, _)| lease);
            let there = there.filter(|lease| sellers_of(state, lease).contains(seller));
            let there: Vec<String> = there.map(ToString::to_string).collect();
            let left = match there.as_slice() {
                [] => "what is rented there".to_owned(),
                leases => leases.join(", "),
            };
            let hint = match (cause.class == FailureClass::Auth, &cause.hint) {
                (true, None) => {
                    "a watcher reads the same keys as `apply`: from its own environment, where the topology names a variable"
                }
                (_, Some(hint)) => hint,
                (false, None) => "it is asked again and again",
            };
            let text = format!(
                "provider `{}` cannot be seen: {}; nobody ends {left} meanwhile, and no plan counts on this watcher (hint: {hint})",
                seller.0, cause.message
            );
            self.once(&about(seller), &text);
        }
    }

    fn tell_deaf(&mut self, ears: Result<(), Failure>) {
        self.sight.deaf = ears.is_err();
        match ears {
            Ok(()) => drop(self.said.remove("deaf")),
            Err(failure) => {
                let hint = failure.hint.map(|hint| format!(" (hint: {hint})"));
                let text = format!(
                    "no agent can be asked: {}; idle times are not counted meanwhile, lifetimes and limits.max_spend are, \
                     and no plan counts on this watcher{}",
                    failure.message,
                    hint.unwrap_or_default()
                );
                self.once("deaf", &text);
            }
        }
    }

    /// What agents are asked with; none before there is an identity. Without the right one every machine would look idle.
    fn ears(&self, state: &State) -> Result<Option<std::sync::Arc<AgentClient>>, Failure> {
        let Some(genesis) = &state.genesis else {
            return Ok(None);
        };
        let keys = session::keys_of(&self.store, genesis, None)?;
        let relays = relay::relays(self.topology.as_ref(), state, &self.folder)?;
        Ok(Some(session::hands(&keys, relays, &self.place)))
    }

    /// What each agent says; none when none can be asked from here.
    pub(super) async fn hear(&mut self, state: &State) -> Option<BTreeMap<LeaseId, Heard>> {
        let targets: Vec<_> = watch::guarded(state)
            .filter_map(|(lease, _)| observe::target_by(state, lease, self.sight.moved.get(lease)))
            .collect();
        if targets.is_empty() {
            return Some(BTreeMap::new());
        }
        if self.hands.is_none() {
            match self.ears(state) {
                Ok(ears) => self.hands = ears,
                Err(failure) => {
                    self.tell_deaf(Err(failure));
                    return None;
                }
            }
        }
        let Some(hands) = self.hands.clone() else {
            return Some(BTreeMap::new());
        };
        self.tell_deaf(Ok(()));
        if let Err(refusal) = hands.online().await {
            let text = format!(
                "{}; idle times are not counted meanwhile, lifetimes are",
                refusal.message
            );
            self.once("relay", &text);
            self.let_go().await;
            return None;
        }
        let answers = observe::statuses(targets, &*hands, self.clock.as_ref()).await;
        self.said.remove("relay");
        if answers.values().all(Result::is_err) {
            // Perhaps it is this side: the next look begins with hands of its own.
            self.let_go().await;
        }
        let heard = answers.into_iter().map(|(lease, answer)| {
            let heard = match answer {
                Ok(status) => status.idle.map_or(Heard::Untold, Heard::Idle),
                Err(_) => Heard::Silent,
            };
            (lease, heard)
        });
        Some(heard.collect())
    }
}

fn about(seller: &Seller) -> String {
    format!("blind {} {}", seller.0, seller.1)
}

/// Where a lease has machines, or may have some.
fn sellers_of(state: &State, lease: &LeaseId) -> BTreeSet<Seller> {
    let held = state.lease(lease);
    let held = held.map(|held| (held.provider.clone(), held.provider_kind.clone()));
    let address = stageline_core::id::Address::Lease(lease.clone());
    let recorded = state.resources.get(&address);
    let open = recorded
        .into_iter()
        .flat_map(|recorded| recorded.attempts.values());
    let open = open.map(|open| {
        let launch = &open.launch;
        (launch.provider.clone(), launch.provider_kind.clone())
    });
    held.into_iter().chain(open).collect()
}

/// Every account that a watcher has to see: of what is recorded, and of what is declared and would be left to it, also where the
/// file says that nobody need be there. The cap of all that is spent is kept by nobody else.
fn concerned(state: &State, topology: Option<&Topology>) -> BTreeMap<Seller, Need> {
    let recorded = watch::guarded(state).flat_map(|(lease, _)| sellers_of(state, lease));
    let mut concerned: BTreeMap<Seller, Need> =
        recorded.map(|seller| (seller, Need::Always)).collect();
    let Some(topology) = topology else {
        return concerned;
    };
    let wanted = topology.leases.values();
    for lease in wanted.filter(|lease| !lease.protect) {
        for offer in lease
            .offers
            .iter()
            .filter_map(|name| topology.offers.get(name))
        {
            let Some(provider) = topology.providers.get(&offer.provider) else {
                continue;
            };
            let pushed = lease.agent.as_ref().or(offer.agent.as_ref()) == Some(&AgentSource::Ssh);
            let need = match pushed || topology.limits.max_spend.is_some() {
                true => Need::Always,
                false => Need::Watched,
            };
            let seller = (offer.provider.clone(), provider.kind.as_str().to_owned());
            let known = concerned.entry(seller).or_insert(need);
            *known = need.max(*known);
        }
    }
    concerned
}

/// What is wrong with an account that takes too long.
fn no_answer() -> Cause {
    let within = Millis(u64::try_from(ANSWER_WITHIN.as_millis()).unwrap_or(u64::MAX));
    let message = format!("it does not answer within {within}");
    Cause::new(FailureClass::Unknown, message)
}

/// Nobody has to end its machines, or they end themselves.
fn is_needless(provider: &dyn Provider, need: Need) -> bool {
    let traits = provider.traits();
    traits.free || (need == Need::Watched && traits.self_destroy)
}

/// Whether an account lists its machines, and is the one that what is recorded was made on.
async fn answers(state: &State, seller: &Seller, provider: &dyn Provider) -> Result<(), Cause> {
    let account = provider.account().await.map_err(|blind| blind.cause)?;
    let leases = watch::guarded(state).filter_map(|(lease, _)| state.lease(lease));
    let here =
        leases.filter(|held| (&held.provider, &held.provider_kind) == (&seller.0, &seller.1));
    for made_on in here.filter_map(|held| held.account.as_ref()) {
        same_account(&seller.0, made_on, account.as_ref())?;
    }
    provider.view().await.map_err(|blind| blind.cause)?;
    Ok(())
}
