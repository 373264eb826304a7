/* A clock that stands still until it is told to move: for a LoadGen that is to measure given latencies.

   Loaded before the C library (LD_PRELOAD) it answers for the system clock, which LoadGen times queries with; every
   other clock stays the real one, so that its threads wait as they always do. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic long long now_ns = 1000000000000000000LL;

void advance(long long ns) { atomic_fetch_add(&now_ns, ns); }

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (clock != CLOCK_REALTIME) {
    return syscall(SYS_clock_gettime, clock, time);
  }
  long long now = atomic_load(&now_ns);
  time->tv_sec = now / 1000000000;
  time->tv_nsec = now % 1000000000;
  return 0;
}
