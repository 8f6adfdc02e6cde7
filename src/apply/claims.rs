//! What of a provider's claims counts beside what a machine measures, and what a machine must not be.

use stageline_core::id::LeaseId;
use stageline_core::offer::{Facts, broken_claims, side_by_side};
use stageline_core::plan::{unfit, unfit_by_record};
use stageline_core::resource::{Cause, FailureClass, LeaseLimits, LeaseReceipt, LeaseSpec, Terms};
use stageline_core::unit::{Bytes, MicroDollars, Millis};

use crate::provider::{Machine, Provider};

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

/// What speaks against a machine under those terms of whoever sold it that suit it best.
fn fewest(
    spec: &LeaseSpec,
    held: &LeaseReceipt,
    of: impl Fn(&Terms) -> Vec<String>,
) -> Vec<String> {
    let ours = spec.terms.iter().filter(|terms| {
        terms.provider == held.provider && terms.provider_kind == held.provider_kind
    });
    ours.map(of).min_by_key(Vec::len).unwrap_or_default()
}

/// The price and the GPUs in the provider's own record of a machine against the terms: what it will not be when it is up is not
/// paid for until then.
pub(super) fn contradicts(
    lease: &LeaseId,
    spec: &LeaseSpec,
    held: &LeaseReceipt,
    machine: &Machine,
) -> Result<(), Cause> {
    let why = fewest(spec, held, |terms| {
        unfit_by_record(terms, &machine.facts.gpus, machine.price_per_hour)
    });
    if why.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{lease}: by its provider's own record the machine is not what was asked for: {}",
        why.join("; ")
    );
    Err(Cause::new(FailureClass::OfferGone, message))
}

/// Measured facts and the billed price against the terms of the provider that sold the machine, which is the planner's
/// question too, so that what is kept now is kept by the next plan; and against what was claimed.
pub(super) fn gate(
    lease: &LeaseId,
    spec: &LeaseSpec,
    held: &LeaseReceipt,
    claimed: &Facts,
    facts: &Facts,
    price: MicroDollars,
) -> Result<(), Cause> {
    let misfits = fewest(spec, held, |terms| {
        unfit(terms, spec.memory, Some(facts), price)
    });
    let broken = broken_claims(claimed, facts);
    let why = if misfits.is_empty() {
        &broken
    } else {
        &misfits
    };
    if why.is_empty() {
        return Ok(());
    }
    let what = if misfits.is_empty() {
        "the machine is not what was claimed"
    } else {
        "the machine is not what was asked for"
    };
    let mut message = format!("{lease}: {what}: {}", why.join("; "));
    if !broken.is_empty() {
        message.push('\n');
        message.push_str(&side_by_side(claimed, facts));
    }
    Err(Cause::new(FailureClass::OfferGone, message))
}
