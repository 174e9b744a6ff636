/* The rail's thread: sockets, the log's file, and when Python is woken. What it does with a
 * message is in mq_rail.c. It never runs Python, and takes no signals. */
#define _GNU_SOURCE
#include "rail.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define HELLO_MS 1000      /* so that the other end knows this one after a reconnect */
#define HELLO_AGAIN_MS 10  /* where a connection does not stand yet */
#define PAUSE_BYTES (8u << 20) /* so much that Python has not taken: nothing is read */
#define PAUSE_MS 5
#define ROUND_MESSAGES_MAX 64 /* of one socket, before others have their turn */

/* --- libzmq, as zmq.h has it --------------------------------------------------------- */

#define ZMQ_DONTWAIT 1
#define ZMQ_POLLIN 1

typedef struct {
    _Alignas(8) unsigned char bytes[64];
} zmq_msg_t;

typedef struct {
    void *socket;
    int fd;
    short events;
    short revents;
} zmq_pollitem_t;

static struct {
    int (*poll)(zmq_pollitem_t *items, int count, long timeout_ms);
    int (*send)(void *socket, const void *data, size_t size, int flags);
    int (*msg_init)(zmq_msg_t *message);
    int (*msg_recv)(zmq_msg_t *message, void *socket, int flags);
    int (*msg_close)(zmq_msg_t *message);
    int (*msg_more)(const zmq_msg_t *message);
    void *(*msg_data)(zmq_msg_t *message);
    size_t (*msg_size)(const zmq_msg_t *message);
    int (*error)(void);
} zmq;

/* A function's address in a data pointer: POSIX has them alike, C does not. */
static int find_function(void *library, const char *name, void *place)
{
    void *found = dlsym(library, name);
    memcpy(place, &found, sizeof found);
    return found != NULL;
}

int mq_rail_load_zmq(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL)
        return -1;
    int is_whole = find_function(library, "zmq_poll", &zmq.poll) &&
                   find_function(library, "zmq_send", &zmq.send) &&
                   find_function(library, "zmq_msg_init", &zmq.msg_init) &&
                   find_function(library, "zmq_msg_recv", &zmq.msg_recv) &&
                   find_function(library, "zmq_msg_close", &zmq.msg_close) &&
                   find_function(library, "zmq_msg_more", &zmq.msg_more) &&
                   find_function(library, "zmq_msg_data", &zmq.msg_data) &&
                   find_function(library, "zmq_msg_size", &zmq.msg_size) &&
                   find_function(library, "zmq_errno", &zmq.error);
    return is_whole ? 0 : -1;
}

/* --- The thread's state -------------------------------------------------------------- */

struct peer_socket {
    uint32_t peer;
    int is_rest; /* parts of a message follow that is not wanted */
    void *socket;
    uint64_t hello_ns; /* when the next one is due */
};

struct table {
    struct peer_socket *sockets;
    size_t count;
};

