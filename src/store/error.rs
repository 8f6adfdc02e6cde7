//! What can be wrong with a store, where, and what to do about it.
//!
//! An answer that cannot be trusted is never turned into an empty state. Errors of the file system are told apart as far
//! as they ask for different deeds: read-only, denied, full, not a folder.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use stageline_core::id::{Epoch, JournalNumber, PlanId};
use stageline_core::journal::FORMAT;
use stageline_core::state::FoldError;
use stageline_core::unit::Timestamp;

/// Why the store could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL is of a kind that this build has no code for.
    #[error("this build has no `{scheme}` state stores")]
    Scheme {
        /// Such as `s3`.
        scheme: String,
    },
    /// The URL is of a kind whose code this build was made without.
    #[error(
        "this build has no `{scheme}` state stores: it was made without the feature `cloud-state`"
    )]
    LeftOut {
        /// Such as `s3`.
        scheme: String,
    },
    /// No answer, or one that promises a better one later.
    #[error("{place} cannot be reached (while {doing}): {what}")]
    Unreachable {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
        /// Who was asked, and what came of it.
        what: String,
    },
    /// Nothing to show who we are, or not enough.
    #[error("{place} does not let us in (while {doing}): {what}")]
    Credentials {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
        /// Who was asked, and what came of it.
        what: String,
    },
    /// The bucket is not there.
    #[error("there is no bucket for {place}: {what}")]
    NoBucket {
        /// The store.
        place: String,
        /// Who was asked, and what came of it.
        what: String,
    },
    /// The request is not one that this server takes.
    #[error("{place} refused the request (while {doing}): {what}")]
    Rejected {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
        /// Who was asked, and what came of it.
        what: String,
    },
    /// The URL is none.
    #[error("`{url}` is not a place for state: {why}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// Something that is no folder stands where one belongs.
    #[error("{place} is not a folder")]
    NotAFolder {
        /// Its path.
        place: String,
    },
    /// The file system takes no writes.
    #[error("{place} is on a read-only file system (while {doing})")]
    ReadOnly {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
    },
    /// We may not.
    #[error("no permission for {place} (while {doing})")]
    Denied {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
    },
    /// No space, or over quota.
    #[error("no space left for {place} (while {doing})")]
    Full {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
    },
    /// The fence stands on create-if-absent, and this store lets a second create pass.
    #[error("{place} cannot hold state: {what}")]
    Unfit {
        /// The store.
        place: String,
        /// What the probe saw.
        what: String,
    },
    /// What is stored cannot be the whole truth.
    #[error("the state in {place} is damaged: {object}: {what}")]
    Corrupt {
        /// The store.
        place: String,
        /// Which object.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// Written by a newer stageline.
    #[error("{object} in {place} has format {found}; this stageline reads up to {FORMAT}")]
    Newer {
        /// The store.
        place: String,
        /// Which object.
        object: String,
        /// Its format.
        found: u32,
    },
    /// It goes on somewhere else.
    #[error("the state in {place} was moved: it goes on at {to}")]
    Moved {
        /// The store.
        place: String,
        /// Where it goes on.
        to: String,
    },
    /// Something else is where a state was to be moved to.
    #[error("{place} holds a state already that this one cannot follow")]
    Occupied {
        /// The store.
        place: String,
    },
    /// It kept changing while it was read.
    #[error("{place} changed {times} times while it was read")]
    Restless {
        /// The store.
        place: String,
        /// How often.
        times: u32,
    },
    /// This store was opened to read only.
    #[error("{place} was opened for reading only")]
    OpenedToRead {
        /// The store.
        place: String,
    },
    /// Anything else.
    #[error("{place}: {doing} failed: {what}")]
    Failed {
        /// The store.
        place: String,
        /// What was attempted.
        doing: String,
        /// The store's words.
        what: String,
    },
}

