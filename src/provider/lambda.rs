//! Machines of Lambda Cloud.
//!
//! What always holds: an offer is a type in a region, read again right before it is taken, since a launch takes no price; a
//! launch is sent once, under the request key as its name and its tag, and keeps the provider's distance of 12 s from the one before,
//! measured where it is sent; an account shows who it is by the machines that were made under it, as the API has no name for it. It
//! refuses to add anything to an account but machines and the SSH keys that they are made with, and to take an id for ended that an
//! answer does not name.

mod boot;
mod keys;
mod limits;
mod offer;
mod push;
mod ready;
mod single;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};
use stageline_core::id::{MachineId, RequestKey};
use stageline_core::offer::{Facts, Quote, QuoteId, Requirement, Supply, Volume};
use stageline_core::resource::{Account, Cause, FailureClass, Outcome};
use stageline_core::unit::Bytes;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::doors::Doors;
use super::http::{
    Answer, Api, Call, CloudSettings, Endpoint, Fault, KeyAccount, Recent, Shared, as_priced,
    in_time, only, too_many, whole,
};
use crate::ambient::crash_point;
use crate::provider::{
    Blind, BootLimits, Bring, Brought, CreateRequest, Machine, Provider, Released, Traits,
};
use crate::ssh::{Login, OwnKey};

const URL: &str = "https://cloud.lambda.ai";

/// Every request of an account, launches included. One in a second is allowed; some take longer to arrive than others.
const ANY: Endpoint = Endpoint::each("any", Duration::from_millis(1100));

/// Least time between two launches, where they arrive.
const LAUNCH_EVERY: Duration = Duration::from_secs(12);

/// Turns for a launch are a little further apart: each has its way there and back.
const LAUNCH: Endpoint = Endpoint::each("launch", Duration::from_millis(12_200));

/// And so is what is really sent: between a turn and its launch the offer is read again, which takes now more, now less.
const SENT: Endpoint = Endpoint::each("launch, as sent", LAUNCH_EVERY);

/// A launch arrives no later than this after it was sent, or when its answer is there.
const ARRIVAL_MAX: Duration = Duration::from_secs(3);

/// Longest wait of a launch for its moment, once its turn has come.
const MOMENT_MAX: Duration = Duration::from_secs(20);

/// Longest look at what a launch needs of the account.
const READY_MAX: Duration = Duration::from_secs(12);

/// Longest wait for the answer to a launch.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Regions whose firewall cannot be opened, so that agents are reached by a relay only.
const CLOSED_REGIONS: &[&str] = &["us-south-1"];

/// More pages than any account has.
const PAGES_MAX: usize = 1000;

/// How old a listing may be for a mere look at one instance.
const LOOK_AGE: Duration = Duration::from_secs(3);

/// How old the types may be for a search: many leases look at the same time.
const TYPES_AGE: Duration = Duration::from_secs(3);

/// Of what is sold, the offer of this id, where any of it is left.
fn had(quotes: Vec<Quote>, id: &QuoteId) -> Option<Quote> {
    let mut found = quotes.into_iter().filter(|quote| quote.id == *id);
    found.find(|quote| quote.supply != Supply::Many(0))
}

/// An instance of a listing.
#[derive(Clone)]
struct Seen {
    machine: Machine,
    /// Where it is, once that is told.
    ip: Option<IpAddr>,
    /// The request key that the SSH key is named by which it was made with, where that is one of ours.
    ssh_key: Option<RequestKey>,
    /// It costs nothing any more, for certain.
    over: bool,
    /// The provider took it back. It is told until it is ended, so that somebody notices.
    taken_back: bool,
}

/// Sells machines of Lambda Cloud.
pub struct Lambda {
    api: Api,
    settings: Settings,
    traits: Traits,
    listing: Shared<Vec<Seen>>,
    types: Shared<Arc<Value>>,
    open: OnceCell<()>,
    keys: Shared<Arc<Vec<keys::AccountKey>>>,
    /// Machines that were made with a key of ours, and how it is named.
    keyed: Mutex<BTreeMap<MachineId, RequestKey>>,
    /// Where machines are.
    ips: Mutex<BTreeMap<MachineId, IpAddr>>,
    doors: Doors,
    account: KeyAccount,
    released: Recent,
    ended: Mutex<BTreeSet<MachineId>>,
    /// What was told of instances that a listing lacked.
    alone: Mutex<BTreeMap<MachineId, single::Told>>,
}

