/* Frames: sealing, checking, stamping, cutting, listing. wire.h has the layout.
 *
 * Sizes and positions are uint64_t from the moment they are read: count is at most 2^32 - 1, so
 * no sum or product here can wrap.
 */
#include "wire.h"

#include <string.h>

#define NUMBER_MAX ((uint64_t)INT64_MAX)

static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint64_t load_u64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline void store_u32(uint8_t *p, uint32_t value)
{
    memcpy(p, &value, sizeof value);
}

static inline void store_u64(uint8_t *p, uint64_t value)
{
    memcpy(p, &value, sizeof value);
}

static inline uint32_t flags_of(const uint8_t *frame)
{
    return (uint32_t)frame[MQ_AT_FLAGS] | (uint32_t)frame[MQ_AT_FLAGS + 1] << 8;
}

static inline int has_properties(const uint8_t *frame)
{
    return (flags_of(frame) & MQ_FLAG_PROPERTIES) != 0;
}

/* How many bytes the terms take at the frame's end. */
static inline uint64_t terms_size(const uint8_t *frame)
{
    return (flags_of(frame) & MQ_FLAG_TERMS) != 0 ? MQ_TERMS_SIZE : 0;
}

/* How many values each column holds. */
static inline uint64_t value_count(const uint8_t *frame)
{
    return frame[MQ_AT_KIND] == MQ_KIND_PUBLISH ? load_u32(frame + MQ_AT_COUNT) : 1;
}

static inline uint64_t align(uint64_t position, uint64_t unit)
{
    return (position + unit - 1) & ~(unit - 1);
}

static int is_zero(const uint8_t *frame, uint64_t from, uint64_t to)
{
    uint8_t any = 0;
    for (; from < to; from++)
        any |= frame[from];
    return any == 0;
}

static uint32_t crc_of(const uint8_t *frame, uint64_t length)
{
    static const uint8_t zeros[4];
    uint32_t state = mq_crc_update(~0u, frame, MQ_AT_CRC);
    state = mq_crc_update(state, zeros, sizeof zeros);
    return ~mq_crc_update(state, frame + MQ_AT_RESERVED, length - MQ_AT_RESERVED);
}

const char *mq_error_text(int code)
{
    switch (code) {
#define MQ_ERROR_TEXT(name, number, text) \
    case name:                            \
        return text;
        MQ_ERRORS(MQ_ERROR_TEXT)
#undef MQ_ERROR_TEXT
    default:
        return "no such error code";
    }
}

/* --- Columns ------------------------------------------------------------------------ */

/* Where a column lies: its offsets, its values, and the first byte after them. */
struct column {
    uint64_t offsets_at;
    uint64_t values_at;
    uint64_t end;
};

/* Locate the column at `at`. Reads the last offset only; everything stays within `length`. */
static int locate(const uint8_t *frame, uint64_t length, uint64_t at, uint64_t count,
                  struct column *column)
{
    uint64_t values_at = at + 4 * (count + 1);
    if (values_at > length)
        return MQ_E_COUNT;
    uint64_t last = load_u32(frame + values_at - 4);
    if (last > length - values_at)
        return MQ_E_OFFSETS;
    column->offsets_at = at;
    column->values_at = values_at;
    column->end = values_at + last;
    return 0;
}

/* offsets[0] = 0 and none is less than the one before. */
static int rises_from_zero(const uint8_t *offsets, uint64_t count)
{
    uint32_t falls = load_u32(offsets);
    for (uint64_t index = 0; index < count; index++)
        falls |= load_u32(offsets + 4 * index + 4) < load_u32(offsets + 4 * index);
    return falls == 0;
}

static int check_column(const uint8_t *frame, uint64_t length, uint64_t at, uint64_t count,
                        struct column *column)
{
    int error = locate(frame, length, at, count, column);
    if (error == 0 && !rises_from_zero(frame + at, count))
        error = MQ_E_OFFSETS;
    return error;
}

/* Locate column 0 (bodies) or 1 (properties) of a frame that was checked, without walking it. */
static int find_column(const uint8_t *frame, size_t size, int number, struct column *column)
{
    if (size < MQ_FRAME_SIZE_MIN)
        return MQ_E_SHORT;
    if (load_u32(frame + MQ_AT_LENGTH) != size)
        return MQ_E_LENGTH;
    if (size < MQ_FRAME_SIZE_MIN + terms_size(frame))
        return MQ_E_LENGTH;
    if (number != 0 && !(number == 1 && has_properties(frame)))
        return MQ_E_RESERVED;
    uint64_t length = size - terms_size(frame);
    int error = locate(frame, length, MQ_HEADER_SIZE, value_count(frame), column);
    if (error == 0 && number == 1)
        error = locate(frame, length, align(column->end, 4), value_count(frame), column);
    return error;
}

