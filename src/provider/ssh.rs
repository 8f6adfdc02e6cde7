//! Machines of one's own: each a host that an SSH server lets us in to, taken by one lease at a time.
//!
//! Who has a host is written on the host itself, at once or not at all, so that it outlives whoever took it and others see it. What
//! always holds: a machine is there while its mark or one of its processes is; it is given back by ending these, and by looking again.
//! A host that cannot be asked is missing in a view, and is never free; what cannot be on it does not wait for it. A host is sent nothing secret before its key is on record. It
//! refuses to touch a mark that is not of the machine it is asked about.

mod bring;
mod hosts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stageline_core::id::{MachineId, Name, RequestKey};
use stageline_core::label::Label;
use stageline_core::offer::{DiskRange, Facts, NOTE, Quote, QuoteId, Requirement, Supply};
use stageline_core::resource::{Account, Cause, Contact, FailureClass, Outcome};
use stageline_core::topology::{AgentWay, Claims, OFFER_FIELD};
use stageline_core::unit::{Bytes, MicroDollars, Timestamp};

pub(in crate::provider) use self::bring::{Bound, Pushes};
use self::hosts::{Desk, machine_of, place_and_key, quote_of};
pub use self::hosts::{OwnHost, recorded_host};
use crate::ambient::{SharedClock, crash_point};
use crate::provider::{
    AGENT_PHASE, Blind, Bring, Brought, CreateRequest, GONE_WITHIN, Machine, MachineStatus,
    PhaseLimit, Provider, Released, Traits, Unseen, View,
};
use crate::ssh::{Claimed, Ended, Login, Mark, Means, Place, Seen, SshError};

/// How long a claim may take, with the way there.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(25);

/// A command that was sent before the connection broke has run by then.
const LATE: Duration = Duration::from_secs(20);

/// A program of many megabytes over a slow line.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// An agent that was started answers within this, unless nothing gets through to it.
const AGENT_MAX: Duration = Duration::from_secs(90);

/// The longest that anything else on its way there may take, such as an upload.
const PHASE_MAX: Duration = Duration::from_secs(15 * 60);

/// A host that does not answer now, or shows another key, does so for longer than anybody wants to look on.
const REFUSED_AFTER: Duration = Duration::from_secs(10);

/// How old a look at a host may be where a machine is only waited for.
const LOOK_AGE: Duration = Duration::from_millis(700);

/// What a provider of one's own hosts is made from.
#[derive(Clone)]
pub struct SshSettings {
    /// The `[provider.NAME]`.
    pub name: Name,
    /// The hosts, those that only a state names among them.
    pub hosts: Vec<OwnHost>,
    /// What its offers claim; none where only recorded machines are looked after.
    pub offers: BTreeMap<Name, Claims>,
    /// The files of keys as the topology names them: recorded.
    pub ssh_keys: Vec<PathBuf>,
    /// Programs that could be pushed, and by what else one logs in.
    pub means: Means,
    /// The relay that agents keep a connection to.
    pub relay: Option<String>,
    /// Who takes a host, for people: somebody at a computer.
    pub who: String,
    /// For marks.
    pub clock: SharedClock,
}

/// Takes hosts of one's own.
pub struct SshProvider {
    settings: SshSettings,
    traits: Traits,
    desks: Vec<Arc<Desk>>,
    pushes: Pushes,
}

