//! What is not taken again: quotes that were tried in vain, and hosts that a machine of this topology failed on.
//!
//! A note bars what certainly leads to the bad host. A shape that may lead to any host is only put last. Nothing here
//! forgets a note: that is the state's to do.

use std::collections::BTreeSet;

use super::placement::{Placement, Spot};
use crate::id::Name;
use crate::offer::{Quote, QuoteId};
use crate::state::{BadHost, Tried};

/// What is not taken, or taken last.
#[derive(Clone, Debug, Default)]
pub struct Avoid<'a> {
    notes: Vec<&'a BadHost>,
    tried: Vec<(&'a Name, &'a QuoteId)>,
    closed: Option<&'a BTreeSet<Name>>,
    placement: Placement,
}

/// Whether a quote may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// Nothing speaks against it.
    Fine,
    /// When there is nothing else.
    Last,
    /// Not at all.
    Never,
}

impl<'a> Avoid<'a> {
    /// These notes count.
    pub fn noted(notes: impl Iterator<Item = &'a BadHost>) -> Self {
        Self {
            notes: notes.collect(),
            tried: Vec::new(),
            closed: None,
            placement: Placement::default(),
        }
    }

    /// Nor what does not fit beside the others of the table.
    #[must_use]
    pub fn beside(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Neither is this taken again.
    #[must_use]
    pub fn and(mut self, tried: impl IntoIterator<Item = &'a Tried>) -> Self {
        let tried = tried.into_iter();
        self.tried
            .extend(tried.map(|tried| (&tried.provider, &tried.quote)));
        self
    }

    /// Nor anything of these providers.
    #[must_use]
    pub fn closed(mut self, providers: &'a BTreeSet<Name>) -> Self {
        self.closed = Some(providers);
        self
    }

    /// Whether this quote is not to be taken at all.
    pub fn bars(&self, quote: &Quote) -> bool {
        self.standing(quote) == Standing::Never
    }

    /// Whether this quote may be taken.
    pub(super) fn standing(&self, quote: &Quote) -> Standing {
        if self.tried.contains(&(&quote.provider, &quote.id)) {
            return Standing::Never;
        }
        if self
            .closed
            .is_some_and(|closed| closed.contains(&quote.provider))
        {
            return Standing::Never;
        }
        if !self.placement.is_free() && !self.placement.allows(&Spot::of(quote)) {
            return Standing::Never;
        }
        match self.notes.iter().find(|note| note.meets(quote)) {
            None => Standing::Fine,
            Some(note) if note.bars(quote) => Standing::Never,
            Some(_) => Standing::Last,
        }
    }

    /// Why this quote is not taken, for people.
    pub(super) fn why(&self, quote: &Quote) -> Option<String> {
        let note = self.notes.iter().find(|note| note.bars(quote))?;
        let what = note
            .host
            .as_ref()
            .map_or_else(|| "offer".to_owned(), |host| format!("host {host}"));
        Some(format!(
            "a machine of {} failed there ({what}, {:.0}): {}; `--replace {}` sets that aside for one plan",
            note.lease,
            note.at,
            note.why.lines().next().unwrap_or_default(),
            note.lease
        ))
    }
}
