//! Whether enough voters answer. Any node knows, with or without a quorum.

use std::convert::Infallible;
use std::time::Duration;

use holdfast_api::Majority;
use holdfast_client::{Client, Deadline, Outages};

use crate::commands::Context;

/// Longest time for a node to answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

/// Why nothing is written, if that is because too few voters answer; none if
/// enough do, or no node answers.
pub(crate) async fn ask(client: &Client) -> Option<String> {
    node_answer(client).await?.lost_in_words()
}

/// A node's answer; none if none answers.
async fn node_answer(client: &Client) -> Option<Majority> {
    client.status(Deadline::after(ASK_TIME_MAX)).await.ok()?.majority
}

/// Reports that the store does not answer while a command goes on, again with
/// growing pauses, and when it is over: a wait or a watch must not be taken for
/// quiet.
pub(crate) async fn tell_while_lost(context: &Context) -> Infallible {
    let mut outages = Outages::new(context.client.clone());
    loop {
        context.talk(outages.next().await);
    }
}
