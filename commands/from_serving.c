/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `vllm serve` (vllm/engine/arg_utils.py) and of `sglang.launch_server`
 * (sglang/srt/server_args.py), as commands and scripts have them. */
#include "commands/from_rules.h"

#include <stdlib.h>
#include <string.h>

#define NO_MEMORY TDM_FROM_NO_MEMORY
#define OF_PICTURES "the language model alone is predicted"
#define NO_DRAFT "the draft model and its cache are not counted"

/* fp16 and bf16 are as wide. */
static enum tdm_status read_dtype(const struct tdm_from_reading *r, const char *path,
                                  const json_t *value)
{
    static const char *const known[] = {"auto", "bfloat16", "float16", "half"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (tdm_from_is(value, known[i]))
            return tdm_from_note(r, path, "two bytes, as is assumed");
    return tdm_from_bad(r, path, value, "auto, bfloat16, float16 and half are known");
}

/* "32k" is 32,000 tokens, "25.6k" 25,600, and "32K" 32,768 (utils/argparse_utils.py
 * human_readable_int). */
static enum tdm_status read_length(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value)
{
    static const struct {
        const char *unit;
        double tokens;
        bool divides; /* may have digits behind a point */
    } units[] = {{"k", 1e3, true}, {"m", 1e6, true}, {"K", 1024, false}, {"M", 1048576, false}};
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    const size_t whole = strspn(text, "0123456789");
    const bool has_point = whole > 0 && text[whole] == '.';
    const size_t digits = has_point ? strspn(text + whole + 1, "0123456789") : 0;
    const char *end = text + whole + (digits > 0 ? 1 + digits : 0);
    const double number = whole > 0 ? strtod(text, NULL) : 0;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (number * units[i].tokens >= 1 && number < 1e6 && (digits == 0 || units[i].divides) &&
            strcmp(end, units[i].unit) == 0) {
            r->from->context = (uint64_t)(number * units[i].tokens);
            return TDM_OK;
        }
    return json_is_string(value)
               ? tdm_from_bad(r, path, value, "it must be a whole number, or one with k, m, K or M")
               : tdm_from_count(r, path, value, &r->from->context);
}

static enum tdm_status read_no_prefixes(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value)
{
    (void)path;
    return json_is_false(value) ? TDM_OK : tdm_from_pair(r, "enable_prefix_caching", "no");
}

static enum tdm_status read_replicas(const struct tdm_from_reading *r, const char *path,
                                     const json_t *value)
{
    uint64_t count;
    enum tdm_status status = tdm_from_count(r, path, value, &count);
    if (status != TDM_OK)
        return status;
    return count > 1 ? tdm_from_lack(r, path,
                                     "one replica is predicted, which shares no experts with "
                                     "others")
                     : tdm_from_note(r, path, NO_MEMORY);
}

static enum tdm_status settle_vllm(const struct tdm_from_reading *r)
{
    r->from->method = "vllm";
    return TDM_OK;
}

static enum tdm_status settle_sglang(const struct tdm_from_reading *r)
{
    r->from->method = "sglang";
    return TDM_OK;
}

static const struct tdm_from_rule vllm_rules[] = {
    {"model", SAYS(MODEL)},
    {"version", SET "version"},
    {"max_model_len", READ(read_length)},
    {"dtype", READ(read_dtype)},
    {"tensor_parallel_size", SET "tensor_parallel_size"},
    {"pipeline_parallel_size", SET "pipeline_parallel_size"},
    {"decode_context_parallel_size", SET "decode_context_parallel_size"},
    {"prefill_context_parallel_size", SET "prefill_context_parallel_size"},
    {"gpu_memory_utilization", SET "gpu_memory_utilization"},
    {"max_num_seqs", SET "max_num_seqs"},
    {"max_num_batched_tokens", SET "max_num_batched_tokens"},
    {"enable_chunked_prefill", SET "enable_chunked_prefill"},
    {"block_size", SET "block_size"},
    {"kv_cache_dtype", SET "kv_cache_dtype"},
    {"quantization", SET "quantization"},
    {"enforce_eager", SET "enforce_eager"},
    {"disable_hybrid_kv_cache_manager", SET "disable_hybrid_kv_cache_manager"},
    {"enable_lora", SET "enable_lora"},
    {"max_loras", SET "max_loras"},
    {"max_lora_rank", SET "max_lora_rank"},
    {"lora_modules", IGNORE "enable_lora and its keys make the room"},
    {"data_parallel_size", READ(read_replicas)},
    {"data_parallel_*", IGNORE "data_parallel_size says it"},
    {"enable_expert_parallel", LACK "experts are predicted as divided by their width"},
    {"enable_eplb", LACK "no expert is predicted twice"},
    {"speculative_*", LACK NO_DRAFT},
    {"cpu_offload_gb", LACK "all weights are predicted on the GPU"},
    {"num_gpu_blocks_override", LACK "as many blocks are predicted as there is room for"},
    {"kv_cache_memory*", LACK "the cache is what gpu_memory_utilization leaves"},
    {"limit_mm_per_prompt", IGNORE OF_PICTURES},
    {"mm_*", IGNORE OF_PICTURES},
    {"allowed_local_media_path", IGNORE OF_PICTURES},
    {"swap_space", IGNORE "of the host"},
    {"kv_transfer_config", IGNORE "its buffers are of the host"},
    {"served_model_name", IGNORE NO_MEMORY},
    {"trust_remote_code", IGNORE NO_MEMORY},
    {"tokenizer*", IGNORE NO_MEMORY},
    {"load_format", IGNORE NO_MEMORY},
    {"download_dir", IGNORE NO_MEMORY},
    {"revision", IGNORE NO_MEMORY},
    {"config_format", IGNORE NO_MEMORY},
    {"seed", IGNORE NO_MEMORY},
    {"host", IGNORE NO_MEMORY},
    {"port", IGNORE NO_MEMORY},
    {"api_*", IGNORE NO_MEMORY},
    {"uvicorn_log_level", IGNORE NO_MEMORY},
    {"root_path", IGNORE NO_MEMORY},
    {"allowed_*", IGNORE NO_MEMORY},
    {"ssl_*", IGNORE NO_MEMORY},
    {"chat_template*", IGNORE NO_MEMORY},
    {"response_role", IGNORE NO_MEMORY},
    {"enable_auto_tool_choice", IGNORE NO_MEMORY},
    {"tool_*", IGNORE NO_MEMORY},
    {"reasoning_*", IGNORE NO_MEMORY},
    {"enable_reasoning", IGNORE NO_MEMORY},
    {"generation_config", IGNORE NO_MEMORY},
    {"override_generation_config", IGNORE NO_MEMORY},
    {"guided_*", IGNORE NO_MEMORY},
    {"enable_prefix_caching", SET "enable_prefix_caching"},
    {"no_enable_prefix_caching", READ(read_no_prefixes)},
    {"mamba_ssm_cache_dtype", SET "mamba_ssm_cache_dtype"},
    {"prefix_caching_*", IGNORE NO_MEMORY},
    {"distributed_executor_backend", IGNORE NO_MEMORY},
    {"disable_log_*", IGNORE NO_MEMORY},
    {"enable_log_*", IGNORE NO_MEMORY},
    {"no_enable_log_*", IGNORE NO_MEMORY},
    {"max_log_len", IGNORE NO_MEMORY},
    {"async_scheduling", IGNORE NO_MEMORY},
    {"scheduling_policy", IGNORE NO_MEMORY},
    {"num_scheduler_steps", IGNORE NO_MEMORY},
    {"device", IGNORE NO_MEMORY},
    {"task", IGNORE NO_MEMORY},
    {"runner", IGNORE NO_MEMORY},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_vllm = {
    .name = "vLLM's options", .rules = vllm_rules, .signs = {NULL}, .settle = settle_vllm};

static const struct tdm_from_rule sglang_rules[] = {
    {"model_path", SAYS(MODEL)},
    {"model", SAYS(MODEL)},
    {"context_length", SAYS(CONTEXT)},
    {"dtype", READ(read_dtype)},
    {"tp_size", SET "tp_size"},
    {"tp", SET "tp_size"},
    {"tensor_parallel_size", SET "tp_size"},
    {"pp_size", SET "pp_size"},
    {"pp", SET "pp_size"},
    {"pipeline_parallel_size", SET "pp_size"},
    {"mem_fraction_static", SET "mem_fraction_static"},
    {"max_total_tokens", SET "max_total_tokens"},
    {"chunked_prefill_size", SET "chunked_prefill_size"},
    {"cuda_graph_max_bs", SET "cuda_graph_max_bs"},
    {"page_size", SET "page_size"},
    {"kv_cache_dtype", SET "kv_cache_dtype"},
    {"quantization", SET "quantization"},
    {"dp", READ(read_replicas)},
    {"dp_size", READ(read_replicas)},
    {"data_parallel_size", READ(read_replicas)},
    {"enable_dp_*", REFUSE "attention divided by heads is known"},
    {"moe_dense_tp_size", LACK "all MLPs are predicted as divided"},
    {"ep", LACK "experts are predicted as divided by their width"},
    {"ep_size", LACK "experts are predicted as divided by their width"},
    {"expert_parallel_size", LACK "experts are predicted as divided by their width"},
    {"enable_ep_moe", LACK "experts are predicted as divided by their width"},
    {"speculative_*", LACK NO_DRAFT},
    {"cpu_offload_gb", LACK "all weights are predicted on the GPU"},
    {"enable_lora", LACK "adapters are not counted"},
    {"lora_*", IGNORE "enable_lora says it"},
    {"max_lora*", IGNORE "enable_lora says it"},
    {"enable_hierarchical_cache", IGNORE "of the host"},
    {"hicache_*", IGNORE "of the host"},
    {"disable_cuda_graph*", LACK "graphs are predicted beside the cache"},
    {"disaggregation_*", IGNORE NO_MEMORY},
    {"max_running_requests", IGNORE "the cache does not follow from it"},
    {"max_prefill_tokens", IGNORE "the cache does not follow from it"},
    {"attention_backend", IGNORE "the cache does not follow from it"},
    {"prefill_attention_backend", IGNORE "the cache does not follow from it"},
    {"decode_attention_backend", IGNORE "the cache does not follow from it"},
    {"moe_*", IGNORE "the cache does not follow from it"},
    {"sampling_backend", IGNORE "the cache does not follow from it"},
    {"enable_torch_compile", IGNORE "the cache does not follow from it"},
    {"torch_compile_max_bs", IGNORE "the cache does not follow from it"},
    {"disable_radix_cache", IGNORE "tokens are shared within the cache"},
    {"disable_*", IGNORE NO_MEMORY},
    {"enable_*", IGNORE NO_MEMORY},
    {"served_model_name", IGNORE NO_MEMORY},
    {"trust_remote_code", IGNORE NO_MEMORY},
    {"tokenizer*", IGNORE NO_MEMORY},
    {"load_format", IGNORE NO_MEMORY},
    {"download_dir", IGNORE NO_MEMORY},
    {"revision", IGNORE NO_MEMORY},
    {"random_seed", IGNORE NO_MEMORY},
    {"host", IGNORE NO_MEMORY},
    {"port", IGNORE NO_MEMORY},
    {"nccl_port", IGNORE NO_MEMORY},
    {"nccl_init_addr", IGNORE NO_MEMORY},
    {"dist_init_addr", IGNORE NO_MEMORY},
    {"nnodes", IGNORE "tp_size says it"},
    {"node_rank", IGNORE NO_MEMORY},
    {"api_key", IGNORE NO_MEMORY},
    {"chat_template", IGNORE NO_MEMORY},
    {"tool_call_parser", IGNORE NO_MEMORY},
    {"reasoning_parser", IGNORE NO_MEMORY},
    {"log_*", IGNORE NO_MEMORY},
    {"watchdog_timeout", IGNORE NO_MEMORY},
    {"schedule_*", IGNORE NO_MEMORY},
    {"stream_*", IGNORE NO_MEMORY},
    {"mm_*", IGNORE OF_PICTURES},
    {"device", IGNORE NO_MEMORY},
    {"base_gpu_id", IGNORE NO_MEMORY},
    {.key = NULL},
};

const struct tdm_from_kind tdm_from_sglang = {
    .name = "SGLang's options", .rules = sglang_rules, .signs = {NULL}, .settle = settle_sglang};
