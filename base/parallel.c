/* SPDX-License-Identifier: Apache-2.0 */
/* Runs independent tasks on the processors of this computer. */
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#define MOST_THREADS 64u

struct tasks {
    tdm_task task;
    void *self;
    size_t count;
    pthread_mutex_t lock;
    size_t next;   /* the first task that has not begun */
    size_t failed; /* the lowest number of a task that failed; count: none */
    enum tdm_status status;
    struct tdm_error err;
};

/* The next task; false: there is none, or one failed. */
static bool take(struct tasks *all, size_t *number)
{
    pthread_mutex_lock(&all->lock);
    bool any = all->next < all->count && all->failed == all->count;
    *number = all->next;
    all->next += any;
    pthread_mutex_unlock(&all->lock);
    return any;
}

static void note_failure(struct tasks *all, size_t number, enum tdm_status status,
                         const struct tdm_error *err)
{
    pthread_mutex_lock(&all->lock);
    if (number < all->failed) {
        all->failed = number;
        all->status = status;
        all->err = *err;
    }
    pthread_mutex_unlock(&all->lock);
}

static void *work(void *self)
{
    struct tasks *all = self;
    size_t number;
    while (take(all, &number)) {
        struct tdm_error err = {0};
        enum tdm_status status = all->task(all->self, number, &err);
        if (status != TDM_OK)
            note_failure(all, number, status, &err);
    }
    return NULL;
}

static size_t processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
}

enum tdm_status tdm_parallel(size_t count, size_t most_threads, tdm_task task, void *self,
                             struct tdm_error *err)
{
    struct tasks all = {.task = task,
                        .self = self,
                        .count = count,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .failed = count};
    pthread_t threads[MOST_THREADS];
    size_t most = processors(), started = 0;
    most = most < most_threads ? most : most_threads;
    most = most < count ? most : count;
    /* without a thread more, those that run do its tasks */
    while (started + 1 < most && started < MOST_THREADS &&
           pthread_create(&threads[started], NULL, work, &all) == 0)
        started++;
    work(&all);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&all.lock);
    if (all.failed < count && err != NULL)
        *err = all.err;
    return all.status;
}
