/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fail_calls PROGRAM [ARGUMENT]...: runs a program and fails one of its system calls, kills it at
 * one, or records how it changes files. It traces the program and what it starts, so that calls
 * within libraries (stdio, SQLite) count too. Calls before a program's entry, of the dynamic
 * loader, do not.
 *
 *   TDM_FAIL_CALL     open, read, write, full, fsync, close, rename, unlink, symlink, mkdir or
 * mmap; kill: one that changes what other processes see of a file or folder TDM_FAIL_NUMBER   which
 * one fails, counted from 1 TDM_FAIL_STACK    a STACK: only its calls count TDM_FAIL_STACKS   a
 * file for a line "CALL STACK" for each call that counts, in their order; with `kill`, only for
 * those at which a process can be killed. Calls of one stack have the same STACK, in other
 * processes too. It takes fail_allocation.so in LD_PRELOAD; without it, and while signals are
 * blocked, calls on the same path have the same STACK TDM_FAIL_PATH     a part of the path that a
 * call must have to count; absent: any path, but no call on stderr. Of mmap and brk all calls count
 * that ask for memory TDM_FAIL_LOG      a file that gets a line if a call failed
 *
 * mmap and brk fail with ENOMEM, `full` and `write` with ENOSPC, the others with EIO. A close that
 * fails has closed. A write that fails writes the half first, and the next one fails; with `full`,
 * all calls after it that need space. With `kill` the process that calls is killed: before the
 * call, or after half of a write.
 *
 *   TDM_NO_SYNC       if it is set, an fsync succeeds and does nothing, which saves time: what was
 *                     not synced is not lost with a process
 *
 *   TDM_RECORD        a file for a record (recorded_call.h)
 *   TDM_RECORD_PATH   the folder of what is recorded
 *
 * The exit status is the program's, 128 and the signal if it died of one, and 77 if this system
 * does not let it be traced.
 */
#include "tests/support/recorded_call.h"
#include "tests/support/told_stack.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
int main(void)
{
    puts("calls can be failed on x86-64 only");
    return 77;
}
#else

/* ---- system calls ---- */

enum act {
    ACT_OPEN,
    ACT_READ,
    ACT_WRITE,
    ACT_TRUNCATE,
    ACT_FSYNC,
    ACT_CLOSE,
    ACT_RENAME,
    ACT_UNLINK,
    ACT_SYMLINK,
    ACT_MKDIR,
    ACT_MMAP,
    ACTS,
    ACT_FULL = ACTS,
    ACT_KILL,
    ACT_NONE
};

static const char *const act_names[] = {"open",  "read",   "write",  "truncate", "fsync",
                                        "close", "rename", "unlink", "symlink",  "mkdir",
                                        "mmap",  "full",   "kill"};

/* Where the arguments of a call are: numbers of registers, -1: it has none. */
static const struct call {
    int number;
    enum act act;
    signed char fd, directory, path, other, flags;
} calls[] = {
    {SYS_open, ACT_OPEN, -1, -1, 0, -1, 1},
    {SYS_openat, ACT_OPEN, -1, 0, 1, -1, 2},
    {SYS_read, ACT_READ, 0, -1, -1, -1, -1},
    {SYS_pread64, ACT_READ, 0, -1, -1, -1, -1},
    {SYS_write, ACT_WRITE, 0, -1, -1, -1, -1},
    {SYS_pwrite64, ACT_WRITE, 0, -1, -1, -1, -1},
    {SYS_ftruncate, ACT_TRUNCATE, 0, -1, -1, -1, -1},
    {SYS_fallocate, ACT_TRUNCATE, 0, -1, -1, -1, -1},
    {SYS_fsync, ACT_FSYNC, 0, -1, -1, -1, -1},
    {SYS_fdatasync, ACT_FSYNC, 0, -1, -1, -1, -1},
    {SYS_close, ACT_CLOSE, 0, -1, -1, -1, -1},
    {SYS_rename, ACT_RENAME, -1, -1, 1, 0, -1},
    {SYS_renameat, ACT_RENAME, -1, 2, 3, 1, -1},
    {SYS_renameat2, ACT_RENAME, -1, 2, 3, 1, 4},
    {SYS_unlink, ACT_UNLINK, -1, -1, 0, -1, -1},
    {SYS_unlinkat, ACT_UNLINK, -1, 0, 1, -1, -1},
    {SYS_rmdir, ACT_UNLINK, -1, -1, 0, -1, -1},
    {SYS_symlink, ACT_SYMLINK, -1, -1, 1, 0, -1},
    {SYS_symlinkat, ACT_SYMLINK, -1, 1, 2, 0, -1},
    {SYS_mkdir, ACT_MKDIR, -1, -1, 0, -1, -1},
    {SYS_mkdirat, ACT_MKDIR, -1, 0, 1, -1, -1},
    {SYS_mmap, ACT_MMAP, 4, -1, -1, -1, 3},
    {SYS_brk, ACT_MMAP, -1, -1, -1, -1, -1},
};
enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

