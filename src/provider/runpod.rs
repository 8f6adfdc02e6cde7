//! Pods of RunPod, by its REST API v2.
//!
//! What always holds: an offer is a type of GPU, a number of them, a cloud and a data centre, or a flavor of pods without a GPU, a number
//! of processors and a data centre; it is read again right before it is taken and priced with its disk; a create is sent once, under the request key as the pod's name; every pod of the account is listed,
//! those of clusters too. All requests of an account pass one gate, since the provider counts them together. A pod that is reported as
//! running and has no runtime is not up. Stopped pods bill their disk, so they are dead and not gone. It refuses to rent a pod that
//! nobody could talk to: the provider maps no UDP port, so it takes a relay.
//!
//! The API does not say whose key it is: an account is called by a fingerprint of the first key that rented on it, which each of its
//! pods carries. A pod ends itself by its limits, with the key that RunPod hands it for itself.

mod boot;
mod charges;
mod cpu;
mod offer;
mod pulls;
mod push;
mod registry;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::Value;

use stageline_core::id::MachineId;
use stageline_core::offer::{INSTANCE_TYPE, POOL, Quote, QuoteId, Requirement, Supply, Volume};
use stageline_core::resource::{Account, Cause, FailureClass, Outcome};
use stageline_core::retry::Effect;
use stageline_core::topology::{AgentSource, AgentWay};
use stageline_core::unit::{Bytes, Timestamp};

use super::doors::Doors;
use super::http::{
    Answer, Api, Call, CloudSettings, Endpoint, Fault, ITS_OWN_MIN, KeyAccount, LATE_MAX,
    PROOF_MIN, Recent, Shared, as_priced, in_time, text, too_many,
};
use super::leftover::Kept;
use crate::ambient::crash_point;
use crate::provider::{
    AGENT_PHASE, Blind, Bring, Brought, Charges, CreateRequest, Machine, PhaseLimit, Provider,
    Released, SSH_PHASE, Traits,
};
use crate::ssh::{Login, OwnKey};
use offer::{Asks, Choice, Cloud};

const URL: &str = "https://api.runpod.io";

/// 60 in a minute and 3000 in an hour, of all endpoints together.
const REQUESTS: Endpoint = Endpoint {
    name: "requests",
    every: Duration::from_millis(1200),
    burst: 48,
    by_address: false,
};

/// The moments at which creates are really sent: what the provider asked for meanwhile holds for those whose turn has come.
const SENT: Endpoint = Endpoint::each("create, as sent", Duration::ZERO);

/// Longest wait of a create for its moment, once its turn has come.
const MOMENT_MAX: Duration = Duration::from_secs(20);

/// Longest that its login may take before: half of it for its turn.
const LOGIN_MAX: Duration = Duration::from_secs(20);

/// Longest that it may take to remove that login again, when there is no pod for it.
const LOGIN_REMOVED_MAX: Duration = Duration::from_secs(20);

/// Longest wait for the answer to a create.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Said of a pause without a length.
const PAUSE: Duration = Duration::from_secs(5);

/// Listings by themselves: whoever waits for a proof asks again and again, and would use up what others need.
const LISTINGS: Endpoint = Endpoint {
    name: "listings",
    every: Duration::from_secs(2),
    burst: 3,
    by_address: false,
};

/// How old a listing may be for a mere look at one pod.
const LOOK_AGE: Duration = Duration::from_secs(3);

/// A log that has sent nothing for this long has sent all there is.
const LOG_QUIET: Duration = Duration::from_millis(1500);

/// Sells pods of RunPod.
pub struct Runpod {
    api: Api,
    settings: CloudSettings,
    traits: Traits,
    listing: Shared<Vec<Machine>>,
    account: KeyAccount,
    released: Recent,
    known: push::Known,
    doors: Doors,
    /// The pools of types of GPUs, as far as the catalogue has told them: a pod does not say its own.
    pools: Mutex<BTreeMap<String, String>>,
    credentials: Shared<Arc<Vec<Kept>>>,
    pulls: pulls::Pulls,
}

impl Runpod {
    /// Nothing is sent before it is asked something.
    pub fn new(settings: CloudSettings) -> Self {
        let api = Api::new(&settings, URL, wire::told);
        let traits = traits(&api);
        let doors = Doors::new(settings.means.clone());
        Self {
            api,
            settings,
            traits,
            listing: Shared::new(),
            account: KeyAccount::default(),
            released: Recent::default(),
            known: push::Known::default(),
            doors,
            pools: Mutex::default(),
            credentials: Shared::new(),
            pulls: pulls::Pulls::default(),
        }
    }

