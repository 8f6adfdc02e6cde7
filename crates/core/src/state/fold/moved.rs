//! Machines whose agents are reached elsewhere than before: who was told where they were is to be told anew.

use super::super::State;
use crate::id::{Address, EndpointKey};
use crate::resource::{Contact, Receipt};

impl State {
    /// How the agent of a machine that is ready is reached.
    pub(super) fn way(&self, address: &Address) -> Option<(EndpointKey, Contact)> {
        let Address::Lease(lease) = address else {
            return None;
        };
        let ready = self.lease(lease)?.ready.as_ref()?;
        Some((ready.endpoint, ready.contact.clone()))
    }

    /// Takes a machine out of what others were told, when the same agent is reached elsewhere now.
    pub(super) fn moved(&mut self, address: &Address, before: Option<(EndpointKey, Contact)>) {
        let (Some((agent, was)), Some((same, is))) = (before, self.way(address)) else {
            return;
        };
        let Address::Lease(lease) = address else {
            return;
        };
        if agent != same || was.moved(&is).is_none() {
            return;
        }
        for recorded in self.resources.values_mut() {
            match &mut recorded.receipt {
                Some(Receipt::Delivery(receipt)) => drop(receipt.peers.remove(lease)),
                Some(Receipt::Exposure(receipt)) => drop(receipt.peers.remove(lease)),
                Some(Receipt::Lease(_) | Receipt::Stage(_) | Receipt::Pipeline(_)) | None => {}
            }
        }
    }
}
