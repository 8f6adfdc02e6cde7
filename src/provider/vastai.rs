//! Machines of the marketplace vast.ai.
//!
//! What always holds: an offer is an ask that one can take, read again right before it is taken and priced with its disk;
//! a create is sent once, under the request key as its label; every instance of the account is listed, page by page, and a listing that
//! is not whole, or may be another account's, is no listing. Stopped instances bill their disk, so they are dead and
//! not gone. A bid goes with the create, which is asked to fail rather than to make a stopped instance; one that is made so all
//! the same is a machine like every other, and dead. It refuses to send the account's key to a machine.

mod boot;
mod charges;
mod increases;
mod offer;
mod push;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};
use stageline_core::id::MachineId;
use stageline_core::offer::{Quote, QuoteId, Requirement, Volume};
use stageline_core::resource::{Account, Cause, FailureClass, Outcome};
use stageline_core::topology::{AgentSource, AgentWay};
use stageline_core::unit::{Bytes, MicroDollars, Timestamp};
use tokio::sync::OnceCell;

use self::offer::Buy;
use super::doors::Doors;
use super::http::{
    Answer, Api, Call, CloudSettings, Endpoint, Fault, ITS_OWN_MIN, PROOF_MIN, Recent, Shared,
    as_priced, in_time, only, too_many, whole,
};
use crate::ambient::crash_point;
use crate::provider::{
    AGENT_PHASE, Blind, Bring, Brought, Charges, CreateRequest, Increase, Machine, PhaseLimit,
    Provider, Released, SSH_PHASE, Traits,
};
use crate::ssh::{Login, OwnKey};

const URL: &str = "https://console.vast.ai";

/// How the names of its hosts end: one may lead to another.
const FAMILY: &str = ".vast.ai";

/// 10 in a minute, from one address. Every other endpoint counts by key.
const SEARCH: Endpoint = Endpoint {
    name: "search",
    every: Duration::from_secs(6),
    burst: 10,
    by_address: true,
};

/// Turns for a create.
const CREATE: Endpoint = Endpoint::each("create", Duration::from_millis(4500));

/// And the moments at which creates are really sent: between a turn and its create the offer is read again and the intention is
/// written down, which takes now more, now less, and what the provider asked for meanwhile holds here too.
const SENT: Endpoint = Endpoint::each("create, as sent", Duration::from_millis(4500));

/// Longest wait of a create for its moment, once its turn has come.
const MOMENT_MAX: Duration = Duration::from_secs(20);

/// Longest wait for the answer to a create.
const ANSWER_MAX: Duration = Duration::from_secs(30);

const DESTROY: Endpoint = Endpoint::each("destroy", Duration::from_secs(3));
const LIST: Endpoint = Endpoint::each("list", Duration::from_secs(1));
const USER: Endpoint = Endpoint::each("user", Duration::from_secs(1));
const NAMES: Endpoint = Endpoint::each("gpu names", Duration::from_secs(1));
const KEYS: Endpoint = Endpoint::each("ssh keys", Duration::from_secs(1));
const VOLUMES: Endpoint = Endpoint::each("volumes", Duration::from_secs(1));
const LOGS: Endpoint = Endpoint::each("logs", Duration::from_secs(1));

/// Instances of one page: the most that there can be.
const PAGE: usize = 25;

/// More pages than any account has.
const PAGES_MAX: usize = 4000;

/// Searches for one requirement, each for what the one before had no room for: more offers than there are. Their turns are ten in a
/// minute.
const SEARCHES_MAX: usize = 8;

/// How old a listing may be for a mere look at one instance. The provider asks for at most one in 10 s and allows one in 1 s: a boot
/// takes a minute, of which ten seconds would be lost more than a tenth, and a listing is one for all machines of the account.
const LOOK_AGE: Duration = Duration::from_secs(3);

/// How often a log that is being made is asked for.
const LOG_TRIES: usize = 30;

/// Between two of these.
const LOG_PAUSE: Duration = Duration::from_millis(300);