impl SshProvider {
    /// No host is asked before something is asked of it.
    pub fn new(settings: SshSettings) -> Self {
        let desks: Vec<Arc<Desk>> = settings
            .hosts
            .iter()
            .map(|host| Arc::new(Desk::new(host.clone())))
            .collect();
        let traits = Traits {
            finds_by_key: true,
            visibility_delay: Duration::ZERO,
            late_commit_window: LATE,
            request_timeout: REQUEST_TIMEOUT,
            acquire_timeout: ACQUIRE_TIMEOUT,
            refused_after: REFUSED_AFTER,
            gone_within: GONE_WITHIN,
            bills_booting: true,
            bills_while_stopped: false,
            restarts_empty: false,
            self_destroy: false,
            offers_are_one: false,
            bills_traffic: false,
            free: settings
                .hosts
                .iter()
                .all(|host| host.price_per_hour == MicroDollars::ZERO),
            agent: Some(AgentWay::Ssh),
            sees_account: true,
            rate: Duration::ZERO,
            phases: vec![PhaseLimit::new(AGENT_PHASE, AGENT_MAX)],
            phase_timeout: PHASE_MAX,
        };
        Self {
            settings,
            traits,
            desks,
            pushes: Pushes::default(),
        }
    }

    fn blind(&self, cause: Cause) -> Blind {
        Blind {
            provider: self.settings.name.clone(),
            cause,
            retry_after: None,
        }
    }

    fn desk(&self, place: &str) -> Option<&Arc<Desk>> {
        let mut desks = self.desks.iter();
        desks.find(|desk| desk.host.place().to_string() == place)
    }

    /// The host of a machine.
    fn desk_of(&self, id: &MachineId) -> Option<(&Arc<Desk>, RequestKey)> {
        let (place, key) = place_and_key(id)?;
        Some((self.desk(place)?, key))
    }

    /// What one host is sold as, by each offer.
    async fn offered(&self, desk: &Desk) -> Result<Vec<Quote>, SshError> {
        let (seen, facts) = futures::try_join!(desk.look(Duration::ZERO), desk.facts())?;
        let note = match &seen.mark {
            Some(mark) => Some(mark.told()),
            None => (!seen.traces.is_empty())
                .then(|| "what is left of an earlier machine is on it".to_owned()),
        };
        Ok(self.quotes(desk, &facts, note))
    }

    /// What a host is sold as; with a note it cannot be had.
    fn quotes(&self, desk: &Desk, facts: &Facts, note: Option<String>) -> Vec<Quote> {
        let place = desk.host.place();
        let offers = self.settings.offers.iter();
        let quotes = offers.map(|(offer, claims)| {
            let mut facts = desk.claimed(facts, claims);
            facts
                .extra
                .insert(OFFER_FIELD.to_owned(), offer.to_string());
            facts
                .extra
                .extend(note.iter().map(|note| (NOTE.to_owned(), note.clone())));
            Quote {
                provider: self.settings.name.clone(),
                id: quote_of(offer, place),
                facts,
                price_per_hour: desk.of.price_per_hour,
                disk: DiskRange::default(),
                supply: Supply::Many(u32::from(note.is_none())),
                bid: None,
            }
        });
        quotes.collect()
    }

    /// The machines on one host.
    async fn machines(&self, desk: &Desk, age: Duration) -> Result<Vec<Machine>, Cause> {
        let cause = |error: SshError| error.cause(desk.host.place());
        let seen = desk.look(age).await.map_err(cause)?;
        let facts = desk.facts().await.map_err(cause)?;
        let marked = seen.mark.as_ref().map(|mark| mark.request_key.clone());
        let mut keys: Vec<RequestKey> = seen.traces.keys().cloned().chain(marked).collect();
        keys.sort();
        keys.dedup();
        let shown = keys.iter().map(|key| self.show(desk, &seen, &facts, key));
        Ok(shown.collect())
    }

    fn show(&self, desk: &Desk, seen: &Seen, facts: &Facts, key: &RequestKey) -> Machine {
        let mark = seen.mark.as_ref().filter(|mark| mark.request_key == *key);
        let offer = mark.map(|mark| mark.offer.clone());
        let claims = offer
            .as_ref()
            .and_then(|offer| self.settings.offers.get(offer));
        let mut facts = desk.claimed(facts, claims.unwrap_or(&Claims::default()));
        if let Some(offer) = offer {
            facts
                .extra
                .insert(OFFER_FIELD.to_owned(), offer.to_string());
        }
        let (status, contact) = self.status(desk, seen, key);
        Machine {
            id: machine_of(desk.host.place(), key),
            request_key: Some(key.clone()),
            name: Label::new(key.as_str()),
            status,
            price_per_hour: desk.of.price_per_hour,
            facts,
            contact,
            created_at: mark.map(|mark| mark.since),
            ended_at: None,
            told_at: None,
            away_price: None,
        }
    }

