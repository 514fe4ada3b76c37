/* SPDX-License-Identifier: Apache-2.0 */
/* A library to preload: fails allocations of a program, each in a process of its own.
 *
 * Whenever memory is asked for along a way through the program (its stack) that was not seen
 * before, the process forks. In the child this allocation fails; it goes on with its stdout and
 * stderr in the files failed.N.out and failed.N.err. The parent waits for it, writes "N STATUS
 * WHERE" to failed.log (a signal counts as 128 and its number), and goes on without a failure.
 * TDM_FAIL_MOST limits the failures. The program must allocate in one thread.
 *
 * With TDM_FAIL_ALLOCATION=N only the N-th allocation fails, counted from 1, in the process itself
 * and whatever threads it has. `count` fails none, and writes their number to the file
 * `allocations` at the end. Those before main are not counted: CUDA's library cannot do without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

#define DEPTH 40
#define SLOTS 65536u /* of the set of stacks that were seen; a power of two */
#define MOST_FILES 64
#define CHILD_SECONDS 120u /* a child that takes longer hangs */

static uint64_t seen[SLOTS];
static long failures, most = 100000;
static bool busy = true; /* in this library, before main(), or in a child */
static bool by_number;   /* TDM_FAIL_ALLOCATION */
static atomic_long allocations, chosen;

static bool is_new(uint64_t hash)
{
    unsigned slot = (unsigned)hash & (SLOTS - 1);
    for (unsigned i = 0; i < SLOTS && seen[slot] != 0; i++, slot = (slot + 1) & (SLOTS - 1))
        if (seen[slot] == hash)
            return false;
    seen[slot] = hash;
    return true;
}

static void redirect(int descriptor, const char *suffix)
{
    char name[64];
    snprintf(name, sizeof(name), "failed.%ld.%s", failures, suffix);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, descriptor);
    close(fd);
}

/* What the child reads, the parent still has to read: gives the child file offsets of its own. */
static void part_files(void)
{
    for (int fd = STDERR_FILENO + 1; fd < MOST_FILES; fd++) {
        off_t at = lseek(fd, 0, SEEK_CUR);
        char name[64];
        snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        int own = at < 0 ? -1 : open(name, O_RDONLY);
        if (own < 0)
            continue;
        lseek(own, at, SEEK_SET);
        dup2(own, fd);
        close(own);
    }
}

static void note(int status, void *const *stack, int depth)
{
    int fd = open("failed.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    dprintf(fd, "%ld %d", failures,
            WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
    for (int i = 2; i < depth; i++)
        dprintf(fd, " %p", stack[i]);
    dprintf(fd, "\n");
    close(fd);
}

/* Does this allocation fail? */
static bool fails(void)
{
    void *stack[DEPTH];
    if (by_number) {
        bool is_chosen = atomic_fetch_add(&allocations, 1) + 1 == chosen;
        if (is_chosen)
            errno = ENOMEM;
        return is_chosen;
    }
    if (busy)
        return false;
    busy = true;
    uint64_t hash = 14695981039346656037u;
    int depth = backtrace(stack, DEPTH);
    for (int i = 0; i < depth; i++)
        hash = (hash ^ (uint64_t)(uintptr_t)stack[i]) * 1099511628211u;
    if (failures < most && is_new(hash | 1)) {
        pid_t child = fork();
        if (child == 0) {
            part_files();
            redirect(STDOUT_FILENO, "out");
            redirect(STDERR_FILENO, "err");
            alarm(CHILD_SECONDS);
            errno = ENOMEM;
            return true; /* and busy: no other allocation fails */
        }
        int status = 0;
        if (child > 0 && waitpid(child, &status, 0) == child)
            note(status, stack, depth);
        failures++;
    }
    busy = false;
    return false;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(old, bytes);
}

__attribute__((constructor)) static void begin(void)
{
    void *stack[2];
    const char *text = getenv("TDM_FAIL_MOST");
    if (getenv("TDM_FAIL_ALLOCATION") != NULL)
        return; /* begin_main() */
    if (text != NULL)
        most = atol(text);
    (void)backtrace(stack, 2); /* its first call allocates */
    busy = false;
}

static int (*program_main)(int, char **, char **);

static int begin_main(int argc, char **argv, char **environment)
{
    const char *text = getenv("TDM_FAIL_ALLOCATION");
    if (text != NULL) {
        chosen = atol(text);
        by_number = true;
    }
    return program_main(argc, argv, environment);
}

/* Calls constructors and main of a program. */
int __libc_start_main(int (*of_program)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*loader_fini)(void),
                      void *stack_end)
{
    int (*start)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
                 void (*)(void), void *);
    *(void **)&start = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main = of_program;
    return start(begin_main, argc, argv, init, fini, loader_fini, stack_end);
}

__attribute__((destructor)) static void end(void)
{
    const char *text = getenv("TDM_FAIL_ALLOCATION");
    int fd = text == NULL || atol(text) != 0 ? -1 : creat("allocations", 0644);
    if (fd >= 0) {
        dprintf(fd, "%ld\n", (long)allocations);
        close(fd);
    }
}
