//! What can be typed and what it means.

use clap::CommandFactory;

use holdfast_api::Blob;

use super::*;
use crate::argument::Value;

fn parse(line: &[&str]) -> Result<Cli, UsageError> {
    let words: Vec<_> = std::iter::once(&"holdfast").chain(line).map(Into::into).collect();
    super::parse(&words, clap::ColorChoice::Never)
}

fn kv(line: &[&str]) -> KvCommand {
    match parse(line).unwrap_or_else(|error| panic!("{line:?}: {error:?}")).command {
        Command::Cluster(ClusterCommand::Kv(command)) => command,
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn the_grammar_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_documented_form_is_understood() {
    for line in [
        "status",
        "node list",
        "node add 4 10.0.0.4:21001",
        "node promote 4",
        "node remove 4",
        "node replace 2 4",
        "node replace 2 4 10.0.0.4:21001",
        "backup b.backup",
        "backup - --stale",
        "backup verify b.backup",
        "leader show",
        "token keygen k",
        "token create --key k --role job --jobs a-*,b --name team-a --expires 30d",
        "token create --key k --role admin --name root --expires 1h",
        "token show t",
        "token list",
        "token revoke t1",
        "token revoke t1 --keep 30d",
        "leader transfer",
        "leader transfer 2",
        "job list",
        "--job llm job plan",
        "--job llm job plan --without host7 --without 12 --without-host 9",
        "why",
        "--job llm --run r1 processes",
        "rounds",
        "comm list",
        "comm ls",
        "comm show world",
        "comm show world --generation 4",
        "comm excuse world 7",
        "comm excuse world 7 --yes-it-is-gone",
        "comm revoke world",
        "comm revoke world --reason ECC",
        "iterations",
        "events",
        "events --after 12 --follow",
        "events -f",
        "process remove 7 --reason ECC",
        "process remove 7 12 --reason ECC",
        "job delete llm",
        "run list",
        "run open",
        "run open r7",
        "run end r7",
        "run delete r7",
        "kv put k v",
        "kv put k v --if-revision 0",
        "kv get k",
        "kv get k --stale",
        "kv get --raw k",
        "kv add k 1",
        "kv max k -4200",
        "kv cas k a b",
        "kv delete k",
        "kv delete --prefix p",
        "kv delete --all",
        "kv txn",
        "kv append k v",
        "kv list",
        "kv list p --keys-only",
        "kv count p",
        "kv watch",
        "kv watch p --from 3",
        "kv wait a b --timeout 5s",
        "kv wait a --at-least -3",
        "kv push q v",
        "kv pop q",
        "kv length q",
        "config",
        "completions bash",
        "version",
        "--store a:1,b:2 --job j --run r -o json --timeout 1s --config f kv get k",
        "kv get k --store a:1,b:2 --job j --run r -o json --timeout 1s --config f",
        "kv --job j get k",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        parse(&words).unwrap_or_else(|error| panic!("{line}: {error:?}"));
    }
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for line in [
        "",
        "stat",
        "process remove 7",
        "process remove 7 0 --reason ECC",
        "process remove host7 --reason ECC",
        "comm",
        "comm show",
        "comm show world --generation 0",
        "comm excuse world",
        "comm excuse world host7",
        "comm revoke world --reason",
        "events --after x",
        "kv",
        "kv get",
        "kv get a b",
        "kv add k",
        "kv add k x",
        "kv add k 9223372036854775808",
        "kv cas k a",
        "kv delete",
        "kv delete k --all",
        "kv delete k --prefix p",
        "kv delete --prefix p --all",
        "kv txn --if",
        "kv txn --if k --then delete",
        "kv txn k",
        "kv wait",
        "kv watch --from 0",
        "node add 0 a:1",
        "node add x a:1",
        "node promote",
        "run end",
        "run open a/b",
        "--job a/b status",
        "--store nowhere status",
        "-o xml status",
        "--timeout 10 status",
        "--colour status",
    ] {
        let words: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let error = parse(&words).expect_err(line);
        assert!(!error.is_answer(), "{line}: {error:?}");
    }
}

#[test]
fn flags_mean_the_same_before_and_after_the_command() {
    let before = parse(&["--job", "j", "-o", "json", "kv", "put", "k", "v"]).unwrap();
    let after = parse(&["kv", "put", "k", "v", "--job", "j", "-ojson"]).unwrap();
    assert_eq!(before.global.layer(), after.global.layer());
    assert_eq!(before.global.layer().output, Some(Output::Json));
    assert_eq!(before.global.layer().job, Some("j".parse().unwrap()));
}

#[test]
fn numbers_may_be_negative() {
    let KvCommand::Add { delta, .. } = kv(&["kv", "add", "n", "-7"]) else { panic!("not an add") };
    assert_eq!(delta, -7);
    let KvCommand::Add { delta, .. } =
        kv(&["kv", "add", "n", "-9223372036854775808", "-o", "json"])
    else {
        panic!("not an add")
    };
    assert_eq!(delta, i64::MIN);
}

#[test]
fn an_option_that_is_not_known_is_never_a_value() {
    let put = |line: &[&str]| {
        let KvCommand::Put { key, value, .. } = kv(line) else { panic!("not a put: {line:?}") };
        (key.escaped(), value)
    };
    let given = |text: &str| Value::Given(Blob::from(text));
    assert_eq!(put(&["kv", "put", "k", "-7"]), ("k".into(), given("-7")));
    assert_eq!(put(&["kv", "put", "k", "-0.5"]), ("k".into(), given("-0.5")));
    assert_eq!(put(&["kv", "put", "k", "--", "--odd"]), ("k".into(), given("--odd")));
    for line in ["kv put k --odd", "kv append k --stale", "kv push q -x", "kv cas k --jbo=j v"] {
        let words: Vec<_> = line.split(' ').collect();
        let error = parse(&words).expect_err(line).message();
        assert!(error.contains("unexpected argument"), "{line}: {error}");
    }
    assert_eq!(put(&["kv", "put", "k", "-"]), ("k".into(), Value::Input));
    assert_eq!(put(&["kv", "put", "k", "-o", "json", "v"]), ("k".into(), given("v")));
    assert_eq!(put(&["kv", "put", "--", "-k", "--job"]), ("-k".into(), given("--job")));
    assert_eq!(put(&["kv", "put", "k", ""]), ("k".into(), given("")));
    let KvCommand::Cas { expected, desired, .. } = kv(&["kv", "cas", "k", "-1", "-2"]) else {
        panic!("not a cas")
    };
    assert_eq!((expected, desired), (Blob::from("-1"), Blob::from("-2")));
}

#[test]
fn an_expected_value_may_be_empty() {
    let KvCommand::Cas { expected, .. } = kv(&["kv", "cas", "k", "", "new"]) else {
        panic!("not a cas")
    };
    assert!(expected.is_empty());
}

#[test]
fn a_transaction_can_be_typed() {
    let line = [
        "kv",
        "txn",
        "--if",
        "value(k) = v",
        "--then",
        "put k w",
        "--then",
        "get k",
        "--else",
        "get k",
        "--if",
        "exists(l)",
        "--job",
        "j",
    ];
    let KvCommand::Txn { compare, then, or_else } = kv(&line) else { panic!("not a txn") };
    assert_eq!((compare.len(), then.len(), or_else.len()), (2, 2, 1));
    let said = parse(&["kv", "txn", "--if", "mod(k) = 1"]).unwrap_err().message();
    assert!(said.contains("`mod` cannot be compared; write value(KEY) = VALUE"), "{said}");
}

#[test]
fn an_empty_prefix_deletes_nothing() {
    let delete = |line: &[&str]| match kv(line) {
        KvCommand::Delete { what } => what.of(),
        other => panic!("{other:?}"),
    };
    assert_eq!(delete(&["kv", "delete", ""]).unwrap(), Deletion::Key("".into()));
    assert_eq!(delete(&["kv", "delete", "--prefix", "p"]).unwrap(), Deletion::Prefix("p".into()));
    assert_eq!(delete(&["kv", "rm", "--all"]).unwrap(), Deletion::Prefix("".into()));
    let said = delete(&["kv", "delete", "--prefix", ""]).unwrap_err().message(None);
    assert!(said.contains("say --all"), "{said}");
}

#[test]
fn keys_that_begin_with_a_dash_go_behind_two() {
    let KvCommand::Get { key, .. } = kv(&["kv", "get", "--", "-k"]) else { panic!("not a get") };
    assert_eq!(key, Blob::from("-k"));
    let KvCommand::Wait { keys, .. } = kv(&["kv", "wait", "--timeout", "1s", "--", "-a", "b"])
    else {
        panic!("not a wait")
    };
    assert_eq!(keys, [Blob::from("-a"), Blob::from("b")]);
}
