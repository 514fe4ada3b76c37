/* SPDX-License-Identifier: Apache-2.0 */
/* The topology of a machine: its tables, and the rows that a description adds to them. */
#include "machines/topology.h"

#include <stdio.h>
#include <string.h>

#define BYTES_LIMIT (UINT64_C(1) << 50)
#define MOST_RATE 1e21

void tdm_topology_begin(struct tdm_topology *topology)
{
    *topology = (struct tdm_topology){
        .places =
            {[TDM_DEVICE] = {.name = "device"}, [TDM_HOST] = {.name = "host", .host_memory = true}},
        .lanes = {[TDM_LANE_COMPUTE] = {"compute", true, TDM_DEVICE},
                  [TDM_LANE_H2D] = {.name = "h2d"},
                  [TDM_LANE_D2H] = {.name = "d2h"},
                  [TDM_LANE_HOST] = {"host", true, TDM_HOST},
                  [TDM_LANE_PEER] = {.name = "peer"}},
        .links = {[TDM_LINK_H2D] = {TDM_HOST, TDM_DEVICE, TDM_LANE_H2D, .shared = TDM_NOT_SHARED},
                  [TDM_LINK_D2H] = {TDM_DEVICE, TDM_HOST, TDM_LANE_D2H, .shared = TDM_NOT_SHARED},
                  [TDM_LINK_PEER] = {TDM_DEVICE, TDM_DEVICE, TDM_LANE_PEER,
                                     .shared = TDM_NOT_SHARED}},
        .place_count = TDM_PLACES,
        .lane_count = TDM_LANES,
        .link_count = TDM_LINKS,
        .far = TDM_HOST,
    };
}

static const struct {
    const char *capacity, *runtime;
} place_keys[TDM_PLACES] = {
    [TDM_DEVICE] = {"device_bytes", "runtime_device_bytes"},
    [TDM_HOST] = {"host_bytes", "runtime_host_bytes"},
};

const char *tdm_place_capacity_key(enum tdm_place place)
{
    return place_keys[place].capacity;
}

const char *tdm_place_runtime_key(enum tdm_place place)
{
    return place_keys[place].runtime;
}

const char *tdm_place_prefix(const struct tdm_topology *topology, enum tdm_place place,
                             char out[TDM_PLACE_PREFIX])
{
    out[0] = '\0';
    if (place != TDM_DEVICE)
        snprintf(out, TDM_PLACE_PREFIX, "%s_", tdm_place_name(topology, place));
    return out;
}

const char *tdm_place_name(const struct tdm_topology *topology, enum tdm_place place)
{
    return (unsigned)place < topology->place_count ? topology->places[place].name : "unknown";
}

const char *tdm_lane_name(const struct tdm_topology *topology, enum tdm_lane lane)
{
    return (unsigned)lane < topology->lane_count ? topology->lanes[lane].name : "unknown";
}

bool tdm_place_parse(const struct tdm_topology *topology, const char *name, enum tdm_place *place)
{
    for (uint32_t i = 0; i < topology->place_count; i++)
        if (strcmp(topology->places[i].name, name) == 0) {
            *place = (enum tdm_place)i;
            return true;
        }
    return false;
}

const char *tdm_place_list(const struct tdm_topology *topology, bool that_compute,
                           char text[TDM_PLACE_LIST])
{
    const char *names[TDM_MAX_PLACES];
    uint32_t count = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < topology->place_count; i++)
        if (!that_compute ||
            (uint32_t)tdm_lane_at(topology, (enum tdm_place)i) < topology->lane_count)
            names[count++] = topology->places[i].name;
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, TDM_PLACE_LIST - used, "%s%s",
                                 i == 0           ? ""
                                 : i + 1 == count ? " or "
                                                  : ", ",
                                 names[i]);
    return text;
}

bool tdm_lane_parse(const struct tdm_topology *topology, const char *name, enum tdm_lane *lane)
{
    for (uint32_t i = 0; i < topology->lane_count; i++)
        if (strcmp(topology->lanes[i].name, name) == 0) {
            *lane = (enum tdm_lane)i;
            return true;
        }
    return false;
}

