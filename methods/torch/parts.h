/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a PyTorch model share. Not for use outside methods/. */
#ifndef TDM_METHODS_TORCH_PARTS_H
#define TDM_METHODS_TORCH_PARTS_H

#include "methods/eager/dtypes.h"
#include "methods/torch/mamba.h"
#include "methods/torch/model.h"
#include "methods/torch/wrapper.h"

/* Weights of a gated DeltaNet, in the order of modules. */
enum {
    DELTA_TIME,
    DELTA_DECAY,
    DELTA_KERNEL,
    DELTA_QKVZ,
    DELTA_BA,
    DELTA_NORM,
    DELTA_OUT,
    DELTA_Z,
    DELTA_A,
    DELTA_WEIGHTS
};

/* The same of LFM2's short convolution. */
enum { SHORT_KERNEL, SHORT_IN, SHORT_OUT, SHORT_WEIGHTS };

/* Those of torchtitan's experts: gate, down and up; of GPT-OSS gate and up are one. */
enum { TITAN_GATE, TITAN_DOWN, TITAN_UP, TITAN_WEIGHTS };

struct torch_layer {
    struct tdm_eager_value *weight[TDM_PROJECTIONS], *bias[TDM_PROJECTIONS];
    struct tdm_eager_value *down[TDM_PROJECTIONS],
        *up[TDM_PROJECTIONS],        /* adapters: A and B of LoRA, d and b of VeRA; IA3: one */
        *magnitude[TDM_PROJECTIONS]; /* of DoRA, or NULL */
    struct tdm_eager_value *second_down[TDM_PROJECTIONS],
        *second_up[TDM_PROJECTIONS];                      /* of LoHa and LoKr, or NULL */
    struct tdm_eager_value *permutation[TDM_PROJECTIONS]; /* of BOFT, or NULL */
    struct tdm_eager_value *attention_norm, *mlp_norm, *q_norm, *k_norm;
    struct tdm_eager_value *q_latent_norm, *kv_latent_norm;      /* of latent attention, or NULL */
    struct tdm_eager_value *attention_norm_bias, *mlp_norm_bias; /* of LayerNorm */
    struct tdm_eager_value *post_attention_norm, *post_mlp_norm; /* NULL if the model has none */
    struct tdm_eager_value *router, *experts_gate_up,
        *experts_down; /* NULL if the model has none */
    struct tdm_eager_value *router_bias, *experts_gate_up_bias, *experts_down_bias; /* or NULL */
    struct torch_layer *shared; /* an MLP, the expert that every token has, or NULL */
    bool is_part; /* of a sum over tensor ranks, which is made after it: of a shared expert */
    struct torch_layer *experts; /* MLPs that are modules of their own, or NULL: they are joined */
    struct tdm_eager_value *local_experts[TITAN_WEIGHTS], *local_biases[2]; /* or NULL */
    struct tdm_eager_value *sinks;                                          /* or NULL */
    struct tdm_eager_value *shared_expert_gate;                             /* or NULL */
    struct tdm_eager_value *xielu[2];             /* xIELU's numbers, or NULL */
    struct tdm_eager_value *delta[DELTA_WEIGHTS]; /* or NULL: the layer has attention */
    struct tdm_eager_value *mamba[MAMBA_WEIGHTS], *short_conv[SHORT_WEIGHTS]; /* or NULL */
};

struct torch_state {
    struct tdm_eager_value *step, *first, *second; /* of AdamW; SGD's momentum is `first` */
    struct tdm_eager_value *scales[2];             /* of 8-bit states */
    struct tdm_eager_value *tables[2];             /* of torchao's 4-bit states: their values */
    bool made;
    bool matrix; /* of a layer, and no joint experts: Muon and GaLore step it their own way */
};

