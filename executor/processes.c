/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of a run: loading the module, collective calls, and a thread that listens for what
 * other processes say outside the order of things: that they fail, end, or ask where a rank is.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/processes.h"

#include "base/clock.h"
#include "base/install.h"
#include "executor/mpi_module.h"
#include "executor/team.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Tags of collective calls; team ops have tags from TDM_FIRST_TAG of their transport on. */
enum { TAG_CONTROL, TAG_DATA, TAG_BESIDE };

/* Of the collective calls of this thread. */
static _Thread_local int collective_tag = TAG_DATA;

/* How often the listener looks, and how long others are waited for. */
#define LISTEN_SECONDS 0.005
#define ANSWER_SECONDS 2.0
#define LEAVE_SECONDS 5.0
#define LEAVE_STOPPED_SECONDS 0.3 /* whoever stops the run may soon kill it */

enum said { SAID_FAIL, SAID_ASK, SAID_ANSWER, SAID_BYE };

struct message {
    uint32_t said, rank, waits_for, status;
    char text[TDM_TEAM_WHERE + sizeof(((struct tdm_error *)NULL)->message)];
    char hint[sizeof(((struct tdm_error *)NULL)->hint)];
};

struct tdm_processes {
    void *library;
    const struct tdm_mpi *mpi;
    uint32_t number, count;
    const volatile sig_atomic_t *stop;
    pthread_mutex_t calls; /* one thread at a time calls the module */
    pthread_mutex_t lock;  /* of what follows */
    pthread_cond_t news;
    pthread_t listener;
    bool listens, ends;
    struct tdm_team *team;
    bool has_told;   /* this process' failure, or all know it */
    bool has_failed; /* another process */
    uint32_t failed_process;
    struct tdm_error failure;
    bool answered;
    struct message answer;
    uint32_t left; /* other processes that have said goodbye */
};

/* Of a job of which some processes did not say goodbye. */
static const struct tdm_mpi *abandoned;

