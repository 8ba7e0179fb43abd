// Clocks of one process that jump and drift while it runs. Preloaded: the functions of libc that
// read a clock answer by what a mapped file says, which clocks.rs writes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// What clocks.rs writes, in the same order; `reads` is written here.
struct clocks {
    // Odd while the others change.
    _Atomic uint64_t sequence;
    // Added to the wall clock, in nanoseconds.
    _Atomic int64_t wall;
    // Added to the monotonic clocks, in nanoseconds.
    _Atomic int64_t offset;
    // From this moment on they run wrong, by so many parts of a million.
    _Atomic int64_t since;
    _Atomic int64_t rate;
    // How often a clock was read that was wrong.
    _Atomic uint64_t reads;
};

// Looks at values that change, before they are taken as they are: who changes them may be gone.
enum { LOOKS_MAX = 100000 };

static struct clocks *clocks;
// A monotonic clock never goes back, not even where its rate changes: by its number.
static _Atomic int64_t latest[CLOCK_BOOTTIME + 1];

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("CHAOS_CLOCKS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *clocks, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) clocks = mapped;
}

static int64_t shifted(int64_t now, clockid_t clock, int is_wall) {
    uint64_t before;
    int64_t wall, offset, since, rate;
    int looks = 0;
    do {
        before = atomic_load(&clocks->sequence);
        wall = atomic_load(&clocks->wall);
        offset = atomic_load(&clocks->offset);
        since = atomic_load(&clocks->since);
        rate = atomic_load(&clocks->rate);
    } while (((before & 1) || before != atomic_load(&clocks->sequence)) && ++looks < LOOKS_MAX);
    if (is_wall ? wall != 0 : rate != 0) atomic_fetch_add(&clocks->reads, 1);
    if (is_wall) return now + wall;
    int64_t then = now + offset + (now > since ? (now - since) / 1000 * rate / 1000 : 0);
    int64_t known = atomic_load(&latest[clock]);
    while (then > known && !atomic_compare_exchange_weak(&latest[clock], &known, then)) {
    }
    return then > known ? then : known;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int is_monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                       clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;
    if (result != 0 || !clocks || !(is_wall || is_monotonic)) return result;
    int64_t now = shifted(time->tv_sec * 1000000000LL + time->tv_nsec, clock, is_wall);
    time->tv_sec = now / 1000000000LL;
    time->tv_nsec = now % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone) {
    (void)zone;
    struct timespec time;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
    value->tv_sec = time.tv_sec;
    value->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME_COARSE, &now) != 0) return (time_t)-1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
