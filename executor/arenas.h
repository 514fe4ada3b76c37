/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas: the memory of a run, one arena a place, taken once for all programs of the run.
 */
#ifndef TDM_EXECUTOR_ARENAS_H
#define TDM_EXECUTOR_ARENAS_H

#include "executor/backend.h"

struct tdm_arenas {
    const struct tdm_backend *backend;
    struct tdm_executor *executor;
    void *base[TDM_MAX_PLACES];
    uint64_t bytes[TDM_MAX_PLACES]; /* the most that any of the programs needs */
};

/* What the machine can give of a run's memory; TDM_SIZE_MAX: not known. */
struct tdm_free_memory {
    uint64_t device_bytes; /* of a device of its own; 0: there is none */
    uint64_t host_bytes;
};

/* Compares what the programs need with what is free and takes nothing: TDM_INFEASIBLE if it is too
 * little. *memory is set then, too. A device that is not there is one of which nothing is known:
 * the schedule may be for another machine. TDM_INPUT: the backend lacks a kernel
 * (tdm_backend_check()). */
enum tdm_status tdm_arenas_check(const struct tdm_backend *backend, uint32_t count,
                                 const struct tdm_program *const *programs,
                                 struct tdm_free_memory *memory, struct tdm_error *err);

/* Opens the backend for `count` programs and takes an arena at each place. Refuses before anything
 * is taken: with TDM_INPUT if the backend lacks a kernel (tdm_backend_check()), with TDM_INFEASIBLE
 * if the machine has less free than the programs need (arenas are memory of this computer for the
 * cpu backend). On success the caller owns *arenas. */
enum tdm_status tdm_arenas_take(const struct tdm_backend *backend, uint32_t count,
                                const struct tdm_program *const *programs,
                                struct tdm_arenas *arenas, struct tdm_error *err);

/* The same; `watch` (may be NULL) is told how far it is. */
enum tdm_status tdm_arenas_take_watched(const struct tdm_backend *backend, uint32_t count,
                                        const struct tdm_program *const *programs,
                                        const struct tdm_watch *watch, struct tdm_arenas *arenas,
                                        struct tdm_error *err);
void tdm_arenas_release(struct tdm_arenas *arenas);

/* First byte of a slot. */
void *tdm_arenas_slot(const struct tdm_arenas *arenas, const struct tdm_buffer *buffer,
                      uint32_t slot);

/* The scratch of a program's ops. */
void *tdm_arenas_scratch(const struct tdm_arenas *arenas, const struct tdm_program *program);

/* The pattern, before a measured step: over everything. A non-zero *stop (NULL: never) ends it:
 * TDM_INTERRUPTED. */
enum tdm_status tdm_arenas_fill(const struct tdm_arenas *arenas, const volatile sig_atomic_t *stop,
                                struct tdm_error *err);

/* After it: bytes of the arena that were touched, and the end of the highest one. */
enum tdm_status tdm_arenas_scan(const struct tdm_arenas *arenas, enum tdm_place place,
                                uint64_t *touched_bytes, uint64_t *highest_byte,
                                struct tdm_error *err);

/* Bytes of this process that are in memory, less those of an arena of the host that stands for a
 * device; 0 if unknown. Allocates nothing: it is asked inside steps. */
uint64_t tdm_arenas_host_used(const struct tdm_arenas *arenas);

#endif
