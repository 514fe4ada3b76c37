/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of peft's adapters other than LoRA. Defaults are those of peft 0.21, tuners/NAME/config.py.
 */
#include "methods/method.h"

#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

#define FIELD(name) .field = offsetof(struct tdm_method_settings, name)
#define RANK_MOST 65536u
#define VERA_RANK 256u
#define LYCORIS_RANK 8u /* of LoHa and LoKr */
#define VIRTUAL_TOKENS_MOST 1000000u
#define ENCODER_MOST 1000000u

#define NEEDS_ADAPTER(name, condition, words)                        \
    static bool has_##name(const struct tdm_key_case *c)             \
    {                                                                \
        const enum tdm_adapter adapter = c->settings->torch.adapter; \
        return c->settings->torch.lora_rank > 0 && (condition);      \
    }                                                                \
    static const struct tdm_key_need needs_##name = {"without peft_type=" words, has_##name}

NEEDS_ADAPTER(lokr, adapter == TDM_ADAPTER_LOKR, "LOKR");
NEEDS_ADAPTER(oft, adapter == TDM_ADAPTER_OFT, "OFT");
NEEDS_ADAPTER(boft, adapter == TDM_ADAPTER_BOFT, "BOFT");
NEEDS_ADAPTER(prompt,
              adapter == TDM_ADAPTER_PROMPT || adapter == TDM_ADAPTER_P_TUNING ||
                  adapter == TDM_ADAPTER_PREFIX,
              "PROMPT_TUNING, P_TUNING or PREFIX_TUNING");
NEEDS_ADAPTER(encoder,
              adapter == TDM_ADAPTER_P_TUNING ||
                  (adapter == TDM_ADAPTER_PREFIX &&
                   c->settings->torch.adapter_sizes.prefix_projection),
              "P_TUNING, or PREFIX_TUNING with prefix_projection");
NEEDS_ADAPTER(prefix, adapter == TDM_ADAPTER_PREFIX, "PREFIX_TUNING");

static enum tdm_status read_factor(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    const long factor = strtol(value, &end, 10);
    if (end == value || *end != '\0' || factor == 0 || factor < -1 || factor > RANK_MOST)
        return tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\"; expected -1, or 1 to %u", key->name,
                        value, RANK_MOST);
    settings->torch.adapter_sizes.kron_factor = factor < 0 ? 0 : (uint64_t)factor;
    return TDM_OK;
}

/* Adapters without a rank need no lora_rank. */
static enum tdm_status read_peft_type(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err)
{
    static const struct {
        const char *name;
        uint64_t rank; /* unless it is said */
    } known[TDM_ADAPTERS] = {
        [TDM_ADAPTER_LORA] = {"LORA", 0},
        [TDM_ADAPTER_IA3] = {"IA3", 1},
        [TDM_ADAPTER_VERA] = {"VERA", VERA_RANK},
        [TDM_ADAPTER_NORMS] = {"LN_TUNING", 1},
        [TDM_ADAPTER_LOHA] = {"LOHA", LYCORIS_RANK},
        [TDM_ADAPTER_LOKR] = {"LOKR", LYCORIS_RANK},
        [TDM_ADAPTER_OFT] = {"OFT", 1},
        [TDM_ADAPTER_BOFT] = {"BOFT", 1},
        [TDM_ADAPTER_PROMPT] = {"PROMPT_TUNING", 1},
        [TDM_ADAPTER_P_TUNING] = {"P_TUNING", 1},
        [TDM_ADAPTER_PREFIX] = {"PREFIX_TUNING", 1},
    };
    for (unsigned i = 0; i < TDM_ADAPTERS; i++) {
        if (strcasecmp(value, known[i].name) != 0)
            continue;
        settings->torch.adapter = (enum tdm_adapter)i;
        if (settings->torch.lora_rank == 0)
            settings->torch.lora_rank = known[i].rank;
        return TDM_OK;
    }
    tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\" is not modelled; expected %s", key->name, value,
             key->values);
    return tdm_hint(err, "the nearest that is known is LORA");
}

