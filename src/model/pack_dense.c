/* The DENSE DIRECTORY and DENSE DATA sections of a .moepack file: tensors that are never paged. */
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/status.h"
#include "model/pack.h"
#include "model/pack_sections.h"
#include "model/shape.h"

#define MOST_PIECE_BYTES ((uint64_t)1 << 20)

/* Offsets of a directory entry's numbers. */
enum {
    AT_NAME = 0,
    AT_NAME_BYTES = 8,
    AT_DTYPE = 12,
    AT_RANK = 16,
    AT_RESERVED = 20,
    AT_SHAPE = 24,
    AT_OFFSET = 56,
    AT_BYTES = 64,
    AT_XXH3 = 72
};

static const unsigned char *entry_of(const mp_pack *pack, uint64_t index)
{
    return pack->directory + MP_PACK_DENSE_HEAD_BYTES + index * MP_PACK_DENSE_TENSOR_BYTES;
}

static const char *names_of(const mp_pack *pack)
{
    return (const char *)entry_of(pack, pack->n_dense);
}

static void decode(const mp_pack *pack, uint64_t index, mp_dense_tensor *out)
{
    const unsigned char *entry = entry_of(pack, index);
    *out = (mp_dense_tensor){.name = names_of(pack) + mp_get64(entry + AT_NAME),
                             .dtype = mp_get32(entry + AT_DTYPE),
                             .rank = mp_get32(entry + AT_RANK),
                             .bytes = mp_get64(entry + AT_BYTES),
                             .file = &pack->file,
                             .offset = pack->dense_data + mp_get64(entry + AT_OFFSET),
                             .has_sum = true,
                             .xxh3 = mp_get64(entry + AT_XXH3)};
    for (uint32_t d = 0; d < MOEPAGE_MAX_RANK; d++)
        out->shape[d] = mp_get64(entry + AT_SHAPE + 8 * d);
}

void mp_pack_dense_at(const mp_pack *pack, uint64_t index, mp_dense_tensor *out)
{
    decode(pack, index, out);
    out->held = &pack->held[index];
}

void mp_pack_dense_free(mp_pack *pack)
{
    for (uint64_t i = 0; pack->held && i < pack->n_dense; i++)
        mp_dense_free(pack->held[i]);
    mp_free(pack->held);
}

void mp_pack_dense_encode(const mp_dense_tensor *tensor, const void *bytes, uint64_t name_at,
                          uint64_t offset, unsigned char *out)
{
    memset(out, 0, MP_PACK_DENSE_TENSOR_BYTES);
    mp_put64(out + AT_NAME, name_at);
    mp_put32(out + AT_NAME_BYTES, (uint32_t)strlen(tensor->name));
    mp_put32(out + AT_DTYPE, tensor->dtype);
    mp_put32(out + AT_RANK, tensor->rank);
    for (uint32_t d = 0; d < tensor->rank; d++)
        mp_put64(out + AT_SHAPE + 8 * d, tensor->shape[d]);
    mp_put64(out + AT_OFFSET, offset);
    mp_put64(out + AT_BYTES, tensor->bytes);
    mp_put64(out + AT_XXH3, XXH3_64bits(bytes, tensor->bytes));
}

/* Checks the names: back to back in the order of the entries, each ended by a NUL, ascending. */
static moepage_status check_names(const mp_pack *pack, uint64_t name_bytes)
{
    const char *names = names_of(pack), *before = NULL;
    uint64_t at = 0;
    for (uint64_t i = 0; i < pack->n_dense; i++) {
        const unsigned char *entry = entry_of(pack, i);
        uint64_t n = mp_get32(entry + AT_NAME_BYTES);
        if (mp_get64(entry + AT_NAME) != at || n == 0 || n >= name_bytes - at ||
            strnlen(names + at, n + 1) != n)
            return mp_fail(MOEPAGE_E_FORMAT,
                           "the name of tensor %llu is not %llu bytes and a NUL at %llu",
                           (unsigned long long)i, (unsigned long long)n, (unsigned long long)at);
        if (before && strcmp(before, names + at) >= 0)
            return mp_fail(MOEPAGE_E_FORMAT, "tensor \"%.160s\" comes after \"%.160s\"", names + at,
                           before);
        before = names + at;
        at += n + 1;
    }
    if (at != name_bytes)
        return mp_fail(MOEPAGE_E_FORMAT, "names take %llu bytes of %llu", (unsigned long long)at,
                       (unsigned long long)name_bytes);
    return MOEPAGE_OK;
}

static moepage_status check_shape(const mp_dense_tensor *tensor, uint32_t reserved)
{
    uint64_t bytes = tensor->bytes;
    bool plain = reserved == 0 && tensor->rank <= MOEPAGE_MAX_RANK;
    for (uint32_t d = tensor->rank; plain && d < MOEPAGE_MAX_RANK; d++)
        plain = tensor->shape[d] == 0;
    if (plain && tensor->dtype == MOEPAGE_DTYPE_NONE)
        plain = tensor->rank == 0;
    else if (plain)
        plain = mp_shape_bytes(tensor->dtype, tensor->rank, tensor->shape, &bytes);
    if (plain && bytes == tensor->bytes)
        return MOEPAGE_OK;
    return mp_fail(
        MOEPAGE_E_FORMAT,
        "tensor \"%.160s\": %llu bytes are not what dtype %u, rank %u and its shape make",
        tensor->name, (unsigned long long)tensor->bytes, tensor->dtype, tensor->rank);
}