static void sleep_for(double seconds)
{
    const struct timespec pause = {(time_t)seconds,
                                   (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&pause, NULL);
}

void tdm_processes_rest(uint32_t *polls)
{
    if (++*polls < 100)
        sched_yield();
    else
        sleep_for(*polls < 1000 ? 20e-6 : 500e-6);
}

/* ---- calls of the module ---- */

static enum tdm_status check(struct tdm_processes *p, int error, const char *what,
                             struct tdm_error *err)
{
    char why[256];
    if (error == 0)
        return TDM_OK;
    p->mpi->explain(error, why, sizeof(why));
    return tdm_fail(err, TDM_IO, "MPI: %s failed: %s", what, why);
}

enum tdm_status tdm_processes_send(struct tdm_processes *p, const void *data, uint64_t bytes,
                                   uint32_t to, int tag, uint64_t *request, struct tdm_error *err)
{
    pthread_mutex_lock(&p->calls);
    int error = p->mpi->send(TDM_MPI_DATA, data, bytes, to, tag, request);
    pthread_mutex_unlock(&p->calls);
    return check(p, error, "sending", err);
}

enum tdm_status tdm_processes_receive(struct tdm_processes *p, void *data, uint64_t bytes,
                                      uint32_t from, int tag, uint64_t *request,
                                      struct tdm_error *err)
{
    pthread_mutex_lock(&p->calls);
    int error = p->mpi->receive(TDM_MPI_DATA, data, bytes, from, tag, request);
    pthread_mutex_unlock(&p->calls);
    return check(p, error, "receiving", err);
}

enum tdm_status tdm_processes_test(struct tdm_processes *p, uint64_t *request, bool *done,
                                   struct tdm_error *err)
{
    pthread_mutex_lock(&p->calls);
    int error = p->mpi->test(request, done);
    pthread_mutex_unlock(&p->calls);
    return check(p, error, "a message", err);
}

bool tdm_processes_stopped(const struct tdm_processes *p)
{
    return p->stop != NULL && *p->stop;
}

/* Waits for a request of a collective call. */
static enum tdm_status await(struct tdm_processes *p, uint64_t *request, struct tdm_error *err)
{
    bool done = false;
    uint32_t polls = 0;
    for (;;) {
        enum tdm_status status = tdm_processes_test(p, request, &done, err);
        if (status != TDM_OK || done)
            return status;
        if (tdm_processes_failed(p, err))
            return err == NULL ? TDM_INTERRUPTED : err->status;
        if (tdm_processes_stopped(p))
            return tdm_fail(err, TDM_INTERRUPTED,
                            "interrupted while process %u waited for another one", p->number);
        tdm_processes_rest(&polls);
    }
}

/* ---- what processes say out of order ---- */

/* Says something to a process. If it does not take it within a second, it is not waited for. */
static void say(struct tdm_processes *p, uint32_t to, const struct message *message)
{
    struct message *copy = malloc(sizeof(*copy));
    bool done = false;
    uint64_t request;
    uint32_t polls = 0;
    double until = tdm_now_seconds() + 1;
    if (copy == NULL)
        return;
    *copy = *message;
    pthread_mutex_lock(&p->calls);
    int error = p->mpi->send(TDM_MPI_CONTROL, copy, sizeof(*copy), to, TAG_CONTROL, &request);
    pthread_mutex_unlock(&p->calls);
    while (error == 0 && !done && tdm_now_seconds() < until) {
        pthread_mutex_lock(&p->calls);
        error = p->mpi->test(&request, &done);
        pthread_mutex_unlock(&p->calls);
        if (!done)
            tdm_processes_rest(&polls);
    }
    if (done) /* else MPI may still read it */
        free(copy);
}

static void say_all(struct tdm_processes *p, const struct message *message)
{
    for (uint32_t to = 0; to < p->count; to++)
        if (to != p->number)
            say(p, to, message);
}

/* Ends the step under way: some rank of the process that has failed is the one. */
static void end_team(struct tdm_processes *p)
{
    if (p->team != NULL)
        tdm_team_fail(p->team, p->failed_process * (tdm_team_ranks(p->team) / p->count));
}

/* Another process says that it has failed. The first one counts. */
static void hear_failure(struct tdm_processes *p, uint32_t from, const struct message *message)
{
    if (p->has_failed || p->has_told)
        return;
    p->has_failed = true;
    p->failed_process = from;
    tdm_fail(&p->failure, (enum tdm_status)message->status, "%s", message->text);
    if (message->hint[0] != '\0')
        tdm_hint(&p->failure, "%s", message->hint);
    end_team(p);
}

/* Says where a rank is. */
static struct message answer_to(struct tdm_processes *p, uint32_t rank)
{
    struct message answer = {.said = SAID_ANSWER, .rank = rank, .waits_for = TDM_NONE};
    char where[TDM_TEAM_WHERE] = "between two steps";
    if (p->team != NULL)
        tdm_team_describe(p->team, rank, &answer.waits_for, where);
    snprintf(answer.text, sizeof(answer.text), "%s", where);
    return answer;
}

static void hear(struct tdm_processes *p, uint32_t from, const struct message *message)
{
    struct message answer = {0};
    pthread_mutex_lock(&p->lock);
    switch ((enum said)message->said) {
    case SAID_FAIL:
        hear_failure(p, from, message);
        break;
    case SAID_ASK:
        answer = answer_to(p, message->rank);
        break;
    case SAID_ANSWER:
        p->answer = *message;
        p->answered = true;
        break;
    case SAID_BYE:
        p->left++;
        break;
    }
    pthread_cond_broadcast(&p->news);
    pthread_mutex_unlock(&p->lock);
    if (message->said == SAID_ASK)
        say(p, from, &answer);
}

/* Takes one message, if there is one. */
static bool listen_once(struct tdm_processes *p)
{
    struct message message;
    bool found = false, done = false;
    uint32_t from = 0;
    uint64_t request;
    pthread_mutex_lock(&p->calls);
    int error = p->mpi->probe(TDM_MPI_CONTROL, TAG_CONTROL, &found, &from);
    if (error == 0 && found)
        error = p->mpi->receive(TDM_MPI_CONTROL, &message, sizeof(message), from, TAG_CONTROL,
                                &request);
    while (error == 0 && found && !done)
        error = p->mpi->test(&request, &done);
    pthread_mutex_unlock(&p->calls);
    if (done)
        hear(p, from, &message);
    return done;
}

static void *listen_always(void *self)
{
    struct tdm_processes *p = self;
    for (;;) {
        pthread_mutex_lock(&p->lock);
        bool ends = p->ends;
        pthread_mutex_unlock(&p->lock);
        if (ends)
            return NULL;
        if (!listen_once(p))
            sleep_for(LISTEN_SECONDS);
    }
}

/* Waits for news with the lock, until a time on the clock. */
static void wait_for_news(struct tdm_processes *p, double until)
{
    const struct timespec time = {(time_t)until, (long)(1e9 * (until - (double)(time_t)until))};
    pthread_cond_timedwait(&p->news, &p->lock, &time);
}

void tdm_processes_join(struct tdm_processes *p, struct tdm_team *team)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->team = team;
    if (p->has_failed)
        end_team(p);
    pthread_mutex_unlock(&p->lock);
}

