//! Machines that programs of the user's own get and give back.
//!
//! The contract is that of errand's provider commands, with verbs of ours beside it; docs/COMMAND.md is for whoever writes such
//! programs. What always holds: a record is on disk before `acquire` runs and until `release` said that it is done; an `acquire` that
//! was cut short is never believed to have made nothing: what it began is given back, twice where it was not seen to end. Without
//! `list` the records are all that can be seen, which the traits say. Arguments hold nothing secret: what a machine needs to
//! know goes into variables. It refuses to take an answer for more than it says.

mod acquire;
mod answer;
mod bring;
mod program;
mod record;
mod release;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use stageline_core::id::{Fingerprint, LeaseId, MachineId, Name};
use stageline_core::label::Label;
use stageline_core::offer::{DiskRange, Facts, Quote, QuoteId, Requirement, Supply};
use stageline_core::resource::{Account, Cause, Contact, FailureClass, Outcome};
use stageline_core::topology::{AgentSource, AgentWay, Claims, OFFER_FIELD, Programs};
use stageline_core::unit::{Bytes, MicroDollars};

use self::answer::Listed;
use self::program::{Call, Ended};
use self::record::{Record, Records, Stage};
use super::http::Shared;
use crate::ambient::{Computer, SharedClock, crash_point};
use crate::provider::{
    AGENT_PHASE, Blind, Bring, Brought, CreateRequest, GONE_WITHIN, Machine, MachineStatus, Phase,
    PhaseLimit, Provider, REFUSED_AFTER, Released, Traits,
};
use crate::ssh::{Login, Means, OwnKey};

/// The most that `acquire` and `release` may print, by the contract.
const ACQUIRE_MAX: usize = 16 << 10;
const RELEASE_MAX: usize = 4 << 10;

/// The most that a listing may be: thousands of machines.
const LIST_MAX: usize = 4 << 20;

/// How long the `release` after an `acquire` that failed is waited for; after that it is a doubt, which others resolve.
const UNDO_MAX: Duration = Duration::from_secs(5);

/// What an `acquire` that was cut short may still set in motion is seen by then.
const LATE: Duration = Duration::from_secs(10);

/// From the end of `acquire` to ready.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The longest that a machine may take in one phase of that.
const PHASE_MAX: Duration = Duration::from_secs(10 * 60);

/// The phase of a machine that another process waits for.
const ACQUIRES: &str = "its `acquire` runs";

/// For so long a machine that `acquire` has just reported may be missing from `list`.
const LISTED_WITHIN: Duration = Duration::from_secs(120);

/// How old a listing may be for a mere look at one machine.
const LOOK_AGE: Duration = Duration::from_secs(2);

/// The exit status by which a program says that there is none left, and by which it says that it is not let in: those of sysexits.
const NONE_LEFT: i32 = 75;
const NOT_LET_IN: i32 = 77;

/// There are as many as anybody asks for, as far as anybody knows.
const ANY_NUMBER: u32 = 100_000;

/// What a provider of one's own programs is made from.
#[derive(Clone)]
pub struct CommandSettings {
    /// The `[provider.NAME]`.
    pub name: Name,
    /// Its programs.
    pub programs: Programs,
    /// How long each may take.
    pub timeout: Duration,
    /// What its offers claim; none where only recorded machines are looked after.
    pub offers: BTreeMap<Name, Claims>,
    /// The programs run here.
    pub folder: PathBuf,
    /// Where machines are noted.
    pub records: PathBuf,
    /// The account that recorded machines are on, when there are any.
    pub account: Option<Account>,
    /// The relay that agents keep a connection to.
    pub relay: Option<String>,
    /// What machines are logged in to with, where their program tells an SSH address.
    pub means: Means,
    /// For deadlines.
    pub clock: SharedClock,
}

/// Sells what programs of the user's own get.
pub struct CommandProvider {
    settings: CommandSettings,
    traits: Traits,
    records: Records,
    listing: Shared<Vec<Listed>>,
    /// Machines whose `acquire` this process waits for.
    acquiring: Mutex<BTreeSet<MachineId>>,
    /// Leases for which `acquire` did not end in time, by offer: it would not the next time either.
    hung: Mutex<BTreeSet<(LeaseId, Name)>>,
    releases: release::Releases,
    doors: bring::Doors,
}