    fn blind(&self, fault: Fault) -> Blind {
        self.api.blind(fault)
    }

    /// The account that this key is of: a pod that was made there shows it.
    fn whose(&self, pods: &[Value]) -> Result<String, Fault> {
        let mut made_on = pods.iter().filter_map(|pod| wire::mark(pod, boot::ACCOUNT));
        self.account
            .whose(&self.settings, |known| made_on.any(|one| one == known))
    }

    /// Every pod of the account.
    async fn all(&self, age: Duration) -> Result<Vec<Machine>, Fault> {
        let fetch = async || {
            let mut call = Call::get("/v2/pods", REQUESTS);
            call.query = vec![("includeClusterPods", "true".to_owned())];
            let answer = self.api.read(call).await?;
            let pods = wire::rows(&answer.body, "pods")?;
            self.whose(pods)?;
            self.known.note(pods);
            let machines = wire::machines(pods, self.settings.relay.as_deref());
            machines.map(|machines| self.with_pools(machines))
        };
        let turn = async || tokio::time::sleep(self.api.gate(&LISTINGS).reserve()).await;
        self.listing.paced(self.api.scaled(age), turn, fetch).await
    }

    /// What was told of pools is kept.
    fn note_pools(&self, rows: &[Value]) {
        let mut pools = self.pools.lock().expect("no holder panics");
        pools.extend(rows.iter().filter_map(offer::pool));
    }

    fn with_pools(&self, mut machines: Vec<Machine>) -> Vec<Machine> {
        let pools = self.pools.lock().expect("no holder panics");
        for machine in &mut machines {
            let extra = &mut machine.facts.extra;
            let pool = extra.get(INSTANCE_TYPE).and_then(|kind| pools.get(kind));
            let pool = pool.map(|pool| (POOL.to_owned(), pool.clone()));
            extra.extend(pool);
        }
        machines
    }

    /// What the catalogue has of a cloud, with its stock for so many GPUs in one pod.
    fn catalogue(path: String, cloud: Cloud, count: u32) -> Call {
        let mut call = Call::get(path, REQUESTS);
        call.query = vec![
            ("include", "AVAILABILITY".to_owned()),
            ("product", "POD".to_owned()),
            ("count", count.to_string()),
            ("cloud", cloud.as_str().to_owned()),
        ];
        call
    }

    /// Every type of GPU, with the stock of hosts that have one of these CUDA versions; of all hosts when there are none.
    async fn types(
        &self,
        cloud: Cloud,
        count: u32,
        cuda: &BTreeSet<String>,
    ) -> Result<Vec<Value>, Fault> {
        let mut call = Self::catalogue("/v2/catalog/gpus".to_owned(), cloud, count);
        if !cuda.is_empty() {
            let cuda: Vec<&str> = cuda.iter().map(String::as_str).collect();
            call.query.push(("cudaVersions", cuda.join(",")));
        }
        let answer = self.api.read(call).await?;
        let rows = wire::rows(&answer.body, "gpus").cloned()?;
        self.note_pools(&rows);
        Ok(rows)
    }

    async fn quotes(&self, requirement: &Requirement, disk: u64) -> Result<Vec<Quote>, Fault> {
        let count = requirement.hints().gpus.max(1);
        let mut quotes = Vec::new();
        for cloud in Cloud::ALL {
            let asks = |row: &Value| Asks::of(requirement, row, cloud, count);
            let mut rows = self.types(cloud, count, &BTreeSet::new()).await?;
            // Which versions there are is known only now.
            let cuda: BTreeSet<String> = rows.iter().flat_map(|row| asks(row).cuda).collect();
            if !cuda.is_empty() {
                rows = self.types(cloud, count, &cuda).await?;
            }
            for row in &rows {
                let name = &self.settings.name;
                quotes.extend(offer::quotes(name, row, &asks(row), disk));
            }
        }
        quotes.retain(|quote| requirement.takes_gpu(&quote.facts.gpus[0].model));
        if requirement.hints().gpus == 0 {
            quotes.extend(self.cpu_quotes(requirement, disk).await?);
        }
        Ok(quotes)
    }