uint32_t tdm_link_find(const struct tdm_topology *topology, enum tdm_place from, enum tdm_place to)
{
    for (uint32_t i = 0; i < topology->link_count; i++)
        if (topology->links[i].from == from && topology->links[i].to == to)
            return i;
    return TDM_NO_LINK;
}

uint32_t tdm_link_opposite(const struct tdm_topology *topology, uint32_t link)
{
    return tdm_link_find(topology, topology->links[link].to, topology->links[link].from);
}

enum tdm_lane tdm_lane_at(const struct tdm_topology *topology, enum tdm_place place)
{
    for (uint32_t i = 0; i < topology->lane_count; i++)
        if (topology->lanes[i].computes && topology->lanes[i].place == place)
            return (enum tdm_lane)i;
    return (enum tdm_lane)TDM_MAX_LANES;
}

double tdm_link_rate(const struct tdm_topology *topology, uint32_t link, uint32_t busy)
{
    const struct tdm_link *row = &topology->links[link];
    uint32_t opposite = tdm_link_opposite(topology, link);
    double rate = row->bytes_per_second;
    const bool both_ways = opposite != TDM_NO_LINK && (busy >> opposite & 1) != 0;
    if (both_ways && row->both_ways_bytes_per_second / 2 < rate)
        rate = row->both_ways_bytes_per_second / 2;
    if (both_ways && (busy & TDM_UPDATES_BUSY) != 0 && row->beside_updates_bytes_per_second > 0 &&
        row->beside_updates_bytes_per_second < rate)
        rate = row->beside_updates_bytes_per_second;
    if (row->shared == TDM_NOT_SHARED)
        return rate;
    unsigned users = 1;
    for (uint32_t i = 0; i < topology->link_count; i++)
        users += i != link && (busy >> i & 1) != 0 && topology->links[i].shared == row->shared;
    double share = topology->shared[row->shared].bytes_per_second / users;
    return share < rate ? share : rate;
}

/* ---- the rows that a description adds ---- */

/* One row of a table in a description, with a reader of the object at `index` of the array
 * `table`. */
struct row {
    struct tdm_json_reader reader;
    char prefix[32];
};

static void row_begin(struct tdm_json_reader *reader, const char *table, size_t index,
                      const json_t *object, const char *const *keys, struct row *row)
{
    snprintf(row->prefix, sizeof(row->prefix), "%s[%zu]", table, index);
    row->reader = (struct tdm_json_reader){.file = reader->file,
                                           .prefix = row->prefix,
                                           .object = object,
                                           .err = reader->err,
                                           .status = tdm_json_status(reader)};
    if (!json_is_object(object))
        row->reader.status =
            tdm_json_fail(reader, table, "holds something else than an object at %zu", index);
    else
        tdm_json_only(&row->reader, keys);
}

/* Reads the name of a new row: not empty, not too long, of lower-case letters, digits and _. */
static void read_name(struct tdm_json_reader *reader, const char *key, char out[TDM_ROW_NAME])
{
    const char *name = tdm_json_string(reader, key);
    if (tdm_json_status(reader) != TDM_OK)
        return;
    size_t length = strlen(name);
    if (length == 0 || length >= TDM_ROW_NAME ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != length)
        tdm_json_fail(reader, key,
                      "is \"%.40s\"; expected 1 to %u lower-case letters, digits and _", name,
                      TDM_ROW_NAME - 1);
    else
        memcpy(out, name, length + 1);
}

/* The rows of a member of the description; NULL if it has none. Fails if there are more than
 * `capacity`. */
static const json_t *rows_of(struct tdm_json_reader *reader, const char *key, size_t capacity)
{
    if (!tdm_json_has(reader, key))
        return NULL;
    const json_t *rows = tdm_json_array(reader, key);
    if (json_array_size(rows) > capacity)
        tdm_json_fail(reader, key, "has %zu rows; at most %zu are supported", json_array_size(rows),
                      capacity);
    return rows;
}

