/* Preloaded into a process: writes down, in order, what it does to some files.
 *
 * MIRRORQ_RECORD_FILES names the files, with a colon between, MIRRORQ_RECORD_LOG the log. A record is
 * {u16 kind, u16 file, u32 is synced, u64 offset, u64 length}, little-endian as this machine is, and
 * then, of a write, its bytes. recording.py reads it, and puts marks of its own between. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 3 };
struct record { uint16_t kind, file; uint32_t is_synced; uint64_t offset, length; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;

/* Which of the files it is, from 1; 0: none of them. */
static int is_recorded(int fd) {
    const char *names = getenv("MIRRORQ_RECORD_FILES");
    struct stat file, given;
    if (!names || fstat(fd, &given) != 0) return 0;
    for (int number = 1; *names; number++) {
        char name[PATH_MAX];
        size_t length = strcspn(names, ":");
        if (length >= sizeof name) abort();
        memcpy(name, names, length);
        name[length] = 0;
        if (stat(name, &file) == 0 && file.st_ino == given.st_ino && file.st_dev == given.st_dev)
            return number;
        names += length + (names[length] == ':');
    }
    return 0;
}

static void put(const void *bytes, size_t length) {
    if (log_fd < 0)
        log_fd = open(getenv("MIRRORQ_RECORD_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (const char *at = bytes; length;) {
        long done = syscall(SYS_write, log_fd, at, length);
        if (done <= 0) abort();
        at += done;
        length -= done;
    }
}

static void note(int kind, int file, uint32_t is_synced, uint64_t offset, uint64_t length) {
    struct record record = {kind, file, is_synced, offset, length};
    put(&record, sizeof record);
}

static void note_write(int fd, int file, const struct iovec *parts, int count, uint64_t offset, ssize_t done) {
    if (done <= 0) return;
    pthread_mutex_lock(&lock);
    note(WRITE, file, (fcntl(fd, F_GETFL) & O_DSYNC) != 0, offset, done);
    for (int i = 0; i < count && done > 0; i++) {
        size_t length = parts[i].iov_len < (size_t)done ? parts[i].iov_len : (size_t)done;
        put(parts[i].iov_base, length);
        done -= length;
    }
    pthread_mutex_unlock(&lock);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    ssize_t done = REAL(pwrite)(fd, bytes, length, offset);
    struct iovec part = {(void *)bytes, length};
    int file = is_recorded(fd);
    if (file) note_write(fd, file, &part, 1, offset, done);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite(fd, bytes, length, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    ssize_t done = REAL(pwritev)(fd, parts, count, offset);
    int file = is_recorded(fd);
    if (file) note_write(fd, file, parts, count, offset, done);
    return done;
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev(fd, parts, count, offset);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    ssize_t done = REAL(pwritev2)(fd, parts, count, offset, flags);
    int file = is_recorded(fd);
    if (file) note_write(fd, file, parts, count, offset, done);
    return done;
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev2(fd, parts, count, offset, flags);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    int is = is_recorded(fd);
    off_t offset = is ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t done = REAL(write)(fd, bytes, length);
    struct iovec part = {(void *)bytes, length};
    if (is) note_write(fd, is, &part, 1, offset, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    int is = is_recorded(fd);
    off_t offset = is ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t done = REAL(writev)(fd, parts, count);
    if (is) note_write(fd, is, parts, count, offset, done);
    return done;
}

static int note_sync(int fd, int result) {
    int file = result == 0 ? is_recorded(fd) : 0;
    if (file) {
        pthread_mutex_lock(&lock);
        note(SYNC, file, 0, 0, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fdatasync(int fd) { return note_sync(fd, REAL(fdatasync)(fd)); }
int fsync(int fd) { return note_sync(fd, REAL(fsync)(fd)); }

int ftruncate(int fd, off_t size) {
    int result = REAL(ftruncate)(fd, size);
    int file = result == 0 ? is_recorded(fd) : 0;
    if (file) note(TRUNCATE, file, 0, size, 0);
    return result;
}

int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t length) {
    int result = REAL(posix_fallocate)(fd, offset, length);
    int file = result == 0 ? is_recorded(fd) : 0;
    struct stat now;
    if (file && fstat(fd, &now) == 0) note(TRUNCATE, file, 0, now.st_size, 0);
    return result;
}

int posix_fallocate64(int fd, off_t offset, off_t length) {
    return posix_fallocate(fd, offset, length);
}

int truncate(const char *path, off_t size) {
    int result = REAL(truncate)(path, size);
    int fd = result == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    int file = fd >= 0 ? is_recorded(fd) : 0;
    if (file) note(TRUNCATE, file, 0, size, 0);
    if (fd >= 0) close(fd);
    return result;
}

int truncate64(const char *path, off_t size) { return truncate(path, size); }
