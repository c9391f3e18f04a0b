/* Reads a machine's file: every field must be there, no other, each within its bounds. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "simulated/sim.h"

#define MOST_FILE_BYTES (1u << 20)

#define MOST_BYTES (1ull << 50) /* of a memory, or per second */
#define MOST_FLOPS 1000000000000000000ull
#define MOST_NS 1000000000000ull

static const struct {
    const char *key;
    size_t at;
    uint64_t min, max;
} fields[] = {
#define FIELD(name, min, max)                           \
    {                                                   \
#name, offsetof(mp_sim_profile, name), min, max \
    }
    FIELD(memory_bytes, 1, MOST_BYTES),
    FIELD(memory_bytes_per_s, 1, MOST_BYTES),
    FIELD(compute_flops, 1, MOST_FLOPS),
    FIELD(bus_bytes_per_s, 1, MOST_BYTES),
    FIELD(bus_latency_ns, 0, MOST_NS),
    FIELD(decode_bytes_per_s, 1, MOST_BYTES),
    FIELD(decode_latency_ns, 0, MOST_NS),
    FIELD(cold_bytes_per_s, 1, MOST_BYTES),
    FIELD(cold_latency_ns, 0, MOST_NS),
    FIELD(launch_ns, 0, MOST_NS),
    FIELD(host_memory_bytes, 1, MOST_BYTES),
    /* of these two, both or neither */
    FIELD(host_memory_bytes_per_s, 1, MOST_BYTES),
    FIELD(host_compute_flops, 1, MOST_FLOPS),
#undef FIELD
};

#define N_FIELDS (sizeof fields / sizeof *fields)
#define N_REQUIRED (N_FIELDS - 2)

/* For people alone. */
static const char *const remarks[] = {"comment", "source"};

/* ---- the text ---- */

static moepage_status read_text(const char *path, char **out, size_t *out_bytes)
{
    int fd;
    uint64_t bytes, got = 0;
    moepage_status status = mp_file_open(path, path, &fd, &bytes);
    if (status)
        return status;
    char *text = NULL;
    if (bytes > MOST_FILE_BYTES)
        status = mp_fail(MOEPAGE_E_FORMAT, "%.300s: %llu bytes are too many for a machine's file",
                         path, (unsigned long long)bytes);
    else if (!(text = mp_alloc(bytes + 1)))
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "%.300s: no memory to read it", path);
    while (!status && got < bytes) {
        ssize_t n = read(fd, text + got, bytes - got);
        if (n < 0)
            status = mp_file_fail(path, "read");
        else if (n == 0)
            bytes = got; /* the file has become shorter */
        else
            got += (uint64_t)n;
    }
    close(fd);
    if (status) {
        mp_free(text);
        return status;
    }
    *out = text;
    *out_bytes = got;
    return MOEPAGE_OK;
}

/* ---- the fields ---- */

static bool is_known(const char *key)
{
    bool known = strcmp(key, "name") == 0;
    for (size_t i = 0; i < N_FIELDS; i++)
        known |= strcmp(key, fields[i].key) == 0;
    for (size_t i = 0; i < sizeof remarks / sizeof *remarks; i++)
        known |= strcmp(key, remarks[i]) == 0;
    return known;
}

static moepage_status check_keys(const mp_json *json)
{
    const char *key;
    json_t *value;
    json_object_foreach(json->root, key, value)
    {
        if (!is_known(key))
            return mp_fail(MOEPAGE_E_FORMAT, "%.300s: \"%.100s\" is not a field of a machine",
                           json->what, key);
    }
    return MOEPAGE_OK;
}

static moepage_status check_remarks(const mp_json *json)
{
    for (size_t i = 0; i < sizeof remarks / sizeof *remarks; i++) {
        const json_t *value = json_object_get(json->root, remarks[i]);
        if (value && !json_is_string(value))
            return mp_fail(MOEPAGE_E_FORMAT, "%.300s: \"%s\" is no string", json->what, remarks[i]);
    }
    return MOEPAGE_OK;
}

static moepage_status read_name(const mp_json *json, mp_sim_profile *out)
{
    const json_t *value = json_object_get(json->root, "name");
    const char *name = value && json_is_string(value) ? json_string_value(value) : "";
    if (!*name || strlen(name) >= sizeof out->name)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.300s: \"name\" is %s, it must be a string of 1 to %zu bytes", json->what,
                       !value                  ? "missing"
                       : *name                 ? "too long"
                       : json_is_string(value) ? "empty"
                                               : "no string",
                       sizeof out->name - 1);
    memcpy(out->name, name, strlen(name) + 1);
    return MOEPAGE_OK;
}

static moepage_status read_numbers(const mp_json *json, mp_sim_profile *out)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(json->root, fields[i].key);
        if (!value && i >= N_REQUIRED)
            continue;
        if (!value)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "%.300s: \"%s\" is missing, it must be an integer from %llu to %llu",
                           json->what, fields[i].key, (unsigned long long)fields[i].min,
                           (unsigned long long)fields[i].max);
        uint64_t number;
        moepage_status status = mp_json_integer(json->what, fields[i].key, value, fields[i].min,
                                                fields[i].max, &number);
        if (status)
            return status;
        memcpy((char *)out + fields[i].at, &number, sizeof number);
    }
    if (!out->host_memory_bytes_per_s != !out->host_compute_flops)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "%.300s: of \"host_memory_bytes_per_s\" and \"host_compute_flops\" only one "
                       "is there, it must be both or neither",
                       json->what);
    return MOEPAGE_OK;
}

moepage_status mp_sim_profile_read(const char *path, mp_sim_profile *out)
{
    char *text;
    size_t bytes;
    moepage_status status = read_text(path, &text, &bytes);
    if (status)
        return status;
    mp_json json;
    mp_sim_profile own = {0};
    status = mp_json_parse(path, text, bytes, &json);
    mp_free(text);
    if (status)
        return status;
    status = check_keys(&json);
    if (!status)
        status = check_remarks(&json);
    if (!status)
        status = read_name(&json, &own);
    if (!status)
        status = read_numbers(&json, &own);
    json_decref(json.root);
    if (!status)
        *out = own;
    return status;
}
