//! What Lambda declares, and how long its machines take to get ready: by their number of GPUs.

use std::time::Duration;

use stageline_core::offer::Facts;
use stageline_core::topology::AgentWay;

use super::{ANSWER_MAX, MOMENT_MAX, READY_MAX, keys, wire};
use crate::provider::http::{Api, ITS_OWN_MIN, PROOF_MIN};
use crate::provider::{AGENT_PHASE, BootLimits, PhaseLimit, SSH_PHASE, Traits};

/// Minutes until a machine with many GPUs runs: eight H100 were seen to take 25.
const MANY_BOOT: u64 = 35;

/// The same for one with few, which takes some five.
const FEW_BOOT: u64 = 20;

/// From this number on they are many.
const MANY_GPUS: usize = 4;

/// How long a machine with these facts may take.
pub(super) fn of(api: &Api, traits: &Traits, facts: Option<&Facts>) -> BootLimits {
    let limits = BootLimits::of(traits);
    match facts {
        Some(facts) if facts.gpus.len() < MANY_GPUS => few(api, limits),
        Some(_) | None => limits,
    }
}

/// The limits of a machine with so few GPUs: what is beside its boot takes as long as for many.
fn few(api: &Api, limits: BootLimits) -> BootLimits {
    let boot = PhaseLimit::new(wire::BOOTING, api.minutes(FEW_BOOT, ITS_OWN_MIN)).stretching();
    let others = limits.phases.into_iter();
    let others = others.filter(|limit| limit.phase != wire::BOOTING);
    BootLimits {
        acquire_timeout: api.minutes(FEW_BOOT + 10, 120),
        phases: std::iter::once(boot).chain(others).collect(),
        ..limits
    }
}

pub(super) fn traits(api: &Api) -> Traits {
    let scaled = |span| api.scaled(span);
    let above = |minutes, floor| api.minutes(minutes, floor);
    let its_own = |minutes| api.minutes(minutes, ITS_OWN_MIN);
    Traits {
        finds_by_key: true,
        visibility_delay: scaled(Duration::from_secs(120)),
        late_commit_window: scaled(Duration::from_secs(600)),
        request_timeout: [READY_MAX, keys::REGISTER_MAX, MOMENT_MAX, ANSWER_MAX]
            .map(|span| api.above(span))
            .iter()
            .sum(),
        // Its boot, and then the agent is fetched.
        acquire_timeout: above(MANY_BOOT + 10, 120),
        refused_after: above(2, PROOF_MIN),
        gone_within: above(10, PROOF_MIN),
        bills_booting: true,
        bills_while_stopped: true,
        restarts_empty: false,
        self_destroy: false,
        offers_are_one: false,
        bills_traffic: false,
        free: false,
        agent: Some(AgentWay::Ssh),
        sees_account: true,
        rate: Duration::ZERO,
        phases: vec![
            PhaseLimit::new(wire::BOOTING, its_own(MANY_BOOT)).stretching(),
            PhaseLimit::new(wire::NO_ADDRESS, its_own(5)),
            PhaseLimit::new(SSH_PHASE, above(10, 60)),
            PhaseLimit::new(AGENT_PHASE, above(10, 60)),
        ],
        phase_timeout: above(15, 120),
    }
}
