/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The profile run: vLLM computes max_num_batched_tokens tokens of max_num_seqs sequences and
 * samples from all of them, and reserves the peak (profile_run and _dummy_sampler_run in
 * vllm/v1/worker/gpu_model_runner.py; vllm/worker/model_runner.py before V1). The peak is in a
 * layer or in the sampler, whichever is higher.
 */
#include "methods/serving/parts.h"

#include "base/size.h"

#define BF16_BYTES UINT64_C(2)
#define MOST_BROUGHT_BACK UINT64_C(65536)

/* Bytes of a logit at the peak of sampling with top-p and top-k, which is in torch.sort
 * (_apply_top_k_top_p): logits in bf16 and in fp32; sorted logits and int64 indices; and inside the
 * sort int64 positions and the other half of CUB's double buffers, of logits and of positions. */
#define SORT_BYTES (2 + 4 + 4 + 8 + 8 + 4 + 8)
/* By FlashInfer: logits in bf16 and in fp32, masked logits, probabilities. As many by a kernel that
 * masks in place (since 0.17): probabilities, and the exponential noise that they are divided by.
 */
#define UNSORTED_BYTES (2 + 4 + 4 + 4)

/* Hidden states that live at the peak of an MLP: its input, the residual, its output; where ranks
 * add their outputs, the sum too, and the sum of the attention, which NCCL's wrapper holds on to.
 */
static uint64_t hidden_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    return (serving->tensor_ranks > 1 ? 5 : 3) * BF16_BYTES * model->hidden;
}

/* For each token, what experts compute in: one workspace for all layers, which stays once it was
 * made (since 0.17). TritonExperts.workspace_shapes in
 * model_executor/layers/fused_moe/fused_moe.py: of each chosen expert the product or what comes
 * back, and joint gate and up or what goes in. Experts in MXFP4 have none. */
static uint64_t kept_expert_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    uint64_t width = model->experts.intermediate / serving->tensor_ranks;
    if (serving->version < TDM_VLLM_0_17 || model->experts.count == 0 ||
        serving->weights == TDM_SERVED_MXFP4)
        return 0;
    return model->experts.per_token * BF16_BYTES *
           (tdm_most(width, model->hidden) + tdm_most(2 * width, model->hidden));
}

/* Joint gate and up, and their product; without a gate, up and its activation. Of a mixture: those
 * of the chosen experts, the former also as their outputs (fused_moe). */
static uint64_t mlp_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                          bool experts)
{
    if (!experts)
        return (model->parts & TDM_PART_PLAIN_MLP ? 2 : 3) * BF16_BYTES * model->intermediate /
               serving->tensor_ranks;
    uint64_t width = model->experts.intermediate / serving->tensor_ranks;
    uint64_t kept = kept_expert_bytes(model, serving);
    if (kept > 0)
        return kept + BF16_BYTES * model->hidden;
    /* Shared experts run first, and their output waits for that of the others. */
    uint64_t shared = model->experts.shared > 0 ? BF16_BYTES * model->hidden : 0;
    return shared +
           model->experts.per_token * BF16_BYTES * (tdm_most(2 * width, model->hidden) + width);
}

/* The profile run has no attention metadata, so of latent attention only products run: q, what k, v
 * and it come from, and the output. */
static uint64_t latent_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    const struct tdm_latent *l = &model->latent;
    uint64_t heads = model->query_heads / serving->tensor_ranks;
    return BF16_BYTES * (heads * (model->head_dim + l->value_dim) + l->q_rank +
                         2 * (l->kv_rank + l->rotary_dim));
}

/* From 0.11 on the profile run makes room for keys and values of the longest part of a context that
 * is brought back from the cache: 8 times max_model_len tokens or 4 blocks a sequence, at most 64K
 * (v1/attention/backends/mla/common.py). */
static uint64_t brought_back_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                                   uint64_t sequences, uint64_t context)
{
    const struct tdm_latent *l = &model->latent;
    if (l->kv_rank == 0 || serving->version < TDM_VLLM_0_11)
        return 0;
    uint64_t blocks = sequences * tdm_serving_block_tokens(model, serving);
    uint64_t tokens = tdm_least(tdm_most(8 * context, 4 * blocks), MOST_BROUGHT_BACK);
    return tdm_most(tokens, blocks) * (model->query_heads / serving->tensor_ranks) *
           (l->plain_dim + l->value_dim) * BF16_BYTES;
}

