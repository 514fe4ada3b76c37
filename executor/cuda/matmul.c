/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products by cuBLASLt: bf16 and fp32 factors, fp32 sums. Bias and addend are added before the
 * result is rounded. There is one exception: if the sum starts from a bf16 C itself, some kernels
 * round first (on an H200 all those seen with B not transposed, the gradients of K's and V's
 * inputs).
 *
 * cuBLASLt is column-major: a row-major matrix here is a transposed one there, so C = A B becomes
 * C^T = B^T A^T. The library has half a gigabyte, so it is loaded only when this backend is opened.
 * Algorithms come from its heuristics, without reductions in the dtype of the result: on a Hopper
 * GPU the one that product_choice.c takes, else the first. They are stored by shape. A choice by
 * time might differ from run to run.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/cuda/matmul.h"

#include "executor/cuda/cuda_error.h"
#include "executor/cuda/product_choice.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shapes that are stored; a model needs about 20. */
#define SHAPES 256u
/* A larger alignment makes no difference to any algorithm. */
#define ALIGN_MOST 256u

/* The functions of cuBLASLt that are used. */
struct library {
    void *handle;
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtGetStatusString) status_string;
    __typeof__(&cublasLtMatmulDescCreate) desc_create;
    __typeof__(&cublasLtMatmulDescDestroy) desc_destroy;
    __typeof__(&cublasLtMatmulDescSetAttribute) desc_set;
    __typeof__(&cublasLtMatrixLayoutCreate) layout_create;
    __typeof__(&cublasLtMatrixLayoutDestroy) layout_destroy;
    __typeof__(&cublasLtMatmulPreferenceCreate) preference_create;
    __typeof__(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    __typeof__(&cublasLtMatmulAlgoConfigGetAttribute) config_get;
    __typeof__(&cublasLtMatmul) matmul;
};

/* Everything that the choice of an algorithm depends on. */
struct key {
    uint64_t m, n, k, a_stride, b_stride, c_stride, start_stride;
    uint64_t workspace_bytes;
    uint32_t a_align, b_align, c_align, start_align; /* bytes */
    enum tdm_dtype factors, result;
    bool a_transposed, b_transposed, biased, added;
};

struct shape {
    struct key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, start, c; /* in cuBLASLt's terms: its a is our b */
    cublasLtMatmulAlgo_t algorithm;
    bool by_library; /* false: the library has no algorithm for this shape */
};

struct tdm_matmul {
    struct library library;
    cublasLtHandle_t handle;
    void *workspace;
    uint64_t workspace_bytes;
    bool is_hopper;
    struct shape *shapes; /* [SHAPES] */
    uint32_t shape_count, next_victim;
};

static enum tdm_status lt_status(const struct tdm_matmul *matmul, cublasStatus_t code,
                                 const char *call, struct tdm_error *err)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return TDM_OK;
    return tdm_fail(err, code == CUBLAS_STATUS_ALLOC_FAILED ? TDM_NO_MEMORY : TDM_INTERNAL,
                    "cuBLASLt: %s: %s", call, matmul->library.status_string(code));
}

/* ---- the library ---- */

static bool find_all(struct library *l)
{
    const struct {
        const char *name;
        void **function;
    } functions[] = {
        {"cublasLtCreate", (void **)&l->create},
        {"cublasLtDestroy", (void **)&l->destroy},
        {"cublasLtGetStatusString", (void **)&l->status_string},
        {"cublasLtMatmulDescCreate", (void **)&l->desc_create},
        {"cublasLtMatmulDescDestroy", (void **)&l->desc_destroy},
        {"cublasLtMatmulDescSetAttribute", (void **)&l->desc_set},
        {"cublasLtMatrixLayoutCreate", (void **)&l->layout_create},
        {"cublasLtMatrixLayoutDestroy", (void **)&l->layout_destroy},
        {"cublasLtMatmulPreferenceCreate", (void **)&l->preference_create},
        {"cublasLtMatmulPreferenceDestroy", (void **)&l->preference_destroy},
        {"cublasLtMatmulPreferenceSetAttribute", (void **)&l->preference_set},
        {"cublasLtMatmulAlgoGetHeuristic", (void **)&l->heuristic},
        {"cublasLtMatmulAlgoConfigGetAttribute", (void **)&l->config_get},
        {"cublasLtMatmul", (void **)&l->matmul},
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        *functions[i].function = dlsym(l->handle, functions[i].name);
        if (*functions[i].function == NULL)
            return false;
    }
    return true;
}

