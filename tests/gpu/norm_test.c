/* SPDX-License-Identifier: Apache-2.0 */
/* Compares every version of RMSNorm on the GPU with the reference in double, at fixed and random
 * shapes.
 *
 * The error is |y - reference| over |reference|, for the worst element. The bound is half a unit in
 * the last place of bf16 (2^-8 at worst) plus the error of fp32: (3 + log2(hidden)) * 2^-22. */
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/norm.h"
#include "tests/gpu/gpu_test.h"

#include <math.h>
#include <string.h>

struct shape {
    uint64_t rows;
    uint32_t hidden;
    enum tdm_dtype weight_dtype;
    uint32_t shift; /* elements by which x is off 16-byte alignment */
    bool in_place;
    float scale; /* of the elements of x */
};

static const struct shape shapes[] = {
    {1, 8, TDM_DTYPE_BF16, 0, false, 1.0f},      {1, 1, TDM_DTYPE_BF16, 0, false, 1.0f},
    {3, 7, TDM_DTYPE_FP32, 0, false, 1.0f},      {5, 896, TDM_DTYPE_BF16, 0, false, 1.0f},
    {257, 2048, TDM_DTYPE_FP32, 0, false, 1.0f}, {256, 3584, TDM_DTYPE_BF16, 0, false, 1.0f},
    {256, 3584, TDM_DTYPE_BF16, 0, true, 1.0f},  {64, 3584, TDM_DTYPE_BF16, 1, false, 1.0f},
    {33, 4096, TDM_DTYPE_FP32, 0, true, 100.0f}, {17, 4104, TDM_DTYPE_BF16, 0, false, 1e-4f},
    {64, 8192, TDM_DTYPE_BF16, 0, false, 1.0f},  {2, 16384, TDM_DTYPE_FP32, 0, false, 1.0f},
    {2, 65536, TDM_DTYPE_BF16, 0, false, 1.0f},  {2, 70000, TDM_DTYPE_BF16, 0, true, 1.0f},
    {2, 32768, TDM_DTYPE_FP32, 0, false, 1.0f},  {70000, 64, TDM_DTYPE_BF16, 0, false, 1.0f},
};

static const double epsilon = 1e-6;

static void die(const struct tdm_error *err)
{
    printf("Bail out! %s\n", err->message);
    exit(1);
}

static void *on_host(uint64_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        printf("Bail out! out of memory\n");
        exit(1);
    }
    return memory;
}

/* Runs one shape with one version (TDM_RMS_NORM_VERSIONS: the chosen one). The case passes if every
 * element is within the bound. */
static void run_shape(struct gpu_test *test, const struct shape *shape,
                      enum tdm_rms_norm_version version)
{
    struct tdm_error err = {0};
    const uint64_t elements = shape->rows * shape->hidden;
    const uint64_t x_bytes = (elements + shape->shift) * 2;
    const uint64_t weight_bytes = shape->hidden * tdm_dtype_bytes(shape->weight_dtype);

    uint16_t *x = on_host(x_bytes);
    float *x_float = on_host(elements * sizeof(float));
    void *weight = on_host(weight_bytes);
    float *weight_float = on_host(shape->hidden * sizeof(float));
    double *want = on_host(elements * sizeof(double));
    for (uint32_t i = 0; i < shape->shift; i++)
        x[i] = 0;
    for (uint64_t i = 0; i < elements; i++) {
        x[i + shape->shift] = tdm_float_to_bf16(gpu_test_float(test) * shape->scale);
        x_float[i] = tdm_bf16_to_float(x[i + shape->shift]);
    }
    for (uint32_t i = 0; i < shape->hidden; i++) {
        weight_float[i] = 1.0f + gpu_test_float(test);
        if (shape->weight_dtype == TDM_DTYPE_BF16) {
            ((uint16_t *)weight)[i] = tdm_float_to_bf16(weight_float[i]);
            weight_float[i] = tdm_bf16_to_float(((uint16_t *)weight)[i]);
        } else {
            ((float *)weight)[i] = weight_float[i];
        }
    }
    tdm_rms_norm_reference(x_float, weight_float, shape->rows, shape->hidden, epsilon, want);