impl CommandProvider {
    /// Nothing is run before it is asked something.
    pub fn new(settings: CommandSettings) -> Self {
        let records = Records::new(settings.records.clone());
        let timeout = longest(&settings, &records);
        let traits = Traits {
            finds_by_key: true,
            visibility_delay: Duration::ZERO,
            late_commit_window: LATE,
            // The program, its end when it takes too long, and the release after it.
            request_timeout: timeout + program::TERM_MAX + UNDO_MAX + Duration::from_secs(1),
            acquire_timeout: ACQUIRE_TIMEOUT,
            refused_after: REFUSED_AFTER,
            gone_within: GONE_WITHIN,
            bills_booting: true,
            bills_while_stopped: true,
            restarts_empty: false,
            self_destroy: false,
            offers_are_one: false,
            bills_traffic: false,
            free: settings.programs.price.is_none()
                && !settings.offers.is_empty()
                && settings.offers.values().all(Claims::are_free),
            agent: Some(AgentWay::Told),
            sees_account: settings.programs.list.is_some(),
            rate: Duration::ZERO,
            phases: vec![
                PhaseLimit::new(ACQUIRES, timeout + program::TERM_MAX),
                PhaseLimit::new(answer::NOT_UP, PHASE_MAX).stretching(),
                PhaseLimit::new(AGENT_PHASE, PHASE_MAX).stretching(),
            ],
            phase_timeout: PHASE_MAX,
        };
        Self {
            settings,
            traits,
            records,
            listing: Shared::new(),
            acquiring: Mutex::default(),
            hung: Mutex::default(),
            releases: release::Releases::default(),
            doors: bring::Doors::default(),
        }
    }

    fn blind(&self, cause: Cause) -> Blind {
        Blind {
            provider: self.settings.name.clone(),
            cause,
            retry_after: None,
        }
    }

    /// A cause with the provider that it is about.
    fn named(&self, cause: Cause) -> Cause {
        let message = format!("provider `{}`: {}", self.settings.name, cause.message);
        Cause { message, ..cause }
    }

    /// Variables that every program is handed.
    fn variables(&self, verb: &str) -> BTreeMap<String, String> {
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        BTreeMap::from([
            variable("STAGELINE_PROVIDER", self.settings.name.as_str()),
            variable("STAGELINE_VERB", verb),
        ])
    }

    /// Runs a program that only tells something.
    async fn ask(
        &self,
        verb: &'static str,
        argv: &[String],
        offer: Option<(&Name, Bytes)>,
        stdout_max: usize,
    ) -> Result<Ended, Cause> {
        let mut env = self.variables(verb);
        if let Some((offer, disk)) = offer {
            env.insert("ERRAND_OFFER".to_owned(), offer.to_string());
            env.insert("STAGELINE_DISK".to_owned(), disk.gib_up().to_string());
        }
        let within = self.settings.timeout;
        let running = program::start(Call {
            verb,
            argv,
            folder: &self.settings.folder,
            env,
            secret: BTreeMap::new(),
            stdout_max,
            within,
            told: None,
        })?;
        let ended = running.end().await;
        if ended.is_well() {
            return Ok(ended);
        }
        let message = ended.told(&format!("its program `{verb}` failed"), within, stdout_max);
        let hint = format!("run {} by hand to see why", argv.join(" "));
        Err(Cause::new(class_of(&ended), message).hint(hint))
    }