const struct tdm_method_key tdm_keys_peft[] = {
    {"peft_type", "LORA|IA3|VERA|LN_TUNING|LOHA|LOKR|OFT|BOFT|PROMPT_TUNING|P_TUNING|PREFIX_TUNING",
     "LORA",
     "adapters by peft's names; those of VERA, LOHA and LOKR have a rank, lora_rank; IA3 is of k, v "
     "and down unless lora_targets names others",
     .read = read_peft_type, .needs = {&tdm_need_lora}},
    {"decompose_factor", "-1|N", "-1",
     "of LOKR: a divisor of inputs and outputs, or the first below it; -1: near their roots",
     .read = read_factor, .needs = {&needs_lokr}},
    {"decompose_both", "no|yes", "no",
     "of LOKR: also the first matrix is a product, where it is large", tdm_key_read_switch,
     FIELD(torch.adapter_sizes.kron_both), .needs = {&needs_lokr}},
    {"oft_block_size", "N", "32", "of OFT, without lora_rank; 0: lora_rank is the number of blocks",
     tdm_key_read_count, FIELD(torch.adapter_sizes.oft_block), .most = RANK_MOST,
     .needs = {&needs_oft}},
    {"block_share", "no|yes", "no", "of OFT: all blocks are one", tdm_key_read_switch,
     FIELD(torch.adapter_sizes.oft_shared), .needs = {&needs_oft}},
    {"boft_block_size", "N", "4", "of BOFT, with one butterfly factor", tdm_key_read_count,
     FIELD(torch.adapter_sizes.boft_block), .least = 1, .most = RANK_MOST, .needs = {&needs_boft}},
    {"num_virtual_tokens", "N", "20",
     "of PROMPT_TUNING, P_TUNING and PREFIX_TUNING, before each sequence", tdm_key_read_count,
     FIELD(torch.adapter_sizes.virtual_tokens), .least = 1, .most = VIRTUAL_TOKENS_MOST,
     .needs = {&needs_prompt}},
    {"encoder_hidden_size", "N", "0",
     "of the encoder of P_TUNING (MLP) or of a prefix; 0: the model's hidden size, or the width of K",
     tdm_key_read_count, FIELD(torch.adapter_sizes.encoder_hidden), .most = ENCODER_MOST,
     .needs = {&needs_encoder}},
    {"prefix_projection", "no|yes", "no",
     "of PREFIX_TUNING: two products make K and V of all layers", tdm_key_read_switch,
     FIELD(torch.adapter_sizes.prefix_projection), .needs = {&needs_prefix}},
    {.name = NULL},
};

/* What peft refuses of a prefix, and what is not modelled of caches. */
static enum tdm_status check_prefix(const struct tdm_model *model,
                                    const struct tdm_torch_settings *s, struct tdm_error *err)
{
    if (tdm_adapter_prefix_tokens(s) == 0)
        return TDM_OK;
    if (s->checkpointing != TDM_CHECKPOINTING_OFF) {
        tdm_fail(err, TDM_USAGE,
                 "--set peft_type: peft refuses PREFIX_TUNING with checkpoints of layers");
        return tdm_hint(err, "--set checkpointing=off");
    }
    const char *what = tdm_model_other_mixer(model) != NULL ? tdm_model_other_mixer(model)
                       : model->latent.kv_rank > 0          ? "latent keys and values"
                       : tdm_model_shortest_window(model, UINT64_MAX) > 0 ? "sliding windows"
                       : s->compile != TDM_COMPILE_NO                     ? "torch.compile"
                                                                          : NULL;
    return what == NULL ? TDM_OK
                        : tdm_fail(err, TDM_USAGE,
                                   "--set peft_type: PREFIX_TUNING with %s is not modelled", what);
}

static bool is_zero(const char *value)
{
    char *end;
    return strtoull(value, &end, 10) == 0 && end != value && *end == '\0';
}

