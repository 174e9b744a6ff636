/* Threads that stand still for a moment, again and again, each for itself: to be preloaded.

   On a busy machine any thread may wait for its turn while the others of its process go on. With
   this library in LD_PRELOAD and MIRRORQ_THREAD_STALLS=SEED that happens all the time, in every
   Python process: one of its threads gets a signal, whose handler sleeps. A thread that holds the
   interpreter's lock keeps it meanwhile. A call that waits is interrupted by it, as by any signal.
   A seed does not repeat a run: the kernel decides the rest. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SHORTEST_US = 200, LONGEST_US = 50000, RUNS_US = 40000 };

static uint64_t state;
static _Atomic long stand_us;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void stand(long us)
{
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static void on_signal(int number)
{
    (void)number;
    int before = errno;
    stand(stand_us);
    errno = before;
}

static pid_t one_of_the_others(pid_t self)
{
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks)
        return 0;
    pid_t chosen = 0;
    uint64_t count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));) {
        pid_t thread = atoi(entry->d_name);
        if (thread > 0 && thread != self && draw(++count) == 0)
            chosen = thread;
    }
    closedir(tasks);
    return chosen;
}

static void *run(void *unused)
{
    (void)unused;
    pid_t self = (pid_t)syscall(SYS_gettid);
    for (;;) {
        stand(200 + (long)draw(RUNS_US));
        /* Most are short: so many of them meet a moment that matters. */
        stand_us = SHORTEST_US + (long)draw(1 + draw(LONGEST_US));
        pid_t thread = one_of_the_others(self);
        if (thread)
            syscall(SYS_tgkill, getpid(), thread, SIGSTKFLT);
    }
    return NULL;
}

static void start(void)
{
    const char *seed = getenv("MIRRORQ_THREAD_STALLS");
    state = (strtoull(seed, NULL, 10) + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid() << 20;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) == 0)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096] = "";
    if (!getenv("MIRRORQ_THREAD_STALLS") || readlink("/proc/self/exe", path, sizeof path - 1) < 0)
        return;
    const char *slash = strrchr(path, '/');
    if (!slash || strncmp(slash, "/python", 7) != 0)
        return;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGSTKFLT, &action, NULL);
    pthread_atfork(NULL, NULL, start);
    start();
}
