/* What a predictor has learnt, in a file: a head of HEAD_BYTES, and what the predictor itself wrote.
 *
 *   at   bytes
 *    0    8   "MPREDICT"
 *    8    4   version, 1
 *   12    4   bytes of the head
 *   16   32   the predictor's name, filled up with zeros
 *   48    4   MoE layers
 *   52    4   experts per layer
 *   56    4   semantic_dim
 *   60    4   0
 *   64    8   iterations learnt from
 *   72    8   bytes behind the head, to the end of the file
 *   80    8   XXH3 of those
 *   88   32   0
 *  120    8   XXH3 of the head up to here
 *
 * Numbers are little-endian. The head of every version is so long, begins with the first two fields
 * and ends with its checksum. */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/status.h"
#include "features/shared_predictor.h"
#include "model/file.h"
#include "model/pack_file.h"

#define MAGIC "MPREDICT"

enum {
    VERSION = 1,
    HEAD_BYTES = 128,
    NAME_BYTES = 32,
    AT_VERSION = 8,
    AT_HEAD_BYTES = 12,
    AT_NAME = 16,
    AT_LAYERS = 48,
    AT_EXPERTS = 52,
    AT_SEMANTIC_DIM = 56,
    AT_ITERATIONS = 64,
    AT_BYTES = 72,
    AT_XXH3 = 80,
    AT_HEAD_XXH3 = 120
};

static void encode_head(const struct moepage_predictor *predictor, uint64_t iterations,
                        const unsigned char *learnt, uint64_t bytes, unsigned char *head)
{
    memset(head, 0, HEAD_BYTES);
    memcpy(head, MAGIC, 8);
    mp_put32(head + AT_VERSION, VERSION);
    mp_put32(head + AT_HEAD_BYTES, HEAD_BYTES);
    strncpy((char *)head + AT_NAME, predictor->kind->name, NAME_BYTES - 1);
    mp_put32(head + AT_LAYERS, predictor->config.layers);
    mp_put32(head + AT_EXPERTS, predictor->config.experts);
    mp_put32(head + AT_SEMANTIC_DIM, predictor->config.semantic_dim);
    mp_put64(head + AT_ITERATIONS, iterations);
    mp_put64(head + AT_BYTES, bytes);
    mp_put64(head + AT_XXH3, XXH3_64bits(learnt, bytes));
    mp_put64(head + AT_HEAD_XXH3, XXH3_64bits(head, AT_HEAD_XXH3));
}

static moepage_status check_can_keep(const struct moepage_predictor *predictor)
{
    if (predictor->kind->save)
        return MOEPAGE_OK;
    return mp_fail(MOEPAGE_E_UNSUPPORTED,
                   "predictor \"%s\" learns nothing between requests: there is nothing to keep",
                   predictor->kind->name);
}

/* ---- Saving ------------------------------------------------------------------------------ */

static moepage_status write_file(const char *path, const unsigned char *bytes, uint64_t n)
{
    mp_pack_file file;
    const mp_log silent = {0};
    moepage_status status = mp_pack_file_create(path, &file);
    if (!status)
        status = mp_pack_file_write(&file, bytes, n, 0);
    if (!status)
        status = mp_pack_file_sync(&file, n);
    if (!status)
        status = mp_pack_file_publish(&file, &silent);
    mp_pack_file_discard(&file);
    return status;
}

moepage_status mp_predictor_save(struct moepage_predictor *predictor, const char *path)
{
    moepage_status status = check_can_keep(predictor);
    if (status)
        return status;
    pthread_mutex_lock(&predictor->lock);
    uint64_t bytes = predictor->kind->save_bytes(predictor->state);
    uint64_t iterations = predictor->iterations;
    unsigned char *file = mp_alloc(HEAD_BYTES + bytes);
    if (file)
        predictor->kind->save(predictor->state, file + HEAD_BYTES);
    pthread_mutex_unlock(&predictor->lock);
    if (!file)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to save %llu bytes of a predictor",
                       (unsigned long long)bytes);
    encode_head(predictor, iterations, file + HEAD_BYTES, bytes, file);
    status = write_file(path, file, HEAD_BYTES + bytes);
    mp_free(file);
    return status;
}

/* ---- Loading ----------------------------------------------------------------------------- */

