/* SPDX-License-Identifier: Apache-2.0 */
/* A machine as a table for people and as JSON for programs. */
#include "machines/machine_table.h"

#include "base/json.h"
#include "base/text.h"
#include "base/units.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* Does the machine have this rate itself, and not through a substitute? */
static bool has_own(const struct tdm_machine *machine, enum tdm_rate rate)
{
    const json_t *rates = json_object_get(machine->description, "rates");
    return rate < TDM_RATES_REQUIRED || json_object_get(rates, tdm_rate_key(rate)) != NULL;
}

json_t *tdm_machine_json(const struct tdm_machine *machine)
{
    static const char *const as_they_are[] = {"base",
                                              "provenance",
                                              "assumed",
                                              "server",
                                              "pinned_bytes_per_second",
                                              "host_bytes_per_copied_byte",
                                              "h2d_beside_updates_bytes_per_second",
                                              "d2h_beside_updates_bytes_per_second",
                                              "peer_bytes_per_second",
                                              "peer_seconds",
                                              "network_bytes_per_second",
                                              "gpus_per_node",
                                              "places",
                                              "links",
                                              "shared"};
    json_t *rates = json_object();
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (has_own(machine, (enum tdm_rate)i))
            tdm_json_set(&rates, tdm_rate_key((enum tdm_rate)i), tdm_rate_json(&machine->table[i]));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:b}", "name", machine->name, "title", machine->title, "source",
                  machine->source, "rates_measured", (int)machine->measured);
    for (int place = 0; place < TDM_PLACES; place++)
        tdm_json_set(&object, tdm_place_capacity_key((enum tdm_place)place),
                     json_integer((json_int_t)machine->topology.places[place].capacity_bytes));
    for (int place = 0; place < TDM_PLACES; place++)
        tdm_json_set(&object, tdm_place_runtime_key((enum tdm_place)place),
                     json_integer((json_int_t)machine->topology.places[place].runtime_bytes));
    tdm_json_set(&object, "peak_flops_per_second", json_real(machine->peak_flops));
    tdm_json_set(&object, "launch_seconds", json_real(machine->launch_seconds));
    tdm_json_set(&object, "copy_seconds", json_real(machine->copy_seconds));
    tdm_json_set(&object, "rates", rates);
    for (size_t i = 0; i < sizeof(as_they_are) / sizeof(as_they_are[0]); i++) {
        json_t *value = json_object_get(machine->description, as_they_are[i]);
        if (value != NULL)
            tdm_json_set(&object, as_they_are[i], json_incref(value));
    }
    return object;
}

/* A size in few characters: 34G, 4K, 512. Keys and tokens (`counted`) are 1024-based, others
 * 1000-based. */
static const char *show_size(double size, bool counted, char out[TDM_FORMAT_SIZE])
{
    static const char *const letters[] = {"", "K", "M", "G", "T", "P"};
    double step = counted ? 1024 : 1000;
    unsigned i = 0;
    while (size >= 0.9995 * step && i + 1 < sizeof(letters) / sizeof(letters[0])) {
        size /= step;
        i++;
    }
    snprintf(out, TDM_FORMAT_SIZE, "%.*g%s", size >= 999.5 ? 4 : 3, size, letters[i]);
    return out;
}

/* Prints the points of a table, in lines of about 100 characters. */
static void print_points(FILE *out, const struct tdm_rate_table *table, double unit, bool counted)
{
    char size[TDM_FORMAT_SIZE], point[2 * TDM_FORMAT_SIZE];
    int column = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        int length = snprintf(point, sizeof(point), "%s: %.4g",
                              show_size(table->size[i], counted, size), table->rate[i] / unit);
        if (column + length > 80) {
            fprintf(out, ",\n%-22s", "");
            column = 0;
        } else if (i > 0) {
            fprintf(out, ", ");
            column += 2;
        }
        fprintf(out, "%s", point);
        column += length;
    }
    fputc('\n', out);
}

static void print_rate(FILE *out, const struct tdm_machine *machine, enum tdm_rate rate)
{
    const struct tdm_rate_table *table = &machine->table[rate];
    const char *key = tdm_rate_key(rate), *size = tdm_rate_size_name(rate);
    const char *per_second = strstr(key, "_flops_per_second");
    double unit = per_second != NULL ? 1e12 : 1e9;
    const char *unit_name = per_second != NULL ? "TFLOP/s" : "GB/s";
    if (per_second == NULL)
        per_second = strstr(key, "_bytes_per_second");
    if (tdm_rate_is_share(rate)) {
        unit = 1;
        unit_name = "of that";
    }
    int length = per_second == NULL ? (int)strlen(key) : (int)(per_second - key);
    if (table->count == 1) {
        fprintf(out, "%-22.*s %.*f %s\n", length, key, tdm_rate_is_share(rate) ? 2 : 1,
                table->rate[0] / unit, unit_name);
        return;
    }
    fprintf(out, "%-22.*s %s, by %s\n%-22s ", length, key, unit_name, size, "");
    print_points(out, table, unit, strcmp(size, "keys") == 0 || strcmp(size, "tokens") == 0);
}

