/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine: read from a description, shipped or by path. A description is one JSON object:
 *
 *   format                 "tidemark-machine-1"
 *   name, title, source    strings; notes: a list of strings, optional
 *   card                   part of the driver's name of the device, by which calibrate finds the
 *                          description of a card; optional
 *   base                   shipped machine that supplies the rates missing here; optional
 *   provenance             strings by name: what was measured where, when and how; optional. If
 *                          "program" is tidemark, calibrate measured the rates
 *   assumed                keys of values that were missing; optional
 *   device_bytes           memory of the device as its driver reports it
 *   host_bytes             host memory to plan with
 *   server                 {name, host_bytes}: a computer sold with such cards, and its host
 *                          memory. Predictions for computers other than this one assume it;
 *                          optional
 *   runtime_device_bytes   what driver and libraries take of device and host memory, outside the
 *   runtime_host_bytes     arenas (0 if absent)
 *   peak_flops_per_second  dense bf16 peak, the reference of MFU
 *   multiprocessors        how many blocks of attention run at once; optional: always enough
 *   launch_seconds         shortest time of an operation
 *   copy_seconds           fixed time of a copy
 *   pinned_bytes_per_second  rate of allocating pinned host memory; optional
 *   host_bytes_per_copied_byte  bytes that updates on the host do without while a byte is copied
 *                            from or to its memory; optional, 0
 *   peer_bytes_per_second  between two GPUs of one node (computer), one way; optional
 *   peer_seconds           fixed time of an op that ranks run together; optional: launch_seconds
 *   network_bytes_per_second  between two GPUs of different nodes while all send, one way;
 *                             optional
 *   node_bytes_per_second  in a schedule of ranks in several nodes: between two GPUs of one node;
 *                          peer_bytes_per_second is that of the network then
 *   gpus_per_node          GPUs that are connected by more than the network; optional
 *   nccl_base_bytes        what NCCL takes of device memory beside its channels: its kernels, and
 *                          the stacks that these need; optional
 *   nccl                   {channels, bytes}: in a schedule, what of the runtime is NCCL's
 *   places                 [{name, bytes, runtime_bytes}, ...]: places besides device and host;
 *                          optional, like the next two
 *   links                  [{from, to, lane, bytes_per_second, both_ways_bytes_per_second, shared},
 *                          ...]: links besides those between device and host
 *   shared                 [{name, bytes_per_second, lanes}, ...]: bandwidth that links share:
 *                          those that name it, and all links of its lanes
 *   rates                  {product_flops_per_second, ...}: rates.h
 */
#include "machines/machine.h"

#include "base/file.h"
#include "base/json.h"
#include "base/names.h"
#include "base/text.h"
#include "machines/nccl.h"
#include "machines/parts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEAST_PEAK 1e9 /* a smaller value is a mistake: the unit is FLOP/s, not TFLOP/s */
#define BYTES_LIMIT (UINT64_C(1) << 50)
#define GPUS_LIMIT 65536u

static const char *const keys[] = {
    "format",
    "name",
    "title",
    "source",
    "card",
    "base",
    "provenance",
    "assumed",
    "notes",
    "device_bytes",
    "host_bytes",
    "server",
    "runtime_device_bytes",
    "runtime_host_bytes",
    "multiprocessors",
    "peak_flops_per_second",
    "launch_seconds",
    "copy_seconds",
    "pinned_bytes_per_second",
    "host_bytes_per_copied_byte",
    "h2d_beside_updates_bytes_per_second",
    "d2h_beside_updates_bytes_per_second",
    "peer_bytes_per_second",
    "peer_seconds",
    "network_bytes_per_second",
    "node_bytes_per_second",
    "gpus_per_node",
    "nccl_base_bytes",
    "nccl_bytes", /* what descriptions had before nccl_base_bytes; not read */
    "nccl",
    "places",
    "links",
    "shared",
    "rates",
    NULL,
};

static void read_text(struct tdm_json_reader *reader, const char *key, char *out, size_t out_bytes)
{
    const char *text = tdm_json_string(reader, key);
    if (tdm_json_status(reader) != TDM_OK)
        return;
    if (text[0] == '\0' || strlen(text) >= out_bytes)
        tdm_json_fail(reader, key, "has %zu characters; it must have 1 to %zu", strlen(text),
                      out_bytes - 1);
    else
        snprintf(out, out_bytes, "%s", text);
    tdm_text_clean(out);
}

static void check_texts(struct tdm_json_reader *reader, const char *key)
{
    if (!tdm_json_has(reader, key))
        return;
    const json_t *texts = tdm_json_array(reader, key);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        if (!json_is_string(json_array_get(texts, i)))
            tdm_json_fail(reader, key, "holds something else at %zu; it must be a list of strings",
                          i);
    }
}

