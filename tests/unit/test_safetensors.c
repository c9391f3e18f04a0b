/* One .safetensors file: what a good one yields, and that every bad one is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_maker.h"
#include "model/safetensors.h"
#include "moe_maker.h"
#include "testing.h"

static char dir[64];
static maker_shard shard;

static int create_dir(void **state)
{
    (void)state;
    maker_dir_create(dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    maker_shard_free(&shard);
    shard.padding = 0;
    maker_dir_remove(dir);
    return 0;
}

static moepage_status open_named(const char *name, mp_safetensors *file)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return mp_safetensors_open(path, file);
}

static void expect_refusal(const char *name, moepage_status status, const char *words)
{
    mp_safetensors file;
    moepage_status found = open_named(name, &file);
    if (found != status)
        fail_msg("status %d, not %d, for words %s: %s", found, status, words,
                 found ? moepage_last_error() : "accepted");
    expect_sentence(words);
}

/* The file's bytes where the tensor was found, read by other means. */
static void expect_bytes(const mp_tensor *found, const maker_tensor *made)
{
    size_t n;
    unsigned char *bytes = maker_read(dir, "a.safetensors", &n);
    assert_true(found->offset <= n && found->bytes <= n - found->offset);
    assert_memory_equal(bytes + found->offset, made->data, made->bytes);
    free(bytes);
}

static void test_safetensors_finds_every_tensor_where_the_file_has_it(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                         "U8",  "I8",  "I32",  "I64",     "BOOL",    "F64"};
    uint64_t shape[] = {3, 5};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        maker_add(&shard, dtypes[i], 2, shape, "t.%s", dtypes[i]);
    maker_write_shard(&shard, dir, "a.safetensors");

    mp_safetensors file;
    assert_int_equal(open_named("a.safetensors", &file), MOEPAGE_OK);
    assert_string_equal(file.file.name, "a.safetensors");
    assert_int_equal(file.n_tensors, shard.n_tensors);
    for (uint32_t i = 0; i < shard.n_tensors; i++) {
        const maker_tensor *made = &shard.tensors[i];
        const mp_tensor *found = &file.tensors[i];
        assert_string_equal(found->name, made->name);
        assert_string_equal(found->type->name, made->dtype);
        assert_int_equal(found->rank, 2);
        assert_int_equal(found->shape[0], 3);
        assert_int_equal(found->shape[1], 5);
        assert_int_equal(found->bytes, made->bytes);
        expect_bytes(found, made);
        assert_ptr_equal(found->file, &file);
    }
    mp_safetensors_close(&file);
}

static void test_safetensors_takes_scalars_empty_tensors_and_high_ranks(void **state)
{
    (void)state;
    uint64_t none[] = {4, 0, 7}, many[] = {2, 1, 3, 1, 2, 1}, packed[] = {3, 4};
    maker_add(&shard, "F32", 3, none, "empty.first");
    maker_add(&shard, "F32", 0, NULL, "scalar");
    maker_add(&shard, "F32", 3, none, "empty.middle");
    maker_add(&shard, "F32", 6, many, "deep");
    maker_add(&shard, "F4", 2, packed, "packed");
    maker_add(&shard, "I64", 3, none, "empty.last");
    maker_write_shard(&shard, dir, "a.safetensors");

    mp_safetensors file;
    assert_int_equal(open_named("a.safetensors", &file), MOEPAGE_OK);
    assert_int_equal(file.tensors[0].bytes, 0);
    assert_int_equal(file.tensors[1].rank, 0);
    assert_int_equal(file.tensors[1].bytes, 4);
    expect_bytes(&file.tensors[1], &shard.tensors[1]);
    assert_int_equal(file.tensors[3].rank, 6);
    assert_int_equal(file.tensors[3].bytes, 48);
    assert_int_equal(file.tensors[4].bytes, 6);
    expect_bytes(&file.tensors[4], &shard.tensors[4]);
    mp_safetensors_close(&file);
}

static void test_safetensors_takes_a_file_without_tensors(void **state)
{
    (void)state;
    mp_safetensors file;
    maker_write_raw(dir, "a.safetensors", "{}", 2, 0);
    assert_int_equal(open_named("a.safetensors", &file), MOEPAGE_OK);
    assert_int_equal(file.n_tensors, 0);
    mp_safetensors_close(&file);
}

