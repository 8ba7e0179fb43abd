//! Settings from flags, the environment, a TOML file and defaults, merged,
//! each value with the place it came from.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use holdfast_api::{Name, Scope, name};
use holdfast_client::{Deadline, EndpointError, parse_endpoints, read_regular_text};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::nearest::nearest;
use crate::output::Output;

/// The nodes of `holdfast-store dev`, tried when none are named.
pub(crate) const STORE_DEFAULT: &str = "127.0.0.1:21001,127.0.0.1:21002,127.0.0.1:21003";
/// How long a request may take by default.
pub(crate) const TIMEOUT_DEFAULT: Timeout = Timeout::After(Duration::from_secs(10));
/// The keys of the file.
const KEYS: [&str; 9] =
    ["store", "token_file", "tls_ca", "tls_cert", "tls_key", "job", "run", "output", "timeout"];
/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The nodes to try, `host:port` each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreList(pub(crate) Vec<String>);

impl FromStr for StoreList {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<StoreList, EndpointError> {
        parse_endpoints(text).map(StoreList)
    }
}

impl fmt::Display for StoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    After(Duration),
    /// Wait until the answer comes, however long that takes.
    Never,
}

impl Timeout {
    /// The deadline of a request that starts now.
    pub(crate) fn deadline(self) -> Deadline {
        match self {
            Timeout::After(duration) => Deadline::after(duration),
            Timeout::Never => Deadline::never(),
        }
    }
}

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Timeout, String> {
        if text == "never" {
            return Ok(Timeout::Never);
        }
        let duration = humantime::parse_duration(text).map_err(|_| {
            "write a duration with its unit such as 500ms, 10s, 2m, or `never`".to_owned()
        })?;
        if duration.is_zero() {
            return Err("a timeout is more than 0; `never` waits for ever".to_owned());
        }
        Ok(Timeout::After(duration))
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Timeout::After(duration) => humantime::format_duration(*duration).fmt(f),
            Timeout::Never => f.write_str("never"),
        }
    }
}

/// The settings from one place; none where it is silent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layer {
    #[serde(default, deserialize_with = "store_of_file")]
    pub(crate) store: Option<StoreList>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) tls_cert: Option<PathBuf>,
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) job: Option<Name>,
    pub(crate) run: Option<Name>,
    #[serde(default, deserialize_with = "form_of_file")]
    pub(crate) output: Option<Output>,
    #[serde(default, deserialize_with = "timeout_of_file")]
    pub(crate) timeout: Option<Timeout>,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A flag of the command line.
    Flag,
    Environment,
    File(PathBuf),
    /// No place sets it.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Environment => f.write_str("environment"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    pub(crate) source: Source,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) store: Sourced<StoreList>,
    /// The file with the cluster's token.
    pub(crate) token_file: Sourced<Option<PathBuf>>,
    /// The authority of the nodes' certificates.
    pub(crate) tls_ca: Sourced<Option<PathBuf>>,
    /// A certificate to show.
    pub(crate) tls_cert: Sourced<Option<PathBuf>>,
    pub(crate) tls_key: Sourced<Option<PathBuf>>,
    pub(crate) job: Sourced<Name>,
    /// The run; none = the job's open run.
    pub(crate) run: Sourced<Option<Name>>,
    /// How answers are printed.
    pub(crate) output: Sourced<Output>,
    /// How long to wait for an answer.
    pub(crate) timeout: Sourced<Timeout>,
}

impl Settings {
    /// The scope of keys.
    pub(crate) fn scope(&self) -> Scope {
        Scope { job: self.job.value.clone(), run: self.run.value.clone() }
    }
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// An environment variable cannot be understood.
    #[error("environment variable {name}: {reason}")]
    Variable {
        name: &'static str,
        /// What is wrong with the value of the variable.
        reason: String,
    },
    /// The file cannot be read.
    #[error("configuration file {path} ({why}): {reason}", path = path.display())]
    Unreadable {
        path: PathBuf,
        /// How it was named.
        why: &'static str,
        /// The system's error, or why the file is not read.
        reason: String,
    },
    /// The file cannot be understood.
    #[error("configuration file {path}: {reason}", path = path.display())]
    Invalid {
        path: PathBuf,
        /// What is wrong, and in which line.
        reason: String,
    },
}

