/* The frame of mirrorq: one op of one queue, the same bytes on the wire, in the store and for
 * Spark. Little-endian.
 *
 *   offset  size  field
 *        0     4  magic "mqf1"
 *        4     1  version          1
 *        5     1  kind             what the op does; 1 = publish
 *        6     2  flags            1 = properties column, 2 = transient, 4 = terms;
 *                                 bits 8 to 12: priority
 *        8     8  queue_id
 *       16     8  epoch            in which the op was made
 *       24     8  lsn              0 = not stamped yet
 *       32     8  first_sequence   publish: of the first message; 0 = none
 *       40     4  count            publish: messages; refusal: numbers; else 1. Never 0
 *       44     4  length           of the whole frame, padding included; a multiple of 8
 *       48     8  producer         0 = none
 *       56     8  first_number     the producer's number of the first message; 0 = none
 *       64     8  settled
 *       72     8  timestamp_us     signed
 *       80     4  crc              CRC-32C of the whole frame with these four bytes as 0
 *       84     4  reserved         0
 *       88        int32 offsets[n + 1], n = count for publish, else 1; offsets[0] = 0
 *                 the n bodies, end to end; offsets count from here
 *                 with flag 1: zeros up to a multiple of 4, int32 offsets2[n + 1], properties
 *                 zeros up to a multiple of 8
 *   length - 16     with flag 4, which only a publish has: the terms of all its messages
 *               8  delay_ms        0 = none
 *               8  ttl_ms          0 = none; not both are
 *
 * (offsets, bodies) is an Arrow binary array as it stands, and so are the properties.
 *
 * All unsigned 64-bit fields are at most 2^63 - 1, and so are first_sequence + count and
 * first_number + count; a frame is at most 2^31 - 8 bytes. mq_check() holds a frame to every line
 * of this table. Flags that are not named here are carried along.
 *
 * Nothing here allocates, does I/O or knows Python; the only state are the tables of mq_crc.c,
 * filled when the library is loaded and constant from then on. Inputs may lie at any address.
 * A negative return is an error: mq_error_text() says which.
 */
#ifndef MQ_WIRE_H
#define MQ_WIRE_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "mirrorq's frames are little-endian, and so must the machine be"
#endif

#define MQ_MAGIC 0x3166716du /* "mqf1" */
#define MQ_VERSION 1
#define MQ_KIND_PUBLISH 1
#define MQ_FLAG_PROPERTIES 1
#define MQ_FLAG_TERMS 4

#define MQ_AT_VERSION 4
#define MQ_AT_KIND 5
#define MQ_AT_FLAGS 6
#define MQ_AT_QUEUE_ID 8
#define MQ_AT_EPOCH 16
#define MQ_AT_LSN 24
#define MQ_AT_FIRST_SEQUENCE 32
#define MQ_AT_COUNT 40
#define MQ_AT_LENGTH 44
#define MQ_AT_PRODUCER 48
#define MQ_AT_FIRST_NUMBER 56
#define MQ_AT_SETTLED 64
#define MQ_AT_TIMESTAMP_US 72
#define MQ_AT_CRC 80
#define MQ_AT_RESERVED 84
#define MQ_HEADER_SIZE 88

#define MQ_TERMS_SIZE 16
#define MQ_FRAME_SIZE_MIN (MQ_HEADER_SIZE + 8) /* the header and two offsets */
#define MQ_FRAME_SIZE_MAX (INT32_MAX - 7)      /* offsets are signed 32-bit, as in Arrow */

