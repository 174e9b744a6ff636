/* What the rail decides: see rail.h. Memory is had before anything changes; a message for which
 * there is none is lost, as on a link that breaks, and the gap is seen with the next one. */
#include "rail.h"
#include "wire.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX ((uint64_t)INT64_MAX)
#define BUCKETS_MIN 64
#define OUT_KEPT_MAX (1u << 20) /* memory of what is handed over that is kept when all is taken */

_Static_assert(sizeof(mq_rail_batch) == 64, "the head of what is handed over has 64 bytes");

enum state { ARMED, DRAINING };

/* A queue that is not off. */
struct lane {
    struct lane *chain; /* in its bucket */
    struct lane *before;
    struct lane *after; /* in order of arming */
    uint64_t queue_id;
    uint64_t epoch;
    uint64_t received;
    uint32_t peer;
    enum state state;
    uint8_t is_at_receipt;
    uint8_t is_in_group;
    uint8_t is_marking; /* its mark is to be sent */
};

/* A message in the group. */
struct part {
    struct lane *lane;
    uint64_t epoch;
    uint64_t time_us;
    uint32_t peer;
    size_t at; /* of its part of the record */
};

struct half {
    uint64_t end;  /* bytes written of it */
    uint64_t last; /* number of its last record */
};

struct mq_rail {
    pthread_mutex_t lock;
    struct mq_rail_thread *thread;
    /* Queues */
    struct lane **buckets;
    size_t bucket_count; /* a power of two */
    size_t lane_count;
    struct lane *first;
    struct lane *last;
    /* The group; the record's head, and parts of it, stand in `record` */
    struct part parts[MQ_GROUP_MESSAGES_MAX];
    int part_count;
    int is_in_flight;
    uint32_t group_bytes_max;
    uint8_t *record;
    size_t record_size;
    size_t group_bytes; /* of frames */
    /* The log */
    uint64_t salt;
    uint64_t number; /* of the last record */
    uint64_t has;    /* LMDB has those up to this one */
    uint64_t half_bytes;
    struct half halves[2];
    int half; /* in use */
    int is_broken;
    uint64_t used; /* bytes written since Python took what was handed over */
    /* Marks: ids of queues */
    uint64_t *marks;
    size_t mark_count;
    size_t marks_sent;
    size_t marks_room;
    /* What is handed over */
    uint8_t *out;
    size_t out_at; /* what is before was taken */
    size_t out_end;
    size_t out_room;
    int is_news;    /* RAW or STOPPED is among it */
    uint64_t takes; /* how often Python has taken of it */
    mq_rail_counts counts;
};

