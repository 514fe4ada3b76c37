/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: draws where the pieces of a step begin in a text, and fills in their tokens. */
#include "executor/batch.h"

#include "executor/random.h"
#include "executor/shuffle.h"
#include "schedule/layout.h"

#include <stdlib.h>
#include <string.h>

/* Streams of the counter-based random numbers, beyond those of any tensor. */
#define POSITION_STREAM (UINT64_C(1) << 32)
#define TOKEN_STREAM (POSITION_STREAM + 1)

/* ---- what a text must have ---- */

/* The longest run of tokens that is drawn in one piece. */
static uint64_t longest_piece(const struct tdm_schedule *schedule)
{
    uint64_t longest = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &schedule->sequences[s];
        for (uint32_t d = 0; d < sequence->document_count; d++) {
            uint64_t length = tdm_document_end(sequence, d) - tdm_document_start(sequence, d);
            longest = length > longest ? length : longest;
        }
    }
    return longest;
}

static enum tdm_status check_length(const struct tdm_tokens *tokens,
                                    const struct tdm_schedule *schedule, struct tdm_error *err)
{
    uint64_t count = tdm_tokens_count(tokens), piece = longest_piece(schedule);
    if (count == 0 || count > piece)
        return TDM_OK;
    tdm_fail(err, TDM_INPUT,
             "%s: %llu tokens are fewer than a sequence of %llu and the token after it",
             tdm_tokens_name(tokens), (unsigned long long)count, (unsigned long long)piece);
    if (tdm_tokens_are_split_off(tokens))
        return tdm_hint(
            err, "these are the tokens that are kept for evaluation: keep more or give a file of "
                 "its own (--validation), or plan the evaluation with a smaller --context");
    return tdm_hint(err, "use a longer text, or plan with a smaller --context");
}

/* The largest number of documents in any `length` consecutive tokens of a text. */
static uint64_t most_documents(const struct tdm_tokens *tokens, uint64_t length)
{
    uint64_t count = tdm_tokens_documents(tokens), most = 1, end = 0;
    for (uint64_t first = 0; first < count; first++) {
        /* a piece that begins one token before document `first`, if there is such a token */
        uint64_t stop = tdm_tokens_document_start(tokens, first) + length - (first > 0);
        while (end < count && tdm_tokens_document_start(tokens, end) < stop)
            end++;
        uint64_t here = end - first + (first > 0);
        most = here > most ? here : most;
    }
    return most;
}

/* Counts the document starts that a step can have. TDM_USAGE for random tokens, TDM_INPUT if the
 * text has no documents or a step could hold too many. */
static enum tdm_status count_starts(const struct tdm_tokens *tokens,
                                    const struct tdm_schedule *schedule, uint64_t *starts,
                                    struct tdm_error *err)
{
    if (tdm_tokens_count(tokens) == 0) {
        tdm_fail(err, TDM_USAGE,
                 "the schedule takes documents from the text, and random tokens have none");
        return tdm_hint(err, "give JSON lines, or data of llm.c or Megatron-LM, with --tokens");
    }
    if (tdm_tokens_documents(tokens) == 0) {
        tdm_fail(err, TDM_INPUT,
                 "%s: the schedule takes documents from the text, and this one (%s) has none",
                 tdm_tokens_name(tokens), tdm_tokens_format(tokens));
        return tdm_hint(err, "use JSON lines, data of llm.c or Megatron-LM, or plan without "
                             "--set documents=file");
    }
    *starts = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        *starts += most_documents(tokens, schedule->sequences[s].tokens);
    if (*starts > TDM_MOST_STEP_DOCUMENTS)
        return tdm_fail(
            err, TDM_INPUT, "%s: a step can hold %llu documents; at most %u are supported",
            tdm_tokens_name(tokens), (unsigned long long)*starts, TDM_MOST_STEP_DOCUMENTS);
    return TDM_OK;
}

