//! Records in few words.
//!
//! What a machine was made from is in the record of its try; the spec of the second machine of a table is that of the
//! first; and machines of one kind measure the same. So a store writes such a `done` with names in the place of values,
//! when exactly the same record comes back from them. It never guesses: what cannot be told is written whole.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Record, Verb};
use crate::id::{Address, Attempt, EndpointKey, Generation, MachineId};
use crate::offer::{Facts, Place};
use crate::plan::StepId;
use crate::resource::{Contact, LeaseReady, LeaseReceipt, LeaseSpec, Receipt, Spec};
use crate::shared::Shared;
use crate::state::Recorded;
use crate::unit::Timestamp;

/// A lease's `done` in few words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Brief {
    /// On what.
    pub address: Address,
    /// Which generation of it.
    pub generation: Generation,
    /// What it did.
    pub verb: Verb,
    /// As in `done`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// Its spec is the one that is recorded for this lease, which may be itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_of: Option<Address>,
    /// Its spec, where no other is equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Shared<LeaseSpec>>,
    /// The receipt: made by this open try, at its price...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// ... this machine...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
    /// ... at the time of this record, if no other is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub created_at: Option<Timestamp>,
    /// ... at this place.
    #[serde(default, skip_serializing_if = "Place::is_unknown")]
    pub place: Place,
    /// Or the receipt: as it is recorded, and ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyBriefly>,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// What was found when a machine became ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadyBriefly {
    /// The same facts as this lease's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts_of: Option<Address>,
    /// Its facts, where no other's are equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Shared<Facts>>,
    /// The agent's public key.
    pub endpoint: EndpointKey,
    /// How to reach it.
    #[serde(default, skip_serializing_if = "Contact::is_unknown")]
    pub contact: Contact,
}

/// What is new in a receipt.
pub(crate) enum Made {
    /// All of it.
    Receipt(Box<LeaseReceipt>),
    /// That the machine in the recorded one is ready.
    Ready(LeaseReady),
}

/// The record in few words, if it can be said so. `known` has what is recorded right before it; `sibling` is a lease
/// that may have the same spec and the same facts.
pub fn shorten<'s>(
    record: Record,
    known: impl Fn(&Address) -> Option<&'s Recorded>,
    sibling: Option<&Address>,
) -> Record {
    match brief(&record, &known, sibling) {
        // Proven, not assumed.
        Some(brief) if brief.whole(&known).as_ref() == Ok(&record) => {
            Record::DoneBriefly(Box::new(brief))
        }
        Some(_) | None => record,
    }
}

fn brief<'s>(
    record: &Record,
    known: &impl Fn(&Address) -> Option<&'s Recorded>,
    sibling: Option<&Address>,
) -> Option<Brief> {
    let Record::Done {
        address: address @ Address::Lease(_),
        generation,
        verb,
        step,
        spec,
        receipt,
        at,
    } = record
    else {
        return None;
    };
    let Receipt::Lease(receipt) = receipt.as_deref()? else {
        return None;
    };
    let mut brief = Brief {
        address: address.clone(),
        generation: *generation,
        verb: *verb,
        step: *step,
        spec_of: None,
        spec: None,
        attempt: None,
        machine: None,
        created_at: None,
        place: Place::default(),
        ready: None,
        at: *at,
    };
    if let Some(Spec::Lease(spec)) = spec.as_deref() {
        let like = [Some(address), sibling].into_iter().flatten();
        let mut like = like.filter(|other| spec_of(known(other)) == Some(spec));
        brief.spec_of = like.next().cloned();
        brief.spec = brief.spec_of.is_none().then(|| spec.clone());
    }
    match &receipt.ready {
        None => {
            brief.attempt = Some(receipt.request_key.try_of().1);
            brief.machine = Some(receipt.machine.clone());
            brief.created_at = Some(receipt.created_at).filter(|created| created != at);
            brief.place = receipt.place.clone();
        }
        Some(ready) => {
            let like = sibling.filter(|other| facts_of(known(other)) == Some(&ready.facts));
            brief.ready = Some(ReadyBriefly {
                facts_of: like.cloned(),
                facts: like.is_none().then(|| ready.facts.clone()),
                endpoint: ready.endpoint,
                contact: ready.contact.clone(),
            });
        }
    }
    Some(brief)
}

