/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NCCL. */
#include "executor/nccl.h"

#include "machines/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tdm_nccl loaded;

/* Looks up a function, of whatever type. */
static void find(void *library, const char *name, void *function, const char **missing)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        *missing = name;
    *(void **)function = found;
}

static enum tdm_status find_all(void *library, struct tdm_nccl *nccl, struct tdm_error *err)
{
    const char *missing = NULL;
    int (*get_version)(int *) = NULL;
    find(library, "ncclGetVersion", &get_version, &missing);
    find(library, "ncclGetUniqueId", &nccl->unique_id, &missing);
    find(library, "ncclCommInitRank", &nccl->comm_init_rank, &missing);
    find(library, "ncclCommDestroy", &nccl->comm_destroy, &missing);
    find(library, "ncclCommAbort", &nccl->comm_abort, &missing);
    find(library, "ncclCommGetAsyncError", &nccl->comm_error, &missing);
    find(library, "ncclGetErrorString", &nccl->explain, &missing);
    find(library, "ncclGroupStart", &nccl->group_start, &missing);
    find(library, "ncclGroupEnd", &nccl->group_end, &missing);
    find(library, "ncclSend", &nccl->send, &missing);
    find(library, "ncclRecv", &nccl->receive, &missing);
    if (missing != NULL)
        return tdm_fail(err, TDM_NO_DEVICE, "the NCCL that was found has no %s", missing);
    if (get_version(&nccl->version) != TDM_NCCL_SUCCESS || nccl->version < TDM_NCCL_OLDEST ||
        nccl->version >= TDM_NCCL_TOO_NEW)
        return tdm_fail(err, TDM_NO_DEVICE, "NCCL has version number %d, not %d to %d",
                        nccl->version, TDM_NCCL_OLDEST, TDM_NCCL_TOO_NEW - 1);
    return TDM_OK;
}

static void set(const char *name, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    setenv(name, text, 1);
}

/* A user's own settings would take memory that no plan counts. */
static void set_environment(void)
{
    set("NCCL_NVLS_ENABLE", 0);
    set("NCCL_RUNTIME_CONNECT", 1);
    set("NCCL_BUFFSIZE", tdm_nccl_buffers.simple);
    set("NCCL_LL_BUFFSIZE", tdm_nccl_buffers.ll);
    set("NCCL_LL128_BUFFSIZE", tdm_nccl_buffers.ll128);
    set("NCCL_P2P_LL_THRESHOLD", 0); /* the simple protocol, however few bytes */
}

enum tdm_status tdm_nccl_load(const struct tdm_nccl **out, struct tdm_error *err)
{
    const char *given = getenv("TIDEMARK_NCCL");
    enum tdm_status status = TDM_OK;
    pthread_mutex_lock(&lock);
    if (loaded.version == 0) {
        struct tdm_nccl nccl = {0};
        set_environment();
        void *library = dlopen(given == NULL ? "libnccl.so.2" : given, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            status = tdm_fail(err, TDM_NO_DEVICE, "NCCL cannot be loaded: %s", dlerror());
        else
            status = find_all(library, &nccl, err);
        if (status == TDM_OK)
            loaded = nccl;
        else
            tdm_hint(err,
                     "install NCCL (the package nvidia-nccl-cu13 of PyPI has it), and name its "
                     "libnccl.so.2 in TIDEMARK_NCCL if the system's linker does not find it");
    }
    *out = &loaded;
    pthread_mutex_unlock(&lock);
    return status;
}
