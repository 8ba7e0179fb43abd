//! Adds to the description what the macros cannot: that requests are read
//! strictly, and the parameters of the layers around the calls.

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

use crate::http::forward::Class;
use crate::http::problem::shared_responses;

/// Start of a reference to a named schema.
const NAMED: &str = "#/components/schemas/";

/// Completes the description of all calls.
pub(crate) fn complete(described: &OpenApi) -> OpenApi {
    let mut document = serde_json::to_value(described).expect("the description is JSON");
    let mut asked = BTreeSet::new();
    for (path, item) in members(&mut document["paths"]) {
        for (method, operation) in members(item) {
            let method = method.to_uppercase().parse().expect("a method of HTTP");
            if takes_forward(&method, path) {
                let parameters = members(operation).entry("parameters").or_insert(json!([]));
                parameters.as_array_mut().expect("a list of parameters").push(forward());
            }
            if let Some(body) = operation.get("requestBody") {
                references(body, &mut asked);
            }
        }
    }
    let shared = serde_json::to_value(shared_responses()).expect("the responses are JSON");
    document["components"]["responses"] = shared;
    let schemas = members(&mut document["components"]["schemas"]);
    merge_flattened(schemas);
    close(schemas, asked);
    serde_json::from_value(document).expect("what was added is of the description's own kind")
}

fn members(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("an object of the description")
}

fn takes_forward(method: &Method, path: &str) -> bool {
    Class::of(method, path).is_some_and(|class| class != Class::Local)
}

fn forward() -> Value {
    json!({
        "name": "forward",
        "in": "query",
        "description": "Whether a follower may pass the call to the leader; if not, it refuses and names the leader",
        "required": false,
        "schema": {"type": "boolean", "default": true},
        "example": false,
    })
}

/// The named schemas that a value refers to.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            let name = map.get("$ref").and_then(Value::as_str);
            found.extend(name.and_then(|name| name.strip_prefix(NAMED)).map(str::to_owned));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Merges objects that are described as several into one: with `allOf` none of
/// them can forbid other fields.
fn merge_flattened(schemas: &mut Map<String, Value>) {
    let before = schemas.clone();
    for schema in schemas.values_mut() {
        if schema.get("allOf").is_some() {
            let mut merged = json!({"type": "object", "required": [], "properties": {}});
            merge(schema, &before, &mut merged);
            if let Some(description) = schema.get("description") {
                merged["description"] = description.clone();
            }
            *schema = merged;
        }
    }
}

fn merge(schema: &Value, schemas: &Map<String, Value>, merged: &mut Value) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix(NAMED)) {
        return merge(&schemas[name], schemas, merged);
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return parts.iter().for_each(|part| merge(part, schemas, merged));
    }
    assert_eq!(schema["type"], "object", "only an object is flattened: {schema}");
    let required = schema["required"].as_array().into_iter().flatten().cloned();
    merged["required"].as_array_mut().expect("made as a list").extend(required);
    let properties = schema["properties"].as_object().into_iter().flatten();
    let properties = properties.map(|(name, schema)| (name.clone(), schema.clone()));
    members(&mut merged["properties"]).extend(properties);
}

/// Forbids other fields in every object of a request.
fn close(schemas: &mut Map<String, Value>, mut names: BTreeSet<String>) {
    let mut closed = BTreeSet::new();
    while let Some(name) = names.pop_first() {
        let schema = schemas.get_mut(&name).expect("each schema that is referred to is there");
        close_objects(schema);
        references(schema, &mut names);
        closed.insert(name);
        names.retain(|name| !closed.contains(name));
    }
}

fn close_objects(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.values_mut().for_each(close_objects);
            if map.get("type").is_some_and(|kind| kind == "object") {
                map.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close_objects),
        _ => {}
    }
}