void tdm_processes_fail(struct tdm_processes *p, const struct tdm_error *why)
{
    if (p == NULL)
        return;
    struct message message = {.said = SAID_FAIL, .status = why->status};
    snprintf(message.text, sizeof(message.text), "%s", why->message);
    snprintf(message.hint, sizeof(message.hint), "%s", why->hint);
    pthread_mutex_lock(&p->lock);
    bool first = !p->has_told && !p->has_failed;
    p->has_told = p->has_told || first;
    pthread_mutex_unlock(&p->lock);
    if (first)
        say_all(p, &message);
}

bool tdm_processes_failed(struct tdm_processes *p, struct tdm_error *err)
{
    if (p == NULL)
        return false;
    pthread_mutex_lock(&p->lock);
    bool failed = p->has_failed;
    if (failed && err != NULL)
        *err = p->failure;
    pthread_mutex_unlock(&p->lock);
    return failed;
}

bool tdm_processes_ask(struct tdm_processes *p, uint32_t process, uint32_t rank,
                       uint32_t *waits_for, char *where, size_t where_bytes)
{
    const struct message question = {.said = SAID_ASK, .rank = rank};
    const double until = tdm_now_seconds() + ANSWER_SECONDS;
    pthread_mutex_lock(&p->lock);
    p->answered = false;
    pthread_mutex_unlock(&p->lock);
    say(p, process, &question);
    pthread_mutex_lock(&p->lock);
    while (!(p->answered && p->answer.rank == rank) && !p->has_failed && tdm_now_seconds() < until)
        wait_for_news(p, until);
    bool answered = p->answered && p->answer.rank == rank;
    if (answered) {
        *waits_for = p->answer.waits_for;
        snprintf(where, where_bytes, "%s", p->answer.text);
    }
    pthread_mutex_unlock(&p->lock);
    return answered;
}

/* ---- beginning and end ---- */

bool tdm_processes_expected(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *size = getenv(names[i]);
        if (size != NULL && strtoul(size, NULL, 10) > 1)
            return true;
    }
    return false;
}

/* Loads the module from a path; NULL: it is not there, and `why` says so. */
static void *load(const char *path, char *why, size_t why_bytes)
{
    /* parts of MPI that are loaded later look for its symbols among all */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        snprintf(why, why_bytes, "%s", dlerror());
    return library;
}

static enum tdm_status find_module(struct tdm_processes *p, struct tdm_error *err)
{
    static const char name[] = "tidemark-mpi.so";
    char path[4096] = "", why[512] = "";
    const char *given = getenv("TIDEMARK_MPI");
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - sizeof(name));
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (slash != NULL)
        memcpy(slash + 1, name, sizeof(name));
    if (given != NULL)
        p->library = load(given, why, sizeof(why));
    else if (slash != NULL && access(path, F_OK) == 0)
        p->library = load(path, why, sizeof(why));
    else if (tdm_install_path(TDM_MODULE_DIRECTORY "/tidemark-mpi.so", path, sizeof(path)))
        p->library = load(path, why, sizeof(why));
    p->mpi = p->library == NULL ? NULL : dlsym(p->library, TDM_MPI_SYMBOL);
    if (p->library != NULL && (p->mpi == NULL || p->mpi->version != TDM_MPI_VERSION))
        snprintf(why, sizeof(why), "tidemark-mpi.so is of another version of tidemark");
    else if (p->library != NULL)
        return TDM_OK;
    tdm_fail(err, TDM_NO_DEVICE, "several processes need tidemark's MPI module: %s", why);
    return tdm_hint(err, "it is built where MPI is found: install the Debian packages "
                         "libopenmpi-dev and openmpi-bin, and run configure and make again");
}

static void free_processes(struct tdm_processes *p)
{
    pthread_cond_destroy(&p->news);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->calls);
    /* the library stays: MPI leaves threads and handlers behind */
    free(p);
}

enum tdm_status tdm_processes_open(const volatile sig_atomic_t *stop, struct tdm_processes **out,
                                   struct tdm_error *err)
{
    struct tdm_processes *p = calloc(1, sizeof(*p));
    pthread_condattr_t clock;
    if (p == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for processes");
    p->stop = stop;
    pthread_mutex_init(&p->calls, NULL); /* none of these fails without attributes of its own */
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&p->news, &clock);
    pthread_condattr_destroy(&clock);
    enum tdm_status status = find_module(p, err);
    if (status == TDM_OK)
        status = check(p, p->mpi->begin(&p->number, &p->count), "joining the job", err);
    if (status != TDM_OK) {
        free_processes(p);
        return status;
    }
    p->listens = p->count > 1 && pthread_create(&p->listener, NULL, listen_always, p) == 0;
    if (p->count > 1 && !p->listens) {
        p->mpi->abort(tdm_exit_code(TDM_NO_MEMORY));
        free_processes(p);
        return tdm_fail(err, TDM_NO_MEMORY, "no thread that listens to other processes");
    }
    *out = p;
    return TDM_OK;
}

