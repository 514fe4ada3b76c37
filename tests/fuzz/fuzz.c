/* SPDX-License-Identifier: Apache-2.0 */
/* The table of fuzz targets, and what they share (fuzz.h). */
#include "tests/fuzz/fuzz.h"

#include "base/json.h"
#include "base/text.h"

#include <ftw.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool tdm_fuzz_searches = false;

const struct tdm_fuzz_target tdm_fuzz_targets[] = {
    {"config", true, tdm_fuzz_config},     {"machine", true, tdm_fuzz_machine},
    {"schedule", true, tdm_fuzz_schedule}, {"settings", false, tdm_fuzz_settings},
    {"from", false, tdm_fuzz_from},        {"safetensors", false, tdm_fuzz_safetensors},
    {"index", true, tdm_fuzz_index},       {"npy", false, tdm_fuzz_npy},
    {"idx", false, tdm_fuzz_idx},          {"bin", false, tdm_fuzz_bin},
    {"jsonl", false, tdm_fuzz_jsonl},      {"checkpoint", true, tdm_fuzz_checkpoint},
    {"trace", false, tdm_fuzz_trace},      {NULL, false, NULL},
};

const struct tdm_fuzz_target *tdm_fuzz_find(const char *name)
{
    for (const struct tdm_fuzz_target *target = tdm_fuzz_targets; target->name != NULL; target++)
        if (strcmp(target->name, name) == 0)
            return target;
    return NULL;
}

bool tdm_fuzz_taken(enum tdm_status status, const struct tdm_error *err)
{
    if (status == TDM_OK)
        return true;
    struct tdm_error copy = *err; /* its texts are clean already */
    TDM_FUZZ_CHECK(status == TDM_INPUT || status == TDM_USAGE || status == TDM_INFEASIBLE ||
                   status == TDM_IO); /* it names a file that is not there */
    TDM_FUZZ_CHECK(err->status == status && err->message[0] != '\0');
    TDM_FUZZ_CHECK(strcmp(tdm_text_clean(copy.message), err->message) == 0);
    TDM_FUZZ_CHECK(strcmp(tdm_text_clean(copy.hint), err->hint) == 0);
    return false;
}

json_t *tdm_fuzz_json(const uint8_t *data, size_t bytes)
{
    json_t *root = NULL;
    struct tdm_error err = {0};
    char *text = malloc(bytes + 1); /* files are read with a zero byte after them */
    TDM_FUZZ_CHECK(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    bool taken = tdm_fuzz_taken(tdm_json_parse("input", text, bytes, &root, &err), &err);
    free(text);
    return taken ? root : NULL;
}

static char folder[64];

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static void remove_folder(void)
{
    (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *tdm_fuzz_folder(void)
{
    if (folder[0] == '\0') {
        const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(folder, sizeof(folder), "%s/tidemark-fuzz-XXXXXX", memory);
        TDM_FUZZ_CHECK(mkdtemp(folder) != NULL);
        atexit(remove_folder);
    }
    return folder;
}

const char *tdm_fuzz_path(const char *name, char path[TDM_FUZZ_PATH])
{
    snprintf(path, TDM_FUZZ_PATH, "%s/%s", tdm_fuzz_folder(), name);
    return path;
}

void tdm_fuzz_write(const char *name, const void *data, size_t bytes)
{
    char path[TDM_FUZZ_PATH];
    FILE *file = fopen(tdm_fuzz_path(name, path), "wb");
    TDM_FUZZ_CHECK(file != NULL);
    TDM_FUZZ_CHECK(fwrite(data, 1, bytes, file) == bytes);
    TDM_FUZZ_CHECK(fclose(file) == 0);
}

int tdm_fuzz_file(const void *data, size_t bytes, char path[TDM_FUZZ_PATH])
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    TDM_FUZZ_CHECK(fd >= 0);
    TDM_FUZZ_CHECK(bytes == 0 || write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, TDM_FUZZ_PATH, "/proc/self/fd/%d", fd);
    return fd;
}

json_t *tdm_fuzz_seed(const char *name)
{
    const char *sources = getenv("TDM_SRCDIR");
    char path[1024];
    json_t *root = NULL;
    struct tdm_error err = {0};
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/%s", sources == NULL ? "." : sources, name);
    if (tdm_json_load(path, &root, &err) != TDM_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return root;
}