/* --- Checking ----------------------------------------------------------------------- */

static int check_header(const uint8_t *frame, size_t size)
{
    if (size < MQ_FRAME_SIZE_MIN)
        return MQ_E_SHORT;
    if (load_u32(frame) != MQ_MAGIC)
        return MQ_E_MAGIC;
    if (frame[MQ_AT_VERSION] != MQ_VERSION)
        return MQ_E_VERSION;
    uint32_t length = load_u32(frame + MQ_AT_LENGTH);
    if (length < MQ_FRAME_SIZE_MIN || length > MQ_FRAME_SIZE_MAX || length % 8 != 0)
        return MQ_E_LENGTH;
    if (length > size)
        return MQ_E_TRUNCATED;
    return 0;
}

static int check_numbers(const uint8_t *frame)
{
    uint64_t count = load_u32(frame + MQ_AT_COUNT);
    uint64_t first_sequence = load_u64(frame + MQ_AT_FIRST_SEQUENCE);
    uint64_t first_number = load_u64(frame + MQ_AT_FIRST_NUMBER);
    uint64_t all = load_u64(frame + MQ_AT_QUEUE_ID) | load_u64(frame + MQ_AT_EPOCH)
                 | load_u64(frame + MQ_AT_LSN) | load_u64(frame + MQ_AT_PRODUCER)
                 | load_u64(frame + MQ_AT_SETTLED) | first_sequence | first_number;
    if (count == 0)
        return MQ_E_COUNT;
    if (all > NUMBER_MAX || first_sequence > NUMBER_MAX - count
        || first_number > NUMBER_MAX - count)
        return MQ_E_RANGE;
    if (load_u32(frame + MQ_AT_RESERVED) != 0)
        return MQ_E_RESERVED;
    if ((flags_of(frame) & (MQ_FLAG_PROPERTIES | MQ_FLAG_TERMS)) != 0
        && frame[MQ_AT_KIND] != MQ_KIND_PUBLISH)
        return MQ_E_RESERVED;
    return 0;
}

/* The terms at `terms`: numbers as all others are, and not there without need. */
static int check_terms(const uint8_t *terms)
{
    uint64_t any = load_u64(terms) | load_u64(terms + 8);
    return any == 0 || any > NUMBER_MAX ? MQ_E_TERMS : 0;
}

/* What lies between the header and the terms, and these. */
static int check_columns(const uint8_t *frame, uint64_t length)
{
    if (length < MQ_FRAME_SIZE_MIN + terms_size(frame))
        return MQ_E_LENGTH;
    struct column column;
    int terms_error = 0;
    if (terms_size(frame) != 0) {
        length -= terms_size(frame);
        terms_error = check_terms(frame + length);
    }
    uint64_t count = value_count(frame);
    int error = check_column(frame, length, MQ_HEADER_SIZE, count, &column);
    if (error == 0 && has_properties(frame)) {
        /* Not beyond `length`, which is a multiple of 8 and no less than `end`. */
        uint64_t at = align(column.end, 4);
        if (!is_zero(frame, column.end, at))
            return MQ_E_PADDING;
        error = check_column(frame, length, at, count, &column);
    }
    if (error != 0)
        return error;
    if (align(column.end, 8) != length || !is_zero(frame, column.end, length))
        return MQ_E_PADDING;
    return terms_error;
}

/* All but the crc. */
static int check_structure(const uint8_t *frame, size_t size)
{
    int error = check_header(frame, size);
    if (error == 0)
        error = check_numbers(frame);
    if (error == 0)
        error = check_columns(frame, load_u32(frame + MQ_AT_LENGTH));
    return error;
}

int64_t mq_check_first(const uint8_t *run, size_t size)
{
    int error = check_structure(run, size);
    if (error != 0)
        return error;
    uint32_t length = load_u32(run + MQ_AT_LENGTH);
    if (crc_of(run, length) != load_u32(run + MQ_AT_CRC))
        return MQ_E_CRC;
    return length;
}

int mq_check(const uint8_t *frame, size_t size)
{
    int64_t length = mq_check_first(frame, size);
    if (length < 0)
        return (int)length;
    return (uint64_t)length == size ? 0 : MQ_E_TRAILING;
}

size_t mq_checked_prefix(const uint8_t *run, size_t size)
{
    size_t at = 0;
    while (at < size) {
        int64_t length = mq_check_first(run + at, size - at);
        if (length < 0)
            break;
        at += (size_t)length;
    }
    return at;
}

/* --- Making ------------------------------------------------------------------------- */