static unsigned long long argument(const struct user_regs_struct *regs, int number)
{
    const unsigned long long values[] = {regs->rdi, regs->rsi, regs->rdx,
                                         regs->r10, regs->r8,  regs->r9};
    return values[number];
}

static const struct call *call_of(const struct user_regs_struct *regs)
{
    for (size_t i = 0; i < CALLS; i++)
        if ((int)regs->orig_rax == calls[i].number)
            return &calls[i];
    return NULL;
}

/* ---- the traced program's memory and paths ---- */

static size_t read_memory(pid_t thread, unsigned long long address, void *data, size_t bytes)
{
    struct iovec here = {data, bytes}, there = {(void *)(uintptr_t)address, bytes};
    ssize_t got = process_vm_readv(thread, &here, 1, &there, 1, 0);
    return got < 0 ? 0 : (size_t)got;
}

static void read_text(pid_t thread, unsigned long long address, char text[PATH_MAX])
{
    size_t used = 0;
    while (used < PATH_MAX - 1) { /* not beyond a page, which may be the last one */
        size_t most = 4096 - (size_t)((address + used) & 4095);
        if (most > PATH_MAX - 1 - used)
            most = PATH_MAX - 1 - used;
        size_t got = read_memory(thread, address + used, text + used, most);
        if (got == 0 || memchr(text + used, '\0', got) != NULL) {
            text[used + (got == 0 ? 0 : strlen(text + used))] = '\0';
            return;
        }
        used += got;
    }
    text[used] = '\0';
}

/* What a link in the thread's folder of /proc names. False if there is none. */
static bool read_link(pid_t thread, const char *kind, int fd, char path[PATH_MAX])
{
    char link[64];
    if (fd >= 0)
        snprintf(link, sizeof(link), "/proc/%d/%s/%d", thread, kind, fd);
    else
        snprintf(link, sizeof(link), "/proc/%d/%s", thread, kind);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = '\0';
    return length >= 0;
}

