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
 * and whatever threads it has; with TDM_FAIL_STACK=STACK the N-th of that stack, which other
 * threads do not change. TDM_FAIL_LOG names a file that then gets a line. `count` fails none, and
 * writes at the end a line "malloc STACK" for each to the file `allocations`; without
 * TDM_FAIL_STACKS all have STACK 0, which is faster. Those before main are not counted: CUDA's
 * library cannot do without. STACK is a digest of the return addresses, relative to their modules,
 * so that it is the same in another process.
 *
 * With TDM_FAIL_STACKS or TDM_FAIL_STACK alone no allocation fails: the library tells fail_calls
 * the stacks of system calls (told_stack.h). */
#include "told_stack.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

#define DEPTH 40
#define SLOTS 65536u /* of the set of stacks that were seen; a power of two */
#define MOST_FILES 64
#define CHILD_SECONDS 120u /* a child that takes longer hangs */
#define MODULES 256
#define MOST_LISTED (1L << 24) /* allocations of `count` */

static uint64_t seen[SLOTS];
static long failures, most = 100000;
static bool busy = true; /* in this library, before main(), or in a child */
static bool by_number;   /* TDM_FAIL_ALLOCATION */
static atomic_long allocations, chosen;
static uint64_t *listed; /* stacks of `count`, by allocation */
static bool takes_stacks;
static uint64_t chosen_stack; /* 0: any */
static atomic_bool has_failed;

static struct module {
    uintptr_t start, end;
} modules[MODULES];
static int module_count;

static int add_module(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    struct module *module = &modules[module_count];
    module->start = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            uintptr_t end = start + info->dlpi_phdr[i].p_memsz;
            module->start = start < module->start ? start : module->start;
            module->end = end > module->end ? end : module->end;
        }
    return ++module_count == MODULES;
}

/* The digest of a stack. */
static uint64_t digest(void *const *stack, int depth)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < depth; i++) {
        uint64_t address = (uint64_t)(uintptr_t)stack[i];
        for (int m = 0; m < module_count; m++)
            if (address - modules[m].start < modules[m].end - modules[m].start) {
                address = (address - modules[m].start) + ((uint64_t)(m + 1) << 48);
                break;
            }
        hash = (hash ^ address) * 1099511628211u;
    }
    return hash;
}

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

/* With TDM_FAIL_ALLOCATION: is it the one that fails? */
static bool is_chosen(void)
{
    void *stack[DEPTH];
    if (has_failed)
        return false;
    uint64_t hash = takes_stacks ? digest(stack, backtrace(stack, DEPTH)) : 0;
    if (chosen_stack != 0 && hash != chosen_stack)
        return false;
    long number = atomic_fetch_add(&allocations, 1) + 1;
    if (listed != NULL && number <= MOST_LISTED)
        listed[number - 1] = hash;
    if (number != chosen)
        return false;
    has_failed = true;
    const char *path = getenv("TDM_FAIL_LOG");
    int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd >= 0) {
        dprintf(fd, "malloc\n");
        close(fd);
    }
    errno = ENOMEM;
    return true;
}

/* Does this allocation fail? */
static bool fails(void)
{
    void *stack[DEPTH];
    if (by_number)
        return is_chosen();
    if (busy)
        return false;
    busy = true;
    int depth = backtrace(stack, DEPTH);
    if (failures < most && is_new(digest(stack, depth) | 1)) {
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

#ifdef __x86_64__
/* fail_calls skipped a system call: tells its stack, and lets it be made again. */
static void tell_stack(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    ucontext_t *at = context;
    void *stack[DEPTH];
    int before = errno;
    (void)syscall(TDM_TOLD_STACK, digest(stack, backtrace(stack, DEPTH)));
    errno = before;
    at->uc_mcontext.gregs[REG_RIP] -= TDM_SYSCALL_BYTES;
}
#else /* there is no fail_calls */
static void tell_stack(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
}
#endif

__attribute__((constructor)) static void begin(void)
{
    void *stack[2];
    const char *text = getenv("TDM_FAIL_MOST");
    (void)backtrace(stack, 2); /* its first call allocates */
    dl_iterate_phdr(add_module, NULL);
    bool by_allocation = getenv("TDM_FAIL_ALLOCATION") != NULL;
    const char *list = getenv("TDM_FAIL_STACKS");
    takes_stacks = (list != NULL && *list != '\0') || getenv("TDM_FAIL_STACK") != NULL;
    if (takes_stacks && !by_allocation) {
        struct sigaction action = {.sa_sigaction = tell_stack, .sa_flags = SA_SIGINFO | SA_RESTART};
        sigaction(TDM_TELL_STACK, &action, NULL);
    }
    if (takes_stacks || by_allocation)
        return; /* begin_main() */
    if (text != NULL)
        most = atol(text);
    busy = false;
}

static int (*program_main)(int, char **, char **);

static int begin_main(int argc, char **argv, char **environment)
{
    const char *text = getenv("TDM_FAIL_ALLOCATION"), *stack = getenv("TDM_FAIL_STACK");
    if (text != NULL) {
        chosen_stack = stack == NULL ? 0 : strtoull(stack, NULL, 16);
        chosen = atol(text);
        if (chosen == 0)
            listed = mmap(NULL, MOST_LISTED * sizeof(*listed), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        by_number = listed != MAP_FAILED;
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
    bool lists = listed != NULL && by_number;
    by_number = false;
    FILE *file = lists ? fopen("allocations", "w") : NULL;
    for (long i = 0; file != NULL && i < allocations; i++)
        fprintf(file, "malloc %016llx\n", i < MOST_LISTED ? (unsigned long long)listed[i] : 0);
    if (file != NULL)
        fclose(file);
}
