//! One rank: carries out its commands line by line, and answers each with a line.

use std::io::BufRead as _;
use std::path::PathBuf;
use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

use holdfast_nccl::Device;
use holdfast_trainer_shim::communicator::nccl::NcclBackend;
use holdfast_trainer_shim::communicator::{
    Backend, Buffer, Communicator, InitOptions, Reduction, UniqueId, Work,
};

use crate::minting;
use crate::rank_processes::ANSWER;
use crate::support::Counts;

type Answer = Result<String, Box<dyn std::error::Error>>;

struct Rank {
    backend: NcclBackend,
    communicator: Option<Box<dyn Communicator>>,
    /// The collective that was begun last.
    work: Option<Work<Buffer>>,
}

/// Until its input ends. The library is the second argument.
pub fn serve() {
    let library = PathBuf::from(std::env::args_os().nth(2).expect("the library"));
    let backend = NcclBackend::new(minting::options(library));
    let mut rank = Rank { backend, communicator: None, work: None };
    println!("{ANSWER}open");
    for line in std::io::stdin().lock().lines() {
        match rank.obey(&line.expect("text")) {
            Ok(answer) => println!("{ANSWER}{answer}"),
            Err(error) => println!("{ANSWER}failed: {error}"),
        }
    }
}

impl Rank {
    fn obey(&mut self, line: &str) -> Answer {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            "init" => self.init(&mut words),
            "wait" => {
                let joined = self.communicator()?.initialised();
                Ok(waited(joined, next(&mut words)?)?.map_or("in progress", |()| "ready").into())
            }
            "reduce" => {
                let data = self.data(next(&mut words)?)?;
                self.work = Some(self.communicator()?.all_reduce(data, Reduction::Sum));
                Ok("begun".to_owned())
            }
            "broadcast" => {
                let data = self.data(next(&mut words)?)?;
                self.work = Some(self.communicator()?.broadcast(data, next(&mut words)?));
                Ok("begun".to_owned())
            }
            "values" => self.values(next(&mut words)?),
            "barrier" => {
                let met = self.communicator()?.barrier();
                Ok(waited(met, next(&mut words)?)?.map_or("in progress", |()| "met").into())
            }
            "close" => {
                let closed = self.communicator()?.close();
                Ok(waited(closed, next(&mut words)?)?.map_or("in progress", |()| "closed").into())
            }
            "quiesce" => {
                self.communicator()?.quiesce();
                Ok("quiesced".to_owned())
            }
            "release" => {
                self.work = None;
                self.communicator.take().ok_or("there is none")?.release();
                Ok("released".to_owned())
            }
            "counts" => {
                let Counts { threads, descriptors, .. } = Counts::now();
                Ok(format!("{threads} {descriptors} {}", Device::open(0)?.free_bytes()?))
            }
            other => Err(format!("{other:?} is no command").into()),
        }
    }

    /// `init ID RANKS RANK GENERATION`
    fn init(&mut self, words: &mut SplitWhitespace<'_>) -> Answer {
        let id = words.next().and_then(holdfast_nccl::UniqueId::from_hex).ok_or("no id")?;
        let id = UniqueId::from_bytes(*id.as_bytes());
        let (nranks, rank, generation) = (next(words)?, next(words)?, next(words)?);
        let group = "gpu".to_owned();
        let options = InitOptions { group, generation, incarnation: 1, nranks, rank, id };
        self.communicator = Some(self.backend.begin_init(options)?);
        Ok("begun".to_owned())
    }

    fn communicator(&self) -> Result<&dyn Communicator, &'static str> {
        self.communicator.as_deref().ok_or("there is none")
    }

    /// The number of the rank, counted from 1, so often.
    fn data(&self, count: usize) -> Result<Buffer, &'static str> {
        let value = self.communicator()?.options().rank + 1;
        Ok(vec![f64::from(value); count].into())
    }

    /// `values MS`: the value that all places of the collective's result have.
    fn values(&mut self, ms: u64) -> Answer {
        let work = self.work.as_mut().ok_or("nothing was begun")?;
        let found = match work.wait_for(Duration::from_millis(ms)) {
            None => return Ok("in progress".to_owned()),
            Some(result) => result?,
        };
        let Buffer::F64(found) = found else { return Err("another type".into()) };
        let first = *found.first().ok_or("there are no values")?;
        match found.iter().position(|value| *value != first) {
            None => Ok(first.to_string()),
            Some(at) => Err(format!("{first}, and {} at {at}", found[at]).into()),
        }
    }
}

/// The result of work within so many milliseconds; `None` = nothing yet.
fn waited<T>(mut work: Work<T>, ms: u64) -> Result<Option<T>, Box<dyn std::error::Error>> {
    Ok(work.wait_for(Duration::from_millis(ms)).transpose()?)
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, String> {
    words.next().and_then(|word| word.parse().ok()).ok_or_else(|| "a number is missing".to_owned())
}
