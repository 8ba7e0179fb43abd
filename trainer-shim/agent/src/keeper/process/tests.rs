use std::net::{TcpListener, TcpStream};

use super::*;

/// Whether all of these in a row, each before it was up, are too much.
fn are_too_much(waits: &[i32]) -> bool {
    let mut lost = Lost::default();
    waits.iter().any(|wait| lost.is_too_much(ExitStatus::from_raw(*wait), false))
}

#[test]
fn what_is_kept_is_given_up_after_few_defects_or_many_kills() {
    let (kill, abort) = (Signal::SIGKILL as i32, Signal::SIGABRT as i32);
    assert!(!are_too_much(&[kill; KILLS_MAX as usize - 1]));
    assert!(are_too_much(&[kill; KILLS_MAX as usize]));
    assert!(!are_too_much(&[abort; DEATHS_MAX as usize - 1]));
    assert!(are_too_much(&[abort; DEATHS_MAX as usize]));
    let mut lost = Lost::default();
    for was_up in [false, false, false, false, true, false, false, false, false] {
        assert!(!lost.is_too_much(ExitStatus::from_raw(abort), was_up), "one was up");
    }
}

/// Starts agents that end at once.
#[derive(Default)]
struct Brief {
    said: Vec<Said>,
}

impl Start for Brief {
    fn command(&mut self, _: bool) -> Command {
        Command::new("true")
    }

    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn is_ended_by(&self, _: i32, _: bool) -> bool {
        false
    }

    fn say(&mut self, said: Said) {
        self.said.push(said);
    }
}

/// A keeper with connection 7, an agent, and that one's end of their socket.
fn keeper() -> (Keeper<Brief>, Agent, OwnedFd) {
    let mut keeper = Keeper::new(Brief::default(), &[], 100, None).unwrap();
    let [socket, memory] = [(); 2].map(|()| memory("test").unwrap());
    keeper.connections.insert(7, Connection { socket, memory, listener: 0 });
    let mut agent = keeper.begin(false).unwrap();
    agent.child.wait().unwrap();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, other) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    agent.socket = Some(own);
    (keeper, agent, other)
}

#[test]
fn the_last_messages_of_an_agent_that_read_no_more_are_heard() {
    let (mut keeper, mut agent, other) = keeper();
    wire::send(agent.socket.as_ref().unwrap(), &ToAgent::Ready, &[]).unwrap();
    wire::send(&other, &ToKeeper::Close { id: 7 }, &[]).unwrap();
    // Its end is first seen as a reset.
    drop(other);
    keeper.hear(&mut agent);
    assert!(keeper.connections.is_empty());
    assert!(agent.socket.is_none());
}

#[test]
fn a_message_that_only_newer_keepers_know_is_ignored() {
    let (mut keeper, mut agent, other) = keeper();
    wire::send(&other, &"Unheard", &[]).unwrap();
    wire::send(&other, &ToKeeper::Close { id: 7 }, &[]).unwrap();
    keeper.hear(&mut agent);
    assert!(keeper.connections.is_empty());
    assert!(agent.socket.is_some());
    assert!(matches!(&keeper.start.said[..], [Said::NotUnderstood(_)]));
}

#[test]
fn a_connection_that_would_leave_no_descriptors_is_not_accepted_before_another_closes() {
    let (mut keeper, mut agent, _other) = keeper();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _clients = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    keeper
        .listeners
        .insert(9, Listener { socket: listener.into(), about: String::new(), accepts: true });
    (agent.is_ready, keeper.connections_max) = (true, 2);
    // It polls only listeners from which it accepts. The agent has ended: nothing is waited for.
    agent.waiting.clear();
    assert_eq!(keeper.wait(&agent).unwrap().listeners, [9]);
    keeper.accept(&mut agent, 9);
    assert_eq!(keeper.connections.len(), 2);
    assert!(keeper.wait(&agent).unwrap().listeners.is_empty());
    // Another port may have had one in the same turn.
    keeper.accept(&mut agent, 9);
    assert_eq!(keeper.connections.len(), 2);
    keeper.obey(&mut agent, ToKeeper::Close { id: 7 }, Vec::new());
    assert_eq!(keeper.wait(&agent).unwrap().listeners, [9]);
}