struct mq_rail_thread {
    mq_rail *rail;
    pthread_t id;
    pid_t process;
    int log;
    int notify;
    int wake[2];
    uint64_t late_ns;
    uint8_t *record;
    size_t record_size_max;
    /* Of all threads, with the lock: */
    pthread_mutex_t lock;
    pthread_cond_t seen; /* the thread uses the sockets of this version, or has ended */
    struct table wanted;
    uint64_t version;
    uint64_t seen_version;
    int is_stopping;
    int is_over;
    /* Its own: */
    struct table mine;
    zmq_pollitem_t *items; /* the first is the pipe */
    uint64_t waits_ns;     /* since when something waits for Python */
    uint64_t takes;        /* of mq_rail_look(), when that began */
    int is_told;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- The log ------------------------------------------------------------------------- */

static int write_all(int file, const uint8_t *data, size_t size, uint64_t offset)
{
    while (size != 0) {
        ssize_t done = pwrite(file, data, size, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return 0;
        data += done;
        size -= (size_t)done;
        offset += (uint64_t)done;
    }
    return 1;
}

static void send_mark(void *context, uint32_t peer, const uint8_t *mark)
{
    struct mq_rail_thread *thread = context;
    for (size_t i = 0; i < thread->mine.count; i++)
        if (thread->mine.sockets[i].peer == peer)
            zmq.send(thread->mine.sockets[i].socket, mark, MQ_RAIL_MARK_SIZE, ZMQ_DONTWAIT);
}

/* Make durable what was taken, and say so. */
static void write_group(struct mq_rail_thread *thread)
{
    uint64_t offset = 0;
    int64_t size = mq_rail_begin_write(thread->rail, thread->record, thread->record_size_max,
                                       &offset);
    if (size > 0) {
        int ok = write_all(thread->log, thread->record, (size_t)size, offset);
        mq_rail_end_write(thread->rail, ok);
    }
    mq_rail_send_marks(thread->rail, send_mark, thread);
}

/* --- Sockets ------------------------------------------------------------------------- */

/* Returns in how many milliseconds one is to be said again. Until it has been heard all that is for
 * the rail comes another way, and the rail gives back each queue that it is given. */
static long say_hello(struct mq_rail_thread *thread, uint64_t now)
{
    const uint32_t hello[2] = {MQ_RAIL_MAGIC, MQ_RAIL_HELLO};
    uint64_t next_ns = now + HELLO_MS * 1000000ull;
    for (size_t i = 0; i < thread->mine.count; i++) {
        struct peer_socket *to = &thread->mine.sockets[i];
        if (now >= to->hello_ns) {
            int is_said = zmq.send(to->socket, hello, sizeof hello, ZMQ_DONTWAIT) >= 0;
            to->hello_ns = now + (is_said ? HELLO_MS : HELLO_AGAIN_MS) * 1000000ull;
        }
        if (to->hello_ns < next_ns)
            next_ns = to->hello_ns;
    }
    return (long)((next_ns - now + 999999) / 1000000);
}

static void give(struct mq_rail_thread *thread, struct peer_socket *from, zmq_msg_t *message)
{
    const uint8_t *data = zmq.msg_data(message);
    size_t size = zmq.msg_size(message);
    int is_more = zmq.msg_more(message);
    if (is_more || from->is_rest)
        size = 0; /* no message of the rail: counted, part by part */
    from->is_rest = is_more;
    while (mq_rail_on_message(thread->rail, from->peer, data, size) != 0)
        write_group(thread);
}

/* Take what has come by a socket. */
static void read_socket(struct mq_rail_thread *thread, struct peer_socket *from)
{
    for (int i = 0; i < ROUND_MESSAGES_MAX; i++) {
        zmq_msg_t message;
        zmq.msg_init(&message);
        int size = zmq.msg_recv(&message, from->socket, ZMQ_DONTWAIT);
        if (size >= 0)
            give(thread, from, &message);
        zmq.msg_close(&message);
        if (size < 0)
            return;
    }
}

/* Use the sockets that are wanted now. Returns 0 when there is no memory. */
static int follow(struct mq_rail_thread *thread)
{
    struct table *wanted = &thread->wanted;
    size_t bytes = wanted->count * sizeof *wanted->sockets;
    struct peer_socket *sockets = malloc(bytes != 0 ? bytes : 1);
    zmq_pollitem_t *items = calloc(wanted->count + 1, sizeof *items);
    if (sockets == NULL || items == NULL) {
        free(sockets);
        free(items);
        return 0;
    }
    if (bytes != 0)
        memcpy(sockets, wanted->sockets, bytes);
    items[0] = (zmq_pollitem_t){.fd = thread->wake[0], .events = ZMQ_POLLIN};
    for (size_t i = 0; i < wanted->count; i++)
        items[i + 1] = (zmq_pollitem_t){.socket = sockets[i].socket, .events = ZMQ_POLLIN};
    free(thread->mine.sockets);
    free(thread->items);
    thread->mine = (struct table){sockets, wanted->count};
    thread->items = items;
    return 1;
}

/* --- Rounds -------------------------------------------------------------------------- */

/* See what other threads want. Returns whether to go on. */
static int obey(struct mq_rail_thread *thread)
{
    pthread_mutex_lock(&thread->lock);
    int goes_on = !thread->is_stopping;
    if (goes_on && thread->seen_version != thread->version) {
        goes_on = follow(thread);
        thread->seen_version = thread->version;
        pthread_cond_broadcast(&thread->seen);
    }
    pthread_mutex_unlock(&thread->lock);
    return goes_on;
}

/* Wake Python if it is to take something, once, and again when it has left some. Returns in how many milliseconds that is to be looked at
 * again; and whether so much waits that nothing is to be read. */
static long tell_python(struct mq_rail_thread *thread, uint64_t now, int *is_paused)
{
    struct mq_rail_look look;
    mq_rail_look(thread->rail, &look);
    *is_paused = look.waiting > PAUSE_BYTES;
    if (look.waiting == 0)
        thread->waits_ns = 0;
    else if (thread->waits_ns == 0 || thread->takes != look.takes) {
        thread->waits_ns = now;
        thread->is_told = 0;
    }
    thread->takes = look.takes;
    if (look.waiting == 0 || thread->is_told)
        return *is_paused ? PAUSE_MS : HELLO_MS;
    uint64_t waited = now - thread->waits_ns;
    if (!look.is_urgent && waited < thread->late_ns)
        return (long)((thread->late_ns - waited + 999999) / 1000000);
    const uint64_t one = 1;
    thread->is_told = write(thread->notify, &one, sizeof one) == (ssize_t)sizeof one;
    return *is_paused || !thread->is_told ? PAUSE_MS : HELLO_MS;
}

static void empty_pipe(struct mq_rail_thread *thread)
{
    char bytes[64];
    while (read(thread->wake[0], bytes, sizeof bytes) == (ssize_t)sizeof bytes)
        ;
}

/* Wait, and take what has come. Returns whether to go on. */
static int make_round(struct mq_rail_thread *thread)
{
    uint64_t now = now_ns();
    int is_paused = 0;
    long timeout_ms = tell_python(thread, now, &is_paused);
    long hello_ms = say_hello(thread, now);
    if (timeout_ms > hello_ms)
        timeout_ms = hello_ms;
    size_t count = is_paused ? 0 : thread->mine.count;
    if (zmq.poll(thread->items, (int)count + 1, timeout_ms) < 0)
        return zmq.error() == EINTR;
    if (thread->items[0].revents != 0)
        empty_pipe(thread);
    for (size_t i = 0; i < count; i++)
        if (thread->items[i + 1].revents != 0)
            read_socket(thread, &thread->mine.sockets[i]);
    mq_rail_send_marks(thread->rail, send_mark, thread); /* those at receipt */
    write_group(thread);
    return 1;
}

/* There is no memory, or libzmq has been closed: Python is to go on without. */
static void abandon(struct mq_rail_thread *thread)
{
    const uint64_t one = 1;
    mq_rail_stop_all(thread->rail);
    if (write(thread->notify, &one, sizeof one) < 0)
        return; /* it has been told already, or nobody is there any more */
}

static void *run(void *argument)
{
    struct mq_rail_thread *thread = argument;
    while (obey(thread) && make_round(thread))
        ;
    pthread_mutex_lock(&thread->lock);
    thread->is_over = 1;
    if (!thread->is_stopping)
        abandon(thread);
    pthread_cond_broadcast(&thread->seen);
    pthread_mutex_unlock(&thread->lock);
    return NULL;
}

/* --- From other threads -------------------------------------------------------------- */

static void free_thread(struct mq_rail_thread *thread)
{
    for (int i = 0; i < 2; i++)
        if (thread->wake[i] >= 0)
            close(thread->wake[i]);
    pthread_cond_destroy(&thread->seen);
    pthread_mutex_destroy(&thread->lock);
    free(thread->record);
    free(thread->wanted.sockets);
    free(thread->mine.sockets);
    free(thread->items);
    free(thread);
}

static int open_pipe(int *ends)
{
    if (pipe(ends) != 0) {
        ends[0] = ends[1] = -1;
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(ends[i], F_SETFD, FD_CLOEXEC);
        fcntl(ends[i], F_SETFL, O_NONBLOCK);
    }
    return 1;
}

/* Signals are for the threads of Python. */
static int begin(struct mq_rail_thread *thread)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread->id, NULL, run, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

int mq_rail_start(mq_rail *rail, int log, int notify, uint32_t late_us)
{
    struct mq_rail_thread **place = mq_rail_thread_of(rail);
    if (zmq.poll == NULL || *place != NULL)
        return -1;
    struct mq_rail_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return -1;
    thread->rail = rail;
    thread->version = 1; /* no sockets */
    thread->process = getpid();
    thread->log = log;
    thread->notify = notify;
    thread->late_ns = late_us * 1000ull;
    thread->record_size_max = mq_rail_record_size_max(rail);
    thread->record = malloc(thread->record_size_max);
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->seen, NULL);
    if (!open_pipe(thread->wake) || thread->record == NULL || !begin(thread)) {
        free_thread(thread);
        return -1;
    }
    *place = thread;
    return 0;
}

static void wake(struct mq_rail_thread *thread)
{
    while (write(thread->wake[1], "", 1) < 0 && errno == EINTR)
        ;
}

/* The thread of this process's rail, locked; NULL: it has none. */
static struct mq_rail_thread *locked_thread(mq_rail *rail)
{
    struct mq_rail_thread *thread = *mq_rail_thread_of(rail);
    if (thread == NULL || thread->process != getpid())
        return NULL;
    pthread_mutex_lock(&thread->lock);
    return thread;
}

void mq_rail_stop(mq_rail *rail)
{
    struct mq_rail_thread *thread = locked_thread(rail);
    if (thread == NULL)
        return;
    thread->is_stopping = 1;
    pthread_mutex_unlock(&thread->lock);
    wake(thread);
    pthread_join(thread->id, NULL);
    *mq_rail_thread_of(rail) = NULL;
    free_thread(thread);
}

static size_t place_of(const struct table *table, uint32_t peer)
{
    size_t at = 0;
    while (at < table->count && table->sockets[at].peer != peer)
        at++;
    return at;
}

static int want(struct table *table, uint32_t peer, void *socket)
{
    if (place_of(table, peer) != table->count)
        return -1;
    struct peer_socket *sockets =
        realloc(table->sockets, (table->count + 1) * sizeof *table->sockets);
    if (sockets == NULL)
        return -1;
    table->sockets = sockets;
    sockets[table->count++] = (struct peer_socket){.peer = peer, .socket = socket};
    return 0;
}

int mq_rail_add_socket(mq_rail *rail, uint32_t peer, void *socket)
{
    struct mq_rail_thread *thread = locked_thread(rail);
    if (thread == NULL)
        return -1;
    int error = want(&thread->wanted, peer, socket);
    if (error == 0)
        thread->version++;
    pthread_mutex_unlock(&thread->lock);
    wake(thread);
    return error;
}

int mq_rail_remove_socket(mq_rail *rail, uint32_t peer)
{
    struct mq_rail_thread *thread = locked_thread(rail);
    if (thread == NULL)
        return -1;
    struct table *table = &thread->wanted;
    size_t at = place_of(table, peer);
    int error = at == table->count ? -1 : 0;
    if (error == 0) {
        table->sockets[at] = table->sockets[--table->count];
        uint64_t version = ++thread->version;
        wake(thread);
        while (thread->seen_version < version && !thread->is_over)
            pthread_cond_wait(&thread->seen, &thread->lock);
    }
    pthread_mutex_unlock(&thread->lock);
    return error;
}