static enum tdm_status load(struct library *library, struct tdm_error *err)
{
    const int version = CUDART_VERSION / 1000;
    const char *const folders[] = {"", TDM_CUDA_LIBRARY_FOLDER "/"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && library->handle == NULL; i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%slibcublasLt.so.%d", folders[i], version);
        /* its kernels are registered with the driver, so it stays loaded after use */
        library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    if (library->handle != NULL && find_all(library))
        return TDM_OK;
    tdm_fail(err, TDM_NO_DEVICE, "libcublasLt.so.%d is missing, which the cuda backend needs",
             version);
    return tdm_hint(err, "install cuBLAS of CUDA %d, or name its folder in LD_LIBRARY_PATH",
                    version);
}

static enum tdm_status see_device(struct tdm_matmul *matmul, struct tdm_error *err)
{
    int device = 0, major = 0;
    enum tdm_status status = TDM_CUDA(cudaGetDevice(&device), err);
    if (status == TDM_OK)
        status = TDM_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                          err);
    matmul->is_hopper = major == 9;
    return status;
}

enum tdm_status tdm_matmul_open(struct tdm_matmul **opened, struct tdm_error *err)
{
    struct tdm_matmul *matmul = calloc(1, sizeof(*matmul));
    if (matmul == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for products");
    matmul->shapes = calloc(SHAPES, sizeof(*matmul->shapes));
    enum tdm_status status = matmul->shapes == NULL
                                 ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for products")
                                 : load(&matmul->library, err);
    if (status == TDM_OK)
        status = lt_status(matmul, matmul->library.create(&matmul->handle), "cublasLtCreate", err);
    if (status == TDM_OK)
        status = see_device(matmul, err);
    if (status != TDM_OK) {
        tdm_matmul_close(matmul);
        return status;
    }
    *opened = matmul;
    return TDM_OK;
}

static void forget(const struct library *library, struct shape *shape)
{
    if (shape->desc != NULL)
        library->desc_destroy(shape->desc);
    cublasLtMatrixLayout_t layouts[] = {shape->a, shape->b, shape->start, shape->c};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i] != NULL)
            library->layout_destroy(layouts[i]);
    memset(shape, 0, sizeof(*shape));
}

void tdm_matmul_close(struct tdm_matmul *matmul)
{
    if (matmul == NULL)
        return;
    for (uint32_t i = 0; i < matmul->shape_count; i++)
        forget(&matmul->library, &matmul->shapes[i]);
    free(matmul->shapes);
    if (matmul->handle != NULL)
        matmul->library.destroy(matmul->handle);
    if (matmul->library.handle != NULL)
        dlclose(matmul->library.handle);
    free(matmul);
}

void tdm_matmul_use(struct tdm_matmul *matmul, void *workspace, uint64_t bytes)
{
    matmul->workspace = workspace;
    matmul->workspace_bytes = bytes;
}

/* ---- shapes ---- */

static uint32_t alignment(const void *data)
{
    uint32_t align = ALIGN_MOST;
    while ((uintptr_t)data % align != 0)
        align /= 2;
    return align;
}

/* The matrix that C starts from: C itself or an addend. If neither is added, it is not read. */
static const struct tdm_matrix *start_of(const struct tdm_multiplication *x)
{
    return x->addend.data != NULL ? &x->addend : &x->c;
}

static bool is_value(enum tdm_dtype dtype)
{
    return dtype == TDM_DTYPE_FP32 || dtype == TDM_DTYPE_BF16;
}

/* Can cuBLASLt multiply these dtypes? */
static bool suits_library(const struct tdm_multiplication *x)
{
    enum tdm_dtype factors = x->term[0].a.dtype, result = x->c.dtype;
    if (x->terms != 1 || x->term[0].b.dtype != factors || !is_value(factors))
        return false;
    if (result != factors && !(factors == TDM_DTYPE_BF16 && result == TDM_DTYPE_FP32))
        return false;
    return (x->addend.data == NULL || x->addend.dtype == result) &&
           (x->bias.data == NULL || x->bias.dtype == result);
}

