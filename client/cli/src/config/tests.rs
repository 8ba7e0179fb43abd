//! Sources of settings, and their order.

use std::collections::HashMap;
use std::fs;

use super::*;

fn layer(job: &str) -> Layer {
    Layer { job: Some(job.parse().unwrap()), ..Layer::default() }
}

/// Loads with these variables and nothing of the test's own environment.
fn load_with(
    flags: Layer,
    config: Option<&Path>,
    variables: &[(&str, &str)],
) -> Result<Settings, ConfigError> {
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    load(flags, config, &|name| variables.get(name).map(OsString::from))
}

/// Loads a file with this text.
fn load_file(text: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.toml");
    fs::write(&path, text).unwrap();
    load_with(Layer::default(), Some(&path), &[]).map_err(|error| {
        let message = error.to_string();
        assert!(message.contains(&path.display().to_string()), "names the file: {message}");
        message
    })
}

#[test]
fn nobody_says_anything() {
    let settings = load_with(Layer::default(), None, &[]).unwrap();
    assert_eq!(settings.store.value.to_string(), STORE_DEFAULT);
    assert_eq!(settings.scope(), Scope::default());
    assert_eq!(settings.output.value, Output::Table);
    assert_eq!(settings.timeout.value, TIMEOUT_DEFAULT);
    for source in [settings.store.source, settings.job.source, settings.run.source] {
        assert_eq!(source, Source::Default);
    }
}

#[test]
fn flags_go_over_the_environment_over_the_file() {
    let path = PathBuf::from("/etc/h.toml");
    let file = || Some((path.clone(), layer("file")));
    let job = |flags, variables, file| merge(flags, variables, file).job;
    let sourced = |job: &str, source| Sourced { value: job.parse().unwrap(), source };
    let none = Layer::default;
    assert_eq!(job(layer("flag"), layer("env"), file()), sourced("flag", Source::Flag));
    assert_eq!(job(none(), layer("env"), file()), sourced("env", Source::Environment));
    assert_eq!(job(none(), none(), file()), sourced("file", Source::File(path.clone())));
    assert_eq!(job(none(), none(), None), sourced("default", Source::Default));
}

#[test]
fn each_value_is_merged_by_itself() {
    let flags = Layer { output: Some(Output::Json), ..Layer::default() };
    let variables = [("HOLDFAST_STORE", "a:1,b:2"), ("HOLDFAST_RUN", "r7")];
    let settings = load_with(flags, None, &variables).unwrap();
    assert_eq!(settings.output.source, Source::Flag);
    assert_eq!(settings.store.value, StoreList(vec!["a:1".into(), "b:2".into()]));
    assert_eq!(settings.store.source, Source::Environment);
    assert_eq!(settings.scope().to_string(), "default/r7");
    assert_eq!(settings.job.source, Source::Default);
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let variables = [("HOLDFAST_JOB", ""), ("HOLDFAST_STORE", ""), ("HOLDFAST_CONFIG", "")];
    let settings = load_with(Layer::default(), None, &variables).unwrap();
    assert_eq!(settings.job.source, Source::Default);
    assert_eq!(settings.store.source, Source::Default);
}

#[test]
fn a_bad_variable_is_named() {
    for (name, bad) in
        [("HOLDFAST_JOB", "a/b"), ("HOLDFAST_RUN", "-x"), ("HOLDFAST_STORE", "nowhere")]
    {
        let message = load_with(Layer::default(), None, &[(name, bad)]).unwrap_err().to_string();
        assert!(message.contains(name) && message.contains(bad), "{message}");
    }
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let environment = |name: &str| (name == "HOLDFAST_JOB").then(|| OsString::from_vec(vec![0xff]));
    let message = load(Layer::default(), None, &environment).unwrap_err().to_string();
    assert!(message.contains("HOLDFAST_JOB") && message.contains("UTF-8"), "{message}");
}

#[test]
fn a_file_can_set_everything() {
    let text = r#"
        store = "10.0.0.1:1,10.0.0.2:2"
        job = "llm"
        run = "r3"
        output = "json"
        timeout = "1m 30s"
    "#;
    let settings = load_file(text).unwrap();
    assert_eq!(settings.store.value.0, ["10.0.0.1:1", "10.0.0.2:2"]);
    assert_eq!(settings.scope().to_string(), "llm/r3");
    assert_eq!(settings.output.value, Output::Json);
    assert_eq!(settings.timeout.value, Timeout::After(Duration::from_secs(90)));
    assert!(matches!(settings.timeout.source, Source::File(_)));
}