struct tdm_torch_model {
    struct tdm_eager *m;
    const struct tdm_model *config;
    struct tdm_torch_settings settings;
    uint16_t weight_bytes; /* of an element */
    bool autocasts;        /* the forward runs under autocast */
    bool wide_adapters;    /* adapters are fp32 in shards, whatever they are gathered as */
    bool caches; /* use_cache: K and V of all layers are held, though nothing reads them */
    struct torch_layer *layers, *shared; /* shared: of each layer, used if it has one */
    struct torch_layer *experts;         /* of all layers, if they are modules; or NULL */
    struct tdm_eager_value *embedding, *position_weight, *embedding_scale, *final_norm,
        *final_norm_bias, *embedding_norm[2], *head, *head_bias, *frequencies[2], *ids;
    /* Belong to the current forward. After it only checkpointed layers hold references to them. */
    struct tdm_eager_value *positions, *cosine, *sine, *mask, *window_mask;
    struct tdm_eager_value *window_cosine, *window_sine; /* NULL: those of all layers */
    struct tdm_eager_value
        *held_logits; /* held by the output object until the next forward replaces it */
    struct tdm_eager_value *vision_kept; /* by a vision tower, for the backward */
    struct tdm_eager_value **
        cached[2]; /* K and V of the current forward, and those of the output object that is held */
    /* `input`: embedded ids that require a gradient. `held_input`: those of the last loss, held
     * until the next loss replaces it. */
    struct tdm_eager_value *input, *held_input, *loss;
    void *wrapped;                    /* the wrapper's state */
    struct tdm_model *part;           /* what `config` is, if ranks divide the model; or NULL */
    struct tdm_quantized **quantized; /* of all projections, layer by layer; NULL: none */
    uint32_t quantized_count;
    struct tdm_eager_value **parameters;
    struct torch_state *states;
    struct tdm_eager_value *prompt[TDM_PROMPT_WEIGHTS]; /* of a trained prompt, or NULL */
    struct tdm_eager_value *prompt_labels;  /* labels with those of the prompt, or NULL */
    struct tdm_eager_value *vera[2];        /* A and B of all of VeRA's adapters, or NULL */
    struct tdm_eager_value *state_codes[2]; /* tables of 8-bit states' values, or NULL */
    uint32_t parameter_count;
    bool accumulating;                      /* this backward is not the last before a step */
    bool adapters_off;                      /* a forward of the base alone */
    struct tdm_torch_model *second;         /* reference or teacher, or NULL */
    struct tdm_torch_model *value, *reward; /* of PPO, or NULL */
    struct tdm_model *scorer;               /* what these are, if not the same model; or NULL */
    struct tdm_eager_value *
        *hidden_states; /* of all layers, which an output object holds; or NULL */
    struct tdm_eager_value *rollout_logits; /* of what PPO generated, or NULL */
    struct tdm_model *teacher;              /* what it is, if not the same model; or NULL */
    struct tdm_eager_value *served[3];      /* weights, cache and graphs of vLLM, or NULL */
    bool *gathered; /* of each parameter, while GRPO generates: is it gathered for that? or NULL */
};

/* What a forward makes before its first layer (inputs.c): position ids; masks (NULL where the
 * kernel is causal without one); cosines and sines. */
void tdm_torch_positions(struct tdm_torch_model *t);
void tdm_torch_masks(struct tdm_torch_model *t);
void tdm_torch_rotary(struct tdm_torch_model *t);
void tdm_torch_drop_inputs(struct tdm_torch_model *t);

/* The cache of K and V (cache.c). All functions do nothing without use_cache. create returns false
 * if memory ran out. update is a layer's update, after which K and V are those of the cache. drop
 * frees the cache of the current output object. hold puts it in place of the one held. */
bool tdm_torch_cache_create(struct tdm_torch_model *t);
void tdm_torch_cache_free(struct tdm_torch_model *t);
void tdm_torch_cache_update(const struct tdm_torch_model *t, uint32_t number,
                            struct tdm_eager_value **k, struct tdm_eager_value **v);
/* K (0) or V (1) of a layer in the cache of this forward. */
struct tdm_eager_value **tdm_torch_cache_slot(const struct tdm_torch_model *t, uint32_t layer,
                                              unsigned part);
void tdm_torch_cache_drop(struct tdm_torch_model *t);
void tdm_torch_cache_hold(struct tdm_torch_model *t);

/* Parts of the experts, of which a rank has one: transformers' ep_size. */
static inline uint64_t tdm_expert_parts(const struct tdm_torch_settings *s)
{
    return s->fsdp.expert_parts > 1 ? s->fsdp.expert_parts : 1;
}

/* Ranks that share a copy of all parameters, or of a part of them. */
static inline uint64_t tdm_fsdp_shards(const struct tdm_torch_settings *s)
{
    return s->ranks / tdm_fsdp_replicas(&s->fsdp) / tdm_tensor_ranks(s) / tdm_expert_parts(s);
}

