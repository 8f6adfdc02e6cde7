//! What is kept on this computer of each machine that a program got: a file that is there before the program is, and until the
//! machine was given back.
//!
//! It holds what `acquire` printed, which may be confidential, so that only its owner can read it and it goes into no state.
//! A file that cannot be read makes the provider blind: it never guesses, and never skips.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stageline_core::id::{Fingerprint, LeaseId, MachineId, Name, RequestKey};
use stageline_core::offer::Facts;
use stageline_core::resource::{Cause, FailureClass};
use stageline_core::topology::Programs;
use stageline_core::unit::{MicroDollars, Millis, Timestamp};

use crate::agent::folder::{self, FolderError};
use crate::provider::CreateRequest;
use crate::provider::local::process::{ProcessId, boot_id, identify};

/// The version of [`Record`].
const FORMAT: u32 = 1;

/// Variables that say what `acquire` is to do; the contract has two of them for it alone.
const ACQUIRE_ALONE: [&str; 4] = [
    "STAGELINE_VERB",
    "STAGELINE_START",
    "ERRAND_LEASE_WHERE",
    "ERRAND_LEASE_LOGIN",
];

/// The alphabet of a ULID.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// How far a machine is, as far as its programs tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stage {
    /// `acquire` runs, or was cut short.
    Acquiring,
    /// `acquire` said that it exists.
    Held,
    /// `release` has been asked for, and has not said yet that it is done.
    Releasing,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// By which its try is found.
    pub request_key: RequestKey,
    /// Which machine it is.
    pub lease: LeaseId,
    /// The `[offer.NAME]`.
    pub offer: Name,
    /// What it costs.
    pub price_per_hour: MicroDollars,
    /// What its program `facts` said that it is; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// When its `acquire` was begun.
    pub created_at: Timestamp,
    /// How far it is.
    pub stage: Stage,
    /// Its `acquire` was never seen to end: it may still make something.
    #[serde(default)]
    pub cut: bool,
    /// When a `release` succeeded for one that was cut.
    #[serde(default)]
    pub swept_at: Option<Timestamp>,
    /// Who waits for its `acquire`, and that itself.
    pub owner: Option<ProcessId>,
    /// See `owner`.
    pub acquire: Option<ProcessId>,
    /// In which run of this computer.
    pub boot_id: String,
    /// The last line that `acquire` printed; empty when it was cut short.
    pub state: String,
    /// The variables that `acquire` was handed and that are no secret: `release` gets them too.
    #[serde(default)]
    pub handed: BTreeMap<String, String>,
    /// Where its agent may be reached.
    pub direct: Vec<SocketAddr>,
    /// Its agent was pushed there.
    #[serde(default)]
    pub pushed: bool,
    /// The programs that it was made with, and where they run.
    pub programs: Programs,
    /// See `programs`.
    pub folder: PathBuf,
    /// How long each of these could take.
    #[serde(default)]
    pub timeout: Option<Millis>,
}

/// What the program calls a machine: `ERRAND_LEASE_ID`, 26 digits that follow from the request key alone.
pub(super) fn lease_id(key: &RequestKey) -> MachineId {
    let text = format!("stageline lease v1\n{key}");
    let digest = Fingerprint::of(text.as_bytes());
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest.0[..16]);
    let mut number = u128::from_be_bytes(bits);
    let mut digits = [0; 26];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[usize::try_from(number & 31).expect("five bits")];
        number >>= 5;
    }
    let text = String::from_utf8_lossy(&digits);
    text.parse().expect("26 printable characters")
}

impl Record {
    /// Of a machine that is about to be got.
    pub fn begin(
        of: &CreateRequest,
        offer: Name,
        at: Timestamp,
        programs: &Programs,
        (folder, timeout): (&Path, Duration),
    ) -> Self {
        Self {
            format: FORMAT,
            request_key: of.request_key.clone(),
            lease: of.boot.lease.clone(),
            offer,
            price_per_hour: of.quote.price_per_hour,
            facts: programs.facts.as_ref().map(|_| of.quote.facts.clone()),
            created_at: at,
            stage: Stage::Acquiring,
            cut: true,
            swept_at: None,
            owner: identify(std::process::id()),
            acquire: None,
            boot_id: boot_id(),
            state: String::new(),
            handed: BTreeMap::new(),
            direct: Vec::new(),
            pushed: false,
            programs: programs.clone(),
            folder: folder.to_owned(),
            timeout: Some(Millis(
                u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            )),
        }
    }

