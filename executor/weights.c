/* SPDX-License-Identifier: Apache-2.0 */
/* Moves weights between arenas and files, and draws random weights. */
#include "executor/weights.h"

#include "executor/processes.h"
#include "executor/random.h"
#include "executor/shared_save.h"
#include "executor/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A field in which two models differ, as config.json names it; NULL if no field here differs. */
static const char *difference(const struct tdm_model *a, const struct tdm_model *b)
{
    if (strcmp(a->architecture, b->architecture) != 0)
        return "architectures";
    const struct {
        const char *name;
        uint32_t one, other;
    } fields[] = {{"num_hidden_layers", a->layers, b->layers},
                  {"hidden_size", a->hidden, b->hidden},
                  {"intermediate_size", a->intermediate, b->intermediate},
                  {"num_attention_heads", a->query_heads, b->query_heads},
                  {"num_key_value_heads", a->kv_heads, b->kv_heads},
                  {"head_dim", a->head_dim, b->head_dim},
                  {"vocab_size", a->vocabulary, b->vocabulary},
                  {"tie_word_embeddings", a->tied, b->tied}};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].one != fields[i].other)
            return fields[i].name;
    if (a->norm_epsilon != b->norm_epsilon)
        return "rms_norm_eps";
    return a->initializer_range != b->initializer_range ? "initializer_range" : NULL;
}

enum tdm_status tdm_weights_find(const char *directory, const char *schedule,
                                 const struct tdm_model *model, struct tdm_weights **weights,
                                 struct tdm_error *err)
{
    struct stat info;
    if (stat(directory, &info) != 0 || !S_ISDIR(info.st_mode)) {
        tdm_fail(err, TDM_USAGE, "--weights \"%s\": is neither random:SEED nor a directory",
                 directory);
        return tdm_hint(err, "for example --weights random:1, or the directory of a model");
    }
    struct tdm_model *described;
    enum tdm_status status = tdm_model_load(directory, &described, err);
    if (status != TDM_OK)
        return status;
    if (strcmp(described->digest, model->digest) != 0) {
        const char *field = difference(described, model);
        status = tdm_fail(err, TDM_INPUT, "%s/config.json: describes another model than %s%s%s%s",
                          directory, schedule, field == NULL ? "" : ": \"",
                          field == NULL ? "" : field, field == NULL ? "" : "\" differs");
        tdm_hint(err, "tidemark plan %s --context N plans for the model in that directory",
                 directory);
    }
    tdm_model_free(described);
    return status == TDM_OK ? tdm_weights_open(directory, model, weights, err) : status;
}

enum tdm_status tdm_weights_moved(const struct tdm_weights_watch *watch, uint64_t count,
                                  uint64_t *done, uint64_t elements, struct tdm_error *err)
{
    *done += count;
    if (watch != NULL && watch->moved != NULL)
        watch->moved(watch->self, *done, elements);
    if (watch != NULL && watch->stop != NULL && *watch->stop)
        return tdm_fail(err, TDM_INTERRUPTED,
                        "interrupted while weights were drawn, read or written");
    return TDM_OK;
}

/* Where weights come from. */
struct source {
    const struct tdm_weights *files; /* NULL: they are random */
    uint64_t seed;
    struct tdm_normal normal;
};

/* Uses all threads: every element has its own random number. */
static void draw_normal(const struct source *source, uint32_t tensor, uint64_t first,
                        uint64_t count, double range, float *values)
{
    uint64_t stream = tdm_random_stream(source->seed, 0, tensor);
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t i = 0; i < count; i++)
        values[i] =
            (float)(range * tdm_normal_draw(&source->normal, tdm_random_draw(stream, first + i)));
}

static enum tdm_status next_block(const struct source *source, const struct tdm_model *model,
                                  uint32_t number, uint64_t first, uint64_t count, float *values,
                                  struct tdm_error *err)
{
    const struct tdm_tensor *tensor = &model->tensors[number];
    if (source->files != NULL)
        return tdm_weights_read(source->files, number, first, count, values, err);
    if (!tdm_role_is_vector(tensor->role))
        draw_normal(source, number, first, count, model->initializer_range, values);
    else
        for (uint64_t i = 0; i < count; i++)
            values[i] = tdm_model_vector_start(model, tensor->role);
    return TDM_OK;
}