/* Where transformers' expert parallelism leaves no ranks for shards, nothing is wrapped. */
static inline bool tdm_parts_leave_shards(const struct tdm_torch_settings *s)
{
    return tdm_expert_parts(s) == 1 || tdm_fsdp_shards(s) > 1;
}

/* Ranks that divide the experts of a layer: expert_parallel_degree. */
static inline uint64_t tdm_fsdp_expert_ranks(const struct tdm_torch_settings *s)
{
    return s->wrapper == &tdm_fsdp_wrapper && s->fsdp.expert_ranks > 1 ? s->fsdp.expert_ranks : 1;
}

/* Ranks that have a copy of all experts together: tensor ranks have other experts, or other parts
 * of shards. */
static inline uint64_t tdm_fsdp_expert_shards(const struct tdm_torch_settings *s)
{
    return tdm_fsdp_shards(s) * tdm_tensor_ranks(s);
}

/* Is what is trained bf16, beside frozen weights of fp32? */
static inline bool tdm_torch_is_narrow(const struct tdm_torch_settings *s)
{
    return s->narrow_adapters && s->lora_rank > 0 && s->adapter == TDM_ADAPTER_LORA &&
           s->fp32_weights && !s->peft && (s->wrapper != &tdm_fsdp_wrapper || !s->fsdp.version_1);
}

/* Makes the next parameter as the wrapper does, of a module. */
struct tdm_eager_value *tdm_torch_add_parameter(struct tdm_torch_model *t, uint32_t module,
                                                uint64_t rows, uint64_t columns,
                                                uint16_t element_bytes, bool trained);
/* Adapters beside projections, trained norms or prompts (adapter_weights.c). */
void tdm_torch_add_adapters(struct tdm_torch_model *t);
/* Tokens of a sequence without those of a trained prompt. */
static inline uint64_t tdm_torch_own_tokens(const struct tdm_torch_model *t)
{
    return t->settings.tokens - tdm_adapter_prompt_tokens(&t->settings);
}

/* Makes the next parameter, a leaf. */
struct tdm_eager_value *tdm_torch_parameter(struct tdm_torch_model *t, uint64_t rows,
                                            uint64_t columns, uint16_t element_bytes, bool trained);

/* A projection with LoHa or LoKr (changes.c), with OFT or BOFT (rotations.c). x is borrowed. */
struct tdm_eager_value *tdm_torch_changed(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer, enum tdm_projection p,
                                          struct tdm_eager_value *x);
struct tdm_eager_value *tdm_torch_rotated(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer, enum tdm_projection p,
                                          struct tdm_eager_value *x);
/* LitGPT's model (litgpt.c), where settings.code says so. */
static inline bool tdm_torch_is_litgpt(const struct tdm_torch_settings *s)
{
    return s->code != TDM_CODE_TRANSFORMERS;
}
/* lora_targets with the joint projection's bit, if q, k or v has one. */
uint32_t tdm_litgpt_targets(uint32_t targets);
/* The adapter of the joint projection, of as many inputs. */
void tdm_litgpt_joint_shape(const struct tdm_model *model, const struct tdm_torch_settings *s,
                            uint64_t columns, struct tdm_adapter_shape *shape);
/* Adds that adapter's result to `base`, which it takes. */
struct tdm_eager_value *tdm_litgpt_joint(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         const struct torch_layer *layer, struct tdm_eager_value *x,
                                         struct tdm_eager_value *base);
/* q, k and v by heads, rotated, all with as many heads as q. */
void tdm_litgpt_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                      const struct torch_layer *layer, struct tdm_eager_value *x,
                      struct tdm_eager_value *qkv[3]);
struct tdm_eager_value *tdm_litgpt_loss(struct tdm_torch_model *t, struct tdm_eager_value *hidden);

/* Puts a trained prompt before the embedded tokens, which it takes (prompts.c). */
struct tdm_eager_value *tdm_torch_prompted(struct tdm_torch_model *t,
                                           struct tdm_eager_value *embedded);
