/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark data`: what a text holds, and what packing its documents wastes. */
#include "commands/cmd.h"

#include "base/json.h"
#include "base/text.h"
#include "base/ticker.h"
#include "base/units.h"
#include "commands/common_options.h"
#include "commands/contexts.h"
#include "commands/print.h"
#include "models/model.h"
#include "texts/facts.h"
#include "texts/packing.h"
#include "texts/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CONTEXTS 64u
#define BAR_CELLS 40u

struct arguments {
    const char *model;
    uint64_t contexts[MOST_CONTEXTS];
    size_t context_count;
    bool json;
};

static enum tdm_status read_contexts(const char *text, void *value, struct tdm_error *err)
{
    struct arguments *arguments = value;
    return tdm_contexts_parse(text, arguments->contexts, MOST_CONTEXTS, &arguments->context_count,
                              err);
}

#define PLACE(field) offsetof(struct arguments, field)

static const struct tdm_option options[] = {
    {.as = &tdm_option_context,
     .place = 0,
     .read = read_contexts,
     .help = "lengths of sequences to pack documents into: 8K, 2K..128K (doubles), 8K,12K; by "
             "default 2K, 8K, 32K and 128K"},
    {.name = "model",
     .word = "MODEL",
     .place = PLACE(model),
     .help = "check that all ids are of this model's vocabulary",
     .values = TDM_VALUES_MODELS},
    {.as = &tdm_option_json, .place = PLACE(json)},
    {.name = NULL}};

/* One text with what there is to say. */
struct described {
    const char *what;
    struct tdm_tokens *tokens;
    struct tdm_text_facts facts;
    struct tdm_packing packings[MOST_CONTEXTS]; /* their pieces are released */
    size_t packing_count;
};

static enum tdm_status describe(const struct arguments *arguments, uint32_t vocabulary,
                                struct described *text, struct tdm_error *err)
{
    enum tdm_status status = tdm_tokens_open(text->what, vocabulary, &text->tokens, err);
    if (status == TDM_OK)
        status = tdm_text_describe(text->tokens, &text->facts, err);
    for (size_t i = 0; i < arguments->context_count && status == TDM_OK; i++) {
        struct tdm_packing *packing = &text->packings[text->packing_count];
        if (text->facts.documents == 0)
            break;
        status = tdm_packing_make(text->tokens, arguments->contexts[i], packing, err);
        if (status != TDM_OK)
            break;
        struct tdm_packing counted = *packing;
        tdm_packing_free(packing);
        counted.pieces = NULL;
        counted.first_piece = NULL;
        text->packings[text->packing_count++] = counted;
    }
    return status;
}

static uint64_t empty_tokens(const struct tdm_packing *packing)
{
    return packing->context * packing->sequence_count - packing->tokens;
}

static double waste(const struct tdm_packing *packing)
{
    return (double)empty_tokens(packing) / (double)(packing->context * packing->sequence_count);
}

/* Text. */

static void print_lengths(const struct tdm_text_facts *facts)
{
    char from[TDM_DIGITS_SIZE], to[TDM_DIGITS_SIZE], digits[TDM_DIGITS_SIZE];
    uint64_t most = 1;
    for (uint32_t i = 0; i < facts->row_count; i++)
        most = facts->rows[i].documents > most ? facts->rows[i].documents : most;
    printf("\n  %-17s %12s  of tokens\n", "length", "documents");
    for (uint32_t i = 0; i < facts->row_count; i++) {
        const struct tdm_length_row *row = &facts->rows[i];
        char range[2 * TDM_DIGITS_SIZE + 8], bar[BAR_CELLS + 1] = "";
        if (row->least == 1)
            snprintf(range, sizeof(range), "1");
        else
            snprintf(range, sizeof(range), "%s to %s", tdm_format_digits(row->least, from),
                     tdm_format_digits(2 * row->least - 1, to));
        int cells = (int)(row->documents * BAR_CELLS / most);
        memset(bar, '#', (size_t)cells);
        bar[cells] = '\0';
        printf("  %-17s %12s  %8.2f%%%s%s\n", range, tdm_format_digits(row->documents, digits),
               100 * (double)row->tokens / (double)facts->tokens, cells > 0 ? "  " : "", bar);
    }
}

static void print_packings(const struct described *text)
{
    char tokens[TDM_FORMAT_SIZE], sequences[TDM_DIGITS_SIZE], empty[TDM_DIGITS_SIZE],
        cut[TDM_DIGITS_SIZE];
    printf("\n  packed (best fit)  %10s %14s %8s %12s\n", "sequences", "empty tokens", "waste",
           "cut");
    for (size_t i = 0; i < text->packing_count; i++) {
        const struct tdm_packing *packing = &text->packings[i];
        printf("  %-17s %12s %14s %7.2f%% %12s\n", tdm_format_tokens(packing->context, tokens),
               tdm_format_digits(packing->sequence_count, sequences),
               tdm_format_digits(empty_tokens(packing), empty), 100 * waste(packing),
               tdm_format_digits(packing->cut_documents, cut));
    }
}

static void print_text(const struct described *text)
{
    const struct tdm_text_facts *facts = &text->facts;
    char shown[TDM_TEXT_SHOWN], digits[TDM_DIGITS_SIZE], low[TDM_DIGITS_SIZE],
        high[TDM_DIGITS_SIZE], mean[TDM_DIGITS_SIZE];
    printf("%s\n", tdm_text_shown(tdm_tokens_name(text->tokens), shown));
    printf("  %-17s %s (%s)\n", "tokens", tdm_format_digits(facts->tokens, digits),
           tdm_tokens_format(text->tokens));
    printf("  %-17s %s to %s, %s of them occur\n", "ids", tdm_format_digits(facts->lowest_id, low),
           tdm_format_digits(facts->highest_id, high),
           tdm_format_digits(facts->distinct_ids, digits));
    printf("  %-17s %.3f nats a token\n", "unigram entropy", facts->unigram_entropy);
    if (tdm_tokens_are_masked(text->tokens))
        printf("  %-17s %s of the tokens: the others are only read\n", "targets",
               tdm_format_digits(tdm_tokens_targets(text->tokens), digits));
    if (facts->documents == 0) {
        printf("  %-17s the format marks none\n", "documents");
        return;
    }
    printf("  %-17s %s\n", "documents", tdm_format_digits(facts->documents, digits));
    printf("  %-17s %s to %s tokens, mean %s, median ", "lengths",
           tdm_format_digits(facts->shortest, low), tdm_format_digits(facts->longest, high),
           tdm_format_digits((facts->tokens + facts->documents / 2) / facts->documents, mean));
    printf("%s\n", tdm_format_digits(facts->median, digits));
    print_lengths(facts);
    print_packings(text);
}

/* JSON. */

static json_t *text_json(const struct described *text)
{
    const struct tdm_text_facts *facts = &text->facts;
    json_t *root = json_object(), *lengths = json_array(), *packings = json_array();
    tdm_json_set(&root, "name", tdm_json_text(tdm_tokens_name(text->tokens)));
    tdm_json_set(&root, "format", tdm_json_text(tdm_tokens_format(text->tokens)));
    tdm_json_set(&root, "tokens", json_integer((json_int_t)facts->tokens));
    tdm_json_set(&root, "lowest_id", json_integer(facts->lowest_id));
    tdm_json_set(&root, "highest_id", json_integer(facts->highest_id));
    tdm_json_set(&root, "distinct_ids", json_integer((json_int_t)facts->distinct_ids));
    tdm_json_set(&root, "unigram_entropy", json_real(facts->unigram_entropy));
    if (tdm_tokens_are_masked(text->tokens))
        tdm_json_set(&root, "targets", json_integer((json_int_t)tdm_tokens_targets(text->tokens)));
    tdm_json_set(&root, "documents",
                 facts->documents == 0 ? json_null() : json_integer((json_int_t)facts->documents));
    for (uint32_t i = 0; i < facts->row_count; i++) {
        json_t *row = json_object();
        tdm_json_set(&row, "least_tokens", json_integer((json_int_t)facts->rows[i].least));
        tdm_json_set(&row, "documents", json_integer((json_int_t)facts->rows[i].documents));
        tdm_json_set(&row, "tokens", json_integer((json_int_t)facts->rows[i].tokens));
        tdm_json_add(&lengths, row);
    }
    if (facts->documents > 0) {
        tdm_json_set(&root, "shortest_tokens", json_integer((json_int_t)facts->shortest));
        tdm_json_set(&root, "median_tokens", json_integer((json_int_t)facts->median));
        tdm_json_set(&root, "longest_tokens", json_integer((json_int_t)facts->longest));
    }
    tdm_json_set(&root, "lengths", lengths);
    for (size_t i = 0; i < text->packing_count; i++) {
        const struct tdm_packing *packing = &text->packings[i];
        json_t *row = json_object();
        tdm_json_set(&row, "context", json_integer((json_int_t)packing->context));
        tdm_json_set(&row, "sequences", json_integer((json_int_t)packing->sequence_count));
        tdm_json_set(&row, "empty_tokens", json_integer((json_int_t)empty_tokens(packing)));
        tdm_json_set(&row, "waste", json_real(waste(packing)));
        tdm_json_set(&row, "cut_documents", json_integer((json_int_t)packing->cut_documents));
        tdm_json_add(&packings, row);
    }
    tdm_json_set(&root, "packings", packings);
    return root;
}

static enum tdm_status find_vocabulary(const char *name, uint32_t *vocabulary,
                                       struct tdm_error *err)
{
    struct tdm_model *model;
    *vocabulary = TDM_ANY_VOCABULARY;
    if (name == NULL)
        return TDM_OK;
    enum tdm_status status = tdm_model_load(name, &model, err);
    if (status != TDM_OK)
        return status;
    *vocabulary = model->vocabulary;
    tdm_model_free(model);
    return TDM_OK;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    static const uint64_t usual[] = {2048, 8192, 32768, 131072};
    struct arguments arguments = {.model = NULL};
    int first;
    bool help;
    uint32_t vocabulary = 0;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_data, argc, argv, &arguments, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (first == argc) {
        tdm_fail(err, TDM_USAGE, "data: no text is named");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_data.usage);
    }
    if (arguments.context_count == 0) {
        memcpy(arguments.contexts, usual, sizeof(usual));
        arguments.context_count = sizeof(usual) / sizeof(usual[0]);
    }
    status = find_vocabulary(arguments.model, &vocabulary, err);
    json_t *texts = json_array();
    for (int i = first; i < argc && status == TDM_OK; i++) {
        struct described *text = calloc(1, sizeof(*text));
        struct tdm_ticker ticker;
        if (text == NULL) {
            status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for a text");
            break;
        }
        text->what = argv[i];
        tdm_ticker_begin(&ticker, stderr, "reading the text");
        status = describe(&arguments, vocabulary, text, err);
        tdm_ticker_end(&ticker);
        if (status == TDM_OK && arguments.json) {
            tdm_json_add(&texts, text_json(text));
        } else if (status == TDM_OK) {
            printf("%s", i > first ? "\n" : "");
            print_text(text);
        }
        tdm_tokens_free(text->tokens);
        free(text);
    }
    if (status != TDM_OK || !arguments.json) {
        json_decref(texts);
        return status;
    }
    json_t *root = json_object();
    tdm_json_set(&root, "texts", texts);
    return tdm_print_json(root, err);
}

const struct tdm_command tdm_cmd_data = {
    .name = "data",
    .usage = "data WHAT... [--context N] [--model MODEL] [--json]",
    .summary = "what a text holds: tokens, documents, their lengths, what packing wastes",
    .options = options,
    .notes =
        "WHAT is what run --tokens takes: a file of tokens, with a prefix (uint16:, uint32:, "
        "bytes:) where its format does not tell itself; several, with commas between them, or a "
        "quoted pattern, are one text. A file of no known format is read as bytes.\n"
        "\n"
        "Lengths are those of documents, for data of llm.c and Megatron-LM. Packed: how many "
        "sequences of N tokens hold all documents, each whole, placed from the longest to the "
        "shortest where the least room is left; documents longer than a sequence are cut. Waste: "
        "the share of their tokens that stays empty.\n"
        "\n"
        "Examples:\n"
        "  tidemark data corpus_text_document --context 8K..128K\n"
        "  tidemark data 'shards/train-*.bin' --model qwen2.5-7b\n",
    .arguments = TDM_VALUES_FILES,
    .run = run,
};