/* Packs the text, and checks that it can be. */
static enum tdm_status pack(struct tdm_batch *batch, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = batch->schedule;
    const uint64_t context = schedule->sequences[0].tokens;
    if (!schedule->documents_of_text) {
        tdm_fail(err, TDM_USAGE,
                 "--order packed: the schedule does not take documents from the text");
        return tdm_hint(err, "plan with --set documents=file");
    }
    for (uint32_t s = 1; s < schedule->sequence_count; s++)
        if (schedule->sequences[s].tokens != context)
            return tdm_fail(err, TDM_USAGE,
                            "--order packed: the sequences of the schedule have different lengths");
    enum tdm_status status = tdm_packing_make(batch->tokens, context, &batch->packing, err);
    if (status != TDM_OK)
        return status;
    uint64_t most = (batch->packing.most_pieces + 1) * schedule->sequence_count;
    if (most > TDM_MOST_STEP_DOCUMENTS)
        return tdm_fail(
            err, TDM_INPUT, "%s: a step can hold %llu documents; at most %u are supported",
            tdm_tokens_name(batch->tokens), (unsigned long long)most, TDM_MOST_STEP_DOCUMENTS);
    return TDM_OK;
}

/* ---- making one ---- */

static enum tdm_status take_documents(struct tdm_batch *batch, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = batch->schedule;
    uint64_t starts = 0;
    enum tdm_status status = count_starts(batch->tokens, schedule, &starts, err);
    if (status == TDM_OK && tdm_tokens_order(batch->tokens) == TDM_TEXT_PACKED) {
        status = pack(batch, err);
        starts = (batch->packing.most_pieces + 1) * schedule->sequence_count;
    }
    if (status != TDM_OK)
        return status;
    batch->sequences = calloc(schedule->sequence_count, sizeof(*batch->sequences));
    batch->document_starts = malloc(starts * sizeof(*batch->document_starts));
    return batch->sequences == NULL || batch->document_starts == NULL
               ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu documents of a step",
                          (unsigned long long)starts)
               : TDM_OK;
}