/// Sells machines of vast.ai.
pub struct Vastai {
    api: Api,
    settings: CloudSettings,
    traits: Traits,
    listing: Shared<Vec<Machine>>,
    names: OnceCell<Vec<String>>,
    account: OnceCell<Account>,
    released: Recent,
    known: push::Known,
    doors: Doors,
}

impl Vastai {
    /// Nothing is sent before it is asked something.
    pub fn new(settings: CloudSettings) -> Self {
        let api = Api::new(&settings, URL, wire::told).within(FAMILY);
        let doors = Doors::new(settings.means.clone());
        let scaled = |span| api.scaled(span);
        let above = |minutes, floor| api.minutes(minutes, floor);
        let its_own = |minutes| api.minutes(minutes, ITS_OWN_MIN);
        let traits = Traits {
            finds_by_key: true,
            visibility_delay: scaled(Duration::from_secs(120)),
            late_commit_window: scaled(Duration::from_secs(600)),
            request_timeout: api.above(MOMENT_MAX) + api.above(ANSWER_MAX),
            acquire_timeout: above(30, 120),
            refused_after: above(2, PROOF_MIN),
            gone_within: above(10, PROOF_MIN),
            bills_booting: false,
            bills_while_stopped: true,
            restarts_empty: false,
            self_destroy: true,
            offers_are_one: true,
            bills_traffic: true,
            free: false,
            agent: Some(AgentWay::Image),
            sees_account: true,
            rate: Duration::ZERO,
            phases: vec![
                PhaseLimit::new(wire::PROVISIONING, its_own(10)),
                // An image of some GB on a host with a slow line.
                PhaseLimit::new(wire::LOADING, its_own(28)).stretching(),
                PhaseLimit::new(wire::NO_ADDRESS, its_own(5)),
                PhaseLimit::new(SSH_PHASE, above(10, 60)),
                PhaseLimit::new(AGENT_PHASE, above(5, 60)),
            ],
            phase_timeout: above(15, 120),
        };
        Self {
            api,
            settings,
            traits,
            listing: Shared::new(),
            names: OnceCell::new(),
            account: OnceCell::new(),
            released: Recent::default(),
            known: push::Known::default(),
            doors,
        }
    }

    fn blind(&self, fault: Fault) -> Blind {
        self.api.blind(fault)
    }

    /// Whose key it is, asked now.
    async fn whose(&self) -> Result<String, Fault> {
        let answer = self
            .api
            .read(Call::get("/api/v0/users/current/", USER))
            .await?;
        let id = wire::id(&answer.body, "id");
        id.ok_or_else(|| Fault::shape("it has no `id` of the account"))
    }

