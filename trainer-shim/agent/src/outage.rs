//! Says that the store does not answer: soon, again with growing pauses, and when
//! it is over; in the log, and to the programs with the library.

use std::convert::Infallible;
use std::time::Duration;

use holdfast_client::{Client, Outage, Outages};
use tracing::{info, warn};

use crate::agent::Handle;

/// Result of `work`. While it lasts, logs that the store does not answer, and
/// what goes on `meanwhile`.
pub(crate) async fn during<T>(
    client: &Client,
    meanwhile: impl Fn() -> String,
    work: impl Future<Output = T>,
) -> T {
    let mut outages = Outages::new(client.clone());
    let mut work = std::pin::pin!(work);
    let done = loop {
        tokio::select! {
            biased;
            done = &mut work => break done,
            outage = outages.next() => log(&outage, &meanwhile),
        }
    };
    if let Some(over) = outages.over() {
        log(&over, &meanwhile);
    }
    done
}

/// Says so for as long as it is awaited. An operation of a trainer waits for at
/// most `held`.
pub(crate) async fn watch(client: Client, handle: Handle, held: Duration) -> Infallible {
    let mut outages = Outages::new(client);
    loop {
        let outage = outages.next().await;
        log(&outage, &|| waiting(handle.connections(), handle.processes().report().len(), held));
        handle.processes().tell_outage(match &outage {
            Outage::Lasts { cause, .. } => Some(cause.to_string()),
            Outage::Over { .. } => None,
        });
    }
}

fn log(outage: &Outage, meanwhile: &impl Fn() -> String) {
    match outage {
        Outage::Lasts { .. } => warn!("{outage}; {}", meanwhile()),
        Outage::Over { .. } => info!("{outage}"),
    }
}

fn waiting(connections: usize, processes: usize, held: Duration) -> String {
    match (connections, processes) {
        (0, 1) => return "1 process that has joined waits for it".to_owned(),
        (0, 2..) => return format!("{processes} processes that have joined wait for it"),
        _ => {}
    }
    let held = humantime::format_duration(Duration::from_secs(held.as_secs().max(1)));
    match connections {
        0 => "no trainer is connected".to_owned(),
        1 => format!("1 connection of a trainer is kept, and what it asks waits up to {held}"),
        n => format!("{n} connections of trainers are kept, and what they ask waits up to {held}"),
    }
}
