//! A provider for tests: an account in memory, on a clock of its own, with everything that goes wrong in real ones.
//!
//! The [`World`] holds any number of accounts and their machines and outlives the tool; [`SimProvider`] is the adapter of
//! one account and `machine::sim` are our hands on the machines. What goes wrong is in each account's [`FaultTable`].
//! Every call passes a [`Hook`], where a test may let the tool die. It models what an adapter reports, not HTTP.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each place looks for the few faults that concern it"
)]

mod fault;
mod hook;
#[cfg(test)]
mod tests;
mod world;

use std::time::Duration;

use async_trait::async_trait;
use secrecy::ExposeSecret as _;
use stageline_core::id::{EndpointKey, MachineId, Name, RequestKey};
use stageline_core::label::Label;
use stageline_core::offer::{Quote, QuoteId, Requirement, Supply};
use stageline_core::resource::{Account, Cause, Contact, FailureClass, Outcome};
use stageline_core::unit::{Bytes, MicroDollars};

pub use fault::{Fault, FaultTable, Rule, Verb, When};
pub use hook::{CallPoint, CrashPoint, Hook, Side};
pub use world::{AccountSpec, Call, Shape, SimMachine, State, World};

use crate::machine::sim::AgentState;
use crate::provider::{Blind, CreateRequest, Machine, MachineStatus, Provider, Released, Traits};

/// The adapter of one simulated account.
#[derive(Clone)]
pub struct SimProvider {
    world: World,
    name: Name,
    traits: Traits,
    tells_ends: bool,
}

impl SimProvider {
    pub(crate) fn new(world: World, name: Name, spec: &AccountSpec) -> Self {
        Self {
            world,
            name,
            traits: spec.traits.clone(),
            tells_ends: spec.tells_ends.is_some(),
        }
    }

    /// The world that it is in.
    pub fn world(&self) -> &World {
        &self.world
    }

    async fn begin(&self, verb: Verb, subject: &str) -> world::Begun {
        let who = self.name.to_string();
        self.world.begin(&self.name, who, verb, subject).await
    }

    /// What a read that meets these faults cannot see, if it cannot.
    fn blind(&self, faults: &[Fault]) -> Option<Blind> {
        let (class, message, retry_after) = faults.iter().find_map(|fault| match fault {
            Fault::RateLimited(wait) => Some((FailureClass::Rate, "too many requests", *wait)),
            Fault::AuthRevoked => Some((FailureClass::Auth, "the key does not work", None)),
            Fault::ListSuccessFalse => Some((
                FailureClass::Unknown,
                "the answer says `success: false`",
                None,
            )),
            Fault::ListPageLost => Some((
                FailureClass::Unknown,
                "a page of the listing is missing",
                None,
            )),
            Fault::ListTruncated => {
                Some((FailureClass::Unknown, "the answer is cut or no JSON", None))
            }
            _ => None,
        })?;
        Some(Blind {
            provider: self.name.clone(),
            cause: Cause::new(class, message),
            retry_after,
        })
    }

    /// What the account shows of one machine, if it shows it.
    fn show(&self, sim: &SimMachine, now: Duration, faults: &[Fault]) -> Option<Machine> {
        let request_key: Option<RequestKey> = sim.label.parse().ok();
        let hidden = sim.address_missing || faults.contains(&Fault::AddressMissing);
        let contact = Contact {
            direct: if hidden {
                vec![]
            } else {
                vec![address_of(&sim.id)]
            },
            relay: None,
        };
        let off = jiff::SignedDuration::from_secs(sim.clock_off);
        let by = self.clock();
        let date = |at: Duration| by.at(at)?.checked_add(off).ok();
        Some(Machine {
            id: sim.id.clone(),
            request_key,
            name: Label::new(&sim.label),
            status: sim.status(now)?,
            price_per_hour: sim.price(now),
            facts: sim.claimed.clone(),
            contact,
            created_at: date(sim.made_at),
            ended_at: None,
            told_at: date(now).filter(|_| self.tells_ends),
            away_price: None,
        })
    }

