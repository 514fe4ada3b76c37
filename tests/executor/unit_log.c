/* SPDX-License-Identifier: Apache-2.0 */
/* The log of a run: rows of its CSV files, and records of its event file, which a reader of this
 * test takes apart by the published formats (TFRecord, tensorflow.Event). */
#include "executor/events.h"
#include "executor/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- a reader of event files ---- */

struct field {
    uint64_t number, type, value; /* value: of a varint, or the bytes of the others */
    const unsigned char *data;
    size_t bytes;
};

static uint64_t read_varint(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
}

/* Reads the next field of a message. False at its end. */
static bool next_field(const unsigned char **at, const unsigned char *end, struct field *field)
{
    if (*at == end)
        return false;
    uint64_t key = read_varint(at, end);
    *field = (struct field){.number = key >> 3, .type = key & 7};
    if (field->type == 0) {
        field->value = read_varint(at, end);
        return true;
    }
    field->bytes = field->type == 1 ? 8 : field->type == 5 ? 4 : (size_t)read_varint(at, end);
    assert_true(field->type == 1 || field->type == 2 || field->type == 5);
    assert_true(field->bytes <= (size_t)(end - *at));
    field->data = *at;
    *at += field->bytes;
    return true;
}

static uint32_t unmask(uint32_t masked)
{
    uint32_t turned = masked - 0xa282ead8u;
    return turned >> 17 | turned << 15;
}

/* An event as text: "STEP TAG=VALUE ...", "STEP start" or "STEP VERSION". */
static void describe(const unsigned char *data, size_t bytes, char *text, size_t text_bytes)
{
    const unsigned char *end = data + bytes;
    struct field field, value, part;
    uint64_t step = 0;
    double wall = 0;
    char rest[512] = "";
    size_t used = 0;
    while (next_field(&data, end, &field)) {
        const unsigned char *inner = field.data;
        if (field.number == 1)
            memcpy(&wall, field.data, 8);
        else if (field.number == 2)
            step = field.value;
        else if (field.number == 3)
            used += (size_t)snprintf(rest + used, sizeof(rest) - used, " %.*s", (int)field.bytes,
                                     (const char *)field.data);
        else if (field.number == 7) {
            assert_true(next_field(&inner, field.data + field.bytes, &part));
            assert_true(part.number == 1 && part.value == 1);
            used += (size_t)snprintf(rest + used, sizeof(rest) - used, " start");
        } else {
            assert_int_equal(field.number, 5);
            while (next_field(&inner, field.data + field.bytes, &value)) {
                const unsigned char *member = value.data;
                assert_int_equal(value.number, 1);
                while (next_field(&member, value.data + value.bytes, &part)) {
                    float number;
                    if (part.number == 1)
                        used +=
                            (size_t)snprintf(rest + used, sizeof(rest) - used,
                                             " %.*s=", (int)part.bytes, (const char *)part.data);
                    else {
                        assert_true(part.number == 2 && part.type == 5);
                        memcpy(&number, part.data, 4);
                        used += (size_t)snprintf(rest + used, sizeof(rest) - used, "%g", number);
                    }
                }
            }
        }
    }
    assert_true(wall > 1.7e9); /* now */
    snprintf(text, text_bytes, "%llu%s\n", (unsigned long long)step, rest);
}

static unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    unsigned char *data = calloc(1, 1 << 16);
    assert_non_null(data);
    *bytes = fread(data, 1, (1 << 16) - 1, file);
    fclose(file);
    return data;
}

/* Compares all events of a file. */
static void events_are(const char *path, const char *due)
{
    size_t bytes, used = 0;
    unsigned char *data = read_file(path, &bytes), *at = data;
    char text[4096] = "";
    while (at < data + bytes) {
        uint64_t length;
        uint32_t crc[2];
        assert_true((size_t)(data + bytes - at) >= 16);
        memcpy(&length, at, 8);
        memcpy(&crc[0], at + 8, 4);
        assert_true(length + 16 <= (uint64_t)(data + bytes - at));
        memcpy(&crc[1], at + 12 + length, 4);
        assert_int_equal(unmask(crc[0]), tdm_crc32c(at, 8));
        assert_int_equal(unmask(crc[1]), tdm_crc32c(at + 12, (size_t)length));
        describe(at + 12, (size_t)length, text + used, sizeof(text) - used);
        used += strlen(text + used);
        at += 16 + length;
    }
    assert_string_equal(text, due);
    free(data);
}

static void text_is(const char *path, const char *due)
{
    size_t bytes;
    unsigned char *data = read_file(path, &bytes);
    assert_string_equal((char *)data, due);
    free(data);
}

/* ---- tests ---- */

