//! The operator's identity: 32 secret bytes by which the agents of a topology know who may command them.
//!
//! It is made together with the lineage and never again: a state without its identity is refused by whatever talks to
//! agents, since a new one would be a stranger to them. Planning and destroying do not need it. It is never shown, and a
//! key file that others can read is refused. It never goes into a bucket: a state that several computers share has its
//! key in a file of each operator's own, named by the lineage.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use secrecy::zeroize::{Zeroize as _, Zeroizing};
use secrecy::{ExposeSecret as _, SecretString};
use stageline_core::id::{Lineage, OperatorId};
use stageline_core::state::Genesis;

use super::{Mode, Store, StoreError, local};
use crate::ambient::secret_file::{self, SecretFileError};
use crate::pipeline::keys::{self, Secret};

/// The file in the state's folder.
const KEY_FILE: &str = "identity.key";
/// The variable that brings it to a CI job. Read by the command line, not here.
pub const VARIABLE: &str = "STAGELINE_IDENTITY";

/// Why there is no identity to act with.
#[derive(Clone, Debug, thiserror::Error)]
pub enum IdentityError {
    /// Others can read it.
    #[error("{} can be read by others (mode {mode:o})", path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is no key.
    #[error("{origin} is not an identity: 64 hexadecimal digits")]
    Invalid {
        /// The file or the variable.
        origin: String,
    },
    /// There is none.
    #[error("the state in {place} belongs to operator {operator}, whose identity is not here")]
    Missing {
        /// The store.
        place: String,
        /// Whose it is.
        operator: OperatorId,
        /// Where its key belongs on this computer.
        key: String,
    },
    /// It is another operator's.
    #[error(
        "the state in {place} belongs to operator {operator}, but {origin} is operator {found}"
    )]
    Different {
        /// The store.
        place: String,
        /// Whose the state is.
        operator: OperatorId,
        /// Whose the identity is.
        found: OperatorId,
        /// The file or the variable.
        origin: String,
    },
    /// A bucket keeps no secret, and the environment names no folder that could.
    #[error(
        "the identity for {place} has no place on this computer: neither HOME nor XDG_STATE_HOME is set"
    )]
    NoFolder {
        /// The store.
        place: String,
    },
    /// It would be made where nobody finds it again.
    #[error(
        "the state in {place} is new and this is a CI job: the identity that it would make would end with the job"
    )]
    Passing {
        /// The store.
        place: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl IdentityError {
    /// What to do now.
    pub fn hint(&self) -> String {
        match self {
            Self::Exposed { path, .. } => format!(
                "if nobody has read it, type `chmod 600 {}`; else destroy and begin anew",
                path.display()
            ),
            Self::Invalid { origin } => format!("bring back {origin} as stageline made it"),
            Self::Missing { key, .. } => format!(
                "ask whoever made it for the key and keep it as {key} (mode 600), or set {VARIABLE} to its content; `plan` \
                 and `destroy` work without it"
            ),
            Self::Different { .. } => format!(
                "bring its {KEY_FILE} or set {VARIABLE}; `plan` and `destroy` work without it"
            ),
            Self::NoFolder { .. } | Self::Passing { .. } => format!(
                "set {VARIABLE} to 64 random hexadecimal digits (`openssl rand -hex 32`), as a secret that you keep"
            ),
            Self::Store(error) => error.hint(),
        }
    }
}

/// An operator's secret. Its public id is another one in each lineage.
#[derive(Debug)]
pub struct Identity {
    secret: Secret,
}

impl Identity {
    /// The identity that a recorded state belongs to.
    ///
    /// # Errors
    /// [`IdentityError`] when it is missing, another's, or exposed.
    pub fn of(
        store: &Store,
        genesis: &Genesis,
        variable: Option<&SecretString>,
    ) -> Result<Self, IdentityError> {
        let operator = genesis.operator;
        let place = store.place().to_owned();
        let lineage = &genesis.lineage;
        let Some((identity, origin)) = Self::find(store, lineage, variable)? else {
            let key = key_file(store, lineage).map_or_else(
                || format!("{KEY_FILE} in the state's folder"),
                |path| path.display().to_string(),
            );
            return Err(IdentityError::Missing {
                place,
                operator,
                key,
            });
        };
        let found = identity.operator(&genesis.lineage);
        if found == operator {
            Ok(identity)
        } else {
            Err(IdentityError::Different {
                place,
                operator,
                found,
                origin,
            })
        }
    }

    /// The identity for a journal that is about to get its first entry: the one that is there, or a new one, which is
    /// durable before this returns.
    ///
    /// # Errors
    /// [`IdentityError`] when it cannot be kept, or when the one that is there cannot be used.
    pub fn make(
        store: &Store,
        lineage: &Lineage,
        variable: Option<&SecretString>,
    ) -> Result<Self, IdentityError> {
        if let Some((found, _)) = Self::find(store, lineage, variable)? {
            return Ok(found);
        }
        let place = || store.place().to_owned();
        if store.mode == Mode::Read {
            return Err(StoreError::OpenedToRead { place: place() }.into());
        }
        if store.is_remote() && store.around.is_ci() {
            return Err(IdentityError::Passing { place: place() });
        }
        let path =
            key_file(store, lineage).ok_or_else(|| IdentityError::NoFolder { place: place() })?;
        let secret = Zeroizing::new(crate::ambient::random::<32>());
        keep(&path, &secret).map_err(|error| {
            let place = path.display().to_string();
            StoreError::of_io(&place, "writing the identity", &error)
        })?;
        // Another process may have been faster: theirs is the one.
        match Self::find(store, lineage, variable)? {
            Some((found, _)) => Ok(found),
            None => Err(super::failed(store.place(), "writing the identity", &"it is gone").into()),
        }
    }

    fn find(
        store: &Store,
        lineage: &Lineage,
        variable: Option<&SecretString>,
    ) -> Result<Option<(Self, String)>, IdentityError> {
        if let Some(text) = variable {
            let found = Self::parse(text.expose_secret(), VARIABLE)?;
            return Ok(Some((found, VARIABLE.to_owned())));
        }
        let beside = store.around.folder_beside().filter(|_| store.is_remote());
        let beside = beside.map(|folder| folder.join(KEY_FILE));
        for path in key_file(store, lineage).into_iter().chain(beside) {
            let Some(text) = read_key(&path, store.place())? else {
                continue;
            };
            let origin = path.display().to_string();
            return Ok(Some((Self::parse(&text, &origin)?, origin)));
        }
        Ok(None)
    }

    fn parse(text: &str, origin: &str) -> Result<Self, IdentityError> {
        let invalid = || IdentityError::Invalid {
            origin: origin.to_owned(),
        };
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return Err(invalid());
        }
        let mut secret = Box::new([0; 32]);
        for (byte, digits) in secret.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digit = |at: usize| char::from(digits[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                secret.zeroize();
                return Err(invalid());
            };
            *byte = u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte");
        }
        let identity = Self {
            secret: Secret::new(*secret),
        };
        secret.zeroize();
        Ok(identity)
    }

    /// The public id in one lineage.
    pub fn operator(&self, lineage: &Lineage) -> OperatorId {
        keys::operator(&self.secret, lineage).operator()
    }

    /// The secret, from which the keys of the operator and of each agent are derived.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// Where the key of a state is kept on this computer.
fn key_file(store: &Store, lineage: &Lineage) -> Option<PathBuf> {
    match store.folder() {
        Some(folder) => Some(folder.join(KEY_FILE)),
        None if store.is_remote() => {
            let keys = store.around.keys()?;
            Some(keys.join(format!("{lineage}.key")))
        }
        None => None,
    }
}

fn read_key(path: &Path, place: &str) -> Result<Option<Zeroizing<String>>, IdentityError> {
    let invalid = || IdentityError::Invalid {
        origin: path.display().to_string(),
    };
    match secret_file::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(SecretFileError::Exposed { mode }) => Err(IdentityError::Exposed {
            path: path.to_owned(),
            mode,
        }),
        Err(SecretFileError::NotAFile | SecretFileError::NotText | SecretFileError::TooLong) => {
            Err(invalid())
        }
        Err(SecretFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(SecretFileError::Io(error)) => {
            Err(StoreError::of_io(place, "reading the identity", &error).into())
        }
    }
}

/// Makes the key file whole or not at all, and never over one that is there.
fn keep(path: &Path, secret: &[u8; 32]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mut text = Zeroizing::new(String::with_capacity(65));
    for byte in secret {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).expect("a digit is below 16"));
        }
    }
    text.push('\n');
    let nonce = stageline_core::id::Nonce(crate::ambient::random());
    // Named so that what a kill leaves is swept.
    let staged = folder.join(format!("{}{nonce}", super::PROBE));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| match fs::hard_link(&staged, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    let removed = fs::remove_file(&staged);
    written?;
    removed?;
    local::sync_folder(folder)
}
