//! A key to log in with that belongs to one try of one machine: drawn from the key of its agent, so that nobody has to keep it.
//!
//! Its public half is handed to whoever gets the machine. The private half is in memory only, and only while it is used.

use secrecy::{ExposeSecret as _, SecretBox};

/// Tells this use of the agent's key from every other one.
const CONTEXT: &str = "stageline ssh login key v1";

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

#[cfg(test)]
mod tests {
    use super::*;

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
