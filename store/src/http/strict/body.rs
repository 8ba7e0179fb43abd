//! A JSON body against its shape.
//!
//! The body is walked once and nothing of it is kept, so that a hostile one costs
//! only its bytes. Unknown values are not entered, so that the shape bounds the
//! depth.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use holdfast_api::{Name, SecretId};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::shape::{Field, Schemas, Shape};
use super::words::{did_you_mean, listed, meaning, quoted, repeated};

/// Most values in a body. Once it is read each takes memory of its own, however few bytes it
/// has.
const VALUES_MAX: usize = 1 << 20;

/// The body of a call.
pub(crate) struct Body {
    shape: Shape,
    /// Valid example bodies; at least one, as text.
    examples: Vec<String>,
}

impl Body {
    /// The body that the description defines.
    pub(crate) fn of(described: &Value, schemas: &Schemas<'_>) -> Body {
        let content = &described["content"]["application/json"];
        let several = content["examples"].as_object().into_iter().flatten();
        let several = several.map(|(_, example)| &example["value"]);
        let examples: Vec<String> =
            content.get("example").into_iter().chain(several).map(Value::to_string).collect();
        assert!(!examples.is_empty(), "a body has no example: {described}");
        Body { shape: schemas.shape(&content["schema"]), examples }
    }

    /// How many values a body has, or the error in it.
    pub(crate) fn values(&self, body: &[u8]) -> Result<usize, String> {
        if body.trim_ascii().is_empty() {
            return Err("the body is empty".to_owned());
        }
        let (fault, values) = (Cell::new(None), Cell::new(0));
        let mut reader = serde_json::Deserializer::from_slice(body);
        let walk = Walk { shape: &self.shape, place: Place::Body, fault: &fault, values: &values };
        let walked = walk.deserialize(&mut reader).and_then(|()| reader.end());
        match (fault.take(), walked) {
            (Some(fault), _) => Err(fault),
            (None, Err(error)) => Err(format!("the body is not JSON: {error}")),
            (None, Ok(())) => Ok(values.get()),
        }
    }

    /// A valid example: of the variant that was meant, or else the first.
    pub(crate) fn example(&self, body: &[u8]) -> &str {
        let start = &body[..body.len().min(64)];
        let start = String::from_utf8_lossy(start);
        let named = start.trim_start_matches(['{', '"', ' ', '\n', '\t']);
        let meant = |example: &&String| {
            let variant = example.trim_start_matches(['{', '"']).split('"').next();
            variant.is_some_and(|variant| named.starts_with(&format!("{variant}\"")))
        };
        self.examples.iter().find(meant).unwrap_or(&self.examples[0])
    }
}

/// Position of a value in the body.
#[derive(Clone, Copy)]
enum Place<'w> {
    Body,
    Field(&'w Place<'w>, &'w str),
    Item(&'w Place<'w>, usize),
}

