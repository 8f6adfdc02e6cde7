//! What of a provider's claims counts beside what a machine measures.

use stageline_core::id::LeaseId;
use stageline_core::offer::Facts;
use stageline_core::resource::{Cause, FailureClass, LeaseLimits, LeaseSpec};
use stageline_core::unit::{Bytes, Millis};

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

/// A machine that is to end itself by its limits, and was given nothing to do so with: it would bill until somebody looks.
pub(super) fn cannot_end_itself(
    lease: &LeaseId,
    provider: &dyn Provider,
    spec: &LeaseSpec,
    keeps: Option<LeaseLimits>,
) -> Option<Cause> {
    let never = LeaseLimits {
        idle_timeout: Millis::NEVER,
        max_lifetime: Millis::NEVER,
    };
    let promised = provider.traits().self_destroy && LeaseLimits::of(spec) != never;
    let message = format!(
        "{lease}: its machine cannot end itself by its limits: it was handed no key for that by its provider, which says that it hands one"
    );
    (promised && keeps.is_none()).then(|| {
        Cause::new(FailureClass::Config, message).hint(
            "it is being released; `stageline logs` of an older machine may tell more; until the provider mends it, take another one, \
             or set both limits to \"never\", `limits.max_spend` to what it may cost, and let `stageline watch` run",
        )
    })
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