/* Turn the lengths behind the 0 at `at` into offsets, whose last must be `size`. */
static int accumulate(uint8_t *frame, uint64_t length, uint64_t at, uint64_t count, uint64_t size)
{
    uint64_t end = at + 4 * (count + 1);
    if (end > length)
        return MQ_E_COUNT;
    uint64_t sum = 0;
    for (at += 4; at < end; at += 4) {
        sum += load_u32(frame + at);
        store_u32(frame + at, (uint32_t)sum);
    }
    /* At most 2^32 terms of 32 bits: `sum` cannot wrap, and only a whole one equals `size`. */
    return sum == size ? 0 : MQ_E_BODIES;
}

int64_t mq_lengths(const uint8_t *offsets, size_t count, uint8_t *out)
{
    /* What is negative is above INT32_MAX as unsigned. */
    uint32_t from = load_u32(offsets);
    uint32_t falls = from > INT32_MAX;
    uint32_t largest = 0;
    for (size_t index = 0; index < count; index++) {
        uint32_t to = load_u32(offsets + 4 * index + 4);
        uint32_t length = to - from;
        falls |= to < from || to > INT32_MAX;
        largest = length > largest ? length : largest;
        store_u32(out + 4 * index, length);
        from = to;
    }
    return falls ? MQ_E_OFFSETS : (int64_t)largest;
}

int mq_seal(uint8_t *frame, size_t size, size_t body_size, size_t property_size)
{
    int error = check_header(frame, size);
    if (error != 0)
        return error;
    if (load_u32(frame + MQ_AT_LENGTH) != size || body_size > size || property_size > size)
        return MQ_E_LENGTH;
    uint64_t count = value_count(frame);
    error = accumulate(frame, size, MQ_HEADER_SIZE, count, body_size);
    if (error == 0 && has_properties(frame)) {
        uint64_t at = align(MQ_HEADER_SIZE + 4 * (count + 1) + body_size, 4);
        error = accumulate(frame, size, at, count, property_size);
    }
    if (error == 0)
        error = check_structure(frame, size);
    if (error == 0)
        store_u32(frame + MQ_AT_CRC, crc_of(frame, size));
    return error;
}

int mq_stamp(const uint8_t *frame, size_t size, uint64_t queue_id, uint64_t epoch, uint64_t lsn,
             uint64_t first_sequence, int64_t timestamp_us, uint8_t *out)
{
    int error = check_header(frame, size);
    if (error != 0)
        return error;
    if (load_u32(frame + MQ_AT_LENGTH) != size)
        return MQ_E_TRAILING;
    memcpy(out, frame, size);
    store_u64(out + MQ_AT_QUEUE_ID, queue_id);
    store_u64(out + MQ_AT_EPOCH, epoch);
    store_u64(out + MQ_AT_LSN, lsn);
    store_u64(out + MQ_AT_FIRST_SEQUENCE, first_sequence);
    store_u64(out + MQ_AT_TIMESTAMP_US, (uint64_t)timestamp_us);
    error = check_numbers(out);
    if (error != 0)
        return error;
    /* CRCs are linear: the change of the crc is the crc of the change, here the header's. */
    uint8_t change[MQ_HEADER_SIZE];
    for (int at = 0; at < MQ_HEADER_SIZE; at++)
        change[at] = frame[at] ^ out[at];
    uint32_t moved = mq_crc_skip(mq_crc_update(0, change, sizeof change), size - MQ_HEADER_SIZE);
    store_u32(out + MQ_AT_CRC, load_u32(frame + MQ_AT_CRC) ^ moved);
    return 0;
}

/* --- Cutting ------------------------------------------------------------------------ */

/* What messages [start, stop) take of one column. */
struct piece {
    uint64_t offsets_at; /* of offsets[start] */
    uint64_t values_at;  /* of the first byte of message `start` */
    uint64_t size;
};

static int find_piece(const uint8_t *frame, const struct column *column, uint64_t start,
                      uint64_t stop, struct piece *piece)
{
    uint64_t from = load_u32(frame + column->offsets_at + 4 * start);
    uint64_t to = load_u32(frame + column->offsets_at + 4 * stop);
    if (from > to || column->values_at + to > column->end)
        return MQ_E_OFFSETS;
    piece->offsets_at = column->offsets_at + 4 * start;
    piece->values_at = column->values_at + from;
    piece->size = to - from;
    return 0;
}

