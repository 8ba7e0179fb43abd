//! The JSON contract, shape by shape, and the forms for people.

use holdfast_api::name;
use serde_json::{Value, json};

use super::*;
use crate::output::{Output, render};

fn json_of(document: &impl Document) -> Value {
    let bytes = render(document, Output::Json).unwrap();
    assert_eq!(bytes.iter().position(|b| *b == b'\n'), Some(bytes.len() - 1), "one line");
    serde_json::from_slice(&bytes).unwrap()
}

fn table_of(document: &impl Document) -> String {
    String::from_utf8(render(document, Output::Table).unwrap()).unwrap()
}

fn named(text: &str) -> Name {
    text.parse().unwrap()
}

fn entry(key: &str, value: Option<&[u8]>) -> KeyEntry {
    KeyEntry { key: key.into(), value: value.map(Blob::from), created: 3, modified: 5, version: 2 }
}

#[test]
fn writes_say_their_revision() {
    assert_eq!(json_of(&Written { revision: 7 }), json!({"revision": 7}));
    assert_eq!(table_of(&Written { revision: 7 }), "ok\n");
    assert_eq!(json_of(&Released { revision: 7 }), json!({"revision": 7}));
    assert_eq!(table_of(&Released { revision: 7 }), "ok\n");
}

#[test]
fn get_is_the_entry_with_the_revision_of_the_answer() {
    let got = Got { entry: entry("k", Some(b"\xffv")), revision: 9 };
    assert_eq!(
        json_of(&got),
        json!({
            "key": "k", "value": "\\xffv", "created": 3, "modified": 5, "version": 2, "revision": 9
        })
    );
    assert_eq!(table_of(&got), "\\xffv\n");
    let text = Got { entry: entry("k", Some(b"plain text")), revision: 9 };
    assert_eq!(table_of(&text), "plain text\n");
}

#[test]
fn add_prints_the_bare_number() {
    let added = Added { value: -7, revision: 4 };
    assert_eq!(json_of(&added), json!({"value": -7, "revision": 4}));
    assert_eq!(table_of(&added), "-7\n");
}

#[test]
fn cas_prints_the_value_that_is_there_now() {
    let swapped = Compared { swapped: true, value: Some("new".into()), revision: 4 };
    assert_eq!(json_of(&swapped), json!({"swapped": true, "value": "new", "revision": 4}));
    assert_eq!(table_of(&swapped), "new\n");
    let absent = Compared { swapped: false, value: None, revision: 4 };
    assert_eq!(json_of(&absent), json!({"swapped": false, "value": null, "revision": 4}));
    assert_eq!(table_of(&absent), "");
}

#[test]
fn delete_counts_what_it_deleted() {
    let deleted = Deleted { deleted: true, revision: 4 };
    assert_eq!(json_of(&deleted), json!({"deleted": true, "revision": 4}));
    assert_eq!(table_of(&deleted), "deleted 1\n");
    assert_eq!(table_of(&Deleted { deleted: false, revision: 4 }), "deleted 0\n");
}

#[test]
fn queues_say_their_length() {
    let length = Length { length: 2, revision: 4 };
    assert_eq!(json_of(&length), json!({"length": 2, "revision": 4}));
    assert_eq!(table_of(&length), "2\n");
    let popped = Popped { value: "v".into(), length: 1, revision: 5 };
    assert_eq!(json_of(&popped), json!({"value": "v", "length": 1, "revision": 5}));
    assert_eq!(table_of(&popped), "v\n");
}

#[test]
fn count_prints_the_bare_number() {
    let counted = Counted { count: 12, revision: 4 };
    assert_eq!(json_of(&counted), json!({"count": 12, "revision": 4}));
    assert_eq!(table_of(&counted), "12\n");
}

#[test]
fn every_kind_of_change_is_one_line() {
    let change =
        |kind| Change { job: name::default_name(), run: named("r1"), key: "k".into(), kind };
    let cases = [
        (
            ChangeKind::Put { value: Blob::from("a\nb"), version: 3 },
            json!({"type": "put", "value": "a\\x0ab", "version": 3}),
            "8 put k a\\x0ab\n",
        ),
        (ChangeKind::Delete, json!({"type": "delete"}), "8 delete k\n"),
        (
            ChangeKind::Push { length: 2 },
            json!({"type": "push", "length": 2}),
            "8 push k length=2\n",
        ),
        (ChangeKind::Pop { length: 1 }, json!({"type": "pop", "length": 1}), "8 pop k length=1\n"),
    ];
    for (kind, own, line) in cases {
        let change = change(kind);
        let changed = Changed::new(8, &change);
        let mut wanted = json!({"revision": 8, "job": "default", "run": "r1", "key": "k"});
        wanted.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        assert_eq!(json_of(&changed), wanted);
        assert_eq!(table_of(&changed), line);
    }
}

#[test]
fn a_list_has_its_header_once_and_keys_alone_have_none() {
    let entries = [entry("a", Some(b"1")), entry("b\n", Some(b"2"))];
    let page = |first, keys_only| {
        let mut out = Vec::new();
        write_page(&mut out, &entries, first, keys_only).unwrap();
        String::from_utf8(crate::colour::plain(out)).unwrap()
    };
    assert_eq!(
        page(true, false),
        "KEY    VALUE  VERSION  REVISION\na      1      2        5\nb\\x0a  2      2        5\n"
    );
    assert_eq!(page(false, false).lines().count(), 2);
    assert_eq!(page(true, true), "a\nb\\x0a\n");
}

#[test]
fn jobs_and_runs_are_listed_with_their_revision() {
    let job = JobInfo { job: named("llm"), open_run: None, runs: 2, keys: 3, bytes: 40 };
    let jobs = Jobs { jobs: vec![job], revision: 6 };
    assert_eq!(
        json_of(&jobs),
        json!({
            "jobs": [{"job": "llm", "open_run": null, "runs": 2, "keys": 3, "bytes": 40}],
            "revision": 6
        })
    );
    assert_eq!(
        table_of(&jobs),
        "JOB  OPEN-RUN  RUNS  KEYS  BYTES\nllm  -         2     3     40\n"
    );
    let run = RunInfo {
        run: named("r1"),
        open: false,
        opened: 2,
        opened_at_ms: 1000,
        ended: Some(5),
        ended_at_ms: Some(4000),
        ends_at_ms: None,
        cause: None,
        keys: 1,
        bytes: 10,
    };
    let runs = Runs { runs: vec![run], revision: 6 };
    assert_eq!(
        json_of(&runs),
        json!({
            "runs": [{
                "run": "r1", "open": false, "opened": 2, "opened_at_ms": 1000, "ended": 5,
                "ended_at_ms": 4000, "keys": 1, "bytes": 10
            }],
            "revision": 6
        })
    );
    assert_eq!(
        table_of(&runs),
        "RUN  STATE  OPENED  ENDED  KEYS  BYTES\nr1   ended  2       5      1     10\n"
    );
}

#[test]
fn opening_a_run_prints_its_name_for_a_script() {
    let opened =
        RunOpened { run: named("r2"), created: true, ended: Some(named("r1")), revision: 6 };
    assert_eq!(
        json_of(&opened),
        json!({"run": "r2", "created": true, "ended": "r1", "revision": 6})
    );
    assert_eq!(table_of(&opened), "r2\n");
}