/* Makes a trained prefix and puts K and V of all layers into the cache of this forward. */
void tdm_torch_prefix(struct tdm_torch_model *t);
/* Joins the prefix in a slot of the cache and K or V of the tokens, in place of both. */
void tdm_torch_prefix_join(const struct tdm_torch_model *t, struct tdm_eager_value **slot,
                           struct tdm_eager_value **tokens);

/* What transformers takes for a model: scores in memory where it has nothing else for
 * attention=sdpa. */
enum tdm_torch_attention tdm_torch_attention_of(const struct tdm_model *model,
                                                enum tdm_torch_attention attention);

/* Is a second model, as a teacher or a reward model, one that is modelled beside these settings?
 * TDM_USAGE: no. */
enum tdm_status tdm_torch_check_second(const struct tdm_model *model,
                                       const struct tdm_method_settings *settings,
                                       struct tdm_error *err);

/* The attention of a layer (attention.c). *kept: scores that the layer holds until it returns. */
struct tdm_eager_value *tdm_torch_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                            const struct torch_layer *layer,
                                            struct tdm_eager_value *q, struct tdm_eager_value *k,
                                            struct tdm_eager_value *v, struct tdm_eager_value *mask,
                                            struct tdm_eager_value **kept);
/* The model's own dropout. Takes x. */
struct tdm_eager_value *tdm_torch_dropout(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          struct tdm_eager_value *x);
/* Makes the states of one of bitsandbytes' optimizers for so many elements, of the current
 * category; tables are shared by all states of the model. */
void tdm_torch_init_bnb(struct tdm_torch_model *t, enum tdm_torch_optimizer optimizer,
                        uint64_t elements, struct torch_state *state);
/* For gradient_ready: CPUOffloadOptimizer's hook, which sends a gradient to the host and frees it.
 */
void tdm_torch_send_ready(void *model, struct tdm_eager_value *leaf);
/* Does this rank's optimizer update parameter i? */
bool tdm_torch_steps(const struct tdm_torch_model *t, uint32_t i);
/* The step of an optimizer that takes one parameter after the other; of others nothing
 * (optimizer_single.c). */
void tdm_torch_single_steps(struct tdm_torch_model *t);
/* The same for parameter i alone, by an optimizer of its own: GaLore. */
void tdm_torch_single_step(struct tdm_torch_model *t, uint32_t i);

/* The MLP of a layer, or an expert that is one (layer.c). */
struct tdm_eager_value *tdm_torch_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                      const struct torch_layer *layer, struct tdm_eager_value *x);

/* What experts that are modules of their own make of flat x, weighted and summed
 * (experts_each.c). */
struct tdm_eager_value *tdm_torch_each_expert(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              const struct torch_layer *layer,
                                              struct tdm_eager_value *x,
                                              struct tdm_eager_value *weights);

/* A mixture of experts in place of the MLP (experts.c). */
struct tdm_eager_value *tdm_torch_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer,
                                          struct tdm_eager_value *x);

/* Its operations: x[index], which has `rows` rows; rows of each expert times its matrix; the gate
 * of GPT-OSS, of whose neighbours one is gate and one is up, both clamped; the order of `count`
 * numbers of 64 bits, and these sorted. */
struct tdm_eager_value *tdm_torch_pick_rows(struct tdm_eager *m, struct tdm_eager_value *x,
                                            struct tdm_eager_value *index, uint64_t rows);
struct tdm_eager_value *tdm_torch_grouped_product(struct tdm_eager *m, struct tdm_eager_value *x,
                                                  struct tdm_eager_value *weight,
                                                  struct tdm_eager_value *offsets,
                                                  uint64_t experts);
struct tdm_eager_value *tdm_torch_clamped_gate(struct tdm_eager *m, struct tdm_eager_value *both);
struct tdm_eager_value *tdm_torch_sort(struct tdm_eager *m, uint64_t count,
                                       struct tdm_eager_value **sorted);

/* scores.gather(1, indices). */
struct tdm_eager_value *tdm_torch_gather(struct tdm_eager *m, struct tdm_eager_value *scores,
                                         struct tdm_eager_value *indices);

/* torchtitan's mixture under expert parallelism (experts_titan.c): makes this rank's experts of a
 * layer, and computes. */
