/* Whether an open file still has its name: asked before each commit, with the GIL kept. */
#define _POSIX_C_SOURCE 200809L /* fstatat */
#include "wire.h"

#include <errno.h>
#include <sys/stat.h>

int mq_file_state(int file, uint64_t inode, int directory, const char *name)
{
    struct stat found;
    if (fstat(file, &found) != 0 || found.st_ino != inode)
        return MQ_FILE_CLOSED;
    if (found.st_nlink == 0)
        return MQ_FILE_GONE;
    if (directory < 0)
        return MQ_FILE_THERE;
    if (fstatat(directory, name, &found, 0) != 0)
        return errno == ENOENT ? MQ_FILE_GONE : MQ_FILE_THERE;
    return found.st_ino == inode ? MQ_FILE_THERE : MQ_FILE_GONE;
}
