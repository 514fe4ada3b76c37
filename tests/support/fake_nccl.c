/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with the functions of NCCL that tidemark uses, which moves memory of the host between
 * the threads of one process. With it the loader, the calls, their grouping and failures are tested
 * without a GPU.
 *
 * FAKE_NCCL_VERSION is the version that it says it has; asked for it, "crash" ends the process, as
 * NCCL does that finds no memory. FAKE_NCCL_FAILS="CALL:RANK:N" lets the N-th call of a function
 * fail on a rank: "send:1:3". "init:2:1" lets rank 2 not join.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 64, OPS_MOST = 4096 };
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

struct id {
    char bytes[128];
};

/* A message that waits to be taken. */
struct letter {
    const void *data;
    size_t bytes;
    bool taken;
    struct letter *next;
};

struct world {
    unsigned long number;
    int ranks, here;
    bool aborted;
    struct letter *first[RANKS_MOST][RANKS_MOST], **last[RANKS_MOST][RANKS_MOST];
    struct world *next;
};

/* All stay until the process ends: a thread may be in a call while another one aborts. */
struct comm {
    struct world *world;
    int rank, calls;
    struct comm *next;
};

struct op {
    bool sends;
    void *data;
    size_t bytes;
    int other;
    struct comm *comm;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static struct world *worlds;
static struct comm *comms;
static unsigned long ids;
static _Thread_local struct op ops[OPS_MOST];
static _Thread_local int op_count, depth;

static bool fails(const char *call, int rank, int number)
{
    const char *due = getenv("FAKE_NCCL_FAILS");
    char text[64];
    snprintf(text, sizeof(text), "%s:%d:%d", call, rank, number);
    return due != NULL && strcmp(due, text) == 0;
}

int ncclGetVersion(int *version)
{
    const char *given = getenv("FAKE_NCCL_VERSION");
    if (given != NULL && strcmp(given, "crash") == 0)
        abort();
    *version = given == NULL ? 22807 : atoi(given);
    return SUCCESS;
}

int ncclGetUniqueId(struct id *id)
{
    pthread_mutex_lock(&lock);
    memset(id, 0, sizeof(*id));
    ids++;
    memcpy(id->bytes, &ids, sizeof(ids));
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static struct world *world_of(unsigned long number, int ranks)
{
    struct world *world = worlds;
    while (world != NULL && world->number != number)
        world = world->next;
    if (world != NULL)
        return world;
    world = calloc(1, sizeof(*world));
    if (world == NULL)
        return NULL;
    world->number = number;
    world->ranks = ranks;
    for (int a = 0; a < RANKS_MOST; a++)
        for (int b = 0; b < RANKS_MOST; b++)
            world->last[a][b] = &world->first[a][b];
    world->next = worlds;
    worlds = world;
    return world;
}

int ncclCommInitRank(struct comm **out, int ranks, struct id id, int rank)
{
    unsigned long number;
    struct comm *comm = calloc(1, sizeof(*comm));
    memcpy(&number, id.bytes, sizeof(number));
    if (comm == NULL || ranks > RANKS_MOST || fails("init", rank, 1)) {
        free(comm);
        return SYSTEM_ERROR;
    }
    pthread_mutex_lock(&lock);
    comm->world = world_of(number, ranks);
    comm->rank = rank;
    comm->next = comms;
    comms = comm;
    comm->world->here++;
    pthread_cond_broadcast(&news);
    while (comm->world->here < comm->world->ranks)
        pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
    *out = comm;
    return SUCCESS;
}

int ncclCommDestroy(struct comm *comm)
{
    (void)comm;
    return SUCCESS;
}

/* What waits in the world of a communicator ends. */
int ncclCommAbort(struct comm *comm)
{
    pthread_mutex_lock(&lock);
    comm->world->aborted = true;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclCommGetAsyncError(struct comm *comm, int *error)
{
    pthread_mutex_lock(&lock);
    *error = comm->world->aborted ? REMOTE_ERROR : SUCCESS;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    return result == SUCCESS         ? "no error"
           : result == SYSTEM_ERROR  ? "unhandled system error"
           : result == REMOTE_ERROR  ? "remote process exited or there was a network error"
           : result == INVALID_USAGE ? "invalid usage"
                                     : "unknown result code";
}

int ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

static void post(struct op *op, struct letter *letter)
{
    struct world *world = op->comm->world;
    struct letter ***last = &world->last[op->comm->rank][op->other];
    *letter = (struct letter){.data = op->data, .bytes = op->bytes};
    **last = letter;
    *last = &letter->next;
}

/* Takes the first letter of a pair; waits for it. */
static int take(const struct op *op)
{
    struct world *world = op->comm->world;
    struct letter **first = &world->first[op->other][op->comm->rank];
    while (*first == NULL && !world->aborted)
        pthread_cond_wait(&news, &lock);
    if (world->aborted)
        return REMOTE_ERROR;
    struct letter *letter = *first;
    if (letter->bytes != op->bytes)
        return INVALID_USAGE;
    memcpy(op->data, letter->data, op->bytes);
    *first = letter->next;
    if (*first == NULL)
        world->last[op->other][op->comm->rank] = first;
    letter->taken = true;
    pthread_cond_broadcast(&news);
    return SUCCESS;
}

/* All sends of a group are posted before the first receive waits. */
static int run_group(void)
{
    static _Thread_local struct letter letters[OPS_MOST];
    int result = SUCCESS;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < op_count; i++)
        if (ops[i].sends)
            post(&ops[i], &letters[i]);
    pthread_cond_broadcast(&news);
    for (int i = 0; i < op_count && result == SUCCESS; i++)
        if (!ops[i].sends)
            result = take(&ops[i]);
    for (int i = 0; i < op_count && result == SUCCESS; i++)
        while (ops[i].sends && !letters[i].taken && !ops[i].comm->world->aborted)
            pthread_cond_wait(&news, &lock);
    if (op_count > 0 && ops[0].comm->world->aborted)
        result = REMOTE_ERROR;
    pthread_mutex_unlock(&lock);
    op_count = 0;
    return result;
}

int ncclGroupEnd(void)
{
    return --depth > 0 ? SUCCESS : run_group();
}

static int add(bool sends, void *data, size_t bytes, int other, struct comm *comm)
{
    if (depth == 0 || op_count == OPS_MOST)
        return INVALID_USAGE; /* tidemark always groups */
    ops[op_count++] = (struct op){sends, data, bytes, other, comm};
    return SUCCESS;
}

int ncclSend(const void *data, size_t count, int type, int to, struct comm *comm, void *stream)
{
    (void)stream;
    if (type != 1 || fails("send", comm->rank, ++comm->calls))
        return SYSTEM_ERROR;
    return add(true, (void *)data, count, to, comm);
}

int ncclRecv(void *data, size_t count, int type, int from, struct comm *comm, void *stream)
{
    (void)stream;
    return type != 1 ? INVALID_USAGE : add(false, data, count, from, comm);
}
