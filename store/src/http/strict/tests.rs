//! Each mistake is reported with its place, and valid requests pass.

use axum::http::{Method, Request};
use serde_json::json;

use super::*;
use crate::http::forward::Class;

/// The error for a request; none if it passes.
fn said(method: Method, uri: &str, body: &str) -> Option<String> {
    let request = Request::builder().method(method).uri(uri);
    let request = request.header(header::CONTENT_TYPE, "application/json").body(()).unwrap();
    let (parts, ()) = request.into_parts();
    let failure = check(&parts, body.as_bytes()).err()?;
    assert_eq!(failure.status(), StatusCode::BAD_REQUEST);
    Some(failure.problem().message.clone())
}

fn posted(path: &str, body: &str) -> Option<String> {
    said(Method::POST, path, body)
}

fn document() -> Value {
    serde_json::from_str(&DOCUMENT).unwrap()
}

#[test]
fn a_misspelt_field_is_named_with_its_nearest_and_a_body_that_works() {
    assert_eq!(
        posted("/v1/kv/put", r#"{"jbo": "web", "key": "k", "value": "v"}"#).unwrap(),
        "unknown field `jbo`; did you mean `job`? The body takes job, key, run, value. \
         A body that works: {\"job\":\"web\",\"key\":\"greeting\",\"value\":\"hello\"}"
    );
}

#[test]
fn the_problem_that_the_description_shows_is_said() {
    let document = document();
    let put = &document["paths"]["/v1/kv/put"]["post"]["responses"]["400"];
    assert_eq!(put["$ref"], "#/components/responses/any_400");
    let shown = &document["components"]["responses"]["any_400"]["content"]["application/problem+json"]
        ["example"];
    let said = posted("/v1/kv/put", r#"{"jbo": "web", "key": "k", "value": "v"}"#).unwrap();
    assert_eq!(shown["detail"], said.as_str());
    assert_eq!(shown["code"], "invalid_request");
}

#[test]
fn each_slip_in_a_body_is_named_with_its_place() {
    const TRANSACTION: &str = "/v1/kv/transaction";
    for (path, body, words) in [
        ("/v1/kv/put", "", "the body is empty."),
        ("/v1/kv/put", "{", "the body is not JSON: EOF while parsing an object"),
        (
            "/v1/kv/put",
            r#"["k", "v"]"#,
            "the body must be an object with job, key, run, value, not a list.",
        ),
        (
            "/v1/kv/put",
            r#"{"key": "k"}"#,
            "`value` is missing (value: any bytes, up to `value_bytes_max`).",
        ),
        ("/v1/kv/put", r#"{"key": "k", "value": 7}"#, "`value` must be a string, not 7."),
        ("/v1/kv/put", r#"{"key": "k", "value": null}"#, "`value` must be a string, not null."),
        (
            "/v1/kv/put",
            r#"{"key": "k", "key": "l", "value": "v"}"#,
            "`key` is there twice; write it once.",
        ),
        (
            "/v1/kv/put",
            r#"{"key": "k", "value": "v"} {}"#,
            "the body is not JSON: trailing characters",
        ),
        (
            "/v1/kv/put",
            r#"{"key": "k", "value": "v", "job": "a/b"}"#,
            "`job`: \"a/b\" is not a name: use 1 to 128 letters",
        ),
        (
            "/v1/kv/put",
            r#"{"key": "k", "value": "v", "zzz": 1}"#,
            "unknown field `zzz`. The body takes job, key, run, value.",
        ),
        (
            "/v1/kv/add",
            r#"{"key": "k", "delta": "7"}"#,
            "`delta` must be a whole number from -9223372036854775808 to 9223372036854775807, not the string \"7\".",
        ),
        ("/v1/kv/add", r#"{"key": "k", "delta": 1.5}"#, "not 1.5."),
        ("/v1/kv/add", r#"{"key": "k", "delta": 1.0}"#, "not 1.0: write it without a point"),
        ("/v1/kv/put", r#"{"key": 1.0, "value": "v"}"#, "`key` must be a string, not 1.0."),
        (
            "/v1/kv/cas-revision",
            r#"{"key": "k", "revision": -1, "value": "v"}"#,
            "`revision` must be a whole number from 0 to 18446744073709551615, not -1.",
        ),
        (
            "/v1/kv/multi-put",
            r#"{"entries": [{"key": "a", "value": "b"}, {"kye": "a"}]}"#,
            "unknown field `entries[1].kye`; did you mean `key`? `entries[1]` takes key, value.",
        ),
        (
            TRANSACTION,
            r#"{"then": [{"delete": {"key": "k"}}]}"#,
            "`compare` is missing (what must hold).",
        ),
        (
            TRANSACTION,
            r#"{"compares": [], "then": []}"#,
            "unknown field `compares`; did you mean `compare`?",
        ),
        (
            TRANSACTION,
            r#"{"compare": [{}]}"#,
            "`compare[0]` is empty; it must have one of exists, revision, value.",
        ),
        (
            TRANSACTION,
            r#"{"compare": [{"vlaue": {"key": "k", "value": "v"}}]}"#,
            "unknown variant `compare[0].vlaue`; did you mean `value`? `compare[0]` is one of exists, revision, value.",
        ),
        (
            TRANSACTION,
            r#"{"compare": [{"target": "VALUE", "key": "k", "value": "v"}]}"#,
            "unknown variant `compare[0].target`. `compare[0]` is one of",
        ),
        (
            TRANSACTION,
            r#"{"compare": [{"value": "v", "key": "k", "target": "VALUE"}]}"#,
            "`compare[0].value` must be an object with key, value, not the string \"v\".",
        ),
        (
            TRANSACTION,
            r#"{"compare": [{"exists": {"key": "k", "exists": true}, "value": {}}]}"#,
            "`compare[0]` has both `exists` and `value`; it must have exactly one of",
        ),
        (
            TRANSACTION,
            r#"{"compare": [{"value": {"key": "k", "vlaue": "v"}}]}"#,
            "unknown field `compare[0].value.vlaue`; did you mean `value`?",
        ),
        (
            TRANSACTION,
            r#"{"compare": {"value": {"key": "k", "value": "v"}}}"#,
            "`compare` must be a list, not an object.",
        ),
        (
            TRANSACTION,
            r#"{"compare": ["value"]}"#,
            "`compare[0]` must be an object, {\"value\": …}, not a string.",
        ),
        (TRANSACTION, r#"{"compare": null, "then": []}"#, "`compare` must be a list, not null."),
        (
            "/v1/session/open",
            r#"{"nonce": [1]}"#,
            "`nonce` must be a list of 2 items, not one of 1.",
        ),
        (
            "/v1/session/open",
            r#"{"nonce": [1, 2, 3]}"#,
            "`nonce` must be a list of 2 items, not a longer one.",
        ),
        (
            "/v1/limits",
            r#"{"life": {"lease_max": 7}}"#,
            "unknown field `life.lease_max`; did you mean `leases_max`?",
        ),
        ("/v1/limits", r#"{"life": 7}"#, "`life` must be an object with"),
        ("/v1/limits", r#"{"job_key_max": 7}"#, "did you mean `job_keys_max`?"),
        ("/v1/limits", r#"{"job_keys_max": -7}"#, "`job_keys_max` must be a whole number"),
        ("/v1/limits", r#"{"job_keys_max": "7"}"#, "`job_keys_max` must be a whole number"),
        (
            "/v1/process",
            r#"{"register": {"lease": 1, "nonce": [1, 2], "role": "actve"}}"#,
            "`register.role` must be one of active, standby, not \"actve\"; did you mean `active`? ",
        ),
        (
            "/v1/process",
            r#"{"register": {"lease": 1, "nonce": [1, 2], "labels": {"a": "b", "a": "c"}}}"#,
            "`register.labels.a` is there twice",
        ),
        (
            "/v1/process",
            r#"{"register": {"lease": 1, "nonce": [1, 2], "labels": {"a": 1}}}"#,
            "`register.labels.a` must be a string, not 1.",
        ),
        (
            "/v1/round",
            r#"{"arrive": {"lease": 1, "round": "r", "arrivals": [], "terms": {"rule": {"quorum": {"min": 1, "mox": 2}}}}}"#,
            "unknown field `arrive.terms.rule.quorum.mox`; did you mean `max`?",
        ),
        (
            "/v1/round",
            r#"{"arrive": {"lease": 1, "round": "r", "arrivals": [], "terms": {"among": {"genration": 7}}}}"#,
            "did you mean `generation`?",
        ),
        (
            "/v1/round",
            r#"{"release": {"scope": {"job": "web"}, "releases": [], "why": "excusd"}}"#,
            "did you mean `excused`?",
        ),
        (
            "/v1/round",
            r#"{"release": {"scope": {}, "releases": [{"process": 1, "incarnation": 2, "gen": 3}]}}"#,
            "unknown field `release.releases[0].gen`",
        ),
        (
            "/v1/round",
            r#"{"revoke": {"scope": {"job": "web"}, "generation": 4}}"#,
            "`revoke.reason` is missing",
        ),
        (
            "/v1/process",
            r#"{"register": {"lease": 1, "nonce": [1, 2], "policy": {"members_mn": 2}}}"#,
            "unknown field `register.policy.members_mn`; did you mean `members_min`?",
        ),
    ] {
        let said = posted(path, body).unwrap_or_else(|| panic!("{path} {body} passed"));
        assert!(said.contains(words), "{path} {body}\n{said}\n{words}");
        assert!(said.contains("A body that works: {"), "{said}");
    }
}

#[test]
fn the_example_is_of_the_variant_that_was_meant() {
    for (variant, body) in [("end", r#"{"end": {}}"#), ("remove", r#" { "remove": 1}"#)] {
        let said = posted("/v1/process", body).unwrap();
        assert!(said.contains(&format!("A body that works: {{\"{variant}\":")), "{said}");
    }
}

#[test]
fn each_slip_in_an_address_is_named() {
    for (address, words) in [
        (
            "/v1/runs?jbo=web",
            "unknown parameter `jbo`; did you mean `job`? GET /v1/runs takes forward, job, stale.",
        ),
        ("/v1/runs?job=a/b", "the parameter `job` cannot be used: \"a/b\" is not a name"),
        ("/v1/runs?job=a&job=b", "the parameter `job` is there twice; write it once."),
        ("/v1/runs?stale=yes", "the parameter `stale` must be true or false, not \"yes\"."),
        (
            "/v1/kv/list?limit=-1",
            "the parameter `limit` must be a whole number from 0 to 18446744073709551615, not \"-1\".",
        ),
        ("/v1/kv/list?limit=", "not \"\"."),
        ("/v1/kv/list?limit=-0", "not \"-0\"."),
        (
            "/v1/kv/get?job=web",
            "the parameter `key` is missing (the key, other bytes than text as \\xNN).",
        ),
        (
            "/v1/kv/get?key=%ff",
            "the parameter `key` is not UTF-8 text; write other bytes as \\xNN.",
        ),
        ("/v1/kv/get?key=%EF%BF%BD%ff", "the parameter `key` is not UTF-8 text;"),
        ("/v1/kv/get?job=%EF%BF%BD&key=%C3", "the parameter `job` cannot be used"),
        ("/v1/kv/get?&key=%EF%BF%BD&&run=%C3%28", "the parameter `run` is not UTF-8 text;"),
        ("/v1/status?job=web", "unknown parameter `job`. GET /v1/status takes no parameters."),
        ("/readyz?exlude=voter", "unknown parameter `exlude`; did you mean `exclude`?"),
    ] {
        let said = said(Method::GET, address, "").unwrap_or_else(|| panic!("{address} passed"));
        assert!(said.contains(words), "{address}\n{said}\n{words}");
        assert!(said.contains("An address that works: /"), "{said}");
    }
}

#[test]
fn what_stands_in_the_wrong_half_of_a_request_is_refused() {
    assert_eq!(
        said(Method::GET, "/v1/runs", r#"{"job": "web"}"#).unwrap(),
        "GET /v1/runs takes no body. An address that works: /v1/runs?job=web"
    );
    assert_eq!(
        posted("/v1/job/delete?job=web", r#"{"job": "web"}"#).unwrap(),
        "unknown parameter `job` in the address; the fields of this call stand in its body. \
         A body that works: {\"job\":\"web\"}"
    );
}

/// Without its session, a retried change has two effects.
#[test]
fn a_misspelt_header_of_ours_is_refused_and_others_pass() {
    let said = |name: &str| {
        let request = Request::get("/v1/jobs").header(name, "1").body(()).unwrap();
        check(&request.into_parts().0, b"").err().map(|failure| failure.problem().message.clone())
    };
    assert_eq!(
        said("holdfast-sesion").unwrap(),
        "unknown header `holdfast-sesion`; did you mean `holdfast-session`? \
         An address that works: /v1/jobs"
    );
    for name in ["holdfast-session", "holdfast-no-forward", "holdfast-of-tomorrow", "x-session"] {
        assert_eq!(said(name), None, "{name}");
    }
}

/// A client that expects a refusal would get an answer.
#[test]
fn a_header_with_a_value_that_it_does_not_have_is_refused() {
    let said = |value: &str| {
        let request = Request::get("/v1/jobs").header("holdfast-no-forward", value);
        let parts = request.body(()).unwrap().into_parts().0;
        check(&parts, b"").err().map(|failure| failure.problem().message.clone())
    };
    assert_eq!(said("1"), None);
    for value in ["true", "0", "", " "] {
        let refused = said(value).unwrap_or_default();
        assert!(refused.contains("the header `holdfast-no-forward` must be 1, not"), "{refused}");
    }
}

#[test]
fn what_works_passes() {
    for (path, body) in [
        ("/v1/kv/put", r#"{"key": "k", "value": "", "run": null}"#),
        ("/v1/kv/put?forward=false", r#"{"key": "k", "value": "v"}"#),
        ("/v1/kv/wait", r#"{"keys": [], "conditions": [{"key": "k", "until": "exists"}]}"#),
        ("/v1/kv/add", r#"{"key": "k", "delta": -9223372036854775808}"#),
        ("/v1/kv/cas-revision", r#"{"key": "k", "revision": 18446744073709551615, "value": ""}"#),
        ("/v1/session/open", "{}"),
        ("/v1/process", r#"{"register": {"lease": 1, "nonce": [1, 2], "role": "standby"}}"#),
    ] {
        assert_eq!(posted(path, body), None, "{path} {body}");
    }
    for address in [
        "/v1/kv/get?key=%EF%BF%BD",
        "/v1/kv/get?key=%ef%bf%bd%C3%A9+%zz%",
        "/v1/kv/get?key=a%20b&job=j&run=r&stale=true&forward=false",
        "/readyz?exclude=voter&exclude=leader",
        "/livez?a-probe=1",
        "/metrics?collect=all",
        "/v1/nothing?a=b",
    ] {
        assert_eq!(said(Method::GET, address, ""), None, "{address}");
    }
}

/// Without it a call could be lenient: its body is not read before the call.
#[test]
fn every_call_with_a_body_is_read_before_it_is_passed_on() {
    for ((method, path), call) in &*CALLS {
        if call.body.is_some() {
            let method: Method = method.parse().unwrap();
            assert!(Class::of(&method, path).is_some(), "{method} {path}");
        }
    }
}

#[test]
fn every_example_passes() {
    for (path, item) in document()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let content = &operation["requestBody"]["content"]["application/json"];
            let several = content["examples"].as_object().into_iter().flatten();
            let bodies =
                content.get("example").into_iter().chain(several.map(|(_, e)| &e["value"]));
            for body in bodies {
                assert_eq!(said(method.clone(), path, &body.to_string()), None, "{path} {body}");
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let example = parameter.get("example");
                let example = example.unwrap_or_else(|| panic!("{path}: {parameter}"));
                let example = example.get(0).unwrap_or(example);
                if parameter["in"] == "query" {
                    let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
                    let uri = format!("{path}?{}={text}", parameter["name"].as_str().unwrap());
                    let refused = said(method.clone(), &uri, "").unwrap_or_default();
                    assert!(
                        !refused.contains(&format!("`{}`", parameter["name"].as_str().unwrap())),
                        "{refused}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_description_says_that_requests_are_strict() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    for closed in
        ["KeyValueRequest", "TransactionRequest", "Terms", "Policy", "Limits", "CoordinationLimits"]
    {
        assert_eq!(schemas[closed]["additionalProperties"], json!(false), "{closed}");
    }
    for open in ["Status", "WrittenAnswer", "LimitsAnswer", "ProblemDocument"] {
        assert_eq!(schemas[open].get("additionalProperties"), None, "{open}");
    }
    for (name, schema) in schemas {
        assert!(schema.get("allOf").is_none(), "{name} cannot be closed");
    }
}

#[test]
fn a_hostile_body_costs_no_more_than_its_bytes() {
    let deep = format!(r#"{{"key": {}"#, "[".repeat(1_000_000));
    assert!(posted("/v1/kv/put", &deep).unwrap().contains("`key` must be a string, not a list."));
    let long = format!(r#"{{"{}": 1}}"#, "x".repeat(1_000_000));
    assert!(posted("/v1/kv/put", &long).unwrap().len() < 1_000);
    let value = format!(r#"{{"key": "k", "value": {{"{}": 1}}}}"#, "\\u0000".repeat(1_000));
    assert!(posted("/v1/kv/put", &value).unwrap().len() < 1_000);
}

#[test]
fn a_body_of_countless_tiny_values_is_refused() {
    let keys = vec!["\"\""; 1_100_000].join(",");
    let said = posted("/v1/kv/wait", &format!("{{\"keys\": [{keys}]}}")).unwrap();
    assert!(said.starts_with("the body holds more than 1048576 values."), "{said}");
}
