//! The system's own programs (`ip`, `nft`, `mount`, `docker` …), run to their end, which
//! must come in a given time: a frozen disk or a busy kernel can hold one for ever.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// How long a program may take that needs milliseconds.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(30);
/// How often its end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a program said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Output of a program, which must succeed; its own words are the error if it does not.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    output_of(command, "", TIME_MAX)
}

/// The same for one that reads this, and may take this long.
pub(crate) fn output_of(
    command: &mut Command,
    input: &str,
    time_max: Duration,
) -> anyhow::Result<String> {
    let Ended { status, stdout, stderr } = run(command, input, time_max)?;
    ensure!(status.success(), "{}: {}", words(command), stderr.trim());
    Ok(stdout)
}

/// Runs a program to its end, good or bad. One that has not ended in this time is killed.
pub(crate) fn run(command: &mut Command, input: &str, time_max: Duration) -> anyhow::Result<Ended> {
    // Files never block it, as pipes do that nobody reads.
    let (mut stdin, mut stdout, mut stderr) = (file()?, file()?, file()?);
    stdin.write_all(input.as_bytes()).and_then(|()| stdin.rewind()).context("a temporary file")?;
    command.stdin(stdin).stdout(copy(&stdout)?).stderr(copy(&stderr)?);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            anyhow::anyhow!("there is no program {}{}", name(command), package(command))
        }
        _ => anyhow::Error::new(error).context(format!("cannot run {}", name(command))),
    })?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| name(command))? {
            break status;
        }
        if began.elapsed() >= time_max {
            give_up(child);
            bail!("{} did not end within {time_max:?}, and was killed", words(command));
        }
        std::thread::sleep(LOOK_EVERY);
    };
    Ok(Ended { status, stdout: text(&mut stdout)?, stderr: text(&mut stderr)? })
}

/// Kills it. Its end is waited for apart: the kernel may hold it in the middle of a call.
fn give_up(mut child: Child) {
    // It may have ended in this moment.
    let _ = child.kill();
    std::thread::spawn(move || child.wait());
}

fn file() -> anyhow::Result<File> {
    tempfile::tempfile().context("cannot make a temporary file")
}

fn copy(file: &File) -> anyhow::Result<File> {
    file.try_clone().context("a temporary file")
}

fn text(file: &mut File) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("a temporary file")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// The command line, for people.
fn words(command: &Command) -> String {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    let words: Vec<String> = std::iter::once(name(command)).chain(arguments).collect();
    format!("`{}`", words.join(" "))
}

/// Where Debian has a program; empty if that is not known.
fn package(command: &Command) -> String {
    let package = match &name(command)[..] {
        "ip" | "tc" => "iproute2",
        "nft" => "nftables",
        "mount" | "umount" => "mount",
        "fsfreeze" | "prlimit" | "unshare" => "util-linux",
        "mkfs.ext4" | "e2fsck" => "e2fsprogs",
        _ => return String::new(),
    };
    format!(" (Debian: apt install {package})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_reads_what_it_is_given_and_its_output_is_read_whole() {
        let long = "a line of a table\n".repeat(20_000);
        assert_eq!(output_of(&mut Command::new("cat"), &long, TIME_MAX).unwrap(), long);
        assert_eq!(output(&mut Command::new("cat")).unwrap(), "");
    }

    #[test]
    fn a_failure_says_what_was_run_and_what_it_said() {
        let error = output(&mut shell("echo no such device >&2; exit 3")).unwrap_err().to_string();
        assert_eq!(error, "`sh -c echo no such device >&2; exit 3`: no such device");
        let missing = output(&mut Command::new("no-such-program-here")).unwrap_err().to_string();
        assert_eq!(missing, "there is no program no-such-program-here");
        let ended = run(&mut shell("exit 3"), "", TIME_MAX).unwrap();
        assert_eq!(ended.status.code(), Some(3));
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_after_its_time() {
        let began = Instant::now();
        let time_max = Duration::from_millis(200);
        let error = output_of(&mut shell("exec sleep 60"), "", time_max).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exec sleep 60` did not end within 200ms, and was killed");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