/* Vectors of RFC 3720, appendix B.4, and the usual one. */
static void checksums_are_crc32c(void **state)
{
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(tdm_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    assert_int_equal(tdm_crc32c(bytes, 32), 0x62a8ab43u);
    for (unsigned i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(tdm_crc32c(bytes, 32), 0x46dd794eu);
    assert_int_equal(tdm_crc32c("123456789", 9), 0xe3069283u);
}

static void events_can_be_read(void **state)
{
    (void)state;
    const struct tdm_event_scalar scalars[] = {{"a/b", 1.5}, {"none", NAN}, {"c", -3e10}};
    struct tdm_error err = {0};
    char *path;
    int fd;
    assert_int_equal(tdm_events_create(".", 0, &path, &fd, &err), TDM_OK);
    assert_int_equal(tdm_events_add(fd, path, 1, 3, scalars, &err), TDM_OK);
    assert_int_equal(tdm_events_add(fd, path, UINT64_C(1) << 40, 1, scalars, &err), TDM_OK);
    events_are(path, "0 brain.Event:2\n1 start\n1 a/b=1.5 c=-3e+10\n1099511627776 a/b=1.5\n");
    close(fd);
    assert_int_equal(unlink(path), 0);
    free(path);
    assert_int_equal(tdm_events_create(".", 7, &path, &fd, &err), TDM_OK);
    events_are(path, "0 brain.Event:2\n8 start\n");
    close(fd);
    assert_int_equal(unlink(path), 0);
    free(path);
    /* a clock that was ahead, and a name that no clock gave */
    char ahead[64];
    snprintf(ahead, sizeof(ahead), "events.out.tfevents.%lld.other.1",
             (long long)time(NULL) + 5000);
    assert_true(close(creat(ahead, 0666)) == 0);
    assert_true(close(creat("events.out.tfevents.99999999999999999999.x", 0666)) == 0);
    assert_int_equal(tdm_events_create(".", 7, &path, &fd, &err), TDM_OK);
    assert_true(strcmp(strrchr(path, '/') + 1, ahead) > 0);
    assert_true(strcmp(strrchr(path, '/') + 1, "events.out.tfevents.99999999999999999999.x") < 0);
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(ahead), 0);
    assert_int_equal(unlink("events.out.tfevents.99999999999999999999.x"), 0);
    free(path);
    assert_int_equal(tdm_events_create("no-such", 0, &path, &fd, &err), TDM_IO);
}

#define HEAD                                                                                 \
    "step,loss,gradient_norm,learning_rate,seconds,tokens_per_second,mfu,device_used_bytes," \
    "host_used_bytes\n"
#define NORMS_HEAD "step,embedding,layer0,layer1,head\n"

static void add(struct tdm_log *log, uint64_t step)
{
    struct tdm_error err;
    const double norms[] = {0.25, NAN, 4, 0.5}; /* layers, embedding, head */
    const struct tdm_log_step row = {.step = step,
                                     .has_loss = step != 3,
                                     .has_norm = step != 2,
                                     .loss = 2.5,
                                     .gradient_norm = step == 3 ? INFINITY : 0.125,
                                     .unit_norms = step == 2 ? NULL : norms,
                                     .learning_rate = 1e-3,
                                     .seconds = 0.5,
                                     .tokens_per_second = 256,
                                     .mfu = 0.25,
                                     .host_used_bytes = 1024};
    assert_int_equal(tdm_log_step(log, &row, &err), TDM_OK);
}

/* A resumed log goes on after its step, also where the last row was cut off; another one is
 * refused. */
static void a_log_goes_on(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct tdm_log *log;
    assert_int_equal(tdm_log_check("log", false, false, &err), TDM_OK);
    assert_int_equal(tdm_log_open("log", 2, 0, &log, &err), TDM_OK);
    add(log, 1);
    add(log, 2);
    assert_int_equal(tdm_log_evaluation(log, 2, "books", 3.5, 64, 0.25, &err), TDM_OK);
    text_is("log/" TDM_LOG_TRAIN,
            HEAD "1,2.5,0.125,0.001,0.5,256,0.25,,1024\n2,2.5,,0.001,0.5,256,0.25,,1024\n");
    text_is("log/" TDM_LOG_NORMS, NORMS_HEAD "1,4,0.25,nan,0.5\n2,,,,\n");
    text_is("log/" TDM_LOG_VALIDATION, "step,loss,tokens,seconds,text\n2,3.5,64,0.25,books\n");
    add(log, 3);
    text_is("log/" TDM_LOG_TRAIN, HEAD "1,2.5,0.125,0.001,0.5,256,0.25,,1024\n"
                                       "2,2.5,,0.001,0.5,256,0.25,,1024\n"
                                       "3,,inf,0.001,0.5,256,0.25,,1024\n");
    text_is("log/" TDM_LOG_NORMS, NORMS_HEAD "1,4,0.25,nan,0.5\n2,,,,\n3,4,0.25,nan,0.5\n");
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
    assert_int_equal(tdm_log_check("log", false, false, &err), TDM_USAGE);
    assert_int_equal(tdm_log_check("log", false, true, &err), TDM_OK);
    assert_int_equal(tdm_log_check("log", true, false, &err), TDM_OK);
    assert_int_equal(truncate("log/" TDM_LOG_TRAIN, (off_t)strlen(HEAD) + 40 + 33), 0);
    assert_int_equal(tdm_log_open("log", 2, 1, &log, &err), TDM_OK);
    add(log, 2);
    text_is("log/" TDM_LOG_TRAIN,
            HEAD "1,2.5,0.125,0.001,0.5,256,0.25,,1024\n2,2.5,,0.001,0.5,256,0.25,,1024\n");
    text_is("log/" TDM_LOG_NORMS, NORMS_HEAD "1,4,0.25,nan,0.5\n2,,,,\n");
    text_is("log/" TDM_LOG_VALIDATION, "step,loss,tokens,seconds,text\n");
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
    assert_int_equal(tdm_log_open("log", 2, 0, &log, &err), TDM_OK);
    text_is("log/" TDM_LOG_TRAIN, HEAD);
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
}

/* Two runs do not write one log, whether the second replaces it or goes on in it. */
static void a_log_is_locked(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct tdm_log *log, *other;
    assert_int_equal(tdm_log_open("locked", 2, 0, &log, &err), TDM_OK);
    add(log, 1);
    for (uint64_t resumed_step = 0; resumed_step <= 1; resumed_step++) {
        assert_int_equal(tdm_log_check("locked", resumed_step > 0, true, &err), TDM_USAGE);
        assert_non_null(strstr(err.message, "locked: another run is writing there"));
        err = (struct tdm_error){0};
        assert_int_equal(tdm_log_open("locked", 2, resumed_step, &other, &err), TDM_USAGE);
        assert_non_null(strstr(err.message, "locked: another run is writing there"));
    }
    add(log, 2);
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
    text_is("locked/" TDM_LOG_TRAIN,
            HEAD "1,2.5,0.125,0.001,0.5,256,0.25,,1024\n2,2.5,,0.001,0.5,256,0.25,,1024\n");
    assert_int_equal(tdm_log_check("locked", false, true, &err), TDM_OK);
    assert_int_equal(tdm_log_open("locked", 2, 1, &log, &err), TDM_OK);
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
}

static void write_file(const char *path, const char *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

#define ROWS "1,,,,,,,,\n2,,,,,,,,\n"
#define NORMS "1,,,,\n2,,,,\n"
#define TEXTS "step,loss,tokens,seconds,text\n"

/* Files that no run has written are not gone on in, and stay as they are; what a power loss leaves
 * is. */
static void foreign_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *train, *norms, *validation, *due; /* due: NULL: accepted, with both rows */
    } cases[] = {
        {"garbage", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 1 is not the header"},
        {"step,loss\n1,2\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 1 is not the header"},
        {HEAD ROWS "total\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 4 does not begin"},
        {HEAD ROWS "-3,,,,,,,,\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 4 does not begin"},
        {HEAD ROWS "\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 4 does not begin"},
        {HEAD ROWS "1,,,,,,,,\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 4 has a step"},
        {HEAD ROWS "2,,,,,,,,\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 4 has a step"},
        {HEAD "1,,,,,,,,\n2,1\n", NORMS_HEAD, TEXTS, TDM_LOG_TRAIN ": line 3 has fewer cells"},
        {HEAD ROWS, "step,embedding,layer0,head\n", TEXTS, TDM_LOG_NORMS ": line 1 is not"},
        {HEAD ROWS, NORMS_HEAD NORMS "1,,,,\n", TEXTS, TDM_LOG_NORMS ": line 4 has a step"},
        {HEAD ROWS "3,,,,,,,,\n", NORMS_HEAD, TEXTS "mine\n",
         TDM_LOG_VALIDATION ": line 2 does not begin"},
        {HEAD ROWS, NORMS_HEAD NORMS, TEXTS "2,1,1,1,a\n2,1,1,1,b,c\n", NULL},
        {HEAD ROWS "3,,,", NORMS_HEAD NORMS "3", TEXTS "1,1,1,1,a\n3,", NULL},
        {HEAD ROWS "9,torn\nwhat\n", NORMS_HEAD, "step,lo", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_error err = {0};
        struct tdm_log *log;
        const char *due = cases[i].due;
        assert_int_equal(system("rm -rf foreign && mkdir foreign"), 0);
        write_file("foreign/" TDM_LOG_TRAIN, cases[i].train, strlen(cases[i].train));
        write_file("foreign/" TDM_LOG_NORMS, cases[i].norms, strlen(cases[i].norms));
        write_file("foreign/" TDM_LOG_VALIDATION, cases[i].validation, strlen(cases[i].validation));
        assert_int_equal(tdm_log_open("foreign", 2, 2, &log, &err), due ? TDM_INPUT : TDM_OK);
        if (due != NULL) {
            assert_non_null(strstr(err.message, due));
            assert_non_null(strstr(err.hint, "a new one"));
            text_is("foreign/" TDM_LOG_TRAIN, cases[i].train);
            text_is("foreign/" TDM_LOG_NORMS, cases[i].norms);
            text_is("foreign/" TDM_LOG_VALIDATION, cases[i].validation);
            continue;
        }
        assert_int_equal(tdm_log_last_step(log), 2);
        assert_int_equal(tdm_log_evaluated(log), i == 11 ? 2 : 0);
        assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
        text_is("foreign/" TDM_LOG_TRAIN, HEAD ROWS);
    }
    /* a block that did not reach the disk */
    const char lost[] = HEAD ROWS "\0\0\0\0,,,,,,,,\n4,,,,,,,,\n";
    struct tdm_error err = {0};
    struct tdm_log *log;
    write_file("foreign/" TDM_LOG_TRAIN, lost, sizeof(lost) - 1);
    assert_int_equal(tdm_log_open("foreign", 2, 2, &log, &err), TDM_OK);
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
    text_is("foreign/" TDM_LOG_TRAIN, HEAD ROWS);
}

/* Norms of more parts than one event holds are in several events of the step. */
static void norms_become_events(void **state)
{
    (void)state;
    enum { LAYERS = 17 };
    double norms[LAYERS + 2];
    char due[1024] = "0 brain.Event:2\n1 start\n1 train/loss=2\n1 gradient_norm/embedding=117",
         path[300] = "";
    size_t used = strlen(due);
    struct tdm_error err = {0};
    struct tdm_log *log;
    for (int unit = 0; unit < LAYERS + 2; unit++)
        norms[unit] = 100 + unit;
    const struct tdm_log_step row = {.step = 1,
                                     .loss = 2,
                                     .gradient_norm = NAN,
                                     .unit_norms = norms,
                                     .learning_rate = NAN,
                                     .seconds = NAN,
                                     .tokens_per_second = NAN,
                                     .mfu = NAN};
    assert_int_equal(tdm_log_open("norms", LAYERS, 0, &log, &err), TDM_OK);
    assert_int_equal(tdm_log_step(log, &row, &err), TDM_OK);
    assert_int_equal(tdm_log_close(log, TDM_OK, &err), TDM_OK);
    for (int layer = 0; layer < LAYERS; layer++)
        used += (size_t)snprintf(due + used, sizeof(due) - used, "%s gradient_norm/layer%d=%d",
                                 layer == 15 ? "\n1" : "", layer, 100 + layer);
    snprintf(due + used, sizeof(due) - used, " gradient_norm/head=118\n");
    DIR *directory = opendir("norms");
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (strncmp(entry->d_name, "events", 6) == 0)
            snprintf(path, sizeof(path), "norms/%s", entry->d_name);
    closedir(directory);
    events_are(path, due);
}

/* A write that fails is told once, and closing returns it. */
static void a_lost_log_is_no_success(void **state)
{
    (void)state;
    struct tdm_error err = {0};
    struct tdm_log *log;
    const struct tdm_log_step row = {.step = 1, .loss = 1};
    assert_int_equal(unlink("log/" TDM_LOG_TRAIN), 0);
    assert_int_equal(symlink("/dev/full", "log/" TDM_LOG_TRAIN), 0);
    if (access("/dev/full", W_OK) != 0)
        skip();
    enum tdm_status status = tdm_log_open("log", 2, 0, &log, &err);
    if (status == TDM_OK) { /* a device cannot be cut off: this may fail already */
        assert_int_equal(tdm_log_step(log, &row, &err), TDM_IO);
        assert_int_equal(tdm_log_step(log, &row, &err), TDM_OK);
        status = tdm_log_close(log, TDM_OK, &err);
        assert_non_null(strstr(err.message, "went on without it"));
    }
    assert_int_equal(status, TDM_IO);
    assert_non_null(strstr(err.message, "log/" TDM_LOG_TRAIN));
}

static int enter_scratch(void **state)
{
    (void)state;
    const char *scratch = getenv("TDM_SCRATCH");
    return scratch != NULL && chdir(scratch) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_are_crc32c),
        cmocka_unit_test(events_can_be_read),
        cmocka_unit_test(a_log_goes_on),
        cmocka_unit_test(a_log_is_locked),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(norms_become_events),
        cmocka_unit_test(a_lost_log_is_no_success),
    };
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
