/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what a calibration takes from the shipped machine of a card. */
#include "base/json.h"
#include "executor/backends.h"
#include "executor/calibrate_parts.h"
#include "machines/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

/* The cores stand in for a card. */
static enum tdm_status some_card(struct tdm_card *card, struct tdm_error *err)
{
    (void)err;
    *card = (struct tdm_card){.bytes = UINT64_C(150109880320)};
    snprintf(card->name, sizeof(card->name), "NVIDIA H200");
    return TDM_OK;
}

/* One card cannot measure how it is joined to others: plans of several ranks need that. */
static void a_card_keeps_its_links(void **state)
{
    (void)state;
    static const char *const kept[] = {"peer_bytes_per_second",
                                       "peer_seconds",
                                       "network_bytes_per_second",
                                       "gpus_per_node",
                                       "nccl_base_bytes",
                                       "multiprocessors",
                                       "server"};
    const struct tdm_backend *cpu;
    struct tdm_machine *shipped;
    struct tdm_error err;
    json_t *description;
    assert_int_equal(tdm_backend_find("cpu", &cpu, &err), TDM_OK);
    assert_int_equal(tdm_machine_load("h200", &shipped, &err), TDM_OK);
    struct tdm_backend backend = *cpu;
    backend.card = some_card;
    if (tdm_calibration_describe(&backend, &description, &err) != TDM_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        const json_t *value = json_object_get(description, kept[i]);
        assert_non_null(value);
        assert_true(json_equal(value, json_object_get(shipped->description, kept[i])));
    }
    json_decref(description);
    tdm_machine_free(shipped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_card_keeps_its_links)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
