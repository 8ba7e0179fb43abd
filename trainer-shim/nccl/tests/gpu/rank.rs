//! One rank: carries out its commands line by line, and answers each with a line.
//! It never waits for a peer for longer than its command says, so that it can be
//! aborted at any time.

use std::io::BufRead as _;
use std::path::Path;
use std::str::{FromStr, SplitWhitespace};
use std::time::{Duration, Instant};

use holdfast_nccl::{
    Buffer, Communicator, Device, Membership, Nccl, Reduction, State, Stream, UniqueId, group,
};

use crate::rank_processes::ANSWER;
use crate::support::Counts;

/// Between two looks at what NCCL and the device can only be asked for.
const LOOK_EVERY: Duration = Duration::from_millis(1);

type Answer = Result<String, Box<dyn std::error::Error>>;

struct Rank {
    nccl: Nccl,
    device: Device,
    stream: Stream,
    rank: u32,
    ranks: u32,
    communicators: Vec<Communicator>,
    /// One buffer of each communicator.
    buffers: Vec<Buffer<f32>>,
}

/// Until its input ends. The library is the second argument.
pub fn serve() {
    let library = std::env::args_os().nth(2).expect("the library");
    let mut rank = match Rank::open(Path::new(&library)) {
        Ok(rank) => rank,
        Err(error) => return println!("{ANSWER}failed: {error}"),
    };
    println!("{ANSWER}open");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("text");
        match rank.obey(&line) {
            Ok(answer) => println!("{ANSWER}{answer}"),
            Err(error) => println!("{ANSWER}failed: {error}"),
        }
    }
}

impl Rank {
    fn open(library: &Path) -> Result<Rank, Box<dyn std::error::Error>> {
        let nccl = Nccl::load(Some(library))?;
        let device = Device::open(0)?;
        let stream = device.stream()?;
        let (communicators, buffers) = (Vec::new(), Vec::new());
        Ok(Rank { nccl, device, stream, rank: 0, ranks: 0, communicators, buffers })
    }

    fn obey(&mut self, line: &str) -> Answer {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            "init" => self.init(&mut words),
            "wait" => self.wait(next(&mut words)?),
            "reduce" => self.reduce(next(&mut words)?),
            "broadcast" => self.broadcast(next(&mut words)?, next(&mut words)?),
            "pending" => self.pending(next(&mut words)?),
            "values" => self.values(),
            "revoke" => {
                self.communicators.iter_mut().try_for_each(Communicator::revoke)?;
                Ok("revoked".to_owned())
            }
            "abort" => self.abort(),
            "finalize" => {
                self.communicators.iter_mut().try_for_each(Communicator::finalize)?;
                Ok("finalizing".to_owned())
            }
            "destroy" => {
                self.buffers.clear();
                self.communicators.drain(..).try_for_each(Communicator::destroy)?;
                Ok("destroyed".to_owned())
            }
            "can" => {
                let can = self.nccl.capabilities();
                Ok(format!("revoke={} shrink={}", can.revoke, can.shrink))
            }
            "counts" => {
                let Counts { threads, descriptors, .. } = Counts::now();
                Ok(format!("{threads} {descriptors} {}", self.device.free_bytes()?))
            }
            other => Err(format!("{other:?} is no command").into()),
        }
    }

    /// `init ID RANKS RANK GENERATION`
    fn init(&mut self, words: &mut SplitWhitespace<'_>) -> Answer {
        let id = words.next().and_then(UniqueId::from_hex).ok_or("no id")?;
        (self.ranks, self.rank) = (next(words)?, next(words)?);
        let membership = Membership {
            group: "gpu",
            generation: next(words)?,
            ranks: self.ranks,
            rank: self.rank,
        };
        let communicator =
            Communicator::begin_init(&self.nccl, Some(&self.device), &id, membership)?;
        self.communicators.push(communicator);
        Ok("begun".to_owned())
    }

    /// `wait MS`: until all are ready, or one has failed.
    fn wait(&mut self, ms: u64) -> Answer {
        let deadline = Instant::now() + Duration::from_millis(ms);
        loop {
            let mut ready = true;
            for communicator in &mut self.communicators {
                match communicator.state()? {
                    State::Ready => {}
                    State::InProgress => ready = false,
                    State::Failed(failure) => return Err(failure.into()),
                }
            }
            if ready {
                return Ok("ready".to_owned());
            }
            if Instant::now() >= deadline {
                return Ok("in progress".to_owned());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// `reduce COUNT`: on all communicators, in a group if there are several.
    fn reduce(&mut self, count: usize) -> Answer {
        self.fill(count)?;
        let (buffers, sum) = (&self.buffers, Reduction::Sum);
        match self.communicators.as_mut_slice() {
            [one] => one.all_reduce(&buffers[0], sum)?,
            several => {
                let mut all: Vec<&mut Communicator> = several.iter_mut().collect();
                group(&mut all, |group| {
                    (0..)
                        .zip(buffers)
                        .try_for_each(|(at, buffer)| group.all_reduce(at, buffer, sum))
                })?;
            }
        }
        Ok("begun".to_owned())
    }

    /// `broadcast COUNT ROOT`: on all communicators, one after the other.
    fn broadcast(&mut self, count: usize, root: u32) -> Answer {
        self.fill(count)?;
        for (communicator, buffer) in self.communicators.iter_mut().zip(&self.buffers) {
            communicator.broadcast(buffer, root)?;
        }
        Ok("begun".to_owned())
    }

    /// Buffers with the number of the rank, counted from 1.
    fn fill(&mut self, count: usize) -> Result<(), Box<dyn std::error::Error>> {
        let values = vec![(self.rank + 1) as f32; count];
        self.buffers.clear();
        for _ in &self.communicators {
            self.buffers.push(self.stream.buffer(&values)?);
        }
        Ok(())
    }

    /// `pending MS`: until nothing is.
    fn pending(&mut self, ms: u64) -> Answer {
        let deadline = Instant::now() + Duration::from_millis(ms);
        loop {
            let mut pending = 0;
            for communicator in &mut self.communicators {
                pending += communicator.pending()?;
            }
            if pending == 0 {
                return Ok("done".to_owned());
            }
            if Instant::now() >= deadline {
                return Ok("pending".to_owned());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// The value that all places of all buffers have.
    fn values(&mut self) -> Answer {
        let mut found = Vec::new();
        for buffer in &self.buffers {
            found.extend(buffer.values()?);
        }
        let first = *found.first().ok_or("there are no buffers")?;
        match found.iter().position(|value| *value != first) {
            None => Ok(first.to_string()),
            Some(at) => Err(format!("{first}, and {} at {at}", found[at]).into()),
        }
    }

    fn abort(&mut self) -> Answer {
        self.buffers.clear();
        let mut communicators = std::mem::take(&mut self.communicators);
        match communicators.pop() {
            Some(one) if communicators.is_empty() => one.abort()?,
            Some(last) => {
                communicators.push(last);
                Communicator::abort_all(communicators)?;
            }
            None => {}
        }
        Ok("aborted".to_owned())
    }
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, String> {
    words.next().and_then(|word| word.parse().ok()).ok_or_else(|| "a number is missing".to_owned())
}
