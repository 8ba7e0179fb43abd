//! What the operating system answers to a simulated thread: the bytes of `getrandom`
//! follow from the seed, and `clock_gettime` gives the time of the host that runs now.
//! Other threads get the kernel's answers.
//!
//! The symbols of libc are defined here because the standard library, Tokio, openraft and
//! hyper draw keys of hash maps and seeds of their own, and read clocks, without a seam
//! of theirs: one place below all of them covers everything.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_void};

/// A host's clocks at the start of its simulation: not zero, since programs subtract from them.
const EPOCH_NANOS: u64 = 1_000_000_000;

/// Calendar time at the start, in seconds.
const CALENDAR_SECONDS: i64 = 1_700_000_000;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

thread_local! {
    /// State of the bytes to come; none on threads that are not simulated.
    static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
    /// Time of the host that runs now.
    static NANOS: Cell<u64> = const { Cell::new(0) };
}

/// From now on this thread is simulated: its random bytes follow from `seed`.
pub fn simulate(seed: u64) {
    RANDOM.set(Some(seed));
}

/// The state of the random bytes, to be put back with [`simulate`].
pub fn state() -> u64 {
    RANDOM.get().unwrap_or(0)
}

/// Sets the clocks from now on, since the host's simulation began.
pub fn set_clock(nanos: u64) {
    NANOS.set(nanos);
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn next(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(GOLDEN);
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, z ^ (z >> 31))
}

/// As libc's.
///
/// # Safety
///
/// `buffer` must be valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    // A thread that is ending has no state any more, and is not simulated.
    let Some(mut state) = RANDOM.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the kernel writes at most `length` bytes, as the caller allows.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return got as isize;
    };
    if length == 0 {
        return 0;
    }
    // SAFETY: the caller allows `length` bytes to be written here, and nothing else reads
    // them during this call; any byte is a valid u8.
    let bytes = unsafe {
        std::ptr::write_bytes(buffer.cast::<u8>(), 0, length);
        std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length)
    };
    for chunk in bytes.chunks_mut(8) {
        let (after, word) = next(state);
        state = after;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    RANDOM.set(Some(state));
    length as isize
}

/// As libc's.
///
/// # Safety
///
/// `time` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    if RANDOM.try_with(Cell::get).ok().flatten().is_none() {
        // SAFETY: the kernel writes one timespec, as the caller allows.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    let nanos = NANOS.get() + EPOCH_NANOS;
    let calendar = if clock == libc::CLOCK_REALTIME { CALENDAR_SECONDS } else { 0 };
    let told = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as i64 + calendar,
        tv_nsec: (nanos % 1_000_000_000) as c_long,
    };
    // SAFETY: the caller allows one timespec to be written here.
    unsafe { time.write(told) };
    0
}