enum tdm_status tdm_batch_new(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule,
                              struct tdm_batch **out, struct tdm_error *err)
{
    uint64_t count = tdm_schedule_tokens(schedule);
    const bool packed = tdm_tokens_order(tokens) == TDM_TEXT_PACKED;
    if (tdm_tokens_vocabulary(tokens) > schedule->model->vocabulary)
        return tdm_fail(err, TDM_INTERNAL,
                        "tokens of a vocabulary of %u for a model with one of %u",
                        tdm_tokens_vocabulary(tokens), schedule->model->vocabulary);
    struct tdm_batch *batch = calloc(1, sizeof(*batch));
    if (batch == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a batch");
    batch->tokens = tokens;
    batch->schedule = schedule;
    batch->inputs = malloc(count * sizeof(*batch->inputs));
    batch->targets = malloc(count * sizeof(*batch->targets));
    batch->used_rows = calloc(tdm_token_set_words(schedule->model->vocabulary), sizeof(uint64_t));
    enum tdm_status status = TDM_OK;
    if (batch->inputs == NULL || batch->targets == NULL || batch->used_rows == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu tokens",
                          (unsigned long long)count);
    if (status == TDM_OK && !packed)
        status = check_length(tokens, schedule, err);
    if (status == TDM_OK && schedule->documents_of_text)
        status = take_documents(batch, err);
    else if (status == TDM_OK && packed)
        status = pack(batch, err);
    if (status != TDM_OK) {
        tdm_batch_free(batch);
        return status;
    }
    *out = batch;
    return TDM_OK;
}

void tdm_batch_free(struct tdm_batch *batch)
{
    if (batch == NULL)
        return;
    free(batch->inputs);
    free(batch->targets);
    free(batch->used_rows);
    free(batch->sequences);
    free(batch->document_starts);
    tdm_packing_free(&batch->packing);
    free(batch);
}

/* ---- filling it ---- */

/* Draws where a piece of the text begins: anywhere that the piece and its last target fit. */
static uint64_t place_of(const struct tdm_tokens *tokens, uint64_t seed, uint64_t step,
                         uint32_t sequence, uint32_t document, uint64_t length)
{
    uint64_t number = (uint64_t)document << 32 | sequence;
    return tdm_random_bits(seed, step, POSITION_STREAM, number) %
           (tdm_tokens_count(tokens) - length);
}

/* The same in a shuffled order: the text is divided into parts as long as the longest piece, from a
 * place that differs each time that it is read, and the pieces of all steps have one part each. */
static uint64_t place_in_order(const struct tdm_batch *batch, uint64_t seed, uint64_t piece)
{
    const uint64_t length = longest_piece(batch->schedule);
    const uint64_t room = tdm_tokens_count(batch->tokens) - 1; /* the last token is a target */
    const uint64_t parts = room / length, epoch = piece / parts;
    const uint64_t rest = room - parts * length;
    uint64_t first = tdm_random_bits(seed, epoch, POSITION_STREAM, UINT64_MAX) % (rest + 1);
    return first + tdm_shuffle(piece % parts, parts, seed, epoch) * length;
}

/* Pieces of a step that are drawn on their own. */
static uint64_t pieces_of(const struct tdm_schedule *schedule)
{
    uint64_t pieces = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        pieces += schedule->sequences[s].document_count;
    return pieces;
}

static int32_t target_at(const struct tdm_tokens *tokens, uint64_t i)
{
    return tdm_tokens_is_target(tokens, i) ? (int32_t)tdm_tokens_at(tokens, i) : TDM_NO_TARGET;
}

/* Fills `length` tokens and targets, from token `begin` of the text or of the random stream. */
static void fill_piece(const struct tdm_tokens *tokens, uint64_t length, uint64_t begin,
                       uint64_t seed, uint64_t step, uint64_t stream, int32_t *inputs,
                       int32_t *targets)
{
    bool random = tdm_tokens_count(tokens) == 0;
    uint32_t vocabulary = tdm_tokens_vocabulary(tokens);
    for (uint64_t i = begin; i < begin + length; i++) {
        if (!random) {
            *inputs++ = (int32_t)tdm_tokens_at(tokens, i);
            *targets++ = target_at(tokens, i + 1);
            continue;
        }
        *inputs++ = (int32_t)(tdm_random_bits(seed, step, stream, i) % vocabulary);
        *targets++ = (int32_t)(tdm_random_bits(seed, step, stream, i + 1) % vocabulary);
    }
}

/* Finds the documents of sequence `s`, which begins at token `begin` of the text and at token `row`
 * of the step. */
static void find_documents(struct tdm_batch *batch, uint32_t s, uint64_t begin, uint64_t row,
                           uint64_t *starts)
{
    const struct tdm_tokens *tokens = batch->tokens;
    struct tdm_sequence *sequence = &batch->sequences[s];
    uint64_t all = tdm_tokens_documents(tokens), d = tdm_tokens_document_of(tokens, begin);
    bool trains = tdm_tokens_predict_documents(tokens);
    uint64_t length = batch->schedule->sequences[s].tokens;
    *sequence =
        (struct tdm_sequence){.tokens = length, .document_count = 1, .document_starts = starts};
    starts[0] = 0;
    for (d++; d < all && tdm_tokens_document_start(tokens, d) < begin + length; d++) {
        uint64_t start = tdm_tokens_document_start(tokens, d) - begin;
        starts[sequence->document_count++] = start;
        if (!trains)
            batch->targets[row + start - 1] = TDM_NO_TARGET;
    }
}

/* Fills all sequences of a step. Draws where each document, or each sequence of the text, begins.
 * Steps count from 1. Number 0 is a window for evaluation: its pieces follow each other from token
 * `next` on, and its random tokens are those of no step. */
static void fill_step(struct tdm_batch *batch, uint64_t seed, uint64_t step, uint64_t next)
{
    const struct tdm_tokens *tokens = batch->tokens;
    bool random = tdm_tokens_count(tokens) == 0;
    uint64_t row = 0, documents = 0;
    uint64_t piece = step == 0 ? 0 : (step - 1) * pieces_of(batch->schedule);
    for (uint32_t s = 0; s < batch->schedule->sequence_count; s++) {
        const struct tdm_sequence *sequence = &batch->schedule->sequences[s];
        uint64_t token = 0;
        for (uint32_t d = 0; d < sequence->document_count; d++, piece++) {
            uint64_t length = tdm_document_end(sequence, d) - token;
            uint64_t begin = step == 0 ? next + row
                             : random  ? token
                             : tdm_tokens_order(batch->tokens) == TDM_TEXT_SHUFFLED
                                 ? place_in_order(batch, seed, piece)
                                 : place_of(tokens, seed, step, s, d, length);
            fill_piece(tokens, length, begin, seed, step, TOKEN_STREAM + (step == 0 ? 0 : s),
                       batch->inputs + row, batch->targets + row);
            if (batch->sequences != NULL) {
                find_documents(batch, s, begin, row, batch->document_starts + documents);
                documents += batch->sequences[s].document_count;
            }
            row += length;
            token += length;
            if (!tdm_sequence_trains(sequence, token - 1))
                batch->targets[row - 1] = TDM_NO_TARGET;
        }
    }
}

/* Fills sequence `s` with the documents that are packed into one. Returns how many it has. */
static uint64_t fill_packed(struct tdm_batch *batch, uint32_t s, uint64_t sequence, uint64_t row,
                            uint64_t *starts)
{
    const struct tdm_packing *packing = &batch->packing;
    const struct tdm_tokens *tokens = batch->tokens;
    struct tdm_sequence *filled = &batch->sequences[s];
    const uint64_t end = row + packing->context;
    *filled = (struct tdm_sequence){.tokens = packing->context, .document_starts = starts};
    for (uint64_t i = packing->first_piece[sequence]; i < packing->first_piece[sequence + 1]; i++) {
        const struct tdm_packed *piece = &packing->pieces[i];
        starts[filled->document_count++] = row + packing->context - end;
        bool trains = !piece->ends || (tdm_tokens_predict_documents(tokens) &&
                                       piece->first + piece->tokens < tdm_tokens_count(tokens));
        for (uint64_t t = 0; t < piece->tokens; t++, row++) {
            bool last = t + 1 == piece->tokens;
            batch->inputs[row] = (int32_t)tdm_tokens_at(tokens, piece->first + t);
            batch->targets[row] =
                last && !trains ? TDM_NO_TARGET : target_at(tokens, piece->first + t + 1);
        }
    }
    if (row < end)
        starts[filled->document_count++] = row + packing->context - end;
    for (; row < end; row++) {
        batch->inputs[row] = 0;
        batch->targets[row] = TDM_NO_TARGET;
    }
    return filled->document_count;
}

/* Packed sequences, each once in a random order before any comes again. */
static void fill_packed_step(struct tdm_batch *batch, uint64_t seed, uint64_t step)
{
    const uint64_t all = batch->packing.sequence_count;
    uint64_t documents = 0;
    for (uint32_t s = 0; s < batch->schedule->sequence_count; s++) {
        const uint64_t number = (step - 1) * batch->schedule->sequence_count + s;
        documents += fill_packed(batch, s, tdm_shuffle(number % all, all, seed, number / all),
                                 s * batch->packing.context, batch->document_starts + documents);
    }
}

void tdm_token_set(const int32_t *tokens, uint64_t count, uint32_t vocabulary, uint64_t *set)
{
    memset(set, 0, tdm_token_set_words(vocabulary) * sizeof(*set));
    for (uint64_t i = 0; i < count; i++)
        set[(uint32_t)tokens[i] / 64] |= UINT64_C(1) << (uint32_t)tokens[i] % 64;
}

bool tdm_batch_has_own_targets(const struct tdm_batch *batch)
{
    return batch->sequences != NULL || tdm_tokens_are_masked(batch->tokens);
}

/* Notes of the new contents what a step is told beside the tokens. */
static void note_contents(struct tdm_batch *batch)
{
    const uint64_t count = tdm_schedule_tokens(batch->schedule);
    tdm_token_set(batch->inputs, count, batch->schedule->model->vocabulary, batch->used_rows);
    batch->trained_tokens = 0;
    for (uint64_t i = 0; i < count && tdm_batch_has_own_targets(batch); i++)
        batch->trained_tokens += batch->targets[i] != TDM_NO_TARGET;
}

void tdm_batch_step(struct tdm_batch *batch, uint64_t seed, uint64_t step)
{
    if (tdm_tokens_order(batch->tokens) == TDM_TEXT_PACKED)
        fill_packed_step(batch, seed, step);
    else
        fill_step(batch, seed, step, 0);
    note_contents(batch);
}

uint64_t tdm_batch_windows(const struct tdm_tokens *tokens, const struct tdm_schedule *schedule)
{
    if (tdm_tokens_count(tokens) == 0)
        return UINT64_MAX;
    return (tdm_tokens_count(tokens) - 1) / tdm_schedule_tokens(schedule);
}

void tdm_batch_window(struct tdm_batch *batch, uint64_t seed, uint64_t number)
{
    fill_step(batch, seed, 0, number * tdm_schedule_tokens(batch->schedule));
    note_contents(batch);
}

void tdm_batch_describe(const struct tdm_batch *batch, struct tdm_step *step)
{
    step->sequences = batch->sequences;
    step->used_rows = batch->used_rows;
    /* a step without any target divides its loss of 0 by 1 */
    bool none = batch->trained_tokens == 0 && tdm_batch_has_own_targets(batch);
    step->trained_tokens = none ? 1 : batch->trained_tokens;
}
