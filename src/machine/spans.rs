//! Sets of byte ranges: which parts of a model file are needed, present or missing.
//!
//! A [`Spans`] is always sorted, without overlaps, touching neighbours or empty ranges, so that two equal sets compare
//! equal. Pure.

use serde::{Deserialize, Serialize};

use super::control::Span;

/// A set of byte ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Span>", into = "Vec<Span>")]
pub struct Spans(Vec<Span>);

impl From<Vec<Span>> for Spans {
    fn from(mut spans: Vec<Span>) -> Self {
        spans.retain(|span| !span.is_empty());
        spans.sort_unstable();
        let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                Some(_) | None => merged.push(span),
            }
        }
        Self(merged)
    }
}

impl From<Spans> for Vec<Span> {
    fn from(spans: Spans) -> Self {
        spans.0
    }
}

impl Spans {
    /// The whole of a file.
    pub fn whole(size: u64) -> Self {
        vec![Span {
            start: 0,
            end: size,
        }]
        .into()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().copied()
    }

    /// How many bytes they cover.
    pub fn bytes(&self) -> u64 {
        self.iter().map(Span::len).sum()
    }

    /// One past the last byte; 0 when there is none.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |span| span.end)
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a range.
    pub fn add(&mut self, span: Span) {
        // A transfer appends: the common case costs nothing.
        match self.0.last_mut() {
            Some(last) if span.start >= last.start && span.start <= last.end => {
                last.end = last.end.max(span.end);
            }
            Some(_) | None => {
                let mut all = std::mem::take(&mut self.0);
                all.push(span);
                *self = all.into();
            }
        }
    }

    /// What is in `self` and not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        for span in self.iter() {
            let mut start = span.start;
            let touching = other
                .iter()
                .filter(|o| o.end > span.start && o.start < span.end);
            for cut in touching {
                if cut.start > start {
                    rest.push(Span {
                        start,
                        end: cut.start,
                    });
                }
                start = start.max(cut.end);
            }
            rest.push(Span {
                start,
                end: span.end,
            });
        }
        rest.into()
    }

    /// Whether every byte of `other` is in `self`.
    pub fn covers(&self, other: &Self) -> bool {
        other.without(self).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(ranges: &[(u64, u64)]) -> Spans {
        let span = |&(start, end)| Span { start, end };
        ranges.iter().map(span).collect::<Vec<_>>().into()
    }

    #[test]
    fn ranges_are_merged_and_empty_ones_vanish() {
        assert_eq!(
            spans(&[(5, 7), (0, 3), (3, 4), (9, 9), (6, 8), (20, 10)]),
            spans(&[(0, 4), (5, 8)])
        );
        let mut grown = spans(&[(0, 4)]);
        grown.add(Span { start: 4, end: 6 });
        grown.add(Span { start: 1, end: 2 });
        grown.add(Span { start: 8, end: 9 });
        assert_eq!(grown, spans(&[(0, 6), (8, 9)]));
        assert_eq!((grown.bytes(), grown.end()), (7, 9));
    }

    #[test]
    fn missing_is_needed_without_present() {
        let needed = spans(&[(0, 10), (20, 30)]);
        assert_eq!(needed.without(&spans(&[])), needed);
        assert_eq!(
            needed.without(&spans(&[(2, 4), (8, 22), (29, 50)])),
            spans(&[(0, 2), (4, 8), (22, 29)])
        );
        assert!(spans(&[(0, 40)]).covers(&needed));
        assert!(!spans(&[(0, 29)]).covers(&needed));
    }

    /// Against a bitmap, over every pair of small sets.
    #[test]
    fn subtraction_equals_that_of_sets_of_bytes() {
        let set = |bits: u64| {
            let ranges = (0..6).filter(|i| bits >> i & 1 == 1).map(|i| (i, i + 1));
            spans(&ranges.collect::<Vec<_>>())
        };
        for a in 0..64 {
            for b in 0..64 {
                assert_eq!(set(a).without(&set(b)), set(a & !b), "{a:b} {b:b}");
                assert_eq!(set(a).covers(&set(b)), b & !a == 0);
            }
        }
    }
}