/* The absolute path of an argument; `directory`: of its folder's descriptor, or -1. */
static void read_path(pid_t thread, const struct user_regs_struct *regs, int directory, int number,
                      char path[PATH_MAX])
{
    char name[PATH_MAX], folder[PATH_MAX];
    read_text(thread, argument(regs, number), name);
    int fd = directory < 0 ? AT_FDCWD : (int)argument(regs, directory);
    bool known = name[0] == '/'   ? false
                 : fd == AT_FDCWD ? read_link(thread, "cwd", -1, folder)
                                  : read_link(thread, "fd", fd, folder);
    if (!known || snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        snprintf(path, PATH_MAX, "%s", name);
}

/* The process of a thread. */
static pid_t group_of(pid_t thread)
{
    char path[64], line[256];
    pid_t group = thread;
    snprintf(path, sizeof(path), "/proc/%d/status", thread);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        (void)sscanf(line, "Tgid: %d", &group);
    if (file != NULL)
        fclose(file);
    return group;
}

/* ---- threads ---- */

struct thread {
    pid_t id;
    bool loading;                 /* before its program's entry */
    unsigned long entry;          /* where the instruction `replaced` was */
    long replaced;                /* 0: there is no breakpoint */
    bool within;                  /* a call, whose end is waited for */
    int fails_with;               /* at that end; 0: not */
    bool dies;                    /* at that end */
    struct user_regs_struct regs; /* at its start */
    char path[PATH_MAX], other[PATH_MAX];
    uint64_t offset; /* of a write */
    bool asked;      /* for the stack of a call that begins again */
    uint64_t stack;  /* of the call */
    bool existed;    /* of an open: there was such a file */
};

static struct thread threads[256]; /* id 0: free */

static struct thread *thread_of(pid_t id)
{
    struct thread *free_one = NULL;
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        if (threads[i].id == id)
            return &threads[i];
        if (threads[i].id == 0 && free_one == NULL)
            free_one = &threads[i];
    }
    if (free_one == NULL)
        exit(99);
    *free_one = (struct thread){.id = id};
    return free_one;
}

static void forget(pid_t id)
{
    thread_of(id)->id = 0;
}

/* Stops the thread at its program's entry, where the loader has done its work. */
static void await_entry(struct thread *thread)
{
    char path[64];
    Elf64_auxv_t item;
    thread->loading = false;
    snprintf(path, sizeof(path), "/proc/%d/auxv", thread->id);
    FILE *file = fopen(path, "rb");
    while (file != NULL && fread(&item, sizeof(item), 1, file) == 1)
        if (item.a_type == AT_ENTRY) {
            thread->entry = item.a_un.a_val;
            thread->replaced = ptrace(PTRACE_PEEKTEXT, thread->id, thread->entry, 0);
            ptrace(PTRACE_POKETEXT, thread->id, thread->entry, (thread->replaced & ~0xffL) | 0xcc);
            thread->loading = true;
        }
    if (file != NULL)
        fclose(file);
}

/* Is it there? Then it goes on as if nothing had been. */
static bool is_at_entry(struct thread *thread)
{
    struct user_regs_struct regs;
    if (!thread->loading || ptrace(PTRACE_GETREGS, thread->id, 0, &regs) != 0 ||
        regs.rip != thread->entry + 1)
        return false;
    ptrace(PTRACE_POKETEXT, thread->id, thread->entry, thread->replaced);
    regs.rip = thread->entry;
    ptrace(PTRACE_SETREGS, thread->id, 0, &regs);
    thread->loading = false;
    return true;
}

/* ---- failures ---- */

static enum act failing = ACT_NONE;
static long number; /* calls until one fails */
static const char *path_part, *log_path;
static bool half_written, disk_is_full, no_sync;
static FILE *stacks;
static uint64_t chosen_stack; /* 0: any */

static bool counts(const struct thread *thread, const struct call *call)
{
    const struct user_regs_struct *regs = &thread->regs;
    if (call->act == ACT_MMAP) {
        if (call->number == SYS_brk)
            return regs->rdi != 0;
        return (argument(regs, call->flags) & MAP_ANONYMOUS) != 0;
    }
    if (call->fd >= 0 && argument(regs, call->fd) == STDERR_FILENO)
        return false;
    return path_part == NULL || strstr(thread->path, path_part) != NULL;
}

static void note(const struct thread *thread)
{
    FILE *file = log_path == NULL ? NULL : fopen(log_path, "a");
    if (file != NULL) {
        fprintf(file, "%s %s\n", act_names[failing], thread->path);
        fclose(file);
    }
}

static bool needs_space(const struct thread *thread, const struct call *call)
{
    return call->act == ACT_WRITE || call->act == ACT_TRUNCATE || call->act == ACT_MKDIR ||
           call->act == ACT_SYMLINK ||
           (call->act == ACT_OPEN && (argument(&thread->regs, call->flags) & O_CREAT) != 0 &&
            !thread->existed);
}

