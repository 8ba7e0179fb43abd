//! Requests with one slip each, made from a description of the API: every field is tried
//! without being listed.

use serde_json::{Map, Value, json};

/// A field that no request has.
const SURPLUS: &str = "zzz";

/// After a name that is there already, see [`Slip::text`].
const TWICE: char = '\u{1}';

/// One call of the description.
pub struct Call<'d> {
    /// The method in capitals, such as `GET`.
    pub method: String,
    /// The path, as the description writes it.
    pub path: String,
    operation: &'d Value,
    document: &'d Value,
}

/// A value that is wrong in one place.
#[derive(Debug, Clone)]
struct Slip {
    body: Value,
    /// Text that the answer must contain.
    names: String,
}

/// A request that is wrong in one place.
#[derive(Debug, Clone)]
pub struct BadRequest {
    /// The path with its parameters.
    pub address: String,
    /// The body, if the call takes one.
    pub body: Option<String>,
    /// Text that the answer must contain.
    pub names: String,
}

/// All calls of a description.
pub fn calls(document: &Value) -> Vec<Call<'_>> {
    let paths = document["paths"].as_object().expect("paths");
    let calls = paths.iter().flat_map(|(path, item)| {
        item.as_object().expect("methods").iter().map(|(method, operation)| {
            let (method, path) = (method.to_uppercase(), path.clone());
            Call { method, path, operation, document }
        })
    });
    calls.collect()
}

impl Call<'_> {
    /// The bodies that the description shows.
    pub fn examples(&self) -> Vec<&Value> {
        let content = self.content();
        let several = content["examples"].as_object().into_iter().flatten();
        content.get("example").into_iter().chain(several.map(|(_, e)| &e["value"])).collect()
    }

    /// The address with the example of each of its parameters.
    pub fn example_address(&self) -> String {
        let parameters = self.operation["parameters"].as_array().into_iter().flatten();
        let parameters = parameters.filter(|p| p["in"] == "query" && p["name"] != "forward");
        let pairs: Vec<String> = parameters
            .map(|p| {
                format!("{}={}", p["name"].as_str().expect("a name"), in_address(&p["example"]))
            })
            .collect();
        format!("{}?{}", self.path, pairs.join("&"))
    }

    fn content(&self) -> &Value {
        &self.operation["requestBody"]["content"]["application/json"]
    }

    /// Every request that differs in one place from one that works.
    pub fn slips(&self) -> Vec<BadRequest> {
        let mut slips = self.slips_of_address();
        let schema = Schema { document: self.document, schema: &self.content()["schema"] };
        let samples = if schema.schema.is_null() { Vec::new() } else { schema.samples() };
        for sample in samples {
            slips.extend(schema.slips(&sample, "").into_iter().map(|slip| BadRequest {
                address: self.path.clone(),
                body: Some(slip.text()),
                names: slip.names,
            }));
        }
        slips.sort_by(|one, other| (&one.address, &one.body).cmp(&(&other.address, &other.body)));
        slips.dedup_by(|one, other| (&one.address, &one.body) == (&other.address, &other.body));
        slips
    }

    fn slips_of_address(&self) -> Vec<BadRequest> {
        let body = self.examples().first().map(|example| example.to_string());
        let parameters = self.operation["parameters"].as_array().into_iter().flatten();
        let parameters: Vec<&Value> = parameters.filter(|p| p["in"] == "query").collect();
        if parameters.is_empty() && !self.path.starts_with("/v1/") {
            return Vec::new();
        }
        let name = |parameter: &Value| parameter["name"].as_str().expect("a name").to_owned();
        let mut queries = vec![(format!("{SURPLUS}=1"), SURPLUS.to_owned())];
        for parameter in &parameters {
            let (name, example) = (name(parameter), in_address(&parameter["example"]));
            queries.push((format!("{}={example}", misspelt(&name)), misspelt(&name)));
            let schema = Schema { document: self.document, schema: &parameter["schema"] };
            if schema.kind() != "array" {
                queries.push((format!("{name}={example}&{name}={example}"), name.clone()));
            }
            for wrong in schema.wrong_in_address() {
                queries.push((format!("{name}={}", in_address(&wrong)), name.clone()));
            }
        }
        let required = parameters.iter().filter(|parameter| parameter["required"] == true);
        queries.extend(required.map(|parameter| (String::new(), name(parameter))));
        let request = |(query, names)| BadRequest {
            address: format!("{}?{query}", self.path),
            body: body.clone(),
            names,
        };
        queries.into_iter().map(request).collect()
    }
}

