/* The rail: on a mirror it takes small groups of ops straight from the master, makes them durable
 * in a log of its own (`mirrorq.rail`) and says so to the master, while Python does something
 * else. Python is handed what was taken, late and in batches.
 *
 * The rail never decides. Python arms it for a queue, in one epoch, from one lsn on; it takes what
 * is exactly next there, whole and unspoiled. Anything else ends that: Python is told that it has
 * STOPPED, and then gets the message RAW, as it gets all that follows.
 *
 *     off --arm--> armed --disarm--> draining --the group is written--> off, STOPPED
 *                  armed --anything unusual--> off, STOPPED, RAW
 *
 * What is handed over has the order of receipt, queue by queue; LOGGED is handed over, and a mark
 * said, only when the record is durable; no mark is said of a queue that is not armed any more.
 *
 * A message is one part of one zmq message, little-endian, all values at most 2^63 - 1:
 *
 *     DATA   u32 magic "mqr1", u32 1, u64 queue, u64 epoch, u64 stable, u64 time_us; frames
 *     MARK   u32 magic, u32 2, u64 queue, u64 epoch, u64 lsn
 *     HELLO  u32 magic, u32 3
 *
 * The log has two halves, each written from its start to its end; its records are those of
 * store/write_ahead.py. A half is begun anew when LMDB has all that is in it.
 *
 * mq_rail.c is without thread, file and socket; mq_rail_thread.c has these. All calls may come
 * from any thread; in a forked child only mq_rail_stop(), which does nothing there. */
#ifndef MQ_RAIL_H
#define MQ_RAIL_H

#include <stddef.h>
#include <stdint.h>

#define MQ_RAIL_MAGIC 0x3172716du /* "mqr1" */
#define MQ_RAIL_DATA_SIZE 40
#define MQ_RAIL_MARK_SIZE 32
#define MQ_RAIL_HELLO_SIZE 8
enum { MQ_RAIL_DATA = 1, MQ_RAIL_MARK = 2, MQ_RAIL_HELLO = 3 };

#define MQ_RECORD_MAGIC 0x3177716du /* "mqw1" */
#define MQ_RECORD_HEAD_SIZE 32
#define MQ_RECORD_PART_SIZE 24
#define MQ_RECORD_PAGE 4096
#define MQ_GROUP_MESSAGES_MAX 128
#define MQ_URGENT_BYTES (256u << 10) /* handed over and not taken: Python is to look */
#define MQ_RECEIPT_BYTES_MAX (4u << 20) /* the same, beyond which nothing is marked at receipt */

/* build.py reads from here what Python sees. */
/* [cdef] */

typedef struct mq_rail mq_rail;

#define MQ_RAIL_RAW 1     /* as it came */
#define MQ_RAIL_LOGGED 2  /* taken, and durable in the record of this number */
#define MQ_RAIL_STOPPED 3 /* the queue is not armed any more: `stable` says why */

#define MQ_STOP_ASKED 1 /* disarmed */
#define MQ_STOP_EPOCH 2 /* a message of another epoch, or of another peer */
#define MQ_STOP_GAP 3   /* the next op is missing */
#define MQ_STOP_FRAME 4 /* a frame is damaged, of another queue or epoch, or out of order */
#define MQ_STOP_LARGE 5 /* more than a group, or than what may wait for Python */
#define MQ_STOP_FULL 6  /* the log has no room */
#define MQ_STOP_DISK 7  /* the log could not be written: it is not used any more */

/* What is handed over: this head, then `size` bytes of frames, a multiple of 8. */
typedef struct {
    uint32_t kind;
    uint32_t peer;
    uint64_t queue_id;
    uint64_t epoch;
    uint64_t stable;
    uint64_t time_us;
    uint64_t number;
    uint64_t size;
    uint64_t reserved;
} mq_rail_batch;

typedef struct {
    uint64_t messages; /* taken */
    uint64_t records;
    uint64_t bytes;   /* of their frames */
    uint64_t garbage; /* messages that were none */
} mq_rail_counts;

/* Records have this salt, and numbers from first_number on. NULL: no memory. */
mq_rail *mq_rail_new(uint64_t salt, uint64_t first_number, uint64_t half_bytes,
                     uint32_t group_bytes_max);