/* Has the thread a handler of TDM_TELL_STACK, and lets it run? */
static bool tells_stacks(pid_t thread)
{
    char path[64], line[256];
    unsigned long long blocked = ~0ULL, caught = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", thread);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "SigBlk: %llx", &blocked);
        (void)sscanf(line, "SigCgt: %llx", &caught);
    }
    if (file != NULL)
        fclose(file);
    return (caught & ~blocked) >> (TDM_TELL_STACK - 1) & 1;
}

/* Does it change what other processes see? */
static bool changes(const struct thread *thread, const struct call *call)
{
    switch (call->act) {
    case ACT_OPEN:
        return needs_space(thread, call) || (argument(&thread->regs, call->flags) & O_TRUNC) != 0;
    case ACT_WRITE:
    case ACT_TRUNCATE:
    case ACT_RENAME:
    case ACT_UNLINK:
    case ACT_SYMLINK:
    case ACT_MKDIR:
        return true;
    default:
        return false;
    }
}

/* Is the call of the kind that fails? */
static bool is_due(const struct thread *thread, const struct call *call)
{
    if (failing == ACT_KILL)
        return changes(thread, call);
    return call->act == (failing == ACT_FULL ? ACT_WRITE : failing);
}

/* Takes the stack of a call and lists it, where it is needed. False: the call is skipped, and made
 * again once its stack is told. */
static bool take_stack(struct thread *thread, const struct call *call)
{
    bool due = is_due(thread, call);
    bool needed = (stacks != NULL && (due || failing != ACT_KILL)) || (chosen_stack != 0 && due);
    if (!needed || thread->loading || !counts(thread, call))
        return true;
    if (!thread->asked && tells_stacks(thread->id)) {
        struct user_regs_struct regs = thread->regs;
        regs.rax = regs.orig_rax;
        regs.orig_rax = (unsigned long long)-1; /* no call */
        thread->asked = true;
        ptrace(PTRACE_SETREGS, thread->id, 0, &regs);
        syscall(SYS_tgkill, group_of(thread->id), thread->id, TDM_TELL_STACK);
        return false;
    }
    if (!thread->asked) {
        thread->stack = 14695981039346656037u;
        for (const char *at = thread->path; *at != '\0'; at++)
            thread->stack = (thread->stack ^ (unsigned char)*at) * 1099511628211u;
    }
    thread->asked = false;
    const bool also_full = call->act == ACT_WRITE && failing != ACT_KILL;
    for (int act = 0; stacks != NULL && act <= ACT_FULL; act++)
        if (act == (int)call->act || (act == ACT_FULL && also_full))
            fprintf(stacks, "%s %016llx\n", act_names[act], (unsigned long long)thread->stack);
    return true;
}

/* With what the call is to fail; 0: it does not. May shorten a write. Notes whether the process
 * dies. */
static int failure(struct thread *thread, const struct call *call)
{
    if (thread->loading || !counts(thread, call))
        return 0;
    if (disk_is_full && needs_space(thread, call))
        return ENOSPC;
    if (half_written && call->act == ACT_WRITE) {
        half_written = false;
        return ENOSPC;
    }
    if (!is_due(thread, call) || (chosen_stack != 0 && thread->stack != chosen_stack) ||
        --number != 0)
        return 0;
    note(thread);
    thread->dies = failing == ACT_KILL;
    if (call->act != ACT_WRITE)
        return call->act == ACT_MMAP ? ENOMEM : EIO;
    disk_is_full = failing == ACT_FULL;
    if (thread->regs.rdx < 2)
        return ENOSPC;
    half_written = failing == ACT_WRITE;
    thread->regs.rdx /= 2;
    ptrace(PTRACE_SETREGS, thread->id, 0, &thread->regs);
    return 0;
}

