/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what NCCL takes and moves between two GPUs of one computer, with the settings that
 * tidemark gives it, by number of channels.
 *
 *   nccl_bench [--channels LIST] [--first GPU] [--own-buffers]
 *       LIST is 1,2,4,8 by default; GPU and the next one are used. --own-buffers: also 8 channels
 *       with the buffers that NCCL has by itself.
 *
 * First it prints what the driver says that a context takes, and what is left of it with short
 * stacks. Then a line for each number of channels: what the communicator takes, its first send and
 * receive, and all later ones; beside it what plans count for channels, so that the difference is
 * "nccl_base_bytes" of a machine; and GB/s that a GPU receives while it sends as much. "sum" is
 * what `reduce` does: pieces arrive in staging memory, and are added. It is measured alone; beside
 * attention with the priority of the lanes that compute; and with that of the lane of team ops.
 *
 * Each line is a process of its own: NCCL reads its settings once. TIDEMARK_NCCL names the library.
 */
#include "base/size.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/driver_use.h"
#include "executor/cuda/kernels.h"
#include "executor/nccl.h"
#include "machines/nccl.h"
#include "ops/team.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 2, REPEATS = 5, SIZES = 3, SHORT_STACK = 256 };
static const uint64_t sizes[SIZES] = {UINT64_C(4) << 20, UINT64_C(32) << 20, UINT64_C(128) << 20};

/* Attention of a chunk of Qwen2.5-7B: some milliseconds. */
enum { HEADS = 28, KV_HEADS = 4, DIM = 128, PAGE = 128, CHUNK = 4096, KEYS = 65536 };

struct gpu {
    int device;
    struct tdm_driver_use use;
    void *share, *other, *staging; /* of the largest size, but for staging */
    cudaStream_t usual, urgent;
    struct tdm_attend attend;
    tdm_nccl_comm comm;
};

static struct tdm_error err;

static void must(enum tdm_status status)
{
    if (status == TDM_OK)
        return;
    fprintf(stderr, "nccl_bench: %s\n", err.message);
    exit(1);
}

static void must_nccl(const struct tdm_nccl *nccl, int result)
{
    if (result == TDM_NCCL_SUCCESS)
        return;
    fprintf(stderr, "nccl_bench: NCCL: %s\n", nccl->explain(result));
    exit(1);
}

static void here(const struct gpu *gpu)
{
    must(TDM_CUDA(cudaSetDevice(gpu->device), &err));
}

static void *zeros(uint64_t bytes)
{
    void *memory;
    must(TDM_CUDA(cudaMalloc(&memory, bytes), &err));
    must(TDM_CUDA(cudaMemset(memory, 0, bytes), &err));
    return memory;
}

/* MiB that the process uses of the first GPU. */
static double used(const struct gpu *gpu)
{
    uint64_t bytes = 0;
    here(gpu);
    must(TDM_CUDA(cudaDeviceSynchronize(), &err));
    must(tdm_driver_use_read(&gpu->use, &bytes, &err));
    return (double)bytes / 1048576.0;
}

static void open_context(struct gpu *gpu, int device)
{
    *gpu = (struct gpu){.device = device};
    tdm_driver_use_open(&gpu->use, device);
    here(gpu);
    must(TDM_CUDA(cudaFree(NULL), &err));
}

