//! This host: its ports and its PyTorch.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::Check;

/// Where an agent listens by default: PyTorch's port.
const TCPSTORE_PORT: u16 = 29_500;
/// Longest that Python may take to name a version.
const PYTHON_TIME_MAX: Duration = Duration::from_secs(20);
/// Names the version without importing the package, which takes seconds.
const ASK_VERSION: &str = "import importlib.metadata as m; print(m.version('torch'))";
/// The oldest whose protocol is served.
const TORCH_SERVED: (u32, u32) = (2, 2);
/// The oldest whose torchrun goes on when its own store cannot listen.
const TORCH_TORCHRUN: (u32, u32) = (2, 7);
/// The newest that is tested.
const TORCH_TESTED: (u32, u32) = (2, 15);

/// Looks at the ports that this host gives to outgoing connections, and at the
/// one where an agent would listen.
pub(super) fn look_at_ports(store: &[String]) -> Vec<Check> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let mut checks =
        vec![agent_port(TcpListener::bind((Ipv4Addr::LOCALHOST, TCPSTORE_PORT)).is_ok())];
    checks.extend(range.ok().and_then(|range| store_ports(&range, store)));
    checks
}

fn agent_port(free: bool) -> Check {
    let subject = format!("127.0.0.1:{TCPSTORE_PORT}");
    if free {
        Check::ok("ports", subject, "free for an agent")
    } else {
        Check::ok(
            "ports",
            subject,
            "something listens there, an agent perhaps (`holdfast agent list`)",
        )
        .warns("a second agent needs another --tcpstore; `ss -ltnp` names what listens")
    }
}

/// Ports among those that the system gives to outgoing connections: such a
/// connection may hold the port when a node wants to start.
fn store_ports(range: &str, store: &[String]) -> Option<Check> {
    let mut ends = range.split_ascii_whitespace().map(|end| end.parse::<u16>());
    let (Some(Ok(first)), Some(Ok(last))) = (ends.next(), ends.next()) else { return None };
    let port = |address: &String| address.rsplit_once(':')?.1.parse::<u16>().ok();
    let inside: Vec<String> = store
        .iter()
        .filter(|address| port(address).is_some_and(|port| (first..=last).contains(&port)))
        .cloned()
        .collect();
    let found = format!("outgoing connections get {first} to {last}");
    Some(if inside.is_empty() {
        Check::ok("ports", "the store", found)
    } else {
        Check::ok("ports", inside.join(", "), found).warns(
            "an outgoing connection may hold a node's port when it starts: choose one outside, or reserve it with sysctl net.ipv4.ip_local_reserved_ports",
        )
    })
}

/// Asks a Python for its PyTorch.
pub(super) async fn look_for_torch(python: Option<&Path>) -> Check {
    let named = python.is_some();
    let python = python.map_or(OsStr::new("python3"), Path::as_os_str);
    let subject = python.to_string_lossy().into_owned();
    let asked = Command::new(python)
        .args(["-c", ASK_VERSION])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let said = match tokio::time::timeout(PYTHON_TIME_MAX, asked).await {
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(Err(error)) if named => {
            return Check::ok("torch", subject, format!("cannot be started: {error}"))
                .fails("name a Python with --python");
        }
        Ok(Err(_)) => String::new(),
        Err(_) => {
            return Check::ok("torch", subject, format!("no answer within {PYTHON_TIME_MAX:?}"))
                .warns("that Python hangs; name another with --python");
        }
    };
    judge_torch(&subject, &said)
}

fn judge_torch(subject: &str, version: &str) -> Check {
    if version.is_empty() {
        return Check::ok("torch", subject, "it has no PyTorch; --python names another Python");
    }
    let mut numbers = version.split(['.', '+']).map(|number| number.parse::<u32>());
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Check::ok("torch", subject, format!("PyTorch {version:?}"))
            .warns("its version cannot be read; 2.2 and newer are served");
    };
    let number = (major, minor);
    let found = |what: &str| Check::ok("torch", subject, format!("PyTorch {version}: {what}"));
    if number < TORCH_SERVED {
        found("it speaks another protocol, and its connections are closed")
            .fails("install PyTorch 2.2 or newer")
    } else if number < TORCH_TORCHRUN {
        found("env:// and tcp:// under any launcher but torchrun").warns(
            "torchrun --rdzv-backend=static needs 2.7: before, a store of its own that cannot listen is fatal",
        )
    } else if number > TORCH_TESTED {
        found("newer than what was tested")
            .warns("2.15 is the newest that Holdfast was tested with")
    } else {
        found("env://, tcp://, and torchrun --rdzv-backend=static on any number of nodes")
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn ports_among_those_of_outgoing_connections_are_warned_of() {
        let store = ["10.0.0.1:21001".to_owned(), "[::1]:40000".to_owned()];
        let verdict = |range: &str| store_ports(range, &store).map(|check| check.verdict);
        assert_eq!(verdict("32768\t60999\n"), Some(CheckStatus::Warning));
        assert_eq!(verdict("50000\t60999\n"), Some(CheckStatus::Ok));
        assert_eq!(verdict(""), None);
        let named = store_ports("32768 60999", &store).map(|check| check.subject);
        assert_eq!(named.as_deref(), Some("[::1]:40000"));
        assert_eq!(
            (agent_port(true).verdict, agent_port(false).verdict),
            (CheckStatus::Ok, CheckStatus::Warning)
        );
    }

    #[test]
    fn a_version_of_pytorch_says_what_can_be_done_with_it() {
        for (version, verdict, words) in [
            ("1.13.1", CheckStatus::Failed, "another protocol"),
            ("2.1.2+cpu", CheckStatus::Failed, "another protocol"),
            ("2.2.0", CheckStatus::Warning, "env://"),
            ("2.5.1+cu121", CheckStatus::Warning, "any launcher but torchrun"),
            ("2.7.0", CheckStatus::Ok, "torchrun"),
            ("2.15.0", CheckStatus::Ok, "torchrun"),
            ("2.16.0.dev1", CheckStatus::Warning, "newer"),
            ("nightly", CheckStatus::Warning, "nightly"),
            ("", CheckStatus::Ok, "no PyTorch"),
        ] {
            let check = judge_torch("python3", version);
            assert_eq!(check.verdict, verdict, "{version}");
            assert!(check.found.contains(words), "{version}: {}", check.found);
        }
    }

    #[tokio::test]
    async fn a_python_that_was_named_and_is_none_fails() {
        let check = look_for_torch(Some(Path::new("/no/such/python"))).await;
        assert_eq!(check.verdict, CheckStatus::Failed);
        assert!(check.next.is_some_and(|next| next.contains("--python")));
    }
}