/* Checks that the provenance is strings, under any names. Returns whether calibrate measured the
 * rates. */
static bool read_provenance(struct tdm_json_reader *reader)
{
    const char *name;
    json_t *value;
    if (!tdm_json_has(reader, "provenance"))
        return false;
    const json_t *provenance = tdm_json_object(reader, "provenance");
    json_object_foreach((json_t *)provenance, name, value)
    {
        if (!json_is_string(value))
            tdm_json_fail(reader, "provenance", "holds something else than a string at \"%.40s\"",
                          name);
    }
    const char *program = json_string_value(json_object_get(provenance, "program"));
    return program != NULL && strncmp(program, "tidemark ", 9) == 0;
}

static void read_place(struct tdm_json_reader *reader, enum tdm_place number,
                       struct tdm_place_row *place)
{
    const char *capacity_key = tdm_place_capacity_key(number);
    const char *runtime_key = tdm_place_runtime_key(number);
    place->capacity_bytes = tdm_json_count(reader, capacity_key, 1, BYTES_LIMIT);
    place->runtime_bytes = tdm_json_count_or(reader, runtime_key, 0, BYTES_LIMIT, 0);
    if (tdm_json_status(reader) == TDM_OK && place->runtime_bytes >= place->capacity_bytes)
        tdm_json_fail(reader, runtime_key, "leaves nothing of \"%s\"; correct one of them",
                      capacity_key);
}

void tdm_machine_set_links(struct tdm_machine *machine)
{
    struct tdm_link *links = machine->topology.links;
    links[TDM_LINK_H2D].bytes_per_second = machine->rate[TDM_RATE_H2D];
    links[TDM_LINK_D2H].bytes_per_second = machine->rate[TDM_RATE_D2H];
    links[TDM_LINK_H2D].beside_updates_bytes_per_second = machine->h2d_beside_updates;
    links[TDM_LINK_D2H].beside_updates_bytes_per_second = machine->d2h_beside_updates;
    /* where the way between ranks is not known, it is through the host */
    links[TDM_LINK_PEER].bytes_per_second =
        machine->peer_rate > 0 ? machine->peer_rate : machine->rate[TDM_RATE_BOTH_WAYS] / 2;
    for (int link = 0; link < TDM_LINKS; link++) {
        links[link].both_ways_bytes_per_second = link == TDM_LINK_PEER
                                                     ? 2 * links[link].bytes_per_second
                                                     : machine->rate[TDM_RATE_BOTH_WAYS];
        if (links[link].shared == TDM_NOT_SHARED)
            continue;
        double most = machine->topology.shared[links[link].shared].bytes_per_second;
        links[link].bytes_per_second = fmin(links[link].bytes_per_second, most);
        if (links[TDM_LINK_H2D].shared == links[TDM_LINK_D2H].shared)
            links[link].both_ways_bytes_per_second =
                fmin(links[link].both_ways_bytes_per_second, most);
    }
}

static void read_server(struct tdm_json_reader *reader, struct tdm_machine *machine)
{
    if (!tdm_json_has(reader, "server"))
        return;
    struct tdm_json_reader server = {.file = reader->file,
                                     .prefix = "server",
                                     .object = tdm_json_object(reader, "server"),
                                     .err = reader->err};
    if (tdm_json_status(reader) != TDM_OK)
        return;
    read_text(&server, "name", machine->server_name, sizeof(machine->server_name));
    machine->server_host_bytes = tdm_json_count(&server, "host_bytes", 1, BYTES_LIMIT);
    reader->status = tdm_json_status(&server);
}

enum tdm_status tdm_machine_from_json(const char *file, json_t *description,
                                      struct tdm_machine **machine, struct tdm_error *err)
{
    if (!json_is_object(description))
        return tdm_fail(err, TDM_INPUT, "%s: must hold a JSON object, { ... }", file);
    struct tdm_machine *built = calloc(1, sizeof(*built));
    if (built == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "%s: no memory for a machine", file);
    enum tdm_status status = tdm_machine_complete(file, description, built, err);
    if (status != TDM_OK) {
        free(built);
        return status;
    }