static void read_place(struct tdm_json_reader *reader, struct tdm_topology *topology)
{
    struct tdm_place_row row = {.name = ""};
    enum tdm_place same;
    read_name(reader, "name", row.name);
    row.capacity_bytes = tdm_json_count(reader, "bytes", 1, BYTES_LIMIT);
    row.runtime_bytes = tdm_json_count_or(reader, "runtime_bytes", 0, BYTES_LIMIT, 0);
    if (tdm_json_status(reader) != TDM_OK)
        return;
    if (tdm_place_parse(topology, row.name, &same))
        tdm_json_fail(reader, "name", "is \"%s\", which another place has", row.name);
    else if (row.runtime_bytes >= row.capacity_bytes)
        tdm_json_fail(reader, "runtime_bytes", "leaves nothing of \"bytes\"; correct one of them");
    else
        topology->places[topology->place_count++] = row;
}

/* The shared row of a name; TDM_NOT_SHARED if there is none. */
static uint32_t find_shared(const struct tdm_topology *topology, const char *name)
{
    for (uint32_t i = 0; i < topology->shared_count; i++)
        if (strcmp(topology->shared[i].name, name) == 0)
            return i;
    return TDM_NOT_SHARED;
}

static void read_shared(struct tdm_json_reader *reader, struct tdm_topology *topology)
{
    struct tdm_shared_row row = {{0}, 0};
    read_name(reader, "name", row.name);
    row.bytes_per_second = tdm_json_number(reader, "bytes_per_second", 1, MOST_RATE);
    if (tdm_json_status(reader) == TDM_OK && find_shared(topology, row.name) != TDM_NOT_SHARED)
        tdm_json_fail(reader, "name", "is \"%s\", which another row has", row.name);
    if (tdm_json_status(reader) == TDM_OK)
        topology->shared[topology->shared_count++] = row;
}

static void read_end(struct tdm_json_reader *reader, const char *key,
                     const struct tdm_topology *topology, enum tdm_place *place)
{
    const char *name = tdm_json_string(reader, key);
    if (tdm_json_status(reader) == TDM_OK && !tdm_place_parse(topology, name, place))
        tdm_json_fail(reader, key, "is \"%.40s\", which is not a place of this machine", name);
}

/* Reads the lane of a link: an existing copy lane, or a new one. */
static void read_lane(struct tdm_json_reader *reader, struct tdm_topology *topology,
                      enum tdm_lane *lane)
{
    struct tdm_lane_row row = {.computes = false};
    read_name(reader, "lane", row.name);
    if (tdm_json_status(reader) != TDM_OK)
        return;
    if (tdm_lane_parse(topology, row.name, lane)) {
        if (topology->lanes[*lane].computes)
            tdm_json_fail(reader, "lane", "is \"%s\", which computes", row.name);
    } else if (topology->lane_count == TDM_MAX_LANES) {
        tdm_json_fail(reader, "lane", "is lane %u; at most %u are supported",
                      topology->lane_count + 1, TDM_MAX_LANES);
    } else {
        *lane = (enum tdm_lane)topology->lane_count;
        topology->lanes[topology->lane_count++] = row;
    }
}

static uint32_t read_shares(struct tdm_json_reader *reader, const struct tdm_topology *topology)
{
    const char *name = tdm_json_string_or(reader, "shared", NULL);
    if (name == NULL || tdm_json_status(reader) != TDM_OK)
        return TDM_NOT_SHARED;
    uint32_t row = find_shared(topology, name);
    if (row != TDM_NOT_SHARED)
        return row;
    tdm_json_fail(reader, "shared", "is \"%.40s\", which \"shared\" of the machine does not have",
                  name);
    return TDM_NOT_SHARED;
}

