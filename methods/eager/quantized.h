/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frozen weights of fewer than 16 bits, under adapters: what they store, and the scratch of their
 * products. A quantized weight is a leaf with the shape of the original weight. tdm_linear()
 * recognises it. Sources:
 *   nf4, int8: bitsandbytes 0.50.2, functional.py (quantize_4bit, quantize_blockwise,
 *     dequantize_4bit), nn/modules.py (Linear4bit, Linear8bitLt), autograd/_functions.py
 *     (MatMul4Bit, MatMul8bitLt), backends/cuda/ops.py (_dequant_linear_fallback).
 *   awq: gptqmodel 7.7, nn_modules/qlinear/gemm_awq.py (AwqGemmFn), and its kernel
 *     gemm_forward_cuda_fp32_reduce; AutoAWQ 0.2's WQLinearMMFunction is the same.
 *   gptq: AutoGPTQ, nn_modules/qlinear/qlinear_cuda_old.py, 4 bits, without its CUDA kernel, which
 *     is for fewer than 128 rows; its kernel by Triton: qlinear_tritonv2.py,
 *     triton_utils/dequant.py (QuantLinearFunction).
 */
#ifndef TDM_METHODS_EAGER_QUANTIZED_H
#define TDM_METHODS_EAGER_QUANTIZED_H

#include "methods/eager/eager.h"

enum tdm_quantization {
    TDM_QUANTIZATION_NONE,
    TDM_QUANTIZATION_NF4,  /* bitsandbytes' 4 bits (fp4 takes the same), blocks of 64 */
    TDM_QUANTIZATION_INT8, /* bitsandbytes' LLM.int8() */
    TDM_QUANTIZATION_GPTQ, /* 4 bits in groups; 2 or 8 if a config says so */
    TDM_QUANTIZATION_AWQ,  /* the same, by AutoAWQ's kernels */
    /* No values of the key: nf4 with bnb_4bit_use_double_quant, gptq by Triton's kernel. */
    TDM_QUANTIZATION_NF4_DOUBLE,
    TDM_QUANTIZATION_GPTQ_TRITON,
};

/* A frozen leaf of rows x columns. While it is made, the weight in bf16 is there too, unless it
 * comes quantized from its files (gptq, awq). The caller owns *quantized, and frees it with free()
 * when no product follows. Leaves to m->no_memory if the process has none.
 * `keeps_inputs`: products of 4 bits hold their input as long as the graph lives, as in
 * bitsandbytes before 0.43. `half`: of nf4, the weight was quantized in fp16, which it is again
 * before it is cast for a product. `group`: of gptq and awq, inputs with one scale; 0: all of them.
 * `bits`: of gptq, 2, 4 or 8.
 */
struct tdm_eager_value *tdm_quantized_leaf(struct tdm_eager *m, enum tdm_quantization kind,
                                           uint64_t rows, uint64_t columns, bool keeps_inputs,
                                           bool half, uint64_t group, uint32_t bits,
                                           struct tdm_quantized **quantized);

/* The same of nf4 whose packed weight another value has, a shard that is gathered: the leaf takes
 * no memory, its scales do. */
struct tdm_eager_value *tdm_quantized_leaf_of_shard(struct tdm_eager *m, enum tdm_quantization kind,
                                                    uint64_t rows, uint64_t columns,
                                                    struct tdm_quantized **quantized);

/* Bytes of the weight and of all that belongs to it, without rounding. */
uint64_t tdm_quantized_bytes(const struct tdm_quantized *quantized);

/* Must peft's layer copy the result of the product before it adds the adapter's? */
bool tdm_quantized_is_cloned(const struct tdm_quantized *quantized);

/* Is it a layer of peft that casts the adapter's result and not the sum: of bitsandbytes or of AWQ?
 */
bool tdm_quantized_casts_results(const struct tdm_quantized *quantized);
/* Does that layer cast before it scales? */
bool tdm_quantized_casts_first(const struct tdm_quantized *quantized);

/* A weight of 4 bits in 16 bits, as a new value, for products that fused code makes itself
 * (lora_kernels): one scratch of scales of nf4 goes before it returns. */
struct tdm_eager_value *tdm_quantized_wide(struct tdm_eager *m,
                                           const struct tdm_eager_value *weight);

/* x W^T + b. */
struct tdm_eager_value *tdm_quantized_linear(struct tdm_eager *m, struct tdm_eager_value *x,
                                             struct tdm_eager_value *weight,
                                             struct tdm_eager_value *bias);

#endif
