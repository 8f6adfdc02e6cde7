//! Machines on this computer: each a folder and the processes that belong to it. No account, no network.
//!
//! A machine is there while its folder or one of its processes is; a create that was cut anywhere leaves a folder that is
//! listed as dead, never a process that nobody knows. Release ends every process, proves that, and then removes the
//! folder. What cannot be read, or is not ours, makes the provider blind: it never guesses, and never skips.

mod folder;
mod launch;
pub(in crate::provider) mod process;
mod release;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stageline_core::id::{Fingerprint, MachineId, Name, RequestKey};
use stageline_core::label::Label;
use stageline_core::offer::{DiskRange, Facts, Quote, QuoteId, Requirement, Supply};
use stageline_core::resource::{Account, Cause, Contact, FailureClass, Outcome};
use stageline_core::unit::{Bytes, MicroDollars};

use self::folder::{Record, Root, cause};
use self::process::{Processes, boot_id};
use crate::agent::facts::{self, Gpus};
use crate::agent::folder::{Folder, FolderError};
use crate::ambient::{Computer, SharedClock, crash_point};
use crate::provider::{
    Blind, CreateRequest, GONE_WITHIN, Machine, MachineStatus, Phase, Provider, REFUSED_AFTER,
    Released, Traits,
};

/// There is one kind of machine: this computer.
const QUOTE: &str = "local";

/// How long a create may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// From create to ready.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a local provider needs to know.
#[derive(Clone)]
pub struct LocalSettings {
    /// The `[provider.NAME]`.
    pub name: Name,
    /// Where the folders of the machines are; made when needed.
    pub root: PathBuf,
    /// The program that has the verb `agent`, and arguments that come before that.
    pub program: Vec<OsString>,
    /// The whole environment of an agent, but for the marker of its folder.
    pub environment: BTreeMap<OsString, OsString>,
    /// Machines at once; none is the number of cores.
    pub slots: Option<u32>,
    /// What a machine is said to cost.
    pub price_per_hour: MicroDollars,
    /// How long an agent may take to end by itself.
    pub stop_grace: Duration,
}

/// Sells machines on this computer.
#[derive(Clone)]
pub struct LocalProvider {
    inner: Arc<Inner>,
}

struct Inner {
    settings: LocalSettings,
    traits: Traits,
    root: Root,
    clock: SharedClock,
    sight: Arc<Sight>,
    /// Between counting the machines and claiming a folder.
    claims: std::sync::Mutex<()>,
}

/// What several providers see of the one computer that they are on: those that are asked at once look once.
#[derive(Default)]
pub struct Sight {
    gpus: tokio::sync::OnceCell<Gpus>,
}

impl LocalProvider {
    /// A provider with these settings. Nothing is touched before it is asked something.
    pub fn new(settings: LocalSettings, clock: SharedClock) -> Self {
        Self::seeing(settings, clock, Arc::default())
    }

    /// The same, beside others that share what they see.
    pub fn seeing(settings: LocalSettings, clock: SharedClock, sight: Arc<Sight>) -> Self {
        let traits = Traits {
            finds_by_key: true,
            visibility_delay: Duration::ZERO,
            // A create is the work of the caller's own process: it claims its folder within the request time-out or
            // not at all, and nothing acts for it when that process is gone.
            late_commit_window: Duration::ZERO,
            // A disk that is slow to sync, and not much else: creates wait for each other only while they claim.
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
            free: settings.price_per_hour == MicroDollars::ZERO,
            agent: None,
            sees_account: true,
            rate: Duration::ZERO,
            // All of its boot is one: its agent starts.
            phases: Vec::new(),
            phase_timeout: ACQUIRE_TIMEOUT,
        };
        let root = resolved(&settings.root);
        let inner = Inner {
            settings,
            traits,
            root: Root::new(root),
            clock,
            sight,
            claims: std::sync::Mutex::new(()),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// What this computer is. GPUs are asked for once: that takes seconds.
    async fn facts(&self) -> Facts {
        let gpus = self.inner.sight.gpus.get_or_init(facts::gpus).await.clone();
        facts::measure_with(self.inner.root.path(), gpus)
    }

    fn blind(&self, cause: Cause) -> Blind {
        Blind {
            provider: self.inner.settings.name.clone(),
            cause,
            retry_after: None,
        }
    }

    /// Runs file and process work where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> T {
        let inner = Arc::clone(&self.inner);
        let joined = tokio::task::spawn_blocking(move || work(&inner)).await;
        joined.expect("file work does not panic and is never aborted")
    }

    async fn listing(&self, prefix: &str) -> Result<Vec<Machine>, Blind> {
        let facts = self.facts().await;
        let prefix = prefix.to_owned();
        let listed = self
            .blocking(move |inner| inner.list(&prefix, &facts))
            .await;
        listed.map_err(|cause| self.blind(cause))
    }

    /// The one shape that there is. Sold out it is still told: a machine that is replaced gives its slot back first.
    async fn offer(&self) -> Result<Quote, Blind> {
        let facts = self.facts().await;
        let taken = self.blocking(Inner::taken).await;
        let taken = taken.map_err(|cause| self.blind(cause))?;
        let free = self.inner.slots().saturating_sub(taken);
        Ok(Quote {
            provider: self.inner.settings.name.clone(),
            id: QuoteId(QUOTE.to_owned()),
            facts,
            price_per_hour: self.inner.settings.price_per_hour,
            disk: DiskRange::default(),
            supply: Supply::Many(free),
            bid: None,
        })
    }
}

impl Inner {
    fn slots(&self) -> u32 {
        self.settings.slots.unwrap_or_else(facts::cpus)
    }

