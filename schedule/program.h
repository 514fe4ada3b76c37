/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program: the stream of one step, as items: alloc and free of buffers, and operations.
 *
 * The stream is never stored. tdm_program_lower() runs the lowering once to find sizes and live
 * ranges, and packs the buffers. tdm_program_emit() runs the same code again into any sink, with
 * known offsets. Simulator, executor, validator, plots and reports are sinks.
 */
#ifndef TDM_SCHEDULE_PROGRAM_H
#define TDM_SCHEDULE_PROGRAM_H

#include "schedule/program_types.h"

/* Sets the fields that are taken directly from the schedule: parameters, sequences. Lowering begins
 * with this. */
void tdm_program_set_schedule(struct tdm_program *program, const struct tdm_schedule *schedule);

/* Expands a checked schedule, which must outlive the program: chunks, buffers, live ranges,
 * offsets. Packing aims at the live peak, or the schedule's packed_bytes. It meets the schedule's
 * own limits whenever tdm_program_lower_within() with those limits does. TDM_INPUT if sizes
 * overflow, TDM_NO_MEMORY. The caller owns *program. */
enum tdm_status tdm_program_lower(const struct tdm_schedule *schedule, struct tdm_program **program,
                                  struct tdm_error *err);

/* The same for a planner. The memory is exact. Of more than TDM_SIMULATED_RANKS ranks only some
 * are lowered (ranks_sample.h), and program->sampled is set: the others have no ops to emit. */
enum tdm_status tdm_program_lower_sample(const struct tdm_schedule *schedule,
                                         struct tdm_program **program, struct tdm_error *err);

/* The same, but TDM_INFEASIBLE as soon as it is known that a rank is not within the schedule's
 * limits. */
enum tdm_status tdm_program_lower_sample_if(const struct tdm_schedule *schedule,
                                            struct tdm_program **program, struct tdm_error *err);

/* arena_bytes of tdm_program_lower(), without its ops, which is many times as fast. `below_bytes`:
 * NULL, or for each place how many bytes are too many: where it is known before the search for a
 * packing that no arena is smaller, another number that is not smaller is told. */
enum tdm_status tdm_program_measure(const struct tdm_schedule *schedule,
                                    const uint64_t *below_bytes,
                                    uint64_t arena_bytes[TDM_MAX_PLACES], struct tdm_error *err);

/* As the first with less effort, to find out whether a schedule fits. Packing of a place ends once
 * its arena is within `capacity_bytes`, and there is no search if it cannot be. */
enum tdm_status tdm_program_lower_within(const struct tdm_schedule *schedule,
                                         const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                         struct tdm_program **program, struct tdm_error *err);

/* As tdm_program_lower(), but without live ranges, offsets, peaks and numbers of ops, for those who
 * only look at what a step does: it can be emitted, but not simulated or run. */
enum tdm_status tdm_program_declare(const struct tdm_schedule *schedule,
                                    struct tdm_program **program, struct tdm_error *err);

/* The program as `rank` (below program->ranks) runs it: the same chunks and buffers, which belong
 * to `program`, with the ops of that rank. A program itself is that of rank 0. The result is not
 * freed. */
struct tdm_program tdm_program_of_rank(const struct tdm_program *program, uint32_t rank);

/* Streams one step of program->rank into `sink`. Every call gives the same items in the same
 * order. */
enum tdm_status tdm_program_emit(const struct tdm_program *program, tdm_sink sink, void *self,
                                 struct tdm_error *err);

void tdm_program_free(struct tdm_program *program);

/* Bytes that a step uses of the memory of a place: the arenas of all ranks in that memory, and what
 * the runtime takes there. */
uint64_t tdm_program_used_bytes(const struct tdm_program *program, enum tdm_place place);

/* What a slot of a resident buffer holds before the first step. */
struct tdm_tag tdm_program_initial(const struct tdm_program *program,
                                   const struct tdm_buffer *buffer, uint32_t slot);

/* Home of a unit's weights, master, moments or gradient between steps: a slot of a resident buffer.
 * False if this schedule has none. */
bool tdm_program_home(const struct tdm_program *program, enum tdm_content content, uint32_t unit,
                      uint32_t *buffer, uint32_t *slot);

/* Buffers of a program that a step is given, or leaves its results in: tokens (layout.h), losses of
 * the chunks, norms of the gradients of units, and the part of a tied embedding's gradient that the
 * head makes, at its home. NULL if this schedule has none. */
const struct tdm_buffer *tdm_program_tokens_buffer(const struct tdm_program *program);
const struct tdm_buffer *tdm_program_loss_buffer(const struct tdm_program *program);
const struct tdm_buffer *tdm_program_norms_buffer(const struct tdm_program *program);
const struct tdm_buffer *tdm_program_tied_buffer(const struct tdm_program *program);

#endif
