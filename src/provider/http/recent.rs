//! Which releases were taken a moment ago: a machine stays listed for a while, and one that is asked for again and again
//! uses up the requests that others need.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use stageline_core::id::MachineId;
use tokio::time::Instant;

use super::Api;

/// A release that was taken is not sent again before this, by the provider's clock: the machine is listed for a while.
const AGAIN: Duration = Duration::from_secs(30);

/// When the release of each machine was taken last.
#[derive(Default)]
pub struct Recent(Mutex<BTreeMap<MachineId, Instant>>);

impl Recent {
    /// It was taken just now.
    pub fn took(&self, id: &MachineId) {
        let mut taken = self.0.lock().expect("no holder panics");
        taken.insert(id.clone(), Instant::now());
    }

    /// Whether one was taken a moment ago: it is not sent again yet.
    pub fn just_taken(&self, api: &Api, id: &MachineId) -> bool {
        let span = api.scaled(AGAIN).max(Duration::from_millis(500));
        let taken = self.0.lock().expect("no holder panics");
        taken.get(id).is_some_and(|at| at.elapsed() < span)
    }
}
