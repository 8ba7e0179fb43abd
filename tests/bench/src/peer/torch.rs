//! PyTorch's own TCPStore server.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::agent::wait_for_door;
use crate::arguments::Bench;
use crate::child::{Child, free_ports};

/// Holds the server until it is killed.
const PROGRAM: &str = "\
import sys, threading
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False)
threading.Event().wait()
";

/// The server in a Python process of its own.
#[derive(Debug)]
pub struct Torch {
    /// Python as a child process.
    pub child: Child,
    /// Where TCPStore clients connect.
    pub address: String,
}

impl Torch {
    /// Starts it, if there is a Python that has torch.
    pub async fn start(bench: &Bench, folder: &Path) -> anyhow::Result<Option<Torch>> {
        if !Torch::is_importable(bench).await {
            return Ok(None);
        }
        let port = free_ports(1)?[0];
        let address = format!("127.0.0.1:{port}");
        let arguments = ["-c", PROGRAM, &port.to_string()];
        let mut child = Child::start("torch", &bench.python, arguments, folder)?;
        wait_for_door(&address, &mut child).await?;
        Ok(Some(Torch { child, address }))
    }

    /// Whether the Python that is named has torch.
    pub async fn is_importable(bench: &Bench) -> bool {
        let importable = Command::new(&bench.python)
            .args(["-c", "from torch.distributed import TCPStore"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await;
        importable.is_ok_and(|status| status.success())
    }

    /// Says why it is not compared with.
    pub fn missing(bench: &Bench) -> String {
        format!("PyTorch's server: not compared, {} cannot import torch.", bench.python.display())
    }
}