    fn status(&self, desk: &Desk, seen: &Seen, key: &RequestKey) -> (MachineStatus, Contact) {
        let dead = |why: String| (MachineStatus::Dead(why), Contact::default());
        let marked = seen
            .mark
            .as_ref()
            .is_some_and(|mark| mark.request_key == *key);
        let Some(trace) = seen.traces.get(key) else {
            return (MachineStatus::Running, Contact::default());
        };
        if !marked {
            return dead("the host is not marked as taken by it any more".to_owned());
        }
        match (trace.runs, trace.started) {
            (true, _) => {
                let contact = trace.contact.clone().unwrap_or_default();
                (
                    MachineStatus::Running,
                    desk.contact(contact, self.settings.relay.as_ref()),
                )
            }
            (false, None) => (MachineStatus::Running, Contact::default()),
            (false, Some(false)) => {
                dead("the host was started anew since, and its agent does not run".to_owned())
            }
            (false, Some(true)) if trace.last.is_empty() => {
                dead("its agent is not running".to_owned())
            }
            (false, Some(true)) => dead(format!(
                "its agent is not running; its last words: {}",
                trace.last
            )),
        }
    }

    /// Each host by itself: one that cannot be asked hides no other one.
    async fn everywhere(&self) -> View {
        let asked = self
            .desks
            .iter()
            .map(|desk| self.machines(desk, Duration::ZERO));
        let answers = futures::future::join_all(asked).await;
        let mut view = View::default();
        for (desk, answer) in self.desks.iter().zip(answers) {
            match answer {
                Ok(machines) => view.machines.extend(machines),
                Err(cause) => view.unseen.push(Unseen {
                    part: desk.host.place().to_string(),
                    cause,
                }),
            }
        }
        view
    }

    /// Takes a host.
    async fn claim(&self, desk: &Desk, offer: Name, request: &CreateRequest) -> Outcome<Machine> {
        let place = desk.host.place();
        let fits = match desk.measured().await {
            Ok(measured) => self.settings.means.builds.fitting(&measured).map(|_| ()),
            Err(error) => Err(error),
        };
        if let Err(error) = fits {
            return Outcome::Refused(not_taken(&error, desk));
        }
        let boot = &request.boot;
        let mark = Mark::new(
            request.request_key.clone(),
            (boot.lineage, boot.lease.clone()),
            offer,
            self.settings.who.clone(),
            self.settings.clock.now(),
        );
        crash_point("a create, not yet sent");
        let claimed = desk.host.claim(&mark).await;
        desk.forget().await;
        crash_point("a create, just answered");
        match claimed {
            Ok(Claimed::Ours) => Outcome::Done(self.taken(desk, request, mark.since)),
            // Ours already: the same key is the same machine.
            Ok(Claimed::Taken(other)) if other.request_key == mark.request_key => {
                Outcome::Done(self.taken(desk, request, other.since))
            }
            Ok(Claimed::Taken(other)) => {
                let message = format!("host {place} is taken: {}", other.told());
                let hint = format!("wait until that is over, ask {}, or add a host", other.who);
                Outcome::Refused(Cause::new(FailureClass::Capacity, message).hint(hint))
            }
            Err(error) if error.before_all() => Outcome::Refused(not_taken(&error, desk)),
            Err(error) => Outcome::InDoubt(error.cause(place)),
        }
    }