/// A value as it stands in an address.
fn in_address(value: &Value) -> String {
    match value {
        Value::String(text) => text.replace(' ', "%20"),
        Value::Array(list) => list.first().map(in_address).unwrap_or_default(),
        value => value.to_string(),
    }
}

/// A name with one letter wrong.
fn misspelt(name: &str) -> String {
    format!("{}q", &name[..name.len() - 1])
}

impl Slip {
    /// The body as text; a marked name is there twice.
    fn text(&self) -> String {
        self.body.to_string().replace("\\u0001", "")
    }
}

/// A schema and the document around it.
#[derive(Clone, Copy)]
struct Schema<'d> {
    document: &'d Value,
    schema: &'d Value,
}

impl<'d> Schema<'d> {
    fn of(self, schema: &'d Value) -> Schema<'d> {
        Schema { schema, ..self }.resolved()
    }

    /// The schema itself, without references and null.
    fn resolved(self) -> Schema<'d> {
        if let Some(reference) = self.schema["$ref"].as_str() {
            let pointer = reference.trim_start_matches('#');
            return self.of(self.document.pointer(pointer).expect("a schema"));
        }
        match self.variants().as_slice() {
            [one] => self.of(one),
            _ => self,
        }
    }

    /// Its alternatives, null apart.
    fn variants(self) -> Vec<&'d Value> {
        let variants = self.schema["oneOf"].as_array().into_iter().flatten();
        variants.filter(|variant| variant["type"] != "null").collect()
    }

    fn takes_null(self) -> bool {
        let among =
            |kinds: &Value| kinds.as_array().is_some_and(|kinds| kinds.contains(&json!("null")));
        let variants = self.schema["oneOf"].as_array().into_iter().flatten();
        among(&self.schema["type"]) || variants.into_iter().any(|variant| variant["type"] == "null")
    }

    fn kind(self) -> &'d str {
        let kind = &self.resolved().schema["type"];
        let first = kind.as_array().map_or(kind, |kinds| &kinds[0]);
        first.as_str().unwrap_or("variants")
    }

    fn properties(self) -> impl Iterator<Item = (&'d String, Schema<'d>)> {
        let properties = self.schema["properties"].as_object().into_iter().flatten();
        properties.map(move |(name, schema)| (name, Schema { schema, ..self }))
    }

    fn requires(self, name: &str) -> bool {
        self.schema["required"].as_array().is_some_and(|names| names.contains(&json!(name)))
    }

    /// Values that together have every field and every variant; at least one.
    fn samples(self) -> Vec<Value> {
        let this = self.resolved();
        let variants = this.variants();
        if !variants.is_empty() {
            return variants.iter().flat_map(|variant| this.of(variant).samples()).collect();
        }
        match this.kind() {
            "string" => vec![this.schema["enum"].get(0).cloned().unwrap_or(json!("text"))],
            "integer" => vec![json!(1)],
            "boolean" => vec![json!(true)],
            "array" => {
                let mut items = this.of(&this.schema["items"]).samples();
                let least = this.schema["minItems"].as_u64().unwrap_or(0) as usize;
                while items.len() < least {
                    items.push(items[0].clone());
                }
                vec![json!(items)]
            }
            "object" if this.schema["additionalProperties"].is_object() => {
                let values = this.of(&this.schema["additionalProperties"]).samples();
                vec![json!({"name": values[0]})]
            }
            _ => this.sample_objects(),
        }
    }

    fn sample_objects(self) -> Vec<Value> {
        let mut whole = Map::new();
        let mut others = Vec::new();
        for (name, schema) in self.properties() {
            let mut samples = schema.samples().into_iter();
            whole.insert(name.clone(), samples.next().expect("at least one"));
            others.extend(samples.map(|sample| (name, sample)));
        }
        let with_other = |(name, sample): (&String, Value)| {
            let mut object = whole.clone();
            object.insert(name.clone(), sample);
            Value::Object(object)
        };
        let others: Vec<Value> = others.into_iter().map(with_other).collect();
        [vec![Value::Object(whole)], others].concat()
    }

    /// Values that do not match it.
    fn wrong(self) -> Vec<Value> {
        let this = self.resolved();
        let mut wrong = match this.kind() {
            "integer" => {
                let unsigned = this.schema["minimum"] == 0;
                let beyond: [Value; 2] = match (this.schema["format"].as_str(), unsigned) {
                    (Some("int32"), true) => [json!(-1), json!(1_u64 << 32)],
                    (Some("int32"), false) => [json!(-(1_i64 << 31) - 1), json!(1_u64 << 31)],
                    (_, true) => [json!(-1), json!(1e20)],
                    (_, false) => [json!(-1e19), json!(1_u64 << 63)],
                };
                [vec![json!("1"), json!(1.5), json!(true), json!([]), json!({})], beyond.into()]
                    .concat()
            }
            "boolean" => vec![json!("yes"), json!(1), json!([]), json!({})],
            "string" => {
                let mut wrong = vec![json!(1), json!(true), json!([]), json!({})];
                if this.schema.get("pattern").is_some() || this.schema.get("enum").is_some() {
                    wrong.extend([json!("a b"), json!("")]);
                }
                wrong
            }
            "array" => vec![json!("text"), json!(1), json!(true), json!({})],
            "object" => vec![json!("text"), json!(1), json!(true), json!([])],
            _ => vec![json!("no-such"), json!(1), json!(true), json!([]), json!({})],
        };
        if !self.takes_null() {
            wrong.push(Value::Null);
        }
        wrong
    }

    /// Values that do not match it where everything is text.
    fn wrong_in_address(self) -> Vec<Value> {
        let (wrong, kind) = (self.wrong().into_iter(), self.kind());
        let is_text = |wrong: &Value| wrong.is_string() && *wrong != "1";
        let is_plain = |wrong: &Value| is_text(wrong) || wrong.is_number() || wrong.is_boolean();
        match kind {
            "string" => wrong.filter(is_text).collect(),
            "integer" | "boolean" => wrong.filter(is_plain).collect(),
            _ => Vec::new(),
        }
    }

    /// Values that differ from this one in one place.
    fn slips(self, value: &Value, place: &str) -> Vec<Slip> {
        let named = if place.is_empty() { "the body" } else { place };
        let mut slips: Vec<Slip> =
            self.wrong().into_iter().map(|body| Slip { body, names: named.to_owned() }).collect();
        let this = self.resolved();
        match value {
            Value::Object(object) => slips.extend(this.slips_of_object(object, place)),
            Value::Array(list) => {
                for (index, item) in list.iter().enumerate() {
                    let items = Schema { schema: &this.schema["items"], ..this };
                    let inner = items.slips(item, &format!("{place}[{index}]"));
                    slips.extend(inner.into_iter().map(|slip| {
                        let mut list = list.clone();
                        list[index] = slip.body;
                        Slip { body: Value::Array(list), names: slip.names }
                    }));
                }
            }
            _ => {}
        }
        slips
    }

    fn slips_of_object(self, object: &Map<String, Value>, place: &str) -> Vec<Slip> {
        let at = |name: &str| match place {
            "" => name.to_owned(),
            place => format!("{place}.{name}"),
        };
        let free = self.schema["additionalProperties"].is_object();
        let mut slips = Vec::new();
        let mut add = |change: &dyn Fn(&mut Map<String, Value>), names: String| {
            let mut changed = object.clone();
            change(&mut changed);
            slips.push(Slip { body: Value::Object(changed), names });
        };
        if !free {
            add(&|o| drop(o.insert(SURPLUS.to_owned(), json!(1))), at(SURPLUS));
        }
        for (name, value) in object {
            // Sorts after the name that it repeats.
            add(&|o| drop(o.insert(format!("{name}{TWICE}"), value.clone())), at(name));
            if !free {
                let rename = |o: &mut Map<String, Value>| {
                    let value = o.remove(name).expect("it is there");
                    o.insert(misspelt(name), value);
                };
                add(&rename, at(&misspelt(name)));
            }
            if self.requires(name) {
                add(&|o| drop(o.remove(name)), at(name));
            }
        }
        for (name, value) in object {
            let Some(schema) = self.field(name) else { continue };
            for slip in schema.slips(value, &at(name)) {
                add(&|o| drop(o.insert(name.clone(), slip.body.clone())), slip.names.clone());
            }
        }
        slips
    }

    /// The schema of a field, in the variant that has it.
    fn field(self, name: &str) -> Option<Schema<'d>> {
        let variants = self.variants();
        let variants = if variants.is_empty() { vec![self.schema] } else { variants };
        let found = variants.into_iter().find_map(|variant| {
            let variant = self.of(variant).schema;
            variant["properties"].get(name).or_else(|| {
                Some(&variant["additionalProperties"]).filter(|schema| schema.is_object())
            })
        });
        found.map(|schema| Schema { schema, ..self })
    }
}
