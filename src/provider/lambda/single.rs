//! One instance by its id: what a listing lacks may have been on a page of it that was lost.
//!
//! What always holds: no instance counts as gone by a listing alone, as a listing that was cut off looks like a whole one. Who asks
//! again soon is told the same, since it costs a request of the account's few.

use stageline_core::id::MachineId;
use tokio::time::Instant;

use super::{ANY, LOOK_AGE, Lambda, Seen, wire};
use crate::provider::http::{Call, Fault, path};

/// What was told of an instance, and when that was asked.
pub(super) type Told = (Instant, Option<Seen>);

impl Lambda {
    /// An instance that the listing lacks; none when it is not there either, or when it is over.
    pub(super) async fn alone(&self, id: &MachineId) -> Result<Option<Seen>, Fault> {
        let asked = Instant::now();
        let before = self
            .alone
            .lock()
            .expect("no holder panics")
            .get(id)
            .cloned();
        if let Some((at, seen)) = before
            && at + self.api.scaled(LOOK_AGE) >= asked
        {
            return Ok(seen);
        }
        let seen = self.asked_for(id).await?;
        let mut alone = self.alone.lock().expect("no holder panics");
        alone.insert(id.clone(), (asked, seen.clone()));
        Ok(seen)
    }

    async fn asked_for(&self, id: &MachineId) -> Result<Option<Seen>, Fault> {
        let call = Call::get(path("/api/v1/instances", id.as_str()), ANY);
        let answer = match self.read(call).await {
            Ok(answer) => answer,
            Err(fault) if wire::knows_none(&fault) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let seen = self.seen(wire::data(&answer.body)?);
        let seen = seen.filter(|seen| seen.machine.id == *id);
        let seen = seen.ok_or_else(|| Fault::shape("it is not the instance that was asked for"))?;
        let told = !(seen.over || (seen.taken_back && self.is_ended(id)));
        Ok(told.then_some(seen))
    }
}
