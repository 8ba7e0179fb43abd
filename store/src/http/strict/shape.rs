//! What a value may be, made from a schema of the description.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

/// Deepest nesting of a schema; a schema that contains itself is deeper.
const NESTING_MAX: usize = 32;

/// What a value may be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// Any text; nothing of it is checked.
    Text,
    /// Text that its type parses: a [`holdfast_api::Name`].
    Name,
    /// A [`SecretId`](holdfast_api::SecretId): hexadecimal digits, or a whole number.
    Id,
    /// One of these texts.
    Choice(Vec<String>),
    /// A whole number in this range, ends included.
    Whole(i128, i128),
    /// A boolean, true or false.
    Flag,
    /// A list with a bounded number of items.
    List(Box<Shape>, usize, usize),
    /// An object with any names.
    Map(Box<Shape>),
    /// An object with these fields.
    Fields(BTreeMap<String, Field>),
    /// An enum: the name of a variant, or an object with it as the only field.
    Variants(BTreeMap<String, Option<Shape>>),
    /// The shape, or null.
    Optional(Box<Shape>),
}

/// A field of an object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Field {
    /// What it may be.
    pub(crate) shape: Shape,
    /// Whether it is required.
    pub(crate) required: bool,
    pub(crate) meaning: String,
}

impl Shape {
    /// The shape of a non-null value.
    pub(crate) fn present(&self) -> &Shape {
        match self {
            Shape::Optional(shape) => shape.present(),
            shape => shape,
        }
    }

    /// Names that are known in an object of this shape.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self.present() {
            Shape::Fields(fields) => fields.keys().map(String::as_str).collect(),
            Shape::Variants(variants) => variants.keys().map(String::as_str).collect(),
            Shape::Choice(choices) => choices.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }
}

/// Completes "it must be …".
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Text | Shape::Name => f.write_str("a string"),
            Shape::Id => f.write_str("an id as it was answered"),
            Shape::Choice(_) | Shape::Variants(_) => {
                write!(f, "one of {}", self.names().join(", "))
            }
            Shape::Whole(from, to) => write!(f, "a whole number from {from} to {to}"),
            Shape::Flag => f.write_str("true or false"),
            Shape::List(_, from, to) if from == to => write!(f, "a list of {from} items"),
            Shape::List(..) => f.write_str("a list"),
            Shape::Map(_) => f.write_str("an object"),
            Shape::Fields(_) => write!(f, "an object with {}", self.names().join(", ")),
            Shape::Optional(shape) => shape.fmt(f),
        }
    }
}

/// The named schemas of a description.
pub(crate) struct Schemas<'d>(&'d Map<String, Value>);

impl<'d> Schemas<'d> {
    /// The shapes of this description.
    pub(crate) fn of(document: &'d Value) -> Schemas<'d> {
        let schemas = document["components"]["schemas"].as_object();
        Schemas(schemas.expect("the description has schemas"))
    }

    /// The shape that a schema describes.
    ///
    /// # Panics
    ///
    /// On a kind of schema that this module cannot check: such a type must not be
    /// added to a request.
    pub(crate) fn shape(&self, schema: &Value) -> Shape {
        self.shape_at(schema, 0)
    }

    fn shape_at(&self, schema: &Value, depth: usize) -> Shape {
        assert!(depth < NESTING_MAX, "a schema of a request contains itself: {schema}");
        if let Some(reference) = schema["$ref"].as_str() {
            return self.shape_at(self.resolve(reference), depth + 1);
        }
        if let Some(alternatives) = schema["oneOf"].as_array() {
            return self.one_of(alternatives, depth);
        }
        match &schema["type"] {
            Value::String(kind) => self.typed(kind, schema, depth),
            Value::Array(kinds) if kinds.iter().all(|kind| *kind != "null") => Shape::Id,
            Value::Array(kinds) => {
                let kind = kinds.iter().find(|kind| **kind != "null").and_then(Value::as_str);
                let kind = kind.expect("a type beside null");
                Shape::Optional(Box::new(self.typed(kind, schema, depth)))
            }
            _ => panic!("a schema of a request has no type: {schema}"),
        }
    }

    fn resolve(&self, reference: &str) -> &'d Value {
        let name = reference.strip_prefix("#/components/schemas/").expect("a schema of ours");
        &self.0[name]
    }

    fn typed(&self, kind: &str, schema: &Value, depth: usize) -> Shape {
        let below = |schema| Box::new(self.shape_at(schema, depth + 1));
        let count = |name: &str| schema[name].as_u64().and_then(|n| usize::try_from(n).ok());
        match kind {
            "string" => match schema["enum"].as_array() {
                Some(choices) => Shape::Choice(choices.iter().map(text).collect()),
                None if schema.get("pattern").is_some() => Shape::Name,
                None => Shape::Text,
            },
            "integer" => whole(schema),
            "boolean" => Shape::Flag,
            "array" => Shape::List(
                below(&schema["items"]),
                count("minItems").unwrap_or(0),
                count("maxItems").unwrap_or(usize::MAX),
            ),
            "object" if schema["additionalProperties"].is_object() => {
                Shape::Map(below(&schema["additionalProperties"]))
            }
            "object" => Shape::Fields(self.fields(schema, depth)),
            kind => panic!("requests have no {kind}: {schema}"),
        }
    }

    fn fields(&self, schema: &Value, depth: usize) -> BTreeMap<String, Field> {
        let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let field = |(name, schema): (&String, &Value)| {
            let field = Field {
                shape: self.shape_at(schema, depth + 1),
                required: required.iter().any(|required| required == name),
                meaning: schema["description"].as_str().unwrap_or_default().to_owned(),
            };
            (name.clone(), field)
        };
        properties.map(field).collect()
    }

    fn one_of(&self, alternatives: &[Value], depth: usize) -> Shape {
        let (nulls, others): (Vec<&Value>, Vec<&Value>) =
            alternatives.iter().partition(|schema| schema["type"] == "null");
        let shape = match others.as_slice() {
            [one] => self.shape_at(one, depth + 1),
            _ => Shape::Variants(others.iter().flat_map(|one| self.variants(one, depth)).collect()),
        };
        if nulls.is_empty() { shape } else { Shape::Optional(Box::new(shape)) }
    }

    fn variants(&self, schema: &Value, depth: usize) -> Vec<(String, Option<Shape>)> {
        match self.shape_at(schema, depth + 1) {
            Shape::Choice(names) => names.into_iter().map(|name| (name, None)).collect(),
            Shape::Fields(fields) if fields.len() == 1 => {
                fields.into_iter().map(|(name, field)| (name, Some(field.shape))).collect()
            }
            _ => panic!("a request has an enum that does not name its variants: {schema}"),
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a choice is a text").to_owned()
}

fn whole(schema: &Value) -> Shape {
    let unsigned = schema["minimum"] == 0;
    let (from, to) = match (schema["format"].as_str(), unsigned) {
        (Some("int32"), true) => (0, u32::MAX.into()),
        (Some("int32"), false) => (i32::MIN.into(), i32::MAX.into()),
        (Some("int64"), true) => (0, u64::MAX.into()),
        (Some("int64"), false) => (i64::MIN.into(), i64::MAX.into()),
        _ => panic!("a whole number without a width: {schema}"),
    };
    Shape::Whole(from, to)
}