impl StoreError {
    /// What to do now.
    pub fn hint(&self) -> String {
        match self {
            Self::Scheme { .. } => {
                "use a folder (file://./state) or a bucket (s3://, gs://, az://)".to_owned()
            }
            Self::Url { .. } => {
                "give a folder such as ./state, or a bucket with a prefix such as s3://bucket/prefix".to_owned()
            }
            Self::LeftOut { .. } => {
                "use a folder, or a stageline that was built with the feature (it is, unless left out)".to_owned()
            }
            Self::Unreachable { place, .. } => format!(
                "look at the network, and at {}; then run the same command again: nothing is lost",
                address_of(place)
            ),
            Self::Credentials { place, .. } => credentials_for(place).to_owned(),
            Self::NoBucket { place, .. } => format!(
                "create it, or correct the name in --state or `[state] url`; look also at {}",
                address_of(place)
            ),
            Self::Rejected { place, .. } => format!("look at {}", address_of(place)),
            Self::NotAFolder { .. } => {
                "move that file away, or name another folder with --state".to_owned()
            }
            Self::ReadOnly { .. } => {
                "mount it writable or name another folder with --state; `state list` and `show` work as it is"
                    .to_owned()
            }
            Self::Denied { .. } => {
                "run as the user that owns the folder, or change its owner or mode".to_owned()
            }
            Self::Full { .. } => {
                "make room and run the same command again; nothing half-written counts".to_owned()
            }
            Self::Unfit { .. } => {
                "keep the state on a file system or bucket with create-if-absent (hard links), such as a local disk"
                    .to_owned()
            }
            Self::Corrupt { .. } => {
                "`stageline state repair` says what is lost and goes on with the rest; or put the object back from a \
                 copy. Do not delete the folder: machines that it records may be running, and it is what names them"
                    .to_owned()
            }
            Self::Moved { .. } => "name that place with --state, or that topology name; if the move was cut off, say the same `stageline state push` or `state mv` again".to_owned(),
            Self::Occupied { .. } => "name an empty place; states are not merged".to_owned(),
            Self::Newer { .. } => "use the stageline that wrote it, or a newer one".to_owned(),
            Self::Restless { .. } => {
                "another stageline is working on it; wait for it, then run this again".to_owned()
            }
            Self::OpenedToRead { .. } => {
                "this is a bug in stageline: a command that writes must open the store for writing".to_owned()
            }
            Self::Failed { .. } => "look at the folder and its disk, then run this again".to_owned(),
        }
    }

    /// Whether the same request may work a moment later without anyone doing anything.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Failed { .. } | Self::Unreachable { .. } => true,
            Self::Scheme { .. }
            | Self::LeftOut { .. }
            | Self::Credentials { .. }
            | Self::NoBucket { .. }
            | Self::Rejected { .. }
            | Self::Url { .. }
            | Self::NotAFolder { .. }
            | Self::ReadOnly { .. }
            | Self::Denied { .. }
            | Self::Full { .. }
            | Self::Unfit { .. }
            | Self::Corrupt { .. }
            | Self::Newer { .. }
            | Self::Moved { .. }
            | Self::Occupied { .. }
            | Self::Restless { .. }
            | Self::OpenedToRead { .. } => false,
        }
    }

    /// An error of the file system.
    pub(super) fn of_io(place: &str, doing: &str, error: &io::Error) -> Self {
        Self::of_kind(place, doing, error.kind(), error.to_string())
    }

    /// An error of the object store, by the error of the file system inside it when there is one.
    pub(super) fn of_object(place: &str, doing: &str, error: &object_store::Error) -> Self {
        let mut what = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            if let Some(io) = inner.downcast_ref::<io::Error>() {
                return Self::of_kind(place, doing, kind_of(io), what);
            }
            if !what.contains(&inner.to_string()) {
                what = format!("{what}: {inner}");
            }
            source = inner.source();
        }
        Self::of_kind(place, doing, io::ErrorKind::Other, what)
    }

    fn of_kind(place: &str, doing: &str, kind: io::ErrorKind, what: String) -> Self {
        let (place, doing) = (place.to_owned(), doing.to_owned());
        if kind == io::ErrorKind::ReadOnlyFilesystem {
            Self::ReadOnly { place, doing }
        } else if kind == io::ErrorKind::PermissionDenied {
            Self::Denied { place, doing }
        } else if kind == io::ErrorKind::StorageFull || kind == io::ErrorKind::QuotaExceeded {
            Self::Full { place, doing }
        } else if kind == io::ErrorKind::NotADirectory {
            Self::NotAFolder { place }
        } else {
            Self::Failed { place, doing, what }
        }
    }
}

/// What says where a bucket is reached.
fn address_of(place: &str) -> &'static str {
    match place.split_once("://") {
        Some(("gs", _)) => "the endpoint (GOOGLE_BASE_URL, when set)",
        Some(("az", _)) => {
            "the account and the endpoint (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT)"
        }
        Some(_) | None => "the region and the endpoint (AWS_REGION; AWS_ENDPOINT_URL, when set)",
    }
}

