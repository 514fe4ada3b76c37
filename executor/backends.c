/* SPDX-License-Identifier: Apache-2.0 */
/* The backends that this build has. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/backends.h"

#include "ops/kernels.h"

#include <string.h>

const struct tdm_backend *const tdm_backends[] = {
    &tdm_cpu_backend,
#ifdef HAVE_CUDA
    &tdm_cuda_backend,
#endif
    &tdm_null_backend,
    NULL,
};

enum tdm_status tdm_backend_find(const char *name, const struct tdm_backend **backend,
                                 struct tdm_error *err)
{
    for (int i = 0; tdm_backends[i] != NULL; i++) {
        if (strcmp(name, tdm_backends[i]->name) == 0) {
            *backend = tdm_backends[i];
            return TDM_OK;
        }
    }
    if (strcmp(name, "cuda") != 0)
        return tdm_fail(err, TDM_USAGE, "no backend \"%s\"; there are cpu, cuda, null", name);
    tdm_fail(err, TDM_USAGE, "this build has no backend \"cuda\"");
    return tdm_hint(err, "install CUDA and run configure again, which says what it found");
}

enum tdm_status tdm_backend_check(const struct tdm_backend *backend, uint32_t count,
                                  const struct tdm_program *const *programs, struct tdm_error *err)
{
    struct tdm_kernels kernels = {.backend = backend->name};
    enum tdm_status status = TDM_OK;
    char line[TDM_LACKS_TEXT];
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        if (backend->run[kind] != NULL)
            kernels.kinds |= 1u << kind;
    for (uint32_t i = 0; i < count && status == TDM_OK; i++) {
        if (backend->supports != NULL)
            status = backend->supports(programs[i], err);
        if (status == TDM_OK && tdm_kernels_lack(&kernels, programs[i]->kinds, line))
            status = tdm_fail(err, TDM_INPUT, "%s", line);
    }
    return status == TDM_INPUT && backend != &tdm_cpu_backend
               ? tdm_hint(err, "--backend cpu runs every schedule")
               : status;
}
