/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/teams: what many GPUs would do, by simulation alone.
 *
 *     bench/teams [--nodes] [--published]
 *
 * --nodes: a plan of Qwen2.5-7B for two nodes of 8 H200 that keeps no K and V, and its nest on 8
 * and 64 nodes, with as many times the context: step, MFU, what of the exchanges is awaited, and
 * each GPU's memory. Where K, V or queries go from rank to rank, up to 8 nodes: a round takes as
 * many hops as there are ranks.
 * --published: runs that BurstEngine and Megatron-LM published (tests/data), their peaks as
 * published and as `tidemark predict` has them, and what a plan of tidemark for the same GPUs
 * takes. These plans take minutes.
 *
 * Without an option both. tidemark is found through PATH; run it in the source folder.
 */
#include "bench/commands.h"

#include "schedule/cost.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "simulator/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define STEM "/tmp/tidemark-teams"

/* ---- nodes ---- */

#define NODE_RANKS 8u
#define HEAD_RANKS 4u /* in a row divide the heads, where rows exchange something else */
#define FIRST_NODES 2u
#define FIRST_CONTEXT "256K"
#define MOST_RING_NODES 8u

/* The most that a rank waits for its exchanges: for other ranks, or for what does not overlap. */
static double awaited_seconds(const struct tdm_team_use *team)
{
    double most = 0;
    for (uint32_t i = 0; i < team->simulated; i++)
        most = fmax(most, team->of[i].exposed_seconds);
    return most;
}

/* Prints the row of a schedule with `nodes` nodes and an exchange, if that is legal. */
static enum tdm_status print_nodes(struct tdm_schedule *schedule, uint32_t nodes,
                                   enum tdm_exchange_kind exchange, struct tdm_error *err)
{
    struct tdm_simulation s;
    struct tdm_program *program = NULL;
    struct tdm_error refusal;
    schedule->ranks = nodes * NODE_RANKS;
    schedule->exchange = exchange;
    schedule->head_ranks = tdm_exchange_kind_has_rows(exchange) ? HEAD_RANKS : 0;
    if (tdm_schedule_check(schedule, "teams", &refusal) != TDM_OK)
        return TDM_OK;
    enum tdm_status status = tdm_program_lower(schedule, &program, err);
    if (status == TDM_OK)
        status = tdm_simulate(program, NULL, NULL, &s, err);
    if (status == TDM_OK)
        printf("| %u | %.3gM | %s | %.1f s | %.1f%% | %.1f%% | %.1f GiB |\n", nodes,
               (double)tdm_schedule_tokens(schedule) / 1048576.0, tdm_exchange_kind_name(exchange),
               s.step_seconds,
               100 * tdm_model_flops(schedule) /
                   (s.step_seconds * schedule->machine->peak_flops * schedule->ranks),
               100 * awaited_seconds(&s.team) / s.step_seconds,
               (double)s.used_peak_bytes[TDM_DEVICE] / GIB);
    fflush(stdout);
    tdm_program_free(program);
    return status;
}

