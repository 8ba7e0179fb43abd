//! PyTorch programs, driven line by line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::binaries;
use crate::cluster::Cluster;
use crate::patience::patiently;

/// A Python that can `import torch`: the one that `HOLDFAST_PYTHON` names,
/// else `python3`, else the one in `.venv` of the workspace.
///
/// # Panics
///
/// If there is none.
pub fn python() -> PathBuf {
    if let Some(named) = std::env::var_os("HOLDFAST_PYTHON").filter(|named| !named.is_empty()) {
        return PathBuf::from(named);
    }
    // Importing takes seconds; knowing that it is installed takes none.
    let has_torch = |python: &Path| {
        let code =
            "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)";
        let mut command = std::process::Command::new(python);
        let found = command.args(["-c", code]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    let candidates = [PathBuf::from("python3"), binaries::workspace().join(".venv/bin/python")];
    candidates.into_iter().find(|python| has_torch(python)).expect(
        "no Python with PyTorch: `make test` installs one into .venv, \
         or name yours with HOLDFAST_PYTHON",
    )
}

/// The path of a script beside the tests.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

/// A running program that prints a line for each thing that happens, and takes
/// lines as orders. Its standard error goes to a log.
#[derive(Debug)]
pub struct Script {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    heard: Vec<String>,
}

impl Script {
    /// Runs a script of this crate with Python.
    pub fn start(cluster: &mut Cluster, name: &str, arguments: &[impl AsRef<OsStr>]) -> Script {
        let mut command = binaries::without_settings(python());
        command.arg("-u").arg(script(name)).args(arguments);
        Script::start_command(cluster, name, command)
    }

    /// Runs any program.
    pub fn start_command(
        cluster: &mut Cluster,
        name: &str,
        mut command: std::process::Command,
    ) -> Script {
        let path = cluster.keep_log(name);
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let child = Command::from(command).kill_on_drop(true).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let orders = child.stdin.take().expect("it was asked for");
        let stdout = child.stdout.take().expect("it was asked for");
        let lines = BufReader::new(stdout).lines();
        Script { child, orders, lines, heard: Vec::new() }
    }

    /// Waits for a line that starts with `text`; answers the rest of it.
    pub async fn says(&mut self, text: &str) -> String {
        let hearing = async {
            loop {
                let line = self.lines.next_line().await.expect("the program writes text");
                let Some(line) = line else {
                    panic!("the program ended before it said {text:?}; it said {:#?}", self.heard)
                };
                self.heard.push(line.clone());
                if let Some(rest) = line.strip_prefix(text) {
                    return rest.trim().to_owned();
                }
            }
        };
        patiently(&format!("the program to say {text:?}"), hearing).await
    }

    /// Gives it an order: one line.
    pub async fn order(&mut self, line: &str) {
        let text = format!("{line}\n");
        self.orders.write_all(text.as_bytes()).await.expect("the program takes orders");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it is running")
    }

    /// Waits for its end, which must be with exit code 0.
    pub async fn succeeds(mut self) -> Vec<String> {
        let ending = async {
            while let Some(line) = self.lines.next_line().await.expect("the program writes text") {
                self.heard.push(line);
            }
            self.child.wait().await.expect("a child can be waited for")
        };
        let status = patiently("the program to end", ending).await;
        assert!(status.success(), "the program ended with {status}; it said {:#?}", self.heard);
        self.heard
    }
}