    /// The account's clock. One that tells ends has its own; else it is set whenever ours is.
    fn clock(&self) -> world::Dial {
        match self.tells_ends {
            true => self.world.dial,
            false => world::Dial::of(self.world.clock.as_ref()),
        }
    }

    /// A machine that is over, as the account's history has it, which has no lag.
    fn show_over(&self, sim: &SimMachine, now: Duration) -> Option<Machine> {
        let end = sim.ends_at.filter(|end| *end <= now)?;
        let before = SimMachine {
            ends_at: None,
            ghost_until: None,
            ..sim.clone()
        };
        let shown = self.show(&before, now.min(end), &[])?;
        let off = jiff::SignedDuration::from_secs(sim.clock_off);
        Some(Machine {
            status: MachineStatus::Dead("it has ended".to_owned()),
            ended_at: self.clock().at(end)?.checked_add(off).ok(),
            ..shown
        })
    }

    /// What is listed, and what is over and still told of.
    fn dates(&self, faults: &[Fault]) -> Result<Vec<Machine>, Blind> {
        let mut all = self.listing("", faults)?;
        let now = self.world.clock.boottime();
        let state = self.world.lock();
        let keeps = state.accounts[&self.name].tells_ends.unwrap_or_default();
        let own = state.machines.values();
        let own = own.filter(|sim| sim.account == self.name && sim.known_from <= now);
        let over = own.filter(|sim| sim.ends_at.is_some_and(|end| now < end + keeps));
        if !faults.contains(&Fault::OtherAccount) {
            all.extend(over.filter_map(|sim| self.show_over(sim, now)));
        }
        Ok(all)
    }

    fn listing(&self, prefix: &str, faults: &[Fault]) -> Result<Vec<Machine>, Blind> {
        if let Some(blind) = self.blind(faults) {
            return Err(blind);
        }
        if faults.contains(&Fault::OtherAccount) {
            return Ok(vec![]);
        }
        let now = self.world.clock.boottime();
        let state = self.world.lock();
        let first = "-".parse().expect("a printable id");
        let from = (self.name.clone(), prefix.to_owned(), first);
        let labelled = state
            .by_label
            .range(from..)
            .take_while(|(name, label, _)| name == &self.name && label.starts_with(prefix));
        let shown = labelled
            .filter_map(|(_, _, id)| state.machines.get(id))
            .filter(|sim| sim.listed_from <= now)
            .filter_map(|sim| self.show(sim, now, faults))
            .filter(|machine| prefix.is_empty() || machine.request_key.is_some());
        Ok(shown.collect())
    }

    /// Why a create that meets these faults, or finds nothing to take, makes nothing.
    fn refusal(&self, quote: &Quote, faults: &[Fault]) -> Option<Cause> {
        let gone = || Cause::new(FailureClass::OfferGone, "somebody else took that offer");
        let none_left = || Cause::new(FailureClass::Capacity, "no capacity left for that offer");
        let auth = || Cause::new(FailureClass::Auth, "the key does not work");
        for fault in faults {
            match fault {
                Fault::RateLimited(_) => {
                    return Some(Cause::new(FailureClass::Rate, "too many requests"));
                }
                Fault::Refused(class) => {
                    let name = serde_json::to_string(class).unwrap_or_default();
                    let message = format!("the account refuses: {}", name.trim_matches('"'));
                    return Some(Cause::new(*class, message));
                }
                Fault::AuthRevoked | Fault::OtherAccount => return Some(auth()),
                Fault::OfferGone => return Some(gone()),
                Fault::CapacityGone => return Some(none_left()),
                _ => {}
            }
        }
        let now = self.world.clock.boottime();
        let state = self.world.lock();
        let mut shapes = state.accounts[&self.name].shapes.iter();
        match shapes.find(|shape| shape.id == quote.id) {
            None => Some(gone()),
            Some(shape) if state.quote(&self.name, shape, now).is_some() => None,
            Some(shape) if shape.supply == Supply::One => Some(gone()),
            Some(_) => Some(none_left()),
        }
    }