/* ---- records ---- */

static FILE *record;
static const char *record_path;

static bool is_recorded(const char *path)
{
    size_t length = record_path == NULL ? 0 : strlen(record_path);
    return record != NULL && strncmp(path, record_path, length) == 0 &&
           (path[length] == '/' || path[length] == '\0');
}

static void put(enum tdm_recorded_kind kind, uint64_t inode, uint64_t offset, const char *path,
                const char *other, const void *data, size_t bytes)
{
    const struct tdm_recorded_call call = {
        kind, (uint32_t)strlen(path), (uint32_t)strlen(other), (uint32_t)bytes, inode, offset};
    fwrite(&call, sizeof(call), 1, record);
    fwrite(path, 1, call.path_bytes, record);
    fwrite(other, 1, call.other_bytes, record);
    fwrite(data, 1, bytes, record);
}

/* A record with a gap would be replayed as a loss. */
static void give_up(const char *path)
{
    fprintf(stderr, "fail_calls: %s: %s\n", path, strerror(errno));
    exit(99);
}

static uint64_t inode_of(pid_t thread, int fd)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", thread, fd);
    if (stat(path, &info) != 0)
        give_up(path);
    return info.st_ino;
}

/* Where write() writes. */
static uint64_t position_of(pid_t thread, int fd)
{
    char path[64];
    long long position = 0;
    unsigned flags = 0;
    snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", thread, fd);
    FILE *file = fopen(path, "r");
    if (file == NULL || fscanf(file, "pos: %lld flags: %o", &position, &flags) < 2)
        give_up(path);
    fclose(file);
    struct stat info;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", thread, fd);
    return (flags & O_APPEND) != 0 && stat(path, &info) == 0 ? (uint64_t)info.st_size
                                                             : (uint64_t)position;
}

/* Does it write to what stderr is? A shell's "echo ... >&2" writes to descriptor 1. */
static bool is_said(const struct thread *thread)
{
    char path[PATH_MAX];
    return (int)thread->regs.rdi == STDERR_FILENO ||
           (read_link(thread->id, "fd", STDERR_FILENO, path) && strcmp(path, thread->path) == 0);
}

static void record_write(const struct thread *thread, size_t bytes)
{
    int fd = (int)thread->regs.rdi;
    char *data = malloc(bytes + 1);
    if (data == NULL || read_memory(thread->id, thread->regs.rsi, data, bytes) != bytes)
        exit(99);
    if (is_said(thread))
        put(TDM_RECORDED_SAID, 0, 0, "", "", data, bytes);
    else
        put(TDM_RECORDED_WRITE, inode_of(thread->id, fd), thread->offset, "", "", data, bytes);
    free(data);
}

/* A call that succeeded with `result`. */
static void record_call(const struct thread *thread, const struct call *call, long long result)
{
    const struct user_regs_struct *regs = &thread->regs;
    bool said = record != NULL && call->act == ACT_WRITE && is_said(thread);
    if (record == NULL || (!said && !is_recorded(thread->path)))
        return;
    switch (call->act) {
    case ACT_OPEN:
        if (!thread->existed)
            put(TDM_RECORDED_CREATE, inode_of(thread->id, (int)result), 0, thread->path, "", "", 0);
        else if ((argument(regs, call->flags) & O_TRUNC) != 0)
            put(TDM_RECORDED_TRUNCATE, inode_of(thread->id, (int)result), 0, "", "", "", 0);
        break;
    case ACT_WRITE:
        record_write(thread, (size_t)result);
        break;
    case ACT_TRUNCATE:
        if (call->number == SYS_ftruncate)
            put(TDM_RECORDED_TRUNCATE, inode_of(thread->id, (int)regs->rdi), regs->rsi, "", "", "",
                0);
        break;
    case ACT_FSYNC:
        put(TDM_RECORDED_SYNC, inode_of(thread->id, (int)regs->rdi), 0, thread->path, "", "", 0);
        break;
    case ACT_RENAME:
        put(call->flags >= 0 && (argument(regs, call->flags) & 2) != 0 ? TDM_RECORDED_EXCHANGE
                                                                       : TDM_RECORDED_RENAME,
            0, 0, thread->other, thread->path, "", 0);
        break;
    case ACT_UNLINK:
        put(TDM_RECORDED_REMOVE, 0, 0, thread->path, "", "", 0);
        break;
    case ACT_MKDIR:
        put(TDM_RECORDED_MKDIR, 0, 0, thread->path, "", "", 0);
        break;
    case ACT_SYMLINK:
        put(TDM_RECORDED_SYMLINK, 0, 0, thread->path, thread->other, "", 0);
        break;
    default:
        break;
    }
}