static struct key key_of(const struct tdm_matmul *matmul, const struct tdm_multiplication *x)
{
    struct key key;
    memset(&key, 0, sizeof(key)); /* keys are compared byte by byte */
    key.m = x->m;
    key.n = x->n;
    key.k = x->term[0].k;
    key.a_stride = x->term[0].a.stride;
    key.b_stride = x->term[0].b.stride;
    key.c_stride = x->c.stride;
    key.start_stride = start_of(x)->stride;
    key.a_align = alignment(x->term[0].a.data);
    key.b_align = alignment(x->term[0].b.data);
    key.c_align = alignment(x->c.data);
    key.start_align = alignment(start_of(x)->data);
    key.factors = x->term[0].a.dtype;
    key.result = x->c.dtype;
    key.a_transposed = x->term[0].a.transposed;
    key.b_transposed = x->term[0].b.transposed;
    key.biased = x->bias.data != NULL;
    key.added = x->add || x->addend.data != NULL;
    key.workspace_bytes = matmul->workspace_bytes;
    return key;
}

static cudaDataType_t type_of(enum tdm_dtype dtype)
{
    return dtype == TDM_DTYPE_FP32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* The layout of a matrix with `rows` rows of `columns` in memory, in column-major terms. */
static cublasStatus_t make_layout(const struct library *library, cublasLtMatrixLayout_t *layout,
                                  enum tdm_dtype dtype, uint64_t rows, uint64_t columns,
                                  uint64_t stride)
{
    return library->layout_create(layout, type_of(dtype), columns, rows, (int64_t)stride);
}

static cublasStatus_t describe(const struct library *library, struct shape *shape)
{
    const struct key *key = &shape->key;
    /* the library's first factor is our second */
    cublasOperation_t first = key->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = key->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = key->biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasStatus_t code = library->desc_create(&shape->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = library->desc_set(shape->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    if (code == CUBLAS_STATUS_SUCCESS)
        code = library->desc_set(shape->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (code == CUBLAS_STATUS_SUCCESS)
        code = library->desc_set(shape->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                 sizeof(epilogue));
    if (code == CUBLAS_STATUS_SUCCESS)
        code = make_layout(library, &shape->a, key->factors, key->b_transposed ? key->n : key->k,
                           key->b_transposed ? key->k : key->n, key->b_stride);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = make_layout(library, &shape->b, key->factors, key->a_transposed ? key->k : key->m,
                           key->a_transposed ? key->m : key->k, key->a_stride);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = make_layout(library, &shape->start, key->result, key->m, key->n, key->start_stride);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = make_layout(library, &shape->c, key->result, key->m, key->n, key->c_stride);
    return code;
}

static cublasStatus_t prefer(const struct library *library, const struct key *key,
                             cublasLtMatmulPreference_t preference)
{
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &key->workspace_bytes, sizeof(uint64_t)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof(reductions)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key->b_align, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key->a_align, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key->start_align, sizeof(uint32_t)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key->c_align, sizeof(uint32_t)},
    };
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
        if (code == CUBLAS_STATUS_SUCCESS)
            code = library->preference_set(preference, attributes[i].name, attributes[i].value,
                                           attributes[i].bytes);
    return code;
}

/* A number of an algorithm's configuration; 0 if it has none. */
static uint32_t setting(const struct library *library, const cublasLtMatmulAlgo_t *algorithm,
                        cublasLtMatmulAlgoConfigAttributes_t name)
{
    uint32_t value = 0;
    size_t written;
    if (library->config_get(algorithm, name, &value, sizeof(value), &written) !=
        CUBLAS_STATUS_SUCCESS)
        return 0;
    return value;
}

/* What the library proposes for a shape that is described; none if it cannot multiply it. */
static enum tdm_status propose(const struct tdm_matmul *matmul, const struct shape *shape,
                               struct tdm_product_kernel kernels[TDM_PRODUCT_KERNELS],
                               cublasLtMatmulAlgo_t algorithms[TDM_PRODUCT_KERNELS],
                               uint32_t *count, struct tdm_error *err)
{
    const struct library *library = &matmul->library;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[TDM_PRODUCT_KERNELS];
    int number = 0;
    *count = 0;
    enum tdm_status status = lt_status(matmul, library->preference_create(&preference),
                                       "cublasLtMatmulPreferenceCreate", err);
    if (status == TDM_OK)
        status = lt_status(matmul, prefer(library, &shape->key, preference),
                           "cublasLtMatmulPreferenceSetAttribute", err);
    if (status == TDM_OK) {
        cublasStatus_t code =
            library->heuristic(matmul->handle, shape->desc, shape->a, shape->b, shape->start,
                               shape->c, preference, TDM_PRODUCT_KERNELS, found, &number);
        if (code != CUBLAS_STATUS_SUCCESS)
            number = 0;
        if (code != CUBLAS_STATUS_SUCCESS && code != CUBLAS_STATUS_NOT_SUPPORTED &&
            code != CUBLAS_STATUS_INVALID_VALUE)
            status = lt_status(matmul, code, "cublasLtMatmulAlgoGetHeuristic", err);
    }
    for (int i = 0; i < number && found[i].state == CUBLAS_STATUS_SUCCESS; i++) {
        algorithms[i] = found[i].algo;
        kernels[i] = (struct tdm_product_kernel){
            .tile = setting(library, &found[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
            .split = setting(library, &found[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            .waves = found[i].wavesCount};
        *count += 1;
    }
    if (preference != NULL)
        library->preference_destroy(preference);
    return status;
}

/* Fills a shape whose key is set. */
static enum tdm_status choose(const struct tdm_matmul *matmul, struct shape *shape,
                              struct tdm_error *err)
{
    const struct key *key = &shape->key;
    struct tdm_product_kernel kernels[TDM_PRODUCT_KERNELS];
    cublasLtMatmulAlgo_t algorithms[TDM_PRODUCT_KERNELS];
    uint32_t count = 0, chosen = 0;
    enum tdm_status status =
        lt_status(matmul, describe(&matmul->library, shape), "describing a product", err);
    if (status == TDM_OK)
        status = propose(matmul, shape, kernels, algorithms, &count, err);
    shape->by_library = status == TDM_OK && count > 0;
    if (!shape->by_library)
        return status;
    if (matmul->is_hopper && key->factors == TDM_DTYPE_BF16)
        chosen = tdm_product_choose(key->m, key->n, key->k, count, kernels);
    shape->algorithm = algorithms[chosen];
    return TDM_OK;
}

static enum tdm_status find_shape(struct tdm_matmul *matmul, const struct key *key,
                                  struct shape **found, struct tdm_error *err)
{
    for (uint32_t i = 0; i < matmul->shape_count; i++) {
        if (memcmp(&matmul->shapes[i].key, key, sizeof(*key)) == 0) {
            *found = &matmul->shapes[i];
            return TDM_OK;
        }
    }
    struct shape *shape;
    if (matmul->shape_count < SHAPES) {
        shape = &matmul->shapes[matmul->shape_count++];
    } else {
        shape = &matmul->shapes[matmul->next_victim++ % SHAPES];
        forget(&matmul->library, shape);
    }
    shape->key = *key;
    *found = shape;
    return choose(matmul, shape, err);
}

/* ---- multiplying ---- */

/* Does `second` begin `elements` elements after `first` in memory, with the same layout? */
static bool is_behind(const struct tdm_matrix *first, const struct tdm_matrix *second,
                      uint64_t elements)
{
    return first->data != NULL && first->dtype == second->dtype &&
           first->stride == second->stride && first->transposed == second->transposed &&
           (unsigned char *)first->data + elements * tdm_dtype_bytes(first->dtype) ==
               (unsigned char *)second->data;
}

static bool is_same(const struct tdm_matrix *a, const struct tdm_matrix *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->stride == b->stride &&
           a->transposed == b->transposed;
}

/* Elements in memory from row or column 0 to `number`. */
static uint64_t rows_to(const struct tdm_matrix *x, uint64_t number)
{
    return x->transposed ? number : number * x->stride;
}

static uint64_t columns_to(const struct tdm_matrix *x, uint64_t number)
{
    return x->transposed ? number * x->stride : number;
}

/* Joins two terms whose factors are adjacent in memory into one deeper term. */
static void join_terms(struct tdm_multiplication *x)
{
    if (x->terms != 2)
        return;
    uint64_t k = x->term[0].k;
    if (is_behind(&x->term[0].a, &x->term[1].a, columns_to(&x->term[0].a, k)) &&
        is_behind(&x->term[0].b, &x->term[1].b, rows_to(&x->term[0].b, k))) {
        x->term[0].k += x->term[1].k;
        x->terms = 1;
    }
}

/* Do both start from nothing, or from matrices of which the second follows the first in memory? */
static bool join_starts(const struct tdm_matrix *first, const struct tdm_matrix *second,
                        uint64_t elements)
{
    return first->data == NULL ? second->data == NULL : is_behind(first, second, elements);
}

uint32_t tdm_multiplications_join(uint32_t count, struct tdm_multiplication *x)
{
    for (uint32_t i = 0; i < count; i++)
        join_terms(&x[i]);
    if (count != 2 || x[0].terms != 1 || x[1].terms != 1 || x[0].term[0].k != x[1].term[0].k ||
        x[0].add != x[1].add)
        return count;
    uint64_t m = x[0].m, n = x[0].n;
    bool beside = m == x[1].m && is_same(&x[0].term[0].a, &x[1].term[0].a) &&
                  is_behind(&x[0].term[0].b, &x[1].term[0].b, columns_to(&x[0].term[0].b, n)) &&
                  is_behind(&x[0].c, &x[1].c, n) && join_starts(&x[0].addend, &x[1].addend, n) &&
                  join_starts(&x[0].bias, &x[1].bias, n);
    bool below = n == x[1].n && is_same(&x[0].term[0].b, &x[1].term[0].b) &&
                 is_behind(&x[0].term[0].a, &x[1].term[0].a, rows_to(&x[0].term[0].a, m)) &&
                 is_behind(&x[0].c, &x[1].c, rows_to(&x[0].c, m)) && x[0].addend.data == NULL &&
                 x[1].addend.data == NULL && x[0].bias.data == NULL && x[1].bias.data == NULL;
    if (beside)
        x[0].n += x[1].n;
    else if (below)
        x[0].m += x[1].m;
    return beside || below ? 1 : count;
}

static enum tdm_status multiply_one(struct tdm_matmul *matmul, const struct tdm_multiplication *x,
                                    cudaStream_t stream, struct tdm_error *err)
{
    struct shape *shape;
    if (!suits_library(x))
        return tdm_cuda_gemm(x, stream, err);
    struct key key = key_of(matmul, x);
    enum tdm_status status = find_shape(matmul, &key, &shape, err);
    if (status != TDM_OK)
        return status;
    if (!shape->by_library)
        return tdm_cuda_gemm(x, stream, err);
    const struct library *library = &matmul->library;
    const float one = 1.0f, start = key.added ? 1.0f : 0.0f;
    if (key.biased)
        status = lt_status(matmul,
                           library->desc_set(shape->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                             &x->bias.data, sizeof(x->bias.data)),
                           "cublasLtMatmulDescSetAttribute", err);
    if (status != TDM_OK)
        return status;
    return lt_status(matmul,
                     library->matmul(matmul->handle, shape->desc, &one, x->term[0].b.data, shape->a,
                                     x->term[0].a.data, shape->b, &start, start_of(x)->data,
                                     shape->start, x->c.data, shape->c, &shape->algorithm,
                                     matmul->workspace, key.workspace_bytes, stream),
                     "cublasLtMatmul", err);
}

enum tdm_status tdm_matmul_proposals(struct tdm_matmul *matmul, const struct tdm_multiplication *x,
                                     struct tdm_product_kernel kernels[TDM_PRODUCT_KERNELS],
                                     uint32_t *count, struct tdm_error *err)
{
    struct shape *shape;
    cublasLtMatmulAlgo_t algorithms[TDM_PRODUCT_KERNELS];
    struct key key = key_of(matmul, x);
    *count = 0;
    if (!suits_library(x))
        return TDM_OK;
    enum tdm_status status = find_shape(matmul, &key, &shape, err);
    return status == TDM_OK ? propose(matmul, shape, kernels, algorithms, count, err) : status;
}

enum tdm_status tdm_matmul_take(struct tdm_matmul *matmul, const struct tdm_multiplication *x,
                                uint32_t proposal, struct tdm_error *err)
{
    struct shape *shape;
    struct tdm_product_kernel kernels[TDM_PRODUCT_KERNELS];
    cublasLtMatmulAlgo_t algorithms[TDM_PRODUCT_KERNELS];
    uint32_t count;
    struct key key = key_of(matmul, x);
    enum tdm_status status = find_shape(matmul, &key, &shape, err);
    if (status == TDM_OK)
        status = propose(matmul, shape, kernels, algorithms, &count, err);
    if (status == TDM_OK && proposal >= count)
        status = tdm_fail(err, TDM_USAGE, "cuBLASLt proposes only %u kernels", count);
    if (status == TDM_OK)
        shape->algorithm = algorithms[proposal];
    return status;
}

enum tdm_status tdm_cuda_multiply(struct tdm_matmul *matmul, uint32_t count,
                                  const struct tdm_multiplication *multiplications,
                                  cudaStream_t stream, struct tdm_error *err)
{
    struct tdm_multiplication joined[2];
    memcpy(joined, multiplications, count * sizeof(joined[0]));
    count = tdm_multiplications_join(count, joined);
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++)
        status = multiply_one(matmul, &joined[i], stream, err);
    return status;
}
