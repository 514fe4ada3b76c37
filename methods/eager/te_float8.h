/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in 8 bits as Transformer Engine has them: the data by rows, a transpose where products
 * take operands in one order of dimensions only (before Blackwell), and one scale. Scaled by
 * blocks, rows and columns are quantized apart, each with scales of its own. Source:
 * TransformerEngine 2.11 pytorch/csrc/quantizer.cpp (Float8Quantizer,
 * Float8CurrentScalingQuantizer, Float8BlockQuantizer, MXFP8Quantizer: create_tensor,
 * get_scale_shape), pytorch/tensor/storage/float8_tensor_storage.py (update_usage).
 */
#ifndef TDM_METHODS_EAGER_TE_FLOAT8_H
#define TDM_METHODS_EAGER_TE_FLOAT8_H

#include "methods/eager/eager.h"

enum tdm_te_recipe {
    TDM_TE_NONE,
    TDM_TE_DELAYED,    /* DelayedScaling: the scale is that of steps before */
    TDM_TE_TENSORWISE, /* Float8CurrentScaling: the scale is that of the tensor */
    TDM_TE_BLOCKWISE,  /* Float8BlockScaling: an fp32 scale of 128 numbers; of weights 128 x 128 */
    TDM_TE_MXFP8,      /* MXFP8BlockScaling: a scale of 8 bits of 32 numbers */
};

#define TDM_TE_BLOCK 128u      /* of BLOCKWISE: must divide both dimensions of what is gathered */
#define TDM_TE_MXFP8_BLOCK 32u /* must divide both dimensions */

/* TDM_USAGE if the GPU is too old for the recipe. Source: pytorch/quantization.py
 * (check_fp8_support, check_fp8_block_scaling_support, check_mxfp8_support). */
enum tdm_status tdm_te_check(enum tdm_te_recipe recipe, const struct tdm_gpu_facts *gpu,
                             struct tdm_error *err);

/* Are scales those of blocks? */
bool tdm_te_by_blocks(enum tdm_te_recipe recipe);

/* Do products of 8 bits take operands by rows and by columns of the same data? Else both are by the
 * dimension that is summed over. Source: common/transformer_engine.cpp
 * (nvte_is_non_tn_fp8_gemm_supported). */
bool tdm_te_both_orders(const struct tdm_eager *m, enum tdm_te_recipe recipe);

/* Each may be NULL. The owner drops them. `scale` is of data by blocks, or of both. */
struct tdm_te_tensor {
    struct tdm_eager_value *data, *transpose, *scale, *transpose_scale;
};

enum tdm_te_usage { TDM_TE_ROWS = 1, TDM_TE_COLUMNS = 2, TDM_TE_WEIGHT = 4 };

/* quantizer(x): what products that read x by rows, by columns or both need. Blocks of weights are
 * square. */
struct tdm_te_tensor tdm_te_quantize(struct tdm_eager *m, enum tdm_te_recipe recipe,
                                     const struct tdm_eager_value *x, unsigned usage);
/* make_empty: the same of a matrix, by blocks. */
struct tdm_te_tensor tdm_te_blocks(struct tdm_eager *m, enum tdm_te_recipe recipe, uint64_t rows,
                                   uint64_t columns, unsigned usage);
/* update_usage: makes the transpose of data with one scale, if products need one. */
void tdm_te_add_columns(struct tdm_eager *m, struct tdm_te_tensor *tensor);
/* update_usage: frees the data, if its transpose is there. */
void tdm_te_drop_rows(struct tdm_eager *m, struct tdm_te_tensor *tensor);
/* tensor.clear(): the scale stays until tdm_te_drop. */
void tdm_te_clear(struct tdm_eager *m, struct tdm_te_tensor *tensor);
void tdm_te_drop(struct tdm_eager *m, struct tdm_te_tensor *tensor);
/* Saves data or transpose, whichever is there, and the scale: two tensors. */
void tdm_te_save(struct tdm_eager *m, struct tdm_node *node, const struct tdm_te_tensor *tensor);
/* The same tensors again, the first of which is saved tensor number `first`. */
struct tdm_te_tensor tdm_te_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t first);

/* te.Linear(x) with delayed scaling, where no micro-batch is named: every forward quantizes the
 * weight anew, and its 8 bits are saved. Source: pytorch/module/linear.py (_Linear). */
struct tdm_eager_value *tdm_te_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                      struct tdm_eager_value *weight, struct tdm_eager_value *bias);

#endif
