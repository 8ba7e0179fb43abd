//! The first step of a call, in the task that makes it: calls reach the client in the order in
//! which they are begun.

use futures::FutureExt;
use futures::future::BoxFuture;

/// A call after its first step.
pub enum Begun<T> {
    /// It is over already.
    Done(T),
    /// The rest of it.
    UnderWay(BoxFuture<'static, T>),
}

/// Polls a call once. Tokio makes a task that has done much yield at its next step: a call that
/// is begun after this one could come first then, so this step is not counted.
pub fn begin<T>(mut call: BoxFuture<'static, T>) -> Begun<T> {
    match tokio::task::coop::unconstrained(call.as_mut()).now_or_never() {
        Some(done) => Begun::Done(done),
        None => Begun::UnderWay(call),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    #[tokio::test]
    async fn a_call_begins_also_in_a_task_that_has_done_much() {
        let room = Semaphore::new(1);
        let is_to_yield = || room.acquire().now_or_never().is_none();
        assert!((0..10_000).any(|_| is_to_yield()), "tokio counts what a task does at a time");
        let (answer, answered) = oneshot::channel();
        answer.send(7).unwrap();
        let Begun::Done(heard) = begin(answered.boxed()) else { panic!("it was not begun") };
        assert_eq!(heard, Ok(7));
    }

    #[tokio::test]
    async fn the_rest_of_a_call_goes_on() {
        let (answer, answered) = oneshot::channel();
        let Begun::UnderWay(call) = begin(answered.boxed()) else { panic!("nobody has answered") };
        answer.send(7).unwrap();
        assert_eq!(call.await, Ok(7));
    }
}
