//! Where state can be kept: a folder, or a bucket with a prefix; and what a bucket needs of our surroundings.
//!
//! A place is only named here, never opened. It carries no credential: one in the text is refused without repeating it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;

#[cfg(feature = "cloud-state")]
use secrecy::SecretString;
use stageline_core::id::Name;

use super::StoreError;
use crate::ambient;

/// A place that holds the state of any number of topologies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateUrl {
    /// A folder on this computer, or on a file system that it sees.
    Folder(PathBuf),
    /// A part of a bucket, which several computers share.
    Bucket(Bucket),
}

/// Whose API a bucket speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// S3 and what speaks like it.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Cloud {
    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// A part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Whose.
    pub cloud: Cloud,
    /// The bucket or container.
    pub name: String,
    /// What all names in it begin with, without slashes at the ends; may be empty.
    pub prefix: String,
}

impl StateUrl {
    /// A folder.
    pub fn of(root: PathBuf) -> Self {
        Self::Folder(root)
    }

    /// The folder that holds the state of every topology, where it is one.
    pub fn root(&self) -> Option<&FilePath> {
        match self {
            Self::Folder(root) => Some(root),
            Self::Bucket(_) => None,
        }
    }

    /// Whether other computers may use it too.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Folder(_) => false,
            Self::Bucket(_) => true,
        }
    }
}

/// What the part of one topology, or of one workspace of it, is called below a root.
pub fn folder_name(topology: &Name, workspace: Option<&Name>) -> String {
    // A name has no dot, so the two kinds never meet.
    workspace.map_or_else(
        || topology.to_string(),
        |workspace| format!("{topology}.{workspace}"),
    )
}

impl FromStr for StateUrl {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let wrong = |shown: &str, why: &str| StoreError::Url {
            url: shown.to_owned(),
            why: why.to_owned(),
        };
        let (cloud, rest) = match text.split_once("://") {
            None => return folder(text, text),
            Some(("file", path)) => return folder(text, path),
            Some(("s3", rest)) => (Cloud::S3, rest),
            Some(("gs", rest)) => (Cloud::Gcs, rest),
            Some(("az", rest)) => (Cloud::Azure, rest),
            Some((scheme, _)) => {
                return Err(StoreError::Scheme {
                    scheme: scheme.chars().take(16).collect(),
                });
            }
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let scheme = cloud.scheme();
        if bucket.contains('@') || rest.contains('?') {
            // Not repeated: it may hold a secret.
            let why = "it carries credentials or options, which would be shown; give them by the environment";
            return Err(wrong(&format!("{scheme}://..."), why));
        }
        if bucket.is_empty() {
            return Err(wrong(text, "it names no bucket"));
        }
        let prefix = prefix.trim_matches('/');
        let plain = rest.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        let parts = prefix
            .split('/')
            .all(|part| !matches!(part, "." | "..") && (prefix.is_empty() || !part.is_empty()));
        if !plain || !parts {
            return Err(wrong(text, "its prefix is not plain names between slashes"));
        }
        Ok(Self::Bucket(Bucket {
            cloud,
            name: bucket.to_owned(),
            prefix: prefix.to_owned(),
        }))
    }
}

fn folder(text: &str, path: &str) -> Result<StateUrl, StoreError> {
    if path.is_empty() || path.contains('\0') {
        return Err(StoreError::Url {
            url: text.to_owned(),
            why: "it names no folder".to_owned(),
        });
    }
    Ok(StateUrl::Folder(PathBuf::from(path)))
}

impl fmt::Display for StateUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(root) => write!(f, "file://{}", root.display()),
            Self::Bucket(bucket) => write!(f, "{bucket}"),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.cloud.scheme(), self.name)?;
        match self.prefix.as_str() {
            "" => Ok(()),
            prefix => write!(f, "/{prefix}"),
        }
    }
}

/// What a store may learn of the process it runs in: how to reach a bucket, and where secrets are kept that do not go
/// into one. Its values are never shown.
#[derive(Clone, Default)]
pub struct Surroundings {
    variables: BTreeMap<String, String>,
    keys: Option<PathBuf>,
    beside: Option<PathBuf>,
}

impl Surroundings {
    /// Of this process.
    pub fn of_process() -> Self {
        let mut variables = BTreeMap::new();
        for prefix in ["AWS_", "AZURE_", "GOOGLE_"] {
            variables.extend(ambient::variables(prefix));
        }
        for name in ["STORAGE_EMULATOR_HOST", "CI"] {
            variables.extend(ambient::variable(name).map(|value| (name.to_owned(), value)));
        }
        Self {
            variables,
            keys: ambient::state_home().map(|home| home.join("stageline").join("keys")),
            beside: None,
        }
    }

    /// These variables, and this folder for keys.
    pub fn new(variables: BTreeMap<String, String>, keys: Option<PathBuf>) -> Self {
        Self {
            variables,
            keys,
            beside: None,
        }
    }

    /// Looks for keys here too: a state that was in this folder once has left its own there.
    #[must_use]
    pub fn beside(mut self, folder: PathBuf) -> Self {
        self.beside = Some(folder);
        self
    }

    pub(super) fn folder_beside(&self) -> Option<&FilePath> {
        self.beside.as_deref()
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name)?;
        Some(value.as_str()).filter(|value| !value.is_empty())
    }

    /// Every variable of one cloud.
    #[cfg(feature = "cloud-state")]
    pub(super) fn of_cloud(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter();
        all.filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn keys(&self) -> Option<&FilePath> {
        self.keys.as_deref()
    }

    /// Whether nobody will come back to this computer's files.
    pub(super) fn is_ci(&self) -> bool {
        self.variable("CI").is_some_and(|value| value != "false")
    }

    /// Values that must not appear in a message.
    #[cfg(feature = "cloud-state")]
    pub(super) fn secrets(&self) -> Vec<SecretString> {
        let secretive = |name: &str| {
            let named = ["KEY", "SECRET", "TOKEN", "SAS", "CONNECTION_STRING"];
            let path = name.ends_with("_FILE") || name.ends_with("_PATH");
            named.iter().any(|word| name.contains(word)) && !path
        };
        let all = self.variables.iter();
        all.filter(|(name, value)| secretive(name) && value.len() >= 6)
            .map(|(_, value)| SecretString::from(value.clone()))
            .collect()
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.variables.keys().collect();
        f.debug_struct("Surroundings")
            .field("variables", &names)
            .field("keys", &self.keys)
            .finish()
    }
}
