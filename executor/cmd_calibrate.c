/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark calibrate`: measures this machine, or corrects one by a run, and writes its
 * description. */
#include "executor/cmd_calibrate.h"

#include "base/file.h"
#include "base/inputs.h"
#include "base/json.h"
#include "base/options.h"
#include "base/units.h"
#include "executor/calibrate.h"
#include "machines/machine_table.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static const char help[] =
    "usage: tidemark calibrate [options]\n"
    "\n"
    "Measures this machine and writes its description, which --machine local then means: the rates\n"
    "of products, attention and memory-bound ops by size, of copies one way and both, what a launch\n"
    "and a copy cost at least, and what driver and libraries take. All ops are those of a run, in\n"
    "steps of short models. Takes less than a minute; nothing else should run meanwhile.\n"
    "\n"
    "  -o, --output FILE\n"
    "                  write the description to FILE, - is stdout; default\n"
    "                  $XDG_CONFIG_HOME/tidemark/machine.json, which is replaced\n"
    "  --backend NAME  cuda: the NVIDIA GPU; cpu: this machine's cores; default cuda where there is\n"
    "                  one, else cpu\n"
    "  --from TRACE    measure nothing: take the machine of a trace and correct its rates by the ops\n"
    "                  that it timed; links and memory stay. Says what changed\n"
    "  --quick         in about 10 seconds, less exactly: fewer sizes, and not as hot\n"
    "  --force         replace FILE\n"
    "  --json          print the rates as one JSON object on stdout\n"
    "  --help          this text\n"
    "\n"
    "examples:\n"
    "  tidemark calibrate\n"
    "  tidemark calibrate --backend cpu -o cores.json\n"
    "  tidemark calibrate --from run.db -o corrected.json\n";

struct arguments {
    const char *output, *backend, *trace;
    bool quick, force, json, help;
};

static enum tdm_status read_arguments(int argc, char **argv, struct arguments *a,
                                      struct tdm_error *err)
{
    static const struct option options[] = {
        {"backend", required_argument, NULL, 'b'}, {"from", required_argument, NULL, 't'},
        {"output", required_argument, NULL, 'o'},  {"quick", no_argument, NULL, 'q'},
        {"force", no_argument, NULL, 'f'},         {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0}};
    struct tdm_options o = {.command = "calibrate", .letters = ":ho:", .names = options};
    enum tdm_status status;
    int option;
    while ((status = tdm_options_next(&o, argc, argv, &option, err)) == TDM_OK && option != -1)
        switch (option) {
        case 'b':
            a->backend = optarg;
            break;
        case 't':
            a->trace = optarg;
            break;
        case 'o':
            a->output = optarg;
            break;
        case 'q':
            a->quick = true;
            break;
        case 'f':
            a->force = true;
            break;
        case 'j':
            a->json = true;
            break;
        default: /* help */
            a->help = true;
            return TDM_OK;
        }
    if (status != TDM_OK)
        return status;
    if (optind < argc)
        return tdm_fail(err, TDM_USAGE, "calibrate: \"%s\" is no option", argv[optind]);
    if (a->trace != NULL && (a->backend != NULL || a->quick))
        return tdm_fail(err, TDM_USAGE, "calibrate: --from measures nothing; leave %s out",
                        a->quick ? "--quick" : "--backend");
    return TDM_OK;
}

/* Where there is no GPU, cuda fails at once. */
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

/* Makes the folders above a file. */
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

static enum tdm_status find_output(const struct arguments *a, char *path, size_t path_bytes,
                                   struct tdm_error *err)
{
    const struct tdm_input input = {.option = "--from", .path = a->trace};
    if (a->output != NULL) {
        snprintf(path, path_bytes, "%s", a->output);
        enum tdm_status status = tdm_inputs_spare(&input, 1, "calibrate: -o", path, err);
        /* before a minute is spent */
        return status == TDM_OK ? tdm_file_check(a->output, a->force, err) : status;
    }
    if (tdm_machine_local_path(path, path_bytes)) {
        enum tdm_status status = tdm_inputs_spare(&input, 1, "calibrate: its output", path, err);
        return status == TDM_OK ? make_folders(path, err) : status;
    }
    tdm_fail(err, TDM_USAGE, "calibrate: neither XDG_CONFIG_HOME nor HOME says where to write");
    return tdm_hint(err, "name a file with -o");
}

static enum tdm_status write_description(const struct arguments *a, const char *path,
                                         const json_t *description, struct tdm_error *err)
{
    char *text = tdm_json_dump(description, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the description");
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the zero */
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

static enum tdm_status make_description(const struct arguments *a,
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

/* The table, or JSON; unless the description itself goes to stdout. */
static enum tdm_status print_machine(const struct arguments *a, const char *path,
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

enum tdm_status tdm_cmd_calibrate(int argc, char **argv, const volatile sig_atomic_t *stop,
                                  struct tdm_error *err)
{
    struct arguments a = {0};
    json_t *description;
    char path[4096];
    enum tdm_status status = read_arguments(argc, argv, &a, err);
    if (status != TDM_OK)
        return status;
    if (a.help) {
        fputs(help, stdout);
        return TDM_OK;
    }
    if (a.json && a.output != NULL && strcmp(a.output, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "calibrate: -o - and --json both write to stdout");
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