    /// Makes one machine, as the faults would have it.
    fn make(&self, request: &CreateRequest, faults: &[Fault]) -> MachineId {
        let now = self.world.clock.boottime();
        let mut state = self.world.lock();
        let id = state.fresh_id();
        let shapes = &state.accounts[&self.name].shapes;
        let shape = shapes.iter().find(|shape| shape.id == request.quote.id);
        let shape = shape.expect("refused before when there is none").clone();
        let agent_key = iroh::SecretKey::from_bytes(request.boot.agent_key.expose_secret());
        let made_at = now;
        let mut machine = SimMachine {
            id: id.clone(),
            account: self.name.clone(),
            label: request.request_key.to_string(),
            lease: Some(request.boot.lease.clone()),
            endpoint: Some(EndpointKey(*agent_key.public().as_bytes())),
            quote: shape.id,
            claimed: shape.facts.clone(),
            measured: shape.facts,
            made_at,
            listed_from: made_at + self.traits.visibility_delay,
            known_from: made_at,
            ready_at: Some(made_at + shape.boot),
            dies: None,
            offline: None,
            ends_at: None,
            ghost_until: None,
            prices: vec![(made_at, shape.price_per_hour)],
            mute: false,
            address_missing: false,
            clock_off: 0,
            agent: AgentState {
                limits: request.boot.limits,
                ..AgentState::default()
            },
        };
        // Late commit first: the other dates count from when it appears.
        for fault in faults {
            if let Fault::CreateLateCommit(after) = fault {
                delay(&mut machine, *after);
            }
        }
        for fault in faults {
            mark(&mut machine, fault);
        }
        state.insert(machine);
        id
    }

    fn describe_now(&self, id: &MachineId, faults: &[Fault]) -> Option<Machine> {
        let now = self.world.clock.boottime();
        let state = self.world.lock();
        let sim = state.machines.get(id)?;
        if sim.account != self.name || sim.known_from > now {
            return None;
        }
        self.show(sim, now, faults)
    }

    fn end_machine(&self, id: &MachineId, faults: &[Fault]) -> Result<Released, Cause> {
        let now = self.world.clock.boottime();
        let mut state = self.world.lock();
        let known = state.machines.get_mut(id).filter(|sim| {
            sim.account == self.name && sim.known_from <= now && sim.status(now).is_some()
        });
        let Some(sim) = known.filter(|_| !faults.contains(&Fault::OtherAccount)) else {
            return Ok(Released::Unknown);
        };
        let failed = || Err(Cause::new(FailureClass::Unknown, "the server answered 500"));
        let mut ends_at = now;
        for fault in faults {
            match fault {
                Fault::TerminateNoop => return Ok(Released::Accepted),
                Fault::TerminateErrorNoCommit => return failed(),
                Fault::RateLimited(_) => {
                    return Err(Cause::new(FailureClass::Rate, "too many requests"));
                }
                Fault::AuthRevoked | Fault::Refused(_) => {
                    return Err(Cause::new(FailureClass::Auth, "the key does not work"));
                }
                Fault::DeleteLate(span) => ends_at = now + *span,
                // Once: who ends it again does not keep it in the listing.
                Fault::ListGhost(span) if sim.ends_at.is_none() => {
                    sim.ghost_until = Some(now + *span);
                }
                _ => {}
            }
        }
        let earlier = sim.ends_at.is_some_and(|end| end <= ends_at);
        if !earlier {
            sim.ends_at = Some(ends_at);
        }
        if faults.contains(&Fault::TerminateErrorAfterCommit) {
            return failed();
        }
        Ok(Released::Accepted)
    }

