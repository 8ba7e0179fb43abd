//! PyTorch programs, driven line by line.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

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

/// The Python that `tests/prepare python` installed the wheel into. Says
/// `SKIPPED` where it could not be built.
///
/// # Panics
///
/// If that was never tried.
pub fn with_package() -> Option<PathBuf> {
    let named = std::env::var_os("HOLDFAST_WHEEL_PYTHON").unwrap_or_default();
    if named == "none" {
        eprintln!("SKIPPED: `tests/prepare python` could not build the wheel on this machine");
        return None;
    }
    assert!(!named.is_empty(), "run `tests/prepare python` and source target/environment");
    Some(PathBuf::from(named))
}

/// Whether tests on a GPU are wanted. Says `SKIPPED` if they are not.
pub fn has_gpu() -> bool {
    let is_wanted = std::env::var("HOLDFAST_GPU_TESTS").as_deref() == Ok("1");
    if !is_wanted {
        eprintln!("SKIPPED: set HOLDFAST_GPU_TESTS=1 on a machine that has a GPU");
    }
    is_wanted
}

/// Settings with which ranks share a GPU: NCCL takes each for a host of its own, and
/// uses sockets and few of the GPU's blocks.
pub fn on_one_gpu(rank: usize) -> [(&'static str, String); 6] {
    [
        ("NCCL_HOSTID", format!("host-{rank}")),
        ("NCCL_MAX_NCHANNELS", "2".to_owned()),
        ("NCCL_MNNVL_ENABLE", "0".to_owned()),
        ("NCCL_NET", "Socket".to_owned()),
        ("NCCL_NVLS_ENABLE", "0".to_owned()),
        ("NCCL_SOCKET_IFNAME", "lo".to_owned()),
    ]
}

/// A PyTorch to run a job with.
#[derive(Debug, Clone)]
pub struct Torch {
    /// The Python that has it.
    pub python: PathBuf,
    /// Its version: 2.7 is `(2, 7)`.
    pub version: (u32, u32),
}

impl Torch {
    /// PyTorch of [`python`], which must be the newest version.
    pub fn newest() -> Torch {
        Torch::of(python()).expect("that Python has PyTorch")
    }

    /// An older one: of the Python that `HOLDFAST_PYTHON_OLDER` names, else of
    /// the one in `.venv-older` of the workspace. Says `SKIPPED` if there is
    /// none, or `NO_OLDER_TORCH` is set.
    pub fn older() -> Option<Torch> {
        if std::env::var_os("NO_OLDER_TORCH").is_some_and(|set| !set.is_empty()) {
            eprintln!("SKIPPED: NO_OLDER_TORCH is set");
            return None;
        }
        let named = std::env::var_os("HOLDFAST_PYTHON_OLDER").filter(|named| !named.is_empty());
        let installed = || binaries::workspace().join(".venv-older/bin/python");
        let python = named.map_or_else(installed, PathBuf::from);
        let torch = Torch::of(python.clone());
        if torch.is_none() {
            eprintln!(
                "SKIPPED: {} has no PyTorch: `tests/prepare older-torch` installs an older one",
                python.display()
            );
        }
        torch
    }

    /// That beside Holdfast's own Python package. Says `SKIPPED` if there is
    /// none.
    pub fn with_package() -> Option<Torch> {
        let torch = Torch::of(with_package()?);
        if torch.is_none() {
            eprintln!("SKIPPED: there is no PyTorch on this machine");
        }
        torch
    }

    /// That beside one of these launchers and Holdfast's own Python package: of the
    /// Python with the package, or of the one that `HOLDFAST_PYTHON_LAUNCHERS` names.
    /// Says `SKIPPED` if it is not there.
    pub fn with_launcher(module: &str) -> Option<Torch> {
        let named = std::env::var_os("HOLDFAST_PYTHON_LAUNCHERS").filter(|named| !named.is_empty());
        let code =
            "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))";
        let has_both = |python: &PathBuf| {
            let mut looking = std::process::Command::new(python);
            looking.args(["-c", code, module, "holdfast_capture"]);
            looking.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let found = with_package().into_iter().chain(named.map(PathBuf::from)).find(has_both);
        let torch = found.and_then(Torch::of);
        if torch.is_none() {
            eprintln!(
                "SKIPPED: no Python has {module}, PyTorch and Holdfast's wheel: `make launch-table` \
                 installs one, and HOLDFAST_PYTHON_LAUNCHERS names one"
            );
        }
        torch
    }

    fn of(python: PathBuf) -> Option<Torch> {
        let code = "from importlib.metadata import version; print(version('torch'))";
        let mut command = std::process::Command::new(&python);
        let output = command.args(["-c", code]).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let mut numbers = text.split('.').map_while(|number| number.parse().ok());
        Some(Torch { python, version: (numbers.next()?, numbers.next()?) })
    }
}

/// A folder for PYTHONPATH, in which a Python without the wheel finds its hook alone.
///
/// # Panics
///
/// If the disk is full.
pub fn with_hook() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for a file");
    let hook = binaries::workspace().join("trainer-shim/python");
    let text = format!("import site; site.addsitedir({:?})\n", hook.display().to_string());
    std::fs::write(folder.path().join("sitecustomize.py"), text).expect("a folder of its own");
    folder
}

/// A folder for PYTHONPATH, in which a Python without the wheel finds what is installed beside the
/// wheel, and nothing of Holdfast. Says `SKIPPED` if this module is not among it.
///
/// # Panics
///
/// If the disk is full.
pub fn without_wheel(module: &str) -> Option<tempfile::TempDir> {
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = std::process::Command::new(with_package()?).args(["-c", code]).output();
    let output = output.expect("`tests/prepare python` has made it").stdout;
    let installed = PathBuf::from(String::from_utf8_lossy(&output).trim());
    if !installed.join(module).is_dir() {
        eprintln!(
            "SKIPPED: {} has no {module}: `tests/prepare python` installs it",
            installed.display()
        );
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder for links");
    for found in installed.read_dir().expect("it was found").flatten() {
        let name = found.file_name();
        if !name.to_string_lossy().starts_with("holdfast") {
            symlink(found.path(), folder.path().join(name)).expect("a folder of its own");
        }
    }
    Some(folder)
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
    heard: watch::Receiver<Heard>,
    /// Lines that [`Script::says`] has passed.
    passed: usize,
    _hearing: JoinSet<()>,
}

/// All lines so far, and whether there will be more.
#[derive(Debug, Default)]
struct Heard {
    lines: Vec<String>,
    ended: bool,
}

impl Script {
    /// Runs a script of this crate with Python.
    pub fn start(cluster: &mut Cluster, name: &str, arguments: &[impl AsRef<OsStr>]) -> Script {
        let mut command = binaries::without_settings(python());
        command.arg("-u").arg(script(name)).args(arguments);
        Script::start_command(cluster, name, command)
    }

    /// Runs a program as if it were a script.
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
        let (tell, heard) = watch::channel(Heard::default());
        let mut hearing = JoinSet::new();
        // Read at once, so that a line's time is right.
        hearing.spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                tell.send_modify(|heard| heard.lines.push(line));
            }
            tell.send_modify(|heard| heard.ended = true);
        });
        Script { child, orders, heard, passed: 0, _hearing: hearing }
    }

    /// Waits for the next line that starts with `text`; answers the rest of
    /// it.
    pub async fn says(&mut self, text: &str) -> String {
        let mut heard = self.heard.clone();
        let passed = self.passed;
        let found = |heard: &Heard| {
            let mut lines = heard.lines.iter().enumerate().skip(passed);
            lines.find_map(|(n, line)| Some((n, line.strip_prefix(text)?.trim().to_owned())))
        };
        let hearing = heard.wait_for(|heard| heard.ended || found(heard).is_some());
        let heard = patiently(&format!("the program to say {text:?}"), hearing).await;
        let heard = heard.expect("the end is told before the teller goes");
        let Some((n, rest)) = found(&heard) else {
            panic!("the program ended before it said {text:?}; it said {:#?}", heard.lines)
        };
        self.passed = n + 1;
        rest
    }

    /// Waits for the next line that starts with `text`; answers all that come
    /// before it.
    pub async fn says_all(&mut self, text: &str) -> Vec<String> {
        let from = self.passed;
        self.says(text).await;
        self.heard.borrow().lines[from..self.passed - 1].to_vec()
    }

    /// Sends SIGKILL; does not wait for the end.
    pub fn kill(&mut self) {
        self.child.start_kill().expect("the program runs");
    }

    /// Waits for a line that starts with `text` and reports something after this call:
    /// the first one may have been in flight.
    pub async fn says_anew(&mut self, text: &str) {
        self.passed = self.heard.borrow().lines.len();
        self.says(text).await;
        self.says(text).await;
    }

    /// Gives it an order: one line.
    pub async fn order(&mut self, line: &str) {
        let text = format!("{line}\n");
        self.orders.write_all(text.as_bytes()).await.expect("the program takes orders");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.expect("nobody has waited for its end");
        kill(Pid::from_raw(pid), signal).expect("it is ours");
    }

    /// Waits for its end, which must be without success.
    pub async fn fails(mut self) {
        let status = patiently("the program to end", self.child.wait()).await;
        let status = status.expect("a child can be waited for");
        assert!(!status.success(), "the program ended well");
    }

    /// Waits for its end, which must be with exit code 0; answers all that it
    /// said.
    pub async fn succeeds(mut self) -> Vec<String> {
        let status = patiently("the program to end", self.child.wait()).await;
        let status = status.expect("a child can be waited for");
        let hearing = self.heard.wait_for(|heard| heard.ended);
        let heard = patiently("the program's last words", hearing).await;
        let lines = heard.expect("the end is told before the teller goes").lines.clone();
        assert!(status.success(), "the program ended with {status}; it said {lines:#?}");
        lines
    }
}