/// What it is made from.
struct Settings {
    name: stageline_core::id::Name,
    ssh_key: Option<String>,
    relay: Option<String>,
    cloud: CloudSettings,
}

impl Lambda {
    /// Nothing is sent before it is asked something. `ssh_key` is the name of the account's key that lets its owner in to machines;
    /// none is the only one of the account where one is needed.
    pub fn new(cloud: CloudSettings, ssh_key: Option<String>) -> Self {
        let api = Api::new(&cloud, URL, wire::told);
        let traits = limits::traits(&api);
        let doors = Doors::new(cloud.means.clone());
        Self {
            api,
            settings: Settings {
                name: cloud.name.clone(),
                ssh_key,
                relay: cloud.relay.clone(),
                cloud,
            },
            traits,
            listing: Shared::new(),
            types: Shared::new(),
            open: OnceCell::new(),
            keys: Shared::new(),
            keyed: Mutex::default(),
            ips: Mutex::default(),
            doors,
            account: KeyAccount::default(),
            released: Recent::default(),
            ended: Mutex::default(),
            alone: Mutex::default(),
        }
    }

    fn blind(&self, fault: Fault) -> Blind {
        self.api.blind(fault)
    }

    async fn read(&self, call: Call) -> Result<Answer, Fault> {
        self.api.read(call).await.map_err(advised)
    }

    /// The account that this key is of: an instance that was made there shows it.
    fn whose(&self, instances: &[Value]) -> Result<String, Fault> {
        let mut made_on = instances
            .iter()
            .filter_map(|instance| wire::tag(instance, wire::TAG_ACCOUNT));
        self.account.whose(&self.settings.cloud, |known| {
            made_on.any(|one| one == *known)
        })
    }

    /// Every instance of the account.
    async fn all(&self, age: Duration) -> Result<Vec<Seen>, Fault> {
        let fetch = async || {
            let instances = self.instances().await?;
            self.whose(&instances)?;
            let all: Option<Vec<Seen>> = instances.iter().map(|one| self.seen(one)).collect();
            let all = all.ok_or_else(|| Fault::shape("an instance has no `id`"))?;
            self.note(&all);
            Ok(all)
        };
        self.listing.get(self.api.scaled(age), fetch).await
    }

    fn seen(&self, instance: &Value) -> Option<Seen> {
        Some(Seen {
            machine: wire::machine(instance, self.settings.relay.as_deref())?,
            ip: wire::ip(instance),
            ssh_key: wire::ssh_key(instance),
            over: wire::is(instance, "terminated"),
            taken_back: wire::is(instance, "preempted"),
        })
    }

    /// What is needed of machines later, when no listing may be had.
    fn note(&self, all: &[Seen]) {
        let mut keyed = self.keyed.lock().expect("no holder panics");
        let mut ips = self.ips.lock().expect("no holder panics");
        for seen in all {
            let id = &seen.machine.id;
            keyed.extend(seen.ssh_key.clone().map(|key| (id.clone(), key)));
            ips.extend(seen.ip.map(|ip| (id.clone(), ip)));
        }
    }

    async fn instances(&self) -> Result<Vec<Value>, Fault> {
        whole(|| self.pages()).await
    }