static enum tdm_status print_all_nodes(struct tdm_error *err)
{
    static const uint32_t nodes[] = {2, 8, 64};
    struct tdm_schedule *schedule = NULL;
    int failed;
    json_decref(tdm_bench_plan(STEM,
                               "qwen2.5-7b --machine h200 --context " FIRST_CONTEXT
                               " --ranks 16 --ranks-per-node 8 --optimizer adamw-bf16-moments "
                               "--set exchange=gather --set kv=recompute",
                               &failed));
    if (failed != 0)
        return tdm_fail(err, TDM_INPUT, "tidemark plan failed with status %d", failed);
    enum tdm_status status = tdm_schedule_load(STEM ".json", &schedule, err);
    const uint64_t tokens = status == TDM_OK ? tdm_schedule_tokens(schedule) : 0;
    printf("\n| nodes | context | exchange | step | MFU | awaited | device, each |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t n = 0; n < sizeof(nodes) / sizeof(nodes[0]) && status == TDM_OK; n++)
        for (int kind = 0; kind < TDM_EXCHANGES && status == TDM_OK; kind++) {
            schedule->exchange = (enum tdm_exchange_kind)kind;
            if (tdm_schedule_rings(schedule) && nodes[n] > MOST_RING_NODES)
                continue;
            status = tdm_schedule_set_sequences(schedule, 1, tokens / FIRST_NODES * nodes[n], err);
            if (status == TDM_OK)
                status = print_nodes(schedule, nodes[n], (enum tdm_exchange_kind)kind, err);
        }
    tdm_schedule_free(schedule);
    remove(STEM ".json");
    return status;
}

/* ---- published runs ---- */

static const struct published {
    const char *name, *model, *machine;
    unsigned gpus;
    const char *context;
    double gib;          /* published peak of a GPU */
    const char *predict; /* arguments of `tidemark predict` */
    const char *figure;  /* the published figure is this one of the prediction */
} published[] = {
    {"BurstEngine, 14B", "burst-14b", "a100-80", 32, "1M", 53.96e9 / GIB, "--method burst",
     "peak_reserved_bytes"},
    {"Megatron-LM, Llama 3 70B, 12 layers, tp2 cp4",
     "tests/data/configs/llama-3-70b-12-layers.json", "b200", 8, "128K", 112.67,
     "--method megatron-cp --set tensor_model_parallel_size=2 --set context_parallel_size=4 "
     "--set sequence_parallel=yes --set use_distributed_optimizer=yes --set num_microbatches=4 "
     "--set cross_entropy_loss_fusion=yes --set cross_entropy_fusion_impl=te "
     "--set cp_comm_type=a2a",
     "peak_allocated_bytes"},
    {"Megatron-LM, Llama 3 405B, 4 layers, tp2 cp4",
     "tests/data/configs/llama-3-405b-4-layers.json", "b200", 8, "128K", 118.13,
     "--method megatron-cp --set tensor_model_parallel_size=2 --set context_parallel_size=4 "
     "--set sequence_parallel=yes --set use_distributed_optimizer=yes --set num_microbatches=4 "
     "--set cross_entropy_loss_fusion=yes --set cross_entropy_fusion_impl=te "
     "--set cp_comm_type=a2a",
     "peak_allocated_bytes"},
};

static void print_published(const struct published *row)
{
    char line[2048];
    int status;
    snprintf(line, sizeof(line),
             "tidemark predict %s --machine %s --gpus %u --context %s %s --json 2>/dev/null",
             row->model, row->machine, row->gpus, row->context, row->predict);
    json_t *other = tdm_bench_command(line, &status);
    printf("| %s | %u %s | %s | %.1f GiB | %.1f GiB | ", row->name, row->gpus, row->machine,
           row->context, row->gib,
           other == NULL ? NAN : tdm_bench_number(other, row->figure) / GIB);
    fflush(stdout);
    snprintf(line, sizeof(line), "%s --machine %s --ranks %u --ranks-per-node 8 --context %s",
             row->model, row->machine, row->gpus, row->context);
    json_t *own = tdm_bench_plan(STEM, line, &status);
    if (own == NULL || status != 0)
        printf("no plan | | |\n");
    else
        printf("%.1f GiB | %.4g s | %.1f%% |\n", tdm_bench_number(own, "peak_bytes") / GIB,
               tdm_bench_number(own, "step_seconds"), 100 * tdm_bench_number(own, "mfu"));
    fflush(stdout);
    json_decref(other);
    json_decref(own);
    remove(STEM ".json");
}

int main(int argc, char **argv)
{
    const bool nodes = argc == 1 || strcmp(argv[1], "--nodes") == 0;
    const bool others = argc == 1 || strcmp(argv[1], "--published") == 0;
    struct tdm_error err;
    if (argc > 2 || (!nodes && !others)) {
        fprintf(stderr, "usage: bench/teams [--nodes | --published]\n");
        return 2;
    }
    if (nodes && print_all_nodes(&err) != TDM_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    if (!others)
        return 0;
    printf("\n| run | GPUs | context | published | predicted | tidemark | step | MFU |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++)
        print_published(&published[i]);
    return 0;
}