impl Place<'_> {
    /// As the subject of a sentence.
    fn subject(&self) -> String {
        match self {
            Place::Body => "the body".to_owned(),
            place => format!("`{place}`"),
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Body => Ok(()),
            Place::Field(Place::Body, name) => f.write_str(&repeated(name)),
            Place::Field(above, name) => write!(f, "{above}.{}", repeated(name)),
            Place::Item(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}

/// Checks one value of the body against its shape, and all values in it.
struct Walk<'w> {
    shape: &'w Shape,
    place: Place<'w>,
    /// The first fault; the walk ends there.
    fault: &'w Cell<Option<String>>,
    /// How many values there were so far.
    values: &'w Cell<usize>,
}

impl<'w> Walk<'w> {
    fn refuse<E: serde::de::Error>(&self, why: String) -> E {
        self.fault.set(Some(why));
        E::custom("refused")
    }

    fn is_another<E: serde::de::Error>(&self, found: impl fmt::Display) -> E {
        let known = self.shape.present();
        self.refuse(format!("{} must be {known}, not {found}", self.place.subject()))
    }

    fn whole<E: serde::de::Error>(&self, number: i128) -> Result<(), E> {
        match self.shape.present() {
            Shape::Whole(from, to) if (*from..=*to).contains(&number) => Ok(()),
            Shape::Id if u64::try_from(number).is_ok() => Ok(()),
            _ => Err(self.is_another(number)),
        }
    }

    fn below<'b>(&'b self, shape: &'b Shape, place: Place<'b>) -> Walk<'b> {
        Walk { shape, place, fault: self.fault, values: self.values }
    }

    fn unknown<E: serde::de::Error>(&self, what: &str, name: &str) -> E {
        let known = self.shape.names();
        let place = Place::Field(&self.place, name);
        let takes = match self.shape.present() {
            Shape::Variants(_) => "is one of",
            _ => "takes",
        };
        let nearest = did_you_mean(name, &known);
        let end = if nearest.is_empty() { "." } else { "" };
        let subject = match self.place {
            Place::Body => "The body".to_owned(),
            place => place.subject(),
        };
        let known = if known.is_empty() { "no fields".to_owned() } else { listed(&known) };
        self.refuse(format!("unknown {what} `{place}`{nearest}{end} {subject} {takes} {known}"))
    }

    fn twice<E: serde::de::Error>(&self, name: &str) -> E {
        let place = Place::Field(&self.place, name);
        self.refuse(format!("`{place}` is there twice; write it once"))
    }

    fn fields<'de, A: MapAccess<'de>>(
        &self,
        fields: &BTreeMap<String, Field>,
        mut object: A,
    ) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = object.next_key::<String>()? {
            let Some((known, field)) = fields.get_key_value(&name) else {
                return Err(self.unknown("field", &name));
            };
            if !seen.insert(known) {
                return Err(self.twice(known));
            }
            object.next_value_seed(self.below(&field.shape, Place::Field(&self.place, known)))?;
        }
        match fields.iter().find(|(name, field)| field.required && !seen.contains(name)) {
            Some((name, field)) => {
                let place = Place::Field(&self.place, name);
                Err(self.refuse(format!("`{place}` is missing{}", meaning(&field.meaning))))
            }
            None => Ok(()),
        }
    }

    fn variant<'de, A: MapAccess<'de>>(
        &self,
        variants: &BTreeMap<String, Option<Shape>>,
        mut object: A,
    ) -> Result<(), A::Error> {
        let all = listed(&self.shape.names());
        let subject = self.place.subject();
        let Some(name) = object.next_key::<String>()? else {
            return Err(self.refuse(format!("{subject} is empty; it must have one of {all}")));
        };
        match variants.get(&name) {
            Some(Some(shape)) => {
                object.next_value_seed(self.below(shape, Place::Field(&self.place, &name)))?;
            }
            Some(None) => {
                let written = quoted(&name);
                return Err(self.refuse(format!("{subject} must be {written}, not an object")));
            }
            None => return Err(self.unknown("variant", &name)),
        }
        match object.next_key::<String>()? {
            Some(second) if second == name => Err(self.twice(&name)),
            Some(second) if variants.contains_key(&second) => Err(self.refuse(format!(
                "{subject} has both `{name}` and `{second}`; it must have exactly one of {all}"
            ))),
            Some(second) => Err(self.unknown("variant", &second)),
            None => Ok(()),
        }
    }

    fn free<'de, A: MapAccess<'de>>(&self, shape: &Shape, mut object: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = object.next_key::<String>()? {
            object.next_value_seed(self.below(shape, Place::Field(&self.place, &name)))?;
            if seen.contains(&name) {
                return Err(self.twice(&name));
            }
            seen.insert(name);
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        let values = self.values.get() + 1;
        self.values.set(values);
        if values > VALUES_MAX {
            return Err(self.refuse(format!("the body holds more than {VALUES_MAX} values")));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.shape, f)
    }

    fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<(), E> {
        if *self.shape.present() == Shape::Flag { Ok(()) } else { Err(self.is_another(flag)) }
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        self.whole(number.into())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        self.whole(number.into())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        let found = match self.shape.present() {
            Shape::Whole(..) if number.fract() == 0.0 => {
                format!("{number:?}: write it without a point and an exponent")
            }
            _ => format!("{number:?}"),
        };
        Err(self.is_another(found))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        match self.shape {
            Shape::Optional(_) => Ok(()),
            _ => Err(self.is_another("null")),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        match self.shape.present() {
            Shape::Text => Ok(()),
            Shape::Id => match SecretId::from_hex(text) {
                Ok(_) => Ok(()),
                Err(why) => Err(self.refuse(format!("{}: {why}", self.place.subject()))),
            },
            Shape::Name => match text.parse::<Name>() {
                Ok(_) => Ok(()),
                Err(why) => Err(self.refuse(format!("{}: {why}", self.place.subject()))),
            },
            Shape::Choice(known) if known.iter().any(|known| known == text) => Ok(()),
            Shape::Variants(known) if known.get(text) == Some(&None) => Ok(()),
            Shape::Variants(known) if known.contains_key(text) => {
                let subject = self.place.subject();
                Err(self.refuse(format!(
                    "{subject} must be an object, {{\"{text}\": …}}, not a string"
                )))
            }
            Shape::Choice(_) | Shape::Variants(_) => {
                let nearest = did_you_mean(text, &self.shape.names());
                Err(self.is_another(quoted(text) + &nearest))
            }
            _ => Err(self.is_another(format!("the string {}", quoted(text)))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Shape::List(shape, from, to) = self.shape.present() else {
            return Err(self.is_another("a list"));
        };
        let mut count = 0;
        while count < *to {
            let item = self.below(shape, Place::Item(&self.place, count));
            if list.next_element_seed(item)?.is_none() {
                break;
            }
            count += 1;
        }
        if count == *to && list.next_element::<serde::de::IgnoredAny>()?.is_some() {
            return Err(self.is_another("a longer one"));
        }
        if count < *from {
            return Err(self.is_another(format!("one of {count}")));
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<(), A::Error> {
        match self.shape.present() {
            Shape::Fields(fields) => self.fields(fields, object),
            Shape::Variants(variants) => self.variant(variants, object),
            Shape::Map(shape) => self.free(shape, object),
            _ => Err(self.is_another("an object")),
        }
    }
}
