/* SPDX-License-Identifier: Apache-2.0 */
/* Writes event files of TensorBoard (executor/events.h). */
#include "executor/events.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Fields of the messages: number << 3 | wire type (0: varint, 1: 64 bits, 2: length and bytes, 5:
 * 32 bits). */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3 | 0,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3 | 0,
    SESSION_START = 1
};

/* A message that is built: larger than any of this file. */
struct message {
    unsigned char bytes[2048];
    size_t count;
};

uint32_t tdm_crc32c(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= byte[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

/* As TFRecord stores it: a CRC of data that hold CRCs would be weak. */
static uint32_t masked(const void *data, size_t bytes)
{
    uint32_t crc = tdm_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_bytes(struct message *m, const void *data, size_t bytes)
{
    if (bytes > sizeof(m->bytes) - m->count)
        return;
    memcpy(m->bytes + m->count, data, bytes);
    m->count += bytes;
}

static void put_varint(struct message *m, uint64_t value)
{
    unsigned char byte;
    for (; value >= 0x80; value >>= 7) {
        byte = (unsigned char)(value | 0x80);
        put_bytes(m, &byte, 1);
    }
    byte = (unsigned char)value;
    put_bytes(m, &byte, 1);
}

static void put_field(struct message *m, int field, const void *data, size_t bytes)
{
    put_varint(m, (uint64_t)field);
    put_varint(m, bytes);
    put_bytes(m, data, bytes);
}

static struct message begin_event(uint64_t step)
{
    struct message event = {.count = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_varint(&event, EVENT_WALL_TIME);
    put_bytes(&event, &seconds, sizeof(seconds));
    put_varint(&event, EVENT_STEP);
    put_varint(&event, step);
    return event;
}

/* Writes a record at once, so that a reader sees whole ones. */
static enum tdm_status write_record(int fd, const char *path, const struct message *event,
                                    struct tdm_error *err)
{
    unsigned char record[sizeof(event->bytes) + 16];
    const uint64_t length = event->count;
    const uint32_t of_length = masked(&length, sizeof(length));
    const uint32_t of_data = masked(event->bytes, event->count);
    memcpy(record, &length, 8);
    memcpy(record + 8, &of_length, 4);
    memcpy(record + 12, event->bytes, event->count);
    memcpy(record + 12 + event->count, &of_data, 4);
    return tdm_file_put(fd, path, record, event->count + 16, err);
}

/* The number of the name of a new event file. TensorBoard reads the files of a directory in the
 * order of their names, so it is more than those of the files that are there, whatever the clock
 * says. */
static long long next_stamp(const char *directory)
{
    static const long long most = 9999999998; /* names have ten digits */
    long long stamp = (long long)time(NULL);
    DIR *files = opendir(directory);
    for (const struct dirent *file; files != NULL && (file = readdir(files)) != NULL;) {
        static const char prefix[] = "events.out.tfevents.";
        if (strncmp(file->d_name, prefix, sizeof(prefix) - 1) != 0)
            continue;
        const long long other = strtoll(file->d_name + sizeof(prefix) - 1, NULL, 10);
        if (other >= stamp && other <= most)
            stamp = other + 1;
    }
    if (files != NULL)
        (void)closedir(files);
    return stamp;
}

enum tdm_status tdm_events_create(const char *directory, uint64_t resumed_step, char **path,
                                  int *fd, struct tdm_error *err)
{
    char host[64] = "localhost";
    size_t bytes = strlen(directory) + 160;
    char *name = malloc(bytes);
    if (name == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory to write it", directory);
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(name, bytes, "%s/events.out.tfevents.%lld.%s.%ld", directory, next_stamp(directory),
             host, (long)getpid());
    int opened = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    enum tdm_status status = opened < 0 ? tdm_file_failed(name, errno, err) : TDM_OK;
    if (status == TDM_OK) {
        static const char version[] = "brain.Event:2";
        struct message event = begin_event(0);
        put_field(&event, EVENT_FILE_VERSION, version, sizeof(version) - 1);
        status = write_record(opened, name, &event, err);
    }
    if (status == TDM_OK) { /* readers forget later steps of other files, as of a replaced run */
        struct message event = begin_event(resumed_step + 1), session = {.count = 0};
        put_varint(&session, SESSION_STATUS);
        put_varint(&session, SESSION_START);
        put_field(&event, EVENT_SESSION_LOG, session.bytes, session.count);
        status = write_record(opened, name, &event, err);
    }
    if (status != TDM_OK) {
        if (opened >= 0)
            (void)close(opened);
        free(name);
        return status;
    }
    *path = name;
    *fd = opened;
    return TDM_OK;
}

enum tdm_status tdm_events_add(int fd, const char *path, uint64_t step, size_t count,
                               const struct tdm_event_scalar *scalars, struct tdm_error *err)
{
    struct message event = begin_event(step), summary = {.count = 0};
    for (size_t i = 0; i < count; i++) {
        struct message value = {.count = 0};
        const float number = (float)scalars[i].value;
        if (!isfinite(scalars[i].value))
            continue;
        put_field(&value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_varint(&value, VALUE_SIMPLE);
        put_bytes(&value, &number, sizeof(number));
        put_field(&summary, SUMMARY_VALUE, value.bytes, value.count);
    }
    put_field(&event, EVENT_SUMMARY, summary.bytes, summary.count);
    return write_record(fd, path, &event, err);
}
