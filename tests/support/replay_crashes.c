/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay_crashes RECORD ROOT STATE COMMAND: what a power loss may leave of a folder ROOT, empty at
 * first, of which fail_calls made RECORD. For each call it makes folders STATE as they may be if
 * the power goes after it, and runs COMMAND (sh -c), with the folder in TDM_STATE, a file with what
 * the program had written to stderr in TDM_SAID, and TDM_LAST=1 after the last call. Where the
 * command fails, the folder is not right.
 *
 * What was synced is there. Of writes and changes of names that were not, each is there or not, by
 * itself; a rename is there as a whole or not at all. Of all these choices it takes: all there;
 * nothing; names without data; data without names; what was removed; and some at random, from a
 * fixed seed.
 *
 *   TDM_STRIDE   only after every n-th call, the last one, and each that changes a name or says
 *                something
 *   TDM_RANDOM   random choices a call
 *   TDM_SEED     of these
 *
 * Prints how many states there were, and which were not right. Exit status 1 if some were not.
 */
#include "executor/random.h"
#include "tests/support/recorded_call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 200000u /* of calls, nodes, changes */
#define NONE UINT32_MAX

static void fail(const char *what)
{
    fprintf(stderr, "replay_crashes: %s\n", what);
    exit(99);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes == 0 ? 1 : bytes);
    if (memory == NULL)
        fail("out of memory");
    return memory;
}

/* ---- the history of the folder ---- */

struct call {
    struct tdm_recorded_call of;
    char *path, *other, *data;
    uint32_t node;    /* of a write, a truncation */
    uint32_t durable; /* the first call after which it is on disk; NONE: never */
    /* changes of names: NODE (NONE: nothing) has the name now; at most two, 0 of other calls */
    uint32_t changes;
    struct {
        uint32_t folder, node;
        char *name;
    } change[2];
};

struct node {
    enum { FILE_NODE, FOLDER_NODE, LINK_NODE } kind;
    const char *target; /* of a link */
    uint64_t inode;
};

/* Names as they are after some calls. */
struct entry {
    uint32_t folder, node;
    const char *name;
};

struct names {
    struct entry *list;
    uint32_t count;
};

static struct call *calls;
static struct node *nodes; /* 0: the folder */
static uint32_t call_count, node_count;

static struct entry *find(struct names *names, uint32_t folder, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (names->list[i].folder == folder && strcmp(names->list[i].name, name) == 0)
            return &names->list[i];
    return NULL;
}

static void set_name(struct names *names, uint32_t folder, const char *name, uint32_t node)
{
    struct entry *entry = find(names, folder, name);
    if (entry == NULL && node != NONE)
        names->list[names->count++] = (struct entry){folder, node, name};
    else if (entry != NULL && node == NONE)
        *entry = names->list[--names->count];
    else if (entry != NULL)
        entry->node = node;
    if (names->count == MOST)
        fail("too many names");
}

/* The folder that holds `path`, below the root, and the name in it. */
static uint32_t folder_of(struct names *names, const char *root, const char *path,
                          const char **name)
{
    uint32_t folder = 0;
    const char *at = path + strlen(root);
    for (;;) {
        at += strspn(at, "/");
        size_t length = strcspn(at, "/");
        if (at[length] == '\0') {
            *name = at;
            return folder;
        }
        char *part = strndup(at, length);
        struct entry *entry = find(names, folder, part);
        free(part);
        if (entry == NULL)
            fail(path);
        folder = entry->node;
        at += length;
    }
}

static uint32_t node_of(struct names *names, const char *root, const char *path)
{
    const char *name;
    uint32_t folder = folder_of(names, root, path, &name);
    struct entry *entry = name[0] == '\0' ? NULL : find(names, folder, name);
    return name[0] == '\0' ? 0 : entry == NULL ? NONE : entry->node;
}

/* The file that has this inode: the last one that was made with it. */
static uint32_t file_of(uint64_t inode)
{
    for (uint32_t i = node_count; i-- > 0;)
        if (nodes[i].kind == FILE_NODE && nodes[i].inode == inode)
            return i;
    return NONE;
}

static uint32_t add_node(struct node node)
{
    if (node_count == MOST)
        fail("too many files");
    nodes[node_count] = node;
    return node_count++;
}

static void add_change(struct call *call, struct names *names, const char *root, const char *path,
                       uint32_t node)
{
    const char *name;
    uint32_t folder = folder_of(names, root, path, &name);
    call->change[call->changes].folder = folder;
    call->change[call->changes].node = node;
    call->change[call->changes++].name = strdup(name);
}

