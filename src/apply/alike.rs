//! Creates that are all refused with the same words: a provider may say of a request that can never work what it says of an offer that
//! cannot be had just now.
//!
//! What always holds: nothing is concluded from one offer that was refused once or twice, nor once anything else was answered.

use std::collections::BTreeSet;

use stageline_core::id::LeaseId;
use stageline_core::offer::QuoteId;
use stageline_core::resource::Cause;

/// Refusals of different offers after which they are one of the request.
const OFFERS_MIN: usize = 2;

/// The same where there is one offer, which is asked for again and again.
const TIMES_MIN: u32 = 5;

/// What the creates of one search were answered with.
#[derive(Default)]
pub(super) struct Alike {
    first: Option<Cause>,
    offers: BTreeSet<QuoteId>,
    times: u32,
    differs: bool,
}

impl Alike {
    /// A create of this offer was refused.
    pub fn refused(&mut self, offer: &QuoteId, cause: &Cause) {
        let first = self.first.get_or_insert_with(|| cause.clone());
        let same = first.message == cause.message && first.if_all == cause.if_all;
        self.differs |= !same;
        self.offers.insert(offer.clone());
        self.times += 1;
    }

    /// A create was answered with something else than a refusal.
    pub fn answered(&mut self) {
        self.differs = true;
    }

    /// Why no other offer will do either, and no waiting; none while that is not known.
    pub fn verdict(&self, lease: &LeaseId) -> Option<Cause> {
        let first = self.first.as_ref().filter(|_| !self.differs)?;
        let class = first.if_all?;
        if self.offers.len() < OFFERS_MIN && self.times < TIMES_MIN {
            return None;
        }
        let message = format!(
            "{lease}: all {} creates were refused with the same words: {}",
            self.times, first.message
        );
        Some(Cause {
            class,
            message,
            if_all: None,
            ..first.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stageline_core::resource::FailureClass::{Capacity, Config};

    fn verdict(refusals: &[(&str, &Cause)]) -> Option<Cause> {
        let mut alike = Alike::default();
        for (offer, cause) in refusals {
            alike.refused(&QuoteId((*offer).to_owned()), cause);
        }
        alike.verdict(&"lease.node[0]".parse().expect("a lease"))
    }

    #[test]
    fn what_all_offers_are_refused_with_is_about_the_request_and_what_one_is_is_not() {
        let odd = Cause::new(Capacity, "status 400").if_all(Config);
        let other = Cause::new(Capacity, "status 400: other").if_all(Config);
        let full = Cause::new(Capacity, "there is none left");
        let class = |refusals: &[(&str, &Cause)]| verdict(refusals).map(|cause| cause.class);
        assert_eq!(class(&[]), None);
        assert_eq!(class(&[("a", &odd)]), None);
        assert_eq!(class(&[("a", &odd), ("b", &odd)]), Some(Config));
        assert_eq!(class(&[("a", &odd); 4]), None, "one offer");
        assert_eq!(class(&[("a", &odd); 5]), Some(Config));
        assert_eq!(class(&[("a", &odd), ("b", &other)]), None);
        assert_eq!(class(&[("a", &odd), ("b", &odd), ("c", &full)]), None);
        assert_eq!(class(&[("a", &full), ("b", &full)]), None);
        let mut alike = Alike::default();
        for offer in ["a", "b"] {
            alike.refused(&QuoteId(offer.to_owned()), &odd);
        }
        alike.answered();
        assert_eq!(
            alike.verdict(&"lease.node[0]".parse().expect("a lease")),
            None
        );
    }
}