/* ---- tracing ---- */

/* In place of a call this is its result. */
static void skip(const struct thread *thread, long long result)
{
    struct user_regs_struct regs = thread->regs;
    regs.orig_rax = (unsigned long long)-1; /* no call */
    regs.rax = (unsigned long long)result;
    ptrace(PTRACE_SETREGS, thread->id, 0, &regs);
}

/* A call begins. Returns how to go on. */
static int enter(struct thread *thread)
{
    if (ptrace(PTRACE_GETREGS, thread->id, 0, &thread->regs) != 0)
        return PTRACE_CONT;
    if (thread->regs.orig_rax == TDM_TOLD_STACK)
        thread->stack = thread->regs.rdi;
    const struct call *call = call_of(&thread->regs);
    if (call == NULL)
        return PTRACE_CONT;
    struct stat info;
    thread->path[0] = thread->other[0] = '\0';
    if (call->path >= 0)
        read_path(thread->id, &thread->regs, call->directory, call->path, thread->path);
    else if (call->fd >= 0 && call->act != ACT_MMAP)
        (void)read_link(thread->id, "fd", (int)argument(&thread->regs, call->fd), thread->path);
    if (call->act == ACT_SYMLINK)
        read_text(thread->id, argument(&thread->regs, call->other), thread->other);
    else if (call->other >= 0)
        read_path(thread->id, &thread->regs, call->directory < 0 ? -1 : 0, call->other,
                  thread->other);
    thread->existed = call->act == ACT_OPEN && lstat(thread->path, &info) == 0;
    const bool at_position = is_recorded(thread->path) && call->number == SYS_write;
    thread->offset = at_position ? position_of(thread->id, (int)argument(&thread->regs, 0))
                                 : argument(&thread->regs, 3);
    if (!take_stack(thread, call))
        return PTRACE_CONT;
    thread->fails_with = failure(thread, call);
    if (thread->fails_with != 0 && call->number == SYS_brk) {
        struct user_regs_struct regs = thread->regs;
        regs.rdi = 0; /* it tells where the break is, as one that fails does */
        ptrace(PTRACE_SETREGS, thread->id, 0, &regs);
    } else if (thread->fails_with != 0 && call->act != ACT_CLOSE) {
        skip(thread, -thread->fails_with);
        if (thread->dies)
            kill(group_of(thread->id), SIGKILL);
        return PTRACE_CONT;
    } else if (no_sync && call->act == ACT_FSYNC) {
        skip(thread, 0);
        return PTRACE_CONT;
    }
    thread->within = thread->fails_with != 0 || thread->dies || record != NULL;
    return thread->within ? PTRACE_SYSCALL : PTRACE_CONT;
}

/* A call has ended. */
static void leave(struct thread *thread)
{
    struct user_regs_struct regs;
    thread->within = false;
    if (thread->dies)
        kill(group_of(thread->id), SIGKILL);
    if (ptrace(PTRACE_GETREGS, thread->id, 0, &regs) != 0)
        return;
    if (thread->fails_with != 0 && thread->regs.orig_rax == SYS_brk) {
        regs.rdi = thread->regs.rdi;
        ptrace(PTRACE_SETREGS, thread->id, 0, &regs);
        return;
    }
    if (thread->fails_with != 0) {
        regs.rax = (unsigned long long)-thread->fails_with;
        ptrace(PTRACE_SETREGS, thread->id, 0, &regs);
    } else if ((long long)regs.rax >= 0) {
        record_call(thread, call_of(&thread->regs), (long long)regs.rax);
    }
}

