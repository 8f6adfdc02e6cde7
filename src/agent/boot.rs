//! What a rented machine's agent needs to know, as environment variables: clouds hand those to a machine, and no files.
//!
//! The package holds nothing beyond what its own machine must know: the agent's key and whom it obeys. It is cut into pieces,
//! since clouds limit the length of one variable. It refuses a package that is cut, and never shows what is in it.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret as _, SecretBox};
use serde::{Deserialize, Serialize};
use stageline_core::id::EndpointKey;

use super::folder::{self, Config, Folder, FolderError};
use crate::machine::control::RelayGrant;

/// Each piece is in a variable of this name and a number from 0 on.
pub const PIECE: &str = "STAGELINE_BOOT_";

/// Bytes of one piece: the tightest limit of a cloud is 256 for the value.
const PIECE_MAX: usize = 240;

/// More pieces than any package has.
const PIECES_MAX: usize = 128;

/// All that an agent is started with.
pub struct Package {
    /// The agent's secret key.
    pub key: SecretBox<[u8; 32]>,
    /// What it is told.
    pub config: Config,
    /// The relay to keep a connection to, with what it asks for.
    pub relay: Option<RelayGrant>,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    key: EndpointKey,
    config: Config,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    relay: Option<RelayGrant>,
}

impl Package {
    /// As environment variables.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let wire = Wire {
            // The type of public keys, for its hexadecimal digits only.
            key: EndpointKey(*self.key.expose_secret()),
            config: self.config.clone(),
            relay: self.relay.clone(),
        };
        let json = serde_json::to_vec(&wire).expect("our own files have string keys");
        let mut text = URL_SAFE_NO_PAD.encode(json);
        // Says that it is whole.
        text.push('.');
        let bytes = text.as_bytes().chunks(PIECE_MAX).enumerate();
        let piece = |(index, piece): (usize, &[u8])| {
            let piece = String::from_utf8_lossy(piece).into_owned();
            (format!("{PIECE}{index}"), piece)
        };
        bytes.map(piece).collect()
    }

    /// Out of environment variables; none when there is no package in them.
    ///
    /// # Errors
    /// In words, without the content, when a package is cut or is none.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        let pieces: Vec<String> = (0..PIECES_MAX)
            .map_while(|index| variable(&format!("{PIECE}{index}")))
            .collect();
        if pieces.is_empty() {
            return Ok(None);
        }
        let text = pieces.concat();
        let wrong = |why: &str| format!("the variables {PIECE}0.. {why}");
        let text = text
            .strip_suffix('.')
            .ok_or_else(|| wrong("are cut off: the last piece is missing"))?;
        let json = URL_SAFE_NO_PAD.decode(text);
        let wire: Option<Wire> = json
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok());
        let wire = wire.ok_or_else(|| wrong("hold nothing that this version can read"))?;
        Ok(Some(Self {
            key: SecretBox::new(Box::new(wire.key.0)),
            config: wire.config,
            relay: wire.relay,
        }))
    }

    /// Makes the agent's folder. One that is there already is left as it is: the agent only starts again.
    ///
    /// # Errors
    /// [`FolderError`] when it cannot be written.
    pub fn unpack(&self, dir: &Path) -> Result<(), FolderError> {
        folder::make_dir(dir)?;
        let folder = Folder::new(dir);
        if folder.config().exists() {
            return Ok(());
        }
        let digits = EndpointKey(*self.key.expose_secret()).to_string();
        folder::write_whole(&folder.key(), digits.as_bytes())?;
        // The configuration comes last: it says that all is there.
        folder.write_relay(self.relay.as_ref())?;
        folder::write_json(&folder.config(), &self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stageline_core::id::{Attempt, Generation, Lineage, OperatorId};

    fn package() -> Package {
        Package {
            key: SecretBox::new(Box::new([7; 32])),
            config: Config {
                operator: OperatorId([1; 32]),
                lineage: Lineage([2; 16]),
                lease: "lease.gpu[3]".parse().expect("an id"),
                generation: Generation(4),
                attempt: Attempt(5),
                relay: None,
                listen: None,
                port: None,
                own_end: None,
            },
            relay: serde_json::from_str(r#"{"url":"https://relay.example","token":"t"}"#).ok(),
        }
    }

    #[test]
    fn a_package_comes_out_as_it_went_in_and_no_piece_is_too_long() {
        let pieces = package().environment();
        assert!(pieces.len() > 1);
        assert!(pieces.values().all(|piece| piece.len() <= 256));
        let read = Package::from_environment(|name| pieces.get(name).cloned());
        let read = read.expect("whole").expect("there");
        assert_eq!(read.config, package().config);
        assert!(read.relay.is_some_and(|relay| relay.token.is_some()));
        assert_eq!(read.key.expose_secret(), &[7; 32]);
    }

    #[test]
    fn a_cut_package_is_refused_and_not_shown() {
        let mut pieces = package().environment();
        pieces.pop_last();
        let error = Package::from_environment(|name| pieces.get(name).cloned())
            .map(|_| ())
            .expect_err("cut");
        assert!(error.contains("missing"), "{error}");
        assert!(!pieces.values().any(|piece| error.contains(piece.as_str())));
        assert!(Package::from_environment(|_| None).expect("none").is_none());
    }

    #[test]
    fn an_agent_that_starts_again_keeps_its_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("agent");
        package().unpack(&path).expect("written");
        let folder = Folder::new(&path);
        assert_eq!(folder.read_key().expect("a key"), [7; 32]);
        let mut other = package();
        other.config.generation = Generation(9);
        other.unpack(&path).expect("there");
        assert_eq!(
            folder.read_config().expect("read").generation,
            Generation(4)
        );
    }
}
