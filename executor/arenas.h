/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas: the memory of a run, one arena per place, allocated once for all programs of the run.
 */
#ifndef TDM_EXECUTOR_ARENAS_H
#define TDM_EXECUTOR_ARENAS_H

#include "executor/backend.h"

struct tdm_processes;
struct tdm_snapshot;

struct tdm_arenas {
    const struct tdm_backend *backend;
    struct tdm_executor *executor;
    void *base[TDM_MAX_PLACES];
    uint64_t bytes[TDM_MAX_PLACES];   /* maximum over the programs */
    bool host_memory[TDM_MAX_PLACES]; /* places in memory of the computer itself */
    uint32_t sharers[TDM_MAX_PLACES]; /* ranks of this process with an arena in the same memory */
    struct tdm_processes *processes;  /* which have the ranks; NULL: this one has all */
    const struct tdm_snapshot
        *snapshot; /* from which state is read, in place of memory; NULL: no */
};

/* Free memory of the machine; TDM_SIZE_MAX: not known. */
struct tdm_free_memory {
    uint64_t device_bytes; /* of a device with its own memory; 0: there is none */
    uint64_t host_bytes;
};

/* Compares the memory that the programs need with what is free; allocates nothing. TDM_INFEASIBLE
 * if too little is free; *memory is set then, too. If the device is missing its memory counts as
 * not known, because the schedule may be for another machine. TDM_INPUT: the backend lacks a kernel
 * (tdm_backend_check()). */
enum tdm_status tdm_arenas_check(const struct tdm_backend *backend, uint32_t count,
                                 const struct tdm_program *const *programs,
                                 struct tdm_free_memory *memory, struct tdm_error *err);

/* Opens the backend for `count` programs and allocates an arena at each place, for each of their
 * ranks: `arenas` has programs[0]->ranks elements, and all programs have as many ranks. Before any
 * allocation it fails with TDM_INPUT if the backend lacks a kernel (tdm_backend_check()), and with
 * TDM_INFEASIBLE if the machine has less free memory than the programs need. With the cpu backend
 * all arenas are memory of this computer. `devices` [ranks]: the device of each rank by number;
 * NULL: the rank's number. Reports progress to `watch` (may be NULL). On success the caller owns
 * the arenas. */
enum tdm_status tdm_arenas_take(const struct tdm_backend *backend, uint32_t count,
                                const struct tdm_program *const *programs, const uint32_t *devices,
                                const struct tdm_arena_watch *watch, struct tdm_arenas *arenas,
                                struct tdm_error *err);
void tdm_arenas_release(struct tdm_arenas *arenas, uint32_t ranks);

/* The same for ranks [first, first + count) alone, those of this process; the other elements of
 * `arenas` have no backend then. `devices` [count]; NULL: the rank's number, less `first`. */
enum tdm_status tdm_arenas_take_ranks(const struct tdm_backend *backend, uint32_t count,
                                      const struct tdm_program *const *programs, uint32_t first,
                                      uint32_t ranks, const uint32_t *devices,
                                      const struct tdm_arena_watch *watch,
                                      struct tdm_arenas *arenas, struct tdm_error *err);

/* Of the arenas of all ranks, those of this process' first one. */
const struct tdm_arenas *tdm_arenas_here(const struct tdm_arenas *arenas);

/* The same arenas, but which this process reads for itself (state.h): own[ranks]. */
void tdm_arenas_apart(const struct tdm_arenas *arenas, uint32_t ranks, struct tdm_arenas *own);

/* First byte of a slot. */
void *tdm_arenas_slot(const struct tdm_arenas *arenas, const struct tdm_buffer *buffer,
                      uint32_t slot);

/* The scratch of a program's ops. */
void *tdm_arenas_scratch(const struct tdm_arenas *arenas, const struct tdm_program *program);

/* Fills all arenas with the pattern, before a measured step. A non-zero *stop (NULL: never)
 * interrupts it with TDM_INTERRUPTED. */
enum tdm_status tdm_arenas_fill(const struct tdm_arenas *arenas, const volatile sig_atomic_t *stop,
                                struct tdm_error *err);

/* After a measured step: number of bytes of the arena that were touched, and the end of the highest
 * one. */
enum tdm_status tdm_arenas_scan(const struct tdm_arenas *arenas, enum tdm_place place,
                                uint64_t *touched_bytes, uint64_t *highest_byte,
                                struct tdm_error *err);

/* Bytes of the arenas at places of devices, and at places in the computer's own memory. */
uint64_t tdm_arenas_device_bytes(const struct tdm_arenas *arenas);
uint64_t tdm_arenas_host_bytes(const struct tdm_arenas *arenas);

/* Resident bytes of this process, without those of a host arena that stands in for a device; 0 if
 * unknown. Called inside steps, so it allocates nothing. */
uint64_t tdm_arenas_host_used(const struct tdm_arenas *arenas);

/* Bytes in use at a place: on the device what its driver reports, in the computer's own memory what
 * this process has; 0 if unknown. */
uint64_t tdm_arenas_used(const struct tdm_arenas *arenas, enum tdm_place place,
                         uint64_t device_used_bytes);

#endif