    /// Refuses another account than the one that recorded machines are on.
    fn own(&self, id: &str) -> Result<(), Fault> {
        let known = self.account.get().map(|account| &account.id);
        match known.or(self.settings.account.as_ref()) {
            Some(known) if known != id => {
                let name = &self.settings.name;
                let message =
                    format!("the key is account {id}'s, and the machines are on account {known}");
                let cause = Cause::new(FailureClass::Auth, message);
                Err(Fault::before(cause.hint(format!(
                    "put the key of account {known} back into [provider.{name}], end its machines, and change it then"
                ))))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Every instance of the account.
    async fn all(&self, age: Duration) -> Result<Vec<Machine>, Fault> {
        let fetch = async || self.pages().await;
        self.listing.get(self.api.scaled(age), fetch).await
    }

    async fn pages(&self) -> Result<Vec<Machine>, Fault> {
        let instances = whole(|| self.pages_once()).await?;
        self.trusted(&instances).await
    }

    /// One way through all pages. The inner fault is of pages that do not fit together: instances came or went meanwhile.
    async fn pages_once(&self) -> Result<Result<Vec<Value>, Fault>, Fault> {
        let mut found: BTreeMap<String, Value> = BTreeMap::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut call = Call::get("/api/v1/instances/", LIST);
            call.query = vec![
                ("limit", PAGE.to_string()),
                ("order_by", r#"[{"col":"id","dir":"asc"}]"#.to_owned()),
            ];
            call.query
                .extend(token.clone().map(|token| ("after_token", token)));
            let page = wire::page(&self.api.read(call).await?.body)?;
            found.extend(page.instances);
            let Some(next) = page.next else {
                return Ok(match page.total {
                    Some(total) if total != found.len() => Err(Fault::shape(&format!(
                        "the pages list {} of {total} instances",
                        found.len()
                    ))),
                    Some(_) | None => Ok(found.into_values().collect()),
                });
            };
            if token.as_ref() == Some(&next) {
                return Ok(Err(Fault::shape("a page leads to itself")));
            }
            token = Some(next);
        }
        Err(Fault::shape("the pages have no end"))
    }

    /// A listing without any machine of ours may be another account's.
    async fn trusted(&self, instances: &[Value]) -> Result<Vec<Machine>, Fault> {
        self.known.note(instances);
        let relay = self.settings.relay.as_deref();
        let machines: Option<Vec<Machine>> = instances
            .iter()
            .map(|instance| wire::machine(instance, relay))
            .collect();
        let machines = machines.ok_or_else(|| Fault::shape("an instance has no `id`"))?;
        let marked = machines.iter().any(|machine| machine.request_key.is_some());
        if !marked {
            let id = self.whose().await?;
            self.own(&id)?;
        }
        Ok(machines)
    }

    async fn offers(&self, filter: Value) -> Result<Vec<Value>, Fault> {
        let call = Call::send(Method::POST, "/api/v0/bundles/", SEARCH, filter);
        let answer = self.api.read(call).await?;
        match answer.body.get("offers") {
            Some(Value::Array(offers)) => Ok(offers.clone()),
            Some(_) | None => Err(Fault::shape("it has no list `offers`")),
        }
    }

    /// All that a search finds: where as many offers come back as it may ask for, the next one begins at the price of the last.
    /// An answer that is full and leads no further hides offers, perhaps those that fit: it is none.
    async fn all_offers(&self, mut filter: Value) -> Result<Vec<Value>, Fault> {
        let mut all = Vec::new();
        let mut from = f64::MIN;
        for _ in 0..SEARCHES_MAX {
            let found = self.offers(filter.clone()).await?;
            let (full, last) = (found.len() >= offer::OFFERS_MAX, offer::dearest(&found));
            all.extend(found);
            match last {
                _ if !full => return Ok(all),
                Some(last) if last > from => {
                    from = last;
                    offer::from_price(&mut filter, last);
                }
                Some(_) | None => break,
            }
        }
        let most = offer::OFFERS_MAX;
        let message = format!(
            "each search finds {most} offers, the most that one may, and there may be more"
        );
        let cause = Cause::new(FailureClass::Unknown, message);
        Err(Fault::before(
            cause.hint("ask for less in `where`, such as a GPU by its name"),
        ))
    }

    /// What can be had now, on demand or for a bid.
    async fn found(
        &self,
        requirement: &Requirement,
        disk: Bytes,
        buy: Buy,
    ) -> Result<Vec<Quote>, Blind> {
        let disk = gibibytes(disk);
        let names = if requirement.names_gpu() {
            let names = self.names().await.map_err(|fault| self.blind(fault))?;
            names
                .iter()
                .filter(|name| requirement.takes_gpu(name))
                .cloned()
                .collect()
        } else {
            Vec::new()
        };
        let filter = offer::filter(requirement, &names, disk, buy);
        let offers = self
            .all_offers(filter)
            .await
            .map_err(|fault| self.blind(fault))?;
        let quotes = offers
            .iter()
            .filter_map(|offer| offer::quote(&self.settings.name, offer, disk, buy));
        // It has answered with the same row twice.
        let distinct: BTreeMap<QuoteId, Quote> =
            quotes.map(|quote| (quote.id.clone(), quote)).collect();
        Ok(distinct.into_values().collect())
    }

    /// The names of GPUs as the provider spells them.
    async fn names(&self) -> Result<&Vec<String>, Fault> {
        let ask = || async {
            let call = Call::get("/api/v0/gpu_names/unique/", NAMES);
            let answer = self.api.read(call).await?;
            wire::names(&answer.body)
        };
        self.names.get_or_try_init(ask).await
    }

    /// Waits for the moment of a create whose turn has come.
    async fn moment(&self, request: &CreateRequest) -> Result<(), Cause> {
        let clock = &self.settings.clock;
        let began = clock.boottime();
        let most = self.api.above(MOMENT_MAX);
        let wait = self.api.gate(&SENT).reserve_within(most);
        let wait = wait.ok_or_else(too_many)?;
        let quote = &request.quote;
        let price = as_priced(quote, self.quote(&quote.id, request.disk));
        in_time(clock.as_ref(), wait, (began, wait), Duration::ZERO, price).await
    }

    /// Creates whose turn has come already wait too, when the provider asks for a pause.
    fn hold(&self, answer: &Result<Answer, Fault>) {
        if let Err(fault) = answer
            && fault.cause.class == FailureClass::Rate
        {
            let span = fault.retry_after.unwrap_or(SENT.every * 3);
            self.api.gate(&SENT).hold(self.api.scaled(span));
        }
    }

    /// The one instance that a bid was answered with although it is too low: it is there, stopped, and bills its disk.
    fn made_stopped(request: &CreateRequest, fault: &Fault) -> Option<Machine> {
        request.quote.bid?;
        let ids = fault.body.as_ref().map(wire::contracts)?;
        let id = only(&ids).ok()?;
        Some(request.made(id, wire::PROVISIONING))
    }

    /// How a create ended that was not answered with a yes.
    fn unmade(fault: Fault) -> Outcome<Machine> {
        let ids = fault.body.as_ref().map(wire::contracts).unwrap_or_default();
        if !ids.is_empty() {
            let ids: Vec<&str> = ids.iter().map(MachineId::as_str).collect();
            let message = format!(
                "{}; and yet instance {} was made, is stopped and bills its disk",
                fault.cause.message,
                ids.join(", ")
            );
            return Outcome::InDoubt(Cause {
                message,
                ..fault.cause
            });
        }
        fault.outcome()
    }
}

fn gibibytes(disk: Bytes) -> u64 {
    // No instance has less than 8.
    disk.gib_up().max(8)
}

#[async_trait]
impl Provider for Vastai {
    fn kind(&self) -> &'static str {
        "vastai"
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    async fn search(&self, requirement: &Requirement, disk: Bytes) -> Result<Vec<Quote>, Blind> {
        self.found(requirement, disk, None).await
    }

    async fn bids(
        &self,
        requirement: &Requirement,
        disk: Bytes,
        bid: Option<MicroDollars>,
    ) -> Result<Vec<Quote>, Blind> {
        self.found(requirement, disk, Some(bid)).await
    }

    async fn volumes(&self) -> Result<Vec<Volume>, Blind> {
        let answer = self.api.read(Call::get("/api/v0/volumes/", VOLUMES)).await;
        let volumes = answer.and_then(|answer| offer::volumes(&answer.body));
        volumes.map_err(|fault| self.blind(fault))
    }

    async fn quote(&self, id: &QuoteId, disk: Bytes) -> Result<Option<Quote>, Blind> {
        crash_point("a quote, not yet read again");
        let disk = gibibytes(disk);
        let Ok(number) = id.ask().parse::<u64>() else {
            return Ok(None);
        };
        let offers = self.offers(offer::one(number, disk, id.bid())).await;
        let offers = offers.map_err(|fault| self.blind(fault))?;
        let quotes = offers
            .iter()
            .filter_map(|offer| offer::quote(&self.settings.name, offer, disk, id.bid()));
        Ok(quotes.into_iter().find(|quote| quote.id == *id))
    }

    async fn account(&self) -> Result<Option<Account>, Blind> {
        let ask = || async {
            let id = self.whose().await?;
            self.own(&id)?;
            Ok(self.settings.account_of(id))
        };
        let account = self.account.get_or_try_init(ask).await;
        account
            .map(|account| Some(account.clone()))
            .map_err(|fault| self.blind(fault))
    }

    fn turn(&self) -> Duration {
        self.api.gate(&CREATE).reserve()
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        let api = self.settings.url.as_deref().unwrap_or(URL);
        if request.agent == Some(AgentSource::Ssh)
            && let Err(cause) = self
                .doors
                .ready(&request.quote, self.libc(request.image.as_deref()))
        {
            return Outcome::Refused(cause);
        }
        let body = match boot::body(&request, gibibytes(request.disk), api) {
            Ok(body) => body,
            Err(cause) => return Outcome::Refused(cause),
        };
        let path = format!("/api/v0/asks/{}/", request.quote.id.ask());
        if let Err(cause) = self.moment(&request).await {
            return Outcome::Refused(cause);
        }
        let call = Call {
            timeout: self.api.above(ANSWER_MAX),
            ..Call::send(Method::PUT, path, CREATE, body)
        };
        crash_point("a create, not yet sent");
        let answer = self.api.once(call).await;
        self.hold(&answer);
        self.listing.forget().await;
        crash_point("a create, just answered");
        match answer {
            Ok(answer) => match only(&wire::contracts(&answer.body)) {
                Ok(id) => Outcome::Done(request.made(id, wire::PROVISIONING)),
                Err(cause) => Outcome::InDoubt(cause),
            },
            Err(fault) => match Self::made_stopped(&request, &fault) {
                Some(machine) => Outcome::Done(machine),
                None => Self::unmade(fault),
            },
        }
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        let all = self.all(Duration::ZERO).await;
        all.map_err(|fault| self.blind(fault))
    }

    async fn charges(&self, since: Timestamp, now: Timestamp) -> Result<Option<Charges>, Blind> {
        let charged = self.charged(since, now).await;
        charged.map(Some).map_err(|fault| self.blind(fault))
    }

    fn brings(&self) -> bool {
        true
    }

    async fn bring(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        self.push(id, what).await
    }

    fn libc(&self, image: Option<&str>) -> &'static str {
        if image.is_none() {
            boot::PLAIN_LIBC
        } else {
            ""
        }
    }

    fn holds_key(&self, id: &MachineId, key: OwnKey) {
        self.doors.hold(id, key);
    }

    fn login(&self, id: &MachineId) -> Result<Option<Login>, Cause> {
        Ok(self.way_in(id))
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let all = self
            .all(LOOK_AGE)
            .await
            .map_err(|fault| self.blind(fault))?;
        Ok(all.into_iter().find(|machine| machine.id == *id))
    }

    async fn increases(&self) -> Result<Vec<Increase>, Blind> {
        let asked = self.pending_increases().await;
        asked.map_err(|fault| self.blind(fault))
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        if id.as_str().parse::<u64>().is_err() {
            return Ok(Released::Unknown);
        }
        if self.released.just_taken(&self.api, id) {
            return Ok(Released::Accepted);
        }
        crash_point("a release, not yet sent");
        let path = format!("/api/v0/instances/{id}/");
        let call = Call::send(Method::DELETE, path, DESTROY, json!({}));
        let answer = self.api.release(call).await;
        self.listing.forget().await;
        crash_point("a release, just answered");
        match answer {
            Ok(_) => {
                self.released.took(id);
                Ok(Released::Accepted)
            }
            Err(fault) if wire::knows_no_instance(&fault) => Ok(Released::Unknown),
            Err(fault) => Err(fault.cause),
        }
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        let path = format!("/api/v0/instances/request_logs/{id}/");
        let call = Call::send(Method::PUT, path, LOGS, json!({ "tail": "200" }));
        let answer = self.api.read(call).await.map_err(|fault| fault.cause)?;
        let url = answer.body.get("result_url").and_then(Value::as_str);
        let url = url.ok_or_else(|| Fault::shape("it has no `result_url`").cause)?;
        for _ in 0..LOG_TRIES {
            if let Some(mut log) = self.api.plain(url, 4 << 20).await? {
                return Ok(log.split_off(log.len().saturating_sub(tail)));
            }
            tokio::time::sleep(LOG_PAUSE).await;
        }
        let message = format!("the log of {id} was not made in time");
        Err(Cause::new(FailureClass::Unknown, message))
    }
}
