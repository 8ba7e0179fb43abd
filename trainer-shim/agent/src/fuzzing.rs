//! Opens decoders of the agent to the fuzz targets in `tests/fuzz`.

use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::diagnosis;
use crate::door::tcpstore::attempt::variables::Variables;
use crate::keeper::journal::{self, Journal};
use crate::keeper::ledger::SessionLedger;
use crate::keeper::link::{About, KeptSocket};
use crate::keeper::recorder::Recorder;
use crate::keeper::state::{Notes, State};
use crate::keeper::wire::{ToAgent, ToKeeper};
use crate::process;

/// Opens a journal in memory with these pieces, each at its place. What is read of it must be
/// read again after it was rewritten.
pub fn keeper_memory(pieces: &[(u64, &[u8])]) {
    let memory = journal::memory("fuzz").expect("there is memory");
    let file = File::from(memory.try_clone().expect("there are descriptors"));
    for (at, bytes) in pieces {
        file.write_all_at(bytes, *at).expect("there is memory");
    }
    let Ok((mut journal, records)) = Journal::open(memory.try_clone().expect("as above")) else {
        return;
    };
    let kept = records.iter().map(|record| (record.kind, &record.bytes[..]));
    journal.rewrite(kept).expect("there is memory");
    let (_, again) = Journal::open(memory).expect("it was just written");
    assert_eq!(again, records);
}

/// Opens a journal with these records as all that it may be of: a session, an agent's state, a
/// connection.
pub fn keeper_records(records: &[(u8, &[u8])]) {
    let memory = || {
        let memory = journal::memory("fuzz").expect("there is memory");
        let copy = memory.try_clone().expect("there are descriptors");
        let (mut journal, _) = Journal::open(copy).expect("it is empty");
        records.iter().for_each(|(kind, bytes)| journal.push(*kind, bytes));
        journal.commit().expect("there is memory");
        memory
    };
    let session = memory();
    let copy = session.try_clone().expect("there are descriptors");
    let (_, resumed) = SessionLedger::open(copy).expect("a journal");
    let (_, again) = SessionLedger::open(session).expect("a journal");
    assert_eq!(again, resumed, "to open a session changes it");
    let (notes, state) = Notes::open(memory()).expect("a journal");
    assert!(state.is_none() || notes.is_whole());
    // Of a connection, one strange record is an error.
    let _ = Recorder::open(KeptSocket::unheard(1), memory());
}

/// Reads messages of agent and keeper, and what is noted in them.
pub fn keeper_messages(text: &[u8]) {
    json::<ToAgent>(text);
    json::<ToKeeper>(text);
    json::<About>(text);
    json::<State>(text);
    json::<crate::stores::record::Record>(text);
}

/// Reads JSON. What is read must be read again as it is written.
fn json<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(text: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(text) {
        let written = serde_json::to_vec(&value).expect("what was read can be written");
        let again: T = serde_json::from_slice(&written).expect("it was just written");
        assert_eq!(again, value);
    }
}

/// Reads what the kernel says: tables of sockets, variables of a process, a socket's numbers.
pub fn kernel(bytes: &[u8]) {
    process::read_table(bytes, &mut HashMap::new());
    let address = SocketAddr::from(([127, 0, 0, 1], 29_500));
    let variables = Variables(bytes.to_vec());
    variables.say();
    variables.say_of_rank();
    variables.are_whole();
    let _ = diagnosis::found(bytes, address, address);
}