    fn look(&self) -> Result<Processes, Cause> {
        Processes::look().map_err(|error| {
            let message = format!("cannot see the processes of this computer: {error}");
            Cause::new(FailureClass::Unknown, message)
        })
    }

    /// The keys of all machines: those with a folder, and those of which only processes are left.
    fn keys(&self, processes: &Processes) -> Result<Vec<RequestKey>, Cause> {
        let listing = self.root.list().map_err(|error| cause(&error))?;
        if let Some(foreign) = listing.foreign {
            let message = format!("{} is no machine of ours", foreign.display());
            let cause = Cause::new(FailureClass::Config, message);
            return Err(cause.hint("move it away: only machines live in that folder"));
        }
        let mut keys = listing.keys;
        for folder in processes.folders_below(self.root.path()) {
            let name = folder.file_name().and_then(|name| name.to_str());
            keys.extend(name.and_then(|name| name.parse().ok()));
        }
        keys.sort();
        keys.dedup();
        Ok(keys)
    }

    /// How many slots are taken, for a quote: by the folders. A launch looks closer.
    fn taken(&self) -> Result<u32, Cause> {
        let keys = self.keys(&Processes::default())?;
        Ok(u32::try_from(keys.len()).unwrap_or(u32::MAX))
    }

    fn list(&self, prefix: &str, facts: &Facts) -> Result<Vec<Machine>, Cause> {
        let processes = self.look()?;
        let keys = self.keys(&processes)?;
        let wanted = keys.iter().filter(|key| key.as_str().starts_with(prefix));
        let shown = wanted.map(|key| self.show(key, &processes, facts));
        shown.filter_map(Result::transpose).collect()
    }

    /// One machine; none when neither its folder nor a process of it is there.
    fn show(
        &self,
        key: &RequestKey,
        processes: &Processes,
        facts: &Facts,
    ) -> Result<Option<Machine>, Cause> {
        let path = self.root.machine(key);
        let there = is_folder(&path).map_err(|error| cause(&error))?;
        let left = processes.agent_of(&path);
        if !there && left.is_none() {
            return Ok(None);
        }
        let record = self.root.read(key).map_err(|error| cause(&error))?;
        let (status, contact) = match &record {
            Some(record) => self.status(record, processes),
            None if there => dead("it was never finished"),
            None => dead("its folder is gone, and some of its processes still run"),
        };
        Ok(Some(Machine {
            id: key.as_str().parse().expect("a key is printable and short"),
            request_key: Some(key.clone()),
            name: Label::new(key.as_str()),
            status,
            price_per_hour: record
                .as_ref()
                .map_or(self.settings.price_per_hour, |record| record.price_per_hour),
            facts: facts.clone(),
            contact,
            created_at: record.map(|record| record.created_at),
            ended_at: None,
            told_at: None,
            away_price: None,
        }))
    }

    fn status(&self, record: &Record, processes: &Processes) -> (MachineStatus, Contact) {
        let path = self.root.machine(&record.request_key);
        if record.boot_id != boot_id() {
            return dead("this computer was started anew since");
        }
        // A create that was cut right after the start has no number yet; the process carries the folder.
        let agent = record.agent.or_else(|| processes.agent_of(&path));
        if !agent.is_some_and(|agent| processes.lives(agent)) {
            let last = last_line(&path.join(launch::OUTPUT)).unwrap_or_default();
            let words = if last.is_empty() {
                "its agent is not running".to_owned()
            } else {
                format!("its agent is not running; its last words: {last}")
            };
            return dead(&words);
        }
        match Folder::new(path).read_contact() {
            Ok(Some(contact)) => (MachineStatus::Running, contact),
            Ok(None) => pending("its agent is starting"),
            Err(_) => pending("its agent's address cannot be read"),
        }
    }
}

/// The same path from every working folder and through every link: processes carry it, and it is looked for later. What is
/// not there yet will be no link.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = absolute.ancestors().find_map(|above| {
        let real = above.canonicalize().ok()?;
        Some(real.join(absolute.strip_prefix(above).ok()?))
    });
    // Joining an empty rest would leave a slash at the end.
    there.map_or(absolute, |path| path.components().collect())
}

