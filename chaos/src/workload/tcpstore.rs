//! Clients of TCPStore, as PyTorch's are: each with a connection of its own to an
//! agent, several agents in one run.
//!
//! A SET has no answer: the next answer on the same connection proves it done, and its
//! call ends there. A WAIT that is taken back proves nothing: an agent answers that at
//! once, since PyTorch's client waits for it without a limit. If the connection breaks
//! before an answer, the outcome of a SET is unknown. Another connection of the same host
//! sees it from the moment on at which its bytes were sent: PyTorch's `set()` returns
//! then, and its program may notify others.

use std::io;
use std::time::Duration;

use rand::RngExt;
use tokio::time::timeout;

use super::Workload;
use super::agents::AgentRun;
use super::client::{Shared, Site, Way, Worker};
use crate::cluster::tcpstore::Connection;
use crate::operation::{Action, Answer, Outcome};

/// Bound on a call: an agent holds it while there is no leader.
const CALL_TIME_MAX: Duration = Duration::from_secs(15);
/// Bound on a WAIT for a key that may never be set.
const WAIT_TIME_MAX: Duration = Duration::from_secs(1);
/// Between two tries to reach an agent that is down.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Most calls in a row without a pause; the pause after them is as much longer.
const BURST_MAX: u32 = 6;

/// A connection to one agent.
#[derive(Debug)]
pub struct Agent {
    /// Which agent, by the number of its client.
    client: usize,
    connection: Option<(Connection, AgentRun)>,
    /// Calls without an answer yet.
    unanswered: Vec<u64>,
    /// The key of the last SET.
    latest: Option<String>,
}

