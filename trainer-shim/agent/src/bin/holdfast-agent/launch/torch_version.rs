//! Which torch a command would use, and whether Holdfast's rendezvous is there:
//! asked of its own Python.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::torchrun::{OURS, Program};
use crate::program;

/// The first whose static rendezvous goes on as a client when its port is
/// served already.
pub const STATIC_SINCE: Version = Version { major: 2, minor: 7 };

/// Python on a cold network file system takes its time; longer, and the
/// version stays unknown.
const ASK_TIME_MAX: Duration = Duration::from_secs(15);
/// Most bytes read of its answer, and of a script.
const ANSWER_BYTES_MAX: u64 = 256;
const SCRIPT_BYTES_MAX: u64 = 4096;

/// Prints the version without importing torch, which takes seconds, and then
/// the name of our rendezvous if torchrun would find it.
const QUESTION: &str = "\
import importlib.metadata, importlib.util, os, re
found = importlib.util.find_spec('torch')
path = os.path.join(os.path.dirname(found.origin), 'version.py')
print(re.search(r'^__version__ *= *.([0-9][^\\'\"]*)', open(path).read(), re.M).group(1))
points = (e for d in importlib.metadata.distributions() for e in d.entry_points)
if any((e.group, e.name) == ('torchrun.handlers', 'holdfast') for e in points):
    print('holdfast')";

/// A version of torch, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    fn read(text: &str) -> Option<Version> {
        let mut parts = text.lines().next()?.trim().split('.');
        let major = parts.next()?.parse().ok()?;
        let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
        Some(Version { major, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Result of the lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A torch was found.
    Known {
        /// The version of the torch that was found.
        version: Version,
        /// Interpreter that it is installed in.
        python: PathBuf,
        /// Whether torchrun finds Holdfast's rendezvous there.
        has_ours: bool,
    },
    /// Why it stays unknown.
    Unknown(String),
}

/// Asks the Python that would run torchrun.
pub async fn of(launcher: Program<'_>) -> Found {
    let python = match interpreter(launcher) {
        Ok(python) => python,
        Err(why) => return Found::Unknown(why),
    };
    let asked = tokio::time::timeout(ASK_TIME_MAX, ask(&python)).await;
    let shown = Path::new(&python[0]).to_owned();
    match asked {
        Ok(Ok(answer)) => match Version::read(&answer) {
            Some(version) => {
                let has_ours = answer.lines().nth(1) == Some(OURS);
                Found::Known { version, python: shown, has_ours }
            }
            None => Found::Unknown(format!("{} has no torch that names it", shown.display())),
        },
        Ok(Err(error)) => Found::Unknown(format!("{}: {error}", shown.display())),
        Err(_) => {
            Found::Unknown(format!("{} did not answer for {ASK_TIME_MAX:?}", shown.display()))
        }
    }
}

async fn ask(python: &[OsString]) -> std::io::Result<String> {
    let mut child = Command::new(&python[0])
        .args(&python[1..])
        .args(["-c", QUESTION])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut answer = String::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    }
    child.wait().await?;
    Ok(answer)
}

/// The Python and the arguments that it is started with.
fn interpreter(launcher: Program<'_>) -> Result<Vec<OsString>, String> {
    match launcher {
        Program::Python(python) => Ok(vec![python.to_owned()]),
        Program::Script(script) => {
            let path = program::find(script).map_err(|error| error.to_string())?;
            let mut head = Vec::new();
            let read = std::fs::File::open(&path)
                .and_then(|file| file.take(SCRIPT_BYTES_MAX).read_to_end(&mut head));
            read.map_err(|error| format!("{}: {error}", path.display()))?;
            interpreter_of(&String::from_utf8_lossy(&head))
                .ok_or_else(|| format!("{} is no Python script", path.display()))
        }
    }
}

/// The interpreter that a script's first lines name.
fn interpreter_of(script: &str) -> Option<Vec<OsString>> {
    let mut lines = script.lines();
    let mut words: Vec<&str> = lines.next()?.strip_prefix("#!")?.split_whitespace().collect();
    let name = |word: &str| Path::new(word).file_name().map(OsStr::to_owned).unwrap_or_default();
    if words.first().is_some_and(|word| name(word) == "sh") {
        // How pip writes interpreters with long paths or blanks:
        // '''exec' "/path/to/python" "$0" "$@"
        let exec = lines.next()?.strip_prefix("'''exec' ")?;
        let path = match exec.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => exec.split_whitespace().next()?,
        };
        return Some(vec![path.into()]);
    }
    if words.first().is_some_and(|word| name(word) == "env") {
        words.remove(0);
        words.retain(|word| *word != "-S");
    }
    if words.is_empty() { None } else { Some(words.into_iter().map(OsString::from).collect()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_are_read_and_compared_by_number() {
        let read = |text| Version::read(text);
        assert_eq!(read("2.15.0+cu132\n"), Some(Version { major: 2, minor: 15 }));
        assert_eq!(read("2.7.0a0+git1"), Some(STATIC_SINCE));
        assert!(read("2.15.0") > Some(STATIC_SINCE) && read("2.5.1") < Some(STATIC_SINCE));
        for bad in ["", "torch", "2", "x.y"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_interpreter_of_a_script_is_found_as_the_system_would() {
        for (script, expected) in [
            ("#!/opt/v/bin/python\nimport re", &["/opt/v/bin/python"][..]),
            ("#!/opt/v/bin/python3 -E\n", &["/opt/v/bin/python3", "-E"]),
            ("#!/usr/bin/env python3\n", &["python3"]),
            ("#!/usr/bin/env -S python3 -u\n", &["python3", "-u"]),
            ("#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''", &["/a b/python"]),
            ("#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n' '''", &["/long/python"]),
        ] {
            let expected: Vec<OsString> = expected.iter().map(OsString::from).collect();
            assert_eq!(interpreter_of(script), Some(expected), "{script}");
        }
        for other in ["", "\x7fELF", "#!", "#!/bin/sh\necho", "#!/usr/bin/env"] {
            assert_eq!(interpreter_of(other), None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn a_python_that_is_none_leaves_the_version_unknown() {
        for program in ["true", "false", "/no/such/python"] {
            let found = of(Program::Python(OsStr::new(program))).await;
            assert!(matches!(&found, Found::Unknown(why) if why.contains(program)), "{found:?}");
        }
    }

    #[tokio::test]
    async fn a_python_is_asked_for_the_torch_that_it_would_import() {
        let folder = tempfile::tempdir().unwrap();
        let package = folder.path().join("torch");
        std::fs::create_dir(&package).unwrap();
        std::fs::write(package.join("__init__.py"), "raise SystemExit('imported')").unwrap();
        std::fs::write(package.join("version.py"), "__version__ = '2.5.1+cpu'\n").unwrap();
        let script = folder.path().join("python");
        let path = folder.path().display();
        let text = format!("#!/bin/sh\nPYTHONPATH={path} exec python3 \"$@\"\n");
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let version = Version { major: 2, minor: 5 };
        let known = |has_ours| Found::Known { version, python: script.clone(), has_ours };
        assert_eq!(of(Program::Python(script.as_os_str())).await, known(false));
        let package = folder.path().join("holdfast-1.dist-info");
        std::fs::create_dir(&package).unwrap();
        let points = "[torchrun.handlers]\nholdfast = holdfast.torchrun:entry_point\n";
        std::fs::write(package.join("entry_points.txt"), points).unwrap();
        std::fs::write(package.join("METADATA"), "Name: holdfast\nVersion: 1\n").unwrap();
        assert_eq!(of(Program::Python(script.as_os_str())).await, known(true));
    }
}
