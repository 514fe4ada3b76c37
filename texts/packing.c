/* SPDX-License-Identifier: Apache-2.0 */
/* Packs documents into sequences: best fit decreasing. */
#include "texts/packing.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT64_MAX

/* The room that sequences have left: a set of numbers of tokens, and a list of the sequences for
 * each. The set is a tree of bits, 64 children a node, so that the next larger member is found in a
 * few steps. */
struct room {
    uint64_t *bits[11]; /* level 0: a bit for each number; the last level has one word */
    int levels;
    uint64_t *head; /* [context + 1] a sequence with that room, or NONE */
    uint64_t *next; /* [sequences] another with the same room */
};

static bool room_new(struct room *room, uint64_t context, uint64_t sequences)
{
    uint64_t words = context / 64 + 1;
    *room = (struct room){.levels = 0};
    for (;;) {
        room->bits[room->levels] = calloc(words, sizeof(uint64_t));
        if (room->bits[room->levels++] == NULL)
            return false;
        if (words == 1)
            break;
        words = (words + 63) / 64;
    }
    room->head = malloc((context + 1) * sizeof(uint64_t));
    room->next = malloc((sequences + 1) * sizeof(uint64_t));
    if (room->head == NULL || room->next == NULL)
        return false;
    for (uint64_t i = 0; i <= context; i++)
        room->head[i] = NONE;
    return true;
}

static void room_free(struct room *room)
{
    for (int level = 0; level < room->levels; level++)
        free(room->bits[level]);
    free(room->head);
    free(room->next);
}

static void room_add(struct room *room, uint64_t tokens, uint64_t sequence)
{
    room->next[sequence] = room->head[tokens];
    room->head[tokens] = sequence;
    for (int level = 0; level < room->levels; level++, tokens /= 64)
        room->bits[level][tokens / 64] |= UINT64_C(1) << tokens % 64;
}

/* Takes a sequence with the least room that is `tokens` or more; NONE: there is none. *left: its
 * room. */
static uint64_t room_take(struct room *room, uint64_t tokens, uint64_t *left)
{
    uint64_t at = tokens;
    int level = 0;
    for (;; level++, at = at / 64 + 1) { /* up, until a later child has a member */
        if (level == room->levels)
            return NONE;
        uint64_t words = level + 1 == room->levels ? 1 : UINT64_MAX;
        if (at / 64 >= words)
            return NONE;
        uint64_t later = room->bits[level][at / 64] >> at % 64 << at % 64;
        if (later == 0)
            continue;
        at = at / 64 * 64 + (uint64_t)__builtin_ctzll(later);
        break;
    }
    while (level > 0) { /* down to the first one */
        level--;
        at = at * 64 + (uint64_t)__builtin_ctzll(room->bits[level][at]);
    }
    uint64_t sequence = room->head[at];
    room->head[at] = room->next[sequence];
    *left = at;
    if (room->head[at] != NONE)
        return sequence;
    for (uint64_t i = at, l = 0; l < (uint64_t)room->levels; l++, i /= 64) {
        room->bits[l][i / 64] &= ~(UINT64_C(1) << i % 64);
        if (room->bits[l][i / 64] != 0)
            break;
    }
    return sequence;
}

static int longest_first(const void *left, const void *right)
{
    const struct tdm_packed *a = left, *b = right;
    if (a->tokens != b->tokens)
        return (a->tokens < b->tokens) - (a->tokens > b->tokens);
    return (a->first > b->first) - (a->first < b->first);
}

static int by_token(const void *left, const void *right)
{
    const struct tdm_packed *a = left, *b = right;
    return (a->first > b->first) - (a->first < b->first);
}