enum tdm_status tdm_adapter_check_said(const char *type, const char *rank, const char *oft_block,
                                       struct tdm_error *err)
{
    const bool is_oft = type != NULL && strcasecmp(type, "OFT") == 0;
    if (type == NULL || rank == NULL)
        return TDM_OK;
    if (is_zero(rank) && !is_oft) {
        tdm_fail(err, TDM_USAGE, "--set lora_rank: 0 is no rank of %.64s", type);
        return tdm_hint(err, "give a rank, or leave lora_rank out");
    }
    if (is_oft && !is_zero(rank) && (oft_block == NULL || !is_zero(oft_block))) {
        tdm_fail(err, TDM_USAGE,
                 "--set lora_rank: OFT has either %.64s blocks or oft_block_size=%.64s, not both",
                 rank, oft_block == NULL ? "32" : oft_block);
        return tdm_hint(err, "leave lora_rank out, or add --set oft_block_size=0");
    }
    if (is_oft && is_zero(rank) && oft_block != NULL && is_zero(oft_block))
        return tdm_fail(err, TDM_USAGE,
                        "--set oft_block_size: OFT needs a number of blocks (lora_rank) or their "
                        "size, and both are 0");
    return TDM_OK;
}

/* peft refuses targets of which the model has none (tuners/tuners_utils.py inject_adapter). */
static enum tdm_status check_targets(const struct tdm_model *model,
                                     const struct tdm_torch_settings *s, struct tdm_error *err)
{
    char has[128] = "";
    size_t used = 0;
    if (s->code != TDM_CODE_TRANSFORMERS || tdm_torch_trained_parameters(model, s) > 0)
        return TDM_OK;
    if (s->adapter == TDM_ADAPTER_NORMS)
        return tdm_fail(err, TDM_USAGE, "--set peft_type: norms of %s have no weights to train",
                        model->name);
    for (unsigned p = 0; p < TDM_PROJECTIONS; p++)
        if (tdm_model_tensor(model, model->layers - 1,
                             tdm_projection_role((enum tdm_projection)p)) != NULL &&
            used < sizeof(has))
            used += (size_t)snprintf(has + used, sizeof(has) - used, "%s%s", used > 0 ? "," : "",
                                     tdm_projection_name((enum tdm_projection)p));
    tdm_fail(err, TDM_USAGE, "--set lora_targets: %s has none of them", model->name);
    return tdm_hint(err, "it has %s", has);
}

enum tdm_status tdm_adapter_check(const struct tdm_model *model, const struct tdm_torch_settings *s,
                                  struct tdm_error *err)
{
    if (s->lora_rank == 0)
        return TDM_OK;
    if (s->adapter != TDM_ADAPTER_LORA && s->quantization != TDM_QUANTIZATION_NONE)
        return tdm_fail(err, TDM_USAGE,
                        "--set peft_type: of quantized weights LORA alone is modelled");
    if (s->adapter != TDM_ADAPTER_LORA && s->dora)
        return tdm_fail(err, TDM_USAGE, "--set use_dora: it is of peft_type=LORA");
    if (tdm_adapter_is_prompt(s) && s->second.trainer != TDM_TRAINER_SFT)
        return tdm_fail(err, TDM_USAGE,
                        "--set peft_type: prompts with a second model or rewards "
                        "are not modelled");
    enum tdm_status status = check_prefix(model, s, err);
    if (status == TDM_OK)
        status = check_targets(model, s, err);
    if (status != TDM_OK)
        return status;
    for (uint32_t i = 0; s->adapter == TDM_ADAPTER_BOFT && i < model->layers; i++)
        for (unsigned p = 0; p < TDM_PROJECTIONS; p++) {
            const struct tdm_tensor *weight =
                tdm_model_tensor(model, i, tdm_projection_role((enum tdm_projection)p));
            if (weight != NULL && (s->lora_targets >> p & 1) != 0 &&
                weight->columns % s->adapter_sizes.boft_block != 0)
                return tdm_fail(err, TDM_USAGE,
                                "--set boft_block_size: %" PRIu64 " does not divide the %" PRIu64
                                " inputs of %s",
                                s->adapter_sizes.boft_block, weight->columns,
                                tdm_projection_name((enum tdm_projection)p));
        }
    return TDM_OK;
}
