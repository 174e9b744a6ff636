/* CRC-32C (Castagnoli), reflected, polynomial 0x1edc6f41.
 *
 * Three ways to the same number: the CPU's instruction (SSE4.2 or ARMv8, found when the library
 * is loaded), three streams at once for long inputs because the instruction takes three cycles
 * but one can start in each; and slicing by 8 where there is no instruction. Streams are joined
 * by mq_crc_skip()'s arithmetic: state * x^(8 * size) modulo the polynomial (M. Adler's crc32c.c
 * and zlib's crc32_combine explain it).
 */
#include "wire.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define ONE 0x80000000u        /* x^0, reflected */

/* Bytes of one of the three streams: long enough to hide the joining, and short ones for what is
 * left and for frames of a few messages. Both are multiples of 8. */
#define STREAM_LONG 2048
#define STREAM_SHORT 192

#if defined(__x86_64__)
#include <nmmintrin.h>
#if defined(__clang__) && __clang_major__ >= 14 /* Since then a feature of its own: zig cc lacks it */
#define HARDWARE_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define HARDWARE_TARGET __attribute__((target("sse4.2")))
#endif
#define crc_u64(state, word) ((uint32_t)_mm_crc32_u64((state), (word)))
#define crc_u8(state, byte) _mm_crc32_u8((state), (byte))
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__clang__)
#define HARDWARE_TARGET __attribute__((target("crc")))
#define crc_u64(state, word) __builtin_arm_crc32cd((state), (word))
#define crc_u8(state, byte) __builtin_arm_crc32cb((state), (byte))
#else
#define HARDWARE_TARGET __attribute__((target("+crc")))
#define crc_u64(state, word) __builtin_aarch64_crc32cx((state), (word))
#define crc_u8(state, byte) __builtin_aarch64_crc32cb((state), (byte))
#endif
#endif

static uint32_t slices[8][256];     /* slices[k][b]: byte b followed by k zero bytes */
static uint32_t powers[64];         /* powers[k]: x^(2^k) */
static uint32_t skip_long[4][256];  /* byte k of a state, STREAM_LONG zero bytes later */
static uint32_t skip_short[4][256]; /* the same for STREAM_SHORT */
static int hardware;

static inline uint64_t load_u64(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int bit = 0; bit < 32; bit++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

uint32_t mq_crc_skip(uint32_t state, uint64_t size)
{
    for (int k = 3; size != 0; size >>= 1, k++)
        if (size & 1)
            state = multiply(powers[k], state);
    return state;
}

static uint32_t update_software(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = load_u64(data) ^ state;
        state = slices[7][word & 0xff] ^ slices[6][(word >> 8) & 0xff]
              ^ slices[5][(word >> 16) & 0xff] ^ slices[4][(word >> 24) & 0xff]
              ^ slices[3][(word >> 32) & 0xff] ^ slices[2][(word >> 40) & 0xff]
              ^ slices[1][(word >> 48) & 0xff] ^ slices[0][word >> 56];
    }
    for (; size != 0; data++, size--)
        state = (state >> 8) ^ slices[0][(state ^ *data) & 0xff];
    return state;
}

#if defined(HARDWARE_TARGET)

static inline uint32_t skip_stream(uint32_t skip[4][256], uint32_t state)
{
    return skip[0][state & 0xff] ^ skip[1][(state >> 8) & 0xff] ^ skip[2][(state >> 16) & 0xff]
         ^ skip[3][state >> 24];
}

HARDWARE_TARGET
static uint32_t update_streams(uint32_t state, const uint8_t *data, size_t stream,
                               uint32_t skip[4][256])
{
    uint32_t second = 0, third = 0;
    for (size_t at = 0; at < stream; at += 8) {
        state = crc_u64(state, load_u64(data + at));
        second = crc_u64(second, load_u64(data + stream + at));
        third = crc_u64(third, load_u64(data + 2 * stream + at));
    }
    state = skip_stream(skip, state) ^ second;
    return skip_stream(skip, state) ^ third;
}

HARDWARE_TARGET
static uint32_t update_hardware(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 3 * STREAM_LONG; data += 3 * STREAM_LONG, size -= 3 * STREAM_LONG)
        state = update_streams(state, data, STREAM_LONG, skip_long);
    for (; size >= 3 * STREAM_SHORT; data += 3 * STREAM_SHORT, size -= 3 * STREAM_SHORT)
        state = update_streams(state, data, STREAM_SHORT, skip_short);
    for (; size >= 8; data += 8, size -= 8)
        state = crc_u64(state, load_u64(data));
    for (; size != 0; data++, size--)
        state = crc_u8(state, *data);
    return state;
}

static int find_hardware(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") != 0;
#else
    return (getauxval(AT_HWCAP) >> 7) & 1; /* HWCAP_CRC32 */
#endif
}

#else

static uint32_t update_hardware(uint32_t state, const uint8_t *data, size_t size)
{
    return update_software(state, data, size);
}

static int find_hardware(void)
{
    return 0;
}

#endif

static void fill_skip(uint32_t skip[4][256], uint64_t size)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 0; k < 4; k++)
            skip[k][byte] = mq_crc_skip(byte << (8 * k), size);
}

/* Runs when the library is loaded, before any thread can call into it. */
__attribute__((constructor)) static void set_up(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (POLYNOMIAL & (0u - (state & 1)));
        slices[0][byte] = state;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            slices[k][byte] = (slices[k - 1][byte] >> 8) ^ slices[0][slices[k - 1][byte] & 0xff];
    powers[0] = ONE >> 1; /* x */
    for (int k = 1; k < 64; k++)
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
    fill_skip(skip_long, STREAM_LONG);
    fill_skip(skip_short, STREAM_SHORT);
    hardware = find_hardware();
}

uint32_t mq_crc_update(uint32_t state, const uint8_t *data, size_t size)
{
    return hardware ? update_hardware(state, data, size) : update_software(state, data, size);
}

uint32_t mq_crc32c(const uint8_t *data, size_t size)
{
    return ~mq_crc_update(~0u, data, size);
}

uint32_t mq_crc32c_software(const uint8_t *data, size_t size)
{
    return ~update_software(~0u, data, size);
}

int mq_crc32c_is_hardware(void)
{
    return hardware;
}