/// Where credentials for a bucket come from.
fn credentials_for(place: &str) -> &'static str {
    match place.split_once("://") {
        Some(("gs", _)) => {
            "type `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a service account's \
             key file; the account needs to read, create, overwrite, delete and list objects there"
        }
        Some(("az", _)) => {
            "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN, or \
             AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET)"
        }
        Some(_) | None => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (for a profile or a login type \
             `eval \"$(aws configure export-credentials --format env)\"`); they need GetObject, PutObject, DeleteObject \
             and ListBucket there"
        }
    }
}

/// The kind of the error that an error of the file system may be wrapped around.
fn kind_of(error: &io::Error) -> io::ErrorKind {
    error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<io::Error>())
        .map_or_else(|| error.kind(), kind_of)
}

/// Who wrote the entry that stands in our way, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// `user@host`, process id.
    pub by: String,
    /// `apply`, `destroy`, ...
    pub command: String,
    /// Since when, by the clock of its computer: for people.
    pub since: Timestamp,
}

impl std::fmt::Display for Rival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { by, command, since } = self;
        write!(
            f,
            "`{command}` by {by}, which began at {since:.0} (its clock)"
        )
    }
}

/// Why records did not get into the journal. Once one of these but [`AppendError::Impossible`] has happened, every
/// later append of this process fails with it too.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// Another run has begun: this one is over.
    #[error("this run was fenced at entry {n}: {}", describe(rival.as_ref()))]
    Fenced {
        /// Where.
        n: JournalNumber,
        /// By whom.
        rival: Option<Rival>,
    },
    /// Nobody can tell whether the entry is there.
    #[error("it is in doubt whether entry {n} was written: {cause}")]
    InDoubt {
        /// Which.
        n: JournalNumber,
        /// Why.
        cause: Arc<StoreError>,
    },
    /// The records cannot follow the state; nothing was written. A bug in us.
    #[error("the records were refused: {0}")]
    Impossible(FoldError),
    /// The run has ended.
    #[error("this run has ended")]
    Closed,
}

impl AppendError {
    /// What to do now.
    pub fn hint(&self) -> String {
        match self {
            Self::Fenced { .. } => {
                "nothing is lost, and what this run had under way is in the other one's hands: when that has ended, type \
                 `stageline plan` to see what is left to do"
                    .to_owned()
            }
            Self::InDoubt { cause, .. } => {
                format!("{} (the next run reads what is there and goes on)", cause.hint())
            }
            Self::Impossible(_) | Self::Closed => "this is a bug in stageline".to_owned(),
        }
    }
}

fn describe(rival: Option<&Rival>) -> String {
    rival.map_or_else(
        || "another run has gone on in its place".to_owned(),
        |rival| format!("{rival}, goes on in its place"),
    )
}

/// Why a run could not begin. Nothing was consumed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BeginError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The recorded state is not the one that the plan was drafted from.
    #[error("what is recorded changed after this plan was drafted")]
    Stale,
    /// The plan was carried out already, wholly or in part.
    #[error("plan {plan} was {} by run {epoch}", if *finished { "carried out" } else { "begun and not finished" })]
    Consumed {
        /// Which.
        plan: PlanId,
        /// By which run.
        epoch: Epoch,
        /// To its end.
        finished: bool,
    },
    /// Asked to resume a plan that another plan has followed, or that never began.
    #[error("plan {plan} cannot be resumed: {why}")]
    NotResumable {
        /// Which.
        plan: PlanId,
        /// Why.
        why: &'static str,
    },
    /// A run has begun and not ended.
    #[error("{rival} (run {epoch}), has not ended")]
    RunOpen {
        /// Which.
        epoch: Epoch,
        /// Whose.
        rival: Rival,
    },
    /// The first entry.
    #[error("the first entry could not be written: {0}")]
    Append(#[from] AppendError),
}

impl BeginError {
    /// What to do now.
    pub fn hint(&self) -> String {
        match self {
            Self::Store(error) => error.hint(),
            Self::Stale => "draft it again: `stageline plan`".to_owned(),
            Self::Consumed { finished: true, .. } => "draft a new one: `stageline plan`".to_owned(),
            Self::Consumed {
                finished: false, ..
            } => "run `stageline apply` with the same plan file to go on with it".to_owned(),
            Self::NotResumable { .. } => "draft a new one: `stageline plan`".to_owned(),
            Self::RunOpen { .. } => "wait until it has ended".to_owned(),
            Self::Append(error) => error.hint(),
        }
    }
}