static const long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                            PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD |
                            PTRACE_O_EXITKILL;

/* Follows all threads until `child` has ended; returns its status. */
static int follow(pid_t child)
{
    int status, last = 99;
    for (pid_t id; (id = waitpid(-1, &status, __WALL)) > 0;) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (id == child)
                last = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            forget(id);
            continue;
        }
        struct thread *thread = thread_of(id);
        int how = PTRACE_CONT, signal = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP) {
            how = enter(thread);
            signal = 0;
        } else if (event == PTRACE_EVENT_EXEC) {
            await_entry(thread);
            signal = 0;
        } else if (event != 0) {
            signal = 0; /* a new thread, which stops by itself */
        } else if (signal == (SIGTRAP | 0x80)) {
            if (thread->within)
                leave(thread);
            signal = 0;
        } else if (signal == SIGSTOP || (signal == SIGTRAP && is_at_entry(thread))) {
            signal = 0;
        }
        ptrace(how, id, 0, signal);
    }
    return last;
}

/* Can such calls matter to what is done? Each one that stops the process takes time. */
static bool matters(enum act act)
{
    if (stacks != NULL || record != NULL || (failing != ACT_NONE && failing != ACT_KILL))
        return true;
    if (failing == ACT_NONE)
        return act == ACT_FSYNC && no_sync;
    return act != ACT_READ && act != ACT_CLOSE && act != ACT_MMAP;
}

/* Lets the calls of the table that matter stop the process. */
static void filter_calls(void)
{
    struct sock_filter code[2 * CALLS + 4] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short count = 1;
    for (size_t i = 0; i <= CALLS; i++) {
        if (i < CALLS && !matters(calls[i].act))
            continue;
        unsigned call = i < CALLS ? (unsigned)calls[i].number : TDM_TOLD_STACK;
        code[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {count, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

static void read_environment(void)
{
    const char *text = getenv("TDM_FAIL_NUMBER"), *name = getenv("TDM_FAIL_CALL");
    path_part = getenv("TDM_FAIL_PATH");
    log_path = getenv("TDM_FAIL_LOG");
    number = text == NULL ? 0 : atol(text);
    const char *stack = getenv("TDM_FAIL_STACK");
    chosen_stack = stack == NULL ? 0 : strtoull(stack, NULL, 16);
    for (size_t i = 0; name != NULL && i < sizeof(act_names) / sizeof(act_names[0]); i++)
        if (strcmp(name, act_names[i]) == 0)
            failing = (enum act)i;
    no_sync = getenv("TDM_NO_SYNC") != NULL;
    if (getenv("TDM_FAIL_STACKS") != NULL)
        stacks = fopen(getenv("TDM_FAIL_STACKS"), "we");
    record_path = getenv("TDM_RECORD_PATH");
    if (record_path != NULL && getenv("TDM_RECORD") != NULL)
        record = fopen(getenv("TDM_RECORD"), "wb");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: fail_calls PROGRAM [ARGUMENT]...\n");
        return 99;
    }
    read_environment();
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
            _exit(77);
        raise(SIGSTOP);
        filter_calls();
        execvp(argv[1], argv + 1);
        _exit(99);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, child, 0, options) != 0) {
        puts("this system does not let programs be traced");
        return 77;
    }
    thread_of(child)->loading = true; /* until the program is executed */
    ptrace(PTRACE_CONT, child, 0, 0);
    int last = follow(child);
    if (stacks != NULL && fclose(stacks) != 0)
        return 99;
    if (record != NULL && fclose(record) != 0)
        return 99;
    return last;
}

#endif