    /// What one offer is and costs now; none left is zero of it.
    async fn offered(&self, offer: &Name, claims: &Claims, disk: Bytes) -> Result<Quote, Cause> {
        let of = Some((offer, disk));
        let programs = &self.settings.programs;
        let mut facts = claims.facts.clone();
        if let Some(argv) = &programs.facts {
            let ended = self.ask("facts", argv, of, ACQUIRE_MAX).await?;
            let said = answer::facts(ended.last_line(), &facts);
            facts = said.map_err(|why| wrong("facts", &why))?;
        }
        facts
            .extra
            .insert(OFFER_FIELD.to_owned(), offer.to_string());
        let (mut price, mut supply) = (claims.price_per_hour, ANY_NUMBER);
        if let Some(argv) = &programs.price {
            match self.ask("price", argv, of, ACQUIRE_MAX).await {
                Ok(ended) => {
                    let said = answer::priced(ended.last_line());
                    let said = said.map_err(|why| wrong("price", &why))?;
                    price = Some(said.price_per_hour);
                    supply = said.available.unwrap_or(ANY_NUMBER);
                }
                Err(cause) if cause.class == FailureClass::Capacity && price.is_some() => {
                    supply = 0
                }
                Err(cause) => return Err(cause),
            }
        }
        let price_per_hour =
            price.ok_or_else(|| wrong("price", "the offer does not say either what it costs"))?;
        Ok(Quote {
            provider: self.settings.name.clone(),
            id: QuoteId(offer.to_string()),
            facts,
            price_per_hour,
            disk: DiskRange::default(),
            supply: Supply::Many(supply),
            bid: None,
        })
    }

    /// What `list` prints; none without one.
    async fn listed(&self, age: Duration) -> Result<Option<Vec<Listed>>, Cause> {
        let Some(argv) = &self.settings.programs.list else {
            return Ok(None);
        };
        let fetch = async || {
            let ended = self.ask("list", argv, None, LIST_MAX).await?;
            answer::listed(&ended.stdout).map_err(|why| wrong("list", &why))
        };
        self.listing.get(age, fetch).await.map(Some)
    }

    /// Every machine that can be seen.
    async fn all(&self, age: Duration) -> Result<Vec<Machine>, Cause> {
        // Before the records: what is in neither was not there when the program was asked.
        let listed = self.listed(age).await?;
        let records = self.records.all()?;
        let mut machines: BTreeMap<MachineId, Machine> = BTreeMap::new();
        let lists = listed.is_some();
        let (over, listed): (Vec<_>, Vec<_>) = listed
            .unwrap_or_default()
            .into_iter()
            .partition(|it| it.over);
        let is_over = |record: &Record| over.iter().any(|listed| listed.id == record.id());
        for listed in listed {
            let record = records.iter().find(|record| record.id() == listed.id);
            machines.insert(listed.id.clone(), self.of_list(listed, record));
        }
        for record in records {
            let id = record.id();
            let gone = lists && (is_over(&record) || self.is_gone(&record));
            if machines.contains_key(&id) || gone {
                continue;
            }
            machines.insert(id, self.of_record(&record, lists));
        }
        Ok(machines.into_values().collect())
    }

    /// Whether a machine that `list` does not have is gone: one that was cut short or has just come up may not be.
    fn is_gone(&self, record: &Record) -> bool {
        let age = self.settings.clock.now().duration_since(record.created_at);
        let young = Duration::try_from(age).unwrap_or_default() < LISTED_WITHIN;
        match record.stage {
            Stage::Acquiring => false,
            Stage::Held => !young,
            Stage::Releasing => !record.cut,
        }
    }

    fn of_list(&self, listed: Listed, record: Option<&Record>) -> Machine {
        let price = record.map_or(MicroDollars::ZERO, |record| record.price_per_hour);
        let direct = if listed.direct.is_empty() {
            record.map_or_else(Vec::new, |record| record.direct.clone())
        } else {
            listed.direct
        };
        let status = match record.map(|record| record.stage) {
            Some(Stage::Releasing) => MachineStatus::Ending,
            Some(Stage::Acquiring) if record.is_some_and(|record| !self.is_waited_for(record)) => {
                MachineStatus::Dead(CUT_SHORT.to_owned())
            }
            Some(Stage::Acquiring | Stage::Held) | None => listed.status,
        };
        let request_key = listed
            .request_key
            .or_else(|| record.map(|record| record.request_key.clone()));
        Machine {
            id: listed.id,
            request_key,
            name: listed.name,
            status,
            price_per_hour: listed.price_per_hour.unwrap_or(price),
            facts: record.map_or_else(Facts::default, |record| self.claimed(record)),
            contact: self.contact(direct),
            created_at: match listed.dates {
                Some(dates) => Some(dates.created_at),
                None => record.map(|record| record.created_at),
            },
            ended_at: listed.dates.and_then(|dates| dates.ended_at),
            told_at: listed.dates.and_then(|dates| dates.now),
            away_price: None,
        }
    }