static void read_link(struct tdm_json_reader *reader, struct tdm_topology *topology)
{
    struct tdm_link row = {.shared = TDM_NOT_SHARED};
    read_end(reader, "from", topology, &row.from);
    read_end(reader, "to", topology, &row.to);
    row.bytes_per_second = tdm_json_number(reader, "bytes_per_second", 1, MOST_RATE);
    row.both_ways_bytes_per_second = tdm_json_number_or(reader, "both_ways_bytes_per_second", 1,
                                                        MOST_RATE, 2 * row.bytes_per_second);
    row.shared = read_shares(reader, topology);
    if (tdm_json_status(reader) == TDM_OK && row.from == row.to)
        tdm_json_fail(reader, "to", "is where it comes from; a link is between two places");
    if (tdm_json_status(reader) == TDM_OK &&
        tdm_link_find(topology, row.from, row.to) != TDM_NO_LINK)
        tdm_json_fail(reader, "to", "is \"%s\", to which another link from \"%s\" goes",
                      tdm_place_name(topology, row.to), tdm_place_name(topology, row.from));
    read_lane(reader, topology, &row.lane);
    if (tdm_json_status(reader) == TDM_OK)
        topology->links[topology->link_count++] = row;
}

/* Does a lane copy over a link that shares bandwidth already? Then *row is what it shares. */
static bool lane_shares(const struct tdm_topology *topology, enum tdm_lane lane, uint32_t *row)
{
    for (uint32_t i = 0; i < topology->link_count; i++)
        if (topology->links[i].lane == lane && topology->links[i].shared != TDM_NOT_SHARED) {
            *row = topology->links[i].shared;
            return true;
        }
    return false;
}

/* Reads the lanes of a shared row, by name: all links of such a lane share it. */
static void read_shared_lanes(struct tdm_json_reader *reader, struct tdm_topology *topology)
{
    uint32_t row = find_shared(topology, tdm_json_string(reader, "name")), other;
    enum tdm_lane lane;
    const json_t *names = tdm_json_has(reader, "lanes") ? tdm_json_array(reader, "lanes") : NULL;
    for (size_t i = 0; i < json_array_size(names) && tdm_json_status(reader) == TDM_OK; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name == NULL)
            tdm_json_fail(reader, "lanes", "holds something else than a string at %zu", i);
        else if (!tdm_lane_parse(topology, name, &lane))
            tdm_json_fail(reader, "lanes", "holds \"%.40s\", which is not a lane of this machine",
                          name);
        else if (topology->lanes[lane].computes)
            tdm_json_fail(reader, "lanes", "holds \"%s\", which computes; expected lanes that copy",
                          name);
        else if (lane_shares(topology, lane, &other))
            tdm_json_fail(reader, "lanes", "holds \"%s\", which shares \"%s\" already", name,
                          topology->shared[other].name);
        else
            for (uint32_t link = 0; link < topology->link_count; link++)
                if (topology->links[link].lane == lane)
                    topology->links[link].shared = row;
    }
}

static void read_table(struct tdm_json_reader *reader, const char *table, size_t capacity,
                       const char *const *keys,
                       void (*read)(struct tdm_json_reader *row, struct tdm_topology *topology),
                       struct tdm_topology *topology)
{
    const json_t *rows = rows_of(reader, table, capacity);
    for (size_t i = 0; i < json_array_size(rows) && tdm_json_status(reader) == TDM_OK; i++) {
        struct row row = {.prefix = ""};
        row_begin(reader, table, i, json_array_get(rows, i), keys, &row);
        if (tdm_json_status(&row.reader) == TDM_OK)
            read(&row.reader, topology);
        reader->status = tdm_json_status(&row.reader);
    }
}

void tdm_topology_read(struct tdm_json_reader *reader, struct tdm_topology *topology)
{
    static const char *const place_keys[] = {"name", "bytes", "runtime_bytes", NULL};
    static const char *const shared_keys[] = {"name", "bytes_per_second", "lanes", NULL};
    static const char *const link_keys[] = {
        "from", "to", "lane", "bytes_per_second", "both_ways_bytes_per_second", "shared", NULL};
    read_table(reader, "places", TDM_MAX_PLACES - TDM_PLACES, place_keys, read_place, topology);
    read_table(reader, "shared", TDM_MAX_SHARED, shared_keys, read_shared, topology);
    read_table(reader, "links", TDM_MAX_LINKS - TDM_LINKS, link_keys, read_link, topology);
    /* after the links, whose lanes it may name */
    read_table(reader, "shared", TDM_MAX_SHARED, shared_keys, read_shared_lanes, topology);
}