fn dead(words: &str) -> (MachineStatus, Contact) {
    (MachineStatus::Dead(words.to_owned()), Contact::default())
}

fn pending(words: &str) -> (MachineStatus, Contact) {
    (
        MachineStatus::Pending(Phase::new(words)),
        Contact::default(),
    )
}

/// Whether it is there; an error when that cannot be told.
fn is_folder(path: &Path) -> Result<bool, FolderError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FolderError::Io {
            verb: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

/// The last `max` bytes of a file; nothing when there is none.
fn tail(path: &Path, max: usize) -> std::io::Result<Vec<u8>> {
    let mut file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        file => file?,
    };
    let max = max as u64;
    let start = file.metadata()?.len().saturating_sub(max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last line that says something, printable and short.
fn last_line(path: &Path) -> Option<String> {
    let bytes = tail(path, 4096).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    let printable = line.trim().chars().filter(|c| !c.is_control());
    Some(printable.take(200).collect())
}

fn key_of(id: &MachineId) -> Option<RequestKey> {
    id.as_str().parse().ok()
}

#[async_trait]
impl Provider for LocalProvider {
    fn kind(&self) -> &'static str {
        "local"
    }

    fn traits(&self) -> &Traits {
        &self.inner.traits
    }

    fn bills(&self) -> bool {
        false
    }

    fn shares_disk(&self) -> bool {
        true
    }

    async fn search(&self, _: &Requirement, _: Bytes) -> Result<Vec<Quote>, Blind> {
        Ok(vec![self.offer().await?])
    }

    async fn quote(&self, id: &QuoteId, _: Bytes) -> Result<Option<Quote>, Blind> {
        crash_point("a quote, not yet read again");
        if id.0 != QUOTE {
            return Ok(None);
        }
        let offer = self.offer().await?;
        Ok((offer.supply != Supply::Many(0)).then_some(offer))
    }

    /// The account is this computer and the folder of the machines: another one's listing says nothing about them.
    async fn account(&self) -> Result<Option<Account>, Blind> {
        let computer = Computer::this();
        let root = self.inner.root.path().display();
        let whose = format!("{} {root}", computer.id);
        Ok(Some(Account {
            id: Fingerprint::of(whose.as_bytes()).short(),
            api_key: None,
            key_fingerprint: String::new(),
            url: Some(format!("file://{}{root}", computer.name)),
            programs: None,
            ssh_keys: Vec::new(),
        }))
    }

    async fn create(&self, request: CreateRequest) -> Outcome<Machine> {
        let facts = self.facts().await;
        crash_point("a create, not yet sent");
        let sent = self.inner.clock.boottime();
        let created = self
            .blocking(move |inner| inner.create(&request, &facts, sent))
            .await;
        crash_point("a create, just answered");
        created
    }

    async fn find(&self, key_prefix: &str) -> Result<Vec<Machine>, Blind> {
        self.listing(key_prefix).await
    }

    async fn list(&self) -> Result<Vec<Machine>, Blind> {
        self.listing("").await
    }

    async fn describe(&self, id: &MachineId) -> Result<Option<Machine>, Blind> {
        let Some(key) = key_of(id) else {
            return Ok(None);
        };
        let facts = self.facts().await;
        let shown = self
            .blocking(move |inner| inner.show(&key, &inner.look()?, &facts))
            .await;
        shown.map_err(|cause| self.blind(cause))
    }

    async fn release(&self, id: &MachineId) -> Result<Released, Cause> {
        crash_point("a release, not yet sent");
        let released = match key_of(id) {
            Some(key) => self.end(key).await,
            None => Ok(Released::Unknown),
        };
        crash_point("a release, just answered");
        released
    }

    async fn logs(&self, id: &MachineId, max: usize) -> Result<Vec<u8>, Cause> {
        let none = || {
            let message = format!("there is no machine {id} on this computer");
            Cause::new(FailureClass::Unknown, message)
        };
        let key = key_of(id).ok_or_else(none)?;
        let path = self.inner.root.machine(&key);
        if !is_folder(&path).map_err(|error| cause(&error))? {
            return Err(none());
        }
        let read = self
            .blocking(move |_| {
                // What the program printed comes last: a panic is there and not in the log.
                let mut bytes = tail(&Folder::new(&path).log(), max)?;
                bytes.extend(tail(&path.join(launch::OUTPUT), max)?);
                Ok::<_, std::io::Error>(bytes.split_off(bytes.len().saturating_sub(max)))
            })
            .await;
        read.map_err(|error| {
            let message = format!("cannot read the log of {id}: {error}");
            Cause::new(FailureClass::Unknown, message)
        })
    }
}
