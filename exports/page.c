/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a step as a page: facts as JSON, arrays in base64, script and style. */
#include "exports/page.h"

#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Arrays: a script element that no browser runs, with its type and length. */

struct base64 {
    FILE *out;
    uint32_t bits; /* bytes that are not written yet */
    int bytes;     /* their number */
};

static void put_base64(struct base64 *base64, const void *data, size_t bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *next = data;
    for (size_t i = 0; i < bytes; i++) {
        base64->bits = base64->bits << 8 | next[i];
        if (++base64->bytes < 3)
            continue;
        const char four[4] = {digits[base64->bits >> 18], digits[base64->bits >> 12 & 63],
                              digits[base64->bits >> 6 & 63], digits[base64->bits & 63]};
        fwrite(four, 1, 4, base64->out);
        base64->bits = 0;
        base64->bytes = 0;
    }
}

static void end_base64(struct base64 *base64)
{
    const char zero[2] = {0, 0};
    const int missing = (3 - base64->bytes) % 3;
    put_base64(base64, zero, (size_t)missing); /* readers know the length */
}

/* The element `i` of an array, as its type: of at most 8 bytes. */
typedef void (*page_element)(const struct tdm_step *step, int side, size_t i, void *element);

struct page_array {
    const char *name;
    enum { U8, U16, U32, F32, F64 } type;
    page_element element;
};

static const struct {
    const char *name;
    size_t bytes;
} types[] = {{"Uint8Array", 1},
             {"Uint16Array", 2},
             {"Uint32Array", 4},
             {"Float32Array", 4},
             {"Float64Array", 8}};

static void write_array(FILE *out, const struct tdm_step *step, const struct page_array *array,
                        int side, size_t count)
{
    struct base64 base64 = {.out = out};
    fprintf(out, "<script type=\"text/plain\" id=\"%s", array->name);
    if (side >= 0)
        fprintf(out, "%d", side);
    fprintf(out, "\" data-type=\"%s\" data-count=\"%zu\">", types[array->type].name, count);
    for (size_t i = 0; i < count && !ferror(out); i++) {
        unsigned char element[8];
        array->element(step, side, i, element);
        put_base64(&base64, element, types[array->type].bytes);
    }
    end_base64(&base64);
    fputs("</script>\n", out);
}

/* Browsers run on little-endian machines; so do we. */
#define ELEMENT(name, type, value)                                                   \
    static void name(const struct tdm_step *step, int side, size_t i, void *element) \
    {                                                                                \
        (void)side;                                                                  \
        const type number = (type)(value);                                           \
        memcpy(element, &number, sizeof(number));                                    \
    }
#define OP(step, i) (&(step)->plot->panels[TDM_PREDICTED].timeline.ops[i])
#define TIMED(step, side, i) tdm_timeline_op(&(step)->plot->panels[side].timeline, i)
#define SHORT(number) ((number) < UINT16_MAX ? (number) : UINT16_MAX) /* the last one: none */

ELEMENT(op_kind, uint8_t, OP(step, i)->kind)
ELEMENT(op_phase, uint8_t, OP(step, i)->phase)
ELEMENT(op_lane, uint8_t, OP(step, i)->lane)
ELEMENT(op_layer, uint16_t, SHORT(OP(step, i)->layer))
ELEMENT(op_chunk, uint32_t, OP(step, i)->chunk)
ELEMENT(op_part, uint8_t, step->ops[i].part)
ELEMENT(op_bytes, double, step->ops[i].bytes)
ELEMENT(op_flops, float, step->ops[i].flops)
ELEMENT(op_tokens, uint32_t, step->ops[i].tokens)
ELEMENT(tensor_content, uint8_t, step->ops[i].tensor.content)
ELEMENT(tensor_part, uint8_t, step->ops[i].tensor.part)
ELEMENT(tensor_layer, uint16_t, SHORT(step->ops[i].tensor.layer))
ELEMENT(tensor_chunk, uint32_t, step->ops[i].tensor.chunk)
ELEMENT(tensor_buffer, uint32_t, step->ops[i].tensor.buffer)
ELEMENT(op_waited, uint32_t, step->ops[i].waited_for[side])

static void op_start(const struct tdm_step *step, int side, size_t i, void *element)
{
    const struct tdm_timeline_op *op = TIMED(step, side, i);
    const double seconds = op == NULL ? NAN : op->start;
    memcpy(element, &seconds, sizeof(seconds));
}

static void op_seconds(const struct tdm_step *step, int side, size_t i, void *element)
{
    const struct tdm_timeline_op *op = TIMED(step, side, i);
    const float seconds = op == NULL ? 0 : (float)(op->end - op->start);
    memcpy(element, &seconds, sizeof(seconds));
}