/* What was done to a node before `number` is on disk after it. */
static void sync_node(uint32_t node, uint32_t number)
{
    for (uint32_t i = 0; i < number; i++) {
        bool touches = calls[i].node == node && node != NONE;
        for (uint32_t c = 0; c < calls[i].changes; c++)
            touches |= calls[i].change[c].folder == node;
        if (touches && calls[i].durable == NONE)
            calls[i].durable = number;
    }
}

/* Finds what a call does to which node, with the names before it, which it changes. */
static void resolve(uint32_t number, struct names *names, const char *root)
{
    struct call *call = &calls[number];
    uint32_t one, two;
    call->node = call->durable = NONE;
    switch ((enum tdm_recorded_kind)call->of.kind) {
    case TDM_RECORDED_CREATE:
        one = add_node((struct node){FILE_NODE, NULL, call->of.inode});
        add_change(call, names, root, call->path, one);
        break;
    case TDM_RECORDED_MKDIR:
        add_change(call, names, root, call->path, add_node((struct node){FOLDER_NODE, NULL, 0}));
        break;
    case TDM_RECORDED_SYMLINK:
        add_change(call, names, root, call->path,
                   add_node((struct node){LINK_NODE, call->other, 0}));
        break;
    case TDM_RECORDED_RENAME:
    case TDM_RECORDED_EXCHANGE:
        one = node_of(names, root, call->path);
        two = node_of(names, root, call->other);
        add_change(call, names, root, call->other, one);
        add_change(call, names, root, call->path,
                   call->of.kind == TDM_RECORDED_EXCHANGE ? two : NONE);
        break;
    case TDM_RECORDED_REMOVE:
        add_change(call, names, root, call->path, NONE);
        break;
    case TDM_RECORDED_WRITE:
    case TDM_RECORDED_TRUNCATE:
        call->node = file_of(call->of.inode);
        break;
    case TDM_RECORDED_SYNC:
        one = node_of(names, root, call->path);
        if (one == NONE || nodes[one].kind == FILE_NODE)
            one = file_of(call->of.inode); /* its name may be another one now */
        sync_node(one, number);
        break;
    case TDM_RECORDED_SAID:
        break;
    }
    for (uint32_t c = 0; c < call->changes; c++)
        set_name(names, call->change[c].folder, call->change[c].name, call->change[c].node);
}

static char *read_bytes(FILE *file, uint32_t bytes)
{
    char *data = allocate((size_t)bytes + 1);
    if (fread(data, 1, bytes, file) != bytes)
        fail("the record is cut short");
    return data;
}

static void read_record(const char *path, const char *root)
{
    FILE *file = fopen(path, "rb");
    struct names names = {allocate(MOST * sizeof(*names.list)), 0};
    if (file == NULL)
        fail("the record cannot be read");
    calls = allocate(MOST * sizeof(*calls));
    nodes = allocate(MOST * sizeof(*nodes));
    add_node((struct node){FOLDER_NODE, NULL, 0});
    while (fread(&calls[call_count].of, sizeof(calls[0].of), 1, file) == 1) {
        struct call *call = &calls[call_count];
        call->path = read_bytes(file, call->of.path_bytes);
        call->other = read_bytes(file, call->of.other_bytes);
        call->data = read_bytes(file, call->of.data_bytes);
        resolve(call_count, &names, root);
        if (++call_count == MOST)
            fail("too many calls");
    }
    fclose(file);
    free(names.list);
}

/* ---- states ---- */

enum { ALL, NOTHING, NAMES_ONLY, DATA_ONLY, REMOVALS_ONLY, RANDOM };

static uint64_t seed;

/* Is call `number` on disk, if the power goes before call `end`? */
static bool is_kept(uint32_t number, uint32_t end, unsigned choice)
{
    if (calls[number].durable != NONE && calls[number].durable < end)
        return true;
    bool names = calls[number].changes > 0;
    switch (choice) {
    case REMOVALS_ONLY:
        return calls[number].of.kind == TDM_RECORDED_REMOVE;
    case ALL:
        return true;
    case NOTHING:
        return false;
    case NAMES_ONLY:
        return names;
    case DATA_ONLY:
        return !names;
    default:
        return tdm_random_bits(seed, end, choice, number) % 2 == 0;
    }
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return hash;
}

