//! Signals that ask a run to end: the first one in good order, the second one at once.
//! Once nothing listens any more, each one ends the program.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Exit code of a program that was ended before it had a verdict.
const EXIT_CODE: i32 = 2;

/// The signals that have come, and those that come.
#[derive(Debug)]
pub(super) struct Signals {
    coming: mpsc::UnboundedReceiver<&'static str>,
    first: Option<&'static str>,
    is_second: bool,
}

impl Signals {
    /// Listens, on a thread of its own: it continues while the history is judged after the run.
    pub(super) fn listen() -> anyhow::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let sources = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = sources.map(signal);
        let sources = [interrupt?, terminate?, hangup?];
        drop(guard);
        let (sender, coming) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(tell(sources, &sender));
        })?;
        Ok(Signals { coming, first: None, is_second: false })
    }

    /// The one that asked for an end.
    pub(super) fn first(&self) -> Option<&'static str> {
        self.first
    }

    /// Whether another signal came after it: everything ends at once.
    pub(super) fn is_second(&self) -> bool {
        self.is_second
    }

    /// Goes on until the next signal; none if that came first.
    pub(super) async fn until_next<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = step => Some(done),
            () = self.note() => None,
        }
    }

    /// Goes on until the second signal; none if that came first.
    pub(super) async fn until_second<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        let mut step = std::pin::pin!(step);
        loop {
            let done = self.until_next(step.as_mut()).await;
            if done.is_some() || self.is_second {
                return done;
            }
        }
    }

    async fn note(&mut self) {
        match self.coming.recv().await {
            Some(name) if self.first.is_none() => self.first = Some(name),
            Some(_) => self.is_second = true,
            None => std::future::pending().await,
        }
    }
}

/// Ends the program at once.
pub(super) fn exit() -> ! {
    std::process::exit(EXIT_CODE)
}

async fn tell(sources: [Signal; 3], sender: &mpsc::UnboundedSender<&'static str>) {
    let [mut interrupt, mut terminate, mut hangup] = sources;
    loop {
        let name = tokio::select! {
            Some(()) = interrupt.recv() => "Ctrl-C",
            Some(()) = terminate.recv() => "SIGTERM",
            Some(()) = hangup.recv() => "SIGHUP",
            else => return,
        };
        if sender.send(name).is_err() {
            eprintln!("ended by {name}");
            exit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(names: &[&'static str]) -> Signals {
        let (sender, coming) = mpsc::unbounded_channel();
        for name in names {
            sender.send(*name).unwrap();
        }
        Signals { coming, first: None, is_second: false }
    }

    #[tokio::test]
    async fn the_first_signal_ends_what_may_be_ended_and_the_second_everything() {
        let mut signals = signals(&["Ctrl-C", "SIGHUP"]);
        let step = || std::future::pending::<()>();
        assert_eq!(signals.until_next(step()).await, None);
        assert_eq!((signals.first(), signals.is_second()), (Some("Ctrl-C"), false));
        assert_eq!(signals.until_second(step()).await, None);
        assert_eq!((signals.first(), signals.is_second()), (Some("Ctrl-C"), true));
    }

    #[tokio::test]
    async fn one_signal_does_not_end_what_heals() {
        let mut signals = signals(&["SIGHUP"]);
        let step = async { tokio::task::yield_now().await };
        assert_eq!(signals.until_second(step).await, Some(()));
        assert!(!signals.is_second());
    }
}