    /// What a create that had its effect answers.
    async fn answer(&self, made: Vec<MachineId>, faults: &[Fault]) -> Outcome<Machine> {
        let doubt = |why: &str| Outcome::InDoubt(Cause::new(FailureClass::Unknown, why));
        for fault in faults {
            match fault {
                Fault::CreateErrorAfterCommit | Fault::CreateLateCommit(_) => {
                    return doubt("the server answered 500");
                }
                Fault::CreateCut => return doubt("the connection broke after half the answer"),
                Fault::CreateTimeoutAfterCommit => {
                    self.world.clock.sleep(self.traits.request_timeout).await;
                    return doubt("no answer in time");
                }
                Fault::CreateRefusedWithId => {
                    return doubt("the answer says `success: false` and names a machine");
                }
                Fault::CreateWrongCount(_) => return doubt("the answer does not name one machine"),
                _ => {}
            }
        }
        let machine = made.first().and_then(|id| self.describe_now(id, faults));
        // By id it may lag, but the answer to a create has it.
        let machine = machine.or_else(|| {
            let now = self.world.clock.boottime();
            let state = self.world.lock();
            let sim = state.machines.get(made.first()?)?;
            self.show(sim, now, faults)
        });
        machine.map_or_else(|| doubt("the answer names no machine"), Outcome::Done)
    }
}

/// A simulated account needs no key.
fn account(id: &str) -> Account {
    Account {
        id: id.to_owned(),
        api_key: None,
        key_fingerprint: String::new(),
        url: None,
        programs: None,
        ssh_keys: Vec::new(),
    }
}

/// An address that tells machines apart and leads nowhere.
fn address_of(id: &MachineId) -> std::net::SocketAddr {
    let number: u32 = id
        .as_str()
        .rsplit('-')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let [_, a, b, c] = number.to_be_bytes();
    (std::net::Ipv4Addr::new(10, a, b, c), 4000).into()
}

fn delay(machine: &mut SimMachine, after: Duration) {
    machine.made_at += after;
    machine.listed_from += after;
    machine.known_from += after;
    machine.ready_at = machine.ready_at.map(|at| at + after);
    for (from, _) in &mut machine.prices {
        *from += after;
    }
}

/// Writes what a fault of a create does to the machine into its dates and facts.
fn mark(machine: &mut SimMachine, fault: &Fault) {
    let made_at = machine.made_at;
    match fault {
        Fault::CreateRefusedWithId => {
            machine.ready_at = None;
            machine.dies = Some((made_at, "stopped: the bid was rejected".to_owned()));
        }
        Fault::ListLag(span) => machine.listed_from = made_at + *span,
        Fault::GetLag(span) => machine.known_from = made_at + *span,
        Fault::BootNever => machine.ready_at = None,
        Fault::BootSlow(span) => machine.ready_at = Some(made_at + *span),
        Fault::BootDies(after, words) => machine.dies = Some((made_at + *after, words.clone())),
        Fault::BootWrongFacts(facts) => machine.measured = (**facts).clone(),
        Fault::AgentMute => machine.mute = true,
        Fault::AddressMissing => machine.address_missing = true,
        Fault::PricePerMille(per_mille) => {
            for (_, price) in &mut machine.prices {
                *price = MicroDollars(price.times(u64::from(*per_mille)).0 / 1000);
            }
        }
        Fault::PriceLater(after, price) => machine.prices.push((made_at + *after, *price)),
        Fault::Preempt(after) => {
            machine.dies = Some((made_at + *after, "stopped: outbid".to_owned()));
        }
        Fault::HostOffline(after, span) => {
            machine.offline = Some((made_at + *after, made_at + *after + *span));
        }
        Fault::ServerClockOff(seconds) => machine.clock_off = *seconds,
        Fault::CreateOtherMachine(facts) => {
            machine.claimed = (**facts).clone();
            machine.measured = (**facts).clone();
        }
        _ => {}
    }
}

#[async_trait]
impl Provider for SimProvider {
    fn kind(&self) -> &'static str {
        "sim"
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    async fn search(&self, requirement: &Requirement, _: Bytes) -> Result<Vec<Quote>, Blind> {
        let begun = self.begin(Verb::Search, "").await;
        let answer = match self.blind(&begun.faults) {
            Some(blind) => Err(blind),
            None => {
                let all = begun.faults.contains(&Fault::OfferBreaksFilter);
                let now = self.world.clock.boottime();
                let state = self.world.lock();
                let shapes = state.accounts[&self.name].shapes.iter();
                let fit = shapes.filter(|s| all || requirement.misfits(&s.facts).is_empty());
                Ok(fit
                    .filter_map(|shape| state.shown(&self.name, shape, now))
                    .collect())
            }
        };
        self.world.end(begun, answer).await
    }

