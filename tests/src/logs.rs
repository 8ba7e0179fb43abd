//! Logs of children: shown when a test fails, searched when it does not.

use std::path::{Path, PathBuf};

/// Lines of each log that a failing test shows.
const TAIL_LINES: usize = 60;

/// The logs of one test. When dropped they are shown if the test fails, and fail the test
/// if they hold an unexpected error.
#[derive(Debug, Default)]
pub struct Logs {
    files: Vec<PathBuf>,
    expected: Vec<String>,
}

impl Logs {
    /// Adds a file, once.
    pub fn add(&mut self, file: PathBuf) {
        if !self.files.contains(&file) {
            self.files.push(file);
        }
    }

    /// The test expects an error whose line contains `text`.
    pub fn expect(&mut self, text: &str) {
        self.expected.push(text.to_owned());
    }

    /// Lines of errors and panics that the test does not expect.
    fn unexpected(&self) -> Vec<String> {
        let mut found = Vec::new();
        for file in &self.files {
            for line in read(file).lines() {
                let bad = line.contains(" ERROR ")
                    || line.contains("\"level\":\"ERROR\"")
                    || line.contains("panicked at");
                if bad && !self.expected.iter().any(|text| line.contains(text)) {
                    found.push(format!("{}: {line}", file.display()));
                }
            }
        }
        found
    }

    fn show(&self) {
        for file in &self.files {
            let text = read(file);
            let lines: Vec<&str> = text.lines().collect();
            let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
            eprintln!("---- the end of {} ({} lines)", file.display(), lines.len());
            for line in tail {
                eprintln!("{line}");
            }
        }
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.show();
        }
        let unexpected = self.unexpected();
        if !unexpected.is_empty() {
            self.show();
            panic!("errors in the logs that the test does not expect:\n{}", unexpected.join("\n"));
        }
    }
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(line: &str) -> (Logs, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log");
        std::fs::write(&file, format!("all is well\n{line}\n")).unwrap();
        (Logs { files: vec![file], expected: vec![] }, folder)
    }

    #[test]
    fn errors_and_panics_are_found_unless_expected() {
        for line in ["2026 ERROR it broke", "{\"level\":\"ERROR\"}", "thread 'x' panicked at y"] {
            let (mut logs, _folder) = with(line);
            assert_eq!(logs.unexpected().len(), 1, "{line}");
            logs.expect(&line[..8]);
            assert!(logs.unexpected().is_empty());
        }
        let (logs, _folder) = with("2026 INFO no ERRORS");
        assert!(logs.unexpected().is_empty());
    }

    #[test]
    #[should_panic(expected = "it broke")]
    fn a_test_with_an_unexpected_error_fails() {
        let (logs, folder) = with("2026 ERROR it broke");
        drop(logs);
        drop(folder);
    }
}