#[test]
fn the_nodes_in_a_file_may_be_an_array() {
    let settings = load_file(r#"store = ["a:1", "b:2"]"#).unwrap();
    assert_eq!(settings.store.value.0, ["a:1", "b:2"]);
    assert!(load_file("store = []").is_err());
}

#[test]
fn an_unknown_key_is_refused_with_the_known_ones() {
    let message = load_file("jobs = \"llm\"").unwrap_err();
    assert!(message.contains("`jobs`"), "{message}");
    assert!(
        message.contains(
            "known keys: store, token_file, tls_ca, tls_cert, tls_key, job, run, output, timeout"
        ),
        "{message}"
    );
    assert_eq!(message.matches("timeout").count(), 1, "the keys are told once: {message}");
    assert!(message.contains("did you mean `job`?") && message.contains("line 1"), "{message}");
    assert!(load_file("[kv]\njob = \"llm\"").unwrap_err().contains("`kv`"));
}

#[test]
fn a_value_of_the_wrong_type_says_what_is_wanted() {
    for (text, wanted) in [
        ("store = 5", "HOST:PORT"),
        ("store = [5]", "string"),
        ("store = \"nowhere\"", "nowhere"),
        ("job = true", "string"),
        ("job = \"a/b\"", "is not a name"),
        ("output = \"xml\"", "table"),
        ("timeout = 10", "10s"),
        ("timeout = \"10\"", "10s"),
        ("timeout = \"0s\"", "more than 0"),
        ("job = ", "line 1"),
    ] {
        let message = load_file(text).unwrap_err();
        assert!(message.contains(wanted), "{text}: {message}");
    }
}

#[test]
fn every_key_with_a_wrong_letter_is_refused_with_the_nearest() {
    for key in KEYS {
        for place in 0..key.len() {
            let mut slip: Vec<char> = key.chars().collect();
            slip[place] = 'q';
            let slip: String = slip.into_iter().collect();
            let message = load_file(&format!("{slip} = \"1s\"")).unwrap_err();
            let parts = [format!("unknown key `{slip}`"), format!("did you mean `{key}`?")];
            assert!(parts.iter().all(|part| message.contains(part)), "{slip}: {message}");
        }
    }
}

#[test]
fn every_key_refuses_values_of_another_type() {
    for key in KEYS {
        for value in ["7", "1.5", "true", "1979-05-27", "{ a = 1 }", "[7]", "[[]]"] {
            let message = load_file(&format!("{key} = {value}")).unwrap_err();
            assert!(message.contains(&format!("{key} = ")), "the line is shown: {message}");
            assert!(message.contains("expected"), "{key} = {value}: {message}");
        }
    }
}

#[test]
fn a_file_that_is_named_must_exist() {
    let message = |flag: Option<&Path>, variables: &[(&str, &str)]| {
        load_with(Layer::default(), flag, variables).unwrap_err().to_string()
    };
    let absent = "/nonexistent/h.toml";
    let by_flag = message(Some(Path::new(absent)), &[]);
    assert!(by_flag.contains(absent) && by_flag.contains("--config"), "{by_flag}");
    let by_variable = message(None, &[("HOLDFAST_CONFIG", absent)]);
    assert!(by_variable.contains(absent) && by_variable.contains("HOLDFAST_CONFIG"));
    let folder = tempfile::tempdir().unwrap();
    assert!(message(Some(folder.path()), &[]).contains("folder"));
}

#[test]
fn the_default_file_is_read_if_it_is_there() {
    let home = tempfile::tempdir().unwrap();
    let home_text = home.path().to_str().unwrap();
    let at_home = [("HOME", home_text)];
    assert_eq!(load_with(Layer::default(), None, &at_home).unwrap().job.source, Source::Default);

    let folder = home.path().join(".config/holdfast");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), "job = \"home\"").unwrap();
    let settings = load_with(Layer::default(), None, &at_home).unwrap();
    assert_eq!(settings.job.value.as_str(), "home");
    assert_eq!(settings.job.source, Source::File(folder.join("config.toml")));

    let elsewhere = [("HOME", home_text), ("XDG_CONFIG_HOME", "/nonexistent")];
    let settings = load_with(Layer::default(), None, &elsewhere).unwrap();
    assert_eq!(settings.job.source, Source::Default);

    let named = home.path().join("named.toml");
    fs::write(&named, "job = \"named\"").unwrap();
    let settings = load_with(Layer::default(), Some(&named), &at_home).unwrap();
    assert_eq!(settings.job.value.as_str(), "named");
}

#[test]
fn a_file_that_is_wrong_may_still_say_how_to_answer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("h.toml");
    for (text, wanted) in [
        ("output = \"json\"\njbo = 1", Some(Output::Json)),
        ("output = \"xml\"", None),
        ("output = 7", None),
        ("output = \"json", None),
        ("", None),
    ] {
        fs::write(&path, text).unwrap();
        assert_eq!(output_of_file(Some(&path), &|_| None), wanted, "{text}");
    }
    assert_eq!(output_of_file(Some(Path::new("/nonexistent")), &|_| None), None);
    assert_eq!(output_of_file(None, &|_| None), None);
}

#[test]
fn a_huge_file_is_refused() {
    let text = format!("# {}\njob = \"a\"", "x".repeat(FILE_BYTES_MAX as usize));
    assert!(load_file(&text).unwrap_err().contains("longer than"));
}

#[test]
fn timeouts_have_units_and_print_as_they_are_written() {
    for text in ["500ms", "10s", "2m", "never"] {
        assert_eq!(text.parse::<Timeout>().unwrap().to_string(), text);
    }
    for bad in ["", "10", "0s", "-1s", "soon"] {
        let error = bad.parse::<Timeout>().unwrap_err();
        assert!(error.contains("10s") || error.contains("more than 0"), "{bad:?}: {error}");
    }
}
