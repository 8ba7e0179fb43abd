//! A raw program at an agent's control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use holdfast_api::{
    Answer, Command, LeaseId, Problem, Proposal, Read as Question, ReplyBody, RequestBody, Scope,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long the agent may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A connection that was welcomed.
#[derive(Debug)]
pub struct RawLink {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    /// The agent's first message.
    pub welcome: Value,
}

/// A message of a program.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Sent {
    Ask { seq: u64, body: RequestBody },
}

/// A frame of the agent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Frame {
    Told { seq: u64, body: Box<ReplyBody> },
    ValidUntil {},
    Feed {},
    Over(Over),
}

/// A message of the agent that a test looks at.
#[derive(Debug)]
pub enum Heard {
    /// The answer to a command.
    Answer {
        /// Number of the call.
        seq: u64,
        /// What the store answered.
        answer: Answer,
    },
    /// A call that was refused.
    Problem {
        /// Number of the call.
        seq: u64,
        /// Why the call was refused.
        problem: Problem,
    },
    /// The answer to a question.
    ReadAnswer {
        /// Number of the call.
        seq: u64,
    },
    /// No message follows, for this reason.
    Over(Over),
}

/// Why no message follows.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The lease has ended.
    LeaseLost,
    /// The agent is about to end.
    Stopped,
    /// The connection's rules were broken.
    Refused {
        /// Which rule was broken, and what to do.
        reason: String,
    },
}

impl RawLink {
    /// Connects, and reads the welcome.
    pub fn open(control: &Path) -> io::Result<RawLink> {
        let mut link = RawLink::connect(control)?;
        link.welcome = link.say("{\"process\":{}}\n")?;
        Ok(link)
    }

    /// Connects, and sends nothing yet.
    pub fn connect(control: &Path) -> io::Result<RawLink> {
        let stream = UnixStream::connect(control)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(RawLink { reader, writer: stream, welcome: Value::Null })
    }

    /// Sends text, and reads a line. Answers to unread text can be read, too.
    pub fn say(&mut self, text: &str) -> io::Result<Value> {
        let sent = self.writer.write_all(text.as_bytes());
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        sent.or_else(|error| if line.is_empty() { Err(error) } else { Ok(()) })?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The lease of the welcome.
    pub fn lease(&self) -> LeaseId {
        LeaseId::deserialize(&self.welcome["welcome"]["lease"]).expect("a welcome names a lease")
    }

    /// The job and the run of the welcome.
    pub fn scope(&self) -> Scope {
        Scope::deserialize(&self.welcome["welcome"]["scope"]).expect("a welcome names a run")
    }

    /// Another handle of the same socket.
    pub fn stream(&self) -> io::Result<UnixStream> {
        self.writer.try_clone()
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    /// Sends a frame around these bytes.
    pub fn send_frame(&mut self, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).expect("tests send short frames");
        self.send_bytes(&[&length.to_le_bytes(), body].concat())
    }

    /// Proposes, and reads the result of this call.
    pub fn propose(&mut self, seq: u64, command: Command) -> io::Result<Heard> {
        self.begin(seq, RequestBody::Propose(Proposal { session: None, command }))?;
        self.hear()
    }

    /// Asks, and reads the result of this call.
    pub fn ask(&mut self, seq: u64, read: Question) -> io::Result<Heard> {
        self.begin(seq, RequestBody::Read { read, stale: false })?;
        self.hear()
    }

    /// Asks; what is answered is read later, or never.
    pub fn begin(&mut self, seq: u64, body: RequestBody) -> io::Result<()> {
        let body = rmp_serde::to_vec_named(&Sent::Ask { seq, body }).map_err(io::Error::other)?;
        self.send_frame(&body)
    }

    /// The next thing that is neither a renewal nor a decision.
    pub fn hear(&mut self) -> io::Result<Heard> {
        loop {
            let mut length = [0; 4];
            self.reader.read_exact(&mut length)?;
            let mut body = vec![0; u32::from_le_bytes(length) as usize];
            self.reader.read_exact(&mut body)?;
            match rmp_serde::from_slice(&body).map_err(io::Error::other)? {
                Frame::ValidUntil {} | Frame::Feed {} => {}
                Frame::Over(over) => return Ok(Heard::Over(over)),
                Frame::Told { seq, body } => match *body {
                    ReplyBody::Answer(answer) => return Ok(Heard::Answer { seq, answer }),
                    ReplyBody::Read(_) => return Ok(Heard::ReadAnswer { seq }),
                    ReplyBody::Problem(problem) => return Ok(Heard::Problem { seq, problem }),
                    other => panic!("nobody asked for this: {other:?}"),
                },
            }
        }
    }
}