/// Looks an environment variable up.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads the environment and the file, and merges all places with the flags.
pub(crate) fn load(
    flags: Layer,
    config_flag: Option<&Path>,
    environment: Environment<'_>,
) -> Result<Settings, ConfigError> {
    let variables = variables(environment)?;
    let file = match file_path(config_flag, environment) {
        Some((path, why)) => read_file(&path, why)?.map(|layer| (path, layer)),
        None => None,
    };
    Ok(merge(flags, variables, file))
}

/// Flags over environment over file over defaults, value by value.
pub(crate) fn merge(flags: Layer, variables: Layer, file: Option<(PathBuf, Layer)>) -> Settings {
    let (path, file) = file.unwrap_or_default();
    let defaults = Layer::default();
    let layers = [
        (Source::Flag, &flags),
        (Source::Environment, &variables),
        (Source::File(path), &file),
        (Source::Default, &defaults),
    ];
    Settings {
        store: first(&layers, |layer| layer.store.clone()).unwrap_or_else(|| {
            by_default(STORE_DEFAULT.parse().expect("the default list is well formed"))
        }),
        token_file: first(&layers, |layer| layer.token_file.clone().map(Some))
            .unwrap_or_else(|| by_default(None)),
        tls_ca: first(&layers, |layer| layer.tls_ca.clone().map(Some))
            .unwrap_or_else(|| by_default(None)),
        tls_cert: first(&layers, |layer| layer.tls_cert.clone().map(Some))
            .unwrap_or_else(|| by_default(None)),
        tls_key: first(&layers, |layer| layer.tls_key.clone().map(Some))
            .unwrap_or_else(|| by_default(None)),
        job: first(&layers, |layer| layer.job.clone())
            .unwrap_or_else(|| by_default(name::default_name())),
        run: first(&layers, |layer| layer.run.clone().map(Some))
            .unwrap_or_else(|| by_default(None)),
        output: first(&layers, |layer| layer.output).unwrap_or_else(|| by_default(Output::Table)),
        timeout: first(&layers, |layer| layer.timeout)
            .unwrap_or_else(|| by_default(TIMEOUT_DEFAULT)),
    }
}

fn by_default<T>(value: T) -> Sourced<T> {
    Sourced { value, source: Source::Default }
}

fn first<T>(layers: &[(Source, &Layer)], pick: impl Fn(&Layer) -> Option<T>) -> Option<Sourced<T>> {
    layers
        .iter()
        .find_map(|(source, layer)| Some(Sourced { value: pick(layer)?, source: source.clone() }))
}

/// The variables that stand for flags. An empty one counts as not set.
fn variables(environment: Environment<'_>) -> Result<Layer, ConfigError> {
    Ok(Layer {
        store: variable(environment, "HOLDFAST_STORE")?,
        token_file: variable(environment, "HOLDFAST_TOKEN_FILE")?,
        tls_ca: variable(environment, "HOLDFAST_TLS_CA")?,
        tls_cert: variable(environment, "HOLDFAST_TLS_CERT")?,
        tls_key: variable(environment, "HOLDFAST_TLS_KEY")?,
        job: variable(environment, "HOLDFAST_JOB")?,
        run: variable(environment, "HOLDFAST_RUN")?,
        ..Layer::default()
    })
}