    uint16_t *x_device = NULL, *y_device = NULL;
    void *weight_device = NULL;
    cudaStream_t stream = NULL;
    if (TDM_CUDA(cudaStreamCreate(&stream), &err) != TDM_OK ||
        TDM_CUDA(cudaMalloc((void **)&x_device, x_bytes), &err) != TDM_OK ||
        TDM_CUDA(cudaMalloc((void **)&y_device, x_bytes), &err) != TDM_OK ||
        TDM_CUDA(cudaMalloc(&weight_device, weight_bytes), &err) != TDM_OK ||
        TDM_CUDA(cudaMemcpy(x_device, x, x_bytes, cudaMemcpyHostToDevice), &err) != TDM_OK ||
        TDM_CUDA(cudaMemset(y_device, 0xff, x_bytes), &err) != TDM_OK ||
        TDM_CUDA(cudaMemcpy(weight_device, weight, weight_bytes, cudaMemcpyHostToDevice), &err) !=
            TDM_OK)
        die(&err);

    uint16_t *in = x_device + shape->shift;
    uint16_t *out = shape->in_place ? in : y_device;
    const bool chosen = version == TDM_RMS_NORM_VERSIONS;
    enum tdm_status status =
        chosen ? tdm_cuda_rms_norm(in, weight_device, shape->weight_dtype, shape->rows,
                                   shape->hidden, (float)epsilon, out, stream, &err)
               : tdm_cuda_rms_norm_version(version, in, weight_device, shape->weight_dtype,
                                           shape->rows, shape->hidden, (float)epsilon, out, stream,
                                           &err);
    if (!chosen && status == TDM_USAGE)
        goto free_all; /* this version refuses this shape */
    if (status != TDM_OK || TDM_CUDA(cudaStreamSynchronize(stream), &err) != TDM_OK ||
        TDM_CUDA(cudaMemcpy(x, out, elements * 2, cudaMemcpyDeviceToHost), &err) != TDM_OK)
        die(&err);

    double worst = 0.0;
    for (uint64_t i = 0; i < elements; i++) {
        const double got = tdm_bf16_to_float(x[i]);
        const double error = want[i] == 0.0 ? fabs(got) : fabs(got - want[i]) / fabs(want[i]);
        if (!(error <= worst)) /* a NaN is the worst */
            worst = error;
    }
    const double bound = 0x1p-8 + (3.0 + log2(shape->hidden)) * 0x1p-22;
    gpu_test_case(
        test, worst <= bound, "rows %llu hidden %u weight %s shift %u%s, %s: error %.3g of %.3g",
        (unsigned long long)shape->rows, shape->hidden, tdm_dtype_name(shape->weight_dtype),
        shape->shift, shape->in_place ? " in place" : "",
        chosen ? "chosen" : tdm_rms_norm_version_name(version), worst, bound);

free_all:
    cudaFree(x_device);
    cudaFree(y_device);
    cudaFree(weight_device);
    cudaStreamDestroy(stream);
    free(x);
    free(x_float);
    free(weight);
    free(weight_float);
    free(want);
}

static void run_refusals(struct gpu_test *test)
{
    struct tdm_error err = {0};
    enum tdm_status status =
        tdm_cuda_rms_norm(NULL, NULL, TDM_DTYPE_FP16, 1, 8, 1e-6f, NULL, NULL, &err);
    gpu_test_case(test, status == TDM_USAGE && strstr(err.message, "fp16") != NULL,
                  "a weight in fp16 is refused");
    status = tdm_cuda_rms_norm(NULL, NULL, TDM_DTYPE_BF16, UINT64_C(1) << 31, 8, 1e-6f, NULL, NULL,
                               &err);
    gpu_test_case(test, status == TDM_USAGE, "more rows than a grid holds are refused");
    status = tdm_cuda_rms_norm(NULL, NULL, TDM_DTYPE_BF16, 0, 8, 1e-6f, NULL, NULL, &err);
    gpu_test_case(test, status == TDM_OK, "no rows are no work");
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (int version = 0; version <= TDM_RMS_NORM_VERSIONS; version++)
            run_shape(&test, &shapes[i], (enum tdm_rms_norm_version)version);
    for (int i = 0; i < 40; i++) {
        struct shape shape = {
            .rows = gpu_test_between(&test, 1, 300),
            .hidden = (uint32_t)gpu_test_between(&test, 1, 1200),
            .weight_dtype = gpu_test_between(&test, 0, 1) ? TDM_DTYPE_BF16 : TDM_DTYPE_FP32,
            .shift = gpu_test_between(&test, 0, 3) == 0,
            .in_place = gpu_test_between(&test, 0, 1),
            .scale = 1.0f,
        };
        if (gpu_test_between(&test, 0, 3) != 0)
            shape.hidden *= 8;
        run_shape(&test, &shape, TDM_RMS_NORM_VERSIONS);
    }
    run_refusals(&test);
    return gpu_test_end(&test);
}