static uint64_t attention_bytes(const struct tdm_model *model, const struct tdm_serving *serving)
{
    if (model->latent.kv_rank > 0)
        return latent_bytes(model, serving);
    uint64_t query = model->query_heads / serving->tensor_ranks * model->head_dim;
    uint64_t key = tdm_serving_kv_heads(model, serving) * model->head_dim;
    return BF16_BYTES * (2 * query + 2 * key); /* q, k, v and the output */
}

/* What the ranks of a prefill send around in a layer, twice: one is used while the next one comes.
 */
static uint64_t passed_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                             uint64_t local_tokens, uint64_t context)
{
    uint64_t heads = model->query_heads / serving->tensor_ranks;
    if (serving->prefill_ranks == 1)
        return 0;
    if (serving->pass == TDM_PASS_KV)
        return 2 * tdm_size_ceil_div(context, serving->prefill_ranks) * 2 * BF16_BYTES *
               tdm_serving_kv_heads(model, serving) * model->head_dim;
    /* Queries; then the parts of all ranks' outputs, with an fp32 LSE for each head. */
    return 2 * local_tokens * BF16_BYTES * heads * model->head_dim +
           serving->prefill_ranks * local_tokens * heads *
               (BF16_BYTES * model->head_dim + sizeof(float));
}

/* K and V of a layer's whole prompt, of which eviction then keeps some. */
static uint64_t prompt_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                             uint64_t context)
{
    if (serving->eviction != TDM_EVICT_H2O && serving->eviction != TDM_EVICT_SNAPKV)
        return 0;
    return tdm_least(serving->prompt_tokens, context) * 2 * BF16_BYTES *
           tdm_serving_kv_heads(model, serving) * model->head_dim;
}

/* Rows of logits that the kernel without a sort works on, one for each program, in a buffer that
 * stays (v1/sample/ops/topk_topp_triton.py). */
static uint64_t program_rows(const struct tdm_gpu_facts *gpu, uint64_t sequences)
{
    uint64_t programs = tdm_least(gpu->multiprocessors, sequences), rows = 1;
    while (rows < programs)
        rows *= 2;
    return tdm_least(rows, gpu->multiprocessors);
}

static uint64_t sampler_bytes(const struct tdm_model *model, const struct tdm_serving *serving,
                              const struct tdm_gpu_facts *gpu, uint64_t sequences, uint64_t tokens)
{
    bool unsorted = serving->version >= TDM_VLLM_0_17 || serving->flashinfer;
    uint64_t logit_bytes = unsorted ? UNSORTED_BYTES : SORT_BYTES;
    uint64_t bytes = sequences * model->vocabulary * logit_bytes;
    if (unsorted && !serving->flashinfer)
        bytes += program_rows(gpu, sequences) * model->vocabulary * sizeof(float);
    if (serving->version >= TDM_VLLM_0_8) /* hidden states of the last tokens, gathered */
        bytes += sequences * BF16_BYTES * model->hidden;
    return bytes + tokens * (BF16_BYTES * model->hidden + kept_expert_bytes(model, serving)) +
           gpu->cublas_workspace_bytes;
}

void tdm_serving_profile(const struct tdm_model *model, const struct tdm_serving *serving,
                         const struct tdm_serving_answer *answer, uint64_t context, uint32_t stage,
                         const struct tdm_gpu_facts *gpu, struct tdm_serving_rank *rank)
{
    struct tdm_serving_layers layers = tdm_serving_stage(model, serving, stage);
    uint64_t tokens = tdm_size_ceil_div(answer->batched_tokens, serving->prefill_ranks);
    uint64_t back = brought_back_bytes(model, serving, answer->sequences, context);
    uint64_t widest = 0, received = stage > 0 ? 2 * BF16_BYTES * model->hidden : 0;
    for (uint32_t layer = layers.first; layer < layers.end; layer++)
        widest =
            tdm_most(widest, tdm_most(mlp_bytes(model, serving, model->layer_kinds[layer].experts),
                                      tdm_serving_has_state(&model->layer_kinds[layer])
                                          ? tdm_serving_mixer_bytes(model, serving)
                                          : attention_bytes(model, serving)));
    uint64_t layer_bytes =
        tdm_most(tokens * widest, tokens * attention_bytes(model, serving) + back);
    rank->forward_bytes = layer_bytes + tokens * (hidden_bytes(model, serving) + received) +
                          passed_bytes(model, serving, tokens, context) +
                          prompt_bytes(model, serving, context) + gpu->cublas_workspace_bytes;
    if (stage + 1 == serving->pipeline_ranks)
        rank->sampler_bytes = sampler_bytes(
            model, serving, gpu, tdm_least(answer->sequences, answer->batched_tokens), tokens);
}
