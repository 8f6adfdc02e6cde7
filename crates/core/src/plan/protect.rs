//! Protected leases: no plan replaces or ends their machines, `destroy` leaves them out with all that is on them.
//!
//! What the file says counts where the lease is declared, what the state says where it is not. A machine that a trusted
//! listing does not have is protected by nobody. A watcher leaves protected leases alone; a machine that ends itself keeps
//! the limits that it was made with, since it knows of no protection.

use super::draft::{Call, Draft, Drafting, machine_of};
use super::{Mode, Verdict};
use crate::diagnostic::Diagnostic;
use crate::id::{Address, LeaseId};
use crate::resource::Spec;
use crate::state::{Recorded, Seen, State};

/// Whether the state says that nothing may end this lease.
pub fn is_protected(state: &State, lease: &LeaseId) -> bool {
    let recorded = state.resources.get(&Address::Lease(lease.clone()));
    match recorded.and_then(|recorded| recorded.spec.as_ref()) {
        Some(Spec::Lease(spec)) => spec.protect,
        Some(Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_)) | None => {
            false
        }
    }
}

/// Whether nothing may end this lease once the plan is carried out.
pub(super) fn will_be(lease: &LeaseId, input: &Draft<'_>) -> bool {
    match input.desired.specs.get(&Address::Lease(lease.clone())) {
        Some(Spec::Lease(spec)) => spec.protect,
        Some(Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_)) | None => {
            is_protected(input.recorded, lease)
        }
    }
}

impl<'a> Drafting<'a> {
    /// Why `destroy` leaves a resource as it is, if it does.
    pub(super) fn spared(&self, address: &'a Address, recorded: &'a Recorded) -> Option<String> {
        if self.input.options.mode != Mode::Destroy {
            return None;
        }
        let spared = |lease: &LeaseId| {
            is_protected(self.input.recorded, lease)
                && !matches!(self.input.observed.leases.get(lease), Some(Seen::Gone))
        };
        if let Address::Lease(lease) = address {
            return spared(lease).then(|| "protected; destroy leaves it out".to_owned());
        }
        if let Some(Spec::Pipeline(spec)) = &recorded.spec {
            let all = spec.stages.iter().all(spared);
            return all.then(|| "all of its machines are protected".to_owned());
        }
        let on = machine_of(address, recorded).filter(|lease| spared(lease))?;
        Some(format!("stays with {on}, which is protected"))
    }

    /// The verdict for a lease, unless it would end a protected machine.
    pub(super) fn guard(
        &mut self,
        id: &LeaseId,
        desired: Option<&Spec>,
        recorded: Option<&Recorded>,
        call: Call,
    ) -> Call {
        let ends = match call.verdict {
            Verdict::Replace => true,
            Verdict::Delete => self.input.options.mode == Mode::Apply,
            Verdict::Create | Verdict::Update | Verdict::Keep => false,
        };
        let protected = match desired {
            Some(Spec::Lease(spec)) => spec.protect,
            Some(_) | None => is_protected(self.input.recorded, id),
        };
        let gone = matches!(self.input.observed.leases.get(id), Some(Seen::Gone));
        let held = recorded.is_some_and(|recorded| recorded.receipt.is_some());
        if ends && protected && held && !gone && !self.input.options.refresh_only {
            let (what, hint) = match call.verdict {
                Verdict::Delete => (
                    "ended",
                    format!(
                        "put [lease.{}] back; to end it, set `protect = false` there and apply, then remove it",
                        id.name
                    ),
                ),
                Verdict::Create | Verdict::Update | Verdict::Replace | Verdict::Keep => (
                    "replaced",
                    format!(
                        "set `protect = false` in [lease.{}] to let it be replaced, or leave it out: --exclude {id}",
                        id.name
                    ),
                ),
            };
            let message = format!("{id} is protected and would be {what}: {}", call.reason);
            self.faults
                .push(Diagnostic::error("plan/protected", message).hint(hint));
        }
        call
    }
}