fn spec_of(recorded: Option<&Recorded>) -> Option<&Shared<LeaseSpec>> {
    match recorded?.spec.as_ref()? {
        Spec::Lease(spec) => Some(spec),
        Spec::Delivery(_) | Spec::Stage(_) | Spec::Pipeline(_) | Spec::Exposure(_) => None,
    }
}

fn receipt_of(recorded: Option<&Recorded>) -> Option<&LeaseReceipt> {
    match recorded?.receipt.as_ref()? {
        Receipt::Lease(receipt) => Some(receipt),
        Receipt::Delivery(_) | Receipt::Stage(_) | Receipt::Pipeline(_) | Receipt::Exposure(_) => {
            None
        }
    }
}

fn facts_of(recorded: Option<&Recorded>) -> Option<&Shared<Facts>> {
    Some(&receipt_of(recorded)?.ready.as_ref()?.facts)
}

impl Brief {
    /// The leases whose records it names.
    pub fn names(&self) -> impl Iterator<Item = &Address> {
        let ready = self.ready.as_ref();
        let facts = ready.and_then(|ready| ready.facts_of.as_ref());
        self.spec_of.iter().chain(facts)
    }

    /// The record that this stands for, given what is recorded right before it.
    ///
    /// # Errors
    /// What it names and nobody recorded.
    pub fn whole<'s>(
        &self,
        known: impl Fn(&Address) -> Option<&'s Recorded>,
    ) -> Result<Record, &'static str> {
        let own = known(&self.address);
        let (spec, made) = self.outcome(own, &known)?;
        let receipt = match made {
            Made::Receipt(receipt) => receipt,
            Made::Ready(ready) => {
                let held = receipt_of(own);
                let held = held.ok_or("a machine that nobody recorded became ready")?;
                Box::new(LeaseReceipt {
                    ready: Some(ready),
                    ..held.clone()
                })
            }
        };
        Ok(Record::Done {
            address: self.address.clone(),
            generation: self.generation,
            verb: self.verb,
            step: self.step,
            spec: spec.map(Box::new),
            receipt: Some(Box::new(Receipt::Lease(receipt))),
            at: self.at,
        })
    }

    /// The spec in that record, and what is new in its receipt. `own` is what is recorded at its address.
    pub(crate) fn outcome<'s>(
        &self,
        own: Option<&'s Recorded>,
        known: impl Fn(&Address) -> Option<&'s Recorded>,
    ) -> Result<(Option<Spec>, Made), &'static str> {
        let spec = match &self.spec_of {
            Some(other) => {
                let itself = *other == self.address;
                let spec = spec_of(if itself { own } else { known(other) });
                Some(spec.ok_or("it names the spec of a lease that has none")?)
            }
            None => self.spec.as_ref(),
        };
        let made = match &self.ready {
            Some(ready) => Made::Ready(ready.whole(&known)?),
            None => Made::Receipt(Box::new(self.made(own)?)),
        };
        Ok((spec.map(|spec| Spec::Lease(spec.clone())), made))
    }

    fn made(&self, own: Option<&Recorded>) -> Result<LeaseReceipt, &'static str> {
        let attempt = self.attempt.ok_or("it names no try")?;
        let open = own.and_then(|own| own.attempts.get(&attempt));
        let launch = &open.ok_or("it names a try that is not open")?.launch;
        Ok(LeaseReceipt {
            provider: launch.provider.clone(),
            provider_kind: launch.provider_kind.clone(),
            offer: launch.offer.clone(),
            account: launch.account.clone(),
            quote: launch.quote.clone(),
            machine: self.machine.clone().ok_or("it names no machine")?,
            request_key: launch.request_key.clone(),
            price_per_hour: launch.price_per_hour,
            created_at: self.created_at.unwrap_or(self.at),
            place: self.place.clone(),
            ready: None,
        })
    }
}

impl ReadyBriefly {
    fn whole<'s>(
        &self,
        known: impl Fn(&Address) -> Option<&'s Recorded>,
    ) -> Result<LeaseReady, &'static str> {
        let facts = match &self.facts_of {
            Some(other) => {
                facts_of(known(other)).ok_or("it names the facts of a lease that has none")?
            }
            None => self.facts.as_ref().ok_or("it has no facts")?,
        };
        Ok(LeaseReady {
            facts: facts.clone(),
            endpoint: self.endpoint,
            contact: self.contact.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