/* Says goodbye, and waits until all have. Returns false if some do not come. */
static bool say_goodbye(struct tdm_processes *p, enum tdm_status status)
{
    const struct message bye = {.said = SAID_BYE};
    const double until =
        tdm_now_seconds() + (status == TDM_INTERRUPTED ? LEAVE_STOPPED_SECONDS : LEAVE_SECONDS);
    bool all = false;
    say_all(p, &bye);
    pthread_mutex_lock(&p->lock);
    while (!(all = p->left + 1 >= p->count)) {
        /* those that are well may still be at work: process 0 saves, for instance */
        const bool well = status == TDM_OK && !p->has_failed && !tdm_processes_stopped(p);
        if (!well && tdm_now_seconds() >= until)
            break;
        wait_for_news(p, well ? tdm_now_seconds() + 0.1 : until);
    }
    pthread_mutex_unlock(&p->lock);
    return all;
}

/* Takes over what another process says of its failure. A run that was told to stop here says that.
 */
static enum tdm_status take_failure(struct tdm_processes *p, enum tdm_status status,
                                    struct tdm_error *err)
{
    struct tdm_error why = {.status = TDM_OK};
    if (!tdm_processes_failed(p, &why) || (status == TDM_INTERRUPTED && tdm_processes_stopped(p)))
        return status;
    if (err != NULL)
        *err = why;
    return why.status;
}

enum tdm_status tdm_processes_settle(struct tdm_processes *p, enum tdm_status status,
                                     struct tdm_error *err)
{
    struct tdm_error why = {.status = status};
    char process[64];
    if (p == NULL || status == TDM_OK)
        return status;
    if (tdm_processes_failed(p, NULL))
        return take_failure(p, status, err);
    if (err != NULL)
        why = *err;
    snprintf(process, sizeof(process), "process %u", p->number);
    if (!p->has_told && p->count > 1)
        tdm_about(&why, process);
    tdm_processes_fail(p, &why);
    return status;
}

enum tdm_status tdm_processes_close(struct tdm_processes *p, enum tdm_status status, bool *told,
                                    struct tdm_error *err)
{
    *told = false;
    if (p == NULL)
        return status;
    const bool all = say_goodbye(p, status);
    if (status == TDM_OK)
        status = take_failure(p, status, err);
    *told = p->number > 0 && status != TDM_OK && all;
    pthread_mutex_lock(&p->lock);
    p->ends = true;
    pthread_mutex_unlock(&p->lock);
    if (p->listens)
        pthread_join(p->listener, NULL);
    if (all)
        (void)p->mpi->end();
    else
        abandoned = p->mpi;
    free_processes(p);
    return status;
}

void tdm_processes_abort(int exit_code)
{
    if (abandoned != NULL)
        abandoned->abort(exit_code);
}

uint32_t tdm_processes_number(const struct tdm_processes *p)
{
    return p == NULL ? 0 : p->number;
}

uint32_t tdm_processes_count(const struct tdm_processes *p)
{
    return p == NULL ? 1 : p->count;
}

uint32_t tdm_processes_ranks(const struct tdm_processes *p, uint32_t ranks)
{
    return ranks / tdm_processes_count(p);
}

uint32_t tdm_processes_first(const struct tdm_processes *p, uint32_t ranks)
{
    return tdm_processes_number(p) * tdm_processes_ranks(p, ranks);
}

uint32_t tdm_processes_of(const struct tdm_processes *p, uint32_t ranks, uint32_t rank)
{
    return rank / tdm_processes_ranks(p, ranks);
}

/* ---- all together ---- */

void tdm_processes_beside(void)
{
    collective_tag = TAG_BESIDE;
}

/* Sends a part of some data to a process, and waits until it has left. */
static enum tdm_status send_part(struct tdm_processes *p, void *data, uint64_t bytes, uint32_t to,
                                 struct tdm_error *err)
{
    uint64_t request;
    enum tdm_status status = tdm_processes_send(p, data, bytes, to, collective_tag, &request, err);
    return status == TDM_OK ? await(p, &request, err) : status;
}