    struct tdm_json_reader reader = {
        .file = file, .prefix = "", .object = built->description, .err = err};
    const char *format = tdm_json_string(&reader, "format");
    if (tdm_json_status(&reader) == TDM_OK && strcmp(format, TDM_MACHINE_FORMAT) != 0)
        tdm_json_fail(&reader, "format", "is \"%.40s\"; this tidemark reads \"%s\"", format,
                      TDM_MACHINE_FORMAT);
    tdm_json_only(&reader, keys);
    read_text(&reader, "name", built->name, sizeof(built->name));
    read_text(&reader, "title", built->title, sizeof(built->title));
    read_text(&reader, "source", built->source, sizeof(built->source));
    tdm_json_string_or(&reader, "base", NULL);
    tdm_json_string_or(&reader, "card", NULL);
    built->measured = read_provenance(&reader) && built->missing[0] == '\0';
    check_texts(&reader, "assumed");
    check_texts(&reader, "notes");
    tdm_topology_begin(&built->topology);
    for (int place = 0; place < TDM_PLACES; place++)
        read_place(&reader, (enum tdm_place)place, &built->topology.places[place]);
    tdm_topology_read(&reader, &built->topology);
    read_server(&reader, built);
    built->peak_flops = tdm_json_number(&reader, "peak_flops_per_second", LEAST_PEAK, 1e21);
    built->launch_seconds = tdm_json_number(&reader, "launch_seconds", 0, 1);
    built->copy_seconds = tdm_json_number(&reader, "copy_seconds", 0, 1);
    tdm_json_number_or(&reader, "pinned_bytes_per_second", 1, 1e21, 1);
    built->host_bytes_per_copied_byte =
        tdm_json_number_or(&reader, "host_bytes_per_copied_byte", 0, 1, 0);
    built->h2d_beside_updates =
        tdm_json_number_or(&reader, "h2d_beside_updates_bytes_per_second", 1, 1e21, 0);
    built->d2h_beside_updates =
        tdm_json_number_or(&reader, "d2h_beside_updates_bytes_per_second", 1, 1e21, 0);
    built->peer_rate = tdm_json_number_or(&reader, "peer_bytes_per_second", 1, 1e21, 0);
    built->peer_seconds = tdm_json_number_or(&reader, "peer_seconds", 0, 1, built->launch_seconds);
    built->network_rate = tdm_json_number_or(&reader, "network_bytes_per_second", 1, 1e21, 0);
    built->node_rate = tdm_json_number_or(&reader, "node_bytes_per_second", 1, 1e21, 0);
    built->multiprocessors =
        (uint32_t)tdm_json_count_or(&reader, "multiprocessors", 1, GPUS_LIMIT, 0);
    built->gpus_per_node = tdm_json_count_or(&reader, "gpus_per_node", 1, GPUS_LIMIT, 0);
    tdm_nccl_read(&reader, built);
    tdm_rates_read(&reader, built->table);
    for (unsigned i = 0; i < TDM_RATES; i++)
        built->rate[i] = tdm_rate_most(&built->table[i]);
    tdm_machine_set_links(built);

    if (tdm_json_status(&reader) != TDM_OK) {
        tdm_machine_free(built);
        return tdm_json_status(&reader);
    }
    *machine = built;
    return TDM_OK;
}

void tdm_machine_free(struct tdm_machine *machine)
{
    if (machine == NULL)
        return;
    json_decref(machine->description);
    free(machine);
}

enum tdm_status tdm_machine_names(char ***names, struct tdm_error *err)
{
    return tdm_data_names(TDM_MACHINE_FOLDER, ".json", names, err);
}

enum tdm_status tdm_machine_load_file(const char *path, struct tdm_machine **machine,
                                      struct tdm_error *err)
{
    json_t *description;
    enum tdm_status status = tdm_json_load(path, &description, err);
    if (status != TDM_OK)
        return status;
    status = tdm_machine_from_json(path, description, machine, err);
    json_decref(description);
    return status;
}

/* The part of a name such as "NVIDIA GeForce RTX 4090" that a shipped name may resemble. */
static const char *plain_name(const char *name)
{
    static const char *const makers[] = {"nvidia", "amd", "geforce", "tesla", "instinct"};
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++) {
        size_t length = strlen(makers[i]);
        if (strncasecmp(name, makers[i], length) == 0)
            name += length + strspn(name + length, " -_");
    }
    return name;
}

bool tdm_machine_is_card(const struct tdm_machine *machine, const char *driver_name)
{
    const char *card = json_string_value(json_object_get(machine->description, "card"));
    size_t length = card == NULL ? 0 : strlen(card);
    for (const char *at = driver_name; length > 0 && *at != '\0'; at++)
        if (strncasecmp(at, card, length) == 0 && !isalnum((unsigned char)at[length]) &&
            (at == driver_name || !isalnum((unsigned char)at[-1])))
            return true;
    return false;
}

/* The gibibytes in a driver's name such as "NVIDIA A100-SXM4-80GB". 0: it has none, or names a form
 * of the card (PCIe, NVL) that no description is of. */
static double gib_named(const char *name)
{
    unsigned long gib = 0;
    for (const char *at = name; *at != '\0'; at++) {
        bool begins = at == name || !isalnum((unsigned char)at[-1]);
        char *end;
        if (begins && (strncasecmp(at, "pcie", 4) == 0 || strncasecmp(at, "nvl", 3) == 0))
            return 0;
        if (!begins || !isdigit((unsigned char)*at))
            continue;
        unsigned long number = strtoul(at, &end, 10);
        if (strncasecmp(end, "gb", 2) == 0 && !isalnum((unsigned char)end[2]))
            gib = number;
    }
    return (double)gib;
}