/* Prints a text of the description itself. */
static void print_text(FILE *out, const char *key, const char *text)
{
    char name[64], words[1024];
    snprintf(name, sizeof(name), "%s", key);
    snprintf(words, sizeof(words), "%s", text);
    fprintf(out, "%-22s %s\n", tdm_text_clean(name), tdm_text_clean(words));
}

static void print_texts(FILE *out, const struct tdm_machine *machine, const char *key)
{
    const json_t *texts = json_object_get(machine->description, key);
    for (size_t i = 0; i < json_array_size(texts); i++)
        print_text(out, i == 0 ? key : "", json_string_value(json_array_get(texts, i)));
}

void tdm_machine_table(FILE *out, const struct tdm_machine *machine)
{
    char text[TDM_FORMAT_SIZE], runtime[TDM_FORMAT_SIZE];
    const char *name;
    json_t *value;
    fprintf(out, "%-22s %s\n", machine->name, machine->title);
    fprintf(out, "%-22s %s%s\n", "source", machine->source,
            machine->measured ? "" : "; rates not measured by tidemark");
    json_object_foreach(json_object_get(machine->description, "provenance"), name, value)
    {
        print_text(out, name, json_string_value(value));
    }
    for (uint32_t place = 0; place < machine->topology.place_count; place++)
        fprintf(out, "%-22s %s, of which the runtime takes %s\n",
                tdm_place_name(&machine->topology, (enum tdm_place)place),
                tdm_format_bytes(machine->topology.places[place].capacity_bytes, text),
                tdm_format_bytes(machine->topology.places[place].runtime_bytes, runtime));
    if (machine->server_host_bytes > 0)
        fprintf(out, "%-22s %s, %s of host memory (what predict and compare assume)\n", "a server",
                machine->server_name, tdm_format_bytes(machine->server_host_bytes, text));
    fprintf(out, "%-22s %.1f TFLOP/s, dense bf16 (what MFU is counted by)\n", "peak",
            machine->peak_flops / 1e12);
    unsigned refined = 0;
    for (unsigned i = 0; i < TDM_RATES; i++) {
        bool own = has_own(machine, (enum tdm_rate)i);
        if (own && tdm_rate_is_refined((enum tdm_rate)i))
            refined += !tdm_rate_is_share((enum tdm_rate)i);
        else if (own)
            print_rate(out, machine, (enum tdm_rate)i);
    }
    if (refined > 0)
        fprintf(out,
                "%-22s %u tables: products by part, attention of first and later chunks (--json)\n",
                "refined", refined);
    fprintf(out, "%-22s %s at least\n", "an op", tdm_format_seconds(machine->launch_seconds, text));
    fprintf(out, "%-22s %s and its bytes\n", "a copy",
            tdm_format_seconds(machine->copy_seconds, text));
    if (json_object_get(machine->description, "peer_seconds") != NULL)
        fprintf(out, "%-22s %s and its bytes\n", "an op of all ranks",
                tdm_format_seconds(machine->peer_seconds, text));
    const struct tdm_topology *topology = &machine->topology;
    for (uint32_t i = TDM_LINKS; i < topology->link_count; i++) {
        const struct tdm_link *link = &topology->links[i];
        fprintf(out, "%-22s %.1f GB/s from %s to %s\n", tdm_lane_name(topology, link->lane),
                link->bytes_per_second / 1e9, tdm_place_name(topology, link->from),
                tdm_place_name(topology, link->to));
    }
    if (machine->peer_rate > 0)
        fprintf(out, "%-22s %.1f GB/s\n", "between GPUs", machine->peer_rate / 1e9);
    if (machine->network_rate > 0)
        fprintf(out, "%-22s %.1f GB/s a GPU\n", "between nodes", machine->network_rate / 1e9);
    if (machine->gpus_per_node > 0)
        fprintf(out, "%-22s %" PRIu64 " GPUs\n", "a node", machine->gpus_per_node);
    value = json_object_get(machine->description, "pinned_bytes_per_second");
    if (value != NULL)
        fprintf(out, "%-22s %.1f GB/s taken\n", "pinned", json_number_value(value) / 1e9);
    if (machine->host_bytes_per_copied_byte > 0)
        fprintf(out, "%-22s %.2f bytes less for each byte copied meanwhile\n",
                "updates on the host", machine->host_bytes_per_copied_byte);
    if (machine->h2d_beside_updates > 0 || machine->d2h_beside_updates > 0)
        fprintf(out, "%-22s %.1f GB/s to the device and %.1f from it at once\n",
                "copies beside updates",
                tdm_machine_rate_beside_updates(machine, TDM_LINK_H2D) / 1e9,
                tdm_machine_rate_beside_updates(machine, TDM_LINK_D2H) / 1e9);
    print_texts(out, machine, "assumed");
    print_texts(out, machine, "notes");
}