void tdm_titan_add_experts(struct tdm_torch_model *t, uint32_t number);
struct tdm_eager_value *tdm_titan_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          uint32_t number, struct tdm_eager_value *x);
/* Elements of all experts; what gathering them, reducing their gradients and sending rows costs. */
double tdm_titan_elements(const struct tdm_model *model);
void tdm_titan_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                    struct tdm_method_cost *cost);

/* The same by deepspeed.moe, where its ep_size is more than 0 (methods/deepspeed/moe.c): the most
 * weights that a model's experts can be; makes those of a layer but the router's; computes. */
size_t tdm_moe_most_weights(const struct tdm_model *model);
void tdm_moe_add(struct tdm_torch_model *t, uint32_t number);
struct tdm_eager_value *tdm_moe_forward(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        uint32_t number, struct tdm_eager_value *x);

/* A gated DeltaNet in place of attention (delta.c). */
struct tdm_eager_value *tdm_torch_delta(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, struct tdm_eager_value *x);
/* causal_conv1d_fn, with or without its activation; -exp(x) in fp32 (delta.c). */
struct tdm_eager_value *tdm_torch_convolution(struct tdm_eager *m, struct tdm_eager_value *x,
                                              struct tdm_eager_value *weight);
struct tdm_eager_value *tdm_torch_minus_exp(struct tdm_eager *m, struct tdm_eager_value *x);
/* Mamba-2; a short convolution between two gates (mamba.c). */
struct tdm_eager_value *tdm_torch_mamba(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        const struct torch_layer *layer, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_torch_short_conv(struct tdm_eager *m, const struct tdm_torch_model *t,
                                             const struct torch_layer *layer,
                                             struct tdm_eager_value *x);
/* The expert that every token has (experts_all.c); `flat` as of tdm_linear(). */
struct tdm_eager_value *tdm_torch_shared_expert(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                const struct torch_layer *layer,
                                                struct tdm_eager_value *x, bool flat);
/* Llama 4's: every expert computes all tokens (experts_all.c). */
struct tdm_eager_value *tdm_torch_all_experts(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              const struct torch_layer *layer,
                                              struct tdm_eager_value *x);
/* topk of the columns of x, with the places. */
struct tdm_eager_value *tdm_torch_topk(struct tdm_eager *m, struct tdm_eager_value *x, uint64_t k,
                                       struct tdm_eager_value **indices);

/* A layer, checkpointed or not, and parts of it, also for other systems (layer.c). x is borrowed.
 */
struct tdm_eager_value *tdm_torch_layer(struct tdm_torch_model *t, uint32_t number,
                                        struct tdm_eager_value *x);
/* x over the root of the mean of its squares, in one expression in fp32. */
struct tdm_eager_value *tdm_torch_normed(struct tdm_eager *m, struct tdm_eager_value *x);
/* A layer whose checkpoint was compiled with it (compiled.c): can it be computed so; the layer. */
bool tdm_torch_compiles_checkpoint(const struct tdm_torch_model *t, uint32_t number);
struct tdm_eager_value *tdm_torch_compiled_layer(struct tdm_torch_model *t,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *x);

/* Are scores in memory dropped in part, by the config or by the key? */
bool tdm_torch_drops_scores(const struct tdm_torch_model *t);

/* nn.Linear. */
struct tdm_eager_value *tdm_torch_linear(struct tdm_eager *m, const struct tdm_torch_model *t,
                                         struct tdm_eager_value *x, struct tdm_eager_value *weight,
                                         struct tdm_eager_value *bias, uint32_t module);
struct tdm_eager_value *tdm_torch_norm(struct tdm_eager *m, const struct tdm_torch_model *t,
                                       struct tdm_eager_value *x, struct tdm_eager_value *weight);
/* LayerNorm where the model has a bias of it, else tdm_torch_norm. */
struct tdm_eager_value *tdm_torch_norm_with(struct tdm_eager *m, const struct tdm_torch_model *t,
                                            struct tdm_eager_value *x,
                                            struct tdm_eager_value *weight,
                                            struct tdm_eager_value *bias);
struct tdm_eager_value *tdm_torch_project(struct tdm_eager *m, const struct tdm_torch_model *t,
                                          const struct torch_layer *layer, enum tdm_projection p,
                                          struct tdm_eager_value *x);
/* Is the projection, with its adapter, part of one of Unsloth's functions (lora_kernels.c)? The
 * functions: q, k and v of x, by tokens; the output's projection; the MLP. */
bool tdm_lora_kernels_take(const struct tdm_torch_model *t, const struct torch_layer *layer,
                           enum tdm_projection p);
void tdm_lora_kernels_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                            const struct torch_layer *layer, struct tdm_eager_value *x,
                            struct tdm_eager_value *qkv[3]);
