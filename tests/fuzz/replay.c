/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs every input of the committed corpus through its fuzz target, each a case. With arguments:
 * replay TARGET FILE... runs these.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <string.h>

static bool run_file(const struct tdm_fuzz_target *target, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    size_t capacity = 1 << 22;
    uint8_t *data = malloc(capacity);
    TDM_FUZZ_CHECK(data != NULL);
    size_t bytes = fread(data, 1, capacity, file);
    fclose(file);
    uint8_t *exact = malloc(bytes == 0 ? 1 : bytes); /* so that a sanitizer sees its end */
    TDM_FUZZ_CHECK(exact != NULL);
    memcpy(exact, data, bytes);
    free(data);
    bool taken = target->run(exact, bytes);
    free(exact);
    return taken;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    const char *sources = getenv("TDM_SRCDIR");
    if (argc > 1) {
        const struct tdm_fuzz_target *target = tdm_fuzz_find(argv[1]);
        TDM_FUZZ_CHECK(target != NULL);
        for (int i = 2; i < argc; i++)
            printf("%s: %s\n", argv[i], run_file(target, argv[i]) ? "taken" : "refused");
        return 0;
    }
    unsigned cases = 0;
    for (const struct tdm_fuzz_target *target = tdm_fuzz_targets; target->name != NULL; target++) {
        char folder[1024], path[2048];
        struct dirent **entries;
        int taken = 0;
        snprintf(folder, sizeof(folder), "%s/tests/fuzz/corpus/%s", sources == NULL ? "." : sources,
                 target->name);
        int count = scandir(folder, &entries, is_visible, alphasort);
        for (int i = 0; i < count; i++) {
            snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
            printf("# %s/%s\n", target->name, entries[i]->d_name); /* the last one, if it crashes */
            fflush(stdout);
            taken += run_file(target, path);
            free(entries[i]);
        }
        if (count >= 0)
            free(entries);
        printf("%sok %u - %s: %d inputs, of which %d are taken\n",
               taken > 0 && taken < count ? "" : "not ", ++cases, target->name, count, taken);
    }
    printf("1..%u\n", cases);
    return 0;
}
