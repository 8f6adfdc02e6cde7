//! Caps of an account that other topologies share: counted right before a create, and again once its machine is there.
//!
//! What always holds: no create goes out without a fresh and complete listing that leaves room for it, and no machine gets ready
//! before a listing has shown the account as it was after its create, as old as the provider's listings may be. Of topologies
//! that launched in the same moment at least one sees the other then. The machine with the higher name gives way at once; the one
//! with the lower name stays when the other goes, and gives way itself when that does not happen, since the other was there
//! before it.

use std::time::Duration;

use stageline_core::id::{Attempt, LeaseId, Name};
use stageline_core::journal::Launch;
use stageline_core::plan::{Own, Room, RoomVerdict, judge, refused};
use stageline_core::resource::{Cause, FailureClass, LeaseReceipt};
use stageline_core::state::State;
use stageline_core::unit::MicroDollars;

use super::boot::{Failure, Glance};
use super::step::{Run, Stop};
use crate::observe::{self, room};
use crate::provider::{Blind, Phase, Provider};

/// The least time that a machine with a higher name has to go.
const GOES_WITHIN: Duration = Duration::from_secs(10);

/// Least time between two such listings.
const POLL: Duration = Duration::from_millis(200);

/// How far the counting after a create is.
#[derive(Default)]
pub(super) struct Counted {
    /// When it is counted next.
    next: Duration,
    /// It was late enough, and within the caps.
    settled: bool,
    /// Why not, the last time.
    why: String,
}

/// Whether an account has to show a listing before anything is rented on it.
pub fn is_to_be_seen(provider: &dyn Provider) -> bool {
    provider.bills() && provider.traits().sees_account && !provider.has_parts()
}