impl Way for Agent {
    fn class(_: Option<usize>) -> &'static str {
        "agent"
    }

    fn open(client: usize, _: Option<usize>, _: &Site, _: &Shared) -> Agent {
        Agent { client, connection: None, unanswered: Vec::new(), latest: None }
    }

    fn reopen(&mut self, _: usize, _: Option<usize>, _: &Site, _: &Shared) {
        self.connection = None;
    }

    fn is_gone(&self, _: &Shared) -> bool {
        false
    }

    async fn step(worker: &mut Worker<Agent>) -> anyhow::Result<()> {
        let burst = worker.random.random_range(1..=BURST_MAX);
        for _ in 0..burst {
            Box::pin(worker.one()).await?;
        }
        tokio::time::sleep(worker.site.pause * (burst - 1)).await;
        Ok(())
    }

    async fn last_look(worker: &mut Worker<Agent>, key: &str) -> anyhow::Result<()> {
        loop {
            if let Some(Outcome::Ok { .. }) = worker.ask(key, Action::Read).await? {
                return Ok(());
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn close(worker: &mut Worker<Agent>) -> anyhow::Result<()> {
        // Any answer proves that all before it is done.
        if let Some(key) = worker.door.latest.take()
            && !worker.door.unanswered.is_empty()
        {
            worker.ask(&key, Action::Read).await?;
        }
        worker.lose("the client ended")
    }
}

impl Worker<Agent> {
    async fn one(&mut self) -> anyhow::Result<()> {
        let (key, value) = self.next_key();
        let of_ten = self.random.random_range(0..10_u32);
        let action = match (self.workload, of_ten) {
            (Workload::TcpstoreCounter, 0..8) => Action::Add { delta: 1 },
            (Workload::TcpstoreCounter, _) | (_, 0..2) => Action::Read,
            (_, 2) => Action::Check,
            (_, 3) => Action::Wait,
            (_, 4) => Action::Delete,
            (_, 5) => return self.show(value).await,
            (_, 6..8) => {
                // Of several the last one stays.
                for _ in 0..self.random.random_range(0..4_u32) {
                    let first = self.shared.element();
                    self.set(&key, first).await?;
                }
                return self.set(&key, value).await;
            }
            _ => {
                let seen = self.ask(&key, Action::Read).await?;
                let Some(Outcome::Ok { answer: Answer::Value(seen), .. }) = seen else {
                    return Ok(());
                };
                Action::CompareAndSet { expected: seen.unwrap_or_default(), value }
            }
        };
        self.ask(&key, action).await?;
        Ok(())
    }

    /// Sends a SET. Its call is in progress until something is answered.
    async fn set(&mut self, key: &str, value: String) -> anyhow::Result<()> {
        if !self.connect().await {
            return Ok(());
        }
        let id = self.begin(key, Action::Write { value: value.clone() })?;
        self.door.unanswered.push(id);
        self.door.latest = Some(key.to_owned());
        let Some((store, agent_run)) = &mut self.door.connection else { return Ok(()) };
        let lost = match timeout(CALL_TIME_MAX, store.set(key, &value)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => {
                self.shared.agents.broke(agent_run, &self.description.name, &error);
                error.to_string()
            }
            Err(_) => format!("not sent within {CALL_TIME_MAX:?}"),
        };
        self.lose(&lost)
    }

    /// Sets a key on one connection, and reads it on another one of the same host: the
    /// key is new, so that no other client uses it.
    async fn show(&mut self, value: String) -> anyhow::Result<()> {
        if !self.connect().await {
            return Ok(());
        }
        let Some((mut store, agent_run)) = self.door.connection.take() else { return Ok(()) };
        let key = format!("shown/{value}");
        let showing = async {
            let mut other = Connection::open(&agent_run.address).await?;
            store.set(&key, &value).await?;
            let seen = other.get(&key).await?;
            // A set has no answer: written to an agent that was killed, it is lost unseen. No
            // other client changes the key.
            let kept = store.get(&key).await?;
            let seen = if seen == value { kept } else { seen };
            io::Result::Ok(Answer::Value((!seen.is_empty()).then_some(seen)))
        };
        let mut broken = None;
        let showing = async {
            match timeout(CALL_TIME_MAX, showing).await {
                Ok(Ok(answer)) => Outcome::Ok { answer, revision: None },
                Ok(Err(error)) => {
                    let why = error.to_string();
                    broken = Some(error);
                    Outcome::Unknown { why }
                }
                Err(_) => Outcome::Unknown { why: format!("no answer within {CALL_TIME_MAX:?}") },
            }
        };
        let action = Action::Show { value: value.clone() };
        let outcome = self.call(&key, action, showing).await?;
        if let Some(error) = &broken {
            self.shared.agents.broke(&agent_run, &self.description.name, error);
        }
        match outcome {
            Outcome::Unknown { why } => self.lose(&why),
            _ => {
                self.door.connection = Some((store, agent_run));
                Ok(())
            }
        }
    }

    /// Makes a call that is answered, if the agent can be reached.
    async fn ask(&mut self, key: &str, action: Action) -> anyhow::Result<Option<Outcome>> {
        if !self.connect().await {
            return Ok(None);
        }
        let Some((mut store, agent_run)) = self.door.connection.take() else { return Ok(None) };
        let asked = action.clone();
        let mut broken = None;
        let asking = async {
            match timeout(CALL_TIME_MAX, answer(&mut store, key, &asked)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => {
                    let why = error.to_string();
                    broken = Some(error);
                    Outcome::Unknown { why }
                }
                Err(_) => Outcome::Unknown { why: format!("no answer within {CALL_TIME_MAX:?}") },
            }
        };
        let outcome = self.call(key, action, asking).await?;
        if let Some(error) = &broken {
            self.shared.agents.broke(&agent_run, &self.description.name, error);
        }
        match &outcome {
            Outcome::Unknown { why } => self.lose(why)?,
            Outcome::Refused { .. } => self.door.connection = Some((store, agent_run)),
            Outcome::Ok { .. } => {
                self.settle(&Outcome::Ok { answer: Answer::Done, revision: None })?;
                self.door.connection = Some((store, agent_run));
            }
        }
        Ok(Some(outcome))
    }

    /// Connects to its agent, unless it is connected; answers whether it is now.
    async fn connect(&mut self) -> bool {
        if self.door.connection.is_some() {
            return true;
        }
        let agent_run = self.shared.agents.of(self.door.client);
        if let Some(agent_run) = agent_run
            && let Ok(Ok(store)) =
                timeout(CALL_TIME_MAX, Connection::open(&agent_run.address)).await
        {
            self.door.connection = Some((store, agent_run));
            return true;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
        false
    }

    /// The connection is over, and with it what was not answered.
    fn lose(&mut self, why: &str) -> anyhow::Result<()> {
        self.door.connection = None;
        self.settle(&Outcome::Unknown { why: why.to_owned() })
    }

    /// Ends all calls without an answer yet.
    fn settle(&mut self, outcome: &Outcome) -> anyhow::Result<()> {
        for id in std::mem::take(&mut self.door.unanswered) {
            self.end(id, outcome.clone())?;
        }
        Ok(())
    }
}

/// Asks the agent, and reads what it answers.
async fn answer(store: &mut Connection, key: &str, action: &Action) -> io::Result<Outcome> {
    let answer = match action {
        Action::Add { delta } => Answer::Sum(store.add(key, *delta).await?),
        Action::Check => Answer::Exists(store.check(key).await?),
        Action::Delete => Answer::Existed(store.delete(key).await?),
        Action::CompareAndSet { expected, value } => {
            swapped(expected, value, store.compare_set(key, expected, value).await?)
        }
        Action::Wait if !store.wait(key, WAIT_TIME_MAX).await? => {
            return Ok(Outcome::Refused { why: "the wait was taken back".to_owned() });
        }
        Action::Wait => Answer::Exists(true),
        _ => {
            let value = store.get(key).await?;
            // No client sets an empty value.
            Answer::Value((!value.is_empty()).then_some(value))
        }
    };
    Ok(Outcome::Ok { answer, revision: None })
}

/// Interprets the value that COMPARE_SET answers. Values are unique, so that no other
/// client has set the wanted one; an absent key is answered with what was expected.
fn swapped(expected: &str, wanted: &str, answer: String) -> Answer {
    match answer {
        answer if answer == wanted => Answer::Swapped { swapped: true, value: Some(answer) },
        answer if answer == expected && !expected.is_empty() => {
            Answer::Swapped { swapped: false, value: None }
        }
        answer => Answer::Swapped { swapped: false, value: Some(answer) },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::*;
    use crate::cluster::tcpstore::op;
    use crate::operation::Operation;
    use crate::recording::Recording;

    /// An agent that answers a GET with nothing, lets a WAIT be taken back, and closes the
    /// connection at an ADD.
    async fn serve(mut stream: TcpStream) -> io::Result<()> {
        let mut hello = [0; 10];
        stream.read_exact(&mut hello).await?;
        stream.write_all(&hello[6..]).await?;
        loop {
            let op = stream.read_u8().await?;
            if op == op::ADD {
                return Ok(());
            }
            if op == op::WAIT {
                stream.read_u64_le().await?;
            }
            let mut lengths = match op {
                op::SET => 2,
                op::CANCEL_WAIT => 0,
                _ => 1,
            };
            while lengths > 0 {
                let mut bytes = vec![0; stream.read_u64_le().await? as usize];
                stream.read_exact(&mut bytes).await?;
                lengths -= 1;
            }
            if op == op::GET {
                stream.write_u64_le(0).await?;
            }
            if op == op::CANCEL_WAIT {
                stream.write_u8(1).await?;
            }
        }
    }

    struct Scene {
        folder: tempfile::TempDir,
        shared: Arc<Shared>,
        worker: Worker<Agent>,
        _agent: JoinSet<()>,
    }

    impl Scene {
        async fn open() -> Scene {
            let folder = tempfile::tempdir().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let shared = Shared::new(folder.path(), None).unwrap();
            shared.agents.set(vec![listener.local_addr().unwrap().to_string()]);
            let site = Site {
                scope: holdfast_api::Scope { job: "j".parse().unwrap(), run: None },
                folder: folder.path().to_owned(),
                pause: Duration::ZERO,
                credentials: Default::default(),
                endpoints: Vec::new(),
                system: Default::default(),
            };
            let worker = Worker::new(Workload::Tcpstore, 0, None, &site, &shared, 1).unwrap();
            let mut agent = JoinSet::new();
            agent.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    // The test is about broken connections.
                    drop(serve(stream).await);
                }
            });
            Scene { folder, shared, worker, _agent: agent }
        }

        fn recorded(&self) -> Vec<Operation> {
            Recording::read(self.folder.path()).unwrap().operations
        }
    }

    #[tokio::test]
    async fn a_set_ends_with_the_next_answer_on_its_connection() {
        let mut scene = Scene::open().await;
        scene.worker.set("k", "a".to_owned()).await.unwrap();
        scene.worker.set("k", "b".to_owned()).await.unwrap();
        assert!(scene.recorded().iter().all(Operation::is_unknown));
        scene.worker.ask("k", Action::Read).await.unwrap();
        let recorded = scene.recorded();
        let read = recorded.last().unwrap();
        assert_eq!(read.answer(), Some(&Answer::Value(None)));
        for set in &recorded[..2] {
            assert_eq!(set.answer(), Some(&Answer::Done));
            assert!(set.returned >= read.returned, "{set:?} before {read:?}");
        }
    }

    #[tokio::test]
    async fn a_wait_that_is_taken_back_proves_no_set_done() {
        let mut scene = Scene::open().await;
        scene.worker.set("k", "a".to_owned()).await.unwrap();
        scene.worker.ask("other", Action::Wait).await.unwrap();
        let recorded = scene.recorded();
        assert_eq!(recorded[0].returned, None, "{recorded:?}");
        scene.worker.ask("k", Action::Read).await.unwrap();
        assert_eq!(scene.recorded()[0].answer(), Some(&Answer::Done));
    }

    #[tokio::test]
    async fn a_broken_connection_leaves_unknown_what_was_not_answered() {
        let mut scene = Scene::open().await;
        scene.worker.set("k", "a".to_owned()).await.unwrap();
        scene.worker.ask("k", Action::Add { delta: 1 }).await.unwrap();
        let recorded = scene.recorded();
        assert!(recorded.iter().all(|it| it.is_unknown() && it.returned.is_some()));
        // The agent had not been ended.
        let broken = scene.shared.agents.take_broken();
        assert!(broken[0].contains("agent 1 broke a connection of tcpstore-0"), "{broken:?}");

        scene.worker.ask("k", Action::Read).await.unwrap();
        scene.shared.agents.ends(0);
        scene.worker.ask("k", Action::Add { delta: 1 }).await.unwrap();
        assert_eq!(scene.shared.agents.take_broken(), [""; 0]);
        // No client connects to it while it is down.
        assert!(!scene.worker.connect().await);
        scene.shared.agents.are_back();
        assert!(scene.worker.connect().await);
    }

    #[test]
    fn what_a_compare_set_answers_tells_whether_the_key_was_there() {
        let no = |value: Option<&str>| {
            let value = value.map(str::to_owned);
            Answer::Swapped { swapped: false, value }
        };
        let set = Answer::Swapped { swapped: true, value: Some("b".to_owned()) };
        assert_eq!(swapped("a", "b", "b".to_owned()), set);
        assert_eq!(swapped("", "b", "b".to_owned()), set);
        assert_eq!(swapped("a", "b", "a".to_owned()), no(None));
        assert_eq!(swapped("a", "b", "c".to_owned()), no(Some("c")));
        assert_eq!(swapped("", "b", "c".to_owned()), no(Some("c")));
    }
}
