//! `why --follow`: reports again whenever something happens.

use std::time::Duration;

use holdfast_api::{Code, Name, Problem};
use holdfast_client::{Error, EventsPage};
use tokio::time::{sleep, timeout};

use super::One;
use crate::commands::{Context, until_interrupted};
use crate::exit::Failure;
use crate::output::{self, Output};

/// Events that happen together are reported together: this long after the first one.
const TOGETHER: Duration = Duration::from_millis(300);
/// Arrivals are no events: the waits are looked at again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// Ends when it is interrupted, or when the run that was named is over.
pub(super) async fn run(context: &Context, job: &Name) -> Result<(), Failure> {
    until_interrupted(follow(context, job)).await
}

async fn follow(context: &Context, job: &Name) -> Result<(), Failure> {
    let mut one = One::look(context, job).await?;
    one.say(context)?;
    let mut events = context.client.events(job.clone(), one.why.revision).await?;
    while !is_over(context, &one) {
        let happened = match timeout(AGAIN, events.next()).await {
            Ok(page) => {
                check(page)?;
                sleep(TOGETHER).await;
                while let Ok(page) = timeout(Duration::ZERO, events.next()).await {
                    check(page)?;
                }
                true
            }
            Err(_) => false,
        };
        let was_idle = one.why.idle;
        one = look(context, job).await?;
        if happened || !(was_idle && one.why.idle) {
            if context.output() == Output::Table {
                output::print(b"\n")?;
            }
            one.say(context)?;
        }
    }
    Ok(())
}

/// An event only triggers a new look; an error ends it.
fn check(page: Option<Result<EventsPage, Error>>) -> Result<(), Failure> {
    match page {
        Some(page) => Ok(page.map(drop)?),
        None => {
            let message = "the events ended; start again";
            Err(Failure::refused(Problem::retryable(Code::Unavailable, message)))
        }
    }
}

/// Whether nothing more can be reported of the run that was named.
fn is_over(context: &Context, one: &One) -> bool {
    context.settings.run.value.is_some() && !one.why.open && one.why.idle
}

/// Looks as soon as the store answers.
async fn look(context: &Context, job: &Name) -> Result<One, Failure> {
    loop {
        match One::look(context, job).await {
            Err(Failure::Client(error)) if error.is_retryable() => {
                context.talk(format!("the store does not answer: {error}"));
                sleep(AGAIN).await;
            }
            looked => return looked,
        }
    }
}