    fn taken(&self, desk: &Desk, request: &CreateRequest, since: Timestamp) -> Machine {
        Machine {
            id: machine_of(desk.host.place(), &request.request_key),
            request_key: Some(request.request_key.clone()),
            name: Label::new(request.request_key.as_str()),
            status: MachineStatus::Running,
            price_per_hour: desk.of.price_per_hour,
            facts: request.quote.facts.clone(),
            contact: Contact::default(),
            created_at: Some(since),
            ended_at: None,
            told_at: None,
            away_price: None,
        }
    }

    async fn end(&self, id: &MachineId) -> Result<Released, Cause> {
        let Some((desk, key)) = self.desk_of(id) else {
            let message = format!(
                "machine {id} is on a host that `{}` does not have",
                self.settings.name
            );
            let hint = "put that host back into `hosts`, then run the same command again";
            return Err(Cause::new(FailureClass::Config, message).hint(hint));
        };
        self.pushes.stop(id);
        let cause = |error: SshError| error.cause(desk.host.place());
        let seen = desk.look(Duration::ZERO).await;
        let seen = seen.map_err(|error| unreached(&error, desk.host.place()))?;
        let marked = seen
            .mark
            .as_ref()
            .is_some_and(|mark| mark.request_key == key);
        if !marked && !seen.traces.contains_key(&key) {
            return Ok(Released::Unknown);
        }
        crash_point("a release, not yet sent");
        let ended = desk.host.end(&key).await;
        desk.forget().await;
        crash_point("a release, just answered");
        match ended.map_err(cause)? {
            Ended::Gone => Ok(Released::Accepted),
            Ended::Left(what) => {
                let message = format!("{id}: on the host is left: {what}");
                let hint = "end or remove it yourself there, then run the same command again";
                Err(Cause::new(FailureClass::Unknown, message).hint(hint))
            }
        }
    }
}

/// Why a machine was not given back, what that means, and what to type when its host can be asked again.
fn unreached(error: &SshError, place: &Place) -> Cause {
    let cause = error.cause(place);
    let message = format!(
        "{}; its agent and its workers may still run there, and the host stays marked as taken",
        cause.message
    );
    let hint = if error.may_pass() {
        format!(
            "when the host is back (`ssh -p {} {}@{} true` shows that), run the same command again; if it is gone for good, \
             `stageline state rm LEASE` takes its machine out of the state",
            place.port, place.user, place.address
        )
    } else {
        cause.hint.unwrap_or_default()
    };
    Cause::new(cause.class, message).hint(hint)
}

/// Why a host was not taken, for certain. Another one may do where nobody answers.
fn not_taken(error: &SshError, desk: &Desk) -> Cause {
    let cause = error.cause(desk.host.place());
    let class = if error.may_pass() {
        FailureClass::OfferGone
    } else {
        cause.class
    };
    Cause { class, ..cause }
}

#[async_trait]
impl Provider for SshProvider {
    fn kind(&self) -> &'static str {
        "ssh"
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn bills(&self) -> bool {
        false
    }

    fn stays_free(&self) -> bool {
        true
    }

    fn has_parts(&self) -> bool {
        true
    }

    async fn view(&self) -> Result<View, Blind> {
        Ok(self.everywhere().await)
    }

    /// A host that does not answer cannot be had, as long as another one does.
    async fn search(&self, _: &Requirement, _: Bytes) -> Result<Vec<Quote>, Blind> {
        let asked = self
            .desks
            .iter()
            .filter(|desk| desk.of.declared)
            .map(|desk| self.offered(desk));
        let answers = futures::future::join_all(asked).await;
        let declared = self.desks.iter().filter(|desk| desk.of.declared);
        let (mut quotes, mut away, mut asked) = (Vec::new(), Vec::new(), 0);
        for (desk, answer) in declared.zip(answers) {
            asked += 1;
            match answer {
                Ok(found) => quotes.extend(found),
                Err(error) if error.may_pass() => {
                    let claimed = desk.unseen(&self.settings.offers);
                    quotes.extend(self.quotes(desk, &claimed, Some(error.to_string())));
                    away.push(error.cause(desk.host.place()));
                }
                Err(error) => return Err(self.blind(error.cause(desk.host.place()))),
            }
        }
        match away.pop() {
            Some(cause) if away.len() + 1 == asked => Err(self.blind(cause)),
            Some(_) | None => Ok(quotes),
        }
    }

