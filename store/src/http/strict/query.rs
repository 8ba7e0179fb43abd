//! Checks the query parameters of a call.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::Query as Pairs;
use axum::http::{Method, Uri};
use holdfast_api::Name;
use serde_json::Value;

use super::shape::{Schemas, Shape};
use super::words::{did_you_mean, listed, meaning, quoted, repeated};
use crate::http::problem::extract::Quotable;

/// The parameters of a call.
pub(crate) struct Query {
    parameters: BTreeMap<String, Parameter>,
    /// A valid example query.
    example: String,
}

struct Parameter {
    shape: Shape,
    required: bool,
    meaning: String,
}

impl Query {
    /// The parameters that the description defines.
    pub(crate) fn of(path: &str, operation: &Value, schemas: &Schemas<'_>) -> Query {
        let described = operation["parameters"].as_array().into_iter().flatten();
        let described = described.filter(|parameter| parameter["in"] == "query");
        let parameters: BTreeMap<String, Parameter> = described
            .clone()
            .map(|parameter| {
                let described = Parameter {
                    shape: schemas.shape(&parameter["schema"]),
                    required: parameter["required"] == true,
                    meaning: parameter["description"].as_str().unwrap_or_default().to_owned(),
                };
                (parameter["name"].as_str().expect("a name").to_owned(), described)
            })
            .collect();
        let pairs: Vec<String> = described
            .filter(|parameter| parameter["required"] == true || parameter["name"] == "job")
            .map(|parameter| {
                let value = &parameter["example"];
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{}={value}", parameter["name"].as_str().expect("a name"))
            })
            .collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        Query { parameters, example: format!("{path}{mark}{}", pairs.join("&")) }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// A valid example query.
    pub(crate) fn example(&self) -> &str {
        &self.example
    }

    /// The error in a call's query; the call's fields may be in its body.
    pub(crate) fn fault(&self, method: &Method, uri: &Uri, in_body: bool) -> Option<String> {
        let Ok(Pairs(pairs)) = Pairs::<Vec<(String, String)>>::try_from_uri(uri) else {
            return Some("the parameters of the address cannot be read".to_owned());
        };
        let raw = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let mut seen = BTreeSet::new();
        for ((name, value), raw) in pairs.iter().zip(raw) {
            let Some((known, parameter)) = self.parameters.get_key_value(name) else {
                return Some(self.unknown(method, uri, name, in_body));
            };
            if !seen.insert(known) && !matches!(parameter.shape.present(), Shape::List(..)) {
                return Some(format!("the parameter `{known}` is there twice; write it once"));
            }
            if !is_text(raw) {
                return Some(format!(
                    "the parameter `{known}` is not UTF-8 text; write other bytes as \\xNN"
                ));
            }
            if let Some(wrong) = wrong(parameter.shape.present(), value) {
                return Some(format!("the parameter `{known}` {wrong}"));
            }
        }
        let missing =
            |(name, parameter): &(&String, &Parameter)| parameter.required && !seen.contains(name);
        self.parameters.iter().find(missing).map(|(name, parameter)| {
            format!("the parameter `{name}` is missing{}", meaning(&parameter.meaning))
        })
    }

    fn unknown(&self, method: &Method, uri: &Uri, name: &str, in_body: bool) -> String {
        let known: Vec<&str> = self.parameters.keys().map(String::as_str).collect();
        let (name, nearest) = (repeated(name), did_you_mean(name, &known));
        if in_body && nearest.is_empty() {
            return format!(
                "unknown parameter `{name}` in the address; the fields of this call stand in its body"
            );
        }
        let end = if nearest.is_empty() { "." } else { "" };
        let takes = if known.is_empty() { "no parameters".to_owned() } else { listed(&known) };
        format!("unknown parameter `{name}`{nearest}{end} {method} {} takes {takes}", uri.path())
    }
}

/// Whether the percent-encoded bytes are UTF-8.
fn is_text(raw: &str) -> bool {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped = behind.get(..2).filter(|_| *first == b'%');
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    std::str::from_utf8(&bytes).is_ok()
}

/// Completes "the parameter …" if a value does not fit its shape.
fn wrong(shape: &Shape, value: &str) -> Option<String> {
    let fits = match shape {
        Shape::Text => true,
        Shape::Name => match value.parse::<Name>() {
            Ok(_) => true,
            Err(why) => return Some(format!("cannot be used: {why}")),
        },
        Shape::Id => value.parse::<Quotable>().is_ok(),
        Shape::Whole(from, to) => {
            let number = value.parse::<i128>();
            // A type without a sign does not read `-0`.
            let is_signed = *from < 0 || !value.starts_with('-');
            is_signed && number.is_ok_and(|number| (*from..=*to).contains(&number))
        }
        Shape::Flag => value == "true" || value == "false",
        Shape::Choice(known) => known.iter().any(|known| known == value),
        Shape::List(item, ..) => return wrong(item.present(), value),
        Shape::Map(_) | Shape::Fields(_) | Shape::Variants(_) | Shape::Optional(_) => false,
    };
    (!fits).then(|| format!("must be {shape}, not {}", quoted(value)))
}