    /// Keeps what `acquire` is handed, but for what is of use to that one alone.
    pub fn hand(&mut self, variables: &BTreeMap<String, String>) {
        let kept = variables.iter();
        let kept = kept.filter(|(name, _)| !ACQUIRE_ALONE.contains(&name.as_str()));
        self.handed = kept
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
    }

    /// What it is called.
    pub fn id(&self) -> MachineId {
        lease_id(&self.request_key)
    }

    /// Whether this process, told from a later one with its number, still lives.
    pub fn lives(&self, process: Option<ProcessId>) -> bool {
        let same_boot = self.boot_id == boot_id();
        process.is_some_and(|process| {
            let now = u32::try_from(process.pid).ok().and_then(identify);
            same_boot && now == Some(process)
        })
    }
}

/// All that there are.
#[derive(Clone, Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    pub fn new(root: PathBuf) -> Self {
        Self(root)
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.0
    }

    fn path(&self, id: &MachineId) -> Option<PathBuf> {
        let text = id.as_str();
        let ours = text.len() == 26 && text.bytes().all(|byte| DIGITS.contains(&byte));
        ours.then(|| self.0.join(format!("{text}.json")))
    }

    /// Where the last words of its `acquire` are.
    fn log(&self, id: &MachineId) -> Option<PathBuf> {
        let path = self.path(id)?;
        Some(path.with_extension("log"))
    }

    /// The record of one machine.
    pub fn read(&self, id: &MachineId) -> Result<Option<Record>, Cause> {
        let Some(path) = self.path(id) else {
            return Ok(None);
        };
        let record: Option<Record> = folder::read_json(&path).map_err(|error| cause(&error))?;
        match record {
            Some(record) if record.format != FORMAT => {
                let message = format!(
                    "{} was written by another version (format {})",
                    path.display(),
                    record.format
                );
                Err(Cause::new(FailureClass::Config, message).hint("use that version of stageline"))
            }
            record => Ok(record),
        }
    }

    /// Writes it, durably.
    pub fn write(&self, record: &Record) -> Result<(), Cause> {
        let path = self.path(&record.id()).expect("it is one of ours");
        folder::make_dir(&self.0)
            .and_then(|()| folder::write_json(&path, record))
            .map_err(|error| cause(&error))
    }

    /// Removes it; not there is done.
    pub fn remove(&self, id: &MachineId) -> Result<(), Cause> {
        for path in [self.log(id), self.path(id)].into_iter().flatten() {
            folder::remove_file(&path).map_err(|error| cause(&error))?;
        }
        Ok(())
    }

    /// Keeps what `acquire` said.
    pub fn keep_words(&self, id: &MachineId, said: &[String]) {
        if let Some(path) = self.log(id) {
            // Only for people.
            folder::write_whole(&path, said.join("\n").as_bytes()).ok();
        }
    }

    /// What `acquire` said.
    pub fn words(&self, id: &MachineId) -> Vec<u8> {
        let path = self.log(id);
        path.and_then(|path| std::fs::read(path).ok())
            .unwrap_or_default()
    }

    /// Every record.
    pub fn all(&self) -> Result<Vec<Record>, Cause> {
        let io = |source| {
            let (verb, path) = ("list", self.0.clone());
            cause(&FolderError::Io { verb, path, source })
        };
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(io)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let name = path.file_stem().and_then(|name| name.to_str());
            let id = name.and_then(|name| name.parse::<MachineId>().ok());
            // One that is removed meanwhile is no machine any more.
            all.extend(id.map(|id| self.read(&id)).transpose()?.flatten());
        }
        all.sort_by_key(Record::id);
        Ok(all)
    }
}

fn cause(error: &FolderError) -> Cause {
    let hint = "mend that file or folder, then run the same command again; it is what is known of machines that programs got";
    Cause::new(FailureClass::Config, error.to_string()).hint(hint)
}