    /// One way through all pages; the API has one, as far as it is known. The inner fault is of pages that do not fit together.
    async fn pages(&self) -> Result<Result<Vec<Value>, Fault>, Fault> {
        let mut found: BTreeMap<String, Value> = BTreeMap::new();
        let mut tokens: BTreeSet<String> = BTreeSet::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut call = Call::get("/api/v1/instances", ANY);
            call.query
                .extend(token.take().map(|token| ("page_token", token)));
            let page = wire::page(&self.read(call).await?.body)?;
            found.extend(page.rows);
            let Some(next) = page.next else {
                return Ok(Ok(found.into_values().collect()));
            };
            if !tokens.insert(next.clone()) {
                return Ok(Err(Fault::shape("a page leads to one that was read")));
            }
            token = Some(next);
        }
        Err(Fault::shape("the pages have no end"))
    }

    /// The whole table of types.
    async fn all_types(&self, age: Duration) -> Result<Arc<Value>, Fault> {
        let fetch = async || {
            let answer = self.read(Call::get("/api/v1/instance-types", ANY)).await?;
            Ok(Arc::new(answer.body))
        };
        self.types.get(self.api.scaled(age), fetch).await
    }

    async fn quotes(&self, age: Duration, disk: Bytes) -> Result<Vec<Quote>, Fault> {
        let types = self.all_types(age).await?;
        self.sold(&types, disk)
    }

    fn sold(&self, types: &Value, disk: Bytes) -> Result<Vec<Quote>, Fault> {
        let barred = match self.settings.relay {
            Some(_) => &[],
            None => CLOSED_REGIONS,
        };
        offer::quotes(&self.settings.name, types, disk, barred)
    }

    /// The body of a launch, once the account is seen to have what one needs. Nothing is made here.
    async fn prepared(&self, request: &CreateRequest) -> Result<Value, Cause> {
        let Some(place) = offer::parts(&request.quote.id) else {
            let message = format!("`{}` is no offer of this provider", request.quote.id);
            return Err(Cause::new(FailureClass::OfferGone, message));
        };
        let account = self.account.now(&self.settings.cloud);
        let account = account.map_err(|fault| fault.cause)?;
        if keys::is_pushed(request) {
            self.doors
                .ready(&request.quote, self.libc(request.image.as_deref()))?;
        }
        let asked = async {
            self.port_is_open().await?;
            self.ssh_key(request).await
        };
        let limit = self.api.above(READY_MAX);
        let ssh_key = match tokio::time::timeout(limit, asked).await {
            Ok(key) => key.map_err(|fault| fault.cause)?,
            Err(_) => {
                let message = format!(
                    "the account's SSH keys and rules could not be read within {} s; nothing was rented",
                    limit.as_secs()
                );
                return Err(Cause::new(FailureClass::Unknown, message));
            }
        };
        boot::body(request, place, &ssh_key, &account)
    }

    /// The offer of a launch by the newest table of types that anybody here has read: each launch reads it when its turn comes. A
    /// request more would have to wait behind the moments of all others, and be late itself. Where another one is being read, that of
    /// its own turn holds.
    fn known(&self, request: &CreateRequest) -> Result<Option<Quote>, Blind> {
        let Some(types) = self.types.last() else {
            return Ok(Some(request.quote.clone()));
        };
        let quotes = self.sold(&types, request.disk);
        let quotes = quotes.map_err(|fault| self.blind(fault))?;
        Ok(had(quotes, &request.quote.id))
    }

    /// Waits for the moment of a launch whose turn has come. What it needed of the account took some time before.
    async fn moment(&self, began: Duration, request: &CreateRequest) -> Result<(), Cause> {
        let most = self.api.above(MOMENT_MAX);
        let wait = self.api.gate(&SENT);
        let wait = wait.reserve_both(&self.api.gate(&ANY), most);
        let wait = wait.ok_or_else(too_many)?;
        let before = self.api.above(READY_MAX) + self.api.above(keys::REGISTER_MAX);
        let clock = self.settings.cloud.clock.as_ref();
        let price = as_priced(&request.quote, async { self.known(request) });
        in_time(clock, wait, (began, before + wait), Duration::ZERO, price).await
    }

    /// Launches whose turn has come already wait too, when the provider asks for a pause.
    fn hold(&self, answer: &Result<Answer, Fault>) {
        if let Err(fault) = answer
            && fault.cause.class == FailureClass::Rate
        {
            let span = fault.retry_after.unwrap_or(LAUNCH_EVERY * 3);
            self.api.gate(&SENT).hold(self.api.scaled(span));
        }
    }

    /// The next launch keeps its distance from where this one arrived, which was before its answer came.
    fn arrived(&self, sent: Instant) {
        let took = sent.elapsed();
        let way = took.min(self.api.scaled(ARRIVAL_MAX));
        let left = (way + self.api.scaled(LAUNCH_EVERY)).saturating_sub(took);
        self.api.gate(&SENT).hold(left);
    }

    /// How a launch ended that was not answered with a yes.
    fn unmade(fault: Fault) -> Outcome<Machine> {
        let code = fault.body.as_ref().and_then(wire::code);
        let mut cause = fault.cause.clone();
        if wire::is_open(code.as_deref()) {
            return Outcome::InDoubt(cause);
        }
        let vanished = code.as_deref() == Some("global/object-does-not-exist")
            && cause.message.contains("instance type");
        if vanished {
            cause.class = FailureClass::OfferGone;
        }
        Fault { cause, ..fault }.outcome()
    }

    /// Ends an instance.
    async fn terminate(&self, id: &MachineId) -> Result<Released, Cause> {
        if self.released.just_taken(&self.api, id) {
            return Ok(Released::Accepted);
        }
        crash_point("a release, not yet sent");
        let path = "/api/v1/instance-operations/terminate";
        // One at a time: an id that is gone would have all others refused.
        let call = Call::send(
            Method::POST,
            path,
            ANY,
            json!({ "instance_ids": [id.as_str()] }),
        );
        let answer = self.api.release(call).await.map_err(advised);
        self.listing.forget().await;
        crash_point("a release, just answered");
        match answer {
            Ok(answer) if wire::terminates(&answer.body, id) => {
                self.released.took(id);
                self.end(id);
                Ok(Released::Accepted)
            }
            Ok(_) => {
                let message = format!(
                    "the answer to the release of {id} does not name it, so it was not taken"
                );
                Err(Cause::new(FailureClass::Unknown, message).hint("it is sent again"))
            }
            Err(fault) if wire::knows_none(&fault) => {
                self.end(id);
                Ok(Released::Unknown)
            }
            Err(fault) => Err(fault.cause),
        }
    }

    /// Whether it was ended by us: then what is over is no news.
    fn is_ended(&self, id: &MachineId) -> bool {
        self.ended.lock().expect("no holder panics").contains(id)
    }

    fn end(&self, id: &MachineId) {
        self.alone.lock().expect("no holder panics").remove(id);
        let mut ended = self.ended.lock().expect("no holder panics");
        ended.insert(id.clone());
    }
}

