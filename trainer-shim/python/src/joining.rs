//! The arguments of a join: where the process is to be attached, and how it
//! registers there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_api::name::{RUN_AUTO, RUN_NEW, default_name};
use holdfast_api::{Name, Policy, Role, Scope};
use holdfast_client::{Options, TlsFiles, parse_endpoints};
use holdfast_trainer_shim::{Hook, HostOptions, Join, Wanted, Watchdog};
use pyo3::prelude::*;

use crate::arguments::{limit, milliseconds, refused, seconds, steps};
use crate::attachment::Place;
use crate::error;

/// A join, all of it checked by Python's own signature on the other side.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Joining {
    /// The agent's control socket; `None` for a lease of its own.
    control: Option<PathBuf>,
    store: String,
    token_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    job: Option<String>,
    run: Option<String>,
    host: String,
    ttl: f64,
    patience: f64,
    process: Option<u32>,
    standby: bool,
    labels: BTreeMap<String, String>,
    policy: Numbers,
    takeover: bool,
    open_run: bool,
    heartbeat: f64,
    soft_timeout: Option<f64>,
    hard_timeout: Option<f64>,
    grace: f64,
    main_thread_timeout: Option<f64>,
    on_silence: Option<Py<PyAny>>,
}

/// The numbers that a process gives when it joins.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Numbers {
    world: u32,
    members_min: u32,
    last_call: f64,
    assignment: String,
    active_min: u32,
    restarts_max: u32,
    restarts_window: Option<f64>,
}

impl Joining {
    /// Where the process is to be attached, and how it registers.
    pub fn plan(self, py: Python<'_>) -> PyResult<(Place, Join)> {
        let name = |what: &'static str| {
            move |text: &str| text.parse::<Name>().map_err(|error| refused(py, what, &error))
        };
        let job = self.job.as_deref().map(name("job")).transpose()?;
        let run = self.run.as_deref().map(name("run")).transpose()?;
        if let Some(word) = run.as_ref().filter(|run| [RUN_AUTO, RUN_NEW].contains(&run.as_str())) {
            let text = format!(
                "run {word}: that stands for a run with `holdfast-agent run`; start this program \
                 under it, or name the run"
            );
            return Err(error::invalid(py, &text));
        }
        let patience = seconds(py, self.patience)?;
        let host = HostOptions {
            host: self.host,
            ttl: seconds(py, self.ttl)?,
            patience,
            // Without a name the job's open run is meant.
            open_run: self.open_run && run.is_some(),
        };
        let limit_ms = |timeout: Option<f64>| Ok::<_, PyErr>(limit(py, timeout)?.map(milliseconds));
        let watchdog = Watchdog {
            heartbeat_ms: milliseconds(seconds(py, self.heartbeat)?),
            soft_ms: limit_ms(self.soft_timeout)?,
            hard_ms: limit_ms(self.hard_timeout)?,
            grace_ms: milliseconds(seconds(py, self.grace)?),
            main_thread_ms: limit_ms(self.main_thread_timeout)?,
        };
        let join = Join {
            process: self.process,
            role: if self.standby { Role::Standby } else { Role::Active },
            labels: self.labels,
            policy: self.policy.policy(py)?,
            takeover: self.takeover,
            patience: None,
            watchdog,
            on_silence: self.on_silence.map(hook),
            main_thread: None,
        };
        let place = match self.control {
            Some(control) => {
                let meant = Wanted { job, run, ..Wanted::default() };
                Place::Agent { control, meant, patience }
            }
            None => {
                let endpoints =
                    parse_endpoints(&self.store).map_err(|e| refused(py, "store", &e))?;
                let files = TlsFiles { ca: self.tls_ca, cert: self.tls_cert, key: self.tls_key };
                let tls = files.read().map_err(|error| error::invalid(py, &error.to_string()))?;
                let token_file = self.token_file;
                let options = Options { token_file, tls, ..Options::new(endpoints) };
                let scope = Scope { job: job.unwrap_or_else(default_name), run };
                Place::Own { options: Box::new(options), scope, host }
            }
        };
        Ok((place, join))
    }
}

impl Numbers {
    fn policy(self, py: Python<'_>) -> PyResult<Policy> {
        let Numbers {
            world,
            members_min,
            last_call,
            assignment,
            active_min,
            restarts_max,
            restarts_window,
        } = self;
        let window = limit(py, restarts_window)?;
        Ok(Policy {
            world,
            members_min,
            last_call_ms: milliseconds(seconds(py, last_call)?),
            assignment: steps(py, &assignment)?,
            active_min,
            restarts_max,
            restarts_window_ms: window.map_or(0, |window| milliseconds(window).max(1)),
        })
    }
}

/// Calls a function of Python's with the seconds of silence, and those until the
/// end begins. An exception in it is shown as of a finalizer: it has no caller.
fn hook(call: Py<PyAny>) -> Hook {
    Hook::new(move |silence| {
        let seconds = |ms: u64| Duration::from_millis(ms).as_secs_f64();
        let (silent, ends_in) = (seconds(silence.silent_ms), silence.ends_in_ms.map(seconds));
        Python::attach(|py| {
            if let Err(error) = call.call1(py, (silent, ends_in)) {
                error.write_unraisable(py, Some(call.bind(py)));
            }
        });
    })
}
