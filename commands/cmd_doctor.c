/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark doctor`: prints build options, detected programs and devices, and what is missing with
 * the package that provides it. */
#include "config.h"
#include "commands/cmd.h"

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "models/model.h"
#include "ops/kernels.h"
#include "commands/common_options.h"
#include "commands/executor_path.h"
#include "commands/family.h"
#include "commands/print.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <yaml.h>

#ifndef TDM_OPENMP_FLAGS
#define TDM_OPENMP_FLAGS ""
#endif

enum finding { FINDING_BUILD, FINDING_HERE };

/* One line of the report. */
struct check {
    const char *name;
    enum finding kind;
    bool ok;
    char value[640];
    const struct tdm_kernels *kernels; /* of a backend; NULL: the line is not about a backend */
    const char *needed_for;            /* shown if it is missing */
    const char *package;               /* Debian package; NULL: none provides it */
};

static void set(struct check *check, bool ok, const char *value)
{
    check->ok = ok;
    snprintf(check->value, sizeof(check->value), "%s", value);
}

/* Counts the op kinds for which a backend has kernels. */
static void check_kernels(struct check *check)
{
    char line[TDM_LACKS_TEXT];
    bool lacks = tdm_kernels_lack(check->kernels, TDM_ALL_KINDS, line);
    set(check, !lacks, lacks ? line : "all kinds of ops");
}

static void check_build(struct check *check)
{
    bool cuda = false, openblas = false, mpi = false;
#ifdef HAVE_CUDA
    cuda = true;
#endif
#ifdef HAVE_OPENBLAS
    openblas = true;
#endif
#ifdef HAVE_MPI
    mpi = true;
#endif
    if (check->kernels != NULL)
        check_kernels(check);
    else if (strcmp(check->name, "MPI") == 0)
        set(check, mpi, mpi ? "yes" : "no");
    else if (strcmp(check->name, "CUDA") == 0)
        set(check, cuda, cuda ? "yes" : "no");
    else if (strcmp(check->name, "OpenBLAS") == 0)
        set(check, openblas, openblas ? "yes" : "no");
    else if (strcmp(check->name, "OpenMP") == 0)
        set(check, TDM_OPENMP_FLAGS[0] != '\0', TDM_OPENMP_FLAGS[0] != '\0' ? "yes" : "no");
    else if (strcmp(check->name, "Jansson") == 0)
        set(check, true, JANSSON_VERSION);
    else if (strcmp(check->name, "libyaml") == 0)
        set(check, true, yaml_get_version_string());
    else if (strcmp(check->name, "SQLite") == 0)
        set(check, true, sqlite3_libversion());
    else
        set(check, true, "gcc " __VERSION__);
}

/* Reads the first line of a file, without its newline. Returns false if it cannot be read. */
static bool first_line(const char *path, char *out, size_t out_bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool got = fgets(out, (int)out_bytes, file) != NULL;
    fclose(file);
    if (got)
        out[strcspn(out, "\n")] = '\0';
    return got;
}

static void check_gpus(struct check *check)
{
    unsigned count = 0;
    for (unsigned i = 0; i < 64; i++) {
        char path[32];
        snprintf(path, sizeof(path), "/dev/nvidia%u", i);
        count += access(path, F_OK) == 0;
    }
    char text[32];
    snprintf(text, sizeof(text), "%u", count);
    set(check, count > 0, count > 0 ? text : "none");
}

/* Loads NCCL as the executor does and writes its version to `fd`. Does not return: this is the body
 * of a child process. */
static _Noreturn void tell_nccl_version(int fd)
{
    const char *given = getenv("TIDEMARK_NCCL");
    int (*get_version)(int *) = NULL;
    int version = 0, silent = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    alarm(10); /* it may wait for ever */
    if (silent >= 0) {
        (void)dup2(silent, STDOUT_FILENO);
        (void)dup2(silent, STDERR_FILENO);
    }
    void *library = dlopen(given == NULL ? "libnccl.so.2" : given, RTLD_LAZY | RTLD_LOCAL);
    if (library != NULL)
        *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (get_version != NULL && get_version(&version) == 0)
        (void)!write(fd, &version, sizeof(version));
    _exit(0);
}

/* NCCL, as the executor finds it. A child process asks it: the first call sets it up, and where it
 * has no memory, or meets an odd driver, it may take its process with it. */
static void check_nccl(struct check *check)
{
    int ends[2], version = 0, how = 0;
    if (pipe(ends) != 0) {
        set(check, false, strerror(errno));
        return;
    }
    const pid_t child = fork();
    if (child == 0)
        tell_nccl_version(ends[1]);
    const int reason = errno;
    (void)close(ends[1]);
    const bool told = child > 0 && read(ends[0], &version, sizeof(version)) == sizeof(version);
    (void)close(ends[0]);
    while (child > 0 && waitpid(child, &how, 0) < 0 && errno == EINTR)
        continue;
    set(check, told, child < 0 ? strerror(reason) : "not found");
    if (told)
        snprintf(check->value, sizeof(check->value), "%d.%d.%d", version / 10000,
                 version / 100 % 100, version % 100);
    else if (child > 0 && WIFSIGNALED(how))
        snprintf(check->value, sizeof(check->value), "loading it ended a process by signal %d, %s",
                 WTERMSIG(how), strsignal(WTERMSIG(how)));
}

static enum tdm_status check_data(struct check *check, struct tdm_error *err)
{
    char **names;
    char shown[TDM_TEXT_SHOWN];
    enum tdm_status status = tdm_model_names(&names, err);
    if (status == TDM_OK)
        free(names);
    set(check, status == TDM_OK, tdm_text_shown(tdm_data_directory(), shown));
    return status == TDM_NO_MEMORY ? status : TDM_OK; /* nothing that is missing is an error */
}

static enum tdm_status check_here(struct check *check, struct tdm_error *err)
{
    char text[640];
    if (strcmp(check->name, "data") == 0)
        return check_data(check, err);
    if (strcmp(check->name, "NCCL") == 0) {
        check_nccl(check);
        return TDM_OK;
    }
    if (strcmp(check->name, "tidemark-executor") == 0)
        set(check, tdm_executor_find(text, sizeof(text)), text);
    else if (strcmp(check->name, "GPUs") == 0)
        check_gpus(check);
    else if (strcmp(check->name, "NVIDIA driver") == 0)
        set(check, first_line("/proc/driver/nvidia/version", text, sizeof(text)), text);
    else
        set(check, tdm_program_on_path(check->name, text, sizeof(text)), text);
    if (!check->ok)
        set(check, false, "not found");
    return TDM_OK;
}

static void print_checks(const struct check *checks, size_t count)
{
    printf("tidemark   %s\n", PACKAGE_VERSION);
    for (size_t i = 0; i < count; i++) {
        const struct check *check = &checks[i];
        if (i == 0)
            printf("\nbuilt with\n");
        else if (check->kind != checks[i - 1].kind)
            printf("\nfound\n");
        printf("  %-18s %s\n", check->name, check->value);
    }
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        const struct check *check = &checks[i];
        if (check->ok)
            continue;
        printf("%s  %-18s %s", any ? "" : "\nmissing\n", check->name, check->needed_for);
        if (check->package != NULL)
            printf("; Debian package %s", check->package);
        putchar('\n');
        any = true;
    }
}

static json_t *checks_json(const struct check *checks, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        tdm_json_add(&list, json_pack("{s:s, s:s, s:b, s:s, s:s?}", "name", checks[i].name, "kind",
                                      checks[i].kind == FINDING_BUILD ? "build" : "found", "ok",
                                      (int)checks[i].ok, "value", checks[i].value, "package",
                                      checks[i].package));
    return json_pack("{s:s, s:o}", "version", PACKAGE_VERSION, "checks", list);
}

static enum tdm_status report(bool as_json, struct tdm_error *err)
{
    struct check checks[] = {
        {.name = "C compiler", .kind = FINDING_BUILD},
        {.name = "Jansson", .kind = FINDING_BUILD},
        {.name = "libyaml", .kind = FINDING_BUILD},
        {.name = "SQLite", .kind = FINDING_BUILD},
        {.name = "OpenBLAS",
         .kind = FINDING_BUILD,
         .needed_for = "fast products of the cpu backend",
         .package = "libopenblas-dev"},
        {.name = "OpenMP",
         .kind = FINDING_BUILD,
         .needed_for = "more than one core in the cpu backend",
         .package = "build-essential"},
        {.name = "MPI",
         .kind = FINDING_BUILD,
         .needed_for = "runs of several processes",
         .package = "libopenmpi-dev"},
        {.name = "CUDA",
         .kind = FINDING_BUILD,
         .needed_for = "the GPU backend",
         .package = "nvidia-cuda-toolkit"},
        {.name = "cpu kernels",
         .kind = FINDING_BUILD,
         .kernels = &tdm_kernels[TDM_COMPUTING_CPU],
         .needed_for = "schedules with such ops on --backend cpu"},
#ifdef HAVE_CUDA
        {.name = "cuda kernels",
         .kind = FINDING_BUILD,
         .kernels = &tdm_kernels[TDM_COMPUTING_CUDA],
         .needed_for = "schedules with such ops on --backend cuda"},
#endif
        {.name = "data",
         .kind = FINDING_HERE,
         .needed_for = "shipped models and machines; set TIDEMARK_DATA or run make install"},
        {.name = "tidemark-executor",
         .kind = FINDING_HERE,
         .needed_for = "tidemark run; build it with make"},
        {.name = "gnuplot",
         .kind = FINDING_HERE,
         .needed_for = "tidemark plot",
         .package = "gnuplot-nox"},
        {.name = "mpirun",
         .kind = FINDING_HERE,
         .needed_for = "runs of several processes",
         .package = "openmpi-bin"},
        {.name = "GPUs", .kind = FINDING_HERE, .needed_for = "running on a GPU"},
        {.name = "NCCL",
         .kind = FINDING_HERE,
         .needed_for = "GPUs that cannot read each other's memory, and several nodes; the package "
                       "nvidia-nccl-cu13 of PyPI has it, and TIDEMARK_NCCL names its libnccl.so.2"},
        {.name = "NVIDIA driver",
         .kind = FINDING_HERE,
         .needed_for = "running on a GPU",
         .package = "nvidia-driver"},
    };
    size_t count = sizeof(checks) / sizeof(checks[0]);
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        if (checks[i].kind == FINDING_BUILD)
            check_build(&checks[i]);
        else
            status = check_here(&checks[i], err);
    }
    if (status != TDM_OK)
        return status;
    if (as_json)
        return tdm_print_json(checks_json(checks, count), err);
    print_checks(checks, count);
    return TDM_OK;
}

struct arguments {
    bool json, schedules;
};

static const struct tdm_option options[] = {
    {.name = "schedules",
     .type = TDM_OPTION_FLAG,
     .place = offsetof(struct arguments, schedules),
     .help = "the family of schedules instead: what each loop order can keep and hold, or why not, "
             "and the sweeps and bytes that it costs"},
    {.as = &tdm_option_json, .place = offsetof(struct arguments, json)},
    {.name = NULL}};

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    struct arguments a = {0};
    int first;
    bool help;
    enum tdm_status status = tdm_options_read(&tdm_cmd_doctor, argc, argv, &a, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (first < argc)
        return tdm_fail(err, TDM_USAGE, "doctor: takes no arguments");
    return a.schedules ? tdm_family_print(a.json, err) : report(a.json, err);
}

const struct tdm_command tdm_cmd_doctor = {
    .name = "doctor",
    .usage = "doctor [--schedules] [--json]",
    .summary = "how it was built, what it finds, and what is missing",
    .options = options,
    .notes = "Names the Debian package of what is missing. Nothing that is missing is an error.\n"
             "\n"
             "Example:\n"
             "  tidemark doctor\n",
    .run = run,
};