/* Finds the one shipped machine with the card and the memory that a driver's name tells, as
 * find_meant() does. */
static enum tdm_status find_card(const char *name, char *const *names, char *path,
                                 size_t path_bytes, bool *found, struct tdm_error *err)
{
    double bytes = gib_named(name) * 1024 * 1024 * 1024;
    enum tdm_status status = TDM_OK;
    for (size_t i = 0; bytes > 0 && !*found && names[i] != NULL && status == TDM_OK; i++) {
        struct tdm_machine *machine;
        status = tdm_data_path(TDM_MACHINE_FOLDER, names[i], ".json", path, path_bytes, err);
        if (status == TDM_OK)
            status = tdm_machine_load_file(path, &machine, err);
        if (status != TDM_OK)
            break;
        double held = (double)machine->topology.places[TDM_DEVICE].capacity_bytes;
        *found = tdm_machine_is_card(machine, name) && fabs(held / bytes - 1) < 0.1;
        tdm_machine_free(machine);
    }
    return status;
}

/* Finds the shipped machine that another name means, and writes its file to `path`. *found is false
 * if there is none. */
static enum tdm_status find_meant(const char *name, char *path, size_t path_bytes, bool *found,
                                  struct tdm_error *err)
{
    char **names;
    *found = false;
    enum tdm_status status = tdm_machine_names(&names, err);
    if (status != TDM_OK)
        return status;
    const char *meant = tdm_name_meant(plain_name(name), (const char *const *)names);
    if (meant != NULL)
        status = tdm_data_path(TDM_MACHINE_FOLDER, meant, ".json", path, path_bytes, err);
    *found = meant != NULL;
    if (meant == NULL)
        status = find_card(name, names, path, path_bytes, found, err);
    free(names);
    return status;
}

static enum tdm_status unknown_machine(const char *name, struct tdm_error *err)
{
    char **names;
    enum tdm_status status = tdm_machine_names(&names, err);
    if (status != TDM_OK)
        return status;
    char list[400], suggestion[TDM_SUGGESTION_BYTES];
    tdm_fail(err, TDM_INPUT,
             "\"%.256s\" is not a shipped machine, \"local\", or a file that describes one", name);
    tdm_hint(err, "%sshipped machines: %s; for another card name one like it, and --memory",
             tdm_name_suggest(plain_name(name), (const char *const *)names, suggestion),
             tdm_names_join(names, list, sizeof(list)));
    free(names);
    return TDM_INPUT;
}

enum tdm_status tdm_machine_path(const char *name_or_path, char *out, size_t out_bytes,
                                 struct tdm_error *err)
{
    if (strcmp(name_or_path, "local") == 0) {
        if (!tdm_machine_local_path(out, out_bytes))
            out[0] = '\0';
        return TDM_OK;
    }
    if (name_or_path[0] != '\0' && strchr(name_or_path, '/') == NULL) {
        enum tdm_status status =
            tdm_data_path(TDM_MACHINE_FOLDER, name_or_path, ".json", out, out_bytes, err);
        if (status != TDM_OK || access(out, F_OK) == 0)
            return status;
    }
    if ((size_t)snprintf(out, out_bytes, "%s", name_or_path) >= out_bytes)
        return tdm_fail(err, TDM_INPUT, "%.256s: the name is too long", name_or_path);
    return TDM_OK;
}

/* Is this the path of a shipped description, as tdm_machine_path() writes it? */
static bool is_shipped(const char *path)
{
    char folder[4096];
    struct tdm_error err;
    return tdm_data_path(TDM_MACHINE_FOLDER, "", "", folder, sizeof(folder), &err) == TDM_OK &&
           strncmp(path, folder, strlen(folder)) == 0;
}

enum tdm_status tdm_machine_load(const char *name_or_path, struct tdm_machine **machine,
                                 struct tdm_error *err)
{
    char path[4096];
    struct stat info;
    if (strcmp(name_or_path, "local") == 0)
        return tdm_machine_load_local(machine, err);
    enum tdm_status status = tdm_machine_path(name_or_path, path, sizeof(path), err);
    if (status != TDM_OK)
        return status;
    if (path[0] == '\0' || stat(path, &info) != 0 || S_ISDIR(info.st_mode)) {
        bool found;
        status = find_meant(name_or_path, path, sizeof(path), &found, err);
        if (status != TDM_OK)
            return status;
        if (!found)
            return unknown_machine(name_or_path, err);
    }
    status = tdm_machine_load_file(path, machine, err);
    if (status == TDM_OK)
        (*machine)->shipped = is_shipped(path);
    return status;
}
