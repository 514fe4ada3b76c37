/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of a step as comma-separated values (RFC 4180). */
#include "exports/export.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A name, in quotes if it has a comma. None has a quote. */
static void write_name(FILE *out, const char *name)
{
    const char *quote = strchr(name, ',') != NULL ? "\"" : "";
    fprintf(out, ",%s%s%s", quote, name, quote);
}

/* A number, or nothing. */
static void write_number(FILE *out, uint32_t number)
{
    if (number == TDM_NONE)
        fputc(',', out);
    else
        fprintf(out, ",%" PRIu32, number);
}

static void write_times(FILE *out, const struct tdm_step *step, enum tdm_plot_side side,
                        uint32_t number)
{
    const struct tdm_timeline_op *op = tdm_timeline_op(&step->plot->panels[side].timeline, number);
    if (op == NULL) {
        fputs(",,,", out);
        return;
    }
    fprintf(out, ",%lld,%lld", llround(op->start * 1e9), llround(op->end * 1e9));
    write_number(out, step->ops[number].waited_for[side]);
}

enum tdm_status tdm_export_csv(const struct tdm_step *step, FILE *out, struct tdm_error *err)
{
    const struct tdm_topology *topology = &step->plot->topology;
    (void)err;
    fputs("op,phase,kind,part,lane,layer,chunk,tokens,flops,bytes,tensor,tensor_layer,"
          "tensor_chunk,buffer,slot,predicted_start_ns,predicted_end_ns,predicted_waited_for,"
          "start_ns,end_ns,waited_for\n",
          out);
    for (uint32_t number = 0; number < step->op_count && !ferror(out); number++) {
        const struct tdm_timeline_op *op =
            tdm_timeline_op(&step->plot->panels[TDM_PREDICTED].timeline, number);
        const struct tdm_step_op *detail = &step->ops[number];
        const struct tdm_step_tensor *tensor = &detail->tensor;
        fprintf(out, "%" PRIu32 ",%s,%s,%s,%s", number, tdm_phase_name(op->phase),
                tdm_op_kind_name(op->kind),
                detail->part < TDM_PARTS ? tdm_part_name((enum tdm_part)detail->part) : "",
                tdm_lane_name(topology, op->lane));
        write_number(out, op->layer);
        write_number(out, op->chunk);
        fprintf(out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, detail->tokens, detail->flops,
                detail->bytes);
        if (tensor->buffer == TDM_NONE) {
            fputs(",,,,,", out);
        } else {
            write_name(out, tdm_content_name((enum tdm_content)tensor->content));
            write_number(out, tensor->layer);
            write_number(out, tensor->chunk);
            fprintf(out, ",%s,%" PRIu32, step->program->buffers[tensor->buffer].name, tensor->slot);
        }
        write_times(out, step, TDM_PREDICTED, number);
        write_times(out, step, TDM_MEASURED, number);
        fputc('\n', out);
    }
    return TDM_OK;
}