void mq_rail_free(mq_rail *rail);

/* Take the ops of a queue that follow `after`, of this epoch, from this peer. Returns 0; 1 when it
 * is refused: it is armed already, or something of the queue is not taken yet (mq_rail_take), or
 * the log is out of use. at_receipt: marks say what has come, nothing is logged, and what was
 * taken is handed over RAW. */
int mq_rail_arm(mq_rail *rail, uint64_t queue_id, uint64_t epoch, uint64_t after, uint32_t peer,
                uint32_t at_receipt);
/* Take no more of it. Returns 0: STOPPED comes, or has come and is not taken yet; 1: it was off. */
int mq_rail_disarm(mq_rail *rail, uint64_t queue_id);

/* A message has come. Returns 0; 1: the group has to be written first, nothing has happened. */
int mq_rail_on_message(mq_rail *rail, uint32_t peer, const uint8_t *data, size_t size);
/* The record to be written now, and where: its size; 0 when there is none. */
int64_t mq_rail_begin_write(mq_rail *rail, uint8_t *out, size_t out_size, uint64_t *offset);
/* That record is durable; not `ok`: nobody knows. Returns 0. */
int mq_rail_end_write(mq_rail *rail, int ok);
/* The next mark to be sent, MQ_RAIL_MARK_SIZE bytes: its size; 0 when there is none. */
int64_t mq_rail_next_mark(mq_rail *rail, uint8_t *out, uint32_t *peer);

/* Give Python whole batches, as many as `out` has room for. Returns their size; less than 0 when
 * there is no room for the first: as many bytes are wanted. */
int64_t mq_rail_take(mq_rail *rail, uint8_t *out, size_t out_size);
/* The size of all that waits to be taken. */
size_t mq_rail_waiting(mq_rail *rail);
/* Whether Python is to take it soon. */
int mq_rail_is_urgent(mq_rail *rail);

/* LMDB has all records up to this number. Returns 0. */
int mq_rail_cut(mq_rail *rail, uint64_t number);
/* The number of the last record; of one that is being written, or has failed, too. */
uint64_t mq_rail_number(mq_rail *rail);
void mq_rail_count(mq_rail *rail, mq_rail_counts *counts);

/* --- The thread. These wait for it, and release the GIL. Errors are -1. --- */

/* Find libzmq through a library that is loaded and uses it: pyzmq's. */
int mq_rail_load_zmq(const char *library);
/* Begin. Records go to `log`, preallocated and open with O_DSYNC. Eight bytes are written to
 * `notify` when Python is to take what is handed over: at once when it is urgent, else when it has
 * waited for late_us. Both files stay the caller's. */
int mq_rail_start(mq_rail *rail, int log, int notify, uint32_t late_us);
/* End: what was taken is written before. The sockets are the caller's again. In a forked child it
 * does nothing. */
void mq_rail_stop(mq_rail *rail);
/* Use this socket of libzmq, a DEALER that is connected to `peer`: it is the thread's until it is
 * removed, or the thread is stopped. */
int mq_rail_add_socket(mq_rail *rail, uint32_t peer, void *socket);
int mq_rail_remove_socket(mq_rail *rail, uint32_t peer);

/* [end of cdef] */

/* --- Between mq_rail.c and mq_rail_thread.c --- */

struct mq_rail_thread;

/* The thread of a rail, NULL: it has none. */
struct mq_rail_thread **mq_rail_thread_of(mq_rail *rail);
/* Send each mark with the rail locked, so that none leaves when Python has been told that the
 * queue has stopped. `send` does not wait. */
void mq_rail_send_marks(mq_rail *rail,
                        void (*send)(void *context, uint32_t peer, const uint8_t *mark),
                        void *context);
struct mq_rail_look {
    size_t waiting;
    int is_urgent;
    uint64_t takes; /* how often Python has taken of it */
};
/* Nothing is taken any more: all queues stop, as after a write that failed. */
void mq_rail_stop_all(mq_rail *rail);
void mq_rail_look(mq_rail *rail, struct mq_rail_look *look);
/* The most bytes that a record has. */
size_t mq_rail_record_size_max(const mq_rail *rail);

#endif
