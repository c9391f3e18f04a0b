/* The header of a trace file, and the arithmetic on which the writer and the reader must agree. */
#include "trace/trace_format.h"

#include <xxhash.h>

#include "base/status.h"

/* Offsets in the header. */
enum {
    AT_MAJOR = 8,
    AT_MINOR = 10,
    AT_BYTES = 12,
    AT_LAYERS = 16,
    AT_EXPERTS = 20,
    AT_TOP_K = 24,
    AT_SEMANTIC = 28,
    AT_FLAGS = 32,
    AT_MODEL = 40,
    AT_CHECKSUM = 120
};

static moepage_status check_range(const char *what, uint32_t value, uint32_t low, uint32_t high,
                                  moepage_status status)
{
    if (value >= low && value <= high)
        return MOEPAGE_OK;
    return mp_fail(status, "a trace's %s is %u, it must be %u to %u", what, value, low, high);
}

moepage_status mp_trace_check_info(const moepage_trace_info *info, moepage_status status)
{
    moepage_status bad = MOEPAGE_OK;
    if ((bad = check_range("moe_layers", info->moe_layers, 1, MP_TRACE_MAX_LAYERS, status)) ||
        (bad = check_range("experts", info->experts, 1, MP_TRACE_MAX_EXPERTS, status)) ||
        (bad = check_range("max_top_k", info->max_top_k, 1, MP_TRACE_MAX_TOP_K, status)) ||
        (bad = check_range("semantic_dim", info->semantic_dim, 0, MP_TRACE_MAX_SEMANTIC_DIM,
                           status)) ||
        (bad = check_range("has_probabilities", info->has_probabilities, 0, 1, status)))
        return bad;
    if (!memchr(info->model, 0, sizeof info->model))
        return mp_fail(status, "a trace's model name has no end: at most %zu bytes and a NUL",
                       sizeof info->model - 1);
    return MOEPAGE_OK;
}

void mp_trace_header_encode(const moepage_trace_info *info,
                            unsigned char header[MP_TRACE_HEADER_BYTES])
{
    const uint16_t major = MP_TRACE_MAJOR, minor = MP_TRACE_MINOR;
    memset(header, 0, MP_TRACE_HEADER_BYTES);
    memcpy(header, MP_TRACE_MAGIC, 8);
    memcpy(header + AT_MAJOR, &major, sizeof major);
    memcpy(header + AT_MINOR, &minor, sizeof minor);
    mp_trace_put32(header + AT_BYTES, MP_TRACE_HEADER_BYTES);
    mp_trace_put32(header + AT_LAYERS, info->moe_layers);
    mp_trace_put32(header + AT_EXPERTS, info->experts);
    mp_trace_put32(header + AT_TOP_K, info->max_top_k);
    mp_trace_put32(header + AT_SEMANTIC, info->semantic_dim);
    mp_trace_put32(header + AT_FLAGS, info->has_probabilities ? MP_TRACE_HAS_PROBABILITIES : 0);
    memcpy(header + AT_MODEL, info->model, strnlen(info->model, sizeof info->model - 1));
    mp_trace_put64(header + AT_CHECKSUM, XXH3_64bits(header, AT_CHECKSUM));
}

moepage_status mp_trace_header_decode(const unsigned char header[MP_TRACE_HEADER_BYTES],
                                      moepage_trace_info *info)
{
    if (memcmp(header, MP_TRACE_MAGIC, 8) != 0)
        return mp_fail(MOEPAGE_E_FORMAT, "not a trace file: it must begin with " MP_TRACE_MAGIC);
    uint16_t major = mp_trace_get16(header + AT_MAJOR), minor = mp_trace_get16(header + AT_MINOR);
    /* Before the checksum, which may be elsewhere in another version. */
    if (major != MP_TRACE_MAJOR)
        return mp_fail(MOEPAGE_E_VERSION,
                       "the trace has format version %u.%u, this library reads "
                       "%u.x",
                       major, minor, MP_TRACE_MAJOR);
    if (XXH3_64bits(header, AT_CHECKSUM) != mp_trace_get64(header + AT_CHECKSUM))
        return mp_fail(MOEPAGE_E_FORMAT, "the trace's header does not match its checksum");
    if (mp_trace_get32(header + AT_BYTES) != MP_TRACE_HEADER_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "the trace's header claims %u bytes, it must be %d",
                       mp_trace_get32(header + AT_BYTES), MP_TRACE_HEADER_BYTES);
    uint32_t flags = mp_trace_get32(header + AT_FLAGS);
    if (flags & ~(uint32_t)MP_TRACE_HAS_PROBABILITIES)
        return mp_fail(MOEPAGE_E_UNSUPPORTED,
                       "the trace (version %u.%u) has flags %#x, this "
                       "library knows %#x",
                       major, minor, flags, MP_TRACE_HAS_PROBABILITIES);
    moepage_trace_info own = {
        .struct_size = sizeof own,
        .moe_layers = mp_trace_get32(header + AT_LAYERS),
        .experts = mp_trace_get32(header + AT_EXPERTS),
        .max_top_k = mp_trace_get32(header + AT_TOP_K),
        .semantic_dim = mp_trace_get32(header + AT_SEMANTIC),
        .has_probabilities = flags & MP_TRACE_HAS_PROBABILITIES,
    };
    memcpy(own.model, header + AT_MODEL, sizeof own.model);
    moepage_status status = mp_trace_check_info(&own, MOEPAGE_E_FORMAT);
    if (!status)
        *info = own;
    return status;
}

uint64_t mp_trace_chain(uint64_t chain, uint64_t checksum)
{
    return XXH3_64bits_withSeed(&checksum, sizeof checksum, chain);
}

uint64_t mp_trace_step_bytes(const moepage_trace_info *info, uint64_t n_tokens, uint64_t top_k,
                             uint64_t n_sequences, bool probabilities)
{
    uint64_t per_token = top_k * (sizeof(int32_t) + sizeof(float)) +
                         (probabilities ? info->experts * sizeof(float) : 0);
    uint64_t per_sequence = sizeof(moepage_step_sequence) + info->semantic_dim * sizeof(float);
    return info->moe_layers * n_tokens * per_token + n_sequences * per_sequence;
}
