//! What programs do while they send no calls to the store, from their processor
//! time in `/proc`.
//!
//! The store cannot see a hang in a collective or in user code. Visible from
//! outside is whether the main thread sleeps, spins or is stopped, and which rank
//! differs from the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use holdfast_api::{Activity, Doing};
use tokio::time::Instant;

/// Window over which processor time is reported.
const WINDOW: Duration = Duration::from_secs(10);
/// Most samples of one program: those of the window, and the one before it.
const SAMPLES_MAX: usize = 8;
/// A thread that uses more of the time is busy.
const BUSY_PERCENT: u128 = 90;
/// A thread that was running, or wanted to, in so many looks is busy, too.
const RUNNING_LOOKS_MIN: usize = 3;
/// A thread that uses no more of the time sleeps.
const ASLEEP_PERCENT: u128 = 2;
/// Most bytes read of one file; all of them are one line.
const FILE_BYTES_MAX: u64 = 4_096;
/// Longest name of a place in the kernel.
const PLACE_BYTES_MAX: usize = 64;
/// One tick of the processor times under `/proc`: `USER_HZ` is 100 wherever
/// PyTorch runs.
const TICK: Duration = Duration::from_millis(10);

/// State of a program in the kernel at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    /// Start of the program, in ticks since boot: distinguishes it from another
    /// program with the same pid.
    began: u64,
    /// The main thread's state: R, S, D, T and their like.
    state: char,
    main_cpu: Duration,
    cpu: Duration,
    place: Option<String>,
}

/// Looks at programs again and again.
#[derive(Debug, Default)]
pub struct Sampler {
    tracks: BTreeMap<u32, Track>,
}

#[derive(Debug)]
struct Track {
    looks: VecDeque<(Instant, Look)>,
    doing: Option<(Doing, Instant)>,
}

impl Sampler {
    /// Looks at these programs, and forgets the others. Blocks for some
    /// microseconds for each.
    pub fn look(&mut self, pids: &BTreeSet<u32>, now: Instant) {
        self.look_with(pids, now, |pid| look(Path::new("/proc"), pid));
    }

    fn look_with(
        &mut self,
        pids: &BTreeSet<u32>,
        now: Instant,
        look: impl Fn(u32) -> Option<Look>,
    ) {
        self.tracks.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            match look(*pid) {
                Some(look) => self.tracks.entry(*pid).or_insert_with(Track::new).add(look, now),
                None => drop(self.tracks.remove(pid)),
            }
        }
    }

    /// Activity of one program; `None` before two looks at it.
    pub fn activity(&self, pid: u32) -> Option<Activity> {
        self.tracks.get(&pid)?.activity()
    }
}

impl Track {
    fn new() -> Track {
        Track { looks: VecDeque::new(), doing: None }
    }

