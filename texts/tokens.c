/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: those of files, of a part of them, or random ones. */
#include "texts/tokens.h"

#include "texts/list.h"
#include "texts/token_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files, one behind the other. */
struct text {
    struct tdm_token_file *files; /* [file_count] */
    uint64_t *firsts;             /* [file_count + 1] number of the first token of each */
    size_t file_count;
    uint64_t document_count;
    uint64_t *document_starts; /* [document_count] in the text */
    char *name;                /* of several files */
    struct tdm_tokens *mask;   /* NULL: none */
    bool files_mask;           /* some file says which tokens are targets */
};

struct tdm_tokens {
    struct text own;         /* empty: random, or a part of another's */
    const struct text *text; /* NULL: random */
    uint64_t first, count;   /* of the text's tokens */
    uint64_t first_document, document_count;
    uint32_t vocabulary;
    enum tdm_text_order order;
};

/* The last of `count` rising numbers that is not above `number`; the first one is not. */
static uint64_t last_at_most(const uint64_t *numbers, uint64_t count, uint64_t number)
{
    uint64_t low = 0, end = count; /* it is one of [low, end) */
    while (end - low > 1) {
        uint64_t middle = low + (end - low) / 2;
        if (numbers[middle] <= number)
            low = middle;
        else
            end = middle;
    }
    return low;
}

/* The text's document that holds its token `i`. */
static uint64_t document_of(const struct text *text, uint64_t i)
{
    return last_at_most(text->document_starts, text->document_count, i);
}

/* Finds the documents of the tokens [first, first + count). */
static void find_documents(struct tdm_tokens *tokens)
{
    if (tokens->text->document_count == 0)
        return;
    tokens->first_document = document_of(tokens->text, tokens->first);
    uint64_t last = document_of(tokens->text, tokens->first + tokens->count - 1);
    tokens->document_count = last - tokens->first_document + 1;
}

static void free_text(struct text *text)
{
    tdm_tokens_free(text->mask);
    for (size_t i = 0; i < text->file_count; i++)
        tdm_token_file_free(&text->files[i]);
    free(text->files);
    free(text->firsts);
    free(text->document_starts);
    free(text->name);
    *text = (struct text){.files = NULL};
}

/* All files mark documents, in the same way, or none does. */
static enum tdm_status check_alike(const struct text *text, struct tdm_error *err)
{
    const struct tdm_token_file *first = &text->files[0];
    for (size_t i = 1; i < text->file_count; i++) {
        const struct tdm_token_file *file = &text->files[i];
        if ((file->document_count > 0) == (first->document_count > 0) &&
            file->opened_by_delimiter == first->opened_by_delimiter)
            continue;
        tdm_fail(err, TDM_INPUT, "%s (%s) marks documents otherwise than %s (%s)", file->path,
                 file->format, first->path, first->format);
        return tdm_hint(err, "files of one text have to be of the same kind");
    }
    return TDM_OK;
}

/* Numbers tokens and documents through all files, which were read. */
static enum tdm_status join(struct text *text, struct tdm_error *err)
{
    for (size_t i = 0; i < text->file_count; i++) {
        text->firsts[i + 1] = text->firsts[i] + text->files[i].count;
        text->document_count += text->files[i].document_count;
        text->files_mask = text->files_mask || text->files[i].targets != NULL;
    }
    text->document_starts = malloc((text->document_count + 1) * sizeof(*text->document_starts));
    const char *last = text->files[text->file_count - 1].path;
    if (text->document_starts == NULL ||
        (text->file_count > 1 && asprintf(&text->name, "%zu files, %s to %s", text->file_count,
                                          text->files[0].path, last) < 0))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a text");
    uint64_t next = 0;
    for (size_t i = 0; i < text->file_count; i++)
        for (uint64_t d = 0; d < text->files[i].document_count; d++)
            text->document_starts[next++] = text->firsts[i] + text->files[i].document_starts[d];
    return TDM_OK;
}

/* Truth values are read as 0 and 1, which are ids too. */
static enum tdm_status refuse_truth(const struct text *text, struct tdm_error *err)
{
    for (size_t i = 0; i < text->file_count; i++) {
        if (!text->files[i].is_truth)
            continue;
        tdm_fail(err, TDM_INPUT, "%s: has truth values (bool), which are no token ids",
                 text->files[i].path);
        return tdm_hint(err, "save token ids as uint16 or uint32; truth values can be a --mask");
    }
    return TDM_OK;
}

