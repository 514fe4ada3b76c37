/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory as the driver reports it. */
#include "executor/cuda/driver_use.h"

#include "executor/cuda/cuda_error.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* The part of NVML's interface that is used here. It has been stable since driver 510, so nvml.h
 * need not be installed. */
enum { NVML_OK = 0 };
#define NVML_UNKNOWN UINT64_MAX

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_process {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};

/* Maximum number of processes on one card that are searched. */
#define PROCESSES 128u

static bool find_device(struct tdm_driver_use *use, int device)
{
    int (*init)(void) = NULL;
    int (*by_bus)(const char *, void **) = NULL;
    char bus[32];
    *(void **)&init = dlsym(use->library, "nvmlInit_v2");
    *(void **)&by_bus = dlsym(use->library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&use->shutdown = dlsym(use->library, "nvmlShutdown");
    *(void **)&use->memory = dlsym(use->library, "nvmlDeviceGetMemoryInfo");
    *(void **)&use->processes = dlsym(use->library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (init == NULL || by_bus == NULL || use->shutdown == NULL || use->memory == NULL)
        return false;
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    if (init() != NVML_OK)
        return false;
    if (by_bus(bus, &use->device) == NVML_OK)
        return true;
    use->shutdown();
    return false;
}

static bool read_card(const struct tdm_driver_use *use, struct nvml_memory *memory)
{
    memset(memory, 0, sizeof(*memory));
    return use->library != NULL && use->memory(use->device, memory) == NVML_OK;
}

/* Memory in use on the card, by all processes. */
static bool card_use(const struct tdm_driver_use *use, uint64_t *bytes)
{
    struct nvml_memory memory;
    if (!read_card(use, &memory))
        return false;
    *bytes = memory.used;
    return true;
}

bool tdm_driver_use_free(const struct tdm_driver_use *use, uint64_t *bytes)
{
    struct nvml_memory memory;
    if (!read_card(use, &memory))
        return false;
    *bytes = memory.free;
    return true;
}

void tdm_driver_use_open(struct tdm_driver_use *use, int device)
{
    memset(use, 0, sizeof(*use));
    use->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (use->library == NULL)
        return;
    if (find_device(use, device) && card_use(use, &use->before_bytes))
        return;
    dlclose(use->library);
    memset(use, 0, sizeof(*use));
}

void tdm_driver_use_close(struct tdm_driver_use *use)
{
    if (use->library == NULL)
        return;
    use->shutdown();
    dlclose(use->library);
    memset(use, 0, sizeof(*use));
}

void tdm_driver_version(char *out, size_t out_bytes)
{
    int (*init)(void) = NULL, (*shutdown)(void) = NULL;
    int (*version)(char *, unsigned) = NULL;
    out[0] = '\0';
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&version = dlsym(library, "nvmlSystemGetDriverVersion");
    if (init != NULL && shutdown != NULL && version != NULL && init() == NVML_OK) {
        if (version(out, (unsigned)out_bytes) != NVML_OK)
            out[0] = '\0';
        shutdown();
    }
    dlclose(library);
}

/* Memory that this process uses, by NVML's list of processes. */
static bool process_use(const struct tdm_driver_use *use, uint64_t *bytes)
{
    struct nvml_process list[PROCESSES];
    unsigned count = PROCESSES;
    if (use->library == NULL || use->processes == NULL ||
        use->processes(use->device, &count, list) != NVML_OK)
        return false;
    for (unsigned i = 0; i < count; i++)
        if (list[i].pid == (unsigned)getpid() && list[i].used_bytes != NVML_UNKNOWN) {
            *bytes = list[i].used_bytes;
            return true;
        }
    return false;
}

enum tdm_status tdm_driver_use_read(const struct tdm_driver_use *use, uint64_t *bytes,
                                    struct tdm_error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t used;
    if (process_use(use, bytes))
        return TDM_OK;
    if (card_use(use, &used)) {
        *bytes = used > use->before_bytes ? used - use->before_bytes : 0;
        return TDM_OK;
    }
    enum tdm_status status = TDM_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes), err);
    if (status == TDM_OK)
        *bytes = total_bytes - free_bytes;
    return status;
}

enum tdm_status tdm_driver_free_read(uint64_t *bytes, struct tdm_error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    enum tdm_status status = TDM_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes), err);
    if (status == TDM_OK)
        *bytes = free_bytes;
    return status;
}