ELEMENT(life_first, uint32_t, step->lives[i].first_op)
ELEMENT(life_last, uint32_t, step->lives[i].last_op)
ELEMENT(life_offset, double, step->lives[i].offset)
ELEMENT(life_bytes, double, step->lives[i].bytes)
ELEMENT(life_buffer, uint32_t, step->lives[i].tensor.buffer)
ELEMENT(life_slot, uint32_t, step->lives[i].tensor.slot)
ELEMENT(life_content, uint8_t, step->lives[i].tensor.content)
ELEMENT(life_part, uint8_t, step->lives[i].tensor.part)
ELEMENT(life_layer, uint16_t, SHORT(step->lives[i].tensor.layer))
ELEMENT(life_chunk, uint32_t, step->lives[i].tensor.chunk)

static const struct page_array of_ops[] = {{"op_kind", U8, op_kind},
                                           {"op_phase", U8, op_phase},
                                           {"op_lane", U8, op_lane},
                                           {"op_layer", U16, op_layer},
                                           {"op_chunk", U32, op_chunk},
                                           {"op_part", U8, op_part},
                                           {"op_bytes", F64, op_bytes},
                                           {"op_flops", F32, op_flops},
                                           {"op_tokens", U32, op_tokens},
                                           {"tensor_content", U8, tensor_content},
                                           {"tensor_part", U8, tensor_part},
                                           {"tensor_layer", U16, tensor_layer},
                                           {"tensor_chunk", U32, tensor_chunk},
                                           {"tensor_buffer", U32, tensor_buffer}};
static const struct page_array of_sides[] = {
    {"op_start", F64, op_start}, {"op_seconds", F32, op_seconds}, {"op_waited", U32, op_waited}};
static const struct page_array of_lives[] = {
    {"life_first", U32, life_first},    {"life_last", U32, life_last},
    {"life_offset", F64, life_offset},  {"life_bytes", F64, life_bytes},
    {"life_buffer", U32, life_buffer},  {"life_slot", U32, life_slot},
    {"life_content", U8, life_content}, {"life_part", U8, life_part},
    {"life_layer", U16, life_layer},    {"life_chunk", U32, life_chunk}};
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* When each op changes memory; an op without a time has that of the one before. */
static enum tdm_status write_clock(FILE *out, const struct tdm_step *step, int side,
                                   struct tdm_error *err)
{
    const struct tdm_timeline *timeline = &step->plot->panels[side].timeline;
    double *seconds = malloc((timeline->op_count + 1) * sizeof(*seconds)), now = 0;
    struct base64 base64 = {.out = out};
    if (seconds == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu times", timeline->op_count);
    tdm_timeline_op_clock(timeline, seconds);
    fprintf(out,
            "<script type=\"text/plain\" id=\"op_clock%d\" data-type=\"Float64Array\" "
            "data-count=\"%" PRIu32 "\">",
            side, step->op_count);
    for (size_t op = 0, next = 0; op < step->op_count; op++) {
        if (next < timeline->op_count && timeline->ops[next].number == op)
            now = seconds[next++];
        put_base64(&base64, &now, sizeof(now));
    }
    end_base64(&base64);
    fputs("</script>\n", out);
    free(seconds);
    return TDM_OK;
}

/* Facts. */

static json_t *text(const char *words)
{
    char shown[TDM_TEXT_SHOWN];
    return json_string(tdm_text_shown(words, shown));
}

static json_t *number_or_null(double number)
{
    return isfinite(number) ? json_real(number) : json_null();
}

#define NAMES(count, name)                                  \
    __extension__({                                         \
        json_t *list = json_array();                        \
        for (uint32_t at = 0; at < (uint32_t)(count); at++) \
            tdm_json_add(&list, text(name));                \
        list;                                               \
    })

static json_t *places(const struct tdm_plot *plot)
{
    json_t *list = json_array();
    for (uint32_t place = 0; place < plot->topology.place_count; place++)
        tdm_json_add(&list, json_pack("{s:o, s:I, s:I, s:I}", "name",
                                      text(tdm_place_name(&plot->topology, (enum tdm_place)place)),
                                      "arena", (json_int_t)plot->arena_bytes[place], "runtime",
                                      (json_int_t)plot->runtime_bytes[place], "limit",
                                      (json_int_t)plot->limit_bytes[place]));
    return list;
}

static json_t *buffers(const struct tdm_program *program)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < program->buffer_count; i++)
        tdm_json_add(&list, json_pack("{s:o, s:i, s:i}", "name", text(program->buffers[i].name),
                                      "place", (int)program->buffers[i].place, "category",
                                      (int)program->buffers[i].category));
    return list;
}

