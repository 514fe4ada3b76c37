/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A meeting point of threads, as often as they like: each waits until all are there.
 *
 * If one fails, the others leave with an error that names it, so that none waits for ever. What a
 * thread wrote before a meeting, the others see after it.
 */
#ifndef TDM_BASE_MEETING_H
#define TDM_BASE_MEETING_H

#include "base/status.h"

#include <stdint.h>

struct tdm_meeting;

#define TDM_NOBODY UINT32_MAX

/* For `members` threads. One that comes `late_seconds` after another is taken to be lost; 0: never.
 * TDM_NO_MEMORY. */
enum tdm_status tdm_meeting_new(uint32_t members, uint32_t late_seconds,
                                struct tdm_meeting **meeting, struct tdm_error *err);
void tdm_meeting_free(struct tdm_meeting *meeting);

/* Forgets failures. No member may be waiting. */
void tdm_meeting_reset(struct tdm_meeting *meeting);

/* Waits for all members. TDM_INTERRUPTED if one has failed or is lost. */
enum tdm_status tdm_meeting_wait(struct tdm_meeting *meeting, uint32_t member,
                                 struct tdm_error *err);

/* The same with another time after which a member is taken to be lost. */
enum tdm_status tdm_meeting_wait_for(struct tdm_meeting *meeting, uint32_t member,
                                     double late_seconds, struct tdm_error *err);

/* A member has failed: the others' waits end. */
void tdm_meeting_fail(struct tdm_meeting *meeting, uint32_t member);

/* The first member that failed or was lost; TDM_NOBODY if none. */
uint32_t tdm_meeting_failed(struct tdm_meeting *meeting);

/* The same if it was lost; else TDM_NOBODY. */
uint32_t tdm_meeting_lost(struct tdm_meeting *meeting);

#endif