impl Run<'_> {
    /// Looks at an account that is not the one that a plan chose first for a lease, which was seen before the run began.
    ///
    /// # Errors
    /// [`Cause`] when it cannot be seen: what a create makes there could not be found again.
    pub(super) async fn is_seen(
        &self,
        lease: &LeaseId,
        (name, provider): (&Name, &dyn Provider),
    ) -> Result<(), Cause> {
        let terms = self.plan.leases.get(lease);
        let first = terms.and_then(|terms| terms.shortlist.first());
        let second = first.is_some_and(|first| first.quote.provider != *name);
        if !second || !is_to_be_seen(provider) {
            return Ok(());
        }
        match provider.list().await {
            Ok(_) => Ok(()),
            // That passes, and is waited out where it matters.
            Err(blind) if blind.cause.class == FailureClass::Rate => Ok(()),
            Err(Blind { cause, .. }) => Err(Cause {
                message: format!(
                    "{lease}: nothing is rented at provider `{name}`, whose account cannot be seen: {}",
                    cause.message
                ),
                ..cause
            }),
        }
    }

    /// Counts what others have on the account, where it has caps.
    ///
    /// # Errors
    /// [`Cause`] when that cannot be seen.
    pub(super) async fn count_room(
        &self,
        launch: &Launch,
        provider: &dyn Provider,
    ) -> Result<(), Cause> {
        let name = &launch.provider;
        let Some(caps) = self.options.caps.get(name).copied() else {
            return Ok(());
        };
        let marked = room::marked(provider).await;
        let beside = self.state(|state| marked.map(|all| room::but_own(all, state, name)));
        let room = Room { caps, beside };
        let unseen = room.beside.is_err();
        let cause = refused(name, &room, Own::default()).filter(|_| unseen);
        self.rooms.borrow_mut().insert(name.clone(), room);
        cause.map_or(Ok(()), Err)
    }

    /// Why this launch would break a cap of its account, by what was counted last.
    pub(super) fn no_room_on_account(
        &self,
        own: &(LeaseId, Attempt),
        launch: &Launch,
    ) -> Option<Cause> {
        let rooms = self.rooms.borrow();
        let room = rooms.get(&launch.provider)?;
        let reserving = self.reserving.borrow();
        let all = self.state(|state| {
            let mut all = Own::of(state, &launch.provider);
            // A launch is in the state a moment before its append returns; it must not count twice then.
            let pending = reserving.iter().filter(|(key, (provider, _))| {
                **key != *own && *provider == launch.provider && !is_open(state, key)
            });
            for (_, (_, more)) in pending {
                all = all.and(*more);
            }
            if is_open(state, own) {
                return all;
            }
            all.and(launch.reservation)
        });
        let cause = refused(&launch.provider, room, all)?;
        Some(Cause {
            message: format!("{}: {}", own.0, cause.message),
            ..cause
        })
    }

    /// What is seen of a machine, once it is known that the caps of its account are kept with it.
    pub(super) async fn within_caps(
        &self,
        (lease, held): (&LeaseId, &LeaseReceipt),
        provider: &dyn Provider,
        counted: &mut Counted,
        glance: Glance,
    ) -> Glance {
        let Some(caps) = self.options.caps.get(&held.provider).copied() else {
            return glance;
        };
        if counted.settled {
            return glance;
        }
        let waits = |counted: &Counted, glance| match glance {
            Glance::Ready(_) => Glance::Pending(
                Phase::new("what others have on its account is counted")
                    .because(counted.why.clone()),
            ),
            Glance::Failed(_) | Glance::Unlisted | Glance::Blind(_) | Glance::Pending(_) => glance,
        };
        let now = self.effects.clock.boottime();
        if now < counted.next {
            return waits(counted, glance);
        }
        let lag = provider.traits().visibility_delay;
        let pause = (provider.traits().rate * 2).max(lag / 20).max(POLL);
        counted.next = now + pause;
        // Before the listing, which shows what was there before it only.
        let age = self.state(|state| {
            let address = stageline_core::id::Address::Lease(lease.clone());
            let recorded = state.resources.get(&address);
            let billed = recorded.and_then(|recorded| recorded.billed.as_ref());
            observe::age(state, billed, held, self.effects.clock.as_ref())
        });
        let marked = match room::marked(provider).await {
            Ok(marked) => marked,
            Err(cause) => {
                counted.why = format!("(it cannot be seen: {})", cause.message);
                return waits(counted, glance);
            }
        };
        let verdict = self.state(|state| {
            let beside = Ok(room::but_own(marked, state, &held.provider));
            judge(
                &held.provider,
                &Room { caps, beside },
                state,
                &held.request_key,
            )
        });
        match verdict {
            RoomVerdict::Fits => {
                counted.settled = age >= lag;
                counted.why.clear();
            }
            RoomVerdict::Waits(cause) if age < lag + lag.max(GOES_WITHIN) => {
                counted.why = format!("(one has to go: {})", cause.message);
            }
            RoomVerdict::Waits(cause) | RoomVerdict::Goes(cause) => {
                return Glance::Failed(Failure::for_good(gives_way(lease, held, cause)));
            }
        }
        if counted.settled {
            return glance;
        }
        waits(counted, glance)
    }
}

/// What has no room for a launch, and why.
pub(super) enum NoRoom {
    /// The account of its provider; another provider's may have some.
    OnAccount(Cause),
    /// All of the topology together, or the lease.
    InAll(Cause),
}

impl NoRoom {
    pub(super) fn cause(&self) -> &Cause {
        match self {
            Self::OnAccount(cause) | Self::InAll(cause) => cause,
        }
    }

    /// The same with this said of it.
    pub(super) fn but(mut self, what: &str) -> Self {
        let (Self::OnAccount(cause) | Self::InAll(cause)) = &mut self;
        cause.message = format!("{}; {what}", cause.message);
        self
    }
}

impl From<NoRoom> for Stop {
    fn from(none: NoRoom) -> Self {
        match none {
            NoRoom::OnAccount(cause) => Self::Full(cause),
            NoRoom::InAll(cause) => Self::Refused(cause),
        }
    }
}

fn is_open(state: &State, (lease, attempt): &(LeaseId, Attempt)) -> bool {
    let address = stageline_core::id::Address::Lease(lease.clone());
    let recorded = state.resources.get(&address);
    recorded.is_some_and(|recorded| recorded.attempts.contains_key(attempt))
}

fn gives_way(lease: &LeaseId, held: &LeaseReceipt, cause: Cause) -> Cause {
    Cause {
        message: format!(
            "{lease}: machine `{}` gives way, others took the room in the same moment: {}",
            held.machine, cause.message
        ),
        ..cause
    }
}

/// A launch that is being written down: at which provider, and the most that it costs.
pub(super) type Reserving = (stageline_core::id::Name, MicroDollars);
