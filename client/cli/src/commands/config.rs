//! `config`: the settings and where each came from.

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use crate::config::{Settings, Source, Sourced};
use crate::exit::Failure;
use crate::output::{self, Document, Form, cell, write_rows};

/// Prints the merged settings.
pub(crate) fn run(settings: &Settings, form: Form) -> Result<(), Failure> {
    let document = Merged::new(settings);
    Ok(output::print(&output::render_as(&document, form)?)?)
}

/// The answer of `config`.
#[derive(Debug, Serialize)]
struct Merged {
    store: Item<Vec<String>>,
    token_file: Item<Option<String>>,
    tls_ca: Item<Option<String>>,
    tls_cert: Item<Option<String>>,
    tls_key: Item<Option<String>>,
    job: Item<String>,
    run: Item<Option<String>>,
    output: Item<String>,
    timeout: Item<String>,
}

#[derive(Debug, Serialize)]
struct Item<T> {
    value: T,
    source: &'static str,
    /// The configuration file, if the value came from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl<T> Item<T> {
    fn new<S>(setting: &Sourced<S>, value: impl FnOnce(&S) -> T) -> Item<T> {
        let (source, file) = match &setting.source {
            Source::Flag => ("flag", None),
            Source::Environment => ("environment", None),
            Source::File(path) => ("file", Some(path.display().to_string())),
            Source::Default => ("default", None),
        };
        Item { value: value(&setting.value), source, file }
    }

    fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("{} {file}", self.source),
            None => self.source.to_owned(),
        }
    }
}

impl Merged {
    fn new(settings: &Settings) -> Merged {
        let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        Merged {
            store: Item::new(&settings.store, |store| store.0.clone()),
            token_file: Item::new(&settings.token_file, shown),
            tls_ca: Item::new(&settings.tls_ca, shown),
            tls_cert: Item::new(&settings.tls_cert, shown),
            tls_key: Item::new(&settings.tls_key, shown),
            job: Item::new(&settings.job, ToString::to_string),
            run: Item::new(&settings.run, |run| run.as_ref().map(ToString::to_string)),
            output: Item::new(&settings.output, ToString::to_string),
            timeout: Item::new(&settings.timeout, ToString::to_string),
        }
    }
}

impl Document for Merged {
    fn write_table(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let Merged { store, token_file, tls_ca, tls_cert, tls_key, job, run, output, timeout } =
            self;
        let rows = [
            ("store", store.value.join(","), store.place()),
            ("token_file", cell(token_file.value.as_ref()), token_file.place()),
            ("tls_ca", cell(tls_ca.value.as_ref()), tls_ca.place()),
            ("tls_cert", cell(tls_cert.value.as_ref()), tls_cert.place()),
            ("tls_key", cell(tls_key.value.as_ref()), tls_key.place()),
            ("job", job.value.clone(), job.place()),
            ("run", cell(run.value.as_ref()), run.place()),
            ("output", output.value.clone(), output.place()),
            ("timeout", timeout.value.clone(), timeout.place()),
        ];
        write_rows(
            out,
            Some(["KEY", "VALUE", "FROM"]),
            rows.map(|(key, value, place)| [key.to_owned(), value, place]),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Layer, merge};
    use crate::output::{Output, render};

    fn settings() -> Settings {
        let flags = Layer { job: Some("llm".parse().unwrap()), ..Layer::default() };
        let variables = Layer { store: Some("a:1,b:2".parse().unwrap()), ..Layer::default() };
        let file = Layer { timeout: Some("3s".parse().unwrap()), ..Layer::default() };
        merge(flags, variables, Some(("/etc/h.toml".into(), file)))
    }

    #[test]
    fn json_has_each_value_and_its_source() {
        assert_eq!(
            serde_json::to_value(Merged::new(&settings())).unwrap(),
            json!({
                "store": {"value": ["a:1", "b:2"], "source": "environment"},
                "token_file": {"value": null, "source": "default"},
                "tls_ca": {"value": null, "source": "default"},
                "tls_cert": {"value": null, "source": "default"},
                "tls_key": {"value": null, "source": "default"},
                "job": {"value": "llm", "source": "flag"},
                "run": {"value": null, "source": "default"},
                "output": {"value": "table", "source": "default"},
                "timeout": {"value": "3s", "source": "file", "file": "/etc/h.toml"},
            })
        );
    }

    #[test]
    fn the_table_names_the_file() {
        let out = render(&Merged::new(&settings()), Output::Table).unwrap();
        let wanted = "\
KEY         VALUE    FROM
store       a:1,b:2  environment
token_file  -        default
tls_ca      -        default
tls_cert    -        default
tls_key     -        default
job         llm      flag
run         -        default
output      table    default
timeout     3s       file /etc/h.toml
";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }
}