    fn add(&mut self, look: Look, now: Instant) {
        if self.looks.back().is_some_and(|(_, last)| last.began != look.began) {
            *self = Track::new();
        }
        self.looks.push_back((now, look));
        // The oldest look in the window stays, and what lies before it goes.
        while self.looks.len() > SAMPLES_MAX
            || self.looks.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW)
        {
            self.looks.pop_front();
        }
        let Some(doing) = self.does() else { return };
        match &self.doing {
            Some((same, _)) if *same == doing => {}
            _ => self.doing = Some((doing, self.looks.front().map_or(now, |(at, _)| *at))),
        }
    }

    fn ends(&self) -> Option<[&(Instant, Look); 2]> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        (first.0 < last.0).then_some([first, last])
    }

    fn does(&self) -> Option<Doing> {
        let [(from, first), (to, last)] = self.ends()?;
        let over = to.duration_since(*from).as_millis().max(1);
        let used = last.main_cpu.saturating_sub(first.main_cpu).as_millis();
        // On a host with too few cores one that wants to run all the time waits
        // for a core half of it.
        let runs = |(_, look): &(Instant, Look)| look.state == 'R';
        let always_runs = self.looks.len() >= RUNNING_LOOKS_MIN && self.looks.iter().all(runs);
        Some(match last.state {
            'T' | 't' => Doing::Stopped,
            _ if used * 100 >= over * BUSY_PERCENT || always_runs => Doing::Busy,
            _ if used * 100 > over * ASLEEP_PERCENT => Doing::Working,
            'D' => Doing::Blocked,
            _ => Doing::Sleeping,
        })
    }

    fn activity(&self) -> Option<Activity> {
        let [(from, first), (to, last)] = self.ends()?;
        let (main, since) = self.doing?;
        Some(Activity {
            main,
            place: last.place.clone(),
            for_ms: milliseconds(to.duration_since(since)),
            main_cpu_ms: milliseconds(last.main_cpu.saturating_sub(first.main_cpu)),
            cpu_ms: milliseconds(last.cpu.saturating_sub(first.cpu)),
            over_ms: milliseconds(to.duration_since(*from)),
        })
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn look(proc: &Path, pid: u32) -> Option<Look> {
    let process = proc.join(pid.to_string());
    let main = process.join("task").join(pid.to_string());
    let (_, all) = stat(&read(&process.join("stat")))?;
    let (state, thread) = stat(&read(&main.join("stat")))?;
    Some(Look {
        began: all.began,
        state,
        main_cpu: thread.cpu,
        cpu: all.cpu,
        place: place(&read(&main.join("wchan"))),
    })
}

struct Times {
    cpu: Duration,
    began: u64,
    exit_code: Option<i32>,
}

/// State and times of a line of `/proc/PID/stat`. The name in it may hold
/// anything, a bracket too.
fn stat(line: &str) -> Option<(char, Times)> {
    let (_, fields) = line.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The line's third field is the first here.
    let user: u32 = fields.nth(10)?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    let began = fields.nth(6)?.parse().ok()?;
    let exit_code = fields.nth(29).and_then(|code| code.parse().ok());
    Some((state, Times { cpu: TICK * user.saturating_add(system), began, exit_code }))
}

/// Wait status of a program that has ended but has not been waited for; `None` otherwise.
pub(crate) fn status_of_ended(pid: u32) -> Option<i32> {
    match stat(&read(&Path::new("/proc").join(pid.to_string()).join("stat")))? {
        ('Z', times) => times.exit_code,
        _ => None,
    }
}

fn place(name: &str) -> Option<String> {
    let name = name.trim();
    let known = !name.is_empty() && name != "0" && name.len() <= PLACE_BYTES_MAX;
    known.then(|| name.to_owned())
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    // An unreadable file counts as unknown.
    let _ = fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    fn at(state: char, main_ms: u64) -> Look {
        Look {
            began: 7,
            state,
            main_cpu: Duration::from_millis(main_ms),
            cpu: Duration::from_millis(2 * main_ms),
            place: None,
        }
    }

    /// Activity from looks two seconds apart.
    fn activity(looks: &[Look]) -> Option<Activity> {
        let (mut sampler, start) = (Sampler::default(), Instant::now());
        for (n, look) in (0_u32..).zip(looks) {
            sampler.look_with(&BTreeSet::from([1]), start + EVERY * n, |_| Some(look.clone()));
        }
        sampler.activity(1)
    }

    #[test]
    fn processor_time_tells_who_spins_who_works_and_who_sleeps() {
        let of = |state, each_ms: u64| {
            let looks: Vec<Look> = (0..4).map(|n| at(state, n * each_ms)).collect();
            activity(&looks).unwrap().main
        };
        assert_eq!(of('R', 2_000), Doing::Busy);
        assert_eq!(of('S', 1_900), Doing::Busy, "asleep in the moment of the look");
        assert_eq!(of('S', 800), Doing::Working);
        assert_eq!(of('R', 800), Doing::Busy, "it gets less than half of a core, and wants it all");
        assert_eq!(of('S', 10), Doing::Sleeping);
        assert_eq!(of('D', 0), Doing::Blocked);
        assert_eq!(of('T', 0), Doing::Stopped);
        assert_eq!(activity(&[at('S', 0)]), None, "one look tells no time");
    }

    #[test]
    fn it_is_told_over_the_last_ten_seconds_and_since_when() {
        // Busy for twenty seconds, then asleep for thirty.
        let busy = (0..10).map(|n| at('R', n * 2_000));
        let asleep = (0..16).map(|_| at('S', 18_000));
        let told = activity(&busy.chain(asleep).collect::<Vec<_>>()).unwrap();
        assert_eq!((told.main, told.cpu_ms, told.over_ms), (Doing::Sleeping, 0, 10_000));
        assert!(told.for_ms >= 20_000 && told.for_ms <= 32_000, "{told:?}");
    }

    #[test]
    fn another_program_with_the_same_number_begins_anew() {
        let mut other = at('S', 0);
        other.began = 8;
        assert_eq!(activity(&[at('R', 0), at('R', 2_000), other]), None);
    }

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name_in_it() {
        let tail = "1 1 1 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 4242 1000 0";
        let (state, times) = stat(&format!("71 (a) S (b) R {tail}")).unwrap();
        assert_eq!((state, times.cpu, times.began), ('R', Duration::from_secs(2), 4_242));
        for bad in ["", "71 (a)", "71 (a) ", "71 (a) R 1 2", "71 (a) R x x x x x x x x x x x x"] {
            assert!(stat(bad).is_none(), "{bad:?}");
        }
        let own = std::process::id();
        assert!(look(Path::new("/proc"), own).is_some_and(|look| look.began > 0));
        assert_eq!(status_of_ended(own), None, "it goes on");
        assert_eq!(place("0"), None);
        assert_eq!(place("futex_wait_queue\n").as_deref(), Some("futex_wait_queue"));
    }

    #[test]
    fn the_status_of_a_program_that_nobody_waited_for_is_read() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let status = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            status_of_ended(child.id())
        });
        assert_eq!(status, Some(7 << 8));
        child.wait().unwrap();
        assert_eq!(status_of_ended(child.id()), None);
    }
}
