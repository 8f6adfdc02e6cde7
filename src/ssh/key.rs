//! The public key of a host, as OpenSSH writes it, and its fingerprint. Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest as _, Sha256};

/// Longer than any key.
const KEY_MAX: usize = 16 << 10;

/// A public key: its type and its base64, without a comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey(String);

impl HostKey {
    /// Reads `ssh-ed25519 AAAA... comment`; none when it is no key.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (kind, blob) = (words.next()?, words.next()?);
        let decoded = STANDARD.decode(blob).ok()?;
        // The blob says its own type first.
        let own = decoded.get(4..)?.starts_with(kind.as_bytes());
        (own && text.len() <= KEY_MAX).then(|| Self(format!("{kind} {blob}")))
    }

    /// As it is recorded.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its type: `ssh-ed25519`.
    pub fn kind(&self) -> &str {
        self.0.split_once(' ').map_or("", |(kind, _)| kind)
    }

    /// As `ssh-keygen -l` shows it.
    pub fn fingerprint(&self) -> String {
        let blob = self.0.split_once(' ').map_or("", |(_, blob)| blob);
        let digest = Sha256::digest(STANDARD.decode(blob).unwrap_or_default());
        format!("SHA256:{}", STANDARD_NO_PAD.encode(digest))
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.fingerprint(), self.kind())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

    #[test]
    fn a_key_is_known_by_the_fingerprint_that_openssh_shows() {
        let key = HostKey::parse(&format!("{KEY} git@example")).expect("a key");
        assert_eq!(key.as_str(), KEY);
        assert_eq!(key.kind(), "ssh-ed25519");
        // As the owner of that key publishes it.
        assert_eq!(
            key.fingerprint(),
            "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
        );
    }

    #[test]
    fn what_is_no_key_is_none() {
        for text in [
            "",
            "ssh-ed25519",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIOMq",
            "ssh-ed25519 %%%",
        ] {
            assert_eq!(HostKey::parse(text), None, "{text}");
        }
    }
}