/* The pieces of each column, and the size of a frame of them, or an error. */
static int64_t plan_cut(const uint8_t *frame, size_t size, uint64_t start, uint64_t stop,
                        struct piece pieces[2])
{
    struct column column;
    int error = find_column(frame, size, 0, &column);
    if (error != 0)
        return error;
    if (frame[MQ_AT_KIND] != MQ_KIND_PUBLISH || start >= stop || stop > value_count(frame))
        return MQ_E_CUT;
    error = find_piece(frame, &column, start, stop, &pieces[0]);
    uint64_t offsets_size = 4 * (stop - start + 1);
    uint64_t end = MQ_HEADER_SIZE + offsets_size + pieces[0].size;
    if (error == 0 && has_properties(frame)) {
        error = find_column(frame, size, 1, &column);
        if (error == 0)
            error = find_piece(frame, &column, start, stop, &pieces[1]);
        end = align(end, 4) + offsets_size + pieces[1].size;
    }
    return error != 0 ? error : (int64_t)(align(end, 8) + terms_size(frame));
}

/* Write a piece as a column at `at`. Returns the first byte after it. */
static uint64_t copy_piece(const uint8_t *frame, const struct piece *piece, uint64_t count,
                           uint8_t *out, uint64_t at)
{
    uint32_t base = load_u32(frame + piece->offsets_at);
    for (uint64_t index = 0; index <= count; index++)
        store_u32(out + at + 4 * index, load_u32(frame + piece->offsets_at + 4 * index) - base);
    at += 4 * (count + 1);
    memcpy(out + at, frame + piece->values_at, piece->size);
    return at + piece->size;
}

/* Move a number along by `start`; 0 stays, it says that there is none. */
static void advance(uint8_t *field, uint64_t start)
{
    uint64_t first = load_u64(field);
    if (first != 0)
        store_u64(field, first + start);
}

int64_t mq_cut_size(const uint8_t *frame, size_t size, uint32_t start, uint32_t stop)
{
    struct piece pieces[2] = {{0, 0, 0}, {0, 0, 0}};
    return plan_cut(frame, size, start, stop, pieces);
}

int mq_cut(const uint8_t *frame, size_t size, uint32_t start, uint32_t stop, uint8_t *out,
           size_t out_size)
{
    struct piece pieces[2] = {{0, 0, 0}, {0, 0, 0}};
    int64_t needed = plan_cut(frame, size, start, stop, pieces);
    if (needed < 0)
        return (int)needed;
    if ((uint64_t)needed != out_size)
        return MQ_E_OUT_SIZE;
    uint64_t count = stop - start;
    memset(out, 0, out_size);
    memcpy(out, frame, MQ_HEADER_SIZE);
    uint64_t end = copy_piece(frame, &pieces[0], count, out, MQ_HEADER_SIZE);
    if (has_properties(frame))
        copy_piece(frame, &pieces[1], count, out, align(end, 4));
    uint64_t terms = terms_size(frame);
    memcpy(out + out_size - terms, frame + size - terms, terms);
    store_u32(out + MQ_AT_COUNT, (uint32_t)count);
    store_u32(out + MQ_AT_LENGTH, (uint32_t)out_size);
    advance(out + MQ_AT_FIRST_SEQUENCE, start);
    advance(out + MQ_AT_FIRST_NUMBER, start);
    int error = check_structure(out, out_size);
    if (error == 0)
        store_u32(out + MQ_AT_CRC, crc_of(out, out_size));
    return error;
}

/* --- Listing ------------------------------------------------------------------------ */

#define ARRAY_32 0xdd
#define BIN_32 0xc6

/* MessagePack's type byte and big-endian size. */
static void put_head(uint8_t *out, uint8_t type, uint32_t size)
{
    out[0] = type;
    store_u32(out + 1, __builtin_bswap32(size));
}

int mq_list(const uint8_t *frame, size_t size, int number, uint8_t *out, size_t out_size)
{
    struct column column;
    int error = find_column(frame, size, number, &column);
    if (error != 0)
        return error;
    uint64_t count = value_count(frame);
    uint64_t values_size = column.end - column.values_at;
    if (out_size != 5 + 5 * count + values_size)
        return MQ_E_OUT_SIZE;
    const uint8_t *offsets = frame + column.offsets_at;
    const uint8_t *values = frame + column.values_at;
    if (load_u32(offsets) != 0)
        return MQ_E_OFFSETS;
    put_head(out, ARRAY_32, (uint32_t)count);
    out += 5;
    for (uint64_t index = 0; index < count; index++) {
        uint32_t from = load_u32(offsets + 4 * index);
        uint32_t to = load_u32(offsets + 4 * index + 4);
        /* Rising from 0 and never above the last one: what is written adds up to out_size. */
        if (from > to || to > values_size)
            return MQ_E_OFFSETS;
        put_head(out, BIN_32, to - from);
        memcpy(out + 5, values + from, to - from);
        out += 5 + (to - from);
    }
    return 0;
}