    fn of_record(&self, record: &Record, lists: bool) -> Machine {
        let pending = |what: &str| MachineStatus::Pending(Phase::new(what));
        let status = match record.stage {
            Stage::Acquiring if self.is_waited_for(record) => pending(ACQUIRES),
            Stage::Acquiring => MachineStatus::Dead(CUT_SHORT.to_owned()),
            Stage::Held if lists => pending("its `list` does not show it yet"),
            Stage::Held => MachineStatus::Running,
            Stage::Releasing => MachineStatus::Ending,
        };
        Machine {
            id: record.id(),
            request_key: Some(record.request_key.clone()),
            name: Label::new(record.request_key.as_str()),
            status,
            price_per_hour: record.price_per_hour,
            facts: self.claimed(record),
            contact: self.contact(record.direct.clone()),
            created_at: Some(record.created_at),
            ended_at: None,
            told_at: None,
            away_price: None,
        }
    }

    /// Whether somebody still waits for its `acquire`.
    fn is_waited_for(&self, record: &Record) -> bool {
        let ours = self.acquiring.lock().expect("no holder panics");
        let own = record.owner.and_then(|owner| u32::try_from(owner.pid).ok());
        if own == Some(std::process::id()) {
            return ours.contains(&record.id());
        }
        record.lives(record.owner)
    }

    /// What it is said to be: by its program `facts`, else by the file.
    fn claimed(&self, record: &Record) -> Facts {
        if let Some(facts) = &record.facts {
            return facts.clone();
        }
        let offer = &record.offer;
        let claims = self.settings.offers.get(offer);
        let mut facts = claims.map_or_else(Facts::default, |claims| claims.facts.clone());
        facts
            .extra
            .insert(OFFER_FIELD.to_owned(), offer.to_string());
        facts
    }

    fn contact(&self, direct: Vec<SocketAddr>) -> Contact {
        Contact {
            direct,
            relay: self.settings.relay.clone(),
        }
    }
}

/// How long an `acquire` of it may have taken: where the topology is not read, the records tell.
fn longest(settings: &CommandSettings, records: &Records) -> Duration {
    if !settings.offers.is_empty() {
        return settings.timeout;
    }
    let all = records.all().unwrap_or_default();
    let noted = all.iter().filter_map(|record| record.timeout);
    noted
        .max()
        .map_or(settings.timeout, |timeout| timeout.duration())
}

/// Said of a machine whose `acquire` nobody waits for any more.
const CUT_SHORT: &str = "its `acquire` was cut short";

/// A program that does not keep to the contract: whoever wrote it must act.
fn wrong(verb: &str, why: &str) -> Cause {
    let message = format!("its program `{verb}` does not keep to the contract: {why}");
    let hint = "that is for whoever wrote the program; docs/COMMAND.md has the contract";
    Cause::new(FailureClass::Config, message).hint(hint)
}

/// Who must act when a program fails.
fn class_of(ended: &Ended) -> FailureClass {
    if ended.how == program::How::TooMuch {
        return FailureClass::Config;
    }
    match ended.code() {
        Some(NONE_LEFT) => FailureClass::Capacity,
        Some(NOT_LET_IN) => FailureClass::Auth,
        // What shells say of what they cannot run.
        Some(126 | 127) => FailureClass::Config,
        Some(_) | None => FailureClass::Unknown,
    }
}

#[async_trait]
impl Provider for CommandProvider {
    fn kind(&self) -> &'static str {
        "command"
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    /// What is claimed stays; what a program says of prices may change.
    fn stays_free(&self) -> bool {
        self.settings.programs.price.is_none()
    }