/* The sides that are known, with the peak bytes of values, as predicted and as observed. */
static json_t *sides(const struct tdm_plot *plot)
{
    json_t *list = json_array();
    for (int side = 0; side < TDM_PLOT_SIDES; side++) {
        const struct tdm_plot_panel *panel = &plot->panels[side];
        if (!panel->known)
            continue;
        json_t *peaks = json_array();
        for (uint32_t place = 0; place < plot->topology.place_count; place++)
            tdm_json_add(&peaks, panel->peak[place].known
                                     ? json_integer((json_int_t)panel->peak[place].value_bytes)
                                     : json_null());
        tdm_json_add(&list, json_pack("{s:i, s:s, s:f, s:o}", "number", side, "name",
                                      side == TDM_PREDICTED ? "predicted" : "measured", "end",
                                      panel->end_seconds, "peaks", peaks));
    }
    return list;
}

static json_t *steps(const struct tdm_step *step)
{
    json_t *list = json_array();
    for (size_t i = 0; i < step->step_count; i++) {
        const struct tdm_trace_step_row *row = &step->steps[i];
        tdm_json_add(&list, json_pack("[I, o, o, o, I]", (json_int_t)row->step,
                                      number_or_null(row->loss), number_or_null(row->gradient_norm),
                                      number_or_null(row->seconds), (json_int_t)row->tokens));
    }
    return list;
}

static json_t *evaluations(const struct tdm_step *step)
{
    json_t *list = json_array();
    for (size_t i = 0; i < step->evaluation_count; i++)
        tdm_json_add(&list, json_pack("[I, o, o]", (json_int_t)step->evaluations[i].step,
                                      number_or_null(step->evaluations[i].loss),
                                      text(step->evaluations[i].text)));
    return list;
}

/* JSON inside HTML: nothing in it may look like a tag. */
static int write_escaped(const char *bytes, size_t count, void *out)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] == '<')
            fputs("\\u003c", out);
        else
            fputc(bytes[i], out);
    }
    return 0;
}

static enum tdm_status write_facts(const struct tdm_step *step, FILE *out, struct tdm_error *err)
{
    const struct tdm_plot *plot = step->plot;
    json_t *facts = json_pack(
        "{s:o, s:o, s:i, s:b, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "title", text(plot->title), "subtitle", text(plot->subtitle), "step", (int)plot->step,
        "unfinished", plot->unfinished, "layers", (int)plot->schedule->model->layers, "places",
        places(plot), "lanes",
        NAMES(plot->topology.lane_count, tdm_lane_name(&plot->topology, (enum tdm_lane)at)),
        "kinds", NAMES(TDM_OP_KINDS, tdm_op_kind_name((enum tdm_op_kind)at)), "groups",
        NAMES(TDM_OP_GROUPS, tdm_op_group_name((enum tdm_op_group)at)), "groupOfKind",
        NAMES(TDM_OP_KINDS, tdm_op_group_name(tdm_op_group_of((enum tdm_op_kind)at))), "phases",
        NAMES(TDM_PHASES, tdm_phase_name((enum tdm_phase)at)), "categories",
        NAMES(TDM_CATEGORIES, tdm_category_name((enum tdm_category)at)), "contents",
        NAMES(TDM_CONTENTS, tdm_content_name((enum tdm_content)at)), "parts",
        NAMES(TDM_PARTS, tdm_part_name((enum tdm_part)at)), "buffers", buffers(step->program),
        "sides", sides(plot), "steps", steps(step));
    const char *failed = tdm_trace_failed(step->steps, step->step_count);
    tdm_json_set(&facts, "evaluations", evaluations(step));
    tdm_json_set(&facts, "failed", failed == NULL ? json_null() : json_string(failed));
    bool made = facts != NULL;
    fputs("<script type=\"application/json\" id=\"facts\">", out);
    if (made)
        made = json_dump_callback(facts, write_escaped, out, JSON_COMPACT) == 0;
    fputs("</script>\n", out);
    json_decref(facts);
    return made ? TDM_OK : tdm_fail(err, TDM_NO_MEMORY, "out of memory for the facts of a page");
}

enum tdm_status tdm_page_write(const struct tdm_step *step, FILE *out, struct tdm_error *err)
{
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width\">\n<title>tidemark</title>\n"
            "<style>\n%s</style>\n</head>\n<body>\n",
            tdm_page_css);
    enum tdm_status status = write_facts(step, out, err);
    for (size_t i = 0; i < LENGTH(of_ops); i++)
        write_array(out, step, &of_ops[i], -1, step->op_count);
    for (int side = 0; side < TDM_PLOT_SIDES && status == TDM_OK; side++) {
        if (!step->plot->panels[side].known)
            continue;
        for (size_t i = 0; i < LENGTH(of_sides); i++)
            write_array(out, step, &of_sides[i], side, step->op_count);
        status = write_clock(out, step, side, err);
    }
    for (size_t i = 0; i < LENGTH(of_lives); i++)
        write_array(out, step, &of_lives[i], -1, step->life_count);
    fprintf(out, "<script>\n%s</script>\n<script>\n%s</script>\n</body>\n</html>\n",
            tdm_page_data_js, tdm_page_view_js);
    return status;
}
