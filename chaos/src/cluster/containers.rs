//! A cluster of containers: the services `node1`, `node2`, … of a compose file, under
//! a project name and ports of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use holdfast_api::NodeId;

use super::ports::Ports;
use super::state::StateFile;
use crate::programs;

/// How long services may take to start: their image may have to be made first.
const UP_TIME_MAX: Duration = Duration::from_secs(900);
/// How long one other command to the daemon may take.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Services of the compose file that are nodes.
const NODES: u16 = 3;
/// How its ports on this machine are set; the last one is the agent's.
const PORTS: [&str; 4] =
    ["HOLDFAST_PORT_1", "HOLDFAST_PORT_2", "HOLDFAST_PORT_3", "HOLDFAST_PORT_AGENT"];
/// The label by which everything of a project is found.
const LABEL: &str = "label=com.docker.compose.project";

/// Does, verifies and heals what is done to a node: `VERB FAULT PROJECT SERVICE`.
const FAULTS: &str = r#"
set -eu
verb=$1 fault=$2 project=$3 service=$4
container=$(docker ps --all --quiet --filter "label=com.docker.compose.project=$project" \
    --filter "label=com.docker.compose.service=$service")
network=${project}_default
state() { docker inspect --format '{{.State.Status}}' "$container"; }
networks() { docker inspect --format '{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}' "$container"; }
case "$verb $fault" in
    "inject kill") docker kill --signal KILL "$container" ;;
    "verify kill") test "$(state)" = exited ;;
    "heal kill") docker start "$container" ;;
    "inject pause") docker pause "$container" ;;
    "verify pause") test "$(state)" = paused ;;
    "heal pause") docker unpause "$container" ;;
    "inject cut") docker network disconnect "$network" "$container" ;;
    "verify cut") ! networks | grep --quiet --fixed-strings "$network" ;;
    "heal cut") docker network connect --alias "$service" "$network" "$container" ;;
esac > /dev/null
"#;

/// See the module. Everything of it is removed when it is dropped.
#[derive(Debug)]
pub struct Containers {
    project: String,
    endpoints: Vec<String>,
    // Freed after the containers have ended.
    _ports: Ports,
    _state: StateFile,
}

impl Containers {
    /// Starts the services of a compose file, and waits until they are healthy.
    pub fn up(file: &Path) -> anyhow::Result<Containers> {
        ensure!(file.is_file(), "--file {}: there is no such compose file", file.display());
        let tool = tool()?;
        let project = format!("holdfast-chaos-{}", std::process::id());
        let mut ports = Ports::take()?;
        let mut state = StateFile::create(None)?;
        state.makes_project(&project)?;
        let mut command = Command::new(&tool[0]);
        command.args(&tool[1..]).args(["--project-name", &project, "--file"]).arg(file);
        command.args(["up", "--detach"]);
        let mut endpoints = Vec::new();
        for (n, name) in (1..).zip(PORTS) {
            let port = ports.give()?;
            command.env(name, port.to_string());
            if n <= NODES {
                endpoints.push(format!("127.0.0.1:{port}"));
            }
        }
        let containers = Containers { project, endpoints, _ports: ports, _state: state };
        programs::output_of(&mut command, "", UP_TIME_MAX).context(
            "the services did not start; without a registry `tests/docker/local_image.py --binaries DIR` makes their image",
        )?;
        Ok(containers)
    }

    /// Where this machine reaches the nodes.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Command that applies this verb and fault to a node.
    pub fn command(&self, verb: &str, fault: &str, node: NodeId) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", FAULTS, "sh", verb, fault, &self.project, &format!("node{node}")]);
        command
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.project) {
            eprintln!("{error:#}; `holdfast-chaos heal` tries again");
        }
    }
}

/// Whether anything of a project is there.
pub(super) fn exists(project: &str) -> bool {
    kinds().iter().any(|(list, _)| found(list, project).is_ok_and(|all| !all.is_empty()))
}

/// Removes everything of a project; answers whether there was anything.
pub(super) fn remove(project: &str) -> anyhow::Result<bool> {
    let mut any = false;
    for (list, remove) in kinds() {
        let all = found(&list, project)?;
        if !all.is_empty() {
            any = true;
            let mut command = Command::new("docker");
            programs::output_of(command.args(remove).args(&all), "", TIME_MAX)?;
        }
    }
    Ok(any)
}

/// Commands that list and remove what a project may have made, in this order.
fn kinds() -> [(Vec<&'static str>, Vec<&'static str>); 3] {
    [
        (vec!["ps", "--all"], vec!["rm", "--force", "--volumes"]),
        (vec!["network", "ls"], vec!["network", "rm"]),
        (vec!["volume", "ls"], vec!["volume", "rm"]),
    ]
}

fn found(list: &[&str], project: &str) -> anyhow::Result<Vec<String>> {
    let mut command = Command::new("docker");
    command.args(list).args(["--quiet", "--filter", &format!("{LABEL}={project}")]);
    let listed = programs::output_of(&mut command, "", TIME_MAX)?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// `docker compose`, or `docker-compose`.
fn tool() -> anyhow::Result<Vec<String>> {
    for tool in [&["docker", "compose"][..], &["docker-compose"]] {
        let mut command = Command::new(tool[0]);
        if programs::output(command.args(&tool[1..]).arg("version")).is_ok() {
            return Ok(tool.iter().map(|word| (*word).to_owned()).collect());
        }
    }
    bail!("there is neither `docker compose` nor `docker-compose`; install one of them")
}

/// What injects faults into the nodes of an existing cluster.
#[derive(Debug)]
pub enum Breaker {
    /// A program of its owner: `PROGRAM inject|verify|heal FAULT NODE`.
    Program(PathBuf),
    /// They are containers of this run.
    Containers(Box<Containers>),
}

impl Breaker {
    /// Command that applies this verb and fault to a node.
    pub fn command(&self, verb: &str, fault: &str, node: NodeId) -> Command {
        match self {
            Breaker::Program(program) => {
                let mut command = Command::new(program);
                command.args([verb, fault, &node.to_string()]);
                command
            }
            Breaker::Containers(containers) => containers.command(verb, fault, node),
        }
    }
}