static void test_safetensors_refuses_what_is_no_file(void **state)
{
    (void)state;
    char path[128];
    expect_refusal("absent.safetensors", MOEPAGE_E_NOT_FOUND, "absent.safetensors|No such file");
    snprintf(path, sizeof path, "%s/dir.safetensors", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refusal("dir.safetensors", MOEPAGE_E_FORMAT, "dir.safetensors|regular");
    snprintf(path, sizeof path, "%s/fifo.safetensors", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal("fifo.safetensors", MOEPAGE_E_FORMAT, "fifo.safetensors|regular");
}

static void test_safetensors_refuses_a_file_too_short_for_its_header(void **state)
{
    (void)state;
    unsigned char bytes[8] = {2};
    maker_write(dir, "a.safetensors", bytes, 0);
    expect_refusal("a.safetensors", MOEPAGE_E_FORMAT, "a.safetensors|empty");
    for (size_t n = 1; n < 8; n++) {
        maker_write(dir, "a.safetensors", bytes, n);
        expect_refusal("a.safetensors", MOEPAGE_E_FORMAT, "a.safetensors|too few");
    }
    maker_write(dir, "a.safetensors", bytes, 8);
    expect_refusal("a.safetensors", MOEPAGE_E_FORMAT, "a.safetensors|claims 2 bytes where 0");
    memset(bytes, 0xff, sizeof bytes);
    maker_write(dir, "a.safetensors", bytes, 8);
    expect_refusal("a.safetensors", MOEPAGE_E_FORMAT, "claims 18446744073709551615 bytes");
}

static void test_safetensors_refuses_a_header_beyond_the_limit_without_parsing(void **state)
{
    (void)state;
    unsigned char bytes[9] = {0x01, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{'}; /* 100,000,001 */
    char path[128];
    maker_write(dir, "a.safetensors", bytes, sizeof bytes);
    snprintf(path, sizeof path, "%s/a.safetensors", dir);
    assert_int_equal(truncate(path, 100000100), 0);
    expect_refusal("a.safetensors", MOEPAGE_E_FORMAT, "claims 100000001 bytes|100000000");
}

/* A header, the bytes of data after it, and what must be said. */
static const struct {
    const char *header;
    uint64_t data_bytes;
    moepage_status status;
    const char *words;
} refused[] = {
    {"", 0, MOEPAGE_E_FORMAT, "'{'"},
    {" {}", 0, MOEPAGE_E_FORMAT, "'{'"},
    {"[1]", 0, MOEPAGE_E_FORMAT, "'{'"},
    {"{", 0, MOEPAGE_E_FORMAT, "not valid JSON"},
    {"{}x", 0, MOEPAGE_E_FORMAT, "not valid JSON"},
    {"{\"t\\u0000\":{}}", 0, MOEPAGE_E_FORMAT, "not valid JSON"},
    {"{\"\xff\":{}}", 0, MOEPAGE_E_FORMAT, "not valid JSON"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
     2, MOEPAGE_E_FORMAT, "duplicate|\"t\""},
    {"{\"__metadata__\":3}", 0, MOEPAGE_E_FORMAT, "__metadata__"},
    {"{\"__metadata__\":{\"k\":3}}", 0, MOEPAGE_E_FORMAT, "__metadata__.k"},
    {"{\"t\":3}", 0, MOEPAGE_E_FORMAT, "\"t\"|object"},
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT, "\"t\"|dtype"},
    {"{\"t\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|dtype"},
    {"{\"t\":{\"dtype\":\"Q3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_UNSUPPORTED,
     "\"t\"|\"Q3\""},
    {"{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT, "\"t\"|shape"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|shape"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|dimension"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|dimension"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,1]}}", 1,
     MOEPAGE_E_FORMAT, "\"t\"|overflows"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     MOEPAGE_E_FORMAT, "\"t\"|overflows"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]}}", 1,
     MOEPAGE_E_FORMAT, "not valid JSON"},
    {"{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|whole byte"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, MOEPAGE_E_FORMAT, "\"t\"|data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,\"1\"]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, MOEPAGE_E_FORMAT,
     "\"t\"|byte 2|of 1"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":"
     "[9223372036854775805,9223372036854775807]}}",
     1, MOEPAGE_E_FORMAT, "\"t\"|9223372036854775807"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, MOEPAGE_E_FORMAT,
     "\"t\"|4 bytes|need 8"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}}", 0, MOEPAGE_E_FORMAT,
     "\"t\"|need 1"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
     7, MOEPAGE_E_FORMAT, "\"a\"|\"b\"|overlap"},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
     8, MOEPAGE_E_FORMAT, "\"a\"|\"b\"|overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
     4, MOEPAGE_E_FORMAT, "\"a\"|\"b\"|overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[5,7]}}",
     7, MOEPAGE_E_FORMAT, "3 bytes before|\"b\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, MOEPAGE_E_FORMAT,
     "1 bytes after"},
    {"{}", 9, MOEPAGE_E_FORMAT, "9 bytes after"},
};

static void test_safetensors_refuses_every_malformed_header_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        maker_write_raw(dir, "bad.safetensors", refused[i].header, strlen(refused[i].header),
                        refused[i].data_bytes);
        expect_refusal("bad.safetensors", refused[i].status, refused[i].words);
        expect_sentence("bad.safetensors");
    }
}

static void test_safetensors_does_not_mind_the_order_of_tensors(void **state)
{
    (void)state;
    const char *header = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},"
                         "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}   ";
    maker_write_raw(dir, "a.safetensors", header, strlen(header), 5);
    mp_safetensors file;
    assert_int_equal(open_named("a.safetensors", &file), MOEPAGE_OK);
    assert_string_equal(file.tensors[0].name, "b");
    assert_int_equal(file.tensors[0].offset - file.tensors[1].offset, 3);
    mp_safetensors_close(&file);
}

static void test_safetensors_close_is_safe_on_zeros_and_after_failure(void **state)
{
    (void)state;
    mp_safetensors file = {0};
    mp_safetensors_close(&file);
    maker_write_raw(dir, "a.safetensors", "{\"t\":3}", 7, 0);
    assert_int_equal(open_named("a.safetensors", &file), MOEPAGE_E_FORMAT);
    mp_safetensors_close(&file);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, create_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        CASE(test_safetensors_finds_every_tensor_where_the_file_has_it),
        CASE(test_safetensors_takes_scalars_empty_tensors_and_high_ranks),
        CASE(test_safetensors_takes_a_file_without_tensors),
        CASE(test_safetensors_refuses_what_is_no_file),
        CASE(test_safetensors_refuses_a_file_too_short_for_its_header),
        CASE(test_safetensors_refuses_a_header_beyond_the_limit_without_parsing),
        CASE(test_safetensors_refuses_every_malformed_header_by_name),
        CASE(test_safetensors_does_not_mind_the_order_of_tensors),
        CASE(test_safetensors_close_is_safe_on_zeros_and_after_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