struct tdm_eager_value *tdm_lora_kernels_output(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                const struct torch_layer *layer,
                                                struct tdm_eager_value *x);
struct tdm_eager_value *tdm_lora_kernels_mlp(struct tdm_eager *m, const struct tdm_torch_model *t,
                                             const struct torch_layer *layer,
                                             struct tdm_eager_value *x);
/* What a function of latent attention, or GPT-J's, holds until it returns, beside q, k and v. */
enum { ATTENTION_HELD = 7 };
/* q, k and v by heads of latent attention, rotated (latent.c). The caller drops what is held. */
void tdm_torch_latent_heads(struct tdm_eager *m, const struct tdm_torch_model *t, uint32_t number,
                            struct tdm_eager_value *x, struct tdm_eager_value *qkv[3],
                            struct tdm_eager_value *held[ATTENTION_HELD]);
/* Rows of a head's weight over their lengths, where the model has it so (normed_head.c). */
struct tdm_eager_value *tdm_torch_normed_head(struct tdm_eager *m, struct tdm_eager_value *weight);
/* The same of GPT-J, and the tables of angles that its layers have; ALiBi's, which takes the place
 * of cosines; attention of families that have their own; BLOOM's GELU (own_scores.c). */
void tdm_torch_gptj_heads(struct tdm_eager *m, const struct tdm_torch_model *t, uint32_t number,
                          struct tdm_eager_value *x, struct tdm_eager_value *qkv[3],
                          struct tdm_eager_value *held[ATTENTION_HELD]);
void tdm_torch_gptj_angles(struct tdm_torch_model *t);
void tdm_torch_alibi(struct tdm_torch_model *t);
struct tdm_eager_value *tdm_torch_own_attention(struct tdm_eager *m,
                                                const struct tdm_torch_model *t,
                                                struct tdm_eager_value *const qkv[3],
                                                struct tdm_eager_value *mask,
                                                struct tdm_eager_value **kept);
struct tdm_eager_value *tdm_torch_bloom_gelu(struct tdm_eager *m, struct tdm_eager_value *x);
/* Does Liger's rotation fit the model? It turns whole heads, in their dtype. */
bool tdm_torch_has_liger_rope(const struct tdm_model *config);
/* q, k and v by heads, rotated (heads.c). Returns the gate of the output; NULL: there is none. */
struct tdm_eager_value *tdm_torch_heads(struct tdm_eager *m, const struct tdm_torch_model *t,
                                        uint32_t number, struct tdm_eager_value *x,
                                        struct tdm_eager_value *qkv[3]);
struct tdm_eager_value *tdm_torch_rotate(struct tdm_eager *m, struct tdm_eager_value *x,
                                         struct tdm_eager_value *cosine,
                                         struct tdm_eager_value *sine);
struct tdm_eager_value *tdm_torch_softcap(struct tdm_eager *m,
                                          struct tdm_eager_value *x); /* x is taken */
/* Caps or divides logits where the model does. Takes them. */
struct tdm_eager_value *tdm_torch_scale_logits(struct tdm_eager *m, const struct tdm_torch_model *t,
                                               struct tdm_eager_value *logits);

/* LM head and loss that never hold the logits of all tokens (losses.c). */
struct tdm_eager_value *tdm_torch_chunked_loss(struct tdm_torch_model *t,
                                               struct tdm_eager_value *hidden);
struct tdm_eager_value *tdm_torch_fused_loss(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden);
/* The same, but fp32 values of all logits stay for the backward. */
struct tdm_eager_value *tdm_torch_loss_in_place(struct tdm_torch_model *t,
                                                struct tdm_eager_value *logits);
struct tdm_eager_value *tdm_torch_parts_loss(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden);

/* Embedding and layers: the last hidden states, normed (forward.c). The same with the module around
 * them and what images need. Around a call of the model: what its wrapper does before and after, of
 * which the second takes y and returns it. */
