/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target of files of settings: YAML, TOML, arguments, JSON, and what they say (fuzz.h). */
#include "tests/fuzz/fuzz.h"

#include "commands/predict_from.h"

#include <string.h>

/* What a file says, given to a method as `predict --from` does. */
static bool apply(struct tdm_from *from)
{
    const struct tdm_method *method;
    struct tdm_setting_list list = {.count = 0};
    struct tdm_method_settings settings = {.expandable_segments = false};
    struct tdm_method_choices choices;
    struct tdm_error err = {0};
    return tdm_fuzz_taken(
               tdm_method_find(from->method == NULL ? "parallel" : from->method, &method, &err),
               &err) &&
           tdm_fuzz_taken(tdm_from_apply(from, method, &list, &err), &err) &&
           tdm_fuzz_taken(
               tdm_method_apply(method, list.pairs, list.count, &settings, &choices, &err), &err);
}

/* The first byte says the format: the first letter of its name. */
static const char *name_of(uint8_t letter)
{
    return letter == 't'   ? "input.toml"
           : letter == 'a' ? "input.args"
           : letter == 'j' ? "input.json"
                           : "input.yaml";
}

bool tdm_fuzz_from(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return false;
    char path[TDM_FUZZ_PATH];
    const char *name = name_of(data[0]);
    struct tdm_from from = {.count = 0};
    struct tdm_error err = {0};
    tdm_fuzz_write(name, data + 1, bytes - 1);
    TDM_FUZZ_CHECK(tdm_from_add(&from, tdm_fuzz_path(name, path), &err) == TDM_OK);
    bool taken = tdm_fuzz_taken(tdm_from_read(&from, 0, &err), &err) && apply(&from);
    tdm_from_free(&from);
    return taken;
}