    /// Pods without a GPU. The stock is asked for the smallest that may fit.
    async fn cpu_quotes(&self, requirement: &Requirement, disk: u64) -> Result<Vec<Quote>, Fault> {
        let hints = requirement.hints();
        let mut rows = self.flavors(None).await?;
        if let Some(least) = cpu::least(&rows, &hints) {
            rows = self.flavors(Some(least)).await?;
        }
        let name = &self.settings.name;
        let quotes = rows.iter();
        Ok(quotes
            .flat_map(|row| cpu::quotes(name, row, &hints, disk))
            .collect())
    }

    /// Every flavor of pods without a GPU; with the stock of those with so many processors.
    async fn flavors(&self, vcpus: Option<u32>) -> Result<Vec<Value>, Fault> {
        let mut call = Call::get("/v2/catalog/cpus", REQUESTS);
        call.query.extend(vcpus.into_iter().flat_map(cpu_stock));
        let answer = self.api.read(call).await?;
        wire::rows(&answer.body, "cpus").cloned()
    }

    /// A pod without a GPU, read again.
    async fn cpu_quote(
        &self,
        choice: &cpu::Choice,
        id: &QuoteId,
        disk: u64,
    ) -> Result<Option<Quote>, Blind> {
        let path = wire::path("/v2/catalog/cpus", &choice.flavor);
        let mut call = Call::get(path, REQUESTS);
        call.query.extend(cpu_stock(choice.vcpus));
        let Some(row) = self.row(call).await? else {
            return Ok(None);
        };
        let quotes = cpu::of_size(&self.settings.name, &row, choice.vcpus, disk);
        Ok(in_stock(quotes, id))
    }

    /// A row of the catalogue; none when it has no such row any more.
    async fn row(&self, call: Call) -> Result<Option<Value>, Blind> {
        match self.api.read(call).await {
            Ok(answer) => Ok(Some(answer.body)),
            Err(fault) if fault.status == Some(404) => Ok(None),
            Err(fault) => Err(self.blind(fault)),
        }
    }

    /// A pod without a UDP port is reached by a relay; a simulator's is reached without.
    fn reachable(&self) -> Result<(), Cause> {
        let here = self.api.base()?.loopback;
        if here || self.settings.relay.is_some() {
            return Ok(());
        }
        let message = "a pod has no UDP port, and without a relay nobody could talk to its agent";
        Err(Cause::new(FailureClass::Config, message)
            .hint("add `[relay]` with the `url` of one that this computer and the pods can reach"))
    }
}

fn traits(api: &Api) -> Traits {
    let scaled = |span| api.scaled(span);
    let above = |minutes, floor| api.minutes(minutes, floor);
    let its_own = |minutes| api.minutes(minutes, ITS_OWN_MIN);
    Traits {
        finds_by_key: true,
        visibility_delay: scaled(Duration::from_secs(120)),
        late_commit_window: scaled(Duration::from_secs(600)),
        // Each of its waits has an end of its own before this: what was never sent is told as refused, and not as in doubt.
        request_timeout: [LOGIN_MAX, MOMENT_MAX, ANSWER_MAX, LOGIN_REMOVED_MAX]
            .map(|span| api.above(span))
            .iter()
            .sum(),
        // The pull of a large image included.
        acquire_timeout: above(30, 120),
        refused_after: above(2, PROOF_MIN),
        gone_within: above(10, PROOF_MIN),
        bills_booting: true,
        bills_while_stopped: true,
        restarts_empty: true,
        self_destroy: true,
        offers_are_one: false,
        bills_traffic: false,
        free: false,
        agent: Some(AgentWay::Image),
        sees_account: true,
        rate: Duration::ZERO,
        phases: vec![
            PhaseLimit::new(wire::PROVISIONING, its_own(10)),
            PhaseLimit::new(wire::STARTING, its_own(24)).stretching(),
            // "Running" is said before the image has arrived; and of a container that died.
            PhaseLimit::new(wire::NOT_UP, above(10, 60)).stretching(),
            PhaseLimit::new(wire::NO_ADDRESS, its_own(5)),
            PhaseLimit::new(SSH_PHASE, above(10, 60)),
            PhaseLimit::new(AGENT_PHASE, above(10, 60)),
        ],
        phase_timeout: above(12, 120),
    }
}

