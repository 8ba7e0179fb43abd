//! Runs the program `holdfast` against a cluster.

use super::Cluster;
use crate::binaries::Build;
use crate::patience::eventually;
use crate::process::Ended;

/// Answers of the cluster when an operator's change is already done.
const DONE_BEFORE: [&str; 3] = ["is a member already", "votes already", "there is no node"];

impl Cluster {
    /// Runs `holdfast --store LIST ARGUMENTS…` to its end.
    pub async fn cli(&self, arguments: &[&str]) -> Ended {
        self.cli_at(&self.list(), arguments).await
    }

    /// Runs `holdfast` against this list of nodes.
    pub async fn cli_at(&self, store: &str, arguments: &[&str]) -> Ended {
        self.cli_of(&Build::this(), store, arguments).await
    }

    /// Runs another build's `holdfast` against this list of nodes.
    pub async fn cli_of(&self, build: &Build, store: &str, arguments: &[&str]) -> Ended {
        let mut command = build.command("holdfast");
        command.args(["--store", store]).args(arguments);
        if let Some(file) = &self.token_file {
            command.env("HOLDFAST_TOKEN_FILE", file);
        }
        if let Some(folder) = &self.certificates {
            command.env("HOLDFAST_TLS_CA", folder.join("client/ca.crt"));
        }
        Ended::of(command).await
    }

    /// Runs `holdfast`, which must succeed; answers what it printed.
    pub async fn cli_ok(&self, arguments: &[&str]) -> String {
        let ended = self.cli(arguments).await;
        assert_eq!(ended.code, Some(0), "holdfast {arguments:?}: {ended:#?}");
        ended.stdout.trim_end().to_owned()
    }

    /// Runs `holdfast`, which must fail with this exit code; answers its output.
    pub async fn cli_fails(&self, code: i32, arguments: &[&str]) -> String {
        let ended = self.cli(arguments).await;
        ended.failed(code, &[]);
        ended.stderr
    }

    /// An operator's command, again until its outcome is known: a node that
    /// stalls, and an election, leave it open. It has succeeded if an earlier
    /// try has done it.
    pub async fn operate(&self, arguments: &[&str]) -> Ended {
        self.operate_at(&self.list(), arguments).await
    }

    /// The same, against this list of nodes.
    pub async fn operate_at(&self, store: &str, arguments: &[&str]) -> Ended {
        let mut tried = false;
        eventually(&format!("the outcome of holdfast {arguments:?}"), async || {
            let mut ended = self.cli_at(store, arguments).await;
            let said = |text: &str| ended.stderr.contains(text);
            if matches!(ended.code, Some(3 | 4)) || said("another membership change is under way") {
                tried = true;
                return None;
            }
            if tried && DONE_BEFORE.into_iter().any(said) {
                ended.code = Some(0);
            }
            Some(ended)
        })
        .await
    }

    /// [`Cluster::operate`], which must succeed.
    pub async fn operate_ok(&self, arguments: &[&str]) {
        let ended = self.operate(arguments).await;
        assert_eq!(ended.code, Some(0), "holdfast {arguments:?}: {ended:#?}");
    }
}