/* name, code, text */
#define MQ_ERRORS(X)                                                                            \
    X(MQ_E_SHORT, -1, "it is shorter than the smallest frame")                                  \
    X(MQ_E_MAGIC, -2, "it does not begin with the magic of a frame")                            \
    X(MQ_E_VERSION, -3, "its version is not known here")                                        \
    X(MQ_E_LENGTH, -4, "its length field is no legal length")                                   \
    X(MQ_E_TRUNCATED, -5, "it ends before its length field says")                               \
    X(MQ_E_TRAILING, -6, "bytes follow after its end")                                          \
    X(MQ_E_COUNT, -7, "its count is 0 or its offsets do not fit")                               \
    X(MQ_E_OFFSETS, -8, "its offsets do not rise from 0 to within its length")                  \
    X(MQ_E_PADDING, -9, "its columns do not end where they should, or padding is not zero")     \
    X(MQ_E_RESERVED, -10, "its reserved field is not zero, or a column is there that may not")  \
    X(MQ_E_RANGE, -11, "an id, number or sequence in it is above 2^63 - 1")                     \
    X(MQ_E_CRC, -12, "its bytes do not match its checksum")                                     \
    X(MQ_E_BODIES, -13, "the lengths given are not those of the bytes given")                   \
    X(MQ_E_CUT, -14, "the messages to cut out are not a range of it")                           \
    X(MQ_E_OUT_SIZE, -15, "the output has not the size that is needed")                         \
    X(MQ_E_TERMS, -16, "its terms are above 2^63 - 1, or are there and say nothing")

enum {
#define MQ_ERROR_CODE(name, code, text) name = code,
    MQ_ERRORS(MQ_ERROR_CODE)
#undef MQ_ERROR_CODE
};

/* One CRC step: the state before and after, without the inversions at both ends. */
uint32_t mq_crc_update(uint32_t state, const uint8_t *data, size_t size);
/* The state after `size` zero bytes, in time that grows with log(size). */
uint32_t mq_crc_skip(uint32_t state, uint64_t size);

/* What follows is all that Python sees; build.py reads it from here. */
/* [cdef] */

/* The text of an error code. */
const char *mq_error_text(int code);

/* CRC-32C (Castagnoli), by the CPU's own instruction where it has one. */
uint32_t mq_crc32c(const uint8_t *data, size_t size);
/* The same, always by tables. */
uint32_t mq_crc32c_software(const uint8_t *data, size_t size);
/* 1 when mq_crc32c() uses the CPU's instruction. */
int mq_crc32c_is_hardware(void);

/* What lies between `count + 1` offsets, int32 as Arrow has them: write each length to `out`, as
 * mq_seal() wants them. Returns the largest one; MQ_E_OFFSETS when they begin below 0 or fall. */
int64_t mq_lengths(const uint8_t *offsets, size_t count, uint8_t *out);

/* Finish a frame in place: the header but for the crc is written, and each column is 0 followed
 * by the *lengths* of its values, which become offsets. Returns 0. */
int mq_seal(uint8_t *frame, size_t size, size_t body_size, size_t property_size);

/* Check exactly one frame. Returns 0. */
int mq_check(const uint8_t *frame, size_t size);

/* How many bytes from the start of `run` are whole frames that pass mq_check(). */
size_t mq_checked_prefix(const uint8_t *run, size_t size);

/* Check the frame that `run` begins with. Returns its length. */
int64_t mq_check_first(const uint8_t *run, size_t size);

/* Copy a checked frame to `out`, of the same size, with these fields set. The crc is moved along
 * by the change alone: it still covers the bodies as they were when the frame was sealed. */
int mq_stamp(const uint8_t *frame, size_t size, uint64_t queue_id, uint64_t epoch, uint64_t lsn,
             uint64_t first_sequence, int64_t timestamp_us, uint8_t *out);

/* The size of the frame that mq_cut() makes of messages [start, stop) of a checked frame. */
int64_t mq_cut_size(const uint8_t *frame, size_t size, uint32_t start, uint32_t stop);

/* Write that frame to `out`, whose `out_size` is what mq_cut_size() said. Returns 0. */
int mq_cut(const uint8_t *frame, size_t size, uint32_t start, uint32_t stop, uint8_t *out,
           size_t out_size);

/* Write one column (0 bodies, 1 properties) of a checked frame to `out` as a MessagePack array
 * of bin 32, which is the form that a decoder makes a list of in one call. `out_size` is
 * 5 + 5 * count + the column's bytes. Returns 0. */
int mq_list(const uint8_t *frame, size_t size, int column, uint8_t *out, size_t out_size);

/* Whether the open file with this inode still has a name; when `directory` is not below 0, whether
 * it has this name there. MQ_FILE_CLOSED: the descriptor is closed, or leads to another file. */
int mq_file_state(int file, uint64_t inode, int directory, const char *name);
enum { MQ_FILE_THERE, MQ_FILE_GONE, MQ_FILE_CLOSED };

/* [end of cdef] */

#endif