/// Asks for the stock of pods with so many processors.
fn cpu_stock(vcpus: u32) -> [(&'static str, String); 3] {
    [
        ("include", "AVAILABILITY".to_owned()),
        ("product", "POD".to_owned()),
        ("vcpuCount", vcpus.to_string()),
    ]
}

/// The quote of this name, if it can be had.
fn in_stock(quotes: Vec<Quote>, id: &QuoteId) -> Option<Quote> {
    let mut quotes = quotes.into_iter();
    quotes.find(|quote| quote.id == *id && quote.supply != Supply::Many(0))
}

fn gigabytes(disk: Bytes) -> u64 {
    disk.gib_up().max(1)
}

impl Runpod {
    /// Waits for the moment of a create whose turn has come. Its login took some time before.
    async fn moment(&self, began: Duration, request: &CreateRequest) -> Result<(), Cause> {
        let wait = self.api.gate(&SENT);
        let wait = wait.reserve_within(self.api.above(MOMENT_MAX));
        let wait = wait.ok_or_else(too_many)?;
        let before = self.api.above(LOGIN_MAX);
        let quote = &request.quote;
        let price = as_priced(quote, self.quote(&quote.id, request.disk));
        let clock = self.settings.clock.as_ref();
        // Creates keep no distance there.
        in_time(clock, wait, (began, before + wait), LATE_MAX, price).await
    }

    /// Creates whose turn has come already wait too, when the provider asks for a pause.
    fn hold(&self, answer: &Result<Answer, Fault>) {
        if let Err(fault) = answer
            && fault.cause.class == FailureClass::Rate
        {
            let span = fault.retry_after.unwrap_or(PAUSE);
            self.api.gate(&SENT).hold(self.api.scaled(span));
        }
    }
}

#[async_trait]
impl Provider for Runpod {
    fn kind(&self) -> &'static str {
        "runpod"
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    async fn search(&self, requirement: &Requirement, disk: Bytes) -> Result<Vec<Quote>, Blind> {
        let quotes = self.quotes(requirement, gigabytes(disk)).await;
        quotes.map_err(|fault| self.blind(fault))
    }

    async fn instance_types(&self) -> Result<BTreeSet<String>, Blind> {
        let rows = self.api.read(Call::get("/v2/catalog/gpus", REQUESTS)).await;
        let rows = rows.and_then(|answer| wire::rows(&answer.body, "gpus").cloned());
        let rows = rows.map_err(|fault| self.blind(fault))?;
        self.note_pools(&rows);
        let names = rows.iter().filter_map(|row| text(row, "id"));
        let pools = rows.iter().filter_map(offer::pool).map(|(_, pool)| pool);
        let flavors = self
            .flavors(None)
            .await
            .map_err(|fault| self.blind(fault))?;
        let flavors = flavors.iter().filter_map(|row| text(row, "id"));
        Ok(names.chain(pools).chain(flavors).collect())
    }

    async fn volumes(&self) -> Result<Vec<Volume>, Blind> {
        let answer = self
            .api
            .read(Call::get("/v2/network-volumes", REQUESTS))
            .await;
        let volumes = answer.and_then(|answer| offer::volumes(&answer.body));
        volumes.map_err(|fault| self.blind(fault))
    }

    async fn quote(&self, id: &QuoteId, disk: Bytes) -> Result<Option<Quote>, Blind> {
        crash_point("a quote, not yet read again");
        if let Some(choice) = cpu::Choice::parse(&id.0) {
            return self.cpu_quote(&choice, id, gigabytes(disk)).await;
        }
        let Some(choice) = Choice::parse(&id.0) else {
            return Ok(None);
        };
        let asks = &choice.asks;
        let path = wire::path("/v2/catalog/gpus", &choice.gpu);
        let mut call = Self::catalogue(path, asks.cloud, asks.count);
        if !asks.cuda.is_empty() {
            call.query.push(("cudaVersions", asks.cuda.join(",")));
        }
        let Some(row) = self.row(call).await? else {
            return Ok(None);
        };
        self.note_pools(std::slice::from_ref(&row));
        let quotes = offer::quotes(&self.settings.name, &row, asks, gigabytes(disk));
        Ok(in_stock(quotes, id))
    }

    async fn account(&self) -> Result<Option<Account>, Blind> {
        let seen = self.all(LOOK_AGE).await;
        let id = seen.and_then(|_| self.account.now(&self.settings));
        let id = id.map_err(|fault| self.blind(fault))?;
        Ok(Some(self.settings.account_of(id)))
    }

    fn turn(&self) -> Duration {
        self.api.gate(&REQUESTS).reserve()
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        let began = self.settings.clock.boottime();
        let account = self.account.now(&self.settings);
        let account = account.map_err(|fault| fault.cause);
        let ready = match request.agent {
            Some(AgentSource::Ssh) => self
                .doors
                .ready(&request.quote, self.libc(request.image.as_deref())),
            None | Some(AgentSource::Image | AgentSource::Fetch { .. }) => Ok(()),
        };
        let body = self.reachable().and(ready).and(account);
        let api = self.settings.url.as_deref().unwrap_or(URL);
        let disk = gigabytes(request.disk);
        let body = body.and_then(|on| boot::body(&request, disk, (&on, api)));
        let body = match body {
            Ok(body) => body,
            Err(cause) => return Outcome::Refused(cause),
        };
        let login = match self.let_in(&request).await {
            Ok(login) => login,
            Err(outcome) => return outcome,
        };
        if let Err(cause) = self.moment(began, &request).await {
            let of = &request.request_key;
            return self.withdrawn(of, login.as_ref(), cause).await;
        }
        let body = registry::with(body, login.as_ref());
        let call = Call {
            timeout: self.api.above(ANSWER_MAX),
            ..Call::send(Method::POST, "/v2/pods", REQUESTS, body)
        };
        crash_point("a create, not yet sent");
        let answer = self.api.once(call).await;
        self.hold(&answer);
        self.listing.forget().await;
        crash_point("a create, just answered");
        match answer {
            Ok(answer) => match wire::id(&answer.body) {
                Some(id) => Outcome::Done(request.made(id, wire::PROVISIONING)),
                None => {
                    Outcome::InDoubt(Fault::shape("the create was answered without an id").cause)
                }
            },
            Err(fault) => match fault.effect {
                Effect::None => {
                    let (of, cause) = (&request.request_key, wire::refused(fault));
                    self.withdrawn(of, login.as_ref(), cause).await
                }
                Effect::Possible => Outcome::InDoubt(fault.cause),
            },
        }
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        let all = self.all(Duration::ZERO).await;
        let all = all.map_err(|fault| self.blind(fault))?;
        let left = self.left_over(&all).await;
        let left = left.map_err(|fault| self.blind(fault))?;
        Ok(all.into_iter().chain(left).collect())
    }

    async fn charges(&self, since: Timestamp, now: Timestamp) -> Result<Option<Charges>, Blind> {
        let charged = self.charged(since, now).await;
        charged.map_err(|fault| self.blind(fault))
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
        let left = self.left(id).await;
        if let Some(left) = left.map_err(|fault| self.blind(fault))? {
            return Ok(Some(left));
        }
        let all = self.all(LOOK_AGE).await;
        let all = all.map_err(|fault| self.blind(fault))?;
        let found = all.into_iter().find(|machine| machine.id == *id);
        Ok(match found {
            Some(pod) => Some(self.with_its_pull(pod).await),
            None => None,
        })
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        if let Some(released) = self.release_credential(id).await {
            return released;
        }
        if self.released.just_taken(&self.api, id) {
            return Ok(Released::Accepted);
        }
        crash_point("a release, not yet sent");
        let call = Call {
            method: Method::DELETE,
            ..Call::get(wire::path("/v2/pods", id.as_str()), REQUESTS)
        };
        let answer = self.api.release(call).await;
        self.listing.forget().await;
        crash_point("a release, just answered");
        match answer {
            Ok(_) => {
                self.released.took(id);
                Ok(Released::Accepted)
            }
            // No proof: a new pod is not found for a while.
            Err(fault) if fault.status == Some(404) => Ok(Released::Unknown),
            Err(fault) if fault.status == Some(409) => Err(fault.cause.hint(
                "a pod of a cluster ends with its cluster, and a locked one is unlocked at the provider's console first",
            )),
            Err(fault) => Err(fault.cause),
        }
    }

    async fn logs(&self, id: &MachineId, tail: usize) -> Result<Vec<u8>, Cause> {
        let path = format!("{}/logs", wire::path("/v2/pods", id.as_str()));
        let mut call = Call::get(path, REQUESTS);
        // What the host says is of use too: how far the image is, and why the container did not start.
        call.query = vec![("tail", "500".to_owned())];
        call.bytes_max = 4 << 20;
        let stream = self.api.stream(call, LOG_QUIET).await;
        let mut log = wire::log(&stream.map_err(|fault| fault.cause)?);
        Ok(log.split_off(log.len().saturating_sub(tail)))
    }
}