static enum tdm_status receive_part(struct tdm_processes *p, void *data, uint64_t bytes,
                                    uint32_t from, struct tdm_error *err)
{
    uint64_t request;
    enum tdm_status status =
        tdm_processes_receive(p, data, bytes, from, collective_tag, &request, err);
    return status == TDM_OK ? await(p, &request, err) : status;
}

/* Sends data from one process to those in [first, end). */
static enum tdm_status spread(struct tdm_processes *p, uint32_t from, uint32_t first, uint32_t end,
                              void *data, uint64_t bytes, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint64_t at = 0; at < bytes && status == TDM_OK; at += TDM_MPI_MESSAGE_BYTES) {
        const uint64_t left = bytes - at;
        const uint64_t part = left < TDM_MPI_MESSAGE_BYTES ? left : TDM_MPI_MESSAGE_BYTES;
        for (uint32_t to = first; to < end && p->number == from && status == TDM_OK; to++)
            if (to != from)
                status = send_part(p, (char *)data + at, part, to, err);
        if (p->number != from && p->number >= first && p->number < end && status == TDM_OK)
            status = receive_part(p, (char *)data + at, part, from, err);
    }
    return status;
}

enum tdm_status tdm_processes_broadcast(struct tdm_processes *p, uint32_t from, void *data,
                                        uint64_t bytes, struct tdm_error *err)
{
    return p == NULL ? TDM_OK : spread(p, from, 0, p->count, data, bytes, err);
}

enum tdm_status tdm_processes_collect(struct tdm_processes *p, uint32_t from, void *data,
                                      uint64_t bytes, struct tdm_error *err)
{
    return p == NULL ? TDM_OK : spread(p, from, 0, 1, data, bytes, err);
}

enum tdm_status tdm_processes_hand(struct tdm_processes *p, uint32_t to, void *data, uint64_t bytes,
                                   struct tdm_error *err)
{
    return p == NULL ? TDM_OK : spread(p, 0, to, to + 1, data, bytes, err);
}

enum tdm_status tdm_processes_unite(struct tdm_processes *p, uint32_t *flags, struct tdm_error *err)
{
    const uint32_t own = *flags;
    enum tdm_status status = TDM_OK;
    for (uint32_t from = 0; from < tdm_processes_count(p) && status == TDM_OK; from++) {
        uint32_t theirs = own;
        status = tdm_processes_broadcast(p, from, &theirs, sizeof(theirs), err);
        *flags |= theirs;
    }
    return status;
}

void tdm_processes_fail_alike(struct tdm_processes *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->has_told = true;
    pthread_mutex_unlock(&p->lock);
}

enum tdm_status tdm_processes_meet(struct tdm_processes *p, struct tdm_error *err)
{
    char nothing = 0;
    enum tdm_status status = TDM_OK;
    for (uint32_t from = 0; from < tdm_processes_count(p) && status == TDM_OK; from++)
        status = tdm_processes_broadcast(p, from, &nothing, 1, err);
    return status;
}

/* Who differs from rank 0, and in what. */
static enum tdm_status differ(uint32_t process, uint32_t each, const struct tdm_fact *theirs,
                              const struct tdm_fact *due, struct tdm_error *err)
{
    char ranks[64];
    if (each == 1)
        snprintf(ranks, sizeof(ranks), "rank %u has", process);
    else
        snprintf(ranks, sizeof(ranks), "ranks %u to %u have", process * each,
                 process * each + each - 1);
    return tdm_fail(err, TDM_INPUT, "%s another %s than rank 0: %s, not %s", ranks, due->name,
                    theirs->text, due->text);
}

enum tdm_status tdm_processes_compare(struct tdm_processes *p, uint32_t ranks,
                                      const struct tdm_fact *facts, uint32_t count,
                                      struct tdm_error *err)
{
    struct tdm_fact first[TDM_MOST_FACTS], theirs[TDM_MOST_FACTS];
    enum tdm_status status = TDM_OK;
    for (uint32_t from = 0; from < tdm_processes_count(p) && p != NULL && status == TDM_OK;
         from++) {
        memcpy(theirs, facts, count * sizeof(*facts));
        status = tdm_processes_broadcast(p, from, theirs, count * sizeof(*facts), err);
        if (from == 0)
            memcpy(first, theirs, sizeof(first));
        for (uint32_t i = 0; i < count && status == TDM_OK; i++)
            if (strcmp(theirs[i].text, first[i].text) != 0)
                status = differ(from, tdm_processes_ranks(p, ranks), &theirs[i], &first[i], err);
    }
    if (status == TDM_INPUT)
        tdm_processes_fail_alike(p);
    return status;
}
