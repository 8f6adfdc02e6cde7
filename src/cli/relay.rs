//! The relay of a topology, and those that agents were told: certificates and tokens, read when they are needed.
//!
//! What always holds: a token is in memory only, and by a salted digest in plan and state. What was recorded and cannot be
//! read any more is left out: the relay that is declared now may do.

use std::path::Path;

use secrecy::{ExposeSecret as _, SecretString};
use stageline_core::id::{Fingerprint, Lineage};
use stageline_core::plan::Desired;
use stageline_core::resource::{RelaySpec, Spec};
use stageline_core::state::State;
use stageline_core::topology::{SecretRef, Topology};

use super::Failure;
use super::keys::References;
use crate::apply::Secrets as _;
use crate::pipeline::endpoint::{RelayAccess, RelaySettings};

/// Largest file of certificates that is read, in bytes.
const CA_MAX: u64 = 1 << 20;

/// Relays that machines may be reached by.
#[derive(Clone, Default)]
pub(crate) struct Relays {
    /// What agents are told: what the topology declares.
    pub told: Option<RelayAccess>,
    /// That one first, then others that agents were told before.
    pub all: Vec<RelayAccess>,
}

/// The relays of a topology and of a state. Relative paths start at `folder`.
///
/// # Errors
/// [`Failure`] when what the topology declares cannot be read.
pub(crate) fn relays(
    topology: Option<&Topology>,
    state: &State,
    folder: &Path,
) -> Result<Relays, Failure> {
    let declared = topology.and_then(|topology| topology.relay.as_ref());
    let told = declared
        .map(|relay| {
            access(
                &relay.url,
                relay.ca.as_deref(),
                relay.token.as_ref(),
                folder,
            )
        })
        .transpose()?;
    let mut all: Vec<RelayAccess> = told.iter().cloned().collect();
    for relay in recorded(state) {
        let known = all.iter().any(|one| one.settings.url == relay.url);
        let ca = relay.ca.as_ref().map(|ca| ca.path.as_path());
        if let (false, Ok(access)) = (known, access(&relay.url, ca, relay.token.as_ref(), folder)) {
            all.push(access);
        }
    }
    Ok(Relays { told, all })
}

/// The relays of a plan, and what is known of them added to the desired world, so that a change of certificates or token
/// is one of the plan. Without the token at hand a plan is drafted all the same: the inner result is for whoever needs it.
///
/// # Errors
/// [`Failure`] when the certificates cannot be read.
pub(crate) fn looked_at(
    desired: &mut Desired,
    topology: &Topology,
    state: &State,
    folder: &Path,
) -> Result<Result<Relays, Failure>, Failure> {
    // Nothing was told to anybody yet.
    let Some(lineage) = state.genesis.as_ref().map(|genesis| &genesis.lineage) else {
        seen(desired, topology, None, folder)?;
        return Ok(Ok(Relays::default()));
    };
    let relays = relays(Some(topology), state, folder);
    let told = relays.as_ref().ok().and_then(|relays| relays.told.as_ref());
    let token = told.and_then(|told| token_digest(told.token.as_ref()?, lineage));
    seen(desired, topology, token, folder)?;
    Ok(relays)
}

fn seen(
    desired: &mut Desired,
    topology: &Topology,
    token: Option<Fingerprint>,
    folder: &Path,
) -> Result<(), Failure> {
    let Some(relay) = &topology.relay else {
        return Ok(());
    };
    let pem = relay.ca.as_deref().map(|path| certificates(path, folder));
    let ca = pem.transpose()?.map(|pem| Fingerprint::of(pem.as_bytes()));
    desired.relay_seen(ca, token);
    Ok(())
}

/// What a token is recorded by: salted, so that equal tokens of two topologies look different.
pub(crate) fn token_digest(token: &SecretString, lineage: &Lineage) -> Option<Fingerprint> {
    let mut hasher = blake3::Hasher::new_derive_key("stageline relay token v1");
    hasher.update(&lineage.0);
    hasher.update(token.expose_secret().as_bytes());
    Some(Fingerprint(*hasher.finalize().as_bytes()))
}

fn recorded(state: &State) -> impl Iterator<Item = &RelaySpec> {
    state
        .existing()
        .filter_map(|(_, recorded)| match &recorded.spec {
            Some(Spec::Delivery(delivery)) => delivery.relay.as_ref(),
            Some(Spec::Lease(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_))
            | None => None,
        })
}

fn access(
    url: &str,
    ca: Option<&Path>,
    token: Option<&SecretRef>,
    folder: &Path,
) -> Result<RelayAccess, Failure> {
    let secrets = References {
        folder: folder.to_owned(),
    };
    let token = token.map(|token| secrets.read(token)).transpose();
    let token = token.map_err(|cause| {
        let failure = Failure::user(format!("the token of [relay]: {}", cause.message));
        match cause.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    Ok(RelayAccess {
        settings: RelaySettings {
            url: url.to_owned(),
            ca_pem: ca.map(|path| certificates(path, folder)).transpose()?,
        },
        token,
    })
}

fn certificates(path: &Path, folder: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let path = folder.join(path);
    let failed = |error: std::io::Error| {
        Failure::user(format!("cannot read {}: {error}", path.display()))
            .hint("`ca` of [relay] names a file with certificates in PEM")
    };
    let file = std::fs::File::open(&path).map_err(failed)?;
    let mut text = String::new();
    file.take(CA_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Ok(text)
}
