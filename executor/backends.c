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

/* Does the backend serve all places and lanes of a program? */
static enum tdm_status check_served(const struct tdm_backend *backend,
                                    const struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_topology *topology = &program->schedule->machine->topology;
    for (uint32_t place = backend->places; place < topology->place_count; place++)
        if (program->arena_bytes[place] > 0)
            return tdm_fail(err, TDM_INPUT, "backend %s has no place \"%s\"", backend->name,
                            topology->places[place].name);
    for (uint32_t lane = backend->lanes; lane < topology->lane_count; lane++)
        if ((program->lanes >> lane & 1) != 0)
            return tdm_fail(err, TDM_INPUT, "backend %s has no lane \"%s\"", backend->name,
                            topology->lanes[lane].name);
    return TDM_OK;
}

/* The programs of a run share one arena per place, and a trace. So the number of a place or a lane
 * must mean the same in all of them. */
static enum tdm_status check_alike(const struct tdm_topology *a, const struct tdm_topology *b,
                                   struct tdm_error *err)
{
    bool alike = a->place_count == b->place_count && a->lane_count == b->lane_count;
    for (uint32_t i = 0; alike && i < a->place_count; i++)
        alike = strcmp(a->places[i].name, b->places[i].name) == 0;
    for (uint32_t i = 0; alike && i < a->lane_count; i++)
        alike = strcmp(a->lanes[i].name, b->lanes[i].name) == 0;
    return alike ? TDM_OK
                 : tdm_fail(err, TDM_INPUT,
                            "the schedules of a run are for machines with other places or lanes; "
                            "plan them for one machine");
}

enum tdm_status tdm_backend_check(const struct tdm_backend *backend, uint32_t count,
                                  const struct tdm_program *const *programs, struct tdm_error *err)
{
    struct tdm_kernels kernels = {.backend = backend->name};
    enum tdm_status status = TDM_OK;
    char line[TDM_LACKS_TEXT];
    for (int kind = 0; kind < TDM_OP_KINDS; kind++)
        if (backend->run[kind] != NULL)
            kernels.kinds |= TDM_KIND(kind);
    for (uint32_t i = 0; i < count && status == TDM_OK; i++) {
        status = check_alike(&programs[0]->schedule->machine->topology,
                             &programs[i]->schedule->machine->topology, err);
        if (status == TDM_OK)
            status = check_served(backend, programs[i], err);
        if (status == TDM_OK && backend->supports != NULL)
            status = backend->supports(programs[i], err);
        if (status == TDM_OK && tdm_kernels_lack(&kernels, programs[i]->kinds, line))
            status = tdm_fail(err, TDM_INPUT, "%s", line);
    }
    return status == TDM_INPUT && backend != &tdm_cpu_backend
               ? tdm_hint(err, "--backend cpu runs every schedule")
               : status;
}
