/* Writing small checkpoints. */
#include "checkpoint_maker.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "testing.h"

void maker_dir_create(char *path)
{
    const char *base = getenv("TMPDIR");
    int n = snprintf(path, 64, "%s/moepage-test-XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    assert_in_range(n, 1, 63);
    assert_non_null(mkdtemp(path));
}

void maker_dir_remove(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && unlink(file))
            rmdir(file);
    }
    closedir(dir);
    assert_int_equal(rmdir(path), 0);
}

static FILE *open_in(const char *dir, const char *name, const char *mode)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    return file;
}

void maker_write(const char *dir, const char *name, const void *bytes, size_t n_bytes)
{
    FILE *file = open_in(dir, name, "wb");
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

void maker_write_text(const char *dir, const char *name, const char *text)
{
    maker_write(dir, name, text, strlen(text));
}

unsigned char *maker_read(const char *dir, const char *name, size_t *n_bytes)
{
    FILE *file = open_in(dir, name, "rb");
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n_bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*n_bytes + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, file), *n_bytes);
    fclose(file);
    return bytes;
}

unsigned char maker_byte(const char *name, uint64_t i)
{
    uint64_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    hash = (hash + i) * 0x9e3779b97f4a7c15u;
    /* At most 0x3f: no exponent is all ones. */
    return (unsigned char)(hash >> 58);
}

static uint64_t bits_of(const char *dtype)
{
    static const struct {
        const char *name;
        uint64_t bits;
    } known[] = {{"F32", 32}, {"F16", 16},    {"BF16", 16},   {"F64", 64},    {"I64", 64},
                 {"I32", 32}, {"I16", 16},    {"U8", 8},      {"I8", 8},      {"BOOL", 8},
                 {"F4", 4},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, dtype) == 0)
            return known[i].bits;
    fail_msg("the maker does not know dtype %s", dtype);
    return 0;
}

void maker_reshape(maker_tensor *tensor, const char *dtype, uint32_t rank, const uint64_t *shape)
{
    assert_in_range(rank, 0, MAKER_MAX_RANK);
    snprintf(tensor->dtype, sizeof tensor->dtype, "%s", dtype);
    tensor->rank = rank;
    uint64_t bits = bits_of(dtype);
    for (uint32_t i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
        bits *= shape[i];
    }
    tensor->bytes = bits / 8;
    free(tensor->data);
    tensor->data = malloc(tensor->bytes + 1);
    assert_non_null(tensor->data);
    for (uint64_t i = 0; i < tensor->bytes; i++)
        tensor->data[i] = maker_byte(tensor->name, i);
}

maker_tensor *maker_add(maker_shard *shard, const char *dtype, uint32_t rank, const uint64_t *shape,
                        const char *format, ...)
{
    assert_in_range(shard->n_tensors, 0, MAKER_MAX_TENSORS - 1);
    maker_tensor *tensor = &shard->tensors[shard->n_tensors++];
    memset(tensor, 0, sizeof *tensor);
    va_list args;
    va_start(args, format);
    vsnprintf(tensor->name, sizeof tensor->name, format, args);
    va_end(args);
    maker_reshape(tensor, dtype, rank, shape);
    return tensor;
}

maker_tensor *maker_find(maker_shard *shard, const char *name)
{
    for (uint32_t i = 0; i < shard->n_tensors; i++)
        if (strcmp(shard->tensors[i].name, name) == 0)
            return &shard->tensors[i];
    fail_msg("the maker has no tensor %s", name);
    return NULL;
}

void maker_remove(maker_shard *shard, const char *name)
{
    maker_tensor *tensor = maker_find(shard, name);
    free(tensor->data);
    size_t after = (size_t)(shard->tensors + shard->n_tensors - (tensor + 1));
    memmove(tensor, tensor + 1, after * sizeof *tensor);
    shard->n_tensors--;
}

static size_t write_header(const maker_shard *shard, char *out, size_t room)
{
    size_t n = (size_t)snprintf(out, room, "{\"__metadata__\":{\"format\":\"pt\"}");
    uint64_t offset = 0;
    for (uint32_t t = 0; t < shard->n_tensors; t++) {
        const maker_tensor *tensor = &shard->tensors[t];
        n += (size_t)snprintf(out + n, room - n, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                              tensor->name, tensor->dtype);
        for (uint32_t i = 0; i < tensor->rank; i++)
            n += (size_t)snprintf(out + n, room - n, "%s%llu", i ? "," : "",
                                  (unsigned long long)tensor->shape[i]);
        n += (size_t)snprintf(out + n, room - n, "],\"data_offsets\":[%llu,%llu]}",
                              (unsigned long long)offset,
                              (unsigned long long)(offset + tensor->bytes));
        offset += tensor->bytes;
    }
    n += (size_t)snprintf(out + n, room - n, "}");
    while (n % 8)
        out[n++] = ' ';
    for (uint32_t i = 0; i < shard->padding; i++)
        out[n++] = ' ';
    assert_in_range(n, 1, room - 1);
    return n;
}

static void write_length(FILE *file, uint64_t length)
{
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> (8 * i) & 0xff), file);
}

void maker_write_shard(const maker_shard *shard, const char *dir, const char *name)
{
    size_t room = 512 + (size_t)MAKER_MAX_TENSORS * 320;
    char *header = malloc(room);
    assert_non_null(header);
    size_t n = write_header(shard, header, room);
    FILE *file = open_in(dir, name, "wb");
    write_length(file, n);
    fwrite(header, 1, n, file);
    for (uint32_t t = 0; t < shard->n_tensors; t++)
        fwrite(shard->tensors[t].data, 1, shard->tensors[t].bytes, file);
    assert_int_equal(fclose(file), 0);
    free(header);
}

void maker_write_raw(const char *dir, const char *name, const char *header, size_t n_bytes,
                     uint64_t data_bytes)
{
    FILE *file = open_in(dir, name, "wb");
    write_length(file, n_bytes);
    fwrite(header, 1, n_bytes, file);
    for (uint64_t i = 0; i < data_bytes; i++)
        fputc(0x11, file);
    assert_int_equal(fclose(file), 0);
}

void maker_shard_free(maker_shard *shard)
{
    for (uint32_t i = 0; i < shard->n_tensors; i++)
        free(shard->tensors[i].data);
    shard->n_tensors = 0;
}
