//! A value that many hold: one copy in memory, however many leases it is the spec of.
//!
//! To a reader of JSON it is the value itself. Two that were made from one are equal without a look inside.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that is held in common and never changed.
#[derive(PartialOrd, Ord)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Shares a value.
    pub fn new(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// One and the same copy: then they are equal. Two copies may be equal, too.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Values by place, each once: what is held in common is written in common.
pub(crate) struct Table<'a, T> {
    /// In the order in which they came.
    pub(crate) values: Vec<&'a T>,
    /// Looks into no value that was seen before. Never iterated: where a copy lies means nothing.
    copies: BTreeMap<usize, u32>,
    texts: BTreeMap<String, u32>,
}

impl<'a, T: Serialize> Table<'a, T> {
    pub(crate) const fn new() -> Self {
        Self {
            values: Vec::new(),
            copies: BTreeMap::new(),
            texts: BTreeMap::new(),
        }
    }

    /// The place of a value: of equal ones, that of the first.
    pub(crate) fn place(&mut self, value: &'a Shared<T>) -> u32 {
        let copy = Arc::as_ptr(&value.0).addr();
        if let Some(place) = self.copies.get(&copy) {
            return *place;
        }
        let text = serde_json::to_string(&**value).expect("plain data");
        let next = u32::try_from(self.values.len()).expect("fewer than that");
        let place = *self.texts.entry(text).or_insert(next);
        if place == next {
            self.values.push(value);
        }
        self.copies.insert(copy, place);
        place
    }
}

impl<T: Clone> Shared<T> {
    /// To change it: a copy of one's own, if others hold it.
    pub fn to_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.0 == other.0
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::new)
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for Shared<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}
