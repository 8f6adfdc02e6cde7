//! Enums whose tag is a field of their own object, read in one pass.
//!
//! serde's `tag` keeps each value aside until the tag is known, which took a journal's reader half of its time. Here the
//! tag is read first, where it is always written, and what follows goes straight into the variant. A tag that comes
//! later, in text that somebody edited, is found too. Use it with `#[serde(remote = "Self")]` on a type that is not
//! tagged otherwise.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, StringDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, IntoDeserializer, MapAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde::ser::{Impossible, Serialize, SerializeStruct, SerializeStructVariant, Serializer};

/// A reader or writer of values with a tag of this name.
pub(crate) struct Tagged<T> {
    tag: &'static str,
    /// The variant that is being written: the tag's value.
    variant: Option<&'static str>,
    inner: T,
}

impl<T> Tagged<T> {
    pub(crate) const fn new(tag: &'static str, inner: T) -> Self {
        Self {
            tag,
            variant: None,
            inner,
        }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tagged<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, D::Error> {
        Err(D::Error::custom("only an enum has a tag"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let read = Object {
            tag: self.tag,
            visitor,
        };
        self.inner.deserialize_map(read)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The object with the tag in it.
struct Object<V> {
    tag: &'static str,
    visitor: V,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Object<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with `{}`", self.tag)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<V::Value, A::Error> {
        match map.next_key_seed(Tag(self.tag))? {
            None => Err(A::Error::missing_field(self.tag)),
            Some(Key::Tag) => self.visitor.visit_enum(First(map)),
            Some(Key::Other(key)) => self.visit_edited(key, map),
        }
    }
}

impl<'de, V: Visitor<'de>> Object<V> {
    /// The tag is not the first field: those before it are kept aside.
    fn visit_edited<A: MapAccess<'de>>(
        self,
        first: String,
        mut map: A,
    ) -> Result<V::Value, A::Error> {
        let mut fields: Vec<(String, serde_json::Value)> = vec![(first, map.next_value()?)];
        let mut variant: Option<String> = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.tag {
                variant = Some(map.next_value()?);
            } else {
                fields.push((key, map.next_value()?));
            }
        }
        let variant = variant.ok_or_else(|| A::Error::missing_field(self.tag))?;
        let map = MapDeserializer::<_, serde_json::Error>::new(fields.into_iter());
        let read = self.visitor.visit_enum(Edited { variant, map });
        read.map_err(A::Error::custom)
    }
}

/// Reads a key, and keeps it only if it is not the tag.
struct Tag(&'static str);

enum Key {
    Tag,
    Other(String),
}

impl<'de> DeserializeSeed<'de> for Tag {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Tag {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<Key, E> {
        Ok(if key == self.0 {
            Key::Tag
        } else {
            Key::Other(key.to_owned())
        })
    }
}

/// An object after the tag's key: its value is next, and the fields follow.
struct First<A>(A);

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for First<A> {
    type Error = A::Error;
    type Variant = Fields<A>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        mut self,
        seed: S,
    ) -> Result<(S::Value, Fields<A>), A::Error> {
        Ok((self.0.next_value_seed(seed)?, Fields(self.0)))
    }
}

/// The tag's value and all other fields.
struct Edited<A> {
    variant: String,
    map: A,
}

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for Edited<A> {
    type Error = A::Error;
    type Variant = Fields<A>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Fields<A>), A::Error> {
        let name: StringDeserializer<A::Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(name)?, Fields(self.map)))
    }
}

struct Fields<A>(A);

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn unit_variant(mut self) -> Result<(), A::Error> {
        while self.0.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        seed.deserialize(MapAccessDeserializer::new(self.0))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, A::Error> {
        Err(A::Error::custom("a list has no fields"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(self.0)
    }
}

/// What is neither a variant with fields nor the struct in one has no tag.
fn untagged<E: serde::ser::Error>() -> E {
    E::custom("only an enum of objects has a tag")
}

macro_rules! untagged {
    ($($method:ident($($kind:ty),*);)*) => {
        $(fn $method(self, $(_: $kind),*) -> Result<S::Ok, S::Error> {
            Err(untagged())
        })*
    };
}

impl<S: Serializer> Serializer for Tagged<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Impossible<S::Ok, S::Error>;
    type SerializeTuple = Impossible<S::Ok, S::Error>;
    type SerializeTupleStruct = Impossible<S::Ok, S::Error>;
    type SerializeTupleVariant = Impossible<S::Ok, S::Error>;
    type SerializeMap = Impossible<S::Ok, S::Error>;
    type SerializeStruct = S::SerializeStruct;
    type SerializeStructVariant = Written<S::SerializeStruct>;

    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<S::SerializeStruct, S::Error> {
        let variant = self.variant.ok_or_else(untagged::<S::Error>)?;
        let mut fields = self.inner.serialize_struct(name, len + 1)?;
        fields.serialize_field(self.tag, variant)?;
        Ok(fields)
    }

    fn serialize_struct_variant(
        mut self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.variant = Some(variant);
        Ok(Written(self.serialize_struct(name, len)?))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.variant = Some(variant);
        value.serialize(self)
    }

    untagged! {
        serialize_bool(bool); serialize_i8(i8); serialize_i16(i16); serialize_i32(i32); serialize_i64(i64);
        serialize_u8(u8); serialize_u16(u16); serialize_u32(u32); serialize_u64(u64); serialize_f32(f32);
        serialize_f64(f64); serialize_char(char); serialize_str(&str); serialize_bytes(&[u8]); serialize_none();
        serialize_unit(); serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<S::Ok, S::Error> {
        Err(untagged())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: &T,
    ) -> Result<S::Ok, S::Error> {
        Err(untagged())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        Err(untagged())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, S::Error> {
        Err(untagged())
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        Err(untagged())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        Err(untagged())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        Err(untagged())
    }
}

/// A variant's fields after its tag.
pub(crate) struct Written<S>(S);

impl<S: SerializeStruct> SerializeStructVariant for Written<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), S::Error> {
        self.0.serialize_field(key, value)
    }

    fn skip_field(&mut self, key: &'static str) -> Result<(), S::Error> {
        self.0.skip_field(key)
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

#[cfg(test)]
mod tests {
    use crate::journal::Record;

    fn read(text: &str) -> Result<Record, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_tag_is_found_wherever_it_stands() {
        let end = Record::End {
            finished: true,
            at: "1970-01-01T00:00:00Z".parse().expect("a time"),
        };
        for text in [
            r#"{"record":"end","finished":true,"at":"1970-01-01T00:00:00Z"}"#,
            r#"{"finished":true,"record":"end","at":"1970-01-01T00:00:00Z"}"#,
            r#"{"finished":true,"at":"1970-01-01T00:00:00Z","record":"end"}"#,
            "{\"\\u0072ecord\":\"end\",\"finished\":true,\"at\":\"1970-01-01T00:00:00Z\"}",
            r#"{"record":"end","new":[{}],"finished":true,"at":"1970-01-01T00:00:00Z"}"#,
        ] {
            assert_eq!(read(text).as_ref(), Ok(&end), "{text}");
        }
    }

    #[test]
    fn what_has_no_tag_or_an_unknown_one_is_refused() {
        for (text, why) in [
            ("{}", "missing field `record`"),
            (r#"{"finished":true}"#, "missing field `record`"),
            (r#"{"record":"ende","finished":true}"#, "unknown variant"),
            (r#"{"finished":true,"record":"ende"}"#, "unknown variant"),
            (r#"{"record":7}"#, "invalid type"),
            ("[]", "an object with `record`"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