static struct tdm_attend attention(void)
{
    const uint64_t row = (uint64_t)HEADS * DIM, slot = 2 * (uint64_t)CHUNK * KV_HEADS * DIM;
    struct tdm_attend a = {
        .tokens = CHUNK,
        .first_token = KEYS - CHUNK,
        .keys = KEYS,
        .chunk_tokens = CHUNK,
        .page_tokens = PAGE,
        .lists = {.rule = {.selector = {.kind = TDM_SELECT_DENSE},
                           .chunk_tokens = CHUNK,
                           .page_tokens = PAGE},
                  .lists = KV_HEADS},
        .documents = {NULL, 1},
        .query_heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .q = {zeros(CHUNK * row * 2), TDM_DTYPE_BF16},
        .pages = {zeros((uint64_t)KEYS / CHUNK * slot * 2), TDM_DTYPE_BF16},
        .slot_elements = slot,
        .out = {zeros(CHUNK * row * 2), TDM_DTYPE_BF16},
        .lse = zeros((uint64_t)CHUNK * HEADS * sizeof(float)),
        .from = zeros(CHUNK * sizeof(uint32_t)),
        .d = zeros(2 * (uint64_t)CHUNK * HEADS * sizeof(float)),
        .parts = zeros(CHUNK * row * sizeof(float)),
    };
    must(tdm_cuda_attend_from(&a, NULL, &err));
    return a;
}

static void attend(const struct gpu *gpu)
{
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds;
    while (!kind->suits(&gpu->attend))
        kind++;
    must(kind->forward(&gpu->attend, gpu->usual, &err));
}

static void take_memory(struct gpu *gpu)
{
    int usual, highest;
    here(gpu);
    gpu->share = zeros(sizes[SIZES - 1]);
    gpu->other = zeros(sizes[SIZES - 1]);
    gpu->staging = zeros(tdm_team_window_bytes(GPUS));
    must(TDM_CUDA(cudaDeviceGetStreamPriorityRange(&usual, &highest), &err));
    must(TDM_CUDA(cudaStreamCreateWithPriority(&gpu->usual, cudaStreamNonBlocking, usual), &err));
    must(
        TDM_CUDA(cudaStreamCreateWithPriority(&gpu->urgent, cudaStreamNonBlocking, highest), &err));
    gpu->attend = attention();
    attend(gpu); /* kernels are loaded */
    const struct tdm_cuda_shares shares = {{gpu->share, gpu->staging}, 2};
    must(tdm_cuda_sum_shares(&shares, 1, (struct tdm_array){gpu->share, TDM_DTYPE_FP32}, gpu->usual,
                             &err));
    must(TDM_CUDA(cudaDeviceSynchronize(), &err));
}

/* Each GPU sends `bytes` of its share and receives as many. */
static void exchange(const struct tdm_nccl *nccl, struct gpu gpus[GPUS], uint64_t at,
                     uint64_t bytes, bool staged, bool urgent)
{
    must_nccl(nccl, nccl->group_start());
    for (int i = 0; i < GPUS; i++) {
        struct gpu *gpu = &gpus[i];
        cudaStream_t stream = urgent ? gpu->urgent : gpu->usual;
        here(gpu);
        must_nccl(nccl, nccl->send((char *)gpu->share + at, bytes, TDM_NCCL_UINT8, 1 - i, gpu->comm,
                                   stream));
        must_nccl(nccl, nccl->receive(staged ? gpu->staging : (char *)gpu->other + at, bytes,
                                      TDM_NCCL_UINT8, 1 - i, gpu->comm, stream));
    }
    must_nccl(nccl, nccl->group_end());
}

static void sum(const struct tdm_nccl *nccl, struct gpu gpus[GPUS], uint64_t bytes, bool urgent)
{
    const uint64_t window = tdm_team_window_bytes(GPUS);
    for (uint64_t at = 0; at < bytes; at += window) {
        const uint64_t part = tdm_least(window, bytes - at);
        exchange(nccl, gpus, at, part, true, urgent);
        for (int i = 0; i < GPUS; i++) {
            char *own = (char *)gpus[i].share + at;
            const struct tdm_cuda_shares shares = {{own, gpus[i].staging}, 2};
            here(&gpus[i]);
            must(tdm_cuda_sum_shares(&shares, part / 4, (struct tdm_array){own, TDM_DTYPE_FP32},
                                     urgent ? gpus[i].urgent : gpus[i].usual, &err));
        }
    }
}