static enum tdm_status fill(const struct source *source, const struct tdm_arenas *arenas,
                            const struct tdm_program *program,
                            const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    enum tdm_status status = TDM_OK;
    uint64_t done = 0;
    float *values = malloc(TDM_STATE_BLOCK * sizeof(*values));
    if (values == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the weights of a run");
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const struct tdm_tensor *tensor = &model->tensors[t];
        for (uint64_t at = 0; at < tensor->elements && status == TDM_OK; at += TDM_STATE_BLOCK) {
            uint64_t count = tdm_state_block(tensor, at);
            status = next_block(source, model, t, at, count, values, err);
            if (status == TDM_OK)
                status = tdm_state_put(arenas, program, tensor, at, count, values, err);
            if (status == TDM_OK)
                status = tdm_weights_moved(watch, count, &done, model->parameters, err);
        }
    }
    free(values);
    return status;
}

enum tdm_status tdm_weights_load(const struct tdm_weights *weights, const struct tdm_arenas *arenas,
                                 const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    const struct source source = {.files = weights};
    return fill(&source, arenas, program, watch, err);
}

enum tdm_status tdm_weights_draw(uint64_t seed, const struct tdm_arenas *arenas,
                                 const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    struct source source = {.seed = seed};
    tdm_normal_open(&source.normal);
    return fill(&source, arenas, program, watch, err);
}

/* What messages call the values that a target is written from. */
static const char *shown(const struct tdm_weights_target *target)
{
    return target->gradients ? "gradients" : "weights";
}

/* A model, or gradients, that several processes write together. */
static enum tdm_status save_together(const struct tdm_weights_target *target,
                                     const struct tdm_arenas *arenas,
                                     const struct tdm_program *program, enum tdm_content content,
                                     const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    const struct tdm_shared_set set = {
        .content = content, .dtype = target->dtype, .rounded = true, .checked = shown(target)};
    struct tdm_weights_target shared = *target;
    struct tdm_weights_writer *writer = NULL;
    shared.shared = true;
    enum tdm_status status =
        tdm_shared_save(&shared, arenas, program, 1, &set, watch, &writer, err);
    if (status == TDM_OK && tdm_processes_number(tdm_arenas_here(arenas)->processes) == 0)
        return tdm_weights_commit(writer, err);
    tdm_weights_abandon(writer);
    return status;
}

enum tdm_status tdm_weights_save(const struct tdm_weights_target *target,
                                 const struct tdm_arenas *arenas, const struct tdm_program *program,
                                 const struct tdm_weights_watch *watch, struct tdm_error *err)
{
    const struct tdm_model *model = program->schedule->model;
    enum tdm_content content = target->gradients                 ? TDM_UNIT_GRADIENT
                               : target->dtype == TDM_DTYPE_FP32 ? TDM_UNIT_MASTER
                                                                 : TDM_UNIT_WEIGHTS;
    struct tdm_weights_writer *writer = NULL;
    uint64_t done = 0;
    if (tdm_processes_count(tdm_arenas_here(arenas)->processes) > 1)
        return save_together(target, arenas, program, content, watch, err);
    enum tdm_status status = tdm_weights_create(target, &writer, err);
    if (status != TDM_OK)
        return status;
    float *values = malloc(TDM_STATE_BLOCK * sizeof(*values));
    if (values == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for saving weights");
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const struct tdm_tensor *tensor = &model->tensors[t];
        for (uint64_t at = 0; at < tensor->elements && status == TDM_OK; at += TDM_STATE_BLOCK) {
            uint64_t count = tdm_state_block(tensor, at);
            status = tdm_state_get(arenas, program, content, tensor, at, count, values, err);
            if (status == TDM_OK)
                status = tdm_check_finite(model, tensor, shown(target), TDM_DTYPE_FP32, values,
                                          count, err);
            if (status == TDM_OK)
                status = tdm_weights_append(writer, values, count, err);
            if (status == TDM_OK)
                status = tdm_weights_moved(watch, count, &done, model->parameters, err);
        }
    }
    free(values);
    if (status == TDM_OK)
        return tdm_weights_commit(writer, err);
    tdm_weights_abandon(writer);
    return status;
}
