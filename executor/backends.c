/* SPDX-License-Identifier: Apache-2.0 */
/* The backends that this build has. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/backends.h"

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
