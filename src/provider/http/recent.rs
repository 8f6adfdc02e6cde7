//! Which releases were taken a moment ago: a machine stays listed for a while, and one that is asked for again and again
//! uses up the requests that others need.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use stageline_core::id::MachineId;
use tokio::time::Instant;

/// When the release of each machine was taken last.
#[derive(Default)]
pub struct Recent(Mutex<BTreeMap<MachineId, Instant>>);

impl Recent {
    /// It was taken just now.
    pub fn took(&self, id: &MachineId) {
        let mut taken = self.0.lock().expect("no holder panics");
        taken.insert(id.clone(), Instant::now());
    }

    /// Whether one was taken within this span.
    pub fn within(&self, id: &MachineId, span: Duration) -> bool {
        let taken = self.0.lock().expect("no holder panics");
        taken.get(id).is_some_and(|at| at.elapsed() < span)
    }
}
