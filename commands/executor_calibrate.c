/* SPDX-License-Identifier: Apache-2.0 */
/* Runs `tidemark calibrate`: measures this machine, or corrects its description from a run, and
 * writes the description. */
#include "commands/executor_parts.h"

#include "base/file.h"
#include "base/inputs.h"
#include "base/json.h"
#include "base/units.h"
#include "commands/run_arguments.h"
#include "executor/calibrate.h"
#include "machines/machine_table.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Without a GPU, cuda fails at once. */
static enum tdm_status choose_backend(const char *name, const struct tdm_backend **backend,
                                      struct tdm_error *err)
{
    struct tdm_card card;
    struct tdm_error none;
    if (name != NULL)
        return tdm_backend_find(name, backend, err);
    if (tdm_backend_find("cuda", backend, &none) == TDM_OK &&
        (*backend)->card(&card, &none) == TDM_OK)
        return TDM_OK;
    return tdm_backend_find("cpu", backend, err);
}

/* Creates the parent directories of a file. */
static enum tdm_status make_folders(const char *path, struct tdm_error *err)
{
    char folder[4096];
    snprintf(folder, sizeof(folder), "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST)
            return tdm_fail(err, TDM_IO, "%s: cannot be made: %s", folder, strerror(errno));
        *slash = '/';
    }
    return TDM_OK;
}

static enum tdm_status find_output(const struct tdm_calibrate_arguments *a, char *path,
                                   size_t path_bytes, struct tdm_error *err)
{
    const struct tdm_input input = {.option = "--from", .path = a->trace};
    if (a->output != NULL) {
        snprintf(path, path_bytes, "%s", a->output);
        enum tdm_status status = tdm_output_check_name("calibrate: -o", path, err);
        if (status == TDM_OK)
            status = tdm_inputs_spare(&input, 1, "calibrate: -o", path, err);
        /* check before measuring for a minute */
        return status == TDM_OK ? tdm_file_check(a->output, a->force, err) : status;
    }
    if (tdm_machine_local_path(path, path_bytes)) {
        enum tdm_status status = tdm_inputs_spare(&input, 1, "calibrate: its output", path, err);
        return status == TDM_OK ? make_folders(path, err) : status;
    }
    tdm_fail(err, TDM_USAGE, "calibrate: neither XDG_CONFIG_HOME nor HOME says where to write");
    return tdm_hint(err, "name a file with -o");
}

static enum tdm_status write_description(const struct tdm_calibrate_arguments *a, const char *path,
                                         const json_t *description, struct tdm_error *err)
{
    char *text = tdm_json_dump(description, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the description");
    size_t length = strlen(text);
    text[length] = '\n'; /* replaces the terminating zero */
    enum tdm_status status =
        tdm_file_write(path, text, length + 1, a->force || a->output == NULL, err);
    free(text);
    return status;
}

static void say_measuring(void *self, const char *text)
{
    (void)self;
    fprintf(stderr, "  %s\n", text);
}

static void say_plainly(void *self, const char *text)
{
    (void)self;
    fprintf(stderr, "%s\n", text);
}

static enum tdm_status make_description(const struct tdm_calibrate_arguments *a,
                                        const volatile sig_atomic_t *stop, json_t **description,
                                        struct tdm_error *err)
{
    struct tdm_calibration_options options = {
        .quick = a->quick, .stop = stop, .say = say_measuring};
    struct timespec start, end;
    char text[TDM_FORMAT_SIZE];
    if (a->trace != NULL)
        return tdm_calibrate_from_trace(a->trace, say_plainly, NULL, description, err);
    enum tdm_status status = choose_backend(a->backend, &options.backend, err);
    if (status != TDM_OK)
        return status;
    clock_gettime(CLOCK_MONOTONIC, &start);
    fprintf(stderr, "measuring backend %s\n", options.backend->name);
    status = tdm_calibrate(&options, description, err);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    if (status == TDM_OK)
        fprintf(stderr, "measured in %s\n", tdm_format_seconds(seconds, text));
    return status;
}

/* Prints the table or JSON, unless the description itself goes to stdout. */
static enum tdm_status print_machine(const struct tdm_calibrate_arguments *a, const char *path,
                                     json_t *description, struct tdm_error *err)
{
    struct tdm_machine *machine;
    enum tdm_status status = tdm_machine_from_json(path, description, &machine, err);
    if (status != TDM_OK)
        return status;
    if (a->json) {
        json_t *object = tdm_machine_json(machine);
        tdm_json_set(&object, "path", tdm_json_text(path));
        status = tdm_json_write(stdout, true, object, err);
    } else if (strcmp(path, "-") != 0) {
        tdm_machine_table(stdout, machine);
    }
    tdm_machine_free(machine);
    return status;
}

enum tdm_status tdm_executor_calibrate(int argc, char **argv, const volatile sig_atomic_t *stop,
                                       struct tdm_error *err)
{
    struct tdm_calibrate_arguments a;
    bool help;
    json_t *description;
    char path[4096];
    enum tdm_status status = tdm_calibrate_arguments_read(argc, argv, &a, &help, err);
    if (status != TDM_OK || help)
        return status;
    status = find_output(&a, path, sizeof(path), err);
    if (status == TDM_OK)
        status = make_description(&a, stop, &description, err);
    if (status != TDM_OK)
        return status;
    status = write_description(&a, path, description, err);
    if (status == TDM_OK)
        status = print_machine(&a, path, description, err);
    json_decref(description);
    if (status == TDM_OK && strcmp(path, "-") != 0)
        fprintf(stderr, "written to %s\n", path);
    return status;
}