enum work { SEND, SUM, SUM_BESIDE, SUM_URGENT, WORKS };

/* GB/s that a GPU receives. Beside attention it is timed from the launch to its own end, while
 * enough attention is queued. That is on the stream with the usual priority; sums beside it with
 * the same priority are on the other stream, made anew. */
static double rate(const struct tdm_nccl *nccl, struct gpu gpus[GPUS], enum work work,
                   uint64_t bytes)
{
    const bool urgent = work == SUM_BESIDE || work == SUM_URGENT;
    cudaEvent_t start, end;
    float milliseconds = 0;
    here(&gpus[0]);
    must(TDM_CUDA(cudaEventCreate(&start), &err));
    must(TDM_CUDA(cudaEventCreate(&end), &err));
    for (int round = 0; round < 2; round++) { /* the first one warms up */
        for (int i = 0; i < GPUS && urgent; i++) {
            here(&gpus[i]);
            for (int call = 0; call < 30; call++)
                attend(&gpus[i]);
        }
        here(&gpus[0]);
        cudaStream_t stream = urgent ? gpus[0].urgent : gpus[0].usual;
        must(TDM_CUDA(cudaEventRecord(start, stream), &err));
        for (int i = 0; i < REPEATS; i++)
            if (work == SEND)
                exchange(nccl, gpus, 0, bytes, false, urgent);
            else
                sum(nccl, gpus, bytes, urgent);
        here(&gpus[0]);
        must(TDM_CUDA(cudaEventRecord(end, stream), &err));
        must(TDM_CUDA(cudaEventSynchronize(end), &err));
        must(TDM_CUDA(cudaEventElapsedTime(&milliseconds, start, end), &err));
        for (int i = 0; i < GPUS; i++) {
            here(&gpus[i]);
            must(TDM_CUDA(cudaDeviceSynchronize(), &err));
        }
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    return (double)bytes * REPEATS / milliseconds / 1e6;
}

/* Gives the second stream the usual priority, or the highest. */
static void set_priority(struct gpu gpus[GPUS], bool highest)
{
    for (int i = 0; i < GPUS; i++) {
        int range[2];
        here(&gpus[i]);
        must(TDM_CUDA(cudaDeviceGetStreamPriorityRange(&range[0], &range[1]), &err));
        cudaStreamDestroy(gpus[i].urgent);
        must(TDM_CUDA(
            cudaStreamCreateWithPriority(&gpus[i].urgent, cudaStreamNonBlocking, range[highest]),
            &err));
    }
}

static void measure_channels(int first, uint32_t channels, bool own_buffers)
{
    static const char *const buffers[] = {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE",
                                          "NCCL_LL128_BUFFSIZE", "NCCL_P2P_LL_THRESHOLD"};
    const struct tdm_nccl *nccl;
    struct tdm_nccl_id id;
    struct gpu gpus[GPUS];
    char text[16];
    snprintf(text, sizeof(text), "%u", channels);
    setenv("NCCL_MAX_CTAS", text, 1);
    must(tdm_nccl_load(&nccl, &err));
    for (size_t i = 0; own_buffers && i < sizeof(buffers) / sizeof(buffers[0]); i++)
        unsetenv(buffers[i]);
    for (int i = 0; i < GPUS; i++)
        open_context(&gpus[i], first + i);
    for (int i = 0; i < GPUS; i++)
        take_memory(&gpus[i]);
    const double before = used(gpus);
    must_nccl(nccl, nccl->unique_id(&id));
    must_nccl(nccl, nccl->group_start());
    for (int i = 0; i < GPUS; i++) {
        here(&gpus[i]);
        must_nccl(nccl, nccl->comm_init_rank(&gpus[i].comm, GPUS, id, i));
    }
    must_nccl(nccl, nccl->group_end());
    const double opened = used(gpus);
    exchange(nccl, gpus, 0, 1, false, true);
    const double warm = used(gpus);
    double rates[WORKS][SIZES];
    for (int work = 0; work < WORKS; work++) {
        set_priority(gpus, work == SUM_URGENT);
        for (int size = 0; size < SIZES; size++)
            rates[work][size] = rate(nccl, gpus, (enum work)work, sizes[size]);
    }
    const double after = used(gpus);
    const double counted =
        (double)tdm_nccl_channel_bytes(&tdm_nccl_buffers, channels, GPUS - 1) / 1048576.0;
    printf("%5d %8u%c %7.0f %7.0f %7.0f", nccl->version, channels, own_buffers ? '*' : ' ',
           opened - before, warm - opened, after - warm);
    if (own_buffers)
        printf(" %8s %8s", "-", "-");
    else
        printf(" %8.0f %8.0f", counted, after - before - counted);
    for (int work = 0; work < WORKS; work++) {
        printf(" |");
        for (int size = 0; size < SIZES; size++)
            printf(" %5.1f", rates[work][size]);
    }
    printf("\n");
    fflush(stdout);
}

/* Half of a context may be stacks, of 1 KiB for every thread that can be resident. */
static void measure_stacks(int first)
{
    struct gpu gpu;
    size_t stack = 0;
    open_context(&gpu, first);
    const double context = used(&gpu);
    must(TDM_CUDA(cudaDeviceGetLimit(&stack, cudaLimitStackSize), &err));
    must(TDM_CUDA(cudaDeviceSetLimit(cudaLimitStackSize, SHORT_STACK), &err));
    const double limited = used(&gpu);
    gpu.share = zeros(2 << 20);
    const struct tdm_cuda_shares shares = {{gpu.share, gpu.share}, 2};
    must(tdm_cuda_sum_shares(&shares, 1024, (struct tdm_array){gpu.share, TDM_DTYPE_FP32}, NULL,
                             &err));
    printf(
        "context: %.0f MiB with stacks of %zu B; %.0f with %d B, %.0f after a kernel and 2 MiB\n",
        context, stack, limited, SHORT_STACK, used(&gpu));
    fflush(stdout);
}

/* Waits for a process of its own. Returns whether it succeeded. */
static bool child(void (*measure)(int, uint32_t, bool), int first, uint32_t channels,
                  bool own_buffers)
{
    int status = 1;
    const pid_t pid = fork();
    if (pid == 0) {
        if (measure == NULL)
            measure_stacks(first);
        else
            measure(first, channels, own_buffers);
        _exit(0); /* what NCCL and CUDA hold goes with the process */
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
    const char *list = "1,2,4,8";
    bool own_buffers = false;
    int first = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--own-buffers") == 0) {
            own_buffers = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--channels") == 0) {
            list = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--first") == 0) {
            first = atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: nccl_bench [--channels LIST] [--first GPU] [--own-buffers]\n");
            return 2;
        }
    }
    bool good = child(NULL, first, 0, false);
    printf("%5s %9s %7s %7s %7s %8s %8s | GB/s at 4, 32, 128 MiB:\n", "NCCL", "channels", "made",
           "first", "later", "counted", "base");
    printf("%57s | %-17s | %-17s | %-17s | %-17s\n", "MiB", "send and receive", "sum",
           "beside attention", "and urgent");
    fflush(stdout);
    for (const char *at = list; *at != '\0'; at += strspn(at, ",")) {
        char *end;
        const unsigned long channels = strtoul(at, &end, 10);
        if (end == at || channels < 1 || channels > TDM_NCCL_MOST_CHANNELS) {
            fprintf(stderr, "nccl_bench: --channels: \"%s\" does not begin with a number\n", at);
            return 2;
        }
        good = child(measure_channels, first, (uint32_t)channels, false) && good;
        at = end;
    }
    if (own_buffers)
        good = child(measure_channels, first, TDM_NCCL_CHANNELS, true) && good;
    return good ? 0 : 1;
}