/* Checks that this is the head of such a file. */
static moepage_status check_head(const unsigned char *head, uint64_t file_bytes)
{
    if (memcmp(head, MAGIC, 8) != 0)
        return mp_fail(MOEPAGE_E_FORMAT, "it does not begin with \"" MAGIC "\"");
    if (mp_get64(head + AT_HEAD_XXH3) != XXH3_64bits(head, AT_HEAD_XXH3))
        return mp_fail(MOEPAGE_E_FORMAT, "its head does not match its checksum");
    if (mp_get32(head + AT_VERSION) != VERSION)
        return mp_fail(MOEPAGE_E_VERSION, "its version is %u, this library reads %u",
                       mp_get32(head + AT_VERSION), VERSION);
    if (mp_get32(head + AT_HEAD_BYTES) != HEAD_BYTES ||
        mp_get64(head + AT_BYTES) != file_bytes - HEAD_BYTES)
        return mp_fail(MOEPAGE_E_FORMAT, "it is %llu bytes, its head says %u and %llu",
                       (unsigned long long)file_bytes, mp_get32(head + AT_HEAD_BYTES),
                       (unsigned long long)mp_get64(head + AT_BYTES));
    return MOEPAGE_OK;
}

/* Checks that the file was saved by a predictor of the same kind and shape. */
static moepage_status check_subject(const struct moepage_predictor *predictor,
                                    const unsigned char *head)
{
    const mp_predict_config *config = &predictor->config;
    char name[NAME_BYTES] = "";
    strncpy(name, predictor->kind->name, NAME_BYTES - 1);
    if (memcmp(head + AT_NAME, name, NAME_BYTES) != 0)
        return mp_fail(MOEPAGE_E_ARGUMENT, "it is of predictor \"%.31s\", not of \"%s\"",
                       (const char *)head + AT_NAME, name);
    if (mp_get32(head + AT_LAYERS) != config->layers ||
        mp_get32(head + AT_EXPERTS) != config->experts ||
        mp_get32(head + AT_SEMANTIC_DIM) != config->semantic_dim)
        return mp_fail(MOEPAGE_E_ARGUMENT,
                       "it is of %u layers of %u experts with semantic_dim %u, the predictor is of "
                       "%u of %u with %u",
                       mp_get32(head + AT_LAYERS), mp_get32(head + AT_EXPERTS),
                       mp_get32(head + AT_SEMANTIC_DIM), config->layers, config->experts,
                       config->semantic_dim);
    return MOEPAGE_OK;
}

static moepage_status read_exactly(int fd, unsigned char *out, uint64_t n)
{
    while (n) {
        ssize_t done = read(fd, out, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return mp_file_fail("the file", "read");
        if (done == 0)
            return mp_fail(MOEPAGE_E_FORMAT, "it ends %llu bytes too early", (unsigned long long)n);
        out += done;
        n -= (uint64_t)done;
    }
    return MOEPAGE_OK;
}

/* Reads the file behind its checked head, and adopts its contents. */
static moepage_status take_over(struct moepage_predictor *predictor, int fd,
                                const unsigned char *head)
{
    const uint64_t bytes = mp_get64(head + AT_BYTES);
    unsigned char *learnt = mp_alloc(bytes);
    if (!learnt)
        return mp_fail(MOEPAGE_E_NO_MEMORY, "no memory to load %llu bytes of a predictor",
                       (unsigned long long)bytes);
    moepage_status status = read_exactly(fd, learnt, bytes);
    if (!status && XXH3_64bits(learnt, bytes) != mp_get64(head + AT_XXH3))
        status = mp_fail(MOEPAGE_E_FORMAT, "the bytes behind its head do not match their checksum");
    pthread_mutex_lock(&predictor->lock);
    if (!status)
        status = predictor->kind->load(predictor->state, learnt, bytes);
    if (!status)
        predictor->iterations = mp_get64(head + AT_ITERATIONS);
    pthread_mutex_unlock(&predictor->lock);
    mp_free(learnt);
    return status;
}

/* Returns a limit on the file's size. What a predictor saves is about as large as its memory; a far
 * larger file is not worth reading. */
static uint64_t most_bytes(const struct moepage_predictor *predictor)
{
    return 4 * predictor->kind->state_bytes(&predictor->config) + (1u << 20);
}

moepage_status mp_predictor_load(struct moepage_predictor *predictor, const char *path)
{
    unsigned char head[HEAD_BYTES];
    uint64_t bytes;
    int fd;
    moepage_status status = check_can_keep(predictor);
    if (!status)
        status = mp_file_open(path, path, &fd, &bytes);
    if (status)
        return status;
    if (bytes < HEAD_BYTES || bytes - HEAD_BYTES > most_bytes(predictor))
        status = mp_fail(MOEPAGE_E_FORMAT, "it is %llu bytes, it must be %u to %llu",
                         (unsigned long long)bytes, HEAD_BYTES,
                         (unsigned long long)(HEAD_BYTES + most_bytes(predictor)));
    if (!status)
        status = read_exactly(fd, head, sizeof head);
    if (!status)
        status = check_head(head, bytes);
    if (!status)
        status = check_subject(predictor, head);
    if (!status)
        status = take_over(predictor, fd, head);
    close(fd);
    return status ? mp_path_fail_within(status, path) : MOEPAGE_OK;
}
