/* SPDX-License-Identifier: Apache-2.0 */
/* Streams a program into its values. */
#include "schedule/values_predict.h"

#include "schedule/program.h"

#include <stdlib.h>

enum tdm_status tdm_values_predict(const struct tdm_program *program,
                                   struct tdm_values_change **out, size_t *count,
                                   struct tdm_error *err)
{
    const size_t capacity = tdm_values_change_capacity(program);
    struct tdm_values *values;
    enum tdm_status status = tdm_values_new(program, &values, err);
    if (status != TDM_OK)
        return status;
    struct tdm_values_change *changes = calloc(capacity + 1, sizeof(*changes));
    if (changes == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for %zu changes of memory", capacity);
    if (status == TDM_OK)
        status = tdm_program_emit(program, tdm_values_read, values, err);
    if (status == TDM_OK) {
        *count = tdm_values_changes(values, changes);
        *out = changes;
    } else {
        free(changes);
    }
    tdm_values_free(values);
    return status;
}