    async fn search(&self, _: &Requirement, disk: Bytes) -> Result<Vec<Quote>, Blind> {
        let offers = self.settings.offers.iter();
        let asked = offers.map(|(offer, claims)| self.offered(offer, claims, disk));
        let answers = futures::future::join_all(asked).await;
        let quotes: Result<Vec<Quote>, Cause> = answers.into_iter().collect();
        quotes.map_err(|cause| self.blind(cause))
    }

    async fn quote(&self, id: &QuoteId, disk: Bytes) -> Result<Option<Quote>, Blind> {
        crash_point("a quote, not yet read again");
        let offer = id.0.parse::<Name>().ok();
        let offer = offer.and_then(|offer| self.settings.offers.get_key_value(&offer));
        let Some((offer, claims)) = offer else {
            return Ok(None);
        };
        let quote = self.offered(offer, claims, disk).await;
        let quote = quote.map_err(|cause| self.blind(cause))?;
        Ok((quote.supply != Supply::Many(0)).then_some(quote))
    }

    /// Without `list` it is this computer and the folder of the records: another one's say nothing. With one it is the machines'
    /// own, wherever it is asked.
    async fn account(&self) -> Result<Option<Account>, Blind> {
        let computer = Computer::this();
        let root = std::path::absolute(self.records.root());
        let root = root.unwrap_or_else(|_| self.records.root().to_owned());
        let root = root.display();
        let here = format!("{} {root}", computer.id);
        let recorded = self.settings.account.as_ref().map(|it| it.id.clone());
        let recorded = recorded.filter(|_| self.traits.sees_account);
        Ok(Some(Account {
            id: recorded.unwrap_or_else(|| Fingerprint::of(here.as_bytes()).short()),
            api_key: None,
            key_fingerprint: String::new(),
            url: Some(format!("file://{}{root}", computer.name)),
            programs: Some(Box::new(self.settings.programs.clone())),
            ssh_keys: Vec::new(),
        }))
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        match self.ready_to(&request) {
            Ok(offer) => self.acquire(&request, offer).await,
            Err(cause) => Outcome::Refused(cause),
        }
    }

    fn brings(&self) -> bool {
        true
    }

    fn agent_way(&self, id: &MachineId, source: Option<&AgentSource>) -> Option<AgentWay> {
        let way = AgentWay::of(source, self.traits.agent);
        match self.records.read(id) {
            Ok(Some(record)) if way == Some(AgentWay::Told) => bring::way(&record).or(way),
            Ok(_) | Err(_) => way,
        }
    }

    fn holds_key(&self, id: &MachineId, key: OwnKey) {
        self.doors.hold(id, key);
    }

    async fn bring(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        let brought = self.push(id, what).await;
        brought.map_err(|cause| self.named(cause))
    }

    fn login(&self, id: &MachineId) -> Result<Option<Login>, Cause> {
        let record = self.records.read(id)?;
        Ok(record.and_then(|record| self.way_in(&record, None)))
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        let all = self.all(Duration::ZERO).await;
        all.map_err(|cause| self.blind(cause))
    }

    async fn dated(&self) -> Result<Option<Vec<Machine>>, Blind> {
        let told = async {
            let Some(listed) = self.listed(LOOK_AGE).await? else {
                return Ok(None);
            };
            let records = self.records.all()?;
            let with_dates = listed.into_iter().filter(|listed| listed.dates.is_some());
            let told = with_dates.map(|listed| {
                let record = records.iter().find(|record| record.id() == listed.id);
                self.of_list(listed, record)
            });
            Ok(Some(told.collect()))
        };
        told.await.map_err(|cause| self.blind(cause))
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let all = self
            .all(LOOK_AGE)
            .await
            .map_err(|cause| self.blind(cause))?;
        Ok(all.into_iter().find(|machine| machine.id == *id))
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        self.end(id).await.map_err(|cause| self.named(cause))
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        let mut words = self.records.words(id);
        Ok(words.split_off(words.len().saturating_sub(tail)))
    }
}