/* Checks the tensor's location; `end` is the end of the preceding tensor. */
static moepage_status check_place(const mp_dense_tensor *tensor, uint64_t offset,
                                  uint64_t data_bytes, uint64_t end)
{
    uint64_t place = mp_pack_round_up(end, MP_PACK_DENSE_ALIGN);
    if (offset == place && offset <= data_bytes && tensor->bytes <= data_bytes - offset)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_FORMAT,
                   "tensor \"%.160s\" has %llu bytes at %llu: it must start at %llu and end within "
                   "the %llu of section DENSE DATA",
                   tensor->name, (unsigned long long)tensor->bytes, (unsigned long long)offset,
                   (unsigned long long)place, (unsigned long long)data_bytes);
}

/* Reads the section from its beginning to its end, once, a piece at a time. */
typedef struct reading {
    const mp_pack *pack;
    uint64_t piece_bytes; /* at most; no less than a gap */
    unsigned char *piece;
    XXH3_state_t *sum;
} reading;

/* Checks the gap between `end` and the tensor: at most MP_PACK_DENSE_ALIGN bytes. */
static moepage_status check_gap(const reading *from, const mp_dense_tensor *tensor, uint64_t end)
{
    uint64_t n = tensor->offset - from->pack->dense_data - end;
    moepage_status status =
        mp_model_file_read(&from->pack->file, from->pack->dense_data + end, n, from->piece);
    for (uint64_t i = 0; !status && i < n; i++)
        if (from->piece[i])
            status = mp_fail(MOEPAGE_E_FORMAT,
                             "section DENSE DATA: byte %llu, before tensor \"%.160s\", is not 0",
                             (unsigned long long)(end + i), tensor->name);
    return status;
}

static moepage_status check_bytes(const reading *from, const mp_dense_tensor *tensor)
{
    XXH3_64bits_reset(from->sum);
    for (uint64_t done = 0; done < tensor->bytes;) {
        uint64_t n = tensor->bytes - done;
        n = n < from->piece_bytes ? n : from->piece_bytes;
        moepage_status status =
            mp_model_file_read(&from->pack->file, tensor->offset + done, n, from->piece);
        if (status)
            return status;
        XXH3_64bits_update(from->sum, from->piece, n);
        done += n;
    }
    if (XXH3_64bits_digest(from->sum) != tensor->xxh3)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "section DENSE DATA: tensor \"%.160s\": its bytes do not match their "
                       "checksum",
                       tensor->name);
    return MOEPAGE_OK;
}

static moepage_status check_counts(mp_pack *pack, uint64_t directory_bytes)
{
    uint64_t n = 0, rest = 0, names = 0;
    if (directory_bytes >= MP_PACK_DENSE_HEAD_BYTES) {
        n = mp_get64(pack->directory);
        names = mp_get64(pack->directory + 8);
        rest = directory_bytes - MP_PACK_DENSE_HEAD_BYTES;
    }
    pack->n_dense = n;
    if (directory_bytes >= MP_PACK_DENSE_HEAD_BYTES && n <= rest / MP_PACK_DENSE_TENSOR_BYTES &&
        names == rest - n * MP_PACK_DENSE_TENSOR_BYTES)
        return check_names(pack, names);
    return mp_fail(MOEPAGE_E_FORMAT, "its %llu bytes do not hold %llu tensors and %llu of names",
                   (unsigned long long)directory_bytes, (unsigned long long)n,
                   (unsigned long long)names);
}

/* Checks all tensors in the order of the directory, which is that of their bytes. A failure of the
 * bytes names its section itself: *named. */
static moepage_status check_tensors(const reading *from, uint64_t data_bytes, uint64_t *dense_bytes,
                                    bool *named)
{
    const mp_pack *pack = from->pack;
    uint64_t end = 0;
    for (uint64_t i = 0; i < pack->n_dense; i++) {
        const unsigned char *entry = entry_of(pack, i);
        uint64_t offset = mp_get64(entry + AT_OFFSET);
        mp_dense_tensor tensor;
        decode(pack, i, &tensor);
        moepage_status status = check_shape(&tensor, mp_get32(entry + AT_RESERVED));
        if (!status)
            status = check_place(&tensor, offset, data_bytes, end);
        *named = !status;
        if (!status)
            status = check_gap(from, &tensor, end);
        if (!status)
            status = check_bytes(from, &tensor);
        if (status)
            return status;
        end = offset + tensor.bytes;
        *dense_bytes += tensor.bytes;
    }
    *named = false;
    if (end != data_bytes)
        return mp_fail(MOEPAGE_E_FORMAT,
                       "its tensors end at %llu of the %llu bytes of section DENSE DATA",
                       (unsigned long long)end, (unsigned long long)data_bytes);
    return MOEPAGE_OK;
}

moepage_status mp_pack_dense_check(mp_pack *pack, uint64_t directory_bytes, uint64_t data_bytes,
                                   uint64_t *dense_bytes)
{
    bool named = false;
    *dense_bytes = 0;
    moepage_status status = check_counts(pack, directory_bytes);
    if (status)
        return mp_fail_within(status, "section DENSE DIRECTORY");
    const uint64_t piece_bytes = data_bytes < MOST_PIECE_BYTES ? data_bytes : MOST_PIECE_BYTES;
    reading from = {pack, piece_bytes, mp_alloc(piece_bytes), XXH3_createState()};
    pack->held = mp_alloc_array(pack->n_dense, sizeof *pack->held);
    if (!from.piece || !from.sum || !pack->held)
        status = mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to check %llu tensors",
                         (unsigned long long)pack->n_dense);
    else
        status = check_tensors(&from, data_bytes, dense_bytes, &named);
    mp_free(from.piece);
    XXH3_freeState(from.sum);
    return status && !named ? mp_fail_within(status, "section DENSE DIRECTORY") : status;
}