/* Cuts document after document. Counts the pieces if `pieces` is NULL. */
static uint64_t cut(const struct tdm_tokens *tokens, uint64_t context, struct tdm_packed *pieces,
                    uint64_t *cut_documents)
{
    const uint64_t documents = tdm_tokens_documents(tokens), count = tdm_tokens_count(tokens);
    uint64_t made = 0;
    *cut_documents = 0;
    for (uint64_t d = 0; d < (documents == 0 ? 1 : documents); d++) {
        uint64_t at = documents == 0 ? 0 : tdm_tokens_document_start(tokens, d);
        uint64_t end = d + 1 < documents ? tdm_tokens_document_start(tokens, d + 1) : count;
        *cut_documents += end - at > context;
        for (; at < end; made++) {
            uint64_t length = end - at < context ? end - at : context;
            if (pieces != NULL)
                pieces[made] = (struct tdm_packed){at, length, at + length == end};
            at += length;
        }
    }
    return made;
}

/* Gives each piece, from the longest on, its sequence. */
static bool place(const struct tdm_packing *packing, uint64_t *sequence_of, uint64_t *sequences)
{
    struct room room;
    bool made = room_new(&room, packing->context, packing->piece_count);
    *sequences = 0;
    for (uint64_t i = 0; i < packing->piece_count && made; i++) {
        uint64_t left = packing->context, length = packing->pieces[i].tokens;
        uint64_t sequence = room_take(&room, length, &left);
        if (sequence == NONE) {
            sequence = (*sequences)++;
            left = packing->context;
        }
        sequence_of[i] = sequence;
        room_add(&room, left - length, sequence);
    }
    room_free(&room);
    return made;
}

/* Puts the pieces of each sequence together. */
static bool group(struct tdm_packing *packing, const uint64_t *sequence_of)
{
    struct tdm_packed *grouped = malloc((packing->piece_count + 1) * sizeof(*grouped));
    packing->first_piece = calloc(packing->sequence_count + 2, sizeof(*packing->first_piece));
    if (grouped == NULL || packing->first_piece == NULL) {
        free(grouped);
        return false;
    }
    uint64_t *next = packing->first_piece + 1;
    for (uint64_t i = 0; i < packing->piece_count; i++)
        next[sequence_of[i] + 1]++;
    for (uint64_t s = 0; s < packing->sequence_count; s++) {
        packing->most_pieces =
            next[s + 1] > packing->most_pieces ? next[s + 1] : packing->most_pieces;
        next[s + 1] += next[s];
    }
    for (uint64_t i = 0; i < packing->piece_count; i++)
        grouped[next[sequence_of[i]]++] = packing->pieces[i];
    free(packing->pieces);
    packing->pieces = grouped;
    for (uint64_t s = 0; s < packing->sequence_count; s++)
        qsort(grouped + packing->first_piece[s],
              packing->first_piece[s + 1] - packing->first_piece[s], sizeof(*grouped), by_token);
    return true;
}

enum tdm_status tdm_packing_make(const struct tdm_tokens *tokens, uint64_t context,
                                 struct tdm_packing *out, struct tdm_error *err)
{
    struct tdm_packing packing = {.context = context, .tokens = tdm_tokens_count(tokens)};
    packing.piece_count = cut(tokens, context, NULL, &packing.cut_documents);
    packing.pieces = malloc((packing.piece_count + 1) * sizeof(*packing.pieces));
    uint64_t *sequence_of = malloc((packing.piece_count + 1) * sizeof(*sequence_of));
    bool made = packing.pieces != NULL && sequence_of != NULL;
    if (made) {
        (void)cut(tokens, context, packing.pieces, &packing.cut_documents);
        qsort(packing.pieces, packing.piece_count, sizeof(*packing.pieces), longest_first);
        made =
            place(&packing, sequence_of, &packing.sequence_count) && group(&packing, sequence_of);
    }
    free(sequence_of);
    if (!made) {
        uint64_t pieces = packing.piece_count;
        tdm_packing_free(&packing);
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory to pack %llu documents",
                        (unsigned long long)pieces);
    }
    *out = packing;
    return TDM_OK;
}

void tdm_packing_free(struct tdm_packing *packing)
{
    free(packing->pieces);
    free(packing->first_piece);
    *packing = (struct tdm_packing){.context = 0};
}
