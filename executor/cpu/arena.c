/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas of the cpu backend: one per place, with all memory of a step. They can be filled with a
 * pattern that shows which words were touched. */
#include "executor/cpu/cpu.h"

#include "base/units.h"
#include "executor/pattern.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TASK_WORDS = 1 << 17 };

enum tdm_status tdm_cpu_take_arena(struct tdm_executor *executor, enum tdm_place place,
                                   uint64_t bytes, void **base, struct tdm_error *err)
{
    char text[TDM_FORMAT_SIZE];
    struct tdm_cpu_arena *arenas =
        realloc(executor->arenas, (executor->arena_count + 1) * sizeof(*arenas));
    if (arenas == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "no memory for the list of arenas");
    executor->arenas = arenas;
    uint64_t length = bytes == 0 ? 1 : bytes;
    void *memory = length > PTRDIFF_MAX ? MAP_FAILED
                                        : mmap(NULL, length, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        tdm_fail(err, TDM_NO_MEMORY, "no memory for the %s arena of %s (%llu bytes): %s",
                 tdm_place_name(&executor->topology, place), tdm_format_bytes(bytes, text),
                 (unsigned long long)bytes, strerror(length > PTRDIFF_MAX ? ENOMEM : errno));
        return tdm_hint(err, "plan with a smaller %s",
                        place == TDM_DEVICE ? "--memory" : "--host-memory");
    }
    madvise(memory, length, MADV_HUGEPAGE); /* only for speed: it may fail */
    executor->arenas[executor->arena_count++] = (struct tdm_cpu_arena){memory, length};
    *base = memory;
    return TDM_OK;
}

enum tdm_status tdm_cpu_upload(struct tdm_executor *executor, void *arena_bytes, const void *source,
                               uint64_t bytes, struct tdm_error *err)
{
    (void)executor;
    (void)err;
    if (source != NULL)
        memcpy(arena_bytes, source, bytes);
    else
        memset(arena_bytes, 0, bytes);
    return TDM_OK;
}

enum tdm_status tdm_cpu_download(struct tdm_executor *executor, void *destination,
                                 const void *arena_bytes, uint64_t bytes, struct tdm_error *err)
{
    (void)executor;
    (void)err;
    memcpy(destination, arena_bytes, bytes);
    return TDM_OK;
}

struct words {
    uint64_t *writable;
    const uint64_t *readable;
    uint64_t first, count;
    uint64_t task_words;
    struct {
        uint64_t touched, end; /* in words; end: one past the highest */
    } found[256];
};

static struct words words_of(uint64_t bytes)
{
    struct words words = {.count = bytes / sizeof(uint64_t)};
    words.task_words = tdm_most(TASK_WORDS, (words.count + 255) / 256);
    return words;
}

static void fill_task(void *context, void *thread_scratch, uint64_t index)
{
    const struct words *words = context;
    (void)thread_scratch;
    uint64_t end = words->first + tdm_least(words->count, (index + 1) * words->task_words);
    for (uint64_t i = words->first + index * words->task_words; i < end; i++)
        words->writable[i] = tdm_pattern_word(i);
}

static void scan_task(void *context, void *thread_scratch, uint64_t index)
{
    struct words *words = context;
    (void)thread_scratch;
    uint64_t touched = 0, last = 0;
    uint64_t end = tdm_least(words->count, (index + 1) * words->task_words);
    for (uint64_t i = index * words->task_words; i < end; i++) {
        if (words->readable[i] != tdm_pattern_word(i)) {
            touched++;
            last = i + 1;
        }
    }
    words->found[index].touched = touched;
    words->found[index].end = last;
}

enum tdm_status tdm_cpu_fill(struct tdm_executor *executor, void *base, uint64_t offset,
                             uint64_t bytes, struct tdm_error *err)
{
    (void)err;
    struct words words = words_of(bytes);
    words.writable = base;
    words.first = offset / sizeof(uint64_t);
    tdm_cpu_for(executor, (words.count + words.task_words - 1) / words.task_words, fill_task,
                &words);
    return TDM_OK;
}

enum tdm_status tdm_cpu_scan(struct tdm_executor *executor, const void *base, uint64_t bytes,
                             uint64_t *touched_bytes, uint64_t *highest_byte, struct tdm_error *err)
{
    (void)err;
    struct words words = words_of(bytes);
    words.readable = base;
    uint64_t tasks = (words.count + words.task_words - 1) / words.task_words;
    tdm_cpu_for(executor, tasks, scan_task, &words);
    uint64_t touched = 0, end = 0;
    for (uint64_t i = 0; i < tasks; i++) {
        touched += words.found[i].touched;
        end = tdm_most(end, words.found[i].end);
    }
    *touched_bytes = touched * sizeof(uint64_t);
    *highest_byte = end * sizeof(uint64_t);
    return TDM_OK;
}