static enum tdm_status read_text(const char *what, uint32_t vocabulary, struct text *text,
                                 struct tdm_error *err)
{
    struct tdm_text_list list;
    enum tdm_status status = tdm_text_list_read(what, &list, err);
    if (status != TDM_OK)
        return status;
    text->files = calloc(list.count, sizeof(*text->files));
    text->firsts = calloc(list.count + 1, sizeof(*text->firsts));
    if (text->files == NULL || text->firsts == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu files", list.count);
    while (status == TDM_OK && text->file_count < list.count) {
        status = tdm_token_file_read(list.whats[text->file_count], vocabulary,
                                     &text->files[text->file_count], err);
        text->file_count += status == TDM_OK;
    }
    tdm_text_list_free(&list);
    if (status == TDM_OK)
        status = check_alike(text, err);
    return status == TDM_OK ? join(text, err) : status;
}

static enum tdm_status open_any(const char *what, uint32_t vocabulary, bool is_mask,
                                struct tdm_tokens **out, struct tdm_error *err)
{
    struct tdm_tokens *tokens = calloc(1, sizeof(*tokens));
    if (tokens == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens");
    tokens->vocabulary = vocabulary;
    if (what != NULL) {
        enum tdm_status status = read_text(what, vocabulary, &tokens->own, err);
        if (status == TDM_OK && !is_mask)
            status = refuse_truth(&tokens->own, err);
        if (status != TDM_OK) {
            tdm_tokens_free(tokens);
            return status;
        }
        tokens->text = &tokens->own;
        tokens->count = tokens->own.firsts[tokens->own.file_count];
        find_documents(tokens);
    }
    *out = tokens;
    return TDM_OK;
}

enum tdm_status tdm_tokens_open(const char *what, uint32_t vocabulary, struct tdm_tokens **out,
                                struct tdm_error *err)
{
    return open_any(what, vocabulary, false, out, err);
}

enum tdm_status tdm_tokens_split(struct tdm_tokens *tokens, double fraction,
                                 struct tdm_tokens **out, struct tdm_error *err)
{
    struct tdm_tokens *last = malloc(sizeof(*last));
    if (last == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for tokens");
    *last = *tokens;
    last->own = (struct text){.files = NULL};
    last->order = TDM_TEXT_RANDOM;
    if (tokens->text != NULL) {
        last->count = (uint64_t)ceil(fraction * (double)tokens->count);
        if (last->count < 2 || last->count + 2 > tokens->count) {
            tdm_fail(err, TDM_INPUT,
                     "a share of %g of %llu tokens leaves fewer than 2 to train or to evaluate on",
                     fraction, (unsigned long long)tokens->count);
            free(last);
            return tdm_hint(err, "use a longer text, or --validation FILE");
        }
        tokens->count -= last->count;
        last->first = tokens->first + tokens->count;
        find_documents(tokens);
        find_documents(last);
    }
    *out = last;
    return TDM_OK;
}

enum tdm_status tdm_tokens_mask(struct tdm_tokens *tokens, const char *what, struct tdm_error *err)
{
    struct tdm_tokens *mask;
    if (tokens->text == NULL) {
        tdm_fail(err, TDM_USAGE, "--mask: random tokens have none");
        return tdm_hint(err, "give a text with --tokens");
    }
    enum tdm_status status = open_any(what, TDM_ANY_VOCABULARY, true, &mask, err);
    if (status != TDM_OK)
        return status;
    uint64_t first = 0; /* target */
    while (first < mask->count && tdm_tokens_at(mask, first) == 0)
        first++;
    if (mask->count != tokens->count)
        status = tdm_fail(err, TDM_INPUT, "%s: has %llu numbers, but %s has %llu tokens",
                          tdm_tokens_name(mask), (unsigned long long)mask->count,
                          tdm_tokens_name(tokens), (unsigned long long)tokens->count);
    else if (first == mask->count)
        status = tdm_fail(err, TDM_INPUT, "%s: is 0 for every token of %s, so none is a target",
                          tdm_tokens_name(mask), tdm_tokens_name(tokens));
    if (status != TDM_OK) {
        tdm_tokens_free(mask);
        return tdm_hint(err, "a mask has a number for each token: 0 where it is not a target");
    }
    tdm_tokens_free(tokens->own.mask);
    tokens->own.mask = mask;
    return TDM_OK;
}

bool tdm_tokens_are_masked(const struct tdm_tokens *tokens)
{
    return tokens->text != NULL && (tokens->text->mask != NULL || tokens->text->files_mask);
}

/* Is token `at` of the text a target by the file that it is in? */
static bool is_target_of_file(const struct text *text, uint64_t at)
{
    const uint64_t file = last_at_most(text->firsts, text->file_count, at);
    const unsigned char *targets = text->files[file].targets;
    return targets == NULL || targets[at - text->firsts[file]] != 0;
}

bool tdm_tokens_is_target(const struct tdm_tokens *tokens, uint64_t i)
{
    const struct text *text = tokens->text;
    const uint64_t at = tokens->first + i;
    return text == NULL || ((text->mask == NULL || tdm_tokens_at(text->mask, at) != 0) &&
                            (!text->files_mask || is_target_of_file(text, at)));
}

uint64_t tdm_tokens_targets(const struct tdm_tokens *tokens)
{
    if (!tdm_tokens_are_masked(tokens))
        return tokens->count;
    uint64_t count = 0;
    for (uint64_t i = 0; i < tokens->count; i++)
        count += tdm_tokens_is_target(tokens, i);
    return count;
}

enum tdm_status tdm_tokens_read_in(struct tdm_tokens *tokens, enum tdm_text_order order,
                                   struct tdm_error *err)
{
    if (order != TDM_TEXT_RANDOM && tokens->text == NULL) {
        tdm_fail(err, TDM_USAGE, "--order %s: random tokens have no order",
                 tdm_text_order_name(order));
        return tdm_hint(err, "give a text with --tokens");
    }
    tokens->order = order;
    return TDM_OK;
}

enum tdm_text_order tdm_tokens_order(const struct tdm_tokens *tokens)
{
    return tokens->order;
}

bool tdm_tokens_are_split_off(const struct tdm_tokens *tokens)
{
    return tokens->first > 0;
}

void tdm_tokens_free(struct tdm_tokens *tokens)
{
    if (tokens == NULL)
        return;
    free_text(&tokens->own);
    free(tokens);
}

uint64_t tdm_tokens_count(const struct tdm_tokens *tokens)
{
    return tokens->count;
}

uint32_t tdm_tokens_vocabulary(const struct tdm_tokens *tokens)
{
    return tokens->vocabulary;
}

uint32_t tdm_tokens_at(const struct tdm_tokens *tokens, uint64_t i)
{
    const struct text *text = tokens->text;
    const uint64_t at = tokens->first + i;
    uint64_t file = text->file_count == 1 ? 0 : last_at_most(text->firsts, text->file_count, at);
    return (uint32_t)tdm_token_file_at(&text->files[file], at - text->firsts[file]);
}

const char *tdm_tokens_name(const struct tdm_tokens *tokens)
{
    if (tokens->text == NULL)
        return "random tokens";
    return tokens->text->name != NULL ? tokens->text->name : tokens->text->files[0].path;
}

const char *tdm_tokens_format(const struct tdm_tokens *tokens)
{
    if (tokens->text == NULL)
        return "random tokens";
    const struct tdm_token_file *files = tokens->text->files;
    for (size_t i = 1; i < tokens->text->file_count; i++)
        if (strcmp(files[i].format, files[0].format) != 0)
            return "several formats";
    return files[0].format;
}

uint64_t tdm_tokens_documents(const struct tdm_tokens *tokens)
{
    return tokens->document_count;
}

uint64_t tdm_tokens_document_start(const struct tdm_tokens *tokens, uint64_t document)
{
    uint64_t start = tokens->text->document_starts[tokens->first_document + document];
    return start < tokens->first ? 0 : start - tokens->first;
}

uint64_t tdm_tokens_document_of(const struct tdm_tokens *tokens, uint64_t i)
{
    return document_of(tokens->text, tokens->first + i) - tokens->first_document;
}

bool tdm_tokens_predict_documents(const struct tdm_tokens *tokens)
{
    return tokens->text != NULL && tokens->text->files[0].opened_by_delimiter;
}

static void write_digest(const struct tdm_checksum *sum, char out[TDM_DIGEST_SIZE])
{
    snprintf(out, TDM_DIGEST_SIZE, "%016" PRIx64, tdm_checksum_value(sum));
}

void tdm_tokens_identify(const struct tdm_tokens *tokens, struct tdm_tokens_identity *identity)
{
    struct tdm_checksum all = {0}, documents = {0}, mask = {0};
    uint32_t block[4096];
    *identity = (struct tdm_tokens_identity){.count = tokens->count,
                                             .order = tdm_text_order_name(tokens->order)};
    for (uint64_t i = 0; i < tokens->count;) {
        size_t n = 0;
        for (; n < sizeof(block) / sizeof(block[0]) && i < tokens->count; i++)
            block[n++] = tdm_tokens_at(tokens, i);
        tdm_checksum_add(&all, block, n * sizeof(block[0]));
    }
    write_digest(&all, identity->ids);
    for (uint64_t d = 0; d < tokens->document_count; d++) {
        uint64_t start = tdm_tokens_document_start(tokens, d);
        tdm_checksum_add(&all, &start, sizeof(start));
        tdm_checksum_add(&documents, &start, sizeof(start));
    }
    if (tokens->document_count > 0)
        write_digest(&documents, identity->documents);
    for (uint64_t i = 0; i < tokens->count && tdm_tokens_are_masked(tokens); i++) {
        unsigned char target = tdm_tokens_is_target(tokens, i);
        tdm_checksum_add(&all, &target, sizeof(target));
        tdm_checksum_add(&mask, &target, sizeof(target));
    }
    if (tdm_tokens_are_masked(tokens))
        write_digest(&mask, identity->mask);
    if (tokens->order != TDM_TEXT_RANDOM)
        tdm_checksum_add(&all, identity->order, strlen(identity->order));
    write_digest(&all, identity->digest);
}

double tdm_tokens_unigram_entropy(const struct tdm_tokens *tokens)
{
    uint64_t *seen = tokens->text == NULL ? NULL : calloc(tokens->vocabulary, sizeof(*seen));
    double entropy = 0;
    if (seen == NULL) /* random, or out of memory */
        return log(tokens->vocabulary);
    for (uint64_t i = 0; i < tokens->count; i++)
        seen[tdm_tokens_at(tokens, i)]++;
    for (uint32_t token = 0; token < tokens->vocabulary; token++)
        if (seen[token] > 0) {
            double share = (double)seen[token] / (double)tokens->count;
            entropy -= share * log(share);
        }
    free(seen);
    return entropy;
}
