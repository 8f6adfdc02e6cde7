//! A finished step, from either of the records that say so. What had to be put together is not copied again.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::super::Recorded;
use crate::id::{Address, Generation};
use crate::journal::{Record, Verb, brief};
use crate::plan::StepId;
use crate::resource::{LeaseReady, LeaseReceipt, Receipt, Spec};
use crate::unit::Timestamp;

/// That a step did what it should, in many words or few.
pub(super) struct Done<'r> {
    pub(super) address: &'r Address,
    pub(super) generation: Generation,
    pub(super) verb: Verb,
    pub(super) step: Option<StepId>,
    pub(super) spec: Option<Cow<'r, Spec>>,
    pub(super) made: Option<Made<'r>>,
    pub(super) at: Timestamp,
}

/// What a step made.
pub(super) enum Made<'r> {
    Receipt(Cow<'r, Receipt>),
    /// The machine in the recorded receipt of the same generation is ready.
    Ready(LeaseReady),
}

impl Made<'_> {
    fn whole(receipt: Box<LeaseReceipt>) -> Self {
        Self::Receipt(Cow::Owned(Receipt::Lease(receipt)))
    }
}

impl<'r> Done<'r> {
    /// None for any other record.
    ///
    /// # Errors
    /// What it names and nobody recorded.
    pub(super) fn of(
        record: &'r Record,
        known: &BTreeMap<Address, Recorded>,
    ) -> Result<Option<Self>, &'static str> {
        if let Record::DoneBriefly(brief) = record {
            let own = known.get(&brief.address);
            let (spec, made) = brief.outcome(own, |address| known.get(address))?;
            let made = match made {
                brief::Made::Receipt(receipt) => Made::whole(receipt),
                brief::Made::Ready(ready) => {
                    let (held, receipt) = own
                        .and_then(|held| Some((held, held.account()?.0)))
                        .ok_or("a machine that nobody recorded became ready")?;
                    if held.generation == brief.generation {
                        Made::Ready(ready)
                    } else {
                        Made::whole(Box::new(LeaseReceipt {
                            ready: Some(ready),
                            ..receipt.clone()
                        }))
                    }
                }
            };
            return Ok(Some(Self {
                address: &brief.address,
                generation: brief.generation,
                verb: brief.verb,
                step: brief.step,
                spec: spec.map(Cow::Owned),
                made: Some(made),
                at: brief.at,
            }));
        }
        let Record::Done {
            address,
            generation,
            verb,
            step,
            spec,
            receipt,
            at,
        } = record
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            address,
            generation: *generation,
            verb: *verb,
            step: *step,
            spec: spec.as_deref().map(Cow::Borrowed),
            made: receipt.as_deref().map(|r| Made::Receipt(Cow::Borrowed(r))),
            at: *at,
        }))
    }
}
