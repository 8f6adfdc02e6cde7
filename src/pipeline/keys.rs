//! Every key on the data plane, derived from the operator's identity. Pure.
//!
//! What always holds: a key is a pure function of what it is for, so no key is stored and every endpoint's public key is
//! known beforehand; two machines, two replacements of one machine and two attempts at one machine never share a key, so
//! a machine that was sent away cannot pose as its successor; from one key no other can be computed. Every field has a
//! fixed width, so that no two field lists give the same bytes.

use std::fmt;

use secrecy::zeroize::Zeroize;
use stageline_core::id::{
    Address, Attempt, EndpointKey, Fingerprint, Generation, Lineage, OperatorId,
};

/// Names the use of an agent's key, so that no other use yields the same one.
const AGENT_CONTEXT: &str = "stageline agent v1";
/// Names the use of the operator's key.
const OPERATOR_CONTEXT: &str = "stageline operator v1";

/// 32 secret bytes: an identity, or a key derived from it. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Takes the bytes as they are.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a key file; never for a message.
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The same as iroh's type.
    pub fn to_iroh(&self) -> iroh::SecretKey {
        iroh::SecretKey::from_bytes(&self.0)
    }

    /// The public key that others know this endpoint by.
    pub fn endpoint(&self) -> EndpointKey {
        EndpointKey(*self.to_iroh().public().as_bytes())
    }

    /// The public key, where the secret is the operator's.
    pub fn operator(&self) -> OperatorId {
        OperatorId(*self.to_iroh().public().as_bytes())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The key by which an operator speaks to the agents of one lineage, and signs their rosters.
pub fn operator(identity: &Secret, lineage: &Lineage) -> Secret {
    derive(OPERATOR_CONTEXT, &[&identity.0, &lineage.0])
}

/// The key of the agent on one attempt at one generation of a lease.
pub fn agent(
    identity: &Secret,
    lineage: &Lineage,
    address: &Address,
    generation: Generation,
    attempt: Attempt,
) -> Secret {
    let address = Fingerprint::of(address.to_string().as_bytes());
    derive(
        AGENT_CONTEXT,
        &[
            &identity.0,
            &lineage.0,
            &address.0,
            &generation.0.to_be_bytes(),
            &attempt.0.to_be_bytes(),
        ],
    )
}

fn derive(context: &str, fields: &[&[u8]]) -> Secret {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for field in fields {
        hasher.update(field);
    }
    Secret(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect("an address")
    }

    #[test]
    fn every_field_makes_another_key() {
        let (identity, lineage) = (Secret::new([1; 32]), Lineage([2; 16]));
        let gpu = address("lease.gpu[0]");
        let keys = [
            agent(&identity, &lineage, &gpu, Generation(1), Attempt(1)),
            agent(&identity, &lineage, &gpu, Generation(2), Attempt(1)),
            agent(&identity, &lineage, &gpu, Generation(1), Attempt(2)),
            agent(
                &identity,
                &lineage,
                &address("lease.gpu[1]"),
                Generation(1),
                Attempt(1),
            ),
            agent(
                &identity,
                &Lineage([3; 16]),
                &gpu,
                Generation(1),
                Attempt(1),
            ),
            agent(
                &Secret::new([4; 32]),
                &lineage,
                &gpu,
                Generation(1),
                Attempt(1),
            ),
            operator(&identity, &lineage),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().map(Secret::endpoint).collect();
        assert_eq!(distinct.len(), keys.len());
    }

    /// A machine in use keeps its key over versions of this program; this key was computed by the first one.
    #[test]
    fn keys_stay_the_same_over_versions() {
        let (identity, lineage) = (Secret::new([1; 32]), Lineage([2; 16]));
        let mut fields = Vec::new();
        fields.extend_from_slice(&[1; 32]);
        fields.extend_from_slice(&[2; 16]);
        fields.extend_from_slice(blake3::hash(b"lease.gpu[0]").as_bytes());
        fields.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2]);
        let expected = blake3::derive_key("stageline agent v1", &fields);
        let key = agent(
            &identity,
            &lineage,
            &address("lease.gpu[0]"),
            Generation(1),
            Attempt(2),
        );
        assert_eq!(key.expose(), &expected);
    }

    #[test]
    fn a_secret_is_never_printed() {
        assert_eq!(format!("{:?}", Secret::new([7; 32])), "Secret(..)");
    }
}
