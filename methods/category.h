/* SPDX-License-Identifier: Apache-2.0 */
/* What bytes of a method are for, and what its tensors are called. */
#ifndef TDM_METHODS_CATEGORY_H
#define TDM_METHODS_CATEGORY_H

#include <stdint.h>

/* What bytes are for: rows of what is printed. The words are those of a program's buffers. */
enum tdm_method_category {
    TDM_METHOD_WEIGHTS,
    TDM_METHOD_GRADIENTS,
    TDM_METHOD_OPTIMIZER,
    TDM_METHOD_RESIDUALS, /* saved for the backward */
    TDM_METHOD_KV,        /* K and V that outlive their chunk; their gradients */
    TDM_METHOD_KV_GRADIENTS,
    TDM_METHOD_LOGITS,        /* logits and all of their size */
    TDM_METHOD_WORKSPACE,     /* all that is neither; of cuBLAS too */
    TDM_METHOD_COMMUNICATION, /* buckets of gradients */
    TDM_METHOD_CATEGORIES
};

const char *tdm_method_category_name(enum tdm_method_category category);

enum tdm_made {
    TDM_MADE_FORWARD,  /* or outside of forward and backward */
    TDM_MADE_BACKWARD, /* by the backward of what the label names */
    TDM_MADE_GRADIENT, /* the gradient of the parameter that the label names */
};

#define TDM_NO_LAYER UINT32_MAX
#define TDM_MANY_LAYERS (UINT32_MAX - 1)

/* What a tensor is in the model: "mlp.gate_proj" of layer 12, "lm_head" of none. */
struct tdm_label {
    const char *name; /* static; NULL: nobody said */
    uint32_t layer;
    enum tdm_made made;
};

#define TDM_LABEL_BYTES 96u

/* "backward of model.layers.12.mlp.gate_proj"; returns `out`. */
const char *tdm_label_format(const struct tdm_label *label, char out[TDM_LABEL_BYTES]);

/* Tensors of one label, live at the peak. */
struct tdm_tensor_group {
    struct tdm_label label; /* its layer is TDM_MANY_LAYERS if they are of several */
    enum tdm_method_category category;
    uint32_t count;
    uint64_t bytes; /* of all */
};

#endif