    async fn quote(&self, id: &QuoteId, _: Bytes) -> Result<Option<Quote>, Blind> {
        let begun = self.begin(Verb::Quote, &id.0).await;
        let answer = match self.blind(&begun.faults) {
            Some(blind) => Err(blind),
            None if begun.faults.contains(&Fault::OfferGone) => Ok(None),
            None => {
                let now = self.world.clock.boottime();
                let state = self.world.lock();
                let mut shapes = state.accounts[&self.name].shapes.iter();
                let shape = shapes.find(|shape| &shape.id == id);
                Ok(shape.and_then(|shape| state.quote(&self.name, shape, now)))
            }
        };
        self.world.end(begun, answer).await
    }

    async fn account(&self) -> Result<Option<Account>, Blind> {
        // Known to an adapter before it is asked: no call that a test could count or stop at.
        let faults = self.world.faults_now(&self.name, Verb::Account);
        match self.blind(&faults) {
            Some(blind) => Err(blind),
            None if faults.contains(&Fault::OtherAccount) => Ok(Some(account("somebody-else"))),
            None => Ok(Some(account(self.name.as_str()))),
        }
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        let begun = self.begin(Verb::Create, request.request_key.as_str()).await;
        if let Some(cause) = self.refusal(&request.quote, &begun.faults) {
            return self.world.end(begun, Outcome::Refused(cause)).await;
        }
        if begun.faults.contains(&Fault::CreateErrorNoCommit) {
            let cause = Cause::new(FailureClass::Unknown, "the server answered 500");
            return self.world.end(begun, Outcome::InDoubt(cause)).await;
        }
        let count = begun.faults.iter().find_map(|fault| match fault {
            Fault::CreateWrongCount(count) => Some(*count),
            _ => None,
        });
        let made = (0..count.unwrap_or(1))
            .map(|_| self.make(&request, &begun.faults))
            .collect();
        let answer = self.answer(made, &begun.faults).await;
        self.world.end(begun, answer).await
    }

    async fn find(&self, key_prefix: &str) -> Result<Vec<Machine>, Blind> {
        let begun = self.begin(Verb::Find, key_prefix).await;
        let answer = self.listing(key_prefix, &begun.faults);
        self.world.end(begun, answer).await
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        let begun = self.begin(Verb::List, "").await;
        let answer = self.listing("", &begun.faults);
        self.world.end(begun, answer).await
    }

    async fn dated(&self) -> Result<Option<Vec<Machine>>, Blind> {
        if !self.tells_ends {
            return Ok(None);
        }
        let begun = self.begin(Verb::List, "").await;
        let answer = self.dates(&begun.faults).map(Some);
        self.world.end(begun, answer).await
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let begun = self.begin(Verb::Describe, id.as_str()).await;
        let answer = match self.blind(&begun.faults) {
            Some(blind) => Err(blind),
            None if begun.faults.contains(&Fault::OtherAccount) => Ok(None),
            None => Ok(self.describe_now(id, &begun.faults)),
        };
        self.world.end(begun, answer).await
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        let begun = self.begin(Verb::Release, id.as_str()).await;
        let answer = self.end_machine(id, &begun.faults);
        self.world.end(begun, answer).await
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        let begun = self.begin(Verb::Logs, id.as_str()).await;
        let known = self.describe_now(id, &begun.faults).is_some();
        let answer = if known {
            let text = format!("{id}: simulated output\n").into_bytes();
            Ok(text[text.len().saturating_sub(tail)..].to_vec())
        } else {
            Err(Cause::new(
                FailureClass::Unknown,
                format!("there is no machine {id}"),
            ))
        };
        self.world.end(begun, answer).await
    }
}
