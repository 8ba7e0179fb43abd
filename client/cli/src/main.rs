//! The `holdfast` command; its front page is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast_cli::run(std::env::args_os(), &|name| std::env::var_os(name), std::env::vars_os())
}