fn variable<T>(environment: Environment<'_>, name: &'static str) -> Result<Option<T>, ConfigError>
where
    T: FromStr<Err: fmt::Display>,
{
    let Some(value) = environment(name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let parsed = match value.to_str() {
        Some(text) => text.parse().map_err(|error: T::Err| error.to_string()),
        None => Err("it is not text (UTF-8)".to_owned()),
    };
    parsed.map(Some).map_err(|reason| ConfigError::Variable { name, reason })
}

/// How the configuration file was named: if it was, it must exist.
const BY_FLAG: &str = "named by --config";
const BY_VARIABLE: &str = "named by HOLDFAST_CONFIG";
const BY_DEFAULT: &str = "the default place";

fn file_path(flag: Option<&Path>, environment: Environment<'_>) -> Option<(PathBuf, &'static str)> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = flag {
        return Some((path.to_owned(), BY_FLAG));
    }
    if let Some(path) = set("HOLDFAST_CONFIG") {
        return Some((path, BY_VARIABLE));
    }
    let folder = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some((folder.join("holdfast").join("config.toml"), BY_DEFAULT))
}

/// The file's layer; none if it is absent and was not named.
fn read_file(path: &Path, why: &'static str) -> Result<Option<Layer>, ConfigError> {
    let unreadable =
        |reason: String| ConfigError::Unreadable { path: path.to_owned(), why, reason };
    let text = match read_regular_text(path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if why == BY_DEFAULT && is_absent(&error) => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let layer =
        layer(&text).map_err(|reason| ConfigError::Invalid { path: path.to_owned(), reason })?;
    Ok(Some(layer))
}

/// The layer that a file's text is; the error says why it is none.
pub(crate) fn layer(text: &str) -> Result<Layer, String> {
    toml::from_str(text).map_err(|error| reason(&error, text))
}

/// The error and its line; for an unknown key, the nearest one.
fn reason(error: &toml::de::Error, text: &str) -> String {
    let shown = error.to_string().trim_end().to_owned();
    let keys = toml::from_str::<toml::Table>(text).unwrap_or_default();
    let Some(unknown) = keys.keys().find(|key| !KEYS.contains(&key.as_str())) else {
        return shown;
    };
    if !error.message().contains(&format!("`{unknown}`")) {
        return shown;
    }
    let nearest = match nearest(unknown, KEYS) {
        Some(known) => format!("; did you mean `{known}`?"),
        None => String::new(),
    };
    let said = format!("unknown key `{unknown}`{nearest}\nknown keys: {}", KEYS.join(", "));
    shown.replacen(error.message(), &said, 1)
}

/// The form of answers that the file asks for, even if nothing else in it can
/// be understood.
pub(crate) fn output_of_file(
    config_flag: Option<&Path>,
    environment: Environment<'_>,
) -> Option<Output> {
    let (path, _) = file_path(config_flag, environment)?;
    let keys: toml::Table = toml::from_str(&read_regular_text(&path, FILE_BYTES_MAX).ok()?).ok()?;
    keys.get("output")?.clone().try_into().ok()
}

/// If a folder of the default path is a file, there is no configuration file,
/// just as with a missing folder.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn store_of_file<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<StoreList>, D::Error> {
    deserializer.deserialize_any(StoreVisitor).map(Some)
}

/// Reads one text with commas, or an array of texts.
struct StoreVisitor;

impl<'de> Visitor<'de> for StoreVisitor {
    type Value = StoreList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a string "HOST:PORT,…" or an array of strings "HOST:PORT""#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<StoreList, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<StoreList, A::Error> {
        let mut endpoints = Vec::new();
        while let Some(endpoint) = list.next_element::<String>()? {
            endpoints.push(endpoint);
        }
        self.visit_str(&endpoints.join(","))
    }
}

fn form_of_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Output>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let form = <Output as clap::ValueEnum>::from_str(&text, false);
    form.map(Some).map_err(|_| de::Error::custom(format!("`{text}` is neither table nor json")))
}

fn timeout_of_file<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Timeout>, D::Error> {
    deserializer.deserialize_any(TimeoutVisitor).map(Some)
}

struct TimeoutVisitor;

impl Visitor<'_> for TimeoutVisitor {
    type Value = Timeout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a string such as "10s" or "never""#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Timeout, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests;