/// A failure with what to do about it, where its code tells more than its class.
fn advised(mut fault: Fault) -> Fault {
    let code = fault.body.as_ref().and_then(wire::code);
    // Too many requests have the code of too many machines.
    let advice = code
        .filter(|_| fault.cause.class != FailureClass::Rate)
        .and_then(|code| wire::advice(&code));
    if let Some(advice) = advice {
        fault.cause.hint = Some(advice.to_owned());
    }
    fault
}

#[async_trait]
impl Provider for Lambda {
    fn kind(&self) -> &'static str {
        "lambda"
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    fn boot_limits(&self, facts: Option<&Facts>) -> BootLimits {
        limits::of(&self.api, &self.traits, facts)
    }

    async fn search(&self, _: &Requirement, disk: Bytes) -> Result<Vec<Quote>, Blind> {
        let quotes = self.quotes(TYPES_AGE, disk).await;
        quotes.map_err(|fault| self.blind(fault))
    }

    async fn instance_types(&self) -> Result<BTreeSet<String>, Blind> {
        let types = self.all_types(TYPES_AGE).await;
        let names = types.and_then(|types| offer::names(&types));
        names.map_err(|fault| self.blind(fault))
    }

    async fn volumes(&self) -> Result<Vec<Volume>, Blind> {
        let answer = self.read(Call::get("/api/v1/file-systems", ANY)).await;
        let volumes = answer.and_then(|answer| offer::volumes(&answer.body));
        volumes.map_err(|fault| self.blind(fault))
    }

    async fn quote(&self, id: &QuoteId, disk: Bytes) -> Result<Option<Quote>, Blind> {
        crash_point("a quote, not yet read again");
        let quotes = self.quotes(Duration::ZERO, disk).await;
        let quotes = quotes.map_err(|fault| self.blind(fault))?;
        Ok(had(quotes, id))
    }

    async fn account(&self) -> Result<Option<Account>, Blind> {
        let cloud = &self.settings.cloud;
        if self.account.is_open(cloud) {
            let all = self.all(LOOK_AGE).await;
            all.map_err(|fault| self.blind(fault))?;
        }
        let id = self.account.now(cloud).map_err(|fault| self.blind(fault))?;
        Ok(Some(cloud.account_of(id)))
    }