static uint64_t load(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void store(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

static void store_u32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

/* --- Queues -------------------------------------------------------------------------- */

static struct lane **bucket_of(mq_rail *rail, uint64_t queue_id)
{
    return &rail->buckets[(queue_id * 0x9e3779b97f4a7c15u >> 32) & (rail->bucket_count - 1)];
}

static struct lane *find(mq_rail *rail, uint64_t queue_id)
{
    struct lane *lane = *bucket_of(rail, queue_id);
    while (lane != NULL && lane->queue_id != queue_id)
        lane = lane->chain;
    return lane;
}

static void into_bucket(mq_rail *rail, struct lane *lane)
{
    struct lane **bucket = bucket_of(rail, lane->queue_id);
    lane->chain = *bucket;
    *bucket = lane;
}

static void grow(mq_rail *rail)
{
    struct lane **buckets = calloc(rail->bucket_count * 2, sizeof *buckets);
    if (buckets == NULL)
        return; /* chains become longer, that is all */
    free(rail->buckets);
    rail->buckets = buckets;
    rail->bucket_count *= 2;
    for (struct lane *lane = rail->first; lane != NULL; lane = lane->after)
        into_bucket(rail, lane);
}

static struct lane *add(mq_rail *rail, uint64_t queue_id)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    if (rail->lane_count >= rail->bucket_count)
        grow(rail);
    lane->queue_id = queue_id;
    into_bucket(rail, lane);
    lane->before = rail->last;
    *(rail->last != NULL ? &rail->last->after : &rail->first) = lane;
    rail->last = lane;
    rail->lane_count++;
    return lane;
}

static void drop(mq_rail *rail, struct lane *lane)
{
    struct lane **place = bucket_of(rail, lane->queue_id);
    while (*place != lane)
        place = &(*place)->chain;
    *place = lane->chain;
    *(lane->before != NULL ? &lane->before->after : &rail->first) = lane->after;
    *(lane->after != NULL ? &lane->after->before : &rail->last) = lane->before;
    rail->lane_count--;
    free(lane);
}

/* --- What is handed over ------------------------------------------------------------- */

/* What the group and the end of each queue take there at most. */
static size_t pledged(const mq_rail *rail)
{
    return rail->group_bytes +
           ((size_t)rail->part_count + rail->lane_count) * sizeof(mq_rail_batch);
}

/* Make room for so many bytes beside what is pledged. */
static int reserve(mq_rail *rail, size_t more)
{
    size_t size = rail->out_end - rail->out_at, wanted = size + pledged(rail) + more;
    if (rail->out_at + wanted <= rail->out_room)
        return 0;
    if (rail->out_at != 0) {
        memmove(rail->out, rail->out + rail->out_at, size);
        rail->out_at = 0;
        rail->out_end = size;
    }
    size_t room = rail->out_room != 0 ? rail->out_room : 4096;
    while (room < wanted)
        room *= 2;
    if (room == rail->out_room)
        return 0;
    uint8_t *out = realloc(rail->out, room);
    if (out == NULL)
        return -1;
    rail->out = out;
    rail->out_room = room;
    return 0;
}

static void hand_head(mq_rail *rail, const mq_rail_batch *head)
{
    memcpy(rail->out + rail->out_end, head, sizeof *head);
    rail->out_end += sizeof *head;
    if (head->kind != MQ_RAIL_LOGGED)
        rail->is_news = 1;
}

static void hand(mq_rail *rail, const mq_rail_batch *head, const uint8_t *frames)
{
    hand_head(rail, head);
    memcpy(rail->out + rail->out_end, frames, head->size);
    rail->out_end += head->size;
}

static void hand_raw(mq_rail *rail, uint32_t peer, const uint8_t *data, size_t size)
{
    mq_rail_batch head = {.kind = MQ_RAIL_RAW,
                          .peer = peer,
                          .queue_id = load(data + 8),
                          .epoch = load(data + 16),
                          .stable = load(data + 24),
                          .time_us = load(data + 32),
                          .size = size - MQ_RAIL_DATA_SIZE};
    hand(rail, &head, data + MQ_RAIL_DATA_SIZE);
}

/* A message of the group: LOGGED, or RAW. */
static void hand_part(mq_rail *rail, const struct part *part, uint32_t kind)
{
    const uint8_t *at = rail->record + part->at;
    mq_rail_batch head = {.kind = kind,
                          .peer = part->peer,
                          .queue_id = load(at),
                          .epoch = part->epoch,
                          .stable = load(at + 8),
                          .time_us = part->time_us,
                          .number = kind == MQ_RAIL_LOGGED ? rail->number : 0,
                          .size = load_u32(at + 16)};
    hand(rail, &head, at + MQ_RECORD_PART_SIZE);
}

/* The queue is off from here on. */
static void stop(mq_rail *rail, struct lane *lane, uint64_t why)
{
    mq_rail_batch head = {.kind = MQ_RAIL_STOPPED,
                          .peer = lane->peer,
                          .queue_id = lane->queue_id,
                          .epoch = lane->epoch,
                          .stable = why};
    drop(rail, lane);
    hand_head(rail, &head);
}

/* Whether something of this queue, of this kind (0: any), is not taken yet. */
static int has_waiting(const mq_rail *rail, uint64_t queue_id, uint32_t kind)
{
    mq_rail_batch head;
    for (size_t at = rail->out_at; at < rail->out_end; at += sizeof head + head.size) {
        memcpy(&head, rail->out + at, sizeof head);
        if (head.queue_id == queue_id && (kind == 0 || head.kind == kind))
            return 1;
    }
    return 0;
}

/* --- Marks --------------------------------------------------------------------------- */

/* Have a place for the mark of each queue. */
static int reserve_marks(mq_rail *rail)
{
    size_t wanted = rail->mark_count + rail->lane_count + 1;
    if (wanted <= rail->marks_room)
        return 0;
    uint64_t *marks = realloc(rail->marks, 2 * wanted * sizeof *marks);
    if (marks == NULL)
        return -1;
    rail->marks = marks;
    rail->marks_room = 2 * wanted;
    return 0;
}

static void say_mark(mq_rail *rail, struct lane *lane)
{
    if (lane->is_marking)
        return;
    lane->is_marking = 1;
    rail->marks[rail->mark_count++] = lane->queue_id;
}

static int64_t next_mark(mq_rail *rail, uint8_t *out, uint32_t *peer)
{
    while (rail->marks_sent < rail->mark_count) {
        struct lane *lane = find(rail, rail->marks[rail->marks_sent++]);
        if (lane == NULL || !lane->is_marking)
            continue;
        lane->is_marking = 0;
        if (lane->state != ARMED)
            continue;
        store_u32(out, MQ_RAIL_MAGIC);
        store_u32(out + 4, MQ_RAIL_MARK);
        store(out + 8, lane->queue_id);
        store(out + 16, lane->epoch);
        store(out + 24, lane->received);
        *peer = lane->peer;
        return MQ_RAIL_MARK_SIZE;
    }
    rail->mark_count = rail->marks_sent = 0;
    return 0;
}

/* --- Messages ------------------------------------------------------------------------ */

static int is_garbage(const uint8_t *data, size_t size)
{
    if (size < MQ_RAIL_DATA_SIZE || (size - MQ_RAIL_DATA_SIZE) % 8 != 0)
        return 1;
    if (load_u32(data) != MQ_RAIL_MAGIC || load_u32(data + 4) != MQ_RAIL_DATA)
        return 1;
    for (size_t at = 8; at < MQ_RAIL_DATA_SIZE; at += 8)
        if (load(data + at) > NUMBER_MAX)
            return 1;
    return 0;
}

/* Whether these are whole, unspoiled frames of the lane's queue and epoch, one after another. */
static int check_frames(const struct lane *lane, const uint8_t *run, size_t size, uint64_t *first,
                        uint64_t *last)
{
    for (size_t at = 0; at < size;) {
        int64_t length = mq_check_first(run + at, size - at);
        if (length < 0 || load(run + at + MQ_AT_QUEUE_ID) != lane->queue_id ||
            load(run + at + MQ_AT_EPOCH) != lane->epoch)
            return 0;
        uint64_t lsn = load(run + at + MQ_AT_LSN);
        if (lsn == 0 || (at != 0 && lsn != *last + 1))
            return 0;
        if (at == 0)
            *first = lsn;
        *last = lsn;
        at += (size_t)length;
    }
    return 1;
}

/* Hand a message over that is not taken; with `why` its queue stops before. */
static int pass(mq_rail *rail, struct lane *lane, uint64_t why, uint32_t peer, const uint8_t *data,
                size_t size)
{
    if (lane != NULL && lane->is_in_group)
        return 1; /* what was taken before it goes first */
    if (reserve(rail, sizeof(mq_rail_batch) + size) != 0)
        return 0;
    if (why != 0)
        stop(rail, lane, why);
    hand_raw(rail, peer, data, size);
    return 0;
}

static int take_at_receipt(mq_rail *rail, struct lane *lane, uint64_t last, const uint8_t *data,
                           size_t size)
{
    size_t waits = rail->out_end - rail->out_at + sizeof(mq_rail_batch) + size - MQ_RAIL_DATA_SIZE;
    if (waits > MQ_RECEIPT_BYTES_MAX)
        return pass(rail, lane, MQ_STOP_LARGE, lane->peer, data, size);
    if (reserve(rail, sizeof(mq_rail_batch) + size) != 0 || reserve_marks(rail) != 0)
        return 0;
    int is_news = rail->is_news;
    hand_raw(rail, lane->peer, data, size);
    rail->is_news = is_news; /* it is marked, and may be late as what is logged may */
    lane->received = last;
    rail->counts.messages++;
    say_mark(rail, lane);
    return 0;
}

/* Put it into the group. */
static int take(mq_rail *rail, struct lane *lane, uint64_t last, const uint8_t *data, size_t size)
{
    size_t run_size = size - MQ_RAIL_DATA_SIZE;
    if (rail->part_count == MQ_GROUP_MESSAGES_MAX ||
        rail->group_bytes + run_size > rail->group_bytes_max)
        return 1;
    if (reserve(rail, sizeof(mq_rail_batch) + run_size) != 0 || reserve_marks(rail) != 0)
        return 0;
    uint8_t *at = rail->record + rail->record_size;
    store(at, lane->queue_id);
    store(at + 8, load(data + 24));
    store_u32(at + 16, (uint32_t)run_size);
    store_u32(at + 20, 0);
    memcpy(at + MQ_RECORD_PART_SIZE, data + MQ_RAIL_DATA_SIZE, run_size);
    rail->parts[rail->part_count++] =
        (struct part){lane, lane->epoch, load(data + 32), lane->peer, rail->record_size};
    rail->record_size += MQ_RECORD_PART_SIZE + run_size;
    rail->group_bytes += run_size;
    lane->received = last;
    lane->is_in_group = 1;
    return 0;
}

static int judge(mq_rail *rail, uint32_t peer, const uint8_t *data, size_t size)
{
    struct lane *lane = find(rail, load(data + 8));
    if (lane == NULL || lane->state != ARMED)
        return pass(rail, lane, 0, peer, data, size);
    if (lane->peer != peer || lane->epoch != load(data + 16))
        return pass(rail, lane, MQ_STOP_EPOCH, peer, data, size);
    size_t run_size = size - MQ_RAIL_DATA_SIZE;
    if (run_size == 0)
        return pass(rail, lane, 0, peer, data, size);
    if (run_size > rail->group_bytes_max)
        return pass(rail, lane, MQ_STOP_LARGE, peer, data, size);
    uint64_t first = 0, last = 0;
    if (!check_frames(lane, data + MQ_RAIL_DATA_SIZE, run_size, &first, &last))
        return pass(rail, lane, MQ_STOP_FRAME, peer, data, size);
    if (last <= lane->received)
        return pass(rail, lane, 0, peer, data, size);
    if (first != lane->received + 1)
        return pass(rail, lane, MQ_STOP_GAP, peer, data, size);
    return lane->is_at_receipt ? take_at_receipt(rail, lane, last, data, size)
                               : take(rail, lane, last, data, size);
}

static int on_message(mq_rail *rail, uint32_t peer, const uint8_t *data, size_t size)
{
    if (rail->is_in_flight)
        return 1;
    if (!is_garbage(data, size))
        return judge(rail, peer, data, size);
    rail->counts.garbage++;
    return 0;
}

/* --- The record ---------------------------------------------------------------------- */

/* What a record of what the group holds takes of the log. */
static size_t record_space(const mq_rail *rail)
{
    return (rail->record_size + MQ_RECORD_PAGE - 1) / MQ_RECORD_PAGE * MQ_RECORD_PAGE;
}

/* Choose the half that the record goes into. Returns whether there is one. */
static int find_room(mq_rail *rail, size_t space)
{
    if (rail->halves[rail->half].end + space <= rail->half_bytes)
        return 1;
    struct half *other = &rail->halves[1 - rail->half];
    if (other->last > rail->has || space > rail->half_bytes)
        return 0;
    rail->half = 1 - rail->half;
    *other = (struct half){0, 0};
    return 1;
}

static void seal(mq_rail *rail)
{
    uint8_t *record = rail->record;
    store_u32(record, MQ_RECORD_MAGIC);
    store(record + 8, rail->salt);
    store(record + 16, rail->number);
    store_u32(record + 24, (uint32_t)(rail->record_size - MQ_RECORD_HEAD_SIZE));
    store_u32(record + 28, 0);
    store_u32(record + 4, mq_crc32c(record + 8, rail->record_size - 8));
    memset(record + rail->record_size, 0, record_space(rail) - rail->record_size);
}

static void clear_group(mq_rail *rail)
{
    rail->part_count = 0;
    rail->record_size = MQ_RECORD_HEAD_SIZE;
    rail->group_bytes = 0;
    rail->is_in_flight = 0;
}

/* Take the queues of the group out of it: each stands in its first part, NULL in the others. */
static void leave_group(mq_rail *rail)
{
    for (int i = 0; i < rail->part_count; i++) {
        struct part *part = &rail->parts[i];
        if (part->lane->is_in_group)
            part->lane->is_in_group = 0;
        else
            part->lane = NULL;
    }
}

/* Nothing of the group is taken: its queues stop, its messages are handed over as they came. */
static void give_up_group(mq_rail *rail, uint64_t why)
{
    leave_group(rail);
    for (int i = 0; i < rail->part_count; i++)
        if (rail->parts[i].lane != NULL)
            stop(rail, rail->parts[i].lane, why);
    for (int i = 0; i < rail->part_count; i++)
        hand_part(rail, &rail->parts[i], MQ_RAIL_RAW);
    clear_group(rail);
}

static int64_t begin_write(mq_rail *rail, uint8_t *out, size_t out_size, uint64_t *offset)
{
    size_t space = record_space(rail);
    if (rail->part_count == 0 || rail->is_in_flight || out_size < space)
        return 0;
    if (!find_room(rail, space)) {
        give_up_group(rail, MQ_STOP_FULL);
        return 0;
    }
    rail->number++;
    rail->is_in_flight = 1;
    seal(rail);
    memcpy(out, rail->record, space);
    *offset = (uint64_t)rail->half * rail->half_bytes + rail->halves[rail->half].end;
    return (int64_t)space;
}

static void note_written(mq_rail *rail)
{
    size_t space = record_space(rail);
    rail->halves[rail->half].end += space;
    rail->halves[rail->half].last = rail->number;
    rail->used += space;
    rail->counts.records++;
    rail->counts.messages += (uint64_t)rail->part_count;
    rail->counts.bytes += rail->group_bytes;
}

static void finish_group(mq_rail *rail)
{
    note_written(rail);
    for (int i = 0; i < rail->part_count; i++)
        hand_part(rail, &rail->parts[i], MQ_RAIL_LOGGED);
    leave_group(rail);
    for (int i = 0; i < rail->part_count; i++) {
        struct lane *lane = rail->parts[i].lane;
        if (lane != NULL && lane->state == ARMED)
            say_mark(rail, lane);
        else if (lane != NULL)
            stop(rail, lane, MQ_STOP_ASKED);
    }
    clear_group(rail);
}

/* The log is out of use. */
static void give_up(mq_rail *rail)
{
    rail->is_broken = 1;
    give_up_group(rail, MQ_STOP_DISK);
    while (rail->first != NULL)
        stop(rail, rail->first, MQ_STOP_DISK);
}

static int end_write(mq_rail *rail, int ok)
{
    if (!rail->is_in_flight)
        return 0;
    if (ok) {
        finish_group(rail);
        return 0;
    }
    give_up(rail);
    return 0;
}

/* --- From outside -------------------------------------------------------------------- */

size_t mq_rail_record_size_max(const mq_rail *rail)
{
    size_t size = MQ_RECORD_HEAD_SIZE + rail->group_bytes_max +
                  (size_t)MQ_GROUP_MESSAGES_MAX * MQ_RECORD_PART_SIZE;
    return (size + MQ_RECORD_PAGE - 1) / MQ_RECORD_PAGE * MQ_RECORD_PAGE;
}

mq_rail *mq_rail_new(uint64_t salt, uint64_t first_number, uint64_t half_bytes,
                     uint32_t group_bytes_max)
{
    mq_rail *rail = calloc(1, sizeof *rail);
    if (rail == NULL)
        return NULL;
    rail->salt = salt;
    rail->number = first_number - 1;
    rail->half_bytes = half_bytes;
    rail->group_bytes_max = group_bytes_max;
    rail->bucket_count = BUCKETS_MIN;
    rail->buckets = calloc(BUCKETS_MIN, sizeof(struct lane *));
    rail->record = malloc(mq_rail_record_size_max(rail));
    if (rail->buckets == NULL || rail->record == NULL ||
        pthread_mutex_init(&rail->lock, NULL) != 0) {
        free(rail->buckets);
        free(rail->record);
        free(rail);
        return NULL;
    }
    clear_group(rail);
    return rail;
}

void mq_rail_free(mq_rail *rail)
{
    if (rail == NULL)
        return;
    while (rail->first != NULL)
        drop(rail, rail->first);
    pthread_mutex_destroy(&rail->lock);
    free(rail->buckets);
    free(rail->record);
    free(rail->marks);
    free(rail->out);
    free(rail);
}

/* --- The same, locked ---------------------------------------------------------------- */

static int arm(mq_rail *rail, uint64_t queue_id, uint64_t epoch, uint64_t after, uint32_t peer,
               uint32_t at_receipt)
{
    if (rail->is_broken || find(rail, queue_id) != NULL || has_waiting(rail, queue_id, 0))
        return 1;
    if (reserve(rail, sizeof(mq_rail_batch)) != 0)
        return 1;
    struct lane *lane = add(rail, queue_id);
    if (lane == NULL)
        return 1;
    lane->epoch = epoch;
    lane->received = after;
    lane->peer = peer;
    lane->is_at_receipt = at_receipt != 0;
    return 0;
}

static int disarm(mq_rail *rail, uint64_t queue_id)
{
    struct lane *lane = find(rail, queue_id);
    if (lane == NULL)
        return !has_waiting(rail, queue_id, MQ_RAIL_STOPPED);
    if (lane->is_in_group)
        lane->state = DRAINING;
    else
        stop(rail, lane, MQ_STOP_ASKED);
    return 0;
}

static void note_all_taken(mq_rail *rail)
{
    rail->out_at = rail->out_end = 0;
    rail->is_news = 0;
    rail->used = 0;
    if (rail->out_room > OUT_KEPT_MAX && reserve(rail, 0) == 0) {
        size_t room = pledged(rail) + 4096;
        uint8_t *out = room < rail->out_room ? realloc(rail->out, room) : NULL;
        if (out != NULL) {
            rail->out = out;
            rail->out_room = room;
        }
    }
}

static int64_t take_out(mq_rail *rail, uint8_t *out, size_t out_size)
{
    size_t size = 0, waiting = rail->out_end - rail->out_at;
    while (size < waiting) {
        mq_rail_batch head;
        memcpy(&head, rail->out + rail->out_at + size, sizeof head);
        size_t next = size + sizeof head + head.size;
        if (next > out_size) {
            if (size == 0)
                return -(int64_t)next;
            break;
        }
        size = next;
    }
    if (size != 0)
        memcpy(out, rail->out + rail->out_at, size);
    rail->out_at += size;
    rail->takes++;
    if (rail->out_at == rail->out_end)
        note_all_taken(rail);
    return (int64_t)size;
}

#define LOCKED(type, call)                                                                      \
    pthread_mutex_lock(&rail->lock);                                                            \
    type result = (call);                                                                       \
    pthread_mutex_unlock(&rail->lock);                                                          \
    return result

int mq_rail_arm(mq_rail *rail, uint64_t queue_id, uint64_t epoch, uint64_t after, uint32_t peer,
                uint32_t at_receipt)
{
    LOCKED(int, arm(rail, queue_id, epoch, after, peer, at_receipt));
}

int mq_rail_disarm(mq_rail *rail, uint64_t queue_id)
{
    LOCKED(int, disarm(rail, queue_id));
}

int mq_rail_on_message(mq_rail *rail, uint32_t peer, const uint8_t *data, size_t size)
{
    LOCKED(int, on_message(rail, peer, data, size));
}

int64_t mq_rail_begin_write(mq_rail *rail, uint8_t *out, size_t out_size, uint64_t *offset)
{
    LOCKED(int64_t, begin_write(rail, out, out_size, offset));
}

int mq_rail_end_write(mq_rail *rail, int ok)
{
    LOCKED(int, end_write(rail, ok));
}

int64_t mq_rail_next_mark(mq_rail *rail, uint8_t *out, uint32_t *peer)
{
    LOCKED(int64_t, next_mark(rail, out, peer));
}

int64_t mq_rail_take(mq_rail *rail, uint8_t *out, size_t out_size)
{
    LOCKED(int64_t, take_out(rail, out, out_size));
}

size_t mq_rail_waiting(mq_rail *rail)
{
    LOCKED(size_t, rail->out_end - rail->out_at);
}

static int is_urgent(const mq_rail *rail)
{
    return rail->is_news || rail->out_end - rail->out_at > MQ_URGENT_BYTES ||
           rail->used > rail->half_bytes / 2;
}

int mq_rail_is_urgent(mq_rail *rail)
{
    LOCKED(int, is_urgent(rail));
}

void mq_rail_look(mq_rail *rail, struct mq_rail_look *look)
{
    pthread_mutex_lock(&rail->lock);
    look->waiting = rail->out_end - rail->out_at;
    look->is_urgent = is_urgent(rail);
    look->takes = rail->takes;
    pthread_mutex_unlock(&rail->lock);
}

int mq_rail_cut(mq_rail *rail, uint64_t number)
{
    LOCKED(int, (rail->has = number > rail->has ? number : rail->has, 0));
}

uint64_t mq_rail_number(mq_rail *rail)
{
    LOCKED(uint64_t, rail->number);
}

void mq_rail_count(mq_rail *rail, mq_rail_counts *counts)
{
    pthread_mutex_lock(&rail->lock);
    *counts = rail->counts;
    pthread_mutex_unlock(&rail->lock);
}

void mq_rail_send_marks(mq_rail *rail,
                        void (*send)(void *context, uint32_t peer, const uint8_t *mark),
                        void *context)
{
    uint8_t mark[MQ_RAIL_MARK_SIZE];
    uint32_t peer;
    pthread_mutex_lock(&rail->lock);
    while (next_mark(rail, mark, &peer) > 0)
        send(context, peer, mark);
    pthread_mutex_unlock(&rail->lock);
}

void mq_rail_stop_all(mq_rail *rail)
{
    pthread_mutex_lock(&rail->lock);
    give_up(rail);
    pthread_mutex_unlock(&rail->lock);
}

struct mq_rail_thread **mq_rail_thread_of(mq_rail *rail)
{
    return &rail->thread;
}
