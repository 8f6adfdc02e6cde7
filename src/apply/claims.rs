//! What of a provider's claims counts beside what a machine measures.

use stageline_core::offer::Facts;
use stageline_core::resource::LeaseSpec;
use stageline_core::unit::Bytes;

use crate::provider::Provider;

/// What only the provider can know is its claim: where the machine is, whether it may be taken away, and its own fields.
pub(super) fn with_claims(measured: Facts, claimed: &Facts) -> Facts {
    Facts {
        region: measured.region.or_else(|| claimed.region.clone()),
        datacenter: measured.datacenter.or_else(|| claimed.datacenter.clone()),
        host: measured.host.or_else(|| claimed.host.clone()),
        spot: measured.spot || claimed.spot,
        extra: claimed.extra.clone(),
        ..measured
    }
}

/// What of the claims is held against a machine. An offer tells all the disk that there is; the machine has what was asked for.
/// Of a disk that it shares with others nothing is claimed: they write to it meanwhile.
pub(super) fn held_against(provider: &dyn Provider, spec: &LeaseSpec, claimed: &Facts) -> Facts {
    let disk = if provider.shares_disk() {
        Bytes(0)
    } else {
        claimed.disk.min(spec.disk)
    };
    Facts {
        disk,
        ..claimed.clone()
    }
}
