//! Keys that belong to one try of one machine: one to log in with, and one that the machine is known by. Both are drawn from the key
//! of its agent, so that nobody has to keep them.
//!
//! The public half of ours is handed to whoever gets the machine; the private half is in memory only, and only while it is used. The
//! host's own pair is for a machine that can be told its key before it starts: it is known then before it is met.

use secrecy::{ExposeSecret as _, SecretBox, SecretString};

use super::HostKey;

/// Tells each use of the agent's key from every other one.
const CONTEXT: &str = "stageline ssh login key v1";
const HOST_CONTEXT: &str = "stageline ssh host key v1";

/// A private key of ours for one machine.
pub struct OwnKey(SecretBox<[u8; 32]>);

impl OwnKey {
    /// The one that belongs to an agent's key.
    pub fn of(agent_key: &SecretBox<[u8; 32]>) -> Self {
        let seed = blake3::derive_key(CONTEXT, agent_key.expose_secret());
        Self(SecretBox::new(Box::new(seed)))
    }

    /// What an Ed25519 key is made from.
    pub(super) fn seed(&self) -> &[u8; 32] {
        self.0.expose_secret()
    }

    /// Its private half, as OpenSSH keeps it in a file; none where stageline was built without SSH.
    pub fn private(&self) -> Option<SecretString> {
        super::session::private_text(self)
    }

    /// Its public half, as OpenSSH writes it; none where stageline was built without SSH.
    pub fn public(&self) -> Option<String> {
        super::session::public(self)
    }
}

impl std::fmt::Debug for OwnKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnKey(..)")
    }
}

/// The pair of keys that a machine is told to be known by.
pub struct HostPair(OwnKey);

impl HostPair {
    /// The one that belongs to an agent's key.
    pub fn of(agent_key: &SecretBox<[u8; 32]>) -> Self {
        let seed = blake3::derive_key(HOST_CONTEXT, agent_key.expose_secret());
        Self(OwnKey(SecretBox::new(Box::new(seed))))
    }

    /// What the machine will show; none where stageline was built without SSH.
    pub fn public(&self) -> Option<HostKey> {
        HostKey::parse(&self.0.public()?)
    }

    /// What only the machine is handed, as OpenSSH keeps it in a file; none where stageline was built without SSH.
    pub fn private(&self) -> Option<SecretString> {
        self.0.private()
    }
}

impl std::fmt::Debug for HostPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostPair(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_a_key_that_is_not_ours() {
        let agent = SecretBox::new(Box::new([1; 32]));
        let pair = HostPair::of(&agent);
        let shown = pair.public().map(|key| key.as_str().to_owned());
        assert!(shown.is_none() || shown != OwnKey::of(&agent).public());
        let private = pair.private();
        assert_eq!(private.is_some(), shown.is_some());
        let whole = |text: SecretString| {
            let text = text.expose_secret().to_owned();
            text.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n") && text.ends_with("-----\n")
        };
        assert!(private.is_none_or(whole));
        assert_eq!(format!("{pair:?}"), "HostPair(..)");
    }

    #[test]
    fn each_machine_has_a_key_of_its_own_and_it_is_not_shown() {
        let key = |byte| OwnKey::of(&SecretBox::new(Box::new([byte; 32])));
        let public = key(1).public();
        assert_eq!(public, key(1).public());
        assert_ne!(public, key(2).public());
        assert!(public.is_none_or(|text| text.starts_with("ssh-ed25519 AAAA")));
        assert_eq!(format!("{:?}", key(1)), "OwnKey(..)");
    }
}