    async fn quote(&self, id: &QuoteId, _: Bytes) -> Result<Option<Quote>, Blind> {
        crash_point("a quote, not yet read again");
        let place = id.0.split_once(':').map_or("", |(_, place)| place);
        let Some(desk) = self.desk(place).filter(|desk| desk.of.declared) else {
            return Ok(None);
        };
        let quotes = match self.offered(desk).await {
            Ok(quotes) => quotes,
            Err(error) if error.may_pass() => return Ok(None),
            Err(error) => return Err(self.blind(error.cause(desk.host.place()))),
        };
        // With who has it, where somebody does.
        Ok(quotes.into_iter().find(|quote| quote.id == *id))
    }

    /// Hosts are the same wherever they are asked from; that they are is shown by their keys.
    async fn account(&self) -> Result<Option<Account>, Blind> {
        Ok(Some(Account {
            id: "own hosts".to_owned(),
            api_key: None,
            key_fingerprint: String::new(),
            url: None,
            programs: None,
            ssh_keys: self.settings.ssh_keys.clone(),
        }))
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        let (offer, place) = request.quote.id.0.split_once(':').unwrap_or_default();
        match (self.desk(place), offer.parse::<Name>()) {
            (Some(desk), Ok(offer)) => self.claim(desk, offer, &request).await,
            (_, _) => {
                let message = format!("there is no offer `{}` any more", request.quote.id);
                Outcome::Refused(Cause::new(FailureClass::OfferGone, message))
            }
        }
    }

    fn brings(&self) -> bool {
        true
    }

    async fn bring(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        match self.desk_of(id) {
            Some((desk, key)) => {
                let builds = &self.settings.means.builds;
                let name = desk.host.place().host();
                let machine = Bound {
                    id,
                    key: &key,
                    name: &name,
                    own: true,
                    listen: None,
                    own_end: None,
                };
                self.pushes.bring(machine, &desk.host, builds, what).await
            }
            None => Ok(Brought::There),
        }
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        // All of it: who asks so draws conclusions from what is not there.
        self.everywhere().await.but(&self.settings.name, |_| true)
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let Some((desk, _)) = self.desk_of(id) else {
            let message = format!(
                "machine {id} is on a host that `{}` does not have",
                self.settings.name
            );
            let hint = "put that host back into `hosts`";
            return Err(self.blind(Cause::new(FailureClass::Config, message).hint(hint)));
        };
        let machines = self.machines(desk, LOOK_AGE).await;
        let machines = machines.map_err(|cause| self.blind(cause))?;
        Ok(machines.into_iter().find(|machine| machine.id == *id))
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        self.end(id).await
    }

    fn login(&self, id: &MachineId) -> Result<Option<Login>, Cause> {
        Ok(self.desk_of(id).map(|(desk, _)| login(&desk.of)))
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        let none = || Cause::new(FailureClass::Unknown, format!("there is no machine {id}"));
        let (desk, key) = self.desk_of(id).ok_or_else(none)?;
        let mut log = desk
            .host
            .logs(&key, tail)
            .await
            .map_err(|error| error.cause(desk.host.place()))?;
        Ok(log.split_off(log.len().saturating_sub(tail)))
    }
}

/// How a host is logged in to.
fn login(host: &OwnHost) -> Login {
    Login {
        place: host.place.clone(),
        own: None,
        keys: host.keys.clone(),
        agent: host.agent.clone(),
        known: host.known.clone(),
    }
}