    fn turn(&self) -> Duration {
        self.api.gate(&LAUNCH).reserve()
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        let began = self.settings.cloud.clock.boottime();
        let body = match self.prepared(&request).await {
            Ok(body) => body,
            Err(cause) => return Outcome::Refused(cause),
        };
        let key = keys::is_pushed(&request).then_some(&request.request_key);
        if key.is_some()
            && let Err(outcome) = self.register(&request).await
        {
            return outcome;
        }
        if let Err(cause) = self.moment(began, &request).await {
            return self.withdrawn(key, cause).await;
        }
        let path = "/api/v1/instance-operations/launch";
        let call = Call {
            timeout: self.api.above(ANSWER_MAX),
            ..Call::send(Method::POST, path, LAUNCH, body)
        };
        crash_point("a create, not yet sent");
        let sent = Instant::now();
        let answer = self.api.once(call).await;
        self.arrived(sent);
        self.hold(&answer);
        self.listing.forget().await;
        crash_point("a create, just answered");
        match answer {
            Ok(answer) => match only(&wire::launched(&answer.body)) {
                Ok(id) => {
                    let mut keyed = self.keyed.lock().expect("no holder panics");
                    keyed.extend(key.map(|key| (id.clone(), key.clone())));
                    Outcome::Done(request.made(id, wire::BOOTING))
                }
                Err(cause) => Outcome::InDoubt(cause),
            },
            Err(fault) => match Self::unmade(advised(fault)) {
                Outcome::Refused(cause) => self.withdrawn(key, cause).await,
                other @ (Outcome::Done(_) | Outcome::InDoubt(_)) => other,
            },
        }
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        let all = self.all(Duration::ZERO).await;
        let all = all.map_err(|fault| self.blind(fault))?;
        let there = |seen: &Seen| {
            let told = !(seen.taken_back && self.is_ended(&seen.machine.id));
            told && !seen.over
        };
        let left = self.left_over(&all).await;
        let left = left.map_err(|fault| self.blind(fault))?;
        let machines = all.into_iter().filter(there).map(|seen| seen.machine);
        Ok(machines.chain(left).collect())
    }

    fn brings(&self) -> bool {
        true
    }

    async fn bring(&self, id: &MachineId, what: Bring<'_>) -> Result<Brought, Cause> {
        self.push(id, what).await
    }

    fn libc(&self, image: Option<&str>) -> &'static str {
        boot::libc(image)
    }

    fn holds_key(&self, id: &MachineId, key: OwnKey) {
        self.doors.hold(id, key);
    }

    fn login(&self, id: &MachineId) -> Result<Option<Login>, Cause> {
        Ok(self.way_in(id))
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let all = self.all(LOOK_AGE).await;
        let all = all.map_err(|fault| self.blind(fault))?;
        let found = all.into_iter().find(|seen| seen.machine.id == *id);
        if found.is_none() {
            return self.missed(id).await;
        }
        let found = found.filter(|seen| !((seen.over || seen.taken_back) && self.is_ended(id)));
        Ok(found.map(|seen| seen.machine))
    }

    async fn missed(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let found = if keys::is_key(id) {
            self.left(id).await
        } else {
            let alone = self.alone(id).await;
            alone.map(|seen| seen.map(|seen| seen.machine))
        };
        found.map_err(|fault| self.blind(fault))
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        if let Some(released) = self.release_key(id).await {
            return released;
        }
        let released = self.terminate(id).await?;
        // The machine first: it is what costs money.
        self.remove_key_of(id).await?;
        Ok(released)
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        let key = {
            let keyed = self.keyed.lock().expect("no holder panics");
            keyed.get(id).cloned()
        };
        if let Some(key) = key
            && let Some(log) = self.doors.logs(id, &key, tail).await
        {
            return Ok(log);
        }
        let message = format!("the provider keeps no log of {id}");
        Err(Cause::new(FailureClass::Config, message).hint(
            "log in with the SSH key it was made with: /var/log/cloud-init-output.log, `journalctl -u stageline-agent`",
        ))
    }
}
