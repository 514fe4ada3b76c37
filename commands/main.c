/* SPDX-License-Identifier: Apache-2.0 */
/* tidemark: plans, reports and plots training steps, and starts the executor to run them. */
#include "config.h"
#include "base/file.h"
#include "base/names.h"
#include "base/process.h"
#include "commands/cmd.h"
#include "commands/executor_path.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdbool.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_COMMANDS 32u

static void print_help(void)
{
    printf(
        "usage: tidemark COMMAND [ARGUMENTS]\n"
        "\n"
        "plans the memory of a training step, runs exactly that plan, and shows where every byte\n"
        "went\n"
        "\n");
    for (size_t i = 0; tdm_commands[i] != NULL; i++)
        printf("  %-10s %s\n", tdm_commands[i]->name, tdm_commands[i]->summary);
    printf("\n"
           "  --help     this text; tidemark COMMAND --help, or help COMMAND: that of a command\n"
           "  --version  the version\n"
           "\n"
           "Data goes to stdout, all else to stderr. Exit: 0 done, 1 failed, 2 bad command line,\n"
           "3 no schedule fits, 130 after Ctrl-C.\n"
           "\n"
           "Example:\n"
           "  tidemark plan qwen2.5-7b --context 256K -o plan.json\n");
}

static enum tdm_status unknown_command(const char *name, struct tdm_error *err)
{
    if (strcmp(name, "compare-schedules") == 0)
        return tdm_fail(err, TDM_USAGE, "compare-schedules is called diff now: tidemark diff A B");
    const char *names[MOST_COMMANDS + 1] = {NULL};
    char list[256] = "", suggestion[TDM_SUGGESTION_BYTES];
    for (size_t i = 0; i < MOST_COMMANDS && tdm_commands[i] != NULL; i++) {
        size_t used = strlen(list);
        names[i] = tdm_commands[i]->name;
        snprintf(list + used, sizeof(list) - used, "%s%s", i == 0 ? "" : ", ", names[i]);
    }
    tdm_fail(err, TDM_USAGE, "unknown command \"%.64s\"", name);
    return tdm_hint(err, "%scommands: %s", tdm_name_suggest(name, names, suggestion), list);
}

static const struct tdm_command *find_command(const char *name)
{
    for (size_t i = 0; tdm_commands[i] != NULL; i++)
        if (strcmp(tdm_commands[i]->name, name) == 0)
            return tdm_commands[i];
    return NULL;
}

static enum tdm_status run_command(int argc, char **argv, struct tdm_error *err)
{
    if (argc < 2) {
        tdm_fail(err, TDM_USAGE, "no command is named");
        return tdm_hint(err, "tidemark --help lists the commands");
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help();
        return TDM_OK;
    }
    if (strcmp(name, "help") == 0) {
        if (argc > 3)
            return tdm_fail(err, TDM_USAGE, "help takes one command, or none");
        char flag[] = "--help", *of_command[] = {argv[0], argc == 3 ? argv[2] : flag, flag, NULL};
        return run_command(3, of_command, err);
    }
    if (strcmp(name, "--version") == 0) {
        printf("tidemark %s\n", PACKAGE_VERSION);
        return TDM_OK;
    }
    const struct tdm_command *command = find_command(name);
    if (command == NULL)
        return unknown_command(name, err);
    return command->run == NULL ? tdm_executor_start(command, argc - 1, argv + 1, err)
                                : command->run(argc - 1, argv + 1, err);
}

/* Predictions allocate and free the same megabytes many times. To return them to the system and
 * get cleared pages again takes a fifth of the time. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

/* A run saves on SIGUSR1. One that comes before tidemark-executor takes it waits for that. */
static void hold_signal_to_save(void)
{
    sigset_t saving;
    sigemptyset(&saving);
    sigaddset(&saving, SIGUSR1);
    sigprocmask(SIG_BLOCK, &saving, NULL);
}

#define STACK_BYTES (256u << 10)

/* The stack grows as far as commands need it, at once. Where address space is limited and used up
 * it could not grow later, and the kernel would end the program without a word. */
static void grow_stack(void)
{
    volatile char room[STACK_BYTES];
    for (size_t i = 0; i < sizeof(room); i += 1024)
        room[i] = 0;
}

int main(int argc, char **argv)
{
    struct tdm_error err = {0};
    grow_stack();
    if (argc >= 2 && strcmp(argv[1], "run") == 0)
        hold_signal_to_save();
    keep_freed_memory();
    enum tdm_status status = tdm_process_begin(&err);
    if (status == TDM_OK)
        status = run_command(argc, argv, &err);
    struct tdm_error lost;
    if (tdm_stdout_end(&lost) != TDM_OK && status == TDM_OK) { /* before a message, in any case */
        status = lost.status;
        err = lost;
    }
    if (status != TDM_OK) {
        fprintf(stderr, "tidemark: %s\n", err.message);
        if (err.hint[0] != '\0')
            fprintf(stderr, "hint: %s\n", err.hint);
    }
    return tdm_exit_code(status);
}