struct tdm_eager_value *tdm_torch_base(struct tdm_torch_model *t);
struct tdm_eager_value *tdm_torch_hidden(struct tdm_torch_model *t);
void tdm_torch_begin_call(struct tdm_torch_model *t);
struct tdm_eager_value *tdm_torch_end_call(struct tdm_torch_model *t, struct tdm_eager_value *y);

/* GRPO's loss by Liger of `scored` hidden states: gradients of them and of the head are made at
 * once.
 */
struct tdm_eager_value *tdm_torch_liger_grpo(struct tdm_torch_model *t,
                                             struct tdm_eager_value *hidden, uint64_t scored);

/* Log-probabilities of the rows that a mask picks, `scored` of them, at the places of all rows; the
 * mean of the rows' divergences of two models (scores.c). `hidden` has one row more a sequence than
 * the mask; those of the divergence have as many. */
struct tdm_eager_value *tdm_torch_scores(struct tdm_torch_model *t, struct tdm_eager_value *hidden,
                                         struct tdm_eager_value *mask, uint64_t scored);
/* Log-probabilities of tokens of whole logits, as many as `mask` has. */
struct tdm_eager_value *tdm_torch_logits_scores(struct tdm_torch_model *t,
                                                struct tdm_eager_value *logits,
                                                struct tdm_eager_value *mask);
struct tdm_eager_value *tdm_torch_divergence(struct tdm_torch_model *t,
                                             struct tdm_torch_model *teacher,
                                             struct tdm_eager_value *hidden,
                                             struct tdm_eager_value *other,
                                             struct tdm_eager_value *mask, uint64_t scored);

/* A second model (second.c). create makes it, if the trainer has one; loss runs both; start and
 * generate have what generates: they do nothing for other trainers than GRPO. */
enum tdm_status tdm_second_create(struct tdm_torch_model *t, struct tdm_error *err);
void tdm_second_free(struct tdm_torch_model *t);
uint64_t tdm_second_batch(const struct tdm_torch_settings *s);
struct tdm_eager_value *tdm_second_loss(struct tdm_torch_model *t);
void tdm_second_start(struct tdm_torch_model *t);
void tdm_second_generate(struct tdm_torch_model *t);
/* All logits, fp32 under autocast. */
struct tdm_eager_value *tdm_torch_whole_logits(struct tdm_torch_model *t,
                                               struct tdm_eager_value *hidden);

/* PPO's models and its step (ppo.c): all but the loss do nothing for other trainers. The value
 * model is made before ranks share the parameters, which it adds its own to. A step begins with
 * rollouts; what the loop holds is dropped at its end. */
enum tdm_status tdm_ppo_create_value(struct tdm_torch_model *t, struct tdm_error *err);
enum tdm_status tdm_ppo_create_reward(struct tdm_torch_model *t, struct tdm_error *err);
void tdm_ppo_free(struct tdm_torch_model *t);
void tdm_ppo_roll_out(struct tdm_torch_model *t);
struct tdm_eager_value *tdm_ppo_loss(struct tdm_torch_model *t);
void tdm_ppo_end_step(struct tdm_torch_model *t);

/* LongLoRA's attention within groups of tokens. For half of the heads the groups are shifted by
 * half a group (methods/chunk/longlora.c). */
uint64_t tdm_shifted_group_tokens(const struct tdm_torch_settings *settings);
/* A copy of half of the heads, shifted, goes over x itself: in place, for use without
 * FlashAttention. Takes x. */
struct tdm_eager_value *tdm_shift_heads(struct tdm_eager *m, struct tdm_eager_value *x);
struct tdm_eager_value *tdm_shifted_attention(struct tdm_eager *m, const struct tdm_torch_model *t,
                                              struct tdm_eager_value *q, struct tdm_eager_value *k,
                                              struct tdm_eager_value *v);

/* ---- a vision tower (vision.c) ---- */

void tdm_torch_add_vision(struct tdm_torch_model *t);
/* Pixels of the image tokens, which the loop holds. */
void tdm_torch_add_pixels(struct tdm_torch_model *t);
/* What the tower made of them, which the base model's forward holds, or NULL. */
struct tdm_eager_value *tdm_torch_image_rows(struct tdm_torch_model *t);
/* Makes what the tower keeps for the backward, t->vision_kept. */
void tdm_torch_keep_vision(struct tdm_torch_model *t);

#endif
