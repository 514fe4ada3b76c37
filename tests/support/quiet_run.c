/* SPDX-License-Identifier: Apache-2.0 */
/* A listener of a run for tests (quiet_run.h). */
#include "tests/support/quiet_run.h"

#include <jansson.h>
#include <stdio.h>

static void planned(void *self, const char *path, const struct tdm_program *program,
                    const struct tdm_amounts *amounts, double predicted_seconds)
{
    (void)self, (void)path, (void)program, (void)amounts, (void)predicted_seconds;
}

static void tokens(void *self, const struct tdm_tokens *text, double entropy)
{
    (void)self, (void)text, (void)entropy;
}

static void moved(void *self, const char *what, uint64_t done, uint64_t elements)
{
    (void)self, (void)what, (void)done, (void)elements;
}

static void resumed(void *self, const char *directory, uint64_t step, bool within,
                    const char *differences)
{
    (void)directory, (void)step, (void)within;
    snprintf(self, 512, "%s", differences);
}

static void saving(void *self, const char *between)
{
    (void)self, (void)between;
}

static void saved(void *self, const char *directory, uint64_t step, double seconds)
{
    (void)self, (void)directory, (void)step, (void)seconds;
}

static void stepped(void *self, const struct tdm_program *program, uint64_t step, double loss,
                    double gradient_norm, double seconds)
{
    (void)self, (void)program, (void)step, (void)loss, (void)gradient_norm, (void)seconds;
}

struct tdm_run_listener tdm_quiet_listener(char *differences)
{
    differences[0] = '\0';
    return (struct tdm_run_listener){.self = differences,
                                     .planned = planned,
                                     .tokens = tokens,
                                     .moved = moved,
                                     .resumed = resumed,
                                     .saving = saving,
                                     .saved = saved,
                                     .stepped = stepped};
}

bool tdm_quiet_schedule(const struct tdm_schedule *schedule, const char *path)
{
    struct tdm_error err;
    json_t *json;
    if (tdm_schedule_to_json(schedule, NULL, &json, &err) != TDM_OK)
        return false;
    bool written = json_dump_file(json, path, 0) == 0;
    json_decref(json);
    return written;
}