/* A number of the state: which calls are on disk, and what was said. */
static uint64_t identify(uint32_t end, unsigned choice)
{
    uint64_t hash = 14695981039346656037u;
    for (uint32_t i = 0; i < end; i++)
        if (calls[i].of.kind == TDM_RECORDED_SAID ||
            ((calls[i].changes > 0 || calls[i].node != NONE) && is_kept(i, end, choice)))
            hash = mix(hash, &i, sizeof(i));
    return hash;
}

static void make_file(uint32_t node, uint32_t end, unsigned choice, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
    if (fd < 0)
        fail(path);
    for (uint32_t i = 0; i < end; i++) {
        const struct call *call = &calls[i];
        if (call->node != node || !is_kept(i, end, choice))
            continue;
        bool done = call->of.kind == TDM_RECORDED_WRITE
                        ? pwrite(fd, call->data, call->of.data_bytes, (off_t)call->of.offset) ==
                              (ssize_t)call->of.data_bytes
                        : ftruncate(fd, (off_t)call->of.offset) == 0;
        if (!done)
            fail(path);
    }
    close(fd);
}

/* Makes what `folder` holds. */
static void make_folder(const struct names *names, uint32_t folder, uint32_t end, unsigned choice,
                        const char *path)
{
    for (uint32_t i = 0; i < names->count; i++) {
        const struct entry *entry = &names->list[i];
        char inner[4096];
        if (entry->folder != folder)
            continue;
        snprintf(inner, sizeof(inner), "%s/%s", path, entry->name);
        const struct node *node = &nodes[entry->node];
        if (node->kind == FILE_NODE)
            make_file(entry->node, end, choice, inner);
        else if (node->kind == LINK_NODE ? symlink(node->target, inner) != 0
                                         : mkdir(inner, 0755) != 0)
            fail(inner);
        else if (node->kind == FOLDER_NODE)
            make_folder(names, entry->node, end, choice, inner);
    }
}

static void make_state(uint32_t end, unsigned choice, const char *state)
{
    char command[4200];
    struct names names = {allocate(MOST * sizeof(*names.list)), 0};
    snprintf(command, sizeof(command), "rm -rf '%s'", state);
    if (system(command) != 0 || mkdir(state, 0755) != 0)
        fail(state);
    for (uint32_t i = 0; i < end; i++)
        for (uint32_t c = 0; c < calls[i].changes && is_kept(i, end, choice); c++)
            set_name(&names, calls[i].change[c].folder, calls[i].change[c].name,
                     calls[i].change[c].node);
    make_folder(&names, 0, end, choice, state);
    free(names.list);

    char said[4200];
    snprintf(said, sizeof(said), "%s.said", state);
    FILE *file = fopen(said, "wb");
    for (uint32_t i = 0; file != NULL && i < end; i++)
        if (calls[i].of.kind == TDM_RECORDED_SAID)
            fwrite(calls[i].data, 1, calls[i].of.data_bytes, file);
    if (file == NULL || fclose(file) != 0)
        fail(said);
    setenv("TDM_SAID", said, 1);
}

/* ---- all of them ---- */

static uint64_t *seen;
static uint32_t seen_count;

static bool is_new(uint64_t hash)
{
    for (uint32_t i = 0; i < seen_count; i++)
        if (seen[i] == hash)
            return false;
    seen[seen_count++] = hash;
    return seen_count < MOST;
}

static unsigned number_of(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text == NULL || text[0] == '\0' ? otherwise : (unsigned)strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        fail("RECORD ROOT STATE COMMAND");
    unsigned stride = number_of("TDM_STRIDE", 1), randoms = number_of("TDM_RANDOM", 2), wrong = 0;
    seed = number_of("TDM_SEED", 1);
    seen = allocate(MOST * sizeof(*seen));
    read_record(argv[1], argv[2]);
    setenv("TDM_STATE", argv[3], 1);
    for (uint32_t end = 1; end <= call_count; end++) {
        const struct call *last = &calls[end - 1];
        if (end % stride != 0 && end < call_count && last->changes == 0 &&
            last->of.kind != TDM_RECORDED_SAID)
            continue;
        setenv("TDM_LAST", end == call_count ? "1" : "", 1);
        for (unsigned choice = 0; choice < RANDOM + randoms; choice++) {
            if (!is_new(identify(end, choice)))
                continue;
            make_state(end, choice, argv[3]);
            if (system(argv[4]) == 0)
                continue;
            printf("# not right: power lost after call %u of %u, choice %u\n", end, call_count,
                   choice);
            fflush(stdout);
            wrong++;
        }
    }
    printf("%u states of %u calls, %u not right\n", seen_count, call_count, wrong);
    return wrong > 0;
}
