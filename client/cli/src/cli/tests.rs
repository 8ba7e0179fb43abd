//! What can be typed and what it means.

use clap::CommandFactory;

use super::*;

fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once(&"holdfast").chain(line))
}

fn kv(line: &[&str]) -> KvCommand {
    match parse(line).unwrap_or_else(|error| panic!("{line:?}: {error}")).command {
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
        "leader show",
        "leader transfer",
        "leader transfer 2",
        "job list",
        "--job llm job plan",
        "--job llm job plan --without host7 --without 12 --without-host 9",
        "why",
        "--job llm --run r1 processes",
        "rounds",
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
        "kv cas k a b",
        "kv delete k",
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
        parse(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
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
        "events --after x",
        "kv",
        "kv get",
        "kv get a b",
        "kv add k",
        "kv add k x",
        "kv add k 9223372036854775808",
        "kv cas k a",
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
        assert!(error.use_stderr() && error.exit_code() == 2, "{line}: {error}");
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
fn values_may_begin_with_a_dash_and_flags_are_still_flags() {
    let put = |line: &[&str]| {
        let KvCommand::Put { key, value, .. } = kv(line) else { panic!("not a put: {line:?}") };
        (key.escaped(), value)
    };
    let given = |text: &str| Value::Given(Blob::from(text));
    assert_eq!(put(&["kv", "put", "k", "-7"]), ("k".into(), given("-7")));
    assert_eq!(put(&["kv", "put", "k", "--odd"]), ("k".into(), given("--odd")));
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
fn keys_that_begin_with_a_dash_go_behind_two() {
    let KvCommand::Get { key, .. } = kv(&["kv", "get", "--", "-k"]) else { panic!("not a get") };
    assert_eq!(key, Blob::from("-k"));
    let KvCommand::Wait { keys, .. } = kv(&["kv", "wait", "--timeout", "1s", "--", "-a", "b"])
    else {
        panic!("not a wait")
    };
    assert_eq!(keys, [Blob::from("-a"), Blob::from("b")]);
}

#[test]
fn the_help_documents_exit_codes_settings_and_examples() {
    let help = Cli::command().render_help().to_string();
    for part in [
        "4  outcome unknown",
        "HOLDFAST_STORE",
        "HOLDFAST_CONFIG",
        "Examples:",
        "kv wait",
        "holdfast config",
    ] {
        assert!(help.contains(part), "{part} in {help}");
    }
}
